"""The calls and results of a group's clients, with their order in time.

Every append's place in the log is recorded, and three kinds of clients share it: some append anything; others
write or read one of a few registers. A read is an entry too: its value is what the last write before it in
the ledger of the peer that acknowledged it says. So reads are as linearizable as appends are, or neither is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.messages import RaftResponseCode
from tests.sim.linearizable import UNKNOWN, Appended, Operation, misplaced_append, unlinearizable_key
from tests.sim.proposals import ProposalResult

REFUSED = (RaftResponseCode.NOT_LEADER, RaftResponseCode.LEADER_PENDING_FULL)
"""Codes that promise that the entry is not, and never will be, in the ledger."""
KEYS = 3
Find = Callable[[int], Entry | None]


class History:
    """Bodies are `entry N …`, `write N KEY …` and `read N KEY …`, N being the proposal id, as are values."""

    def __init__(self) -> None:
        self._moments = itertools.count()
        self._called: dict[int, tuple[float, list[bytes]]] = {}
        self._returned: dict[int, float] = {}
        self._refused: set[int] = set()
        self._reads: list[Operation] = []

    def body(self, proposal_id: int, random: Random) -> bytes:
        """Return the body of a client's next call: an entry, a write or a read."""
        kind, key = random.choice((b"entry", b"write", b"read")), random.randrange(KEYS)
        return b"%s %d %d " % (kind, proposal_id, key) + b"." * random.randrange(0, 300)

    def called(self, proposal_id: int, body: bytes) -> None:
        """Record the start of a client's call."""
        self._called[proposal_id] = next(self._moments), body.split(b" ")[:3]

    def ended(self, result: ProposalResult, find: Find) -> None:
        """A client gets a response. find: the entries of the peer that responds."""
        proposal_id = result.proposal_id
        if result.code in REFUSED:
            self._refused.add(proposal_id)
        if result.code is not RaftResponseCode.SUCCESS:
            return
        called, (kind, *words) = self._called[proposal_id]
        self._returned[proposal_id] = moment = next(self._moments)
        if kind == b"read":
            key = int(words[1])
            is_whole, value = _value(find, result.index, key)
            if is_whole:  # else the older entries were deleted, and the client learned nothing
                self._reads.append(Operation("read", key, value, called, moment))

    def failure(self, committed: dict[int, Entry]) -> str | None:
        """Describe an error in the history. committed: the final log."""
        log = []
        for index, entry in committed.items():
            _, proposal_id, *_ = [*entry.body.split(b" "), b""]
            if not proposal_id.isdigit() or int(proposal_id) not in self._called:
                continue
            if int(proposal_id) in self._refused:
                return f"{entry.body!r:.40} was refused, and is entry {index}"
            called, returned = (
                self._called[int(proposal_id)][0],
                self._returned.get(int(proposal_id), UNKNOWN),
            )
            log.append(Appended(index, called, returned))
        misplaced = misplaced_append(log)
        if misplaced is not None:
            return f"{misplaced} lies behind what was called for later"
        key = unlinearizable_key([*self._writes(), *self._reads])
        return None if key is None else f"register {key} is not linearizable"

    def _writes(self) -> list[Operation]:
        return [
            Operation("write", int(words[2]), proposal_id, called, self._returned.get(proposal_id, UNKNOWN))
            for proposal_id, (called, words) in self._called.items()
            if words[0] == b"write" and proposal_id not in self._refused
        ]


def _value(find: Find, index: int, key: int) -> tuple[bool, int | None]:
    """Return whether the entries before `index` determine a register's value, and the value."""
    while (index := index - 1) >= 0:
        entry = find(index)
        if entry is None:
            return False, None
        match entry.body.split(b" ", 3):
            case [b"write", proposal_id, of, *_] if int(of) == key:
                return True, int(proposal_id)
    return True, None
