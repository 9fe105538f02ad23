"""admin.messages: stored messages by id, key, offset and time, and what groups did with them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    Later,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
)
from rocketpy.admin import MessageTrack, TrackState
from rocketpy.admin.reader import OffsetRange
from rocketpy.errors import (
    BrokerError,
    BrokersFailed,
    ClientClosed,
    MessageInvalid,
    RouteNotFound,
    TransportError,
    UsageError,
)
from rocketpy.protocol.codes import VERSION_5_1_1, RequestCode, ResponseCode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.store import MessageInner
from tests.integration.broker.test_broker import send_header
from tests.integration.client.admin.admin_place import missing_broker
from tests.integration.consumer.test_dead_letters import dead
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS, Seen, committed, consuming
from tests.waiting import LIMIT_S, until


@pytest.fixture
async def two() -> AsyncIterator[EmbeddedCluster]:
    """Two brokers with topic T, of two queues on each."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 2)
        yield cluster


async def sent(
    cluster: EmbeddedCluster, *messages: Message, queue: MessageQueue | None = None, namespace: str = ""
) -> list[SendResult]:
    """Send messages one by one to the queues in turn, or all to `queue`."""
    config = ProducerConfig(batching=False)
    client = ClientConfig(namespace=namespace)
    async with Producer("p", cluster.namesrv_address, config=config, client=client) as producer:
        if namespace:
            await producer.create_topic("T", 2)
        return [await producer.send(message, queue=queue) for message in messages]


async def indexed(cluster: EmbeddedCluster) -> None:
    """Wait until the index has all messages."""
    await until(lambda: all(broker.store.dispatch() == 0 for broker in cluster.brokers))


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_is_found_in_every_way(two: EmbeddedCluster, namespace: str) -> None:
    """An operator would get another message, or that of another tenant, or none."""
    messages = [Message("T", b"%d" % n, tags="t", keys=[f"k{n}", "all"]) for n in range(8)]
    results = await sent(two, *messages, namespace=namespace)
    await indexed(two)
    assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
    async with AdminClient(two.namesrv_address, client=ClientConfig(namespace=namespace)) as admin:
        for n, result in enumerate(results):
            assert result.offset_message_id is not None
            found = [
                await admin.messages.by_id(result.offset_message_id),
                await admin.messages.by_unique_id("T", result.message_id),
                *(await admin.messages.by_key("T", f"k{n}")).messages,
                await admin.messages.by_offset(result.queue, result.queue_offset),
            ]
            assert [message.body for message in found] == [b"%d" % n] * 4
            assert {message.topic for message in found} == {"T"}
            assert {message.queue_offset for message in found} == {result.queue_offset}
            assert {message.queue for message in found[1:]} == {result.queue}
        assert len((await admin.messages.by_key("T", "all")).messages) == 8
        assert (await admin.messages.by_key("T", "all", end_ms=1)).messages == []
        with pytest.raises(BrokerError, match="no message of topic T"):
            await admin.messages.by_unique_id("T", results[0].message_id[:-1] + "F")


WIDE_KEYS = ("tab\there", "no\u00a0break", "\u3000wide\u3000", "\u2003em", "line\u2028end", "\x1fend\x1f")
"""Keys with characters that are whitespace for Python, and not for RocketMQ."""


