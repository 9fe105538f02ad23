"""The world of pops: a store, consumers that pop, and faults; one seed decides everything.

Consumers pop, acknowledge, change invisible times, and use old receipts. The clock goes on, jumps ahead and
back. The broker is stopped, killed in the middle of a write, or loses power. In between, RocketMQ may be the
broker: then check points and acknowledgements are timers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper, SubscriptionGroupConfig
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record, decode_all
from rocketpy_broker.services.delay.topic_rewrite import copy_to
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.pop.check_points import CheckPoints, Progress
from rocketpy_broker.services.pop.formats import (
    Acknowledgement,
    CheckPoint,
    PointKey,
    ack_properties,
    point_properties,
    revive_topic,
    was_timer,
)
from rocketpy_broker.services.timers.messages import TIMER_TOPIC, to_timer_message
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    IndexConfig,
    MessageInner,
    MessageStore,
    StoreConfig,
)
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.message_store import finish
from tests.crash.disk import Crash, Operation, RecordingDisk

ROOT: Final = Path("/store")
CONFIG: Final = StoreConfig(
    root=ROOT,
    commit_log=CommitLogConfig(segment_bytes=1 << 14, reserve_bytes=0),
    consume_queue=ConsumeQueueConfig(segment_bytes=4000),
    index=IndexConfig(slots=64, entries=2000),
)
TOPIC, GROUP, RETRY, DEAD = "T", "g", "%RETRY%g_T", "%DLQ%g"
REVIVE: Final = revive_topic("c")
QUEUES, REVIVE_QUEUES, RETRIES_MAX = 2, 2, 3
START_MS: Final = 1_700_000_000_000


@dataclass(eq=False)
class Delivery:
    """A message that a consumer has."""

    body: str
    key: PointKey
    offset: int
    invisible_ms: int
    revive_queue: int
    number: int
    """Of the delivery of this message, from 0."""
    is_of_rocketmq: bool = False
    has_timer: bool = False
    """Whether its acknowledgement is a timer."""
    is_used: bool = False
    """Whether it was acknowledged, or has another receipt."""

    @property
    def until_ms(self) -> int:
        """When the message may come again."""
        return self.key.pop_ms + self.invisible_ms


@dataclass(eq=False)
class Job:
    """A message, and what became of it."""

    body: str
    deliveries: list[Delivery] = field(default_factory=list)
    is_acked: bool = False
    is_dead: bool = False
    may_have_copies: bool = False
    """After a reset of its queue, power loss, or a kill before the response to a request for this message."""
    is_uncertain: bool = False
    """Whether the broker was killed before such a response."""


class World:
    """See the module."""

    def __init__(self, seed: int, *, steps: int) -> None:
        self.random = Random(seed)
        self.steps = steps
        self.now = self.latest = START_MS
        self.losses = self.kills = self.moves = 0
        self.jobs: dict[str, Job] = {}
        self.saved = b""
        """consumerOffset.json"""
        self.progress: Progress | None = None
        self.touched: list[str] = []
        """Messages of the current request."""
        self.disk = RecordingDisk(lambda: self.now)
        self.countdown = -1
        self.at_rocketmq = False
        self.torn: Operation | None = None
        self._open()

    # -- the broker ---------------------------------------------------------------------------

    def _open(self) -> None:
        StoreLock._held.clear()
        self.disk.before = None
        self.store = MessageStore(CONFIG, clock=lambda: self.now, disk=self.disk)
        self.store.open()
        self.store.dispatch()
        self.offsets = ConsumerOffsets(ROOT / "offsets", clock=lambda: self.now, disk=self.disk)
        if self.saved:
            table = ConsumerOffsetSerializeWrapper.decode(self.saved)
            self.offsets._table = table.offset_table
        self._load_timers()
        self.points = CheckPoints(
            self.store, self.offsets, REVIVE, queues=REVIVE_QUEUES, broker_name="b",
            find_topic=lambda name: name,
            find_group=lambda name: SubscriptionGroupConfig(group_name=name, retry_max_times=RETRIES_MAX),
            ensure_topic=lambda _: None,
            uses_retry_v2=lambda: False,
            timers_late=lambda: any(due_ms <= self.now for due_ms, _ in self.timers),
            timers_wait=lambda: bool(self.timers),
            records_max=30,
            age_max_ms=60_000,
        )  # fmt: skip
        self.points.load()
        self.progress = None
        self.disk.before = self._before

    # -- timers, as another test's subject, without their files --------------------------------

    def _load_timers(self) -> None:
        """Find the timers that have no copy in the revive topic."""
        self.timers: list[tuple[int, Record]] = []
        """When each timer is due, and its record."""
        self._timers_read = 0
        self._arrived = {
            props.find(record.properties, b"UNIQ_KEY")
            for queue_id in range(REVIVE_QUEUES)
            for record in self._records(REVIVE, queue_id)
            if was_timer(record.properties)
        }
        self._enqueue()

    def _enqueue(self) -> None:
        for record in self._records(TIMER_TOPIC, 0, self._timers_read):
            self._timers_read += 1
            if props.find(record.properties, b"UNIQ_KEY") not in self._arrived:
                due_ms = int(props.decode(record.properties)["TIMER_OUT_MS"]) + 1000
                self.timers.append((due_ms, record))

    def _deliver(self) -> None:
        """Deliver the timers that are due, or some of them."""
        self._enqueue()
        for timer in sorted(self.timers, key=lambda timer: timer[0]):
            if timer[0] > self.now or self.random.random() < 0.2:
                break
            self.timers.remove(timer)
            record = timer[1]
            queue_id = int(props.decode(record.properties)["REAL_QID"])
            self.store.put_message(copy_to(record, REVIVE, queue_id))

    def _records(self, topic: str, queue_id: int, offset: int = 0) -> list[Record]:
        found: list[Record] = []
        while part := self.store.get_message(topic, queue_id, offset + len(found), 32).body:
            found += decode_all(part)
        return found

    def _before(self, operation: Operation) -> None:
        if self.countdown > 0:
            self.countdown -= 1
            if self.countdown == 0:
                self.torn = operation
                raise Crash

    def kill(self) -> None:
        """Start again on what a killed process leaves, or power loss."""
        operation, self.torn = self.torn, None
        self.disk.before = None
        self.countdown = -1
        is_loss = self.random.random() < 0.3
        if is_loss:
            self.losses += 1
            for job in self.jobs.values():
                job.may_have_copies = True
            self.disk = self.disk.after_power_loss(self.random, operation)
        elif operation is not None and operation.kind == "pwrite":
            self.disk = self.disk.torn(operation, self.random.randrange(len(operation.data) + 1))
        else:
            self.disk = self.disk.copy()
        self.disk._clock = lambda: self.now
        self.kills += 1
        self._open()

    def stop(self) -> None:
        """Stop and start; in between, RocketMQ may be the broker."""
        if self.points.is_loading:
            return
        self.disk.before = None
        self.points.renew(self.now, 1000)
        progress = self.points.progress()
        self.store.flush()
        finish(self.points.committing(progress, is_last=True))
        self.save()
        self.store.close()
        self._open()
        if self.random.random() < 0.3:
            self.moves += 1
            self.disk.before = None
            self._be_rocketmq()
            self.save()
            self.store.close()
            self._open()

    def save(self) -> None:
        """Save the offsets."""
        self.saved = self.offsets.encode()

    # -- RocketMQ -----------------------------------------------------------------------------

    def _be_rocketmq(self) -> None:
        for _ in range(self.random.randrange(6)):
            self.now += self.random.randrange(500)
            self.latest = max(self.latest, self.now)
            choice = self.random.random()
            if choice < 0.5:
                self._pop_at_rocketmq()
            elif (delivery := self._any_delivery()) is not None and self._is_live(delivery):
                self._append_timer(
                    Acknowledgement(delivery.key, [delivery.offset], "b"), delivery.revive_queue,
                    delivery.until_ms,
                )  # fmt: skip
                self._used(delivery, is_acked=True)
                delivery.has_timer = True
        self.store.write_out()

    def _pop_at_rocketmq(self) -> None:
        queue_id = self.random.randrange(QUEUES)
        begin = self.offsets.get(GROUP, TOPIC, queue_id) or 0
        result = self.store.get_message(TOPIC, queue_id, begin, self.random.choice((1, 3)))
        if not result.count:
            return
        records = decode_all(result.body)
        key = PointKey(TOPIC, GROUP, queue_id, begin, self.now)
        diffs = [record.queue_offset - begin for record in records]
        point = CheckPoint(key, self.random.choice((2000, 5000)), diffs, 0, "b")
        self._append_timer(point, 0, point.revive_ms - 1000)
        self.offsets.commit(GROUP, TOPIC, queue_id, result.next_begin_offset)
        for record in records:
            self._delivered(record, point)
            self.jobs[record.body.decode()].deliveries[-1].is_of_rocketmq = True

    def _append_timer(self, what: CheckPoint | Acknowledgement, queue_id: int, due_ms: int) -> None:
        if isinstance(what, CheckPoint):
            body, properties = what.encode(), point_properties(what)
        else:
            tag, body = what.encode()
            properties = ack_properties(what, tag)
        message = MessageInner(REVIVE, queue_id, body, born_timestamp=self.now)
        message.properties = props.encode({props.TIMER_DELIVER_MS: str(due_ms), **properties}).encode()
        if due_ms > self.now:
            to_timer_message(message, due_ms)
        self.store.append(message)

    # -- consumers ----------------------------------------------------------------------------

    def send(self) -> None:
        """Send a message."""
        body = f"m{len(self.jobs)}"
        properties = f"UNIQ_KEY\x01{body}\x02".encode()
        queue_id = self.random.randrange(QUEUES)
        message = MessageInner(TOPIC, queue_id, body.encode(), properties, born_timestamp=self.now)
        self.jobs[body] = Job(body)
        self.touched = [body]
        self.store.put_message(message)
        self.store.flush()  # what is lost with its message is another test's concern

    def pop(self, topic: str = "", queue_id: int = -1, count: int = 0, invisible_ms: int = 0) -> None:
        """Pop from one queue, as the handler does."""
        if self.points.is_loading:
            return
        random = self.random
        topic = topic or random.choice((TOPIC, RETRY))
        if queue_id < 0:
            queue_id = random.randrange(QUEUES) if topic == TOPIC else 0
        begin = self.points.next_offset(topic, GROUP, queue_id)
        if begin is None:
            begin = 0
            self.offsets.commit(GROUP, topic, queue_id, 0)
        result = self.store.get_message(topic, queue_id, begin, count or random.choice((1, 2, 8, 32)))
        if not result.count:
            return
        records = decode_all(result.body)
        key = self.points.free_key(PointKey(topic, GROUP, queue_id, begin, self.now))
        invisible_ms = invisible_ms or random.choice((50, 1000, 5000, 60_000, 600_000))
        diffs = [record.queue_offset - begin for record in records]
        point = CheckPoint(key, invisible_ms, diffs, self.points.next_queue(), "b")
        self.touched = [record.body.decode() for record in records]
        self.points.append_point(point, self.now, self.store.append)
        self.points.popped(topic, GROUP, queue_id, result.next_begin_offset)
        self.store.write_out()
        for record in records:
            self._delivered(record, point)

    def _delivered(self, record: Record, point: CheckPoint) -> None:
        job = self.jobs[record.body.decode()]
        before = job.deliveries[-1] if job.deliveries else None
        number = max(record.reconsume_times, 0)
        if not job.may_have_copies:
            assert not job.is_acked, f"{job.body} was acknowledged, and came again"
            expected = 0 if before is None else before.number + 1
            assert number == expected, f"{job.body}: delivery {number} instead of {expected}"
            if before is not None:
                assert self.latest >= before.until_ms, f"{job.body} came too early"
        job.deliveries.append(
            Delivery(job.body, point.key, record.queue_offset, point.invisible_ms, point.revive_queue, number)
        )

    def _any_delivery(self) -> Delivery | None:
        jobs = [job for job in list(self.jobs.values())[-60:] if job.deliveries]
        if not jobs:
            return None
        deliveries = self.random.choice(jobs).deliveries
        return deliveries[-1] if self.random.random() < 0.8 else self.random.choice(deliveries)

    def _is_live(self, delivery: Delivery) -> bool:
        job = self.jobs[delivery.body]
        is_last = job.deliveries[-1] is delivery
        return is_last and not delivery.is_used and not job.is_acked and self.latest < delivery.until_ms

    def ack(self, delivery: Delivery | None = None) -> None:
        """Acknowledge a message, maybe with an old receipt."""
        delivery = delivery or self._any_delivery()
        if delivery is None or self.points.is_loading:
            return
        self.touched = [delivery.body]
        is_doubtful = self._is_doubtful(delivery)
        is_known = delivery.key in self.points.in_flight.points
        gone = self.points.acknowledge(
            delivery.key, [delivery.offset], delivery.revive_queue, delivery.invisible_ms, self.now,
            self.store.append,
        )  # fmt: skip
        self.store.write_out()
        if not is_doubtful:
            self._check_receipt(delivery, accepted=not gone)
            if not gone:
                self._used(delivery, is_acked=True)
                delivery.has_timer = not is_known

    def _is_doubtful(self, delivery: Delivery) -> bool:
        """Whether an old receipt may be accepted, since timers of RocketMQ wait."""
        is_unknown = delivery.key not in self.points.in_flight.points and bool(self.timers)
        return delivery.has_timer or (is_unknown and (delivery.is_used or not delivery.is_of_rocketmq))

    def _check_receipt(self, delivery: Delivery, *, accepted: bool) -> None:
        job = self.jobs[delivery.body]
        if job.may_have_copies:
            return
        if self._is_live(delivery):
            assert accepted, f"the receipt of {delivery.body} is valid"
        elif delivery.is_used or job.deliveries[-1] is not delivery:
            assert not accepted, f"an old receipt of {delivery.body} is accepted"

    def _used(self, delivery: Delivery, *, is_acked: bool) -> None:
        delivery.is_used = True
        if is_acked:
            self.jobs[delivery.body].is_acked = True

    def change(self) -> None:
        """Change the invisible time of a message, as the handler does."""
        delivery, points = self._any_delivery(), self.points
        if delivery is None or points.is_loading or self._is_doubtful(delivery):
            return
        known = points.in_flight.points.get(delivery.key)
        accepted = known is not None and points.left(known, [delivery.offset], self.now) != 0
        if known is None:
            accepted = points.may_be_timer(delivery.key, delivery.invisible_ms, self.now)
        self._check_receipt(delivery, accepted=accepted)
        if not accepted or delivery.is_used:
            return
        key = points.free_key(
            delivery.key._replace(start_offset=delivery.offset, pop_ms=self.now), delivery.key
        )
        self.touched = [delivery.body]
        invisible_ms = self.random.choice((0, 500, 30_000))
        point = CheckPoint(key, invisible_ms, [0], delivery.revive_queue, "b")
        points.append_point(point, self.now, self.store.append, is_pop=False)
        points.acknowledge(
            delivery.key, [delivery.offset], delivery.revive_queue, delivery.invisible_ms, self.now,
            self.store.append,
        )  # fmt: skip
        self.store.write_out()
        delivery.is_used = True
        job = self.jobs[delivery.body]
        job.deliveries[-1] = Delivery(
            delivery.body, key, delivery.offset, invisible_ms, delivery.revive_queue, delivery.number
        )  # fmt: skip

    def reset(self) -> None:
        """Reset a queue to an earlier message."""
        if self.points.is_loading:
            return
        queue_id = self.random.randrange(QUEUES)
        popped = self.points.next_offset(TOPIC, GROUP, queue_id) or 0
        offset = self.random.randrange(popped + 1)
        self.offsets.commit(GROUP, TOPIC, queue_id, offset)
        for job in self.jobs.values():
            job.may_have_copies = True
            # Power loss may take a check point, but not the offset: an operator asked to go on there.
            job.is_uncertain |= any(
                one.key[:3] == (TOPIC, GROUP, queue_id) and one.offset < offset for one in job.deliveries
            )

    # -- time ---------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Let the clock go on, or jump."""
        random = self.random
        choice = random.random()
        if choice < 0.03:
            self.now -= random.randrange(60_000)
        elif choice < 0.08:
            self.now += random.randrange(1_000_000)
        else:
            self.now += random.choice((1, 30, 700, 4000, 20_000))
        self.latest = max(self.latest, self.now)
        self.work()

    def work(self) -> None:
        """Do what the event loop does."""
        self._deliver()
        count = self.random.choice((3, 1000))
        self.points.read(count)
        self.points.revive(self.now, self.random.choice((1, 5, 100)))

    def prepare_commit(self) -> None:
        """Begin a commit, which ends later."""
        if not self.points.is_loading:
            self.points.renew(self.now, 100)
            self.progress = self.points.progress()

    def commit(self) -> None:
        """End a commit."""
        if self.progress is not None and not self.points.is_loading:
            self.store.flush()
            finish(self.points.committing(self.progress))
            self.progress = None

    # -- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Do all steps, then let everything end."""
        random = self.random
        actions = (
            [self.send] * 6 + [self.pop] * 8 + [self.ack] * 7 + [self.change] * 2 + [self.pass_time] * 6
            + [self.work] * 3 + [self.prepare_commit] * 2 + [self.commit] * 2 + [self.save] * 2
        )  # fmt: skip
        faults = [self.kill] * 3 + [self.stop] + ([self.reset] if random.random() < 0.1 else [])
        for _ in range(self.steps):
            if random.random() < 0.05:
                self.countdown = random.randrange(1, 6)
            self.touched = []
            action = random.choice(faults) if random.random() < 0.06 else random.choice(actions)
            try:
                action()
            except Crash:
                for body in self.touched:
                    self.jobs[body].is_uncertain = self.jobs[body].may_have_copies = True
                self.kill()
        self.countdown = -1
        self._end()

    def _end(self) -> None:
        """Acknowledge everything; at the end, nothing may be left."""
        for _ in range(400):
            self.now += 700_000
            self.latest = max(self.latest, self.now)
            for _ in range(30):
                self.work()
                if not self.points.is_behind:
                    break
            self.work()
            before = sum(len(job.deliveries) for job in self.jobs.values())
            for topic, queue_id in ((TOPIC, 0), (TOPIC, 1), (RETRY, 0)):
                self.pop(topic, queue_id, 32, 60_000)
            for job in self.jobs.values():
                if job.deliveries and not job.deliveries[-1].is_used:
                    self.ack(job.deliveries[-1])
            count = sum(len(job.deliveries) for job in self.jobs.values()) - before
            if not count and not self.points.in_flight and not self.timers and not self.points.is_behind:
                break
        dead = self._records(DEAD, 0)
        for record in dead:
            self.jobs[record.body.decode()].is_dead = True
        for job in self.jobs.values():
            is_settled = job.is_acked or job.is_dead or job.is_uncertain
            assert is_settled, f"{job.body} is lost, after {len(job.deliveries)} deliveries"
            if not job.may_have_copies:
                assert not (job.is_acked and job.is_dead), f"{job.body} is acknowledged, and a dead letter"
        assert not self.points.in_flight.counts, "messages stay in flight"
        self.prepare_commit()
        self.commit()
        for queue_id in range(REVIVE_QUEUES):
            end = self.store.max_offset_in_queue(REVIVE, queue_id)
            done = self.offsets.get("CID_RMQ_SYS_REVIVE_GROUP", REVIVE, queue_id)
            assert (-1 if done is None else done) == end - 1, "done records are read again at each start"


def run_seed(seed: int, *, steps: int = 150) -> World:
    """Run a seed to its end; raises AssertionError that names it."""
    try:
        world = World(seed, steps=steps)
        world.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: python -m tests.sim pop {seed}: {error!r}") from error
    finally:
        StoreLock._held.clear()
    return world
