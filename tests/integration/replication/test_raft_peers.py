"""DLedger peers over sockets: a group elects, replicates, and survives failures of its peers."""

import asyncio
import threading
import weakref
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull, FlushFailed, NotEnoughReplicas, NotLeader, StoreDamaged
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, ChannelOptions, serve
from rocketpy_broker import cli
from rocketpy_broker.replication.dledger import peer as peer_module
from rocketpy_broker.replication.dledger import peer_transport
from rocketpy_broker.replication.dledger.core.events import SendRequest
from rocketpy_broker.replication.dledger.core.messages import (
    AppendEntryRequest,
    GetEntriesRequest,
    GetEntriesResponse,
    MetadataRequest,
    MetadataResponse,
    RaftMessage,
    RaftRequestCode,
    RaftResponseCode,
    read_response,
    to_request,
)
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.peer import PeerState
from rocketpy_broker.replication.dledger.peer_transport import RaftClient
from rocketpy_broker.store.log.flush import FlushPlan
from tests.integration.raft_group import Group, Member, group
from tests.integration.raw_client import RawClient
from tests.ports import no_server_at
from tests.waiting import LIMIT_S, until, until_collected


async def ask(member: Member, message: RaftMessage) -> RaftMessage:
    assert member.peer is not None
    message.group, message.remote_id = "g", member.name
    request = to_request(message)
    async with await RawClient.open(member.peer.address) as client:
        return read_response(await client.call_frame(encode_command(request)), request.code)


async def all_have(running: Group, bodies: list[bytes], *, without: bytes | None = None) -> None:
    """Wait until all running peers have committed these entries. without: leaves out such entries."""

    def committed() -> dict[str, list[bytes]]:
        return {
            member.name: [body for body in member.bodies() if body != without] for member in running.running
        }

    try:
        await until(lambda: all(found == bodies for found in committed().values()))
    except TimeoutError:
        raise AssertionError(f"{bodies} are not committed everywhere: {committed()}") from None


async def test_a_group_elects_one_leader_and_replicates(tmp_path: Path) -> None:
    """Acknowledged entries would be on one peer only."""
    async with group(tmp_path) as running:
        _, peer = await running.leader()
        bodies = [b"%d" % number for number in range(500)]
        entry = await running.append(peer, *bodies)
        assert (entry.index, entry.term) == (499, peer.state.term)
        await all_have(running, bodies)
        assert [member.peer.state.role for member in running.running if member.peer].count(Role.LEADER) == 1
        assert all(member.peer.health().leader_changes >= 1 for member in running.running if member.peer)
        others = [name for name in running.members if name != peer.settings.self_id]
        await until(lambda: peer.lags == dict.fromkeys(others, 0))  # it has all their acknowledgements


async def test_many_entries_share_a_flush(tmp_path: Path) -> None:
    """A group would flush its disk once for each message."""
    async with group(tmp_path) as running:
        member, peer = await running.leader()
        before = member.ledger.flushes
        await running.append(peer, *[b"x"] * 300)
        assert member.ledger.flushes - before < 10


async def test_the_next_leader_has_acknowledged_entries(tmp_path: Path) -> None:
    """Acknowledged entries would be lost when their leader fails (I1)."""
    async with group(tmp_path, no_op=lambda _: b"no-op") as running:
        old, peer = await running.leader()
        await running.append(peer, b"a", b"b")
        await running.stop(old.name)
        new, peer = await running.leader()
        assert new is not old
        await running.append(peer, b"c")
        await running.start(old.name)
        await all_have(running, [b"no-op", b"a", b"b", b"no-op", b"c"])
        terms = [entry.term for entry in new.ledger.entries]
        assert terms == sorted(terms)


async def test_a_follower_that_was_offline_catches_up(tmp_path: Path) -> None:
    """Each restarted peer would be lost to its group."""
    async with group(tmp_path) as running:
        member, peer = await running.leader()
        away = next(name for name in running.members if name != member.name)
        await running.append(peer, b"a")
        await running.stop(away)
        bodies = [b"%d" % number for number in range(2500)]
        await running.append(peer, *bodies)
        term = peer.state.term
        await running.start(away)
        await all_have(running, [b"a", *bodies])
        assert peer.state == PeerState(Role.LEADER, term, member.name), "its restart cost the leader its term"


async def test_a_minority_acknowledges_nothing(tmp_path: Path) -> None:
    """A partitioned leader would acknowledge entries that the next leader lacks."""
    async with group(tmp_path) as running:
        member, peer = await running.leader()
        for name in running.members:
            if name != member.name:
                await running.stop(name)
        entry = peer.append(b"alone")
        await running.end_silence(member)
        await until(lambda: peer.state.role is not Role.LEADER)
        assert peer.committed_index < entry.index
        with pytest.raises(NotLeader):
            peer.append(b"more")


