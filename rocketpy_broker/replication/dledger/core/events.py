"""The input events of a `RaftNode`, and its output: what the shell has to do."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.core.messages import (
    HeartBeatRequest,
    PushEntryRequest,
    RaftMessage,
)
from rocketpy_broker.replication.dledger.core.raft_state import TermState

_LEADER_REQUESTS = (PushEntryRequest, HeartBeatRequest)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent about every 10 ms."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer or client sent a request. request_id: chosen by the shell; a `SendResponse` carries it."""

    request_id: int
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A `SendRequest` got its response, or failed (message: None). The shell reports either within 3 s."""

    number: int
    message: RaftMessage | None


@dataclass(frozen=True, slots=True)
class Expire:
    """The shell is about to delete the entries before this one, which is committed and stored.

    It must delete them after this event, so that the node never reads a deleted entry.
    """

    begin_index: int


Event = Tick | RequestReceived | ResponseReceived | Expire


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A request to send to a peer; its `ResponseReceived` carries the number."""

    number: int
    peer: str
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class SendResponse:
    """The response to a `RequestReceived`."""

    request_id: int
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Ready:
    """Work for the shell, in the order of the fields; `RaftNode.advance` follows.

    term_state: to be made durable; None: unchanged. write: to be made durable. requests, responses: to be
    sent after that, since they acknowledge what was written; but see `requests_before_write`.
    committed_index: entries up to here may be applied.
    """

    term_state: TermState | None
    write: Write
    requests: tuple[SendRequest, ...]
    responses: tuple[SendResponse, ...]
    committed_index: int

    @property
    def requests_before_write(self) -> tuple[SendRequest, ...]:
        """Requests that may be sent before the write, so that the disks of a group work in parallel.

        Pushes and heartbeats do not depend on this peer's disk: a leader counts only its durable entries, and
        a restarted leader becomes a candidate in a new term.
        """
        if self.term_state is not None:
            return ()
        return tuple(request for request in self.requests if isinstance(request.message, _LEADER_REQUESTS))

    @property
    def requests_after_write(self) -> tuple[SendRequest, ...]:
        """All other requests."""
        if self.term_state is not None:
            return self.requests
        return tuple(
            request for request in self.requests if not isinstance(request.message, _LEADER_REQUESTS)
        )

    def __bool__(self) -> bool:
        """Whether there is work for the shell. A new committed_index alone does not count."""
        return bool(self.term_state is not None or self.write or self.requests or self.responses)


class Outbox:
    """Collects the requests and responses of the next Ready."""

    def __init__(self) -> None:
        self.requests: list[SendRequest] = []
        self.responses: list[SendResponse] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.responses)

    def clear(self) -> None:
        """Start the next Ready."""
        self.requests, self.responses = [], []

    def request(self, peer: str, message: RaftMessage) -> int:
        """Add a request; return its number, which the response carries."""
        self._number += 1
        self.requests.append(SendRequest(self._number, peer, message))
        return self._number

    def respond(self, request_id: int, message: RaftMessage) -> None:
        """Add a response."""
        self.responses.append(SendResponse(request_id, message))
