"""What goes into a `RaftNode`, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpy_broker.replication.dledger.core.codes import RaftResponseCode
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.core.messages import HeartBeatRequest, PushEntryRequest, RaftMessage
from rocketpy_broker.replication.dledger.core.state_files import TermState

_OF_LEADERS = (PushEntryRequest, HeartBeatRequest)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; one every 10 ms or so."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request came. token: the shell's own number for it; an `Answer` will name it."""

    token: int
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Answered:
    """A `Call` was answered, or failed (message: None), at the latest after 3 s; one of the two must come."""

    call: int
    message: RaftMessage | None


@dataclass(frozen=True, slots=True)
class Propose:
    """Append this. ticket: the shell's number for it; one `Outcome` will name it."""

    ticket: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Expire:
    """The shell wants to delete what is older than this entry, which is committed and stored.

    It must wait until the node has been told: from then on nobody asks for those entries.
    """

    begin_index: int


Event = Tick | Asked | Answered | Propose | Expire


@dataclass(frozen=True, slots=True)
class Call:
    """A request for a peer."""

    number: int
    peer: str
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    token: int
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal. code: SUCCESS once a majority has it durably; index, pos: -1 if it has none.

    WAIT_QUORUM_ACK_TIMEOUT and TERM_CHANGED leave open whether it stays in the ledger.
    """

    ticket: int
    code: RaftResponseCode
    index: int = -1
    pos: int = -1


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be done, in the order of the fields; then `RaftNode.advance`.

    term_state: to be made durable; None: as it was. write: to be made durable. calls, answers: may leave only
    then, for they promise what was written; see `early_calls`. outcomes: for those who proposed.
    committed_index: entries up to here may be applied.
    """

    term_state: TermState | None
    write: Write
    calls: tuple[Call, ...]
    answers: tuple[Answer, ...]
    outcomes: tuple[Outcome, ...]
    committed_index: int

    @property
    def early_calls(self) -> tuple[Call, ...]:
        """Calls that may leave before `write` is made: so disks work side by side.

        Pushes and heartbeats promise nothing of this peer's own disk: a leader counts itself only by what is
        durable, and one that was restarted stands in a new term.
        """
        if self.term_state is not None:
            return ()
        return tuple(call for call in self.calls if isinstance(call.message, _OF_LEADERS))

    @property
    def late_calls(self) -> tuple[Call, ...]:
        """All other calls."""
        if self.term_state is not None:
            return self.calls
        return tuple(call for call in self.calls if not isinstance(call.message, _OF_LEADERS))

    def __bool__(self) -> bool:
        """Whether there is anything to do (a new committed_index alone is nothing)."""
        return bool(self.term_state is not None or self.write or self.calls or self.answers or self.outcomes)


class Outbox:
    """Collects what is to be sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: list[Answer] = []
        self.outcomes: list[Outcome] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.calls or self.answers or self.outcomes)

    def call(self, peer: str, message: RaftMessage) -> int:
        """Ask a peer; return the number that its answer will name."""
        self._number += 1
        self.calls.append(Call(self._number, peer, message))
        return self._number

    def answer(self, token: int, message: RaftMessage) -> None:
        """Answer a request."""
        self.answers.append(Answer(token, message))
