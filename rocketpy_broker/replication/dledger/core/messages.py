"""What peers of a group say to each other: JSON bodies inside remoting frames without ext fields.

| code | request | response |
|---|---|---|
| 50000 METADATA | `MetadataRequest` | `MetadataResponse` |
| 50001 APPEND | `AppendEntryRequest` | `AppendEntryResponse` |
| 50002 GET | `GetEntriesRequest` | `GetEntriesResponse` |
| 51001 VOTE | `VoteRequest` | `VoteResponse` |
| 51002 HEART_BEAT | `HeartBeatRequest` | `HeartBeatResponse` |
| 51003 PULL | `PullEntriesRequest` | `PullEntriesResponse` |
| 51004 PUSH | `PushEntryRequest` | `PushEntryResponse` |

The frame's code of a response is 200, what happened is the body's `code`; byte arrays are base64; a field
that is null is left out; names are in alphabetical order (QUIRKS 57). Some answers have ids, some have none
(QUIRKS 59), so an answer is told by its request, never by what it says of itself.

Source: the package protocol and DLedgerRpcNettyService of DLedger 0.1.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import Body
from rocketpy.protocol.bodies.base import written
from rocketpy.protocol.headers.base import Int32, Int64
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.replication.dledger.core.codes import (
    PushType,
    RaftRequestCode,
    RaftResponseCode,
    VoteResult,
)
from rocketpy_broker.replication.dledger.core.entry import Entry


class RaftMessage(Body):
    """What every request and response has.

    remote_id, local_id: who receives and who sends the request; leader_id: who leads, or in a vote who wants
    to. code: a RaftResponseCode; 200 in a request. term: of the sender; -1 where 0.1 does not fill it.
    """

    code: Int32 = written(int(RaftResponseCode.SUCCESS))
    group: str | None = None
    leader_id: str | None = None
    local_id: str | None = None
    remote_id: str | None = None
    term: Int64 = written(-1)

    def encode(self) -> bytes:
        """The JSON text, names in alphabetical order as Java writes them."""
        return msgspec.json.encode(self, order="sorted")


class MetadataRequest(RaftMessage):
    """Who is in the group, and who leads it?"""


class MetadataResponse(RaftMessage):
    """peers: address by id."""

    peers: dict[str, str] | None = None


class AppendEntryRequest(RaftMessage):
    """A client's: take this."""

    body: bytes | None = None


class AppendEntryResponse(RaftMessage):
    """Where it is now; -1: nowhere."""

    index: Int64 = written(-1)
    pos: Int64 = written(-1)


class GetEntriesRequest(RaftMessage):
    """A client's: what is at `begin_index`? 0.1 looks at no other field."""

    begin_index: Int64 | None = None
    index_list: list[Int64] | None = None
    max_size: Int32 = written(0)


class GetEntriesResponse(RaftMessage):
    """One entry or none."""

    entries: list[Entry] = written([])


class VoteRequest(RaftMessage):
    """Shall `leader_id` lead in `term`? Its ledger ends with an entry of that index and term."""

    ledger_end_index: Int64 = written(-1)
    ledger_end_term: Int64 = written(-1)


class VoteResponse(RaftMessage):
    """What a peer thinks of that. term: the peer's own, or that of its last entry."""

    vote_result: VoteResult = written(VoteResult.UNKNOWN)


class HeartBeatRequest(RaftMessage):
    """`leader_id` leads in `term`."""


class HeartBeatResponse(RaftMessage):
    """An accepted one is answered without ids and with term -1 (QUIRKS 59)."""


class PullEntriesRequest(RaftMessage):
    """0.1 knows its shape but never sends it."""

    begin_index: Int64 | None = None
    node_id: str | None = None


class PullEntriesResponse(RaftMessage):
    """0.1 never sends this either."""

    entries: list[Entry] = written([])


class PushEntryRequest(RaftMessage):
    """The leader's. entry: None in a COMMIT. commit_index: entries up to it are committed."""

    commit_index: Int64 = written(-1)
    entry: Entry | None = None
    type: PushType = written(PushType.APPEND)


class PushEntryResponse(RaftMessage):
    """The follower's. index: of the entry in question. begin_index, end_index: of the follower's ledger."""

    begin_index: Int64 = written(0)
    end_index: Int64 = written(0)
    index: Int64 | None = None


_BODIES: Final[dict[int, tuple[type[RaftMessage], type[RaftMessage]]]] = {
    RaftRequestCode.METADATA: (MetadataRequest, MetadataResponse),
    RaftRequestCode.APPEND: (AppendEntryRequest, AppendEntryResponse),
    RaftRequestCode.GET: (GetEntriesRequest, GetEntriesResponse),
    RaftRequestCode.VOTE: (VoteRequest, VoteResponse),
    RaftRequestCode.HEART_BEAT: (HeartBeatRequest, HeartBeatResponse),
    RaftRequestCode.PULL: (PullEntriesRequest, PullEntriesResponse),
    RaftRequestCode.PUSH: (PushEntryRequest, PushEntryResponse),
}
_CODES: Final = {request: code for code, (request, _) in _BODIES.items()}


def to_request(message: RaftMessage) -> Command:
    """Return the request that carries a message."""
    return Command.request(_CODES[type(message)], body=message.encode())


def to_response(request: Command, message: RaftMessage) -> Command:
    """Return the answer to a request."""
    return request.reply(RaftResponseCode.SUCCESS, body=message.encode())


def read_request(command: Command) -> RaftMessage:
    """Return what a request says. Raises RemoteProtocolError, also for a code that is not DLedger's."""
    return _read(command, command.code, 0)


def read_response(command: Command, request_code: int) -> RaftMessage:
    """Return what the response to a request of that code says. Raises RemoteProtocolError.

    A peer of ours that refuses says why in the frame, which then has no body.
    """
    if command.code != RaftResponseCode.SUCCESS and not command.body:
        raise RemoteProtocolError(f"the peer answers {command.code}: {command.remark}")
    return _read(command, request_code, 1)


def _read(command: Command, code: int, side: int) -> RaftMessage:
    bodies = _BODIES.get(code)
    if bodies is None:
        raise RemoteProtocolError(f"code {code} is no request of DLedger's")
    message = fastjson.decode(command.body, bodies[side])
    for entry in _entries(message):
        entry.check()
    return message


def _entries(message: RaftMessage) -> list[Entry]:
    if isinstance(message, PushEntryRequest):
        return [message.entry] if message.entry is not None else []
    if isinstance(message, GetEntriesResponse | PullEntriesResponse):
        return message.entries
    return []