async def test_a_single_peer_leads_itself(tmp_path: Path) -> None:
    """A group of one, for a first try, would wait for other peers forever."""
    async with group(tmp_path, size=1) as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        assert member.bodies() == [b"a"]


async def test_appends_above_the_limit_of_uncommitted_entries_are_rejected(tmp_path: Path) -> None:
    """Without a majority a leader would fill its memory."""
    async with group(tmp_path, pending_max=5) as running:
        member, peer = await running.leader()
        for name in running.members:
            if name != member.name:
                await running.stop(name)
        for _ in range(5):
            peer.append(b"x")
        with pytest.raises(NotEnoughReplicas, match="5 entries wait"):
            peer.append(b"x")


async def test_nothing_is_acknowledged_before_it_is_durable_on_a_majority(tmp_path: Path) -> None:
    """Power loss of all peers would lose acknowledged entries, as it does with 0.1."""
    async with group(tmp_path) as running:
        _, peer = await running.leader()
        await running.append(peer, b"a")
        gate = threading.Event()
        for other in running.running:
            other.ledger.on_flush = lambda: gate.wait(LIMIT_S)
        try:
            entry = peer.append(b"b")
            await until(lambda: all(len(member.ledger.entries) == 2 for member in running.running))
            assert peer.committed_index < entry.index
        finally:
            gate.set()
        await until(lambda: peer.committed_index == entry.index)


async def test_without_flush_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    """dLegerFlush=async would be as slow as sync."""
    async with group(tmp_path, flush=False) as running:
        _, peer = await running.leader()
        gate = threading.Event()
        for other in running.running:
            other.ledger.on_flush = lambda: gate.wait(LIMIT_S)
        try:
            await running.append(peer, b"a", b"b")
            await all_have(running, [b"a", b"b"])
        finally:
            gate.set()
        await until(lambda: all(other.ledger.flushes > 0 for other in running.running))


async def test_a_failed_flush_ends_a_peer(tmp_path: Path) -> None:
    """A peer would trust a second flush, although the disk may have dropped the data (#2706)."""

    def fail() -> None:
        raise FlushFailed("no")

    async with group(tmp_path, no_op=lambda _: b"no-op") as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        member.ledger.on_flush = fail
        peer.append(b"b")
        await until(lambda: bool(member.failures))
        with pytest.raises(NotLeader):
            peer.append(b"c")
        others = [other for other in running.running if other is not member]
        await running.end_silence(*others)
        await until(lambda: any(other.peer and other.peer.state.role is Role.LEADER for other in others))


class Clock:
    """A clock that only flushes advance."""

    now = 1e9

    def monotonic(self) -> float:
        return self.now


async def test_a_slow_disk_does_not_block_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker would respond to no client or peer while its disk flushes."""
    async with group(tmp_path, 1, with_files=True) as running:
        leader, peer = await running.leader()
        files = leader.files
        assert files is not None
        clock, run_flush, threads = Clock(), files.run_flush, list[int]()

        def slowly(plan: FlushPlan) -> None:
            threads.append(threading.get_ident())
            clock.now += 0.02
            run_flush(plan)

        monkeypatch.setattr(files, "run_flush", slowly)
        monkeypatch.setattr(peer_module, "time", clock)
        for number in range(30):
            await running.append(peer, b"%d" % number)
            assert len(threads) > number
        assert threads.count(threading.get_ident()) < len(threads) // 3


async def test_lone_entries_are_flushed_in_the_loop_while_the_disk_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each send would cost two thread switches, or one slow flush would cost them for all later sends."""
    clock, costs_s, threads = Clock(), 0.001, list[int]()
    async with group(tmp_path, 1, with_files=True) as running:
        leader, peer = await running.leader()
        await running.append(peer, b"first")  # creates the file
        files = leader.files
        assert files is not None
        run_flush = files.run_flush

        def flush(plan: FlushPlan) -> None:
            threads.append(threading.get_ident())
            clock.now += costs_s
            run_flush(plan)

        async def is_in_loop() -> bool:
            await running.append(peer, b"x")
            return threads[-1] == threading.get_ident()

        monkeypatch.setattr(files, "run_flush", flush)
        monkeypatch.setattr(peer_module, "time", clock)
        assert [await is_in_loop() for _ in range(5)] == [True] * 5
        costs_s = 0.01
        assert await is_in_loop()
        costs_s = 0.001
        assert [await is_in_loop() for _ in range(3)] == [False] * 3
        clock.now += 0.2
        assert [await is_in_loop() for _ in range(3)] == [True] * 3


