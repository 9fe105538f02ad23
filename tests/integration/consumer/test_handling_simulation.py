"""Groups whose handlers, members and broker fail at random: what a group promises of its messages holds."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rocketpy import ClientConfig, ConsumeResult, Later, MessageExt, PushConfig, PushConsumer
from rocketpy.protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer, stored
from tests.simulated_loop import SimulatedLoop

HOST = host_bytes("127.0.0.1", 10911)
RETRY = "%RETRY%g"
QUEUES = 4
COUNT = 150
CONCURRENCY = 4
MAX_TIMES = 3
"""How often an orderly member handles a message again before it becomes a dead letter."""
CLOSE_S = 20.0
LIMIT_S = 1200.0
"""Of the simulated clock."""
UNSTEADY = (RequestCode.PULL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.UPDATE_CONSUMER_OFFSET)
"""Requests that the broker rejects, or does not respond to, by chance."""


@dataclass
class Stored:
    """A message of a queue. Its physical offset is its index in `WildBroker.stored`."""

    topic: str
    queue_id: int
    offset: int
    body: bytes
    times: int
    settled: bool = False


class WildBroker(Peer):
    """The broker of a group that fails, is silent, and drops connections, all by chance.

    It reports an offset that is committed beyond a message which is neither handled nor sent back.
    """

    def __init__(self, rng: random.Random, violations: list[str]) -> None:
        super().__init__(self.respond)
        self.rng = rng
        self.violations = violations
        self.calm = False
        self.stored: list[Stored] = []
        self.queues: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.committed: Counter[tuple[str, int]] = Counter()
        self.dead: set[bytes] = set()
        self._members: dict[Channel, str] = {}
        self._locks: dict[tuple[str, MessageQueue], tuple[str, float]] = {}

    def put(self, topic: str, queue_id: int, body: bytes, times: int = 0) -> None:
        """Store a message."""
        queue = self.queues[topic, queue_id]
        self.stored.append(Stored(topic, queue_id, len(queue), body, times))
        queue.append(len(self.stored) - 1)

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        super().channel_closed(channel, error)
        self._member_left(channel)

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Handle one request, or fail."""
        luck = 1.0 if self.calm or request.code not in UNSTEADY else self.rng.random()
        if luck < 0.005:
            channel.abort()
            return None
        if luck < 0.02:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="by chance")
        response = self._response(channel, request)
        if response is not None and luck >= 0.025:
            channel.exclude_from_unanswered()
            delay_s = self.rng.choice([0.0, 0.0, 0.001, self.rng.uniform(0, 0.3)])
            asyncio.get_running_loop().call_later(delay_s, channel.reply_held, response)
        return None

    def _response(self, channel: Channel, request: Command) -> Command | None:
        handlers: dict[int, Callable[[Channel, Command], Command | None]] = {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list_members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.SEND_MESSAGE_V2: self._send_copy,
        }
        handler = handlers.get(request.code)
        return request.reply() if handler is None else handler(channel, request)

    # -- members ------------------------------------------------------------------------------

    def _heartbeat(self, channel: Channel, request: Command) -> Command:
        client_id = HeartbeatData.decode(request.body).client_id
        if self._members.get(channel) != client_id:
            self._members[channel] = client_id
            self._notify_all()
        return request.reply()

    def _unregister(self, channel: Channel, request: Command) -> Command:
        self._member_left(channel)
        return request.reply()

    def _member_left(self, channel: Channel) -> None:
        if self._members.pop(channel, None) is not None:
            self._notify_all()

    def _notify_all(self) -> None:
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group="g")
        for channel in self._members:
            channel.oneway(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))

    def _list_members(self, _: Channel, request: Command) -> Command:
        body = GetConsumerListByGroupResponseBody(consumer_id_list=sorted(self._members.values()))
        return request.reply(body=body.encode())

    # -- offsets and locks --------------------------------------------------------------------

    def _query_offset(self, _: Channel, request: Command) -> Command:
        header = request.header_as(QueryConsumerOffsetRequestHeader)
        offset = self.committed[header.topic, header.queue_id]
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _update_offset(self, _: Channel, request: Command) -> Command:
        header = request.header_as(UpdateConsumerOffsetRequestHeader)
        self._commit(header.topic, header.queue_id, header.commit_offset)
        return request.reply()

    def _commit(self, topic: str, queue_id: int, offset: int) -> None:
        passed = self.queues[topic, queue_id][:offset]
        unsettled = [self.stored[index].offset for index in passed if not self.stored[index].settled]
        if unsettled:
            self.violations.append(f"offset {offset} of {topic} {queue_id} passes {unsettled}")
        self.committed[topic, queue_id] = offset

    def _lock(self, _: Channel, request: Command) -> Command:
        body, now = LockBatchRequestBody.decode(request.body), asyncio.get_running_loop().time()
        granted = []
        for queue in body.mq_set:
            owner, until = self._locks.get((body.consumer_group, queue), (body.client_id, now))
            if owner == body.client_id or until < now:
                self._locks[body.consumer_group, queue] = body.client_id, now + 60
                granted.append(queue)
        return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=granted).encode())

    def _unlock(self, _: Channel, request: Command) -> Command:
        body = LockBatchRequestBody.decode(request.body)
        for queue in body.mq_set:
            if self._locks.get((body.consumer_group, queue), ("", 0))[0] == body.client_id:
                del self._locks[body.consumer_group, queue]
        return request.reply()

    # -- messages -----------------------------------------------------------------------------

    def _pull(self, channel: Channel, request: Command) -> Command | None:
        header = request.header_as(PullMessageRequestHeader)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._commit(header.topic, header.queue_id, header.commit_offset)
        queue, begin = self.queues[header.topic, header.queue_id], header.queue_offset
        found = queue[begin : begin + min(header.max_msg_nums, self.rng.randrange(1, 40))]
        code = 0 if found else ResponseCode.PULL_NOT_FOUND
        response = request.reply(
            code,
            header=PullMessageResponseHeader(
                suggest_which_broker_id=0,
                next_begin_offset=begin + len(found),
                min_offset=0,
                max_offset=len(queue),
            ),
            body=b"".join(self._record(index) for index in found),
        )
        if found:
            return response
        channel.exclude_from_unanswered()
        asyncio.get_running_loop().call_later(self.rng.uniform(0.2, 3), channel.reply_held, response)
        return None

    def _record(self, index: int) -> bytes:
        one = self.stored[index]
        properties = f"UNIQ_KEY\x01{one.body.decode()}\x02"
        if one.topic == RETRY:
            properties += "RETRY_TOPIC\x01T\x02"
        return encode_record(
            one.topic.encode(), one.queue_id, 0, one.offset, index, 0, 1, HOST, 2, HOST, one.times, 0,
            one.body, properties.encode(),
        )  # fmt: skip

    def _send_back(self, _: Channel, request: Command) -> Command:
        header = request.header_as(ConsumerSendMsgBackRequestHeader)
        one = self.stored[header.offset]
        one.settled = True
        self._redeliver(one.body, one.times + 1, is_dead=header.delay_level < 0)
        return request.reply()

    def _send_copy(self, _: Channel, request: Command) -> Command:
        header, body = request.header_as(SendMessageRequestHeaderV2), bytes(request.body)
        times, most = header.reconsume_times or 0, header.max_reconsume_times or 0
        for one in self.stored:
            if one.body == body and one.times <= times:
                one.settled = True
        self._redeliver(body, times, is_dead=times >= most)
        return stored(request)

    def _redeliver(self, body: bytes, times: int, *, is_dead: bool) -> None:
        if is_dead:
            self.dead.add(body)
            return
        delay_s = self.rng.choice([0.0, self.rng.uniform(0, 20)])
        queue_id = self.rng.randrange(QUEUES)
        asyncio.get_running_loop().call_later(delay_s, self.put, RETRY, queue_id, body, times)