async def test_a_look_up_that_finds_nothing_says_why(cluster: EmbeddedCluster) -> None:
    """A number as a key, or several keys, would find nothing, although messages have them."""
    await sent(cluster, Message("T", b"x", keys=["5", "a", "b"]))
    await indexed(cluster)
    received: Any = "an id instead of a message"
    async with AdminClient(cluster.namesrv_address) as admin:
        wrong: list[tuple[Awaitable[object], str]] = [
            (admin.messages.by_key("T", cast(Any, 5)), "the key is 5; it must be a string"),
            (admin.messages.by_key("T", "a b"), "'a b' contains a space"),
            (admin.query_message("T", ""), "the key is ''"),
            (admin.messages.by_key("T", "a", 0), "max_count is 0"),
            (admin.messages.by_key("T", "a", begin_ms=cast(Any, datetime.now(UTC))), "begin_ms is datetime"),
            (anext(admin.messages.by_time("T", end_ms=-1)), "end_ms is -1"),
            (admin.messages.by_id(cast(Any, None)), "'None' is not a message id"),
            (admin.messages.by_unique_id("T", cast(Any, None)), "'None' is not a unique id"),
            (admin.messages.resend(received), "a str is not a received message"),
            (admin.messages.deliver(received, "g", "c"), "a str is not a received message"),
            (admin.messages.consumers_of(received), "a str is not a received message"),
            (admin.dead_letters.resend(received), "a str is not a received message"),
            (admin.groups.reset("g", "T", cast(Any, 5)), "to is 5; write ResetTo.time"),
            (admin.topics.create("U", perm=cast(Any, "r")), "perm is 'r'; write Permission.READ"),
        ]
        for call, words in wrong:
            with pytest.raises(UsageError, match=words):
                await call
        now_ms = time.time() * 1000  # with a fraction
        assert len((await admin.messages.by_key("T", "5", end_ms=cast(Any, now_ms + 60_000))).messages) == 1


async def test_more_messages_with_a_key_than_a_response_has(two: EmbeddedCluster) -> None:
    """A caller who asks for 1,000 messages would take the newest 64 of each broker for all of them."""
    async with Producer("p", two.namesrv_address) as producer, AdminClient(two.namesrv_address) as admin:
        await admin.topics.create("T", 1)
        queue = MessageQueue("T", "broker-a", 0)
        for begin in range(0, 200, 50):  # many have the same store time
            batch = [Message("T", b"%d" % number, keys="k") for number in range(begin, begin + 50)]
            await producer.send_batch(batch, queue=queue)
            await asyncio.sleep(0.002)
        found = await admin.messages.by_key("T", "k", 1000)
        assert sorted(int(message.body) for message in found.messages) == list(range(200))
        assert len((await admin.messages.by_key("T", "k", 150)).messages) == 150
        newest = (await admin.messages.by_key("T", "k", 32)).messages
        assert min(int(message.body) for message in newest) >= 150


async def test_keys_with_the_same_hash_hide_no_message(cluster: EmbeddedCluster) -> None:
    """A query reads a limited number of messages; a client could fill it with those of another key."""
    queue = MessageQueue("T", "broker-a", 0)
    await sent(cluster, Message("T", b"wanted", keys="Aa"), queue=queue)
    await sent(cluster, *[Message("T", b"other", keys="BB")] * 70, queue=queue)  # the same hash in Java
    await indexed(cluster)
    async with AdminClient(cluster.namesrv_address) as admin:
        found = await admin.messages.by_key("T", "Aa", 1)
        assert [message.body for message in found.messages] == [b"wanted"]
        assert len((await admin.messages.by_key("T", "BB", 200)).messages) == 70


async def reported(admin: AdminClient, key: str) -> list[str]:
    """Wait for message traces of a key; return the ids of their messages."""
    async with asyncio.timeout(LIMIT_S):
        found: list[str] = []
        while not found:
            await asyncio.sleep(0.01)
            found = [one.message_id for one in (await admin.messages.traces(key)).messages]
        return found


async def test_only_spaces_separate_keys(two: EmbeddedCluster) -> None:
    """A key with other whitespace would come back as two, and a look-up would drop what the broker found."""
    traced = ProducerConfig(message_trace=MessageTraceConfig(linger_ms=1))
    async with (
        AdminClient(two.namesrv_address) as admin,
        Producer("p", two.namesrv_address, config=traced) as producer,
        PullConsumer("readers", two.namesrv_address) as reader,
    ):
        result = await producer.send(Message("T", b"x", keys=WIDE_KEYS))
        await indexed(two)
        assert (await reader.pull(result.queue, 0)).messages[0].keys == WIDE_KEYS
        for key in WIDE_KEYS:
            assert [one.keys for one in (await admin.messages.by_key("T", key)).messages] == [WIDE_KEYS]
            assert await reported(admin, key) == [result.message_id]
        assert (await admin.messages.by_key("T", "tab")).messages == []


