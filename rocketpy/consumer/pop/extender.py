"""Extender: keeps messages invisible to others while the application works on them.

It runs in a thread with an event loop and connections of its own. So a handler that blocks the application's
event loop, or computes for long, keeps its message. Servers inside this process (``embedded:``) belong to one
event loop: then it runs in that of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Final

from rocketpy.client.embedded_lease import is_embedded
from rocketpy.client.instance import ClientInstance
from rocketpy.config import ClientConfig
from rocketpy.consumer.pop.api import PopApi
from rocketpy.errors import ReceiptExpired, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks, subtask

log: Final = logging.getLogger("rocketpy.consumer")

_CHECKS: Final = 8
"""Checks within an invisible time. A message is extended when half of its time is over."""
_AT_A_TIME: Final = 64
"""Extensions that are requested together from one broker."""
CLOSE_S: Final = 1.0
"""How long a close waits for running extensions, or until messages are released: brokers may not respond."""


@dataclass(eq=False, slots=True)
class _Kept:
    """A message that is kept."""

    message: MessageExt
    since_s: float
    """When its invisible time began, on the monotonic clock."""


class Extender:
    """Extends the messages of one consumer between `hold` and `let_go`.

    api: of the consumer. tasks: of the consumer, for servers inside this process. invisible_ms: the invisible
    time of its messages, also after each extension.
    """

    def __init__(self, api: PopApi, client_config: ClientConfig, tasks: Tasks, invisible_ms: int) -> None:
        self._api = api
        self._client_config = client_config
        self._tasks = tasks
        self._invisible_ms = invisible_ms
        self._held: dict[int, _Kept] = {}
        """By the id of the message."""
        self._extending: dict[int, Future[None]] = {}
        """The extensions that run now, also of messages that are kept no longer; by the id of the message."""
        self._lock = threading.Lock()
        """For `_held` and `_extending`."""
        self._passes: dict[str, asyncio.Task[None]] = {}
        """The extensions of each broker that are due; in the event loop that makes the requests."""
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_started = False
        self._is_closed = False
        self._limited_log = RateLimitedLog(log)

    def hold(self, messages: Iterable[MessageExt]) -> None:
        """Begin to keep messages that were just received or extended."""
        now_s = time.monotonic()
        with self._lock:
            self._held.update((id(message), _Kept(message, now_s)) for message in messages)
        if not self._is_started and not self._is_closed:
            self._start()

    def replace(self, before: MessageExt, after: MessageExt) -> None:
        """Keep a copy instead of a message. It gets the receipt, also of a running extension."""
        with self._lock:
            kept = self._held.pop(id(before), None)
            after.receipt = before.receipt
            if kept is not None:
                kept.message = after
                self._held[id(after)] = kept
                if (extension := self._extending.pop(id(before), None)) is not None:
                    self._extending[id(after)] = extension

    async def let_go(self, messages: Collection[MessageExt]) -> None:
        """Keep these messages no longer, and wait for their running extensions: their receipts are final."""
        with self._lock:
            for message in messages:
                self._held.pop(id(message), None)
            running = [self._extending.get(id(message)) for message in messages] if self._extending else ()
        for extension in running:
            if extension is not None:  # its end is awaited again if this caller is cancelled
                await asyncio.shield(asyncio.wrap_future(extension))

    def held(self) -> list[MessageExt]:
        """Return the messages that are kept."""
        with self._lock:
            return [each.message for each in self._held.values()]

    async def close(self) -> None:
        """End all extensions, and the thread."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.let_go(self.held())
        thread, self._thread = self._thread, None
        if thread is None:
            await self._end_passes()
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set, context=Context())
        await asyncio.to_thread(thread.join)

    # -- extensions ---------------------------------------------------------------------------

    @property
    def _pause_s(self) -> float:
        return self._invisible_ms / 1000 / _CHECKS

    def _start(self) -> None:
        self._is_started = True
        if is_embedded(self._client_config.namesrv):
            self._tasks.every(self._pause_s, lambda: self._extend_due(self._api), "extension of messages")
            return
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()),
            name="rocketpy extensions",
            daemon=True,
        )
        self._thread.start()

    async def _serve(self) -> None:
        """Extend messages until `close`. A client is created for the first one."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        client = None
        try:
            while not self._stop.is_set() and not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._pause_s)
                if self._stop.is_set() or not self._due():
                    continue
                try:
                    if client is None:
                        client = await ClientInstance.acquire(self._client_config, wait=False)
                    self._extend_due(self._api.with_client(client))
                except Exception as error:  # noqa: BLE001 - the next messages need the thread
                    self._limited_log.exception("extender", "extension of messages failed", error=error)
        finally:
            await self._end_passes()
            if client is not None:
                await client.release()

    def _due(self) -> list[_Kept]:
        before_s = time.monotonic() - self._invisible_ms / 2000
        with self._lock:
            return [each for each in self._held.values() if each.since_s <= before_s]

    def _extend_due(self, api: PopApi) -> None:
        """Extend what is due, for each broker on its own: one may not respond."""
        due: dict[str, list[_Kept]] = {}
        for each in self._due():
            due.setdefault(each.message.queue.broker_name, []).append(each)
        for name in due.keys() - self._passes.keys():
            self._passes[name] = task = subtask(self._extend_all(api, due[name]), f"extend at {name}")
            task.add_done_callback(partial(self._passed, name), context=Context())

    async def _extend_all(self, api: PopApi, due: Sequence[_Kept]) -> None:
        for at in range(0, len(due), _AT_A_TIME):
            work = [subtask(self._extend(api, each), "extend") for each in due[at : at + _AT_A_TIME]]
            await asyncio.gather(*work)

    def _passed(self, broker_name: str, task: asyncio.Task[None]) -> None:
        del self._passes[broker_name]
        error = None if task.cancelled() else task.exception()
        if error is not None:  # the next messages need the others
            self._limited_log.exception("extender", "extension of messages failed", error=error)

    async def _end_passes(self) -> None:
        running = set(self._passes.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _extend(self, api: PopApi, held: _Kept) -> None:
        with self._lock:
            message = held.message
            if self._held.get(id(message)) is not held:
                return
            self._extending[id(message)] = extending = Future[None]()
        began_s = time.monotonic()
        try:
            await api.change_invisible(message, self._invisible_ms)
            held.since_s = began_s
        except ReceiptExpired as error:
            with self._lock:
                self._held.pop(id(held.message), None)
            log.warning("%s", error)
        except RocketError as error:  # tried again at the next check
            text = "%s could not be extended: %s"
            self._limited_log.warning(type(error).__name__, text, message, error)
        finally:
            with self._lock:
                self._extending.pop(id(held.message), None)
                held.message.receipt = message.receipt  # it may be a copy by now
            extending.set_result(None)
