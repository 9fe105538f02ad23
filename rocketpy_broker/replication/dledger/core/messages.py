"""Messages between the peers of a DLedger group: JSON bodies inside remoting frames without ext fields.

| code | request | response |
|---|---|---|
| 50000 METADATA | `MetadataRequest` | `MetadataResponse` |
| 50001 APPEND | `AppendEntryRequest` | `AppendEntryResponse` |
| 50002 GET | `GetEntriesRequest` | `GetEntriesResponse` |
| 51001 VOTE | `VoteRequest` | `VoteResponse` |
| 51002 HEART_BEAT | `HeartBeatRequest` | `HeartBeatResponse` |
| 51003 PULL | `PullEntriesRequest` | `PullEntriesResponse` |
| 51004 PUSH | `PushEntryRequest` | `PushEntryResponse` |

The code of a response's frame is always 200; the outcome is the `code` in the body. Byte arrays are base64, a
null field is left out, and names are in alphabetical order (QUIRKS 57). Some responses lack the ids (QUIRKS
59), so a response is matched with its request by the frame alone.

Source: the package protocol, DLedgerRpcNettyService, DLedgerRequestCode, DLedgerResponseCode of DLedger 0.1.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import Body
from rocketpy.protocol.bodies.base import always_encoded
from rocketpy.protocol.headers.base import Int32, Int64
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.replication.dledger.core.entry import Entry


class RaftRequestCode(IntEnum):
    """Request codes of a peer's port. LEADERSHIP_TRANSFER came with DLedger 0.2."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    """0.1 never responds to it."""
    PUSH = 51004


class RaftResponseCode(IntEnum):
    """The `code` in the body of a response. The frame's own code is always 200 (QUIRKS 57, 60)."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505


class VoteResult(Enum):
    """The decision of a peer on a vote request."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY__HAS_LEADER"
    """With two underscores on the wire (QUIRKS 58)."""
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"


class PushType(Enum):
    """The purpose of a push; see `leader`."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class RaftMessage(Body):
    """Fields of every request and response."""

    code: Int32 = always_encoded(int(RaftResponseCode.SUCCESS))
    """A RaftResponseCode; 200 in a request."""
    group: str | None = None
    leader_id: str | None = None
    """The leader, or the candidate."""
    local_id: str | None = None
    """The sender of the request."""
    remote_id: str | None = None
    """The receiver of the request."""
    term: Int64 = always_encoded(-1)
    """Of the sender; -1 where 0.1 leaves it out."""

    def encode(self) -> bytes:
        """Return the JSON text, with names in alphabetical order as Java writes them."""
        return msgspec.json.encode(self, order="sorted")


class MetadataRequest(RaftMessage):
    """Requests the peers and the leader of the group."""


class MetadataResponse(RaftMessage):
    """The peers of the group and, in `leader_id`, the leader."""

    peers: dict[str, str] | None = None
    """Address by id."""


class AppendEntryRequest(RaftMessage):
    """Requests that the leader appends an entry; sent by clients of DLedger."""

    body: bytes | None = None


class AppendEntryResponse(RaftMessage):
    """Index and position of the appended entry; -1: it was not appended."""

    index: Int64 = always_encoded(-1)
    pos: Int64 = always_encoded(-1)


class GetEntriesRequest(RaftMessage):
    """Requests the entry at `begin_index`; sent by clients. 0.1 reads no other field."""

    begin_index: Int64 | None = None
    index_list: list[Int64] | None = None
    max_size: Int32 = always_encoded(0)


class GetEntriesResponse(RaftMessage):
    """The entry, or an empty list."""

    entries: list[Entry] = always_encoded([])


class VoteRequest(RaftMessage):
    """Requests a vote for `leader_id` in `term`."""

    ledger_end_index: Int64 = always_encoded(-1)
    """Index of its newest entry."""
    ledger_end_term: Int64 = always_encoded(-1)
    """Term of its newest entry."""


class VoteResponse(RaftMessage):
    """The vote. term: the voter's own, or that of its newest entry."""

    vote_result: VoteResult = always_encoded(VoteResult.UNKNOWN)


class HeartBeatRequest(RaftMessage):
    """Sent by the leader of `term`."""


class HeartBeatResponse(RaftMessage):
    """The response to an accepted heartbeat has no ids, and term -1 (QUIRKS 59)."""


class PullEntriesRequest(RaftMessage):
    """Defined by 0.1, but never sent."""

    begin_index: Int64 | None = None
    node_id: str | None = None


class PullEntriesResponse(RaftMessage):
    """Defined by 0.1, but never sent."""

    entries: list[Entry] = always_encoded([])


class PushEntryRequest(RaftMessage):
    """Sent by the leader."""

    commit_index: Int64 = always_encoded(-1)
    """Entries up to it are committed."""
    entry: Entry | None = None
    """None in a COMMIT."""
    type: PushType = always_encoded(PushType.APPEND)


class PushEntryResponse(RaftMessage):
    """Sent by the follower."""

    begin_index: Int64 = always_encoded(0)
    """Of its ledger."""
    end_index: Int64 = always_encoded(0)
    """Of its ledger."""
    index: Int64 | None = None
    """Of the pushed entry."""


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
RESPONSE_TYPES: Final = dict(_BODIES.values())
"""Type of the response to each type of request."""


def to_request(message: RaftMessage) -> Command:
    """Return the request frame of a message."""
    return Command.request(_CODES[type(message)], body=message.encode())


def to_response(request: Command, message: RaftMessage) -> Command:
    """Return the response frame of a message."""
    return request.reply(RaftResponseCode.SUCCESS, body=message.encode())


def read_request(command: Command) -> RaftMessage:
    """Decode a request. Raises RemoteProtocolError, also for a request code that DLedger does not have."""
    return _read(command, command.code, 0)


def read_response(command: Command, request_code: int) -> RaftMessage:
    """Decode the response to a request with that code. Raises RemoteProtocolError.

    A rocketpy peer that rejects a request sends the reason in the frame's remark, without a body.
    """
    if command.code != RaftResponseCode.SUCCESS and not command.body:
        raise RemoteProtocolError(f"the peer responded with code {command.code}: {command.remark}")
    return _read(command, request_code, 1)


def _read(command: Command, code: int, side: int) -> RaftMessage:
    bodies = _BODIES.get(code)
    if bodies is None:
        raise RemoteProtocolError(f"request code {code} is not a code of DLedger")
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
