"""QueueRecords: what it counts and logs of messages that cannot be exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from rocketpy import MessageQueue, PullConsumer
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.protocol.headers import PullMessageResponseHeader
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.results import PullStatus
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
