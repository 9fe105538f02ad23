"""At a rebalance a queue's former owner finishes and commits before the next one begins, over sockets."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageModel,
    Producer,
    ProducerConfig,
    PushConsumer,
)
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, Seen, committed, consuming, of_topic, send, texts
from tests.waiting import LIMIT_S, until

UNBATCHED = ProducerConfig(batching=False)
_FOREVER_MS = 10 * LIMIT_S * 1000
"""A wait that makes a test fail."""
_SOON: dict[str, Any] = {"rebalance_interval_ms": 100}


class Jobs:
    """Handlers that run until `finish`. begun, ended: numbers of calls, by body. members: of the calls."""

    def __init__(self) -> None:
        self.begun: Counter[bytes] = Counter()
        self.ended: Counter[bytes] = Counter()
        self.members: set[str] = set()
        self._finish = threading.Event()

    def finish(self) -> None:
        """Let all calls end."""
        self._finish.set()

    def coroutine(self, name: str) -> Any:
        """An async handler of member `name`."""

        async def handle(message: MessageExt) -> None:
            self._begin(name, message)
            await until(self._finish.is_set)
            self.ended[message.body] += 1

        return handle

    def function(self, name: str) -> Any:
        """A handler of member `name` for threads."""

        def handle(message: MessageExt) -> None:
            self._begin(name, message)
            self._finish.wait(LIMIT_S)
            self.ended[message.body] += 1

        return handle

    def _begin(self, name: str, message: MessageExt) -> None:
        self.begun[message.body] += 1
        self.members.add(name)


async def hands_over(former: PushConsumer | LitePullConsumer, following: PushConsumer) -> None:
    """Wait until the former member releases half of its queues, and the other one waits for them."""
    await until(lambda: len([q for q in former.member.releases.pullers() if q.topic.endswith("T")]) == 2)
    await until(lambda: following.member._handover.is_waiting)
    assert of_topic(following) == []


@pytest.mark.parametrize("kind", ["coroutine", "function", "orderly", "namespace"])
async def test_a_job_runs_on_one_member(cluster: EmbeddedCluster, kind: str) -> None:
    """Whenever a worker joins, running jobs would run on two workers at once."""
    jobs, namespace = Jobs(), "N" if kind == "namespace" else ""
    handler = jobs.function if kind == "function" else jobs.coroutine
    config: dict[str, Any] = {"namespace": namespace, "orderly": kind == "orderly"}
    config |= {"rebalance_wait_ms": _FOREVER_MS, **_SOON}
    client = ClientConfig(namespace=namespace)
    async with AdminClient(cluster.namesrv_address, client=client) as admin:
        await admin.topics.create("T", 4)
    async with (
        Producer("p", cluster.namesrv_address, config=UNBATCHED, client=client) as producer,
        consuming(cluster, handler("one"), name="one", **config) as one,
    ):
        await until(lambda: len(of_topic(one)) == 4)
        await send(producer, *texts("job", 8))
        await until(lambda: jobs.begun.total() == (4 if kind == "orderly" else 8))
        async with consuming(cluster, handler("two"), name="two", **config) as two:
            await hands_over(one, two)
            await send(producer, *texts("later", 8))
            jobs.finish()
            await until(lambda: len(jobs.ended) == 16)
            await until(lambda: len(of_topic(one)) == len(of_topic(two)) == 2)
    assert set(jobs.begun.values()) == {1}
    assert jobs.members == {"one", "two"}


async def test_jobs_of_living_workers_do_not_run_again(cluster: EmbeddedCluster, producer: Producer) -> None:
    """When a worker dies, queues also move between the others; their running jobs would run again."""
    jobs = Jobs()
    config: dict[str, Any] = {"rebalance_wait_ms": _FOREVER_MS, **_SOON}
    process = await _member_process(cluster)
    async with (
        consuming(cluster, jobs.coroutine("two"), name="two", **config) as two,
        consuming(cluster, jobs.coroutine("three"), name="three", **config) as three,
    ):
        members = (two, three)
        await until(lambda: sorted(len(of_topic(one)) for one in members) in ([1, 1], [1, 2]))
        await send(producer, *map(str, range(1, 41)))
        await until(lambda: len({one for one in members if one.progress()}) == 2 and jobs.begun.total() >= 10)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(lambda: any(one.member.releases.pullers() for one in members) or _all(members) == 4)
        jobs.finish()
        await until(
            lambda: _all(members) == 4
        )  # those of the dead member as well, whose locks are still valid
        await until(lambda: committed(cluster) == 40)
    assert set(jobs.begun.values()) == {1}


def _all(members: tuple[PushConsumer, ...]) -> int:
    return sum(len(of_topic(one)) for one in members)


async def _member_process(cluster: EmbeddedCluster) -> asyncio.subprocess.Process:
    """A member of the group in a process of its own, which has joined."""
    arguments = ("concurrent", cluster.namesrv_address, "T", "g", "0", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.soak.member", *arguments, stdout=PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert await process.stdout.readline() == b"ready\n"
    return process


async def test_a_killed_member_is_not_waited_for(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The lock of a killed member is valid for a minute, and its queues would stand still."""
    seen = Seen()
    process = await _member_process(cluster)
    locks = cluster.brokers[0].consumers.locks
    await until(lambda: len(locks) >= 4)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with consuming(cluster, seen, rebalance_wait_ms=_FOREVER_MS, **_SOON):
        await send(producer, *texts("m", 8))
        await seen.until(8)


