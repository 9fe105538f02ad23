"""A bug ends each background task and callback of a DLedger peer in turn: the peer must stop and log it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import FlushFailed, InvariantError, NotLeader
from rocketpy_broker.replication.dledger import peer_transport as links
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.peer import Peer
from tests.background import fails
from tests.integration.raft_group import Group, Member, group
from tests.waiting import until


async def stops(running: Group, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until a leader has failed; check its log and health, and that the others continue."""
    peer = member.peer
    assert peer is not None
    await until(lambda: bool(member.failures))
    assert len(member.failures) == 1
    assert peer.health().problem == (str(member.failures[0]) or "Bug()")
    assert any(record.exc_info and "stops" in record.msg for record in caplog.records)
    with pytest.raises(NotLeader):
        peer.append(b"more")
    others = [other for other in running.running if other is not member]
    await running.end_silence(*others)
    await until(lambda: any(other.peer and other.peer.state.role is Role.LEADER for other in others))


Act = Callable[[Peer], object]
WORK: list[tuple[str, Callable[[Peer], Any], str, Act]] = [
    ("tick", lambda peer: peer._node, "step", bool),
    ("turn", lambda peer: peer._node, "push", lambda peer: peer.append(b"b")),
    ("write", lambda peer: peer._ledger, "apply", lambda peer: peer.append(b"b")),
    ("plan of a flush", lambda peer: peer._ledger, "plan_flush", lambda peer: peer.append(b"b")),
    ("checkpoint", lambda peer: peer._files, "save_checkpoint", lambda peer: peer._periodic[1].wake()),
    ("room ahead", lambda peer: peer._ledger, "needs_preallocation", lambda peer: peer.append(b"b")),
    ("owner", lambda peer: peer._listener, "committed", lambda peer: peer.append(b"b")),
]


@pytest.mark.parametrize(("part", "method", "act"), [row[1:] for row in WORK], ids=[row[0] for row in WORK])
async def test_work_of_a_peer_that_fails(
    part: Callable[[Peer], Any],
    method: str,
    act: Act,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer would lead and store nothing, or follow and never respond, without a report."""
    async with group(tmp_path, no_op=lambda _: b"no-op") as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(part(peer), method, fails)
            act(peer)
            await stops(running, member, caplog)


async def test_an_outgoing_connection_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader would never reach that peer."""
    async with group(tmp_path) as running:
        member, peer = await running.leader()
        other = next(name for name in running.members if name != member.name)
        await running.stop(other)
        with monkeypatch.context() as patch:
            patch.setattr(links, "connect", fails)
            await until(lambda: bool(member.failures))
        assert "connect to peer" in str(member.failures[0])
        assert any(record.exc_info and "stops" in record.msg for record in caplog.records)
        assert peer.health().problem


@pytest.mark.parametrize("with_files", [False, True])
async def test_an_unexpected_error_in_a_flush_stops_a_peer(
    with_files: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unflushed entries would count as flushed, and the ledger accept more."""

    def fail(_plan: object) -> None:
        raise ValueError("not an OSError")

    async with group(tmp_path, with_files=with_files, no_op=lambda _: b"no-op") as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        ledger = member.files or member.ledger
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "run_flush", fail)
            peer.append(b"b")
            await stops(running, member, caplog)
        assert isinstance(member.failures[0], FlushFailed | InvariantError)
        assert "not an OSError" in str(member.failures[0])
        if member.files is not None:
            assert isinstance(member.files.failure, FlushFailed)
