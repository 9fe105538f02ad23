"""PopOrder: a queue is blocked until its popped messages are acknowledged or visible again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.pop.order import OrderInfo, PopOrder
from tests.turns import Turns

if TYPE_CHECKING:
    from _collections_abc import dict_items

HOUR_MS = 3_600_000


class Queue:
    """Ordered pops of one queue, on a clock that the test sets."""

    def __init__(self, path: Path) -> None:
        self.path, self.now_ms = path / "consumerOrderInfo.json", 1000
        self.offsets = ConsumerOffsets(path / "consumerOffset.json")
        self.order = PopOrder(self.path, self.offsets, clock=lambda: self.now_ms)

    def pop(self, *offsets: int, attempt: str | None = None) -> dict[int, int]:
        """Pop messages for 100 ms; return how often they were delivered before."""
        counts = self.order.popped(
            "T", "g", 0, offsets, pop_ms=self.now_ms, invisible_ms=100, attempt_id=attempt
        )
        return dict(counts)

    def blocked_ms(self, attempt: str | None = None) -> int:
        """For how long the queue is blocked."""
        return max(self.order.free_ms("T", "g", 0, attempt) - self.now_ms, 0)

    def acknowledge(self, offset: int, pop_ms: int = 1000) -> int | None:
        """Acknowledge a message; return the committed offset, None if the receipt is of no use."""
        if self.order.acknowledge("T", "g", 0, offset, pop_ms):
            return self.offsets.get("g", "T", 0)
        return None


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def test_a_queue_is_blocked_until_all_messages_are_acknowledged(queue: Queue) -> None:
    """A group would get the next messages before it has handled these, or never again."""
    assert queue.blocked_ms() == 0
    assert queue.pop(5, 6, 9) == {}
    assert queue.blocked_ms() == 100
    assert [queue.acknowledge(offset) for offset in (6, 5)] == [5, 9]
    assert queue.blocked_ms() == 100
    assert queue.acknowledge(9) == 10
    assert queue.blocked_ms() == 0


def test_a_queue_is_free_when_the_messages_are_visible_again(queue: Queue) -> None:
    """A consumer that has gone would block a queue forever; or its messages would be counted as new."""
    queue.pop(5, 6)
    queue.now_ms = 1099
    assert queue.blocked_ms() == 1
    queue.now_ms = 1100
    assert queue.blocked_ms() == 0
    assert queue.pop(5, 6) == {5: 1, 6: 1}
    queue.now_ms = 1200
    assert queue.pop(5, 6, 7) == {5: 2, 6: 2}


def test_an_attempt_that_is_repeated_gets_the_same_messages(queue: Queue) -> None:
    """A consumer whose response was lost would wait until its messages are visible again."""
    queue.pop(5, 6, attempt="a")
    assert queue.blocked_ms("b") == 100
    assert queue.blocked_ms("a") == 0
    assert queue.pop(5, 6, attempt="a") == {}
    queue.now_ms = 1100
    assert queue.pop(5, 6, attempt="b") == {5: 1, 6: 1}
    assert queue.pop(5, 6, attempt="b") == {5: 1, 6: 1}


def test_a_changed_invisible_time_counts(queue: Queue) -> None:
    """A message that is handled for long, or is released, would block the queue for the first time."""
    queue.pop(5, 6)
    assert queue.order.set_visible("T", "g", 0, 5, pop_ms=1000, visible_ms=5000)
    assert queue.blocked_ms() == 4000
    assert queue.order.set_visible("T", "g", 0, 5, pop_ms=1000, visible_ms=1000)
    assert queue.blocked_ms() == 100
    queue.acknowledge(6)
    assert queue.blocked_ms() == 0


def test_receipts_of_earlier_pops_have_no_effect(queue: Queue) -> None:
    """A late acknowledgement would commit messages that another consumer handles now."""
    queue.pop(5, 6)
    queue.now_ms = 1100
    queue.pop(5, 6)
    assert queue.acknowledge(5, pop_ms=1000) is None
    assert not queue.order.set_visible("T", "g", 0, 5, pop_ms=1000, visible_ms=9000)
    assert queue.acknowledge(7, pop_ms=1100) is None
    assert queue.acknowledge(5, pop_ms=1100) == 6
    assert queue.acknowledge(5, pop_ms=1100) is None
    assert not queue.order.set_visible("T", "g", 0, 5, pop_ms=1100, visible_ms=9000)


def test_a_reset_frees_the_queue(queue: Queue) -> None:
    """After a reset, a group would wait for the messages before it; a late acknowledgement would undo it."""
    queue.pop(5, 6)
    queue.offsets.commit("g", "T", 0, 2)
    assert queue.blocked_ms() == 0
    assert queue.acknowledge(5) is None
    assert queue.offsets.get("g", "T", 0) == 2


def test_an_unknown_pop_commits_nothing(queue: Queue) -> None:
    """After a crash before the save, a late acknowledgement would skip the messages before it."""
    assert queue.acknowledge(7) is None


async def test_the_last_pops_survive_a_restart(queue: Queue, tmp_path: Path) -> None:
    """After a restart, a group would get messages while earlier ones are in flight."""
    queue.pop(5, 6, 9, attempt="a")
    queue.acknowledge(6)
    queue.order.set_visible("T", "g", 0, 5, pop_ms=1000, visible_ms=5000)
    await queue.order.save()
    saved = json.loads(queue.path.read_text())["table"]["T@g"]["0"]
    expected = {"popTime": 1000, "i": 100, "o": [5, 1, 4], "ot": {"5": 5000}, "l": 1000, "cm": 2, "a": "a"}
    assert saved == expected
    again = Queue(tmp_path)
    again.offsets.commit("g", "T", 0, 5)
    again.order.load()
    assert again.blocked_ms() == 4000
    assert again.acknowledge(9) == 5


def test_a_file_of_rocketmq_is_read(queue: Queue) -> None:
    """QUIRKS 79: a store of RocketMQ 5 would give messages out of order."""
    queue.path.write_text(
        '{"table":{"T@g":{0:{"a":"a","cm":0,"i":60000,"l":1000,"o":[5,1],"oc":{5:1},"popTime":1000}}}}'
    )
    queue.offsets.commit("g", "T", 0, 5)
    queue.order.load()
    assert queue.blocked_ms() == 60_000
    queue.now_ms = 61_000
    assert queue.pop(5, 6) == {5: 2, 6: 1}


async def test_unused_entries_are_removed(queue: Queue) -> None:
    """The file would grow with each topic that was ever popped in order."""
    queue.pop(5)
    queue.order.popped("U", "g", 0, [1], pop_ms=1, invisible_ms=1, attempt_id=None)
    queue.order.remove_topic("U")
    await queue.order.save()
    assert list(json.loads(queue.path.read_text())["table"]) == ["T@g"]
    queue.now_ms += 25 * HOUR_MS
    queue.order.popped("T", "h", 0, [1], pop_ms=1, invisible_ms=1, attempt_id=None)
    await queue.order.save()
    assert list(json.loads(queue.path.read_text())["table"]) == ["T@h"]
    queue.order.remove("T", "h", 0)
    assert queue.order.find("T", "h", 0) is None


async def test_a_save_lets_others_run_and_loses_no_pop(queue: Queue) -> None:
    """A copy of 200,000 entries stopped the event loop for a fifth of a second."""
    copies = Turns(dict.items)

    class Watched(dict[int, OrderInfo]):
        def items(self) -> dict_items[int, OrderInfo]:
            found: dict_items[int, OrderInfo] = copies(self)
            return found

    for number in range(10_000):
        queue.order.popped(f"T{number}", "g", 0, [5], pop_ms=1, invisible_ms=1, attempt_id=None)
    queue.order._table = {key: Watched(queues) for key, queues in queue.order._table.items()}
    saving = asyncio.create_task(queue.order.save())
    while not copies.total:  # noqa: ASYNC110 - one iteration each
        await asyncio.sleep(0)
    queue.order.popped("T0", "g", 0, [7], pop_ms=1, invisible_ms=1, attempt_id=None)  # copied already
    queue.order.remove_topic("T9999")
    await saving
    copies.stop()
    assert (copies.total, copies.longest) == (9999, 2000)
    await queue.order.save()
    table = json.loads(queue.path.read_text())["table"]
    assert (len(table), table["T0@g"]["0"]["o"], table["T9998@g"]["0"]["o"]) == (9999, [7], [5])
