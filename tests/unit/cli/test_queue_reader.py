"""QueueRecords: what it counts and logs of messages that cannot be exported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import pytest

from rocketpy import MessageQueue, PullConsumer
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.errors import RocketError, TransportError
from rocketpy.protocol.headers import PullMessageResponseHeader
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.results import PullStatus
from rocketpy_cli.archives import queue_reader
from rocketpy_cli.archives.queue_reader import QueueRecords


class DamagedQueue:
    """A queue of three messages, whose second one is damaged. It returns one message for each pull."""

    async def pull_records(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]]
    ) -> list[PullResponse]:
        """Return a response for each range."""
        return [self._response(begin) for begin, _ in ranges]

    def _response(self, offset: int) -> PullResponse:
        host = host_bytes("127.0.0.1", 1)
        data = encode_record(b"T", 0, 0, offset, 900, 1, 11, host, 12, host, 0, 0, b"body", b"")
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=offset + 1, min_offset=0, max_offset=3
        )
        return PullResponse(PullStatus.FOUND, header, b"damaged" if offset == 1 else data)


async def test_a_damaged_message_has_not_expired(caplog: pytest.LogCaptureFixture) -> None:
    """An operator would look for a retention that is too short."""
    queue = MessageQueue("T", "broker-a", 0)
    records = QueueRecords(cast(PullConsumer, DamagedQueue()), queue, 0, 3)
    parts = [part async for part in records.parts()]
    assert (sum(part.messages for part in parts), records.missing) == (2, 1)
    assert "the message at offset 1 is damaged" in caplog.text
    assert "expired" not in caplog.text


class LimitedQueue(DamagedQueue):
    """A queue of 500 messages, which returns at most 7 for each pull, and fails as a test plans."""

    def __init__(self) -> None:
        self.pulls: list[int] = []
        self.errors: list[RocketError] = []

    async def pull_records(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]]
    ) -> list[PullResponse]:
        """Return a response for each range, or the next error."""
        self.pulls += [begin for begin, _ in ranges]
        if self.errors:
            return cast(list[PullResponse], [self.errors.pop(0) for _ in ranges[:1]] * len(ranges))
        return [self._records(begin, min(count, 7)) for begin, count in ranges]

    def _records(self, begin: int, count: int) -> PullResponse:
        host = host_bytes("127.0.0.1", 1)
        data = b"".join(
            encode_record(b"T", 0, 0, begin + n, 900, 1, 11, host, 12, host, 0, 0, b"body", b"")
            for n in range(count)
        )
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=begin + count, min_offset=0, max_offset=500
        )
        return PullResponse(PullStatus.FOUND, header, data)


async def read(source: LimitedQueue) -> tuple[int, int]:
    """The number of messages of its records, and of missing ones."""
    records = QueueRecords(cast(PullConsumer, source), MessageQueue("T", "broker-a", 0), 0, 500)
    parts = []
    async for part in records.parts():
        parts.append(part)
        await asyncio.sleep(0)  # as the export does for its disk
    assert [part.next_offset for part in parts] == sorted({part.next_offset for part in parts})
    assert parts[-1].next_offset == 500
    return sum(part.messages for part in parts), records.missing


async def test_few_messages_are_read_twice() -> None:
    """An export would take twice the time, and twice the traffic."""
    source = LimitedQueue()
    assert await read(source) == (500, 0)
    assert len(source.pulls) <= 500 / 7 + 10
    assert len(set(source.pulls)) >= len(source.pulls) - 5


async def test_an_unavailable_queue_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The restart of a broker would end an export; or a broker that is gone let it wait for ever."""
    now = 1000.0
    monkeypatch.setattr(queue_reader, "_PAUSE_S", 0)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    source = LimitedQueue()
    source.errors = [TransportError("gone"), TransportError("gone"), TransportError("gone")]
    assert await read(source) == (500, 0)
    assert caplog.text.count("cannot be read; retrying: gone") == 1

    class Restarting(LimitedQueue):
        """Its broker restarts every two minutes."""

        async def pull_records(
            self, queue: MessageQueue, ranges: Sequence[tuple[int, int]]
        ) -> list[PullResponse]:
            nonlocal now
            if len(self.pulls) in range(0, 70, 10):
                now += 120
                self.errors = [TransportError("gone")]
            return await super().pull_records(queue, ranges)

    assert await read(Restarting()) == (500, 0)
    source.errors = [RocketError("no right")]
    with pytest.raises(RocketError, match="no right"):
        await read(source)

    def advance(_seconds: float) -> float:
        nonlocal now
        now += 25
        return now

    monkeypatch.setattr(time, "monotonic", lambda: advance(0))
    source.errors = [TransportError("gone")] * 10
    with pytest.raises(RocketError, match="cannot be read: gone"):
        await read(source)
    assert len(source.errors) in range(5, 9)
