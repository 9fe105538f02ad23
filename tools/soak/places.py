"""Compares the places that brokers acknowledged with those that consumers read from."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocketpy import MessageExt, SendResult

Place = tuple[str, int, int]
"""Broker, queue id, queue offset."""


def place_of(result: SendResult) -> Place:
    """Where a broker reports that it stored a message."""
    return result.queue.broker_name, result.queue.queue_id, result.queue_offset


@dataclass(slots=True)
class Places:
    """Where the messages of one piece are, by their number; entries leave when both sides agree.

    problems: in words, whatever must not be.
    """

    acked: dict[int, Place] = field(default_factory=dict)
    read: dict[int, Place] = field(default_factory=dict)
    next_offset: dict[tuple[str, int], int] = field(default_factory=dict)
    received: int = 0
    problems: list[str] = field(default_factory=list)

    def note_ack(self, number: int, result: SendResult) -> None:
        """A broker reports where it stored message `number`."""
        place = place_of(result)
        if number in self.read:
            self._compare(number, place, self.read.pop(number))
        else:
            self.acked[number] = place

    def note_read(self, message: MessageExt, number: int) -> None:
        """A consumer read message `number`."""
        self.received += 1
        queue = (message.queue.broker_name, message.queue.queue_id)
        expected = self.next_offset.get(queue, message.queue_offset)
        if message.queue_offset != expected:
            self.problems.append(
                f"{message.queue}: offset {message.queue_offset} came where {expected} was due"
            )
        self.next_offset[queue] = message.queue_offset + 1
        place = (*queue, message.queue_offset)
        if self.acked.get(number) == place:
            del self.acked[number]
        else:
            self.read[number] = place  # its response is still to come, or was lost with a connection

    def settle(self) -> None:
        """No more messages follow: acknowledged ones that were not read there are lost."""
        for number, place in self.acked.items():
            self.problems.append(f"message {number}, acknowledged at {place}, is lost")

    def _compare(self, number: int, acked: Place, read: Place) -> None:
        if acked != read:
            self.problems.append(f"message {number} was acknowledged at {acked} and read at {read}")
