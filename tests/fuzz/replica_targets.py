"""Bytes between replicas: HA streams, and frames of DLedger's peers. All targets have a state.

An input is everything that one connection, or one peer, receives. Whatever it is, the log or ledger keeps its
form, and nothing but the typed error comes out: anything else would stop the node.
"""

from __future__ import annotations

import contextlib
import zlib
from functools import cache
from random import Random
from typing import Any

import msgspec

from rocketpy.errors import NotLeader, RemoteProtocolError
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy_broker.replication.dledger.core.entry import Entry, next_pos
from rocketpy_broker.replication.dledger.core.events import (
    RequestReceived,
    ResponseReceived,
    SendRequest,
    Tick,
)
from rocketpy_broker.replication.dledger.core.messages import (
    GetEntriesRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    RaftMessage,
    RaftRequestCode,
    RaftResponseCode,
    VoteRequest,
    VoteResponse,
    VoteResult,
    read_request,
    read_response,
    to_request,
)
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import TermState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.ha.epochs import Epoch, EpochState
from rocketpy_broker.replication.ha.master import DataReceived, MasterSession, Poll
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.replication.ha.wire import (
    CONTROL,
    REPORT,
    ControlMessage,
    Hello,
    Join,
    Refused,
    Welcome,
    ack,
    encode_control,
    frame,
)
from tests import golden_data
from tests.fuzz import corpus
from tests.fuzz.mutation import Mutator
from tests.sim.raft_disk import RaftDisk
from tests.unit.replication.ha.logs import MemoryLog

# -- HA -----------------------------------------------------------------------------------------

_LOG = bytes(range(256)) * 40
_EPOCHS = (Epoch(1, 0, "a"), Epoch(2, 4096, "b"))
_ODD = (-(2**63), -5, -1, 0, 1, 4095, 4096, 10_240, 10_241, 2**31, 2**62, 2**63 - 1)
_TAIL_CRC = zlib.crc32(_LOG[-100:])


def make_reports(rng: Random) -> bytes:
    """Mutated bytes of a slave to its master."""
    recorded = [data for stream in _streams() if (data := stream.slave_to_master)]
    notes = [encode_control(_join(rng)) for _ in range(rng.randrange(2))]
    acks = [ack(rng.choice(_ODD), rng.choice(_ODD)) for _ in range(rng.randrange(3))]
    said = REPORT.pack(CONTROL) + b"".join((*notes, *acks))
    data = rng.choice((said, said, REPORT.pack(rng.choice(_ODD)), rng.choice(recorded)[:400]))
    return Mutator([data], _TOKENS).mutate(rng, data) if rng.random() < 0.5 else data


def make_stream(rng: Random) -> bytes:
    """Mutated bytes of a master to its slave."""
    recorded = [data for stream in _streams() if (data := stream.master_to_slave)]
    notes: list[ControlMessage] = [Hello("m", rng.random() < 0.1), _welcome(rng)]
    if rng.random() < 0.2:
        notes[rng.randrange(2)] = rng.choice((Refused("no"), _join(rng), Hello("n", False)))
    place = rng.choice((len(_LOG), len(_LOG), rng.choice(_ODD)))
    frames = [frame(place, b""), frame(place, b"x" * 10), frame(min(place + 10, _ODD[-1]), b"y" * 20)]
    said = b"".join(map(encode_control, notes)) + b"".join(frames[: rng.randrange(4)])
    data = rng.choice((said, said, b"".join(frames), rng.choice(recorded)[:2000]))
    return Mutator([data], _TOKENS).mutate(rng, data) if rng.random() < 0.5 else data


_TOKENS = (b'{"type":"join"', b'"\\ud800"', b"1e400", b"[[[[", b"null", b"-1", b"9" * 30, b'"proof":"\xc3"')


@cache
def _streams() -> list[golden_data.HaStream]:
    return [golden_data.ha_stream(name) for name in ("ha1-conn1", "ha2-conn1", "ha3-conn1")]


def _join(rng: Random) -> Join:
    return Join(
        broker_name="b",
        broker_id=rng.choice(_ODD),
        epochs=_some_epochs(rng),
        epoch_seen=rng.choice((0, 1, 2, 2, *_ODD)),
        max_offset=rng.choice((len(_LOG), 4096, *_ODD)),
        tail_bytes=rng.choice((0, 0, 100, *_ODD)),
        tail_crc=rng.choice((_TAIL_CRC, *_ODD)),
        nonce="s",
        proof="",
    )


def _welcome(rng: Random) -> Welcome:
    start = rng.choice((len(_LOG), len(_LOG), 4096, *_ODD))
    return Welcome(epochs=_some_epochs(rng), start=start, wants_flushed=rng.random() < 0.5, proof="")


