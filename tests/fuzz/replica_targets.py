"""What replicas read from each other: HA streams, and the frames of DLedger's peers. All have a state.

An input is everything that one connection, or one peer, receives. Whatever it is, the log or ledger keeps its
form, and nothing but the typed error comes out: anything else would stop the node.
"""

from __future__ import annotations

import zlib
from functools import cache
from random import Random
from typing import Any

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy_broker.replication.dledger.core.entry import Entry, next_pos
from rocketpy_broker.replication.dledger.core.events import (
    Propose,
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


def make_reports(draw: Random) -> bytes:
    """What a slave says to its master, almost."""
    recorded = [data for stream in _streams() if (data := stream.slave_to_master)]
    notes = [encode_control(_join(draw)) for _ in range(draw.randrange(2))]
    acks = [ack(draw.choice(_ODD), draw.choice(_ODD)) for _ in range(draw.randrange(3))]
    said = REPORT.pack(CONTROL) + b"".join((*notes, *acks))
    data = draw.choice((said, said, REPORT.pack(draw.choice(_ODD)), draw.choice(recorded)[:400]))
    return Mutator([data], _TOKENS).mutate(draw, data) if draw.random() < 0.5 else data


def make_stream(draw: Random) -> bytes:
    """What a master says to its slave, almost."""
    recorded = [data for stream in _streams() if (data := stream.master_to_slave)]
    notes: list[ControlMessage] = [Hello("m", draw.random() < 0.1), _welcome(draw)]
    if draw.random() < 0.2:
        notes[draw.randrange(2)] = draw.choice((Refused("no"), _join(draw), Hello("n", False)))
    place = draw.choice((len(_LOG), len(_LOG), draw.choice(_ODD)))
    frames = [frame(place, b""), frame(place, b"x" * 10), frame(min(place + 10, _ODD[-1]), b"y" * 20)]
    said = b"".join(map(encode_control, notes)) + b"".join(frames[: draw.randrange(4)])
    data = draw.choice((said, said, b"".join(frames), draw.choice(recorded)[:2000]))
    return Mutator([data], _TOKENS).mutate(draw, data) if draw.random() < 0.5 else data


_TOKENS = (b'{"type":"join"', b'"\\ud800"', b"1e400", b"[[[[", b"null", b"-1", b"9" * 30, b'"proof":"\xc3"')


@cache
def _streams() -> list[golden_data.HaStream]:
    return [golden_data.ha_stream(name) for name in ("ha1-conn1", "ha2-conn1", "ha3-conn1")]


def _join(draw: Random) -> Join:
    return Join(
        broker_name="b",
        broker_id=draw.choice(_ODD),
        epochs=_some_epochs(draw),
        epoch_seen=draw.choice((0, 1, 2, 2, *_ODD)),
        max_offset=draw.choice((len(_LOG), 4096, *_ODD)),
        tail_bytes=draw.choice((0, 0, 100, *_ODD)),
        tail_crc=draw.choice((_TAIL_CRC, *_ODD)),
        nonce="s",
        proof="",
    )


def _welcome(draw: Random) -> Welcome:
    start = draw.choice((len(_LOG), len(_LOG), 4096, *_ODD))
    return Welcome(epochs=_some_epochs(draw), start=start, wants_flushed=draw.random() < 0.5, proof="")


def _some_epochs(draw: Random) -> tuple[Epoch, ...]:
    if draw.random() < 0.6:
        return _EPOCHS[: draw.randrange(3)]
    return tuple(Epoch(draw.choice(_ODD), draw.choice(_ODD), "z") for _ in range(draw.randrange(3)))


def _log(draw: Random) -> MemoryLog:
    if draw.random() < 0.2:
        return MemoryLog()
    log = MemoryLog(_LOG, epochs=EpochState(epochs=_EPOCHS, seen=2))
    if draw.random() < 0.3:
        log.min_offset = 4096
        del log.data[:4096]
    return log


def _settings(draw: Random) -> HaSettings:
    return HaSettings(secret=draw.choice(("", "", "", "key")), wants_flushed=draw.random() < 0.5)


def check_master(data: bytes, draw: Random) -> None:
    """A slave's bytes change nothing here, and no message counts as copied that was not."""
    log = _log(draw)
    before = bytes(log.data)
    session = MasterSession(log, _settings(draw), "m", 0)
    for now_ms, piece in enumerate(_pieces(data, draw)):
        session.step(DataReceived(piece), now_ms)
        session.step(Poll(), now_ms)
        assert session.acked_offset <= log.max_offset, "what is not there counts as copied"
    assert bytes(log.data) == before
    _raise_if_closed(session)


def check_slave(data: bytes, draw: Random) -> None:
    """A master's bytes are only ever written at the end of the log, and none comes from nowhere."""
    log = _log(draw)
    kept = bytes(log.data)
    session = SlaveSession(log, _settings(draw), broker_name="b", broker_id=1, nonce="s", now_ms=0)
    session.step(Poll(), 0)
    for number, piece in enumerate(_pieces(data, draw)):
        session.step(DataReceived(piece), draw.choice((number, 2000 + number)))
        session.step(Poll(), 2000 + number)
    assert log.min_offset >= 0, "the log begins before its first byte"
    assert len(log.data) <= len(kept) + len(data), "more was written than was sent"
    assert sum(map(len, log.cut_off)) + len(log.data) >= len(kept), "what was here is gone"
    _raise_if_closed(session)


def _pieces(data: bytes, draw: Random) -> list[bytes]:
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(4)))
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