async def test_a_leader_with_a_slow_disk_commits_entries_of_the_others(tmp_path: Path) -> None:
    """A send that a majority has would wait for the slowest disk, or for the next tick."""
    done = threading.Event()
    async with group(tmp_path) as running:
        leader, peer = await running.leader()
        await running.append(peer, b"first")
        await until(lambda: set(peer.lags.values()) == {0})
        ticks = peer._periodic[0]
        ticks.stop()
        await asyncio.wait({ticks.task})
        leader.ledger.on_flush = done.wait
        try:
            await running.append(peer, b"second")
            assert not done.is_set()
        finally:
            done.set()


async def test_a_closed_peer_has_no_timers(tmp_path: Path) -> None:
    """A timer of a closed peer would overwrite the checkpoint of the next peer in its directory."""
    async with group(tmp_path, 1) as running:
        leader, peer = await running.leader()
        closed = weakref.ref(peer)
        del peer
        await running.stop(leader.name)
        await until_collected(closed)


async def test_a_follower_continues_after_its_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower with a full disk would be lost to its group until a manual restart."""
    monkeypatch.setattr("rocketpy_broker.replication.dledger.peer._DISK_FULL_RETRY_S", 0.05)
    full = True

    def refuse(_: object) -> None:
        if full:
            raise DiskFull("full")

    async with group(tmp_path) as running:
        member, peer = await running.leader()
        follower = next(other for other in running.running if other is not member)
        follower.ledger.on_apply = refuse
        await running.append(peer, b"a")
        await until(lambda: follower.peer is not None and follower.peer.disk_full is not None)
        await running.append(peer, b"b")
        full = False
        await until(lambda: follower.bodies() == [b"a", b"b"])
        assert follower.peer is not None
        assert follower.peer.disk_full is None


@pytest.mark.slow
async def test_a_leader_with_a_full_disk_follows_another_leader(tmp_path: Path) -> None:
    """Its broker would remain a second master."""

    def refuse(_: object) -> None:
        raise DiskFull("full")

    async with group(tmp_path, no_op=lambda _: b"no-op") as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        member.ledger.on_apply = refuse
        peer.append(b"b")
        await until(lambda: peer.disk_full is not None)
        others = [other for other in running.running if other is not member]
        await running.end_silence(*others)
        await until(lambda: any(other.peer and other.peer.state.role is Role.LEADER for other in others))
        await until(lambda: member.states[-1].role is Role.FOLLOWER)
        with pytest.raises(DiskFull):
            peer.append(b"c")


async def test_entries_sent_before_the_leader_s_disk_was_full_are_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader pushes entries before it writes them: a retried write would push them twice, or lose them."""
    monkeypatch.setattr("rocketpy_broker.replication.dledger.peer._DISK_FULL_RETRY_S", 0.05)
    full = True

    def refuse(_: object) -> None:
        if full:
            raise DiskFull("full")

    async with group(tmp_path, no_op=lambda _: b"no-op") as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        member.ledger.on_apply = refuse
        entry = peer.append(b"b")
        others = [other for other in running.running if other is not member]
        await until(lambda: all(other.ledger.end_index >= entry.index for other in others))
        assert member.ledger.end_index < entry.index
        full = False
        await until(lambda: all(other.bodies().count(b"b") == 1 for other in running.running))


async def test_clients_of_dledger_are_served(tmp_path: Path) -> None:
    """DLedger's own tools would not work with this group."""
    async with group(tmp_path) as running:
        member, peer = await running.leader()
        found = await ask(running.members["n1"], MetadataRequest())
        assert isinstance(found, MetadataResponse)
        assert (found.leader_id, found.peers) == (member.name, running.addresses)
        assert (await ask(member, AppendEntryRequest(body=b"a"))).code == RaftResponseCode.UNSUPPORTED
        await running.append(peer, b"a")
        got = await ask(member, GetEntriesRequest(begin_index=0))
        assert isinstance(got, GetEntriesResponse)
        assert [entry.body for entry in got.entries] == [b"a"]
        other = next(other for other in running.running if other is not member)
        response = await ask(other, AppendEntryRequest(body=b"a"))
        assert (response.code, response.leader_id) == (RaftResponseCode.NOT_LEADER, member.name)


class HangingEnd:
    """An endpoint that receives requests and sends no responses."""

    def __init__(self) -> None:
        self.opened = 0

    def channel_opened(self, channel: Channel) -> None:
        self.opened += 1

    def handle(self, channel: Channel, request: Command) -> None:
        pass

    def end_of_buffer(self) -> None:
        pass

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        pass