def _some_epochs(rng: Random) -> tuple[Epoch, ...]:
    if rng.random() < 0.6:
        return _EPOCHS[: rng.randrange(3)]
    return tuple(Epoch(rng.choice(_ODD), rng.choice(_ODD), "z") for _ in range(rng.randrange(3)))


def _log(rng: Random) -> MemoryLog:
    if rng.random() < 0.2:
        return MemoryLog()
    log = MemoryLog(_LOG, epochs=EpochState(epochs=_EPOCHS, seen=2))
    if rng.random() < 0.3:
        log.min_offset = 4096
        del log.data[:4096]
    return log


def _settings(rng: Random) -> HaSettings:
    return HaSettings(secret=rng.choice(("", "", "", "key")), wants_flushed=rng.random() < 0.5)


def check_master(data: bytes, rng: Random) -> None:
    """A slave's bytes change nothing here, and no message counts as copied that was not."""
    log = _log(rng)
    before = bytes(log.data)
    session = MasterSession(log, _settings(rng), "m", 0)
    for now_ms, piece in enumerate(_pieces(data, rng)):
        session.step(DataReceived(piece), now_ms)
        session.step(Poll(), now_ms)
        assert session.acked_offset <= log.max_offset, "what is not there counts as copied"
    assert bytes(log.data) == before
    _raise_if_closed(session)


def check_slave(data: bytes, rng: Random) -> None:
    """A master's bytes are only written at the end of the log, and only received bytes are."""
    log = _log(rng)
    kept = bytes(log.data)
    session = SlaveSession(log, _settings(rng), broker_name="b", broker_id=1, nonce="s", now_ms=0)
    session.step(Poll(), 0)
    for number, piece in enumerate(_pieces(data, rng)):
        session.step(DataReceived(piece), rng.choice((number, 2000 + number)))
        session.step(Poll(), 2000 + number)
    assert log.min_offset >= 0, "the log begins before its first byte"
    assert len(log.data) <= len(kept) + len(data), "more was written than was sent"
    assert sum(map(len, log.cut_off)) + len(log.data) >= len(kept), "what was here is gone"
    _raise_if_closed(session)


def _pieces(data: bytes, rng: Random) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _raise_if_closed(session: MasterSession | SlaveSession) -> None:
    if session.is_closed:
        raise RemoteProtocolError("the connection was closed")


# -- DLedger ------------------------------------------------------------------------------------

