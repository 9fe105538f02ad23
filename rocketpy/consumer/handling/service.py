"""ConsumeService, and HandlerService, the part that concurrent and orderly consumption share.

Source: RocketMQ 4.6 ConsumeMessageService.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rocketpy.consumer.config import PushConfig
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import HandlerAdapter
from rocketpy.consumer.handling.send_back import SendBack
from rocketpy.consumer.stats import ConsumerStats
from rocketpy.errors import RocketError
from rocketpy.message.message import MessageExt
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log: Final = logging.getLogger("rocketpy.consumer")


class ConsumeService(Protocol):
    """Handles pulled messages."""

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """Handle messages of `puller.process_queue`, which keeps them until they are finished.

        failed: how many have a `decode_error`. No handler is called with them.
        """

    async def wait_released(self, puller: Puller) -> None:
        """Wait until running handlers have ended with the messages of a revoked queue."""

    def in_progress(self) -> Sequence[object]:
        """Return the messages, or queues, that handlers work on."""

    def started(self) -> Sequence[object]:
        """Return the messages, or queues, that handlers work on or that are sent back.

        The messages of calls that have ended before are finished when it returns.
        """

    async def close(self, timeout_s: float) -> Sequence[object]:
        """Begin no more calls and wait for running ones. Returns what unfinished handlers work on."""


@dataclass(eq=False)
class HandlerService:
    """Base class of the services that call the handler of a push consumer."""

    adapter: HandlerAdapter
    config: PushConfig
    send_back: SendBack
    stats: ConsumerStats
    tasks: Tasks
    clock: Callable[[], float]
    """Monotonic time in ms."""

    def __post_init__(self) -> None:
        self._limited_log = RateLimitedLog(log)

    def problems(self) -> list[str]:
        """Return a text if handler calls have run for longer than `PushConfig.consume_timeout_ms`."""
        limit_ms = self.config.consume_timeout_ms
        ages_ms = sorted(age_ms for age_ms in self._ages_ms() if age_ms > limit_ms)
        if not ages_ms:
            return []
        text = (
            f"{len(ages_ms)} handler calls have run for longer than {limit_ms} ms (consume_timeout_ms), the "
            f"longest for {ages_ms[-1] / 1000:.0f} s; up to {self.config.concurrency} run at a time"
        )
        return [text]

    def _ages_ms(self) -> Iterable[float]:
        """Return for how long each running handler call has run."""
        raise NotImplementedError

    def _close_logs(self) -> None:
        """Log how many repeated failures were not logged."""
        self.adapter.close()
        self._limited_log.close()

    async def _try_send(self, sending: Awaitable[None], problem: str, message: MessageExt) -> bool:
        """Wait until a message is sent to a broker; return whether it was. problem: text to log if not."""
        try:
            await sending
        except RocketError as error:
            self._limited_log.error(type(error).__name__, problem, message, error)
            return False
        return True