def make_peer_frames(draw: Random) -> bytes:
    """Requests and answers of peers, in an order that may mean something."""
    return b"".join(_peer_frame(draw) for _ in range(draw.randrange(1, 16)))


def _peer_frame(draw: Random) -> bytes:
    command = to_request(_a_request(draw)) if draw.random() < 0.6 else _a_response(draw)
    if draw.random() < 0.2:
        tokens = corpus.JSON_TOKENS
        seeds = [command.body, *corpus.peer_bodies()]
        command = Command.request(draw.choice(list(RaftRequestCode)), body=Mutator(seeds, tokens).make(draw))
    command.opaque = draw.choice((0, 1, 10, 600, 1000, 3000, 7000))
    command.version = draw.randrange(8)
    return encode_command(command)


def _a_request(draw: Random) -> RaftMessage:
    who: dict[str, Any] = {"group": "g", "leader_id": draw.choice(_NAMES), "local_id": draw.choice(_NAMES)}
    who |= {"remote_id": draw.choice(("n0", "n0", "n0", "n1", None))}
    if draw.random() < 0.7:
        who["local_id"] = who["leader_id"]
    term = draw.choice(_TERMS)
    kind = draw.random()
    if kind < 0.2:
        end: dict[str, Any] = {
            "ledger_end_index": draw.choice(_INDEXES),
            "ledger_end_term": draw.choice(_TERMS),
        }
        return VoteRequest(**who, term=term, **end)
    if kind < 0.35:
        return HeartBeatRequest(**who, term=term)
    if kind < 0.4:
        return GetEntriesRequest(**who, begin_index=draw.choice(_INDEXES))
    if kind < 0.42:
        return MetadataRequest(**who)
    push_type = draw.choice((PushType.APPEND, PushType.APPEND, *PushType))
    entry = None if draw.random() < 0.1 else _an_entry(draw, term)
    return PushEntryRequest(**who, term=term, type=push_type, entry=entry, commit_index=draw.choice(_INDEXES))


def _an_entry(draw: Random, term: int) -> Entry:
    index = draw.choice(_INDEXES[1:8])
    entry = Entry.of(index, draw.choice((term, term, 1)), index * (48 + len(_BODY)), _BODY)
    if draw.random() < 0.9:
        return entry
    field = draw.choice(("index", "pos", "size", "term", "magic", "channel"))
    number = draw.choice(_INDEXES)
    if field in ("size", "magic", "channel"):
        number = max(-(2**31), min(number, 2**31 - 1))
    return msgspec.structs.replace(entry, **{field: number})


def _a_response(draw: Random) -> Command:
    who: dict[str, Any] = {"group": "g", "leader_id": draw.choice(_NAMES), "local_id": draw.choice(_NAMES)}
    code, term = int(draw.choice((RaftResponseCode.SUCCESS, *RaftResponseCode))), draw.choice(_TERMS)
    message: RaftMessage
    kind = draw.random()
    if kind < 0.4:
        result = draw.choice((VoteResult.ACCEPT, VoteResult.ACCEPT, *VoteResult))
        message = VoteResponse(**who, code=code, term=term, vote_result=result)
    elif kind < 0.6:
        message = HeartBeatResponse(**who, code=code, term=term)
    else:
        message = PushEntryResponse(
            **who,
            code=code,
            term=term,
            index=draw.choice((None, *_INDEXES)),
            begin_index=draw.choice(_INDEXES),
            end_index=draw.choice(_INDEXES),
        )
    answer = Command.request(0).reply(RaftResponseCode.SUCCESS, body=message.encode())
    if draw.random() < 0.05:
        answer.code, answer.body = 1, b""
    return answer


class _PeerRun:
    """A peer of three without sockets: frames go in as its port and its links take them."""

    def __init__(self, draw: Random) -> None:
        self.disk = RaftDisk()
        count = draw.choice((0, 0, 3))
        size = 48 + len(_BODY)
        self.disk.entries = [Entry.of(index, 1, index * size, _BODY) for index in range(count)]
        self.disk.state = TermState(1, None) if count else TermState()
        settings = RaftSettings(group="g", self_id="n0", peers=_PEERS, file_bytes=_FILE_BYTES)
        self.now_ms = 0.0
        checkpoint = self.disk.checkpoint
        self.node = RaftNode(settings, self.disk, self.disk.state, checkpoint, draw.random, self.now_ms)
        self.calls: list[SendRequest] = []
        self.committed = -1
        self.tokens = 0

    def take(self, command: Command) -> None:
        self.now_ms += command.opaque % 10_000
        self.node.step(Tick(), self.now_ms)
        self.settle()
        if command.is_response:
            self._answered(command)
        else:
            self.tokens += 1
            self.node.step(RequestReceived(self.tokens, read_request(command)), self.now_ms)
        if self.tokens % 3 == 1:
            self.node.step(Propose(self.tokens, _BODY), self.now_ms)
        self.settle()

    def _answered(self, command: Command) -> None:
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
        """Store and send what is ready, as a shell does; look at what is stored."""
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


def check_peer(data: bytes, draw: Random) -> None:
    """No bytes of a peer stop a node, which would end with any exception; its ledger keeps its form."""
    run = _PeerRun(draw)
    refused: RemoteProtocolError | None = None
    for piece in FrameDecoder().feed(data):
        try:
            run.take(decode_command(piece))
        except RemoteProtocolError as error:
            refused = error
    if refused is not None:
        raise refused