@dataclass(eq=False)
class Member:
    """A member of the group and its handler calls."""

    consumer: PushConsumer
    active: int = 0
    closed: bool = False


@dataclass
class World:
    """A group with members that come and go, and whose handlers do what `rng` says."""

    rng: random.Random
    broker: WildBroker
    names: Names
    config: PushConfig
    plain: bool
    violations: list[str]
    calm: bool = False
    calls: int = 0
    members: list[Member] = field(default_factory=list)
    done: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, int]] = set()
        self._running: list[asyncio.Task[Any]] = []
        self._all: list[Member] = []
        self._tasks: list[Tasks] = []

    # -- members ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start another member."""
        batches = self.config.batch_size > 1
        handler = self._plain_handler if self.plain else self._async_handler

        def one(message: MessageExt) -> Any:
            return handler(member, [message])

        def batch(messages: list[MessageExt]) -> Any:
            return handler(member, messages)

        async def async_one(message: MessageExt) -> Any:
            return await handler(member, [message])

        async def async_batch(messages: list[MessageExt]) -> Any:
            return await handler(member, messages)

        consumer = PushConsumer(
            "g",
            self.names.address,
            None if batches else one if self.plain else async_one,
            batch_handler=None if not batches else batch if self.plain else async_batch,
            config=self.config,
            client=ClientConfig(instance_name=f"member {len(self._all)}"),
        )
        member = Member(consumer)
        consumer.subscribe("T")
        await consumer.start()
        self.members.append(member)
        self._all.append(member)
        self._tasks.append(consumer.member.tasks)

    async def close(self, member: Member, *, in_handler: bool = False) -> None:
        """Close a member. It begins no further call, and waits for running ones up to its limit."""
        if member in self.members:
            self.members.remove(member)
        loop = asyncio.get_running_loop()
        since = loop.time()
        await member.consumer.close()
        member.closed = not in_handler  # else it ends after the handler
        if loop.time() - since > CLOSE_S + 60:
            self.violations.append(f"a close took {loop.time() - since:.0f} s")

    async def disturb(self) -> None:
        """Do something with a member."""
        rng = self.rng
        deed = rng.choice(["start", "close", "pause", "resume", "cancel", "cancel"])
        if deed == "start" and len(self.members) < 3:
            await self.start()
        elif deed == "close" and len(self.members) > 1:
            await self.close(rng.choice(self.members))
        elif deed == "pause":
            rng.choice(self.members).consumer.pause()
        elif deed == "resume":
            rng.choice(self.members).consumer.resume()
        elif deed == "cancel":  # as a time limit of the application
            for task in rng.sample(self._running, min(2, len(self._running))):
                task.cancel()

    # -- handlers -----------------------------------------------------------------------------

    async def _async_handler(self, member: Member, messages: list[MessageExt]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running.append(task)
        self._begin(member, messages)
        try:
            return self._returned(messages, await self._act(member, task))
        finally:
            self._end(member, messages)
            self._running.remove(task)

    async def _act(self, member: Member, task: asyncio.Task[Any]) -> object:
        rng = self.rng
        way = "done" if self.calm else rng.choice([*["done"] * 12, *["slow"] * 4, *WAYS])
        if way == "slow":
            await asyncio.sleep(rng.choice([0, 0, 0.01, rng.uniform(0, 2), rng.uniform(0, 40)]))
        elif way == "cancel":
            task.cancel()
            await asyncio.sleep(rng.choice([0, 1]))
        elif way == "cancel late":
            task.cancel()
        elif way == "close" and len(self.members) > 1 and member in self.members:
            await self.close(member, in_handler=True)
        elif way not in ("done", "close"):
            return self._failure(way)
        return None

    def _plain_handler(self, member: Member, messages: list[MessageExt]) -> Any:
        self._begin(member, messages)
        try:
            with self._lock:
                way = "done" if self.calm else self.rng.choice([*["done"] * 12, *["slow"] * 4, *WAYS])
            if way == "slow":
                time.sleep(0.001)
            failed = way not in ("done", "slow", "close", "cancel", "cancel late")
            return self._returned(messages, self._failure(way) if failed else None)
        finally:
            self._end(member, messages)

    def _failure(self, way: str) -> object:
        results: dict[str, object] = {
            "raise": ValueError("by chance"),
            "cancelled": asyncio.CancelledError(),
            "LATER": ConsumeResult.LATER,
            "later": Later(delay_level=2, suspend_ms=20),
            "later, one done": Later(done=1),
            "dead": Later(delay_level=-1),
            "foreign": 7,
        }
        result = results[way]
        if isinstance(result, BaseException):
            raise result
        return result

    def _returned(self, messages: list[MessageExt], result: object) -> object:
        done = len(messages) if result is None else result.done if isinstance(result, Later) else 0
        for message in messages[:done]:
            self.broker.stored[message.physical_offset].settled = True
            self.done.add(message.body)
        return result

    def _begin(self, member: Member, messages: list[MessageExt]) -> None:
        one = self.broker.stored[messages[0].physical_offset]
        queue = one.topic, one.queue_id
        with self._lock:
            self.calls += 1
            member.active += 1
            if member.closed:
                self.violations.append(f"a call for {messages} began after the close")
            if self.config.orderly:
                before = self.broker.queues[queue][: one.offset]
                if queue in self._busy:
                    self.violations.append(f"two calls for {queue}")
                if not all(self.broker.stored[index].settled for index in before):
                    self.violations.append(f"{messages} before earlier ones")
                self._busy.add(queue)
            elif member.active > CONCURRENCY:
                self.violations.append(f"{member.active} concurrent calls")

    def _end(self, member: Member, messages: list[MessageExt]) -> None:
        one = self.broker.stored[messages[0].physical_offset]
        with self._lock:
            member.active -= 1
            self._busy.discard((one.topic, one.queue_id))

    # -- the end ------------------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Whether each message is handled or a dead letter, and all offsets are committed."""
        broker = self.broker
        committed = all(broker.committed[queue] == len(found) for queue, found in broker.queues.items())
        return committed and {one.body for one in broker.stored} == self.done | broker.dead

    async def finish(self) -> None:
        """Let everything succeed, and wait until all messages are handled."""
        self.calm = self.broker.calm = True
        for member in self.members:
            member.consumer.resume()
        async with asyncio.timeout(LIMIT_S):
            while not self.is_complete() and not self.violations:  # noqa: ASYNC110 - conditions have no event
                await asyncio.sleep(1)
        for member in self._all:
            await self.close(member)
        self.violations += [str(tasks.failure) for tasks in self._tasks if tasks.failure is not None]


WAYS = (
    "raise",
    "cancelled",
    "LATER",
    "later",
    "later, one done",
    "dead",
    "foreign",
    "cancel",
    "cancel late",
    "close",
)


async def run(seed: int, config: PushConfig, *, plain: bool) -> None:
    """Run one simulation."""
    rng, violations = random.Random(seed), list[str]()
    async with WildBroker(rng, violations) as broker, Names() as names:
        names.queues = QUEUES
        names.routes = {"T": {"a": broker.address}, RETRY: {"a": broker.address}}
        world = World(rng, broker, names, config, plain, violations)
        await world.start()
        number = 0
        while number < COUNT:
            for _ in range(rng.choice([1, 1, 5, 50])):
                broker.put("T", rng.randrange(QUEUES), b"%06d" % number)
                number += 1
            await asyncio.sleep(rng.choice([0, 0.001, 0.5, rng.uniform(0, 30)]))
            await world.disturb()
        await world.finish()
    assert violations == [], "\n".join(violations[:5])
    assert world.calls > COUNT / config.batch_size


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kind", "batch_size", "orderly"),
    [
        ("async", 1, False),
        ("async", 5, False),
        ("threads", 1, False),
        ("async", 1, True),
        ("loop", 5, True),
        # Not orderly on threads: locks would end while a thread waits for a processor.
    ],
    ids=["async", "batches", "threads", "orderly", "orderly batches in the loop"],
)
def test_no_message_is_lost_or_overtaken(seed: int, kind: str, batch_size: int, orderly: bool) -> None:
    """An offset would pass a message that failed, or an orderly queue would have two handlers."""
    config = PushConfig(
        orderly=orderly,
        batch_size=batch_size,
        concurrency=CONCURRENCY,
        threads=kind == "threads",
        max_reconsume_times=MAX_TIMES if orderly else -1,
        suspend_ms=100,
        close_timeout_ms=int(CLOSE_S * 1000),
        consume_timeout_ms=60_000,
    )
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(run(seed, config, plain=kind != "async"))
