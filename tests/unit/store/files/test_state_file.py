"""State files: the text of large tables, and how often a flood of changes saves them."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import msgspec
import pytest

from rocketpy.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.store.files.batch_saver import BatchSaver
from rocketpy_broker.store.files.state_file import format_table, formatted_parts


@pytest.mark.parametrize("topics", [0, 1, 999, 1000, 1001, 2500])
def test_a_large_table_is_formatted_in_parts(topics: int) -> None:
    """The text of 40,000 topics held the interpreter's lock, and with it the event loop, for 20 ms."""
    table = {f"T{number}\n\u00e9": TopicConfig(topic_name=f"T{number}\n\u00e9") for number in range(topics)}
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table=table, data_version=DataVersion(timestamp=1, counter=2)
    )
    text = format_table(wrapper, "topic_config_table")
    assert text == msgspec.json.format(wrapper.encode(), indent=2)
    parts = [part.count(b'"topicName"') for part in formatted_parts(wrapper, "topic_config_table")]
    assert sum(parts) == topics
    assert max(parts) <= 1000


async def test_a_flood_of_changes_leaves_time_for_others() -> None:
    """Saves of a table that clients made large took half of a core as long as changes came."""
    saves: list[tuple[float, float]] = []

    def save() -> None:
        started = time.monotonic()
        time.sleep(0.02)
        saves.append((started, time.monotonic()))

    saver: BatchSaver[int] = BatchSaver(
        Tasks("the test"), "table", prepare=lambda _: save, use=lambda _: None
    )
    while len(saves) < 6:
        saver.submit(0)
        await asyncio.sleep(0.001)
    for (started, ended), (next_started, _) in pairwise(saves):
        assert next_started - ended >= min(3 * (ended - started), 1) - 0.001  # the clock's ticks
