"""A DLedger group with a secret: which peers are accepted, and the errors of the others."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Channel, ClientOnlyEndpoint, connect, serve
from rocketpy_broker.replication.dledger import authentication
from rocketpy_broker.replication.dledger.authentication import (
    HandshakeCode,
    HandshakeContext,
    PeerRefused,
    authenticate,
)
from rocketpy_broker.replication.dledger.core.messages import (
    GetEntriesRequest,
    HeartBeatRequest,
    MetadataRequest,
    PushEntryRequest,
    RaftMessage,
    VoteRequest,
    read_response,
    to_request,
)
from rocketpy_broker.replication.dledger_status import query_peers
from tests.integration.raft_group import Group, group
from tests.integration.raw_client import RawClient, is_closed
from tests.waiting import until

KNOWN = "a long random text"
TERM = 1 << 40


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Group]:
    async with group(tmp_path, secret=KNOWN) as it:
        yield it


def port(running: Group, name: str = "n1") -> str:
    return running.addresses[name]


def hello(caller: str = "n0", callee: str = "n1", name: str = "g") -> Command:
    request = Command.request(HandshakeCode.HELLO)
    request.ext = {"group": name, "localId": caller, "remoteId": callee, "nonce": "n"}
    return request


async def ask(client: RawClient, request: Command) -> Command:
    return await client.call_frame(encode_command(request))


async def test_a_group_with_a_secret_replicates(running: Group) -> None:
    """A group with a secret would not elect a leader."""
    _, peer = await running.leader()
    bodies = [b"%d" % number for number in range(100)]
    await running.append(peer, *bodies)
    await until(lambda: all(member.bodies() == bodies for member in running.running))
    await running.stop("n1")
    await running.start("n1")
    await until(lambda: running.members["n1"].bodies() == bodies)


@pytest.mark.parametrize(
    "message",
    [
        MetadataRequest(),
        GetEntriesRequest(begin_index=0),
        VoteRequest(local_id="n0", leader_id="n0", term=TERM),
        HeartBeatRequest(local_id="n0", leader_id="n0", term=TERM),
        PushEntryRequest(local_id="n0", leader_id="n0", term=TERM),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_stranger_learns_and_changes_nothing(
    running: Group, message: RaftMessage, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client that reaches the port could read every message, or depose the leader with a newer term.

    An answer would tell a stranger that a DLedger group is there.
    """
    _, peer = await running.leader()
    await running.append(peer, b"a")
    message.group, message.remote_id = "g", "n1"
    caplog.clear()
    async with await RawClient.open(port(running)) as client:
        client.writer.write(encode_command(to_request(message)))
        assert await client.reader.read() == b""
    assert "without the handshake that dLegerSecret requires" in caplog.text
    assert peer.state.term < TERM
    assert (await running.leader())[1] is peer


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (hello(name="other"), "group 'other'"),
        (hello(callee="n2"), "wants peer 'n2'"),
        (hello(caller="n9"), "not a peer of this group"),
        (Command.request(HandshakeCode.HELLO), "without group"),
    ],
    ids=["group", "callee", "caller", "nothing"],
)
async def test_a_handshake_for_another_peer_is_rejected(running: Group, said: Command, reason: str) -> None:
    """A peer of another group with the same secret would vote in this one."""
    async with await RawClient.open(port(running)) as client:
        response = await ask(client, said)
        assert response.code == ResponseCode.NO_PERMISSION
        assert reason in str(response.remark)
        assert await is_closed(client)


async def test_a_proof_without_a_context_gets_no_response(running: Group) -> None:
    """A stranger could tell this port from others by its answer."""
    async with await RawClient.open(port(running)) as client:
        client.writer.write(encode_command(Command.request(HandshakeCode.PROVE)))
        assert await client.reader.read() == b""


async def test_rejections_of_a_host_are_limited(running: Group, caplog: pytest.LogCaptureFixture) -> None:
    """A host could fill the log, with another request code each time."""
    for code in range(52100, 52130):
        async with await RawClient.open(port(running)) as client:
            client.writer.write(encode_command(Command.request(code)))
            assert await is_closed(client)
    lines = [record for record in caplog.records if "closing the connection" in record.getMessage()]
    assert len(lines) == 1


async def proven(client: RawClient, side: str = "caller", key: str = KNOWN) -> tuple[Command, Command]:
    """Do the handshake as n0; return the PROVE request and its response."""
    said = await ask(client, hello())
    proves = Command.request(HandshakeCode.PROVE)
    context = HandshakeContext("g", "n0", "n1", "n", said.ext_fields()["nonce"])
    proves.ext = {"proof": context.proof(key, side)}
    return proves, await ask(client, proves)


@pytest.mark.parametrize(("side", "key"), [("caller", "guessed"), ("callee", KNOWN), ("caller", "é")])
async def test_a_wrong_proof_is_rejected(running: Group, side: str, key: str) -> None:
    """A peer without the secret would be accepted, or one that sends back the proof that it received."""
    async with await RawClient.open(port(running)) as client:
        _, response = await proven(client, side, key)
        assert response.code == ResponseCode.NO_PERMISSION
        assert await is_closed(client)


