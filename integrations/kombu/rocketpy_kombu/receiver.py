"""Receives the messages of one connection, and keeps, acknowledges and releases them.

Runs in the event loop of the clients. While the process lives, the invisible time of its messages is
extended, also while a task blocks the thread that calls kombu.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from kombu.utils.uuid import uuid

from rocketpy import MessageExt, SimpleConsumer
from rocketpy.errors import AcksFailed, ReceiptExpired, RocketError
from rocketpy.message.decode import undecodable
from rocketpy.runtime.application import describe
from rocketpy.runtime.tasks import Tasks
from rocketpy_kombu import envelope
from rocketpy_kombu.envelope import Payload
from rocketpy_kombu.inbox import Inbox
from rocketpy_kombu.session import Session
from rocketpy_kombu.settings import Settings
from rocketpy_kombu.window import Window

log: Final = logging.getLogger("rocketpy.kombu")

_SHARED_WAIT_S: Final = 1.0
"""How long a request waits if the channel consumes several queues: others may need what it has reserved."""
_EXTENSIONS_PER_TIMEOUT: Final = 3
_PAUSES_S: Final = (0.1, 1.0, 5.0)
_PURGED_AT_ONCE: Final = 32
_CLOSE_S: Final = 5.0
"""How long `close` waits for acknowledgements."""


class Arrival(NamedTuple):
    """A message for the thread that calls kombu."""

    queue: str
    payload: Payload
    held: Unacknowledged | None
    """None for a broadcast message, which cannot be delivered again."""
    expiry_ms: float
    """When its sender no longer wants it to be delivered, in ms since 1970."""

    @property
    def tag(self) -> str:
        """The delivery tag by which kombu knows the message."""
        tag: str = self.payload["properties"]["delivery_tag"]
        return tag

    def has_expired(self) -> bool:
        """Return whether it must not be delivered any more."""
        return self.expiry_ms <= time.time() * 1000


class Unacknowledged:
    """A message that was received and not acknowledged."""

    __slots__ = ("changing", "consumer", "is_delivered", "is_lost", "is_warned", "message", "window")

    def __init__(self, consumer: SimpleConsumer, message: MessageExt, window: Window | None) -> None:
        self.consumer = consumer
        self.message = message
        self.window = window
        self.is_delivered = False
        self.is_lost = False
        """Whether its time was over, so that another worker may have it."""
        self.is_warned = False
        """Whether its last extension failed."""
        self.changing = asyncio.Lock()
        """Extensions replace the receipt that an acknowledgement needs."""

    def leave(self) -> None:
        """Give its place in the window to another message."""
        if self.window is None:
            return
        if self.is_delivered:
            self.window.settled()
        else:
            self.window.return_unused(1)


class Receiver:
    """What one connection consumes. Coroutines run in the event loop, other methods in any thread."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self.inbox: Final[Inbox[Arrival]] = Inbox()
        self._session = session
        self._settings = settings
        self._invisible = timedelta(seconds=settings.visibility_timeout_s)
        self._tasks = Tasks("kombu connection")
        self._held: dict[str, Unacknowledged] = {}
        self._readers: dict[tuple[Window, str], asyncio.Task[None]] = {}
        self._is_waited_for = False
        """Whether the application waits for a message."""
        self._acknowledged: list[Unacknowledged] = []
        self._settling: set[asyncio.Task[None]] = set()
        self._is_extending = False

    # -- receiving ------------------------------------------------------------------------------

    async def consume(self, queue: str, window: Window) -> None:
        """Start to receive a queue's messages, unless it has begun. Raises as `Session.consumer`."""
        consumer = await self._session.consumer(queue)
        if (window, queue) in self._readers:
            return
        self._extend_from_now_on()
        window.readers += 1
        self._readers[window, queue] = self._tasks.spawn(
            self._read(queue, consumer, window), f"read queue {queue}"
        )
        if self._is_waited_for:
            window.wait_for_one()

    async def cancel(self, queue: str, window: Window) -> None:
        """Stop to receive, and release the messages that kombu does not have yet."""
        reading = self._readers.pop((window, queue), None)
        if reading is None:
            return
        window.end_reader()
        await self._tasks.cancel(reading)
        waiting = self.inbox.take(
            lambda one: one.queue == queue and one.held is not None and one.held.window is window
        )
        await self.release(one.tag for one in waiting)

    async def get(self, queue: str) -> Arrival | None:
        """Return one message, if there is one now."""
        consumer = await self._session.consumer(queue)
        self._extend_from_now_on()
        while received := await consumer.receive(1, invisible=self._invisible, wait=timedelta(0)):
            for message in self._readable(consumer, received):
                return self._hold(queue, consumer, message, None)
        return None

    async def purge(self, queue: str) -> int:
        """Acknowledge all messages that no application holds; return their number."""
        consumer = await self._session.consumer(queue)
        waiting = self.inbox.take(lambda one: one.queue == queue and one.held is not None)
        for one in waiting:
            self._settle(one.tag)
        count = len(waiting)
        while messages := await consumer.receive(
            _PURGED_AT_ONCE, invisible=self._invisible, wait=timedelta(0)
        ):
            await consumer.ack_many(messages)
            count += len(messages)
        return count

    def _extend_from_now_on(self) -> None:
        if not self._is_extending:
            self._is_extending = True
            interval_s = self._settings.visibility_timeout_s / _EXTENSIONS_PER_TIMEOUT
            self._tasks.every(interval_s, self._extend_all, "extend the messages of a kombu connection")

    async def _read(self, queue: str, consumer: SimpleConsumer, window: Window) -> None:
        failures = 0
        while True:
            count = await window.reserve()
            wait_s = self._settings.wait_time_s
            if window.readers > 1:
                wait_s = min(wait_s, _SHARED_WAIT_S)
            messages: list[MessageExt] = []
            try:
                received = await consumer.receive(
                    count, invisible=self._invisible, wait=timedelta(seconds=wait_s)
                )
                messages = self._readable(consumer, received)
                failures = 0
            except RocketError as error:
                log.warning("queue %s: no messages can be received, trying again: %s", queue, error)
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
            finally:
                window.return_unused(count - len(messages))
            for message in messages:
                self.inbox.put(self._hold(queue, consumer, message, window))

    def _readable(self, consumer: SimpleConsumer, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the messages that were decoded. The others are logged, and become dead letters."""
        if not (failed := undecodable(messages)):
            return messages
        self._keep(
            self._tasks.spawn(self._reject(consumer, failed), "reject messages that cannot be decoded")
        )
        return [message for message in messages if message.decode_error is None]

    async def _reject(self, consumer: SimpleConsumer, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            if (error := message.decode_error) is not None:
                await consumer._send_to_dead_letters(message, 0, describe(error))  # noqa: SLF001

    def _hold(
        self, queue: str, consumer: SimpleConsumer, message: MessageExt, window: Window | None
    ) -> Arrival:
        payload, tag = envelope.decode(message.body), uuid()
        envelope.mark_delivered(payload, queue, tag, redelivered=message.delivery_attempt > 1)
        held = self._held[tag] = Unacknowledged(consumer, message, window)
        return Arrival(queue, payload, held, envelope.expiry_ms(payload, message.born_timestamp))

    # -- what kombu does with messages ----------------------------------------------------------

    def wait_for_one(self) -> None:
        """Note that kombu waits for a message, unless one has arrived."""
        if self.inbox.is_empty():
            self._session.background.call_soon(self._wait_for_one)

    def _wait_for_one(self) -> None:
        self._is_waited_for = True
        for window, _ in self._readers:
            window.wait_for_one()

    def delivered(self, held: Unacknowledged) -> None:
        """Note that kombu has passed a message to the application."""
        self._session.background.call_soon(partial(self._delivered, held))

    def acknowledge(self, tag: str) -> None:
        """Acknowledge a message soon. If that fails, the message is delivered again."""
        if tag in self._held:
            self._session.background.call_soon(partial(self._settle, tag))

    async def release(self, tags: Iterable[str]) -> None:
        """Let other workers have messages at once. If that fails, they get them after the invisible time."""
        await asyncio.gather(*(self._release(held) for held in map(self._leave, tags) if held is not None))

    def release_soon(self, tag: str) -> bool:
        """Release a message without waiting. Returns whether this connection holds it."""
        if tag not in self._held:
            return False
        self._session.background.call_soon(
            lambda: self._keep(self._tasks.spawn(self.release([tag]), "release a message"))
        )
        return True

    def _delivered(self, held: Unacknowledged) -> None:
        if not held.is_delivered:
            held.is_delivered = True
            self._is_waited_for = False
            if held.window is not None:
                held.window.delivered()

    def _leave(self, tag: str) -> Unacknowledged | None:
        held = self._held.pop(tag, None)
        if held is not None:
            held.leave()
        return held

    def _settle(self, tag: str) -> None:
        held = self._leave(tag)
        if held is None:
            return
        self._acknowledged.append(held)
        if len(self._acknowledged) == 1:
            self._keep(self._tasks.spawn(self._acknowledge_all(), "acknowledge messages"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._settling.add(task)
        self._settling = {one for one in self._settling if not one.done()}

    async def _acknowledge_all(self) -> None:
        await asyncio.sleep(0)  # for those that follow in the same iteration
        acknowledged, self._acknowledged = self._acknowledged, []
        by_consumer: dict[SimpleConsumer, list[Unacknowledged]] = {}
        for held in acknowledged:
            by_consumer.setdefault(held.consumer, []).append(held)
        await asyncio.gather(*(self._acknowledge(*one) for one in by_consumer.items()))

    async def _acknowledge(self, consumer: SimpleConsumer, group: list[Unacknowledged]) -> None:
        """Acknowledge messages of a consumer; repeat it while a broker is away, within the invisible time."""
        end = time.monotonic() + self._settings.visibility_timeout_s
        messages = [one.message for one in group]
        async with contextlib.AsyncExitStack() as unchanged:
            for one in group:
                await unchanged.enter_async_context(one.changing)
            for attempt in itertools.count():
                pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
                try:
                    await consumer.ack_many(messages)
                except AcksFailed as error:
                    failed = error
                else:
                    return
                messages = [one for one, why in failed.failed if not isinstance(why, ReceiptExpired)]
                is_last = time.monotonic() + pause_s > end or self._session.is_closing
                if is_last or len(messages) < len(failed.failed):
                    log.warning("messages may be delivered again: %s", failed)
                if is_last or not messages:
                    return
                log.info("acknowledging again in %s s: %s", pause_s, failed)
                await asyncio.sleep(pause_s)

    async def _release(self, held: Unacknowledged) -> None:
        async with held.changing:
            try:
                await held.consumer.release(held.message)
            except RocketError as error:
                log.info(
                    "message %s could not be released; it is delivered again within %s: %s",
                    held.message.message_id,
                    self._invisible,
                    error,
                )

    async def _extend_all(self) -> None:
        await asyncio.gather(*(self._extend(tag, held) for tag, held in list(self._held.items())))

    async def _extend(self, tag: str, held: Unacknowledged) -> None:
        async with held.changing:
            if self._held.get(tag) is not held or held.is_lost:
                return
            try:
                await held.consumer.extend(held.message, self._invisible)
            except RocketError as error:
                log.log(
                    logging.DEBUG if held.is_warned else logging.WARNING,
                    "message %s could not be kept, and may be delivered to another worker: %s",
                    held.message.message_id,
                    error,
                )
                held.is_warned, held.is_lost = True, isinstance(error, ReceiptExpired)
            else:
                held.is_warned = False

    # -- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release what was not acknowledged, and receive nothing more."""
        for window, queue in list(self._readers):
            await self.cancel(queue, window)
        await self.release(list(self._held))
        if running := [task for task in self._settling if not task.done()]:
            await asyncio.wait(running, timeout=_CLOSE_S)
        await self._tasks.close()
        self.inbox.close()