async def connected(_channel: Channel, _peer: str) -> None:
    """Accept a connection without authentication."""


async def test_a_peer_that_hangs_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated pushes to a hanging follower would fill the leader's memory."""
    monkeypatch.setattr(peer_transport, "REQUEST_TIMEOUT_MS", 50)
    end, failed = HangingEnd(), list[int]()
    server = await serve("127.0.0.1:0", end)
    peers = RaftClient(
        {"n1": server.address},
        ChannelOptions(),
        lambda call, _: failed.append(call),
        lambda: None,
        Tasks("a peer"),
        connected,
    )
    peers.send(SendRequest(1, "n1", MetadataRequest(group="g")))
    peers.send(SendRequest(2, "n1", MetadataRequest(group="g")))
    await until(lambda: not server.channels and end.opened == 1)
    await until(lambda: sorted(failed) == [1, 2])
    peers.send(SendRequest(3, "n1", MetadataRequest(group="g")))
    await until(lambda: end.opened == 2)
    peers.close()
    await server.close()


async def test_garbage_is_rejected(tmp_path: Path) -> None:
    """An unauthenticated request to the raft port would take a peer down."""
    async with group(tmp_path, size=1) as running:
        member, peer = await running.leader()
        async with await RawClient.open(peer.address) as client:
            for code, body in (
                (RaftRequestCode.VOTE, b"{"),
                (RaftRequestCode.PUSH, b'{"entry":{"body":"?"}}'),
                (10, b""),
            ):
                response = await client.call(code, body=body)
                assert response.code == ResponseCode.SYSTEM_ERROR
        assert not member.failures
        await running.append(peer, b"a")


async def test_a_peer_without_its_vote_file_does_not_start(tmp_path: Path) -> None:
    """A peer that forgot its vote could vote twice, and elect two leaders of one term."""
    async with group(tmp_path, size=1) as running:
        member, peer = await running.leader()
        await running.append(peer, b"a")
        await running.stop("n0")
        path = member.root / "currterm"
        saved = await asyncio.to_thread(path.read_bytes)
        await asyncio.to_thread(path.write_bytes, saved.replace(b"n0", b"n1"))
        with pytest.raises(StoreDamaged, match="CRC-32"):
            await running.start("n0")
        await running.stop("n0")
        await asyncio.to_thread(path.unlink)
        with pytest.raises(StoreDamaged, match="missing"):
            await running.start("n0")
        await running.stop("n0")


async def test_peers_with_files_keep_their_state(tmp_path: Path) -> None:
    """A restarted group would lose its entries, terms and votes."""
    async with group(tmp_path, with_files=True, no_op=lambda _: b"no-op") as running:
        _, peer = await running.leader()
        bodies = [b"%d" % number * 50 for number in range(200)]
        await running.append(peer, *bodies)
        await all_have(running, [b"no-op", *bodies])
        await running.close()
        for name in running.members:
            await running.start(name)
        _, peer = await running.leader()
        await running.append(peer, b"more")
        await all_have(running, [*bodies, b"more"], without=b"no-op")  # each new leader appends one


async def test_the_command_shows_an_error_code_as_a_response(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator with a wrong group would search for a stopped peer, although it responds."""
    async with group(tmp_path, size=1) as running:
        ((name, address),) = running.addresses.items()
        place = address.removeprefix("tcp://")
        status = "dledger", "status", "--peers", f"{name}-{place}", "--group"
        assert await asyncio.to_thread(cli.main, (*status, "other")) == 1
        (_, row) = capsys.readouterr().out.splitlines()
        code = int(RaftResponseCode.UNKNOWN_GROUP)
        assert f"responded with code {code}: check the group" in row
        assert "no usable response" not in row
        assert await asyncio.to_thread(cli.main, (*status, "other", "--json")) == 1
        assert '"responds":true' in capsys.readouterr().out
    with no_server_at(place):
        assert await asyncio.to_thread(cli.main, (*status, "g")) == 1
    (_, row) = capsys.readouterr().out.splitlines()
    assert "no usable response: " in row


async def test_the_loss_of_a_role_is_notified_before_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that another leader committed would acknowledge sends to a former leader."""
    async with group(tmp_path) as running:
        _, peer = await running.leader()
        notified: list[str] = []
        monkeypatch.setattr(peer._listener, "changed", lambda _state: notified.append("changed"))
        monkeypatch.setattr(peer._listener, "committed", lambda _index: notified.append("committed"))
        await running.append(peer, b"x")
        notified.clear()
        peer._notified = (PeerState(Role.FOLLOWER, 0, None), -1)  # as if both had changed together
        peer._notify_listener()
        assert notified == ["changed", "committed"]