_PEERS = {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2", "n2": "127.0.0.1:3"}
_TERMS = (-1, 0, 1, 1, 1, 2, 2, 3, 2**63 - 1, -(2**63))
_INDEXES = (-1, 0, 1, 2, 3, 4, 5, 6, 2**63 - 1, -(2**63))
_NAMES = ("n1", "n1", "n1", "n2", "n0", "x", None, "", "😀")
_BODY = b"0123456789"
_FILE_BYTES = 1 << 16


def make_peer_frames(rng: Random) -> bytes:
    """Requests and responses of peers, in an order that may mean something."""
    return b"".join(_peer_frame(rng) for _ in range(rng.randrange(1, 16)))


def _peer_frame(rng: Random) -> bytes:
    command = to_request(_a_request(rng)) if rng.random() < 0.6 else _a_response(rng)
    if rng.random() < 0.2:
        tokens = corpus.JSON_TOKENS
        seeds = [command.body, *corpus.peer_bodies()]
        command = Command.request(rng.choice(list(RaftRequestCode)), body=Mutator(seeds, tokens).make(rng))
    command.opaque = rng.choice((0, 1, 10, 600, 1000, 3000, 7000))
    command.version = rng.randrange(8)
    return encode_command(command)


def _a_request(rng: Random) -> RaftMessage:
    who: dict[str, Any] = {"group": "g", "leader_id": rng.choice(_NAMES), "local_id": rng.choice(_NAMES)}
    who |= {"remote_id": rng.choice(("n0", "n0", "n0", "n1", None))}
    if rng.random() < 0.7:
        who["local_id"] = who["leader_id"]
    term = rng.choice(_TERMS)
    kind = rng.random()
    if kind < 0.2:
        end: dict[str, Any] = {
            "ledger_end_index": rng.choice(_INDEXES),
            "ledger_end_term": rng.choice(_TERMS),
        }
        return VoteRequest(**who, term=term, **end)
    if kind < 0.35:
        return HeartBeatRequest(**who, term=term)
    if kind < 0.4:
        return GetEntriesRequest(**who, begin_index=rng.choice(_INDEXES))
    if kind < 0.42:
        return MetadataRequest(**who)
    push_type = rng.choice((PushType.APPEND, PushType.APPEND, *PushType))
    entry = None if rng.random() < 0.1 else _an_entry(rng, term)
    return PushEntryRequest(**who, term=term, type=push_type, entry=entry, commit_index=rng.choice(_INDEXES))


def _an_entry(rng: Random, term: int) -> Entry:
    index = rng.choice(_INDEXES[1:8])
    entry = Entry.of(index, rng.choice((term, term, 1)), index * (48 + len(_BODY)), _BODY)
    if rng.random() < 0.9:
        return entry
    field = rng.choice(("index", "pos", "size", "term", "magic", "channel"))
    number = rng.choice(_INDEXES)
    if field in ("size", "magic", "channel"):
        number = max(-(2**31), min(number, 2**31 - 1))
    return msgspec.structs.replace(entry, **{field: number})


def _a_response(rng: Random) -> Command:
    who: dict[str, Any] = {"group": "g", "leader_id": rng.choice(_NAMES), "local_id": rng.choice(_NAMES)}
    code, term = int(rng.choice((RaftResponseCode.SUCCESS, *RaftResponseCode))), rng.choice(_TERMS)
    message: RaftMessage
    kind = rng.random()
    if kind < 0.4:
        result = rng.choice((VoteResult.ACCEPT, VoteResult.ACCEPT, *VoteResult))
        message = VoteResponse(**who, code=code, term=term, vote_result=result)
    elif kind < 0.6:
        message = HeartBeatResponse(**who, code=code, term=term)
    else:
        message = PushEntryResponse(
            **who,
            code=code,
            term=term,
            index=rng.choice((None, *_INDEXES)),
            begin_index=rng.choice(_INDEXES),
            end_index=rng.choice(_INDEXES),
        )
    response = Command.request(0).reply(RaftResponseCode.SUCCESS, body=message.encode())
    if rng.random() < 0.05:
        response.code, response.body = 1, b""
    return response


class _PeerRun:
    """A peer of three without sockets: frames go in as its port and its links take them."""

    def __init__(self, rng: Random) -> None:
        self.disk = RaftDisk()
        count = rng.choice((0, 0, 3))
        size = 48 + len(_BODY)
        self.disk.entries = [Entry.of(index, 1, index * size, _BODY) for index in range(count)]
        self.disk.state = TermState(1, None) if count else TermState()
        settings = RaftSettings(group="g", self_id="n0", peers=_PEERS, file_bytes=_FILE_BYTES)
        self.now_ms = 0.0
        checkpoint = self.disk.checkpoint
        self.node = RaftNode(settings, self.disk, self.disk.state, checkpoint, rng.random, self.now_ms)
        self.calls: list[SendRequest] = []
        self.committed = -1
        self.tokens = 0

    def take(self, command: Command) -> None:
        self.now_ms += command.opaque % 10_000
        self.node.step(Tick(), self.now_ms)
        self.settle()
        if command.is_response:
            self._on_response(command)
        else:
            self.tokens += 1
            self.node.step(RequestReceived(self.tokens, read_request(command)), self.now_ms)
        if self.tokens % 3 == 1:
            with contextlib.suppress(NotLeader):
                self.node.append(_BODY)
            self.node.push(self.now_ms)
        self.settle()

    def _on_response(self, command: Command) -> None:
        if not self.calls:
            return
        call = self.calls.pop(command.version % len(self.calls))
        message: RaftMessage | None
        try:
            message = read_response(command, to_request(call.message).code)
        except RemoteProtocolError:
            message = None
        self.node.step(ResponseReceived(call.number, message), self.now_ms)

    def settle(self) -> None:
        """Store and send the ready work, as a shell does; check the stored entries."""
        while ready := self.node.take_ready():
            self.disk.write(ready.term_state, ready.write)
            self.disk.flush()
            self.calls += ready.requests
            assert ready.committed_index >= self.committed, "the committed index went back"
            self.committed = ready.committed_index
            self.node.advance(self.now_ms)
        del self.calls[:-50]
        end = 0
        for number, entry in enumerate(self.disk.entries, self.disk.begin_index):
            assert (entry.index, entry.size) == (number, 48 + len(entry.body)), "the ledger has a gap"
            assert entry.index == self.disk.begin_index or entry.pos == next_pos(
                end, entry.size, _FILE_BYTES
            ), "an entry lies where no file has it"
            end = entry.end_pos


def check_peer(data: bytes, rng: Random) -> None:
    """No bytes of a peer stop a node, which would end with any exception; its ledger keeps its form."""
    run = _PeerRun(rng)
    refused: RemoteProtocolError | None = None
    for piece in FrameDecoder().feed(data):
        try:
            run.take(decode_command(piece))
        except RemoteProtocolError as error:
            refused = error
    if refused is not None:
        raise refused
