"""Messages that cannot be decoded, for consumers of every kind. Each case takes a `place`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from rocketpy import (
    AdminClient,
    ConsumerConfig,
    LitePullConsumer,
    MessageExt,
    MessageModel,
    MessageQueue,
    PullConsumer,
    PushConsumer,
)
from rocketpy.errors import RecordCorrupt, RemoteProtocolError, RocketError
from rocketpy.hooks import ReceiveEvent
from rocketpy.protocol.bodies import TopicRouteData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from tests.integration.raw_client import RawClient
from tests.mqconsumer.group import Seen, filled, group, polling, pushing, until
from tests.mqproducer.place import Place, eventually
from tests.waiting import LIMIT_S

GOOD: Final = [b"good %d" % number for number in range(6)]
BAD: Final = {
    b"this is not zlib": 0x1,
    zlib.compress(bytes(5 << 20)): 0x1,  # above the inflated size for any ratio
    b"packed in some new way": 0x401,
}
"""Raw body to the bits of its sysFlag."""


async def raw_send(place: Place, topic: str, body: bytes, sys_flag: int = 0, text: str = "") -> None:
    """Send messages to queue 0 that no client of rocketpy would send."""
    async with await RawClient.open(place.namesrv) as names:
        route = await names.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
    (broker, *_) = TopicRouteData.decode(route.body).broker_datas
    header = SendMessageRequestHeaderV2(
        producer_group="other_language",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=0,
        properties=text,
    )
    async with await RawClient.open(broker.broker_addrs[0]) as client:
        assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, body)).code == 0


async def mixed(place: Place, stem: str, bad: dict[bytes, int] | None = None) -> str:
    """A new topic of one queue: three good messages, the bad ones with the key ``bad``, three good ones."""
    topic = await filled(place, stem, *GOOD[:3], queues=1)
    for number, (body, sys_flag) in enumerate((BAD if bad is None else bad).items()):
        await raw_send(place, topic, body, sys_flag, f"KEYS\x01bad\x02UNIQ_KEY\x01BAD{number}\x02")
    async with place.producer() as producer:
        (queue,) = await producer.fetch_publish_message_queues(topic)
        for body in GOOD[3:]:
            await raw_send(place, topic, body)
    assert queue.queue_id == 0
    return topic


async def dead_letters(place: Place, name: str, count: int) -> None:
    """Wait until a group has this many dead letters."""
    async with AdminClient(place.namesrv) as admin:
        (broker, *_) = await admin.fetch_publish_message_queues("TBW102")
        queue = MessageQueue(f"%DLQ%{name}", broker.broker_name, 0)

        async def enough() -> bool | None:
            with contextlib.suppress(RocketError):  # the topic is made with the first of them
                return await admin.max_offset(queue) >= count or None
            return None

        await eventually(enough, 60)
        assert await admin.max_offset(queue) == count


def reports(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    """The errors in the log about messages of a topic."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.ERROR and f"topic {topic}," in record.getMessage()
    ]


async def done_with(consumer: PushConsumer, topic: str, count: int) -> None:
    """Wait until a group has passed this many messages of a topic."""
    await until(lambda: sum(at for queue, at in consumer.progress().items() if queue.topic == topic) == count)


@pytest.mark.parametrize("threads", [False, True])
async def test_push(place: Place, caplog: pytest.LogCaptureFixture, threads: bool) -> None:
    """One message that cannot be decoded would stop its queue for good, in silence."""
    topic, name = await mixed(place, "bad_push"), group("bad_push")
    seen = Seen()
    handled: list[bytes] = []
    handler: Any = (lambda one: handled.append(one.body)) if threads else seen
    async with pushing(place, topic, handler, name=name, max_reconsume_times=1) as consumer:
        await done_with(consumer, topic, 9)
        await dead_letters(place, name, 3)
        health = consumer.health()
    assert sorted(handled if threads else seen.bodies) == GOOD
    assert (health.ok, health.undecodable) == (True, 6)  # each came twice
    found = reports(caplog, topic)
    assert len(found) == 6
    assert "message BAD0 of topic" in found[0]
    assert "offset 3 cannot be decoded: 16 bytes are not a zlib stream" in found[0]
    assert "inflate to more than the 4194304 allowed" in found[1]
    assert "unknown compression type" in found[2]


