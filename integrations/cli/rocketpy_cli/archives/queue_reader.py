"""Reads the records of a queue as they are stored, with several pulls at a time.

An archive is byte for byte what the broker stored, so records are not decoded. Brokers limit what a response
holds: with one pull at a time, an export would mostly wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

from rocketpy.consumer import PullConsumer
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.errors import RecordCorrupt, Retry, RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import PullStatus
from rocketpy.runtime.tasks import subtask
from rocketpy_cli.archives.files import Part, count_records

log: Final = logging.getLogger("rocketpy.cli")

_PULL_MAX: Final = 4096
"""Messages that a pull requests; brokers return fewer."""
_PULLS_MAX: Final = 16
"""Maximum number of concurrent pulls, which are called a round."""
_ROUND_BYTES: Final = 4 << 20
"""About how many bytes the pulls of a round return together."""
_RETRY_FOR_S: Final = 60.0
"""For how long a failing read is retried."""
_PAUSE_S: Final = 0.5

Response = PullResponse | RocketError


class QueueRecords:
    """The records of a queue from offset `begin` to before `end`."""

    def __init__(self, consumer: PullConsumer, queue: MessageQueue, begin: int, end: int) -> None:
        self._consumer = consumer
        self._queue = queue
        self._offset = begin
        self._end = end
        self._step = 0
        """Messages that a pull returns; 0 until known."""
        self._pulls = 1
        self._largest = 0
        """Bytes of the largest response."""
        self._retry_until: float | None = None
        self.missing: int = 0
        """The number of offsets read so far whose messages have expired or are damaged."""

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the records. While the responses of one round of pulls are used, the next round runs.

        Raises:
            RocketError: The queue could not be read for a minute, or a retry cannot help.
        """
        ahead: asyncio.Task[tuple[list[tuple[int, int]], list[Response]]] | None = None
        try:
            while self._offset < self._end:
                if ahead is None:
                    ahead = self._start_round(self._offset)
                ranges, responses = await ahead
                ahead = None
                if self._step and (following := ranges[-1][0] + self._step) < self._end:
                    ahead = self._start_round(following)
                for (begin, count), response in zip(ranges, responses, strict=True):
                    if begin != self._offset:  # the previous pull returned fewer messages than expected
                        break
                    part = await self._take(begin, count, response)
                    if part is not None:
                        yield part
                if ahead is not None and self._offset != following:
                    ahead.cancel()
                    ahead = None
        finally:
            if ahead is not None:
                ahead.cancel()

    def _start_round(self, offset: int) -> asyncio.Task[tuple[list[tuple[int, int]], list[Response]]]:
        step = self._step or _PULL_MAX
        begins = range(offset, self._end, step)[: self._pulls]
        ranges = [(begin, min(step, self._end - begin)) for begin in begins]

        async def pull() -> tuple[list[tuple[int, int]], list[Response]]:
            return ranges, await self._consumer.pull_records(self._queue, ranges)

        return subtask(pull(), f"read {self._queue}")

    async def _take(self, begin: int, count: int, response: Response) -> Part | None:
        """Return the records of one response, if any. Advance the offset, or pause before a retry."""
        if isinstance(response, RocketError):
            if response.retry is Retry.NONE:
                raise response
            await self._wait(str(response))
            return None
        status, header, data = response
        following = min(header.next_begin_offset, self._end)
        if status is PullStatus.FOUND:
            end = min(begin + count, following)
            try:
                found = count_records(data, begin, end)
            except RecordCorrupt as error:
                self._skip_damaged(begin, count, error)
                return None
            self._adapt(count, found, len(data))
            self._advance_past_expired(following, following - begin - found)
            return Part(data, found, following)
        if status is PullStatus.NO_NEW_MSG or following <= begin:
            await self._wait(f"it has no message at offset {begin}, which held one when reading began")
            return None
        self._advance_past_expired(following, following - begin)
        return None

    def _skip_damaged(self, begin: int, count: int, error: RecordCorrupt) -> None:
        """Read the messages of a damaged response one by one; skip each that is damaged."""
        self._step = self._pulls = 1
        if count == 1:
            log.warning("%s: the message at offset %d is damaged and left out: %s", self._queue, begin, error)
            self._advance(begin + 1, 1)

    def _advance_past_expired(self, offset: int, expired: int) -> None:
        if expired:
            log.warning("%s: %d messages before offset %d have expired", self._queue, expired, offset)
        self._advance(offset, expired)

    def _advance(self, offset: int, missing: int) -> None:
        self.missing += missing
        self._offset = offset
        self._retry_until = None

    def _adapt(self, requested: int, found: int, size: int) -> None:
        """Adapt the step and the number of pulls to a response: brokers limit its messages and its bytes."""
        if not self._step or found < min(requested, self._step):
            self._step, self._largest = found, size
        elif size > self._largest:
            self._largest = size
        elif requested == self._step and size * 4 < self._largest:  # messages have become smaller
            self._step = min(2 * self._step, _PULL_MAX)
        self._pulls = max(1, min(_PULLS_MAX, _ROUND_BYTES // max(1, size)))

    async def _wait(self, problem: str) -> None:
        now = time.monotonic()
        if self._retry_until is None:
            self._retry_until = now + _RETRY_FOR_S
            log.warning("%s cannot be read; retrying: %s", self._queue, problem)
        elif now > self._retry_until:
            raise RocketError(f"{self._queue} cannot be read: {problem}")
        await asyncio.sleep(_PAUSE_S)