async def test_a_member_that_closes_is_not_waited_for(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Each deployment would stop its queues for the time of the wait."""
    jobs, seen = Jobs(), Seen()
    config: dict[str, Any] = {"rebalance_wait_ms": _FOREVER_MS, "close_timeout_ms": 100, **_SOON}
    async with consuming(cluster, jobs.coroutine("one"), name="one", **config) as one:
        await send(producer, "stuck")
        await until(lambda: jobs.begun.total() == 1)
        async with consuming(cluster, seen, name="two", **config) as two:
            await until(lambda: len(of_topic(two)) == 2 or two.member._handover.is_waiting)
            assert not await one.close()
            await until(lambda: len(of_topic(two)) == 4)
            await seen.until(1)  # the job that did not end
    assert len(cluster.brokers[0].consumers.locks) == 0


async def test_a_lock_of_a_killed_member_ends_with_the_next_owner(cluster: EmbeddedCluster) -> None:
    """When the killed member is started again, it would wait for its own earlier lock."""
    seen, again = Seen(), Seen()
    process = await _member_process(cluster)
    async with consuming(cluster, seen, name="two", rebalance_wait_ms=_FOREVER_MS, **_SOON) as two:
        await until(lambda: len(of_topic(two)) == 2)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(lambda: len(of_topic(two)) == 4)
        async with consuming(cluster, again, name="again", rebalance_wait_ms=_FOREVER_MS, **_SOON) as new:
            await until(lambda: len(of_topic(new)) == 2)


@pytest.mark.parametrize("wait_ms", [0, 100])
async def test_a_stuck_handler_holds_a_queue_no_longer_than_the_wait(
    cluster: EmbeddedCluster, producer: Producer, wait_ms: int
) -> None:
    """One endless job would stop its queue for all members; its late end would reset the group's offset."""
    jobs, seen = Jobs(), Seen()
    config: dict[str, Any] = {"rebalance_wait_ms": wait_ms, **_SOON}
    async with consuming(cluster, jobs.coroutine("one"), name="one", **config) as one:
        await send(producer, *texts("stuck", 8))
        await until(lambda: jobs.begun.total() == 8)
        async with consuming(cluster, seen, name="two", **config) as two:
            await until(lambda: len(of_topic(one)) == len(of_topic(two)) == 2)
            await until(lambda: sum(two.progress().values()) == 4)
            await two.member.persist(again=True)
            jobs.finish()
            await until(lambda: jobs.ended.total() == 8 and not one.member.releases.pullers())
            await until(lambda: sum(one.progress().values()) == 4)
            await one.member.persist(again=True)
            assert committed(cluster) == 8


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_polled_messages_are_processed_before_their_queue_moves(
    cluster: EmbeddedCluster, producer: Producer, auto_commit: bool
) -> None:
    """Another member would get the messages that the application works on."""
    seen = Seen()
    config = LitePullConfig(
        consume_from=FIRST,
        rebalance_wait_ms=_FOREVER_MS,
        auto_commit=auto_commit,
        **_SOON,
    )
    client = ClientConfig(instance_name="one")
    consumer = LitePullConsumer("g", cluster.namesrv_address, config=config, client=client)
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(of_topic(consumer)) == 4)
        await send(producer, *texts("m", 4))
        polled: list[MessageExt] = []
        while len(polled) < 4:
            polled += await consumer.poll()
            if len(polled) < 4:
                await consumer.commit()
        async with consuming(cluster, seen, name="two", rebalance_wait_ms=_FOREVER_MS, **_SOON) as two:
            await until(lambda: len(of_topic(consumer)) == 2)
            if consumer.member.releases.pullers():
                assert len(of_topic(two)) < 2
            if auto_commit:
                polled += await consumer.poll(0)
            else:
                await consumer.commit()
            await until(lambda: len(of_topic(two)) == 2)
            await send(producer, *texts("later", 8))
            await until(lambda: len(seen.bodies) == 4)
    assert all(body.startswith(b"later") for body in seen.bodies)
    assert set(seen.bodies.values()) == {1}


async def test_a_paused_member_gives_queues_up(cluster: EmbeddedCluster, producer: Producer) -> None:
    """It would handle what it had pulled of queues that another member has taken over."""
    one_seen, two_seen = Seen(), Seen()
    async with consuming(cluster, one_seen, name="one", rebalance_wait_ms=_FOREVER_MS, **_SOON) as one:
        await until(lambda: len(of_topic(one)) == 4)
        one.pause()
        async with consuming(cluster, two_seen, name="two", rebalance_wait_ms=_FOREVER_MS, **_SOON) as two:
            await until(lambda: len(of_topic(one)) == len(of_topic(two)) == 2)
            await send(producer, *texts("m", 8))
            await two_seen.until(4)
            one.resume()
            await one_seen.until(4)
    assert set((one_seen.bodies + two_seen.bodies).values()) == {1}