async def test_push_in_order(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """An ordered queue would wait forever for a message that cannot be decoded."""
    topic, name = await mixed(place, "bad_order"), group("bad_order")
    seen = Seen()
    async with pushing(place, topic, seen, name=name, orderly=True, suspend_ms=30_000) as consumer:
        await seen.until(GOOD[5])
        await dead_letters(place, name, 3)
        await done_with(consumer, topic, 9)
        assert (consumer.health().ok, consumer.health().undecodable) == (True, 3)
    assert seen.bodies == GOOD
    assert len(reports(caplog, topic)) == 3


@pytest.mark.parametrize("orderly", [False, True])
async def test_push_to_everyone(
    place: Place, caplog: pytest.LogCaptureFixture, tmp_path: Path, orderly: bool
) -> None:  # fmt: skip
    """A broadcasting member would keep such a message in progress: it cannot send it back."""
    topic, seen = await mixed(place, "bad_all"), Seen()
    how: dict[str, Any] = {
        "model": MessageModel.BROADCASTING,
        "orderly": orderly,
        "offset_directory": tmp_path,
    }
    async with pushing(place, topic, seen, **how) as consumer:
        await seen.until(*GOOD)
        await done_with(consumer, topic, 9)
        assert consumer.health().undecodable == 3
    assert sorted(seen.bodies) == GOOD
    assert len(reports(caplog, topic)) == 3


async def test_poll(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A poll would return nothing, without the reason."""
    topic = await mixed(place, "bad_poll")
    async with polling(place) as consumer:
        consumer.subscribe(topic)
        found = await polled_messages(consumer, 9)
        assert (consumer.health().ok, consumer.health().undecodable) == (True, 3)
    check_all(found)
    assert len(reports(caplog, topic)) == 3


async def test_pull(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A pull would raise, and no later one get past the message."""
    topic = await mixed(place, "bad_pull")
    events: list[ReceiveEvent] = []

    class Listener:
        def received(self, event: ReceiveEvent) -> None:
            events.append(event)

    async with PullConsumer(group("bad_pull"), place.namesrv, listeners=[Listener()]) as consumer:
        (queue,) = await consumer.fetch_queues(topic)
        found: list[MessageExt] = []
        while len(found) < 9:
            found += (await consumer.pull(queue, len(found))).messages
        assert consumer.health().undecodable == 3
    check_all(found)
    assert len(reports(caplog, topic)) == 3
    delivered = [one for event in events if not isinstance(event.end, BaseException) for one in event.end]
    assert [one.decode_error is not None for one in delivered] == [False] * 3 + [True] * 3 + [False] * 3


async def test_look_ups(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The reason why a message cannot be decoded would be unknown."""
    topic = await mixed(place, "bad_look")
    async with AdminClient(place.namesrv) as admin:

        async def indexed() -> list[MessageExt] | None:
            result = await admin.query_message(topic, "bad")
            return result.messages if len(result.messages) == 3 else None

        found = await eventually(indexed, 60)
        assert {one.body: one.decode_error is not None for one in found} == dict.fromkeys(BAD, True)
        for one in found:
            alone = await admin.view_message(one.offset_message_id)
            assert (alone.body, str(alone.decode_error)) == (one.body, str(one.decode_error))
    assert reports(caplog, topic)


async def test_a_response_is_bounded(place: Place) -> None:
    """A frame of 64 KB could take all of a consumer's memory."""
    four = zlib.compress(bytes(4 << 20))
    topic = await filled(place, "bombs", queues=1)
    for _ in range(16):
        await raw_send(place, topic, four, 0x1)
    limit = ConsumerConfig(max_body_bytes=9 << 20)
    async with PullConsumer(group("bombs"), place.namesrv, config=limit) as consumer:
        (queue,) = await consumer.fetch_queues(topic)
        offset, sizes = 0, []
        while offset < 16:
            result = await consumer.pull(queue, offset)
            sizes.append(sum(len(one.body) for one in result.messages) >> 20)
            assert [one.decode_error for one in result.messages] == [None] * len(result.messages)
            offset = result.next_offset
    assert sum(sizes) == 64
    assert max(sizes) <= 8
    held: list[int] = []

    async def handle(_one: MessageExt) -> None:
        held.append(consumer_held(push, topic))

    async with pushing(place, topic, handle, queue_bytes_max=9 << 20) as push:
        await until(lambda: len(held) == 16)
    assert max(held) <= 9 + 4 + 1


@pytest.mark.parametrize(("at", "value"), [(88, b"W"), (84, b"\0\0\0\xff")], ids=["body", "length of body"])
async def test_damage(
    place: Place, store: Path, caplog: pytest.LogCaptureFixture, at: int, value: bytes
) -> None:
    """A handler would get a damaged body: a broker that stores a copy computes a new CRC for it."""
    topic, name = await mixed(place, "damage", {b"will be damaged": 0}), group("damage")
    async with PullConsumer(group("damage"), place.namesrv) as reader:
        (queue,) = await reader.fetch_queues(topic)
        (message,) = (await reader.pull(queue, 3, 1)).messages
        damage(store, message.physical_offset + at, value)
        (damaged,) = (await reader.pull(queue, 3, 1)).messages
        assert type(damaged.decode_error) is RecordCorrupt
        assert damaged.body.startswith(b"Will be damaged" if at == 88 else b"will be damaged")
        assert (damaged.queue_offset, damaged.physical_offset) == (3, message.physical_offset)
    seen = Seen()
    async with pushing(place, topic, seen, name=name) as consumer:
        await done_with(consumer, topic, 7)
        await dead_letters(place, name, 1)
    assert sorted(seen.bodies) == GOOD
    if at == 88:  # the broker has hidden the damage: that is why there is no retry
        async with AdminClient(place.namesrv) as admin:

            async def indexed() -> MessageExt | None:
                return next(iter((await admin.query_message(f"%DLQ%{name}", "bad")).messages), None)

            dead = await eventually(indexed, 60)
            assert (dead.body, dead.decode_error) == (b"Will be damaged", None)
    assert f"cannot be decoded: record at {message.physical_offset}: " in reports(caplog, topic)[-1]


def damage(store: Path, offset: int, value: bytes) -> None:
    """Overwrite bytes of the commit log of a running broker."""
    files = sorted((store / "commitlog").iterdir())
    file = next(file for file in reversed(files) if int(file.name) <= offset)
    with file.open("r+b") as opened:
        opened.seek(offset - int(file.name))
        opened.write(value)


def consumer_held(consumer: PushConsumer, topic: str) -> int:
    """MiB of bodies that it holds of a topic."""
    pullers = consumer.member.pullers
    return sum(puller.process_queue.size for queue, puller in pullers.items() if queue.topic == topic) >> 20


async def polled_messages(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """Poll until there are this many messages."""
    found: list[MessageExt] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            found += await consumer.poll()
    return found


def check_all(found: Sequence[MessageExt]) -> None:
    """The messages of a `mixed` topic, in order, the bad ones as they are stored."""
    assert [one.body for one in found] == [*GOOD[:3], *BAD, *GOOD[3:]]
    errors = [one.decode_error for one in found]
    assert [error is None for error in errors] == [True] * 3 + [False] * 3 + [True] * 3
    assert all(isinstance(error, RemoteProtocolError) for error in errors[3:6])


CASES = {name: case for name, case in list(vars().items()) if name.startswith("test_")}