async def test_only_javas_whitespace_is_trimmed_from_tags(two: EmbeddedCluster) -> None:
    """A consumer would never get messages whose tag begins or ends with such a character."""
    tags = ["\u3000wide\u3000", "\u00a0no break", "plain"]
    await sent(two, *(Message("T", tag.encode(), tags=tag) for tag in tags))
    seen = Seen()
    async with consuming(two, seen, " \t||".join(tags)):
        await seen.until(3)
    assert {message.tags for message in seen.messages} == set(tags)


@pytest.mark.parametrize(
    ("sends_in", "reads_in"),
    [("Etc/GMT-14", "Etc/GMT+12"), ("Etc/GMT+12", "Etc/GMT-14"), ("UTC", "America/New_York")],
)
async def test_a_unique_id_is_found_from_another_time_zone(
    two: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, sends_in: str, reads_in: str
) -> None:
    """QUIRKS 26: the time in an id is local, so it would not be found from another time zone."""
    try:
        monkeypatch.setenv("TZ", sends_in)
        time.tzset()
        (result,) = await sent(two, Message("T", b"x"))
        await indexed(two)
        monkeypatch.setenv("TZ", reads_in)
        time.tzset()
        async with AdminClient(two.namesrv_address) as admin:
            assert (await admin.messages.by_unique_id("T", result.message_id)).body == b"x"
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_a_unique_id_is_found_at_a_broker_whose_clock_is_wrong(
    two: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message would not be found that was stored before its id was made, by the clock of its broker."""
    day_ms = 86_400_000
    for broker in two.brokers:
        monkeypatch.setattr(broker.store.commit_log, "_clock", lambda: time.time_ns() // 1_000_000 - day_ms)
    (result,) = await sent(two, Message("T", b"x"))
    await indexed(two)
    async with AdminClient(two.namesrv_address) as admin:
        found = await admin.messages.by_unique_id("T", result.message_id)
        assert found.body == b"x"
        assert found.store_timestamp < found.born_timestamp - day_ms // 2


async def test_a_missing_message_is_an_error(two: EmbeddedCluster) -> None:
    """An operator would mistake a wrong id, or a broker that is offline, for a lost message."""
    (result,) = await sent(two, Message("T", b"x", keys=["k"]))
    async with AdminClient(two.namesrv_address) as admin:
        for malformed in ("", "xyz", "7F00", "Z" * 32):
            with pytest.raises(MessageInvalid):
                await admin.messages.by_id(malformed)
            with pytest.raises(MessageInvalid):
                await admin.messages.by_unique_id("T", malformed)
        with pytest.raises(TransportError, match=r"127\.0\.0\.1:1\b"):
            await admin.messages.by_id("7F000001" + "00000001" + "0" * 16)
        with pytest.raises(BrokerError, match="has no message at offset 1; its offsets: 0 to 0"):
            await admin.messages.by_offset(result.queue, 1)
        empty = MessageQueue("T", result.queue.broker_name, 1 - result.queue.queue_id)
        with pytest.raises(BrokerError, match="its offsets: none") as missing:
            await admin.messages.by_offset(empty, 0)
        assert missing.value.code == ResponseCode.QUERY_NOT_FOUND
        with pytest.raises(MessageInvalid, match="negative"):
            await admin.messages.by_offset(result.queue, -1)
        with pytest.raises(RouteNotFound):
            await admin.messages.by_offset(MessageQueue("T", "broker-z", 0), 0)
        for find in (admin.messages.by_key("Gone", "k"), all_of(admin, "Gone")):
            with pytest.raises(RouteNotFound):
                await find
    with pytest.raises(ClientClosed):
        await admin.messages.by_offset(result.queue, 0)


async def test_an_expired_queue_has_no_offsets(two: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of a queue whose messages have all expired would be from 5 to 4."""
    queue = MessageQueue("T", "broker-a", 0)
    async with AdminClient(two.namesrv_address) as admin:

        async def pull(*_: object) -> PullResult:
            return PullResult(PullStatus.NO_NEW_MSG, 5, 5, 5, [])

        monkeypatch.setattr(admin.messages._reader, "pull", pull)
        with pytest.raises(BrokerError, match="has no message at offset 3; its offsets: none"):
            await admin.messages.by_offset(queue, 3)


async def test_an_expired_offset_names_the_range() -> None:
    """An operator who asks for an expired message would get another one in its place."""
    settings = SETTINGS | {"fileReservedTime": "0", "deleteWhen": ";".join(f"{n:02}" for n in range(24))}
    async with (
        EmbeddedCluster(settings=settings) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("p", cluster.namesrv_address) as producer,
    ):
        await producer.create_topic("T", 1)
        queue = MessageQueue("T", "broker-a", 0)
        for _ in range(12):
            await producer.send(Message("T", random.Random(1).randbytes(200_000)))
        async with asyncio.timeout(LIMIT_S):
            while not await cluster.brokers[0]._driver.clean():  # noqa: ASYNC110 - the checkpoint has no event
                await asyncio.sleep(0.05)
        low = await admin.min_offset(queue)
        assert 0 < low < 12
        with pytest.raises(BrokerError, match=f"at offset 0; its offsets: {low} to 11"):
            await admin.messages.by_offset(queue, 0)
        assert (await admin.messages.by_offset(queue, low)).queue_offset == low
        assert [message.queue_offset for message in await all_of(admin)] == list(range(low, 12))


async def all_of(
    admin: AdminClient, topic: str = "T", begin_ms: int = 0, end_ms: int = 2**63 - 1
) -> list[MessageExt]:
    return [message async for message in admin.messages.by_time(topic, begin_ms, end_ms)]


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_messages_of_a_time_are_read(two: EmbeddedCluster, namespace: str) -> None:
    """Messages at the limits, or one of several with the same store time, would be missing."""
    times: list[tuple[int, int]] = []
    async with AdminClient(two.namesrv_address, client=ClientConfig(namespace=namespace)) as admin:
        for part in range(3):
            results = await sent(two, *(Message("T", b"%d" % part) for _ in range(50)), namespace=namespace)
            stored = [
                (await admin.messages.by_offset(result.queue, result.queue_offset)).store_timestamp
                for result in results
            ]
            times.append((min(stored), max(stored)))
            await until(lambda: time.time_ns() // 1_000_000 > times[-1][1])
        assert len(await all_of(admin)) == 150
        for begin, end, parts in (
            (times[1][0], times[1][1], {b"1"}),
            (times[1][0], times[2][1], {b"1", b"2"}),
            (0, times[0][1], {b"0"}),
            (times[0][1] + 1, times[1][0] - 1, set()),
            (times[2][1] + 1, 2**63 - 1, set()),
        ):
            found = await all_of(admin, "T", begin, end)
            assert {message.body for message in found} == parts
            assert len(found) == 50 * len(parts)
        found = await all_of(admin)
        assert {message.topic for message in found} == {"T"}
        places = [(message.queue, message.queue_offset) for message in found]
        assert places == sorted(places)


async def test_messages_of_a_queue_are_read(two: EmbeddedCluster) -> None:
    """An operator would read another part of a queue than the wanted one."""
    queue = MessageQueue("T", "broker-b", 1)
    await sent(two, *(Message("T", b"%d" % n) for n in range(40)), queue=queue)
    async with AdminClient(two.namesrv_address) as admin:
        for begin, end, wanted in (
            (0, None, range(40)),
            (3, 36, range(3, 36)),
            (39, 99, [39]),
            (40, None, []),
        ):
            found = [message async for message in admin.messages.of_queue(queue, begin, end)]
            assert [message.queue_offset for message in found] == list(wanted)


async def test_a_broker_that_is_lost_in_a_search_is_noticed(two: EmbeddedCluster) -> None:
    """An operator would take a part of the messages for all of them."""
    await sent(two, *(Message("T", b"x", keys=["k"]) for _ in range(8)))
    await indexed(two)
    async with AdminClient(two.namesrv_address) as admin:
        assert len((await admin.messages.by_key("T", "k")).messages) == 8
        search = admin.messages.by_time("T")
        assert (await anext(search)).queue.broker_name == "broker-a"
        await two.brokers[1].close()
        with pytest.raises((TransportError, RouteNotFound)):
            [_ async for _ in search]
        with pytest.raises(BrokersFailed) as failure:
            await admin.messages.by_key("T", "k")
        assert set(failure.value.errors) == {"broker-b"}
        assert len((await admin.query_message("T", "k")).messages) == 4  # which logs it


async def test_undecodable_messages_are_shown() -> None:
    """An undecodable message would hide all later messages from an operator."""
    async with (
        EmbeddedCluster(settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        await RawClient.open(cluster.brokers[0].address) as client,
    ):
        unknown = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_TYPE_MASK
        for flag in (0, unknown, 0):
            header = send_header(sys_flag=flag)
            assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"raw")).code == 0
        found = await all_of(admin)
        assert [message.decode_error is None for message in found] == [True, False, True]
        assert {message.body for message in found} == {b"raw"}
        one = await admin.messages.by_offset(found[1].queue, found[1].queue_offset)
        assert one.decode_error is not None


async def test_groups_that_consumed_a_message(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """An operator would send a message again that a group has handled, or wait for one that it never gets."""
    queue = MessageQueue("T", "broker-a", 0)
    quick: dict[str, Any] = {"persist_interval_ms": 10, "suspend_timeout_ms": 50}
    (first,) = await sent(cluster, Message("T", b"first", tags="t"), queue=queue)
    everyone = Seen()
    async with consuming(cluster, everyone, group="left", **quick):
        await everyone.until(1)
    async with (
        AdminClient(cluster.namesrv_address) as admin,
        consuming(cluster, Seen(), group="all", name="1", **quick),
        consuming(cluster, Seen(), "other", group="filters", name="2", **quick),
        consuming(
            cluster, Seen(), group="broadcast", name="3", model=MessageModel.BROADCASTING,
            offset_directory=tmp_path,
        ),
    ):  # fmt: skip
        (second,) = await sent(cluster, Message("T", b"second", tags="t"), queue=queue)
        await until(lambda: committed(cluster, "all") == committed(cluster, "filters") == 2)
        message = await admin.messages.by_offset(second.queue, second.queue_offset)
        assert second.offset_message_id is not None
        for one in (message, await admin.messages.by_id(second.offset_message_id)):
            assert await admin.messages.consumers_of(one) == (
                MessageTrack("all", TrackState.CONSUMED, is_online=True),
                MessageTrack("broadcast", TrackState.UNKNOWN, is_online=True),
                MessageTrack("filters", TrackState.FILTERED, is_online=True),
                MessageTrack("left", TrackState.WAITING, is_online=False),
            )
        before = await admin.messages.by_offset(first.queue, first.queue_offset)
        states = {track.group: track.state for track in await admin.messages.consumers_of(before)}
        assert states["left"] is TrackState.CONSUMED
        with pytest.raises(RouteNotFound, match="broker-z"):
            await admin.messages.consumers_of(before.with_queue(MessageQueue("T", "broker-z", 0)))


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_is_sent_to_one_consumer(cluster: EmbeddedCluster, namespace: str) -> None:
    """A message would go to another consumer, or be handled twice, or its result be lost."""
    (result,) = await sent(cluster, Message("T", b"again"), namespace=namespace)
    outcomes = [None, Later(), ValueError("cannot handle it")]

    def says(_: MessageExt) -> Later | None:
        outcome = outcomes[min(len(seen.messages) - 2, 2)] if len(seen.messages) > 1 else None
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    seen = Seen(says)
    async with (
        AdminClient(cluster.namesrv_address, client=ClientConfig(namespace=namespace)) as admin,
        consuming(cluster, seen, name="1", namespace=namespace) as consumer,
    ):
        await seen.until(1)
        client_id = consumer.member.client.client_id
        message = await admin.messages.by_offset(result.queue, result.queue_offset)
        found = [await admin.messages.deliver(message, "g", client_id) for _ in range(3)]
        assert [one.status for one in found] == ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"]
        assert "cannot handle it" in (found[2].remark or "")
        assert seen.bodies == {b"again": 4}
        with pytest.raises(BrokerError, match="not online"):
            await admin.messages.deliver(message, "g", "nobody@1")
        with pytest.raises(BrokerError, match="not online"):
            await admin.messages.deliver(message, "others", client_id)


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_is_sent_again_to_a_topic(two: EmbeddedCluster, namespace: str) -> None:
    """A copy would lose a part of the message, be delayed once more, or go to another queue."""
    client = ClientConfig(namespace=namespace)
    message = Message(
        "T", b"late " * 100, tags="t", keys=["k"], properties={"shop": "x"}, flag=7, delay_level=2
    )
    await sent(two, message, namespace=namespace)
    async with AdminClient(two.namesrv_address, client=client) as admin:
        async with asyncio.timeout(LIMIT_S):
            while not (found := await all_of(admin)):  # it is delayed
                pass
        (first,) = found
        result = await admin.messages.resend(first)
        assert (result.status, result.queue) == (SendStatus.SEND_OK, first.queue)
        _, copy = await all_of(admin)
        for name in ("message_id", "body", "tags", "keys", "flag", "born_timestamp", "reconsume_times"):
            assert getattr(copy, name) == getattr(first, name), name
        assert (copy.properties["shop"], copy.delay_level) == ("x", 0)
        await admin.topics.create("Other", 2)
        moved = await admin.messages.resend(copy, topic="Other")
        assert moved.queue == MessageQueue("Other", first.queue.broker_name, first.queue.queue_id)
        (other,) = await all_of(admin, "Other")
        assert (other.topic, other.message_id, other.body) == ("Other", first.message_id, first.body)
        by_id = await admin.messages.by_id(moved.offset_message_id)
        assert (await admin.messages.resend(by_id)).queue == moved.queue
        with pytest.raises(RouteNotFound):
            await admin.messages.resend(first, topic="Missing")
        with pytest.raises(UsageError):
            await admin.messages.resend(first, topic="T", group="g")


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_is_sent_again_to_a_group(cluster: EmbeddedCluster, namespace: str) -> None:
    """Other groups would handle it twice, or a typing error would create a group."""
    (result,) = await sent(cluster, Message("T", b"again", tags="t"), namespace=namespace)
    one, other = Seen(), Seen()
    async with (
        AdminClient(cluster.namesrv_address, client=ClientConfig(namespace=namespace)) as admin,
        consuming(cluster, one, name="1", namespace=namespace),
        consuming(cluster, other, group="other", name="2", namespace=namespace),
    ):
        await one.until(1)
        await other.until(1)
        message = await admin.messages.by_offset(result.queue, result.queue_offset)
        await admin.messages.resend(message, group="g")
        await until(lambda: len(one.messages) == 2)
        again = one.messages[1]
        assert (again.topic, again.body, again.tags, again.message_id) == (
            "T",
            b"again",
            "t",
            result.message_id,
        )
        assert again.reconsume_times == 0
        with pytest.raises(BrokerError, match="there is no group gg"):
            await admin.messages.resend(message, group="gg")
        assert "gg" not in [group.name for group in await admin.groups.list()]
        assert len(other.messages) == 1


async def test_a_dead_letter_is_sent_again_to_every_group(cluster: EmbeddedCluster) -> None:
    """The copy would go to the topic of dead letters, or still count the retries of one group."""
    (message,) = await dead(cluster, 1)
    async with AdminClient(cluster.namesrv_address) as admin:
        (letter,) = (await admin.dead_letters.fetch("g")).messages
        assert (await admin.messages.resend(letter)).queue.topic == "T"
        copy = [one async for one in admin.messages.by_time("T")][-1]
        assert (copy.body, copy.keys) == (message.body, message.keys)
        assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID"} & set(copy.properties)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_timer_message_is_sent_again_without_its_timer(
    cluster: EmbeddedCluster, group: str | None
) -> None:
    """An operator could not send a message again that a broker of RocketMQ 4.6 had stored with a timer."""
    store = cluster.brokers[0].store
    store.append(MessageInner("T", 0, b"later", b"TIMER_DELIVER_MS\x011\x02"))
    store.write_out()
    store.dispatch()
    seen = Seen()
    async with AdminClient(cluster.namesrv_address) as admin, consuming(cluster, seen):
        await seen.until(1)
        await admin.messages.resend(seen.messages[0], group=group)
        await until(lambda: len(seen.messages) == 2)
        again = seen.messages[1]
        assert (again.topic, again.body) == ("T", b"later")
        assert "TIMER_DELIVER_MS" not in again.properties


class VersionOf:
    """An RPC hook that gives responses the version of another broker, and counts requests by code."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.asked: Counter[int] = Counter()

    def before_request(self, address: str, request: Command) -> None:
        """Count it."""
        self.asked[request.code] += 1

    def after_response(self, address: str, request: Command, response: Command) -> None:
        response.version = self.version


@pytest.mark.parametrize("version", [VERSION_5_1_1 - 1, VERSION_5_1_1, VERSION_5_1_1 + 50])
async def test_where_a_newer_broker_stored_a_copy_is_checked(cluster: EmbeddedCluster, version: int) -> None:
    """Brokers from 5.1.1 on may store a copy for a group as a dead letter, and respond as if they did not."""
    (result,) = await sent(cluster, Message("T", b"x"))
    hook = VersionOf(version)
    config = ClientConfig(namesrv=cluster.namesrv_address, rpc_hooks=(hook,))
    async with AdminClient(client=config) as admin:
        await admin.groups.create("g")
        message = await admin.messages.by_offset(result.queue, result.queue_offset)
        hook.asked.clear()
        await admin.messages.resend(message, group="g")
    assert hook.asked[RequestCode.VIEW_MESSAGE_BY_ID] == (version >= VERSION_5_1_1)


async def test_messages_of_a_time_among_others(cluster: EmbeddedCluster) -> None:
    """A broker of RocketMQ before 5.1.1 may begin with earlier messages: none would be found."""
    queue = MessageQueue("T", "broker-a", 0)
    for n in range(5):
        await sent(cluster, Message("T", b"%d" % n), queue=queue)
        sent_ms = time.time_ns() // 1_000_000
        await until(lambda sent_ms=sent_ms: time.time_ns() // 1_000_000 > sent_ms)  # type: ignore[misc]
    async with AdminClient(cluster.namesrv_address) as admin:
        reader = admin.messages._reader
        begin, end = [(await admin.messages.by_offset(queue, n)).store_timestamp for n in (1, 3)]
        for exactly in (True, False):
            found = reader.messages(OffsetRange(queue, 0, 5, exactly), begin, end)
            assert [message.body async for message in found] == [b"1", b"2", b"3"]


async def test_traces_without_a_broker_are_not_complete(cluster: EmbeddedCluster) -> None:
    """An operator would read that nobody consumed a message, although a broker was not asked."""
    await sent(cluster, Message("T", b"x", keys=["k"]))
    async with missing_broker(cluster, "T"), AdminClient(cluster.namesrv_address) as admin:
        with pytest.raises(BrokersFailed, match="broker-z"):
            await admin.messages.traces("k", topic="T")