async def test_a_proof_that_is_not_ascii_is_rejected(
    running: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone could fill the log with tracebacks."""
    async with await RawClient.open(port(running)) as client:
        await ask(client, hello())
        proves = Command.request(HandshakeCode.PROVE)
        proves.ext = {"proof": "é" * 64}
        assert (await ask(client, proves)).code == ResponseCode.NO_PERMISSION
    assert "Traceback" not in caplog.text


async def test_a_recorded_handshake_cannot_be_replayed(running: Group) -> None:
    """An attacker who saw one connection of a peer could join the group."""
    async with await RawClient.open(port(running)) as first:
        recorded, response = await proven(first)
        assert response.code == ResponseCode.SUCCESS
    async with await RawClient.open(port(running)) as second:
        await ask(second, hello())
        assert (await ask(second, recorded)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(("sender", "candidate"), [("n0", "n2"), ("n2", "n0")])
async def test_a_peer_speaks_for_itself_only(running: Group, sender: str, candidate: str) -> None:
    """One compromised peer could vote for all others."""
    _, leader = await running.leader()
    message = VoteRequest(group="g", local_id=sender, remote_id="n1", leader_id=candidate, term=TERM)
    async with await RawClient.open(port(running)) as client:
        await proven(client)
        metadata = MetadataRequest(group="g", remote_id="n1")
        assert read_response(await ask(client, to_request(metadata)), 50000).code == 200
        assert "in the name of n2" in str((await ask(client, to_request(message))).remark)
        assert await is_closed(client)
    assert leader.state.term < TERM


class Liar(ClientOnlyEndpoint):
    """Responds to a handshake without knowing the secret."""

    def handle(self, channel: Channel, request: Command) -> Command:
        response = request.reply(ResponseCode.SUCCESS)
        response.ext = {"nonce": "m", "proof": "0" * 64}
        return response


async def test_the_accepting_peer_must_know_the_secret_too() -> None:
    """An attacker at a peer's address could acknowledge entries, or grant a vote."""
    server = await serve("127.0.0.1:0", Liar())
    channel = await connect(server.address, ClientOnlyEndpoint())
    with pytest.raises(PeerRefused, match="peer n1 does not know the secret"):
        await authenticate(channel, KNOWN, "g", "n0", "n1")
    channel.close()
    await server.close()


@pytest.mark.parametrize("said", [[], [hello()]], ids=["nothing", "half"])
async def test_an_unfinished_handshake_ends_the_connection(
    running: Group, monkeypatch: pytest.MonkeyPatch, said: list[Command]
) -> None:
    """Anyone could hold connections without a time limit."""
    monkeypatch.setattr(authentication, "_HANDSHAKE_S", 0.1)
    async with await RawClient.open(port(running)) as client:
        for request in said:
            assert (await ask(client, request)).code == ResponseCode.SUCCESS
        assert await is_closed(client)


async def test_a_peer_connects_despite_idle_connections(running: Group) -> None:
    """Silent connections would occupy all places, so that a restarted peer is rejected."""
    _, peer = await running.leader()
    name = next(name for name in running.members if name != peer.settings.self_id)
    await running.stop(name)
    async with AsyncExitStack() as opened:
        for other in running.members:
            for _ in range(80 if other != name else 0):
                await opened.enter_async_context(await RawClient.open(port(running, other)))
        await running.start(name)
        await running.append(peer, b"a")
        await until(lambda: running.members[name].bodies() == [b"a"])


@pytest.mark.parametrize("theirs", ["", "other"])
async def test_a_peer_without_the_secret_is_rejected_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, theirs: str
) -> None:
    """A misconfigured peer among three would be missing without a report."""
    caplog.set_level(logging.WARNING)
    async with group(tmp_path, secret=KNOWN) as running:
        _, peer = await running.leader()
        name = next(name for name in running.members if name != peer.settings.self_id)
        await running.stop(name)
        running.settings["secret"] = theirs
        await running.start(name)
        await running.append(peer, b"a")
        await until(lambda: f"peer {peer.settings.self_id}: " in caplog.text)
        await until(lambda: "dLegerSecret" in caplog.text)
        assert running.members[name].bodies() == []


async def test_a_command_with_the_file_gets_the_status(running: Group) -> None:
    """`dledger status -c` would show nothing of a group with a secret."""
    await running.leader()
    addresses = {name: member.peer.address for name, member in running.members.items() if member.peer}
    reports = await query_peers("g", addresses, secret=KNOWN, self_id="n0")
    assert [report.role for report in reports].count("leader") == 1
    reports = await query_peers("g", addresses)
    assert len(reports) == len(addresses)
    assert all("dLegerSecret" in report.problem for report in reports)
