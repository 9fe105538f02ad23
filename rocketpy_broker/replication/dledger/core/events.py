"""The input events of a `RaftNode`, and its output `Ready`: the effects that the shell must carry out.

A vote or an acknowledgement is a promise: it must not be sent before it is durable. So the core lists its
effects in a safe order, and the shell follows this order.
"""

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
    """A peer or client sent a request."""

    request_id: int
    """Chosen by the shell; the `SendResponse` has the same."""
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A `SendRequest` got its response, or failed (message: None). The shell reports either within 3 s."""

    number: int
    """Of the `SendRequest`."""
    message: RaftMessage | None


@dataclass(frozen=True, slots=True)
class EntriesExpiring:
    """The shell is going to delete the entries before `begin_index`. That entry is committed and stored.

    The shell must not delete them before this event, so that the node never reads a deleted entry.
    """

    begin_index: int


Event = Tick | RequestReceived | ResponseReceived | EntriesExpiring


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A request to send to a peer."""

    number: int
    """Chosen by the node; the `ResponseReceived` has the same."""
    peer: str
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class SendResponse:
    """The response to a `RequestReceived`."""

    request_id: int
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Ready:
    """Effects that the shell carries out in the order of the fields. Then it calls `RaftNode.advance`."""

    term_state: TermState | None
    """Term and vote to save durably; None if they have not changed."""
    write: Write
    """Change of the ledger to make durably."""
    requests: tuple[SendRequest, ...]
    """To send after the write, except `requests_before_write`."""
    responses: tuple[SendResponse, ...]
    """To send after the write."""
    committed_index: int
    """Entries up to this one may be applied."""

    @property
    def requests_before_write(self) -> tuple[SendRequest, ...]:
        """Requests that may be sent before the write, so that the disks of a group work in parallel.

        Pushes and heartbeats do not depend on the disk of this peer. A leader only commits entries that are
        durable on a majority, and after a restart it becomes a candidate in a new term.
        """
        if self.term_state is not None:
            return ()
        return tuple(request for request in self.requests if isinstance(request.message, _LEADER_REQUESTS))

    @property
    def requests_after_write(self) -> tuple[SendRequest, ...]:
        """The requests that must not be sent before the write."""
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
        """Remove all requests and responses, for the next Ready."""
        self.requests, self.responses = [], []

    def request(self, peer: str, message: RaftMessage) -> int:
        """Add a request; return its number, which identifies the response."""
        self._number += 1
        self.requests.append(SendRequest(self._number, peer, message))
        return self._number

    def respond(self, request_id: int, message: RaftMessage) -> None:
        """Add a response."""
        self.responses.append(SendResponse(request_id, message))
