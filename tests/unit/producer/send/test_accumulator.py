"""Which messages join a batch, and when it leaves."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpy.config import BatchConfig, ProducerConfig
from rocketpy.errors import MessageTooLarge
from rocketpy.message import Message, MessageQueue
from rocketpy.producer.send.accumulator import Accumulator
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import PendingSend
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.results import SendResult
from rocketpy.runtime.tasks import Tasks
from tests.waiting import LIMIT_S

Q0, Q1 = (MessageQueue("T", "a", number) for number in range(2))


@dataclass(eq=False)
class Topic:
    """The part of a publish info that the accumulator uses. pushes: how often it was flushed."""

    topic: str
    single: Any = None
    batch: Any = None
    pushes: int = 0
    pushed: asyncio.Event = field(default_factory=asyncio.Event)

    def flush(self) -> None:
        self.pushes += 1
        self.pushed.set()


@dataclass
class Rig:
    """An accumulator and the batches that left it."""

    config: BatchConfig = field(default_factory=BatchConfig)
    batches: list[PendingSend] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limiter = InFlightLimiter(1000, 1 << 30)
        self.tasks = Tasks("the tester")
        encoder = MessageEncoder(ProducerConfig(batch=self.config), bytes(4))
        sender: Any = SimpleNamespace(start=self.batches.append)
        self.accumulator = Accumulator(self.config, self.limiter, encoder, sender, lambda: None, self.tasks)
        self.state = Topic("T")
        self.topic = cast(TopicPublishInfo, self.state)

    def add(
        self,
        body: bytes,
        queue: MessageQueue | None = None,
        timeout_ms: int = 3000,
        topic: TopicPublishInfo | None = None,
        **options: Any,
    ) -> asyncio.Future[SendResult]:
        """Add a message, as a send does."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        message = Message("T", body, **options)
        self.accumulator.add(topic or self.topic, message, future, None, queue, timeout_ms)
        return future

    @property
    def bodies(self) -> list[list[bytes]]:
        """The bodies of the batches that left, in their order."""
        return [[message.body for message in batch.messages] for batch in self.batches]


async def test_sends_of_one_turn_leave_at_its_end() -> None:
    """Each message would cost a request, or wait for others that are never sent."""
    rig = Rig()
    for body in (b"1", b"2", b"3"):
        rig.add(body)
    assert rig.bodies == []
    await asyncio.sleep(0)
    assert rig.bodies == [[b"1", b"2", b"3"]]
    assert (rig.limiter.count, rig.limiter.bytes, rig.state.pushes) == (3, 3, 1)
    rig.add(b"4")
    await asyncio.sleep(0)
    assert rig.bodies[1:] == [[b"4"]]


async def test_a_batch_is_bounded_by_count_and_by_bytes() -> None:
    """A broker would refuse a batch above its limit."""
    rig = Rig(BatchConfig(max_gathered=2))
    for body in (b"1", b"2", b"3"):
        rig.add(body)
    assert rig.bodies == [[b"1", b"2"]]
    rig = Rig(BatchConfig(max_bytes=3000))
    for number in range(6):
        rig.add(b"%d" % number * 700)
    await asyncio.sleep(0)
    assert [len(bodies) for bodies in rig.bodies] == [2, 2, 2]


@pytest.mark.parametrize("seed", range(5))
async def test_no_batch_is_longer_than_its_bound(seed: int) -> None:
    """A broker would refuse all messages of the batch."""
    rng = random.Random(seed)
    rig = Rig(BatchConfig(max_bytes=4000))
    for _ in range(300):
        rig.add(b"x" * rng.choice([1, 100, 500, 900, 3000, 5000]))
    await asyncio.sleep(0)
    assert sum(map(len, rig.bodies)) == 300
    lengths = [sum(len(body) + 384 for body in bodies) for bodies in rig.bodies if len(bodies) > 1]
    assert len(lengths) > 10
    assert max(lengths) <= 4000


