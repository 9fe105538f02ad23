"""StartOffsets: where a member begins in the queues that it acquires.

Source: RocketMQ 4.6 RebalancePushImpl computePullFromWhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketpy.consumer.config import ConsumeFrom, MemberConfig
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.consumer.group.offset_stores import OffsetStore
from rocketpy.protocol.bodies import MessageQueue

DEFAULT_TIMESTAMP_AGE_MS: Final = 30 * 60 * 1000
"""Without `consume_timestamp_ms`, consumption begins this long before the start of the member."""


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """Finds where a member begins in the queues that it acquires."""

    api: ConsumerApi
    offsets: OffsetStore
    config: MemberConfig
    retry_topic: str
    """Of the group."""
    started_ms: int
    """Start of the member, in ms since 1970."""

    async def of(self, queue: MessageQueue) -> int:
        """Return the committed offset, or else the one that `MemberConfig.consume_from` says."""
        stored = await self.offsets.read(queue)
        if stored is not None:
            return stored
        consume_from = self.config.consume_from
        is_retry = queue.topic == self.retry_topic
        if consume_from is ConsumeFrom.FIRST_OFFSET:
            return 0
        if consume_from is ConsumeFrom.LAST_OFFSET and is_retry:
            return 0
        if consume_from is ConsumeFrom.TIMESTAMP and not is_retry:
            timestamp = self.config.consume_timestamp_ms
            if timestamp is None:
                timestamp = self.started_ms - DEFAULT_TIMESTAMP_AGE_MS
            return await self.api.search_offset(queue, timestamp)
        return await self.api.max_offset(queue)
