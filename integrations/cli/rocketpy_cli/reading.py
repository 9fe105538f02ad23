"""Reads a topic for ``rocketpy consume``: each queue on its own, or as a member of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.admin.reader import ToolsConsumer
from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.consumer import LitePullConsumer, PullConsumer
from rocketpy.consumer.config import LitePullConfig
from rocketpy.consumer.fetch.subscription import Expression
from rocketpy.errors import Retry, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import PullResult, PullStatus
from rocketpy.runtime.tasks import subtask
from rocketpy_cli.formats import Format
from rocketpy_cli.positions import Kind, Position
from rocketpy_cli.streams import Output

log: Final = logging.getLogger("rocketpy.cli")

_PULL_MAX: Final = 1024
"""More than a broker returns at a time."""
_POLL_MS: Final = 200
_NEW_QUEUES_S: Final = 30.0
"""How often a read with --follow looks for new queues."""
_RETRY_S: Final = 1.0
_COMMITS_MAX: Final = 3
"""How often the offsets of printed messages are committed before the command fails."""
_LAST_WRITE_S: Final = 1.0
"""How long a cancelled read waits for a write, to commit it. The reader of a full pipe may never read on."""


class Printer:
    """Prints messages to stdout, up to a number of them."""

    def __init__(self, format_: Format, count: int | None) -> None:
        self._format = format_
        self._output = Output(sys.stdout.fileno())
        self.left: int = sys.maxsize if count is None else count
        """How many messages are still wanted."""

    async def print(self, messages: Sequence[MessageExt]) -> None:
        """Print messages up to the limit; return when they are written.

        Raises:
            BrokenPipeError: The reader of the output has closed it.
        """
        wanted = messages[: self.left]
        self.left -= len(wanted)
        if wanted:
            await self._output.write(self._format(wanted))

    async def flush(self) -> None:
        """Write everything that was passed to `print`, also by tasks that were cancelled meanwhile."""
        await self._output.write(b"")


async def read_queues(
    client: ClientConfig,
    topic: str,
    expression: Expression,
    position: Position,
    printer: Printer,
    *,
    follow: bool,
) -> None:
    """Print the messages of each queue from a position on; no offset is committed.

    Args:
        client: The configuration of clients.
        topic: The topic.
        expression: Selects the messages.
        position: The position at which to begin.
        printer: Prints the messages.
        follow: Whether to wait for new messages. Otherwise each queue is read up to its present end.

    Raises:
        RocketError: A queue cannot be read; with `follow` only if another attempt cannot help.
        BrokenPipeError: The reader of the output has closed it.
    """
    async with ToolsConsumer(client=client, config=ConsumerConfig(suspend=follow)) as consumer:
        queues = set(await consumer.fetch_queues(topic))
        since_ms = position.number if position.kind is Kind.TIME else 0
        read = _QueueReader(consumer, expression, printer, since_ms)
        reading: set[asyncio.Task[None]] = set()
        try:
            for queue in queues:
                begin = await position.offset(consumer, queue)
                end = None if follow else await consumer.max_offset(queue)
                reading.add(subtask(read(queue, begin, end), f"read {queue}"))
            while reading and printer.left:
                done, reading = await asyncio.wait(
                    reading, timeout=_NEW_QUEUES_S if follow else None, return_when=asyncio.FIRST_COMPLETED
                )
                for error in [task.exception() for task in done]:
                    if error is not None:
                        raise error
                if follow and not done:
                    for queue in await _new_queues(consumer, topic, queues):
                        queues.add(queue)
                        reading.add(subtask(read(queue, 0, None), f"read {queue}"))
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        await printer.flush()


async def _new_queues(
    consumer: PullConsumer, topic: str, known: Collection[MessageQueue]
) -> set[MessageQueue]:
    try:
        return {queue for queue in await consumer.fetch_queues(topic) if queue not in known}
    except RocketError as error:
        log.warning("cannot look for new queues of topic %s: %s", topic, error)
        return set()


@dataclass(eq=False)
class _QueueReader:
    """Each call prints the messages of one queue."""

    consumer: PullConsumer
    expression: Expression
    printer: Printer
    since_ms: int
    """Skip the leading messages of each queue that were stored before it (ms since 1970; 0: none)."""

    async def __call__(self, queue: MessageQueue, offset: int, end: int | None) -> None:
        """Read from an offset to `end`; None: forever. The next pull runs while messages are printed."""
        since_ms = self.since_ms
        ahead: asyncio.Task[PullResult] | None = None
        try:
            while self.printer.left and (end is None or offset < end):
                try:
                    pulled = await (ahead or self._start(queue, offset))
                except RocketError as error:
                    ahead = None
                    if end is not None or error.retry is Retry.NONE:
                        raise
                    log.warning("%s cannot be read; retrying: %s", queue, error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                ahead = None
                following = pulled.next_offset
                if pulled.messages and (end is None or following < end):
                    ahead = self._start(queue, following)
                messages = pulled.messages
                if end is not None and messages and messages[-1].queue_offset >= end:
                    messages = [message for message in messages if message.queue_offset < end]
                if since_ms and messages:
                    messages = [message for message in messages if message.store_timestamp >= since_ms]
                    since_ms = 0 if messages else since_ms
                await self.printer.print(messages)
                if pulled.status is PullStatus.OFFSET_ILLEGAL:
                    log.warning("%s has no offset %d; reading continues at %d", queue, offset, following)
                elif end is not None and following <= offset:
                    log.warning(
                        "%s now ends at offset %d; it ended at %d when reading began", queue, offset, end
                    )
                    return
                offset = following
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    def _start(self, queue: MessageQueue, offset: int) -> asyncio.Task[PullResult]:
        pull = self.consumer.pull(queue, offset, _PULL_MAX, expression=self.expression)
        return subtask(pull, f"pull of {queue}")


async def read_as_member(
    client: ClientConfig,
    group: str,
    topic: str,
    expression: Expression,
    position: Position,
    printer: Printer,
    *,
    follow: bool,
) -> None:
    """Join a group, print the messages of the assigned queues, and commit the offsets of written messages.

    Args:
        client: The configuration of clients.
        group: The consumer group.
        topic: The topic.
        expression: Selects the messages.
        position: The position at which to begin in queues without an offset of the group. Brokers override it
            while a queue begins at offset 0; see `ConsumeFrom`.
        printer: Prints the messages.
        follow: Whether to wait for new messages. Otherwise it reads up to the present end of its queues.

    Raises:
        RocketError: The group cannot be joined, or its offsets cannot be committed.
        BrokenPipeError: The reader of the output has closed it.
    """
    consume_from, timestamp_ms = position.consume_from()
    config = LitePullConfig(
        consume_from=consume_from, consume_timestamp_ms=timestamp_ms, poll_timeout_ms=_POLL_MS
    )
    ends = {} if follow else await _ends(client, topic)
    consumer = LitePullConsumer(group, client=client, config=config)
    consumer.subscribe(topic, expression)
    printed: dict[MessageQueue, int] = {}
    async with consumer:
        is_written = True
        try:
            while printer.left:
                messages = await consumer.poll(max_count=min(printer.left, _PULL_MAX))
                is_written = not messages
                await printer.print(messages)
                is_written = True
                printed.update((message.queue, message.queue_offset + 1) for message in messages)
                if not messages and not follow and _is_at_end(consumer, ends):
                    break
        except asyncio.CancelledError:
            if not is_written:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WRITE_S):
                        await printer.flush()
                        is_written = True
            raise
        finally:
            if is_written:  # also after Ctrl-C
                await consumer.commit()
        await _ensure_committed(consumer, printed)


async def _ensure_committed(consumer: LitePullConsumer, printed: Mapping[MessageQueue, int]) -> None:
    """Commit offsets again that are not stored: `commit` only logs a failure. Raises RocketError."""
    error: RocketError | None = None
    missing = dict(printed)
    for attempt in range(_COMMITS_MAX):
        if attempt:
            await asyncio.sleep(_RETRY_S)
            await consumer.commit(missing)
        try:
            missing = {
                queue: offset
                for queue, offset in missing.items()
                if (await consumer.committed(queue) or 0) < offset
            }
        except RocketError as raised:
            error = raised
            continue
        if not missing:
            return
    raise RocketError(
        f"offsets of group {consumer.group} were not committed, so the next member prints messages of "
        f"{', '.join(map(str, sorted(missing)))} again" + ("" if error is None else f": {error}")
    )


async def _ends(client: ClientConfig, topic: str) -> dict[MessageQueue, int]:
    """Return the present end of each queue."""
    async with ToolsConsumer(client=client) as consumer:
        return {queue: await consumer.max_offset(queue) for queue in await consumer.fetch_queues(topic)}


def _is_at_end(consumer: LitePullConsumer, ends: dict[MessageQueue, int]) -> bool:
    return all(consumer.position(queue) >= ends.get(queue, 0) for queue in consumer.assignment)
