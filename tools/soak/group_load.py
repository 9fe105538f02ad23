"""The load of a group whose leaders are killed: single sends, and when the first succeeded after a kill."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocketpy import ClientConfig, Message, Producer, ProducerConfig, SendResult, SendStatus
from tools.soak.load import Load


class GroupLoad(Load):
    """Sends no batches, which Java's DLedger brokers refuse. senders: sends under way at a time."""

    def __init__(self, client: ClientConfig, senders: int = 8) -> None:
        super().__init__(client)
        self._senders = senders
        self._begun: dict[int, float] = {}
        self._killed_at = math.inf
        self.recovered_at: float | None = None
        """When the first send succeeded that began, or was retried, after `note_kill`."""

    def note_kill(self) -> None:
        """Note that the leader was killed now."""
        self._killed_at, self.recovered_at = time.monotonic(), None

    @property
    def acked_count(self) -> int:
        """Messages that were acknowledged so far."""
        return len(self.ledger.acked)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Let all senders send until the block ends."""
        singly = ProducerConfig(batching=False)
        async with (
            Producer("group_load", client=self._client, config=singly, listeners=[self]) as producer,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._senders):
                group.create_task(self._await_each(producer))
            try:
                yield
            finally:
                self._stop.set()

    def _new(self) -> tuple[int, Message]:
        number, message = super()._new()
        self._begun[number] = time.monotonic()
        return number, message

    def _note(self, number: int, end: SendResult | BaseException) -> None:
        is_new = self._begun.pop(number) > self._killed_at or self._failed_attempts.get(number, 0) > 0
        super()._note(number, end)
        if isinstance(end, SendResult) and end.status is SendStatus.SEND_OK and is_new:
            self.recovered_at = self.recovered_at or time.monotonic()