async def test_given_queues_have_batches_of_their_own() -> None:
    """A message would end in a queue that its sender did not choose."""
    rig = Rig()
    for body, queue in ((b"1", Q0), (b"2", Q1), (b"3", Q0)):
        rig.add(body, queue)
    await asyncio.sleep(0)
    assert rig.bodies == [[b"1", b"3"], [b"2"]]
    assert [batch.chosen_queue for batch in rig.batches] == [Q0, Q1]


async def test_a_message_that_cannot_join_lets_the_others_leave_first() -> None:
    """Messages of one queue would overtake each other."""
    rig = Rig()
    rig.add(b"1")
    rig.add(b"2", wait_store=False)
    rig.add(b"3", Q0)
    rig.add(b"4")
    rig.add(b"5", timeout_ms=100)
    await asyncio.sleep(0)
    assert rig.bodies == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5"]]
    assert [batch.messages[0].wait_store for batch in rig.batches] == [True, False, True, True, True]


async def test_similar_timeouts_travel_together() -> None:
    """Sends that waited for a free place, and have slightly different times left, would not share batches."""
    rig = Rig()
    for timeout_ms in (3000, 2990, 2760, 3020):
        rig.add(b"x", timeout_ms=timeout_ms)
    await asyncio.sleep(0)
    assert [batch.deadline_ms - batch.accepted_ms for batch in rig.batches] == [3020]


async def test_topics_do_not_mix() -> None:
    """A message would end in another topic."""
    rig = Rig()
    rig.add(b"1")
    rig.add(b"2", topic=cast(TopicPublishInfo, Topic("U")))
    rig.accumulator.flush_topic(rig.topic)
    assert rig.bodies == [[b"1"]]
    await asyncio.sleep(0)
    assert rig.bodies == [[b"1"], [b"2"]]


async def test_lingering_waits_for_others() -> None:
    """Senders of several turns could not be gathered."""
    rig = Rig(BatchConfig(linger_ms=5))
    rig.add(b"1")
    await asyncio.sleep(0)
    rig.add(b"2")
    async with asyncio.timeout(LIMIT_S):
        await rig.state.pushed.wait()
    assert rig.bodies == [[b"1", b"2"]]


async def test_rejected_messages_do_not_count() -> None:
    """Each message with too many properties would occupy capacity forever."""
    rig = Rig()
    with pytest.raises(MessageTooLarge):
        rig.add(b"1", properties={"p": "x" * 33_000})
    assert (rig.limiter.count, rig.limiter.bytes) == (0, 0)
    await asyncio.sleep(0)
    assert rig.bodies == []


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (3000, 3000, True), (3000, 2728, True), (3000, 2727, False), (3000, 3300, True), (3000, 3301, False),
        (10, 11, True), (10, 12, False), (1, 2, False),
    ],
)  # fmt: skip
async def test_sends_with_about_the_same_time_travel_together(
    first: int, second: int, *, together: bool
) -> None:
    """A send with a short timeout would wait as long as one with a long one."""
    rig = Rig()
    for timeout_ms in (first, second):
        rig.add(b"x", timeout_ms=timeout_ms)
    await asyncio.sleep(0)
    times = [round(batch.deadline_ms - batch.accepted_ms) for batch in rig.batches]
    assert times == ([max(first, second)] if together else [first, second])


@pytest.mark.parametrize("linger_ms", [0, 1])
async def test_a_bug_in_the_timer_fails_the_client(monkeypatch: pytest.MonkeyPatch, linger_ms: int) -> None:
    """The event loop would log it, and the accumulated sends would wait until their timeouts."""
    failed = asyncio.Event()

    def start(_send: PendingSend) -> None:
        raise ValueError("x")

    rig = Rig(BatchConfig(linger_ms=linger_ms))
    monkeypatch.setattr(rig.accumulator.sender, "start", start)
    rig.tasks.on_failure.append(lambda _failure: failed.set())
    rig.add(b"a")
    await failed.wait()
    assert "Accumulator.flush" in str(rig.tasks.failure)
