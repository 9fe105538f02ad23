"""Compares the results of sends with the brokers' content, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rocketpy import Outcome, SendResult, SendStatus
from tools.soak.places import Place, place_of


@dataclass(slots=True)
class Ledger:
    """What happened to each message, by its number: started, then acknowledged or failed.

    acked: where it is, and how many attempts had failed before. failed: the outcome in its error.
    """

    started: set[int] = field(default_factory=set)
    acked: dict[int, tuple[Place, int]] = field(default_factory=dict)
    failed: dict[int, Outcome] = field(default_factory=dict)

    def ack(self, number: int, result: SendResult, failed_attempts: int) -> None:
        """The send of message `number` returned."""
        if result.status is SendStatus.SEND_OK:
            self.acked[number] = (place_of(result), failed_attempts)
        else:
            self.failed[number] = Outcome.UNKNOWN  # a promise was not kept: it may be lost with its broker

    def missing(self, found: Mapping[int, Sequence[Place]]) -> list[int]:
        """Messages that must be stored and are not in `found`, which has each message's places."""
        stored = [number for number, outcome in self.failed.items() if outcome is Outcome.STORED]
        lost = [number for number, (place, _) in self.acked.items() if place not in found.get(number, ())]
        return lost + [number for number in stored if number not in found]

    def problems(self, found: Mapping[int, Sequence[Place]]) -> Iterator[str]:
        """Violated promises as texts. found: the places of every readable message."""
        for number in self.missing(found):
            reported = self.acked[number] if number in self.acked else self.failed[number].name
            yield f"message {number}: {reported} was reported, and it is at {found.get(number, 'no place')}"
        for number, (place, failed_attempts) in self.acked.items():
            copies, attempts = len(found.get(number, ())), failed_attempts + 1
            if copies > attempts:
                yield f"message {number} at {place} is there {copies} times after {attempts} attempts"
        for number, outcome in self.failed.items():
            if outcome is Outcome.NOT_SENT and number in found:
                yield f"message {number}: NOT_SENT was reported, and it is at {found[number]}"
        for number in sorted(found.keys() - self.started):
            yield f"message {number} was never sent, and it is at {found[number]}"
        for number in sorted(self.started - self.acked.keys() - self.failed.keys()):
            yield f"message {number} was accepted, and its send never ended"