async def test_without_a_subscription_what_was_handled_is_committed(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """The results of running handlers would be lost, and their messages handled again."""
    jobs = Jobs()
    async with consuming(cluster, jobs.function("one"), rebalance_wait_ms=_FOREVER_MS) as consumer:
        await send(producer, *texts("m", 4))
        await until(lambda: jobs.begun.total() == 4)
        consumer.unsubscribe("T")
        await until(lambda: not of_topic(consumer))
        jobs.finish()
        await until(lambda: committed(cluster) == 4)


async def test_members_that_broadcast_neither_lock_nor_wait(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """They share no queue: each would stop all others."""
    config: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    one, two = Seen(), Seen()
    async with consuming(cluster, one, name="one", **config), consuming(cluster, two, name="two", **config):
        await send(producer, *texts("m", 4))
        await one.until(4)
        await two.until(4)
        assert len(cluster.brokers[0].consumers.locks) == 0


@pytest.mark.parametrize("orderly", [False, True])
async def test_only_orderly_members_lock_for_their_group(cluster: EmbeddedCluster, orderly: bool) -> None:
    """From 5.1.1 RocketMQ's brokers store copies for the retry topic of a group with locks as dead letters.

    Java's orderly members would not see the locks of ours under another name.
    """
    locks = cluster.brokers[0].consumers.locks
    async with consuming(cluster, Seen(), orderly=orderly) as consumer:
        await until(lambda: len(of_topic(consumer)) == 4)
        queues = of_topic(consumer)
        now_ms = int(consumer.member.client.now_ms())
        assert locks.lock("g", "Java's", queues, now_ms) == ([] if orderly else queues)
        await consumer.member.locks._renew(consumer.member.locks._held())
        assert locks.lock("g", "another", queues, now_ms) == []
        locks.unlock("g", "Java's", queues)
    assert len(locks) == 0


async def test_the_lock_of_a_revoked_queue_is_renewed(cluster: EmbeddedCluster, producer: Producer) -> None:
    """After a minute another member would handle an orderly queue while a handler still works on it."""
    jobs = Jobs()
    async with consuming(cluster, jobs.coroutine("one"), orderly=True) as consumer:
        await send(producer, *texts("m", 4))
        await until(lambda: jobs.begun.total() == 4)
        consumer.unsubscribe("T")
        await until(lambda: not of_topic(consumer))
        revoked = [puller.process_queue for puller in consumer.member.releases.pullers().values()]
        assert len(revoked) == 4
        for queue in revoked:
            queue.locked_ms = 0  # due
        assert consumer.member.locks is not None
        await consumer.member.locks.renew_due()
        assert all(queue.locked_ms for queue in revoked)
        jobs.finish()
        await until(lambda: not consumer.member.releases.pullers())
    assert len(cluster.brokers[0].consumers.locks) == 0


async def test_queues_can_be_assigned_again_at_once(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The assignment would fail while the former one is released, or while polled messages are in work."""
    config = LitePullConfig(consume_from=FIRST, rebalance_wait_ms=_FOREVER_MS)
    await send(producer, *texts("m", 4))
    async with LitePullConsumer("g", cluster.namesrv_address, config=config) as consumer:
        queues = await consumer.fetch_queues("T")
        await consumer.assign(queues)
        polled = await consumer.poll()
        assert polled
        await consumer.assign([])
        await consumer.assign(queues)
        assert len(consumer.assignment) == 4
    assert len(cluster.brokers[0].consumers.locks) == 0


async def test_an_application_that_commits_later_is_waited_for(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A program that collects messages of several polls would lose a queue before it can commit them."""
    seen = Seen()
    config = LitePullConfig(
        consume_from=FIRST, rebalance_wait_ms=_FOREVER_MS, auto_commit=False, poll_batch_size=1, **_SOON
    )
    client = ClientConfig(instance_name="one")
    consumer = LitePullConsumer("g", cluster.namesrv_address, config=config, client=client)
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(of_topic(consumer)) == 4)
        await consumer.commit()
        await send(producer, *texts("m", 4))
        collected: list[MessageExt] = []
        while len(collected) < 4:
            collected += await consumer.poll()
        async with consuming(cluster, seen, name="two", rebalance_wait_ms=_FOREVER_MS, **_SOON) as two:
            await hands_over(consumer, two)
            assert await consumer.poll(0) == []
            await hands_over(consumer, two)
            await consumer.commit({message.queue: message.queue_offset + 1 for message in collected})
            await until(lambda: len(of_topic(two)) == 2)
            await send(producer, *texts("later", 8))
            await until(lambda: len(seen.bodies) == 4)
    assert all(body.startswith(b"later") for body in seen.bodies)
