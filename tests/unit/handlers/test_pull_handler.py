"""PullHandler: responses, held pulls, filters, and pulls that are rejected."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import SubscriptionData, SubscriptionGroupConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.java import tags_code
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.filter.sql92 import Expression
from rocketpy_broker.store import GetMessageResult
from rocketpy_broker.store.busy import Reason
from tests.turns import Turns
from tests.unit.handlers.broker_parts import (
    BrokerParts,
    PartsClient,
    broker,
    broker_of_two,
    pull_header,
    served,
    topic,
)
from tests.waiting import until

LONG_MS = 15_000
SQL92 = ConsumeConfig(property_filter=True)


def bodies(response: Command) -> list[bytes]:
    """Return the bodies of the messages in a response."""
    return [record.body for record in decode_all(response.body)]


def next_offset(response: Command) -> int:
    """Return where the consumer continues."""
    return int(response.ext_fields()["nextBeginOffset"])


async def hold(
    parts: BrokerParts, client: PartsClient, offset: int, **header: Any
) -> asyncio.Future[Command]:
    """Send a pull, wait until it is held, and return its future response."""
    count = len(parts.holds)
    pulling = asyncio.ensure_future(client.pull(offset, wait_ms=LONG_MS, **header))
    await until(lambda: len(parts.holds) > count)
    return pulling


# -- responses ----------------------------------------------------------------------------------


async def test_a_slave_without_a_new_message_lets_the_consumer_wait(tmp_path: Path) -> None:
    """A consumer that reads from a slave would ask again at once, thousands of times a second."""
    async with broker(tmp_path, "T") as (parts, client):
        await client.send()
        parts.store.reject(Reason.SLAVE, StoreError("a slave"))
        response = await client.pull(1)
    assert (response.code, next_offset(response)) == (ResponseCode.PULL_NOT_FOUND, 1)


@pytest.mark.parametrize(("slave_read", "broker_id"), [(False, "0"), (True, "3")])
async def test_the_group_decides_which_broker_is_read(
    tmp_path: Path, slave_read: bool, broker_id: str
) -> None:
    """slaveReadEnable: consumers would read from a slave although its operator switched that off."""
    async with broker(tmp_path, "T", consume=ConsumeConfig(slave_read=slave_read)) as (parts, client):
        await parts.groups.update(SubscriptionGroupConfig(group_name="g", broker_id=3))
        response = await client.pull()
        assert response.ext_fields()["suggestWhichBrokerId"] == broker_id


# -- rejections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "header", "code", "remark"),
    [
        ({"permission": 2}, {}, ResponseCode.NO_PERMISSION, "the broker[broker-a]"),
        ({}, {"topic": "Missing"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Missing] not exist"),
        ({}, {"topic": "WriteOnly"}, ResponseCode.NO_PERMISSION, "the topic[WriteOnly]"),
        ({}, {"queue_id": 2}, ResponseCode.SYSTEM_ERROR, "queueId[2] is illegal"),
        ({}, {"queue_id": -1}, ResponseCode.SYSTEM_ERROR, "queueId[-1] is illegal"),
        ({}, {"consumer_group": "off"}, ResponseCode.NO_PERMISSION, "no permission, off"),
        (
            {"consume": ConsumeConfig(auto_create_group=False)},
            {"consumer_group": "unknown"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "[unknown] does not exist",
        ),
        ({}, {"sub": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "contains no tag"),
        ({}, {"sub": "a = 1", "kind": "SQL92"}, ResponseCode.SYSTEM_ERROR, "filter message by SQL92"),
        (
            {"consume": SQL92},
            {"sub": "a =", "kind": "SQL92"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed",
        ),
        ({}, {"sub": None}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
    ],
)
async def test_forbidden_pulls_are_rejected(
    tmp_path: Path, settings: dict[str, Any], header: dict[str, Any], code: int, remark: str
) -> None:
    """An operator could not stop a group or a topic, or a consumer would wait without knowing the reason."""
    parts = BrokerParts(tmp_path, **settings)
    parts.add_topics("T")
    parts.add_topics("WriteOnly", perm=2)
    async with served(parts) as (client,):
        await parts.groups.update(SubscriptionGroupConfig(group_name="off", consume_enable=False))
        response = await client.pull(**header)
        assert (response.code, remark in (response.remark or "")) == (code, True), response.remark


def subscription(text: str, version: int = 1, kind: str = "TAG", **more: Any) -> SubscriptionData:
    """Return a subscription to T, as a heartbeat has it."""
    codes = {tags_code(tag) for tag in text.split("||")} if text != "*" and kind == "TAG" else set()
    return SubscriptionData(
        topic="T", sub_string=text, sub_version=version, code_set=codes, expression_type=kind, **more
    )


async def test_a_push_consumer_is_filtered_by_its_last_heartbeat(tmp_path: Path) -> None:
    """QUIRKS 32, 35. A consumer would get messages of another tag, or lose those of a new one."""
    parts = BrokerParts(tmp_path, consume=SQL92)
    parts.add_topics("T", "Other")
    async with served(parts) as (client,):
        for tag in (b"a", b"b"):
            await client.send(tag, f"TAGS\x01{tag.decode()}\x02")
        await client.beat(subscriptions=(subscription("b", version=5),))
        assert bodies(await client.pull(sub=None, sub_version=5)) == [b"b"]
        assert bodies(await client.pull(sub=None, sub_version=6)) == [b"a", b"b"]
        newer = await client.pull(sub=None, sub_version=6, kind="SQL92")
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        other = await client.pull(sub=None, topic="Other")
        assert (other.code, "subscription not exist" in (other.remark or "")) == (
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            True,
        )
        await client.beat(subscriptions=(subscription("a =", version=7, kind="SQL92"),))
        wrong = await client.pull(sub=None, sub_version=7)
        assert wrong.code == ResponseCode.FILTER_DATA_NOT_EXIST
        await client.beat(subscriptions=(subscription("x" * 20_000, version=8),))
        wrong = await client.pull(sub=None, sub_version=8)
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        await client.beat(subscriptions=(subscription("*", version=9, class_filter_mode=True),))
        assert (await client.pull(sub=None, sub_version=10)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_an_expression_that_is_switched_off_later_is_rejected(tmp_path: Path) -> None:
    """enablePropertyFilter: consumers that are online would go on to use expressions."""
    async with broker(tmp_path, "T") as (_parts, client):
        await client.beat(subscriptions=(subscription("a = 1", kind="SQL92"),))
        response = await client.pull(sub=None, sub_version=1)
        assert (response.code, "by SQL92" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_the_filter_of_the_topic_applies_to_retries(tmp_path: Path) -> None:
    """filterSupportRetry: a member would get retries that its filter drops."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(filter_retries=True, property_filter=True))
    parts.add_topics("%RETRY%g")
    retries = SubscriptionData(topic="%RETRY%g", sub_string="*", sub_version=1)
    async with served(parts) as (client,):
        await client.beat(subscriptions=(subscription("n = 1", kind="SQL92"), retries))
        for number in (1, 2):
            text = f"n\x01{number}\x02RETRY_TOPIC\x01T\x02"
            await client.send(b"%d" % number, text, topic="%RETRY%g", max_reconsume_times=9)
        response = await client.pull(sub=None, topic="%RETRY%g", sub_version=1)
        assert bodies(response) == [b"1"]


# -- held pulls ---------------------------------------------------------------------------------


async def test_a_held_pull_ends_with_its_time(tmp_path: Path) -> None:
    """A consumer would get no response, and take the broker for dead."""
    async with broker(tmp_path, "T") as (parts, client):
        await client.send(b"first")
        pulling = await hold(parts, client, 1)
        parts.now_ms = LONG_MS - 1
        parts.pull.sweep()
        assert len(parts.holds) == 1
        parts.now_ms = LONG_MS
        parts.pull.sweep()
        response = await pulling
        assert (response.code, next_offset(response)) == (ResponseCode.PULL_NOT_FOUND, 1)


@pytest.mark.parametrize("wanted_ms", [200_000, 1000])
async def test_the_broker_limits_how_long_a_pull_is_held(tmp_path: Path, wanted_ms: int) -> None:
    """longPollingEnable=false, and consumers that ask for more than 2 minutes: pulls would pile up."""
    long = wanted_ms > 1000
    async with broker(tmp_path, "T", consume=ConsumeConfig(long_polling=long, short_polling_ms=500)) as (
        parts,
        client,
    ):
        await client.send()
        pulling = asyncio.ensure_future(client.pull(1, wait_ms=wanted_ms))
        await until(lambda: parts.holds)
        parts.now_ms = 120_000 if long else 500
        parts.pull.sweep()
        assert (await pulling).code == ResponseCode.PULL_NOT_FOUND


async def test_pulls_that_may_not_wait_get_a_response_at_once(tmp_path: Path) -> None:
    """A manual pull would block its caller, or a oneway pull would get a response."""
    async with broker(tmp_path, "T") as (parts, client):
        await client.send()
        assert (await client.pull(1)).code == ResponseCode.PULL_NOT_FOUND
        command = Command.request(RequestCode.PULL_MESSAGE, pull_header(1, wait_ms=LONG_MS))
        command.flag |= FLAG_ONEWAY
        client.channel.oneway(command)
        header = pull_header(1)
        header.sys_flag |= PullSysFlag.SUSPEND  # for 0 ms
        assert (await client.call(RequestCode.PULL_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND
        assert not parts.holds


async def test_a_held_pull_waits_for_a_matching_message(tmp_path: Path) -> None:
    """A consumer of a rare tag would pull after every message, or read filtered messages twice."""
    async with broker_of_two(tmp_path, "T") as (parts, consumer, producer):
        await producer.send()
        pulling = await hold(parts, consumer, 1, sub="rare")
        await producer.send(b"often", "TAGS\x01often\x02")
        (group,) = parts.holds.groups(("T", 0))
        assert group.offset == 2
        await producer.send(b"rare", "TAGS\x01rare\x02")
        response = await pulling
        assert (bodies(response), next_offset(response)) == ([b"rare"], 3)
        late = await hold(parts, consumer, 3, sub="rare")
        await producer.send(b"often", "TAGS\x01often\x02")
        parts.now_ms = LONG_MS
        parts.pull.sweep()
        response = await late
        assert (response.code, next_offset(response)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 4)


@pytest.mark.parametrize("ends_by", ["arrival", "time"])
async def test_a_held_pull_is_checked_again(tmp_path: Path, ends_by: str) -> None:
    """A consumer whose topic lost its read permission would get the messages that arrive while it waits."""
    async with broker_of_two(tmp_path, "T") as (parts, consumer, producer):
        await producer.send()
        pulling = await hold(parts, consumer, 1)
        await parts.topics.update(topic("T", perm=2))
        if ends_by == "arrival":
            await producer.send(b"secret")
        else:
            parts.now_ms = LONG_MS
            parts.pull.sweep()
        response = await pulling
        assert (response.code, response.body) == (ResponseCode.NO_PERMISSION, b"")


@pytest.mark.parametrize("ends_by", ["arrival", "time"])
@pytest.mark.parametrize("error", [StoreError("the disk is gone"), ValueError("a bug")])
async def test_a_held_pull_that_cannot_be_read_gets_a_response(
    tmp_path: Path, ends_by: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer would wait for its own timeout after the read of its held pull failed, and others too."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", "U")
    get_message = parts.store.get_message

    def fail(topic: str, *args: Any, **settings: Any) -> GetMessageResult:
        if topic == "T":
            raise error
        return get_message(topic, *args, **settings)

    async with served(parts, clients=3) as (consumer, other, producer):
        for name in ("T", "U"):
            await producer.send(topic=name)
        pulling = await hold(parts, consumer, 1)
        waiting = await hold(parts, other, 1, topic="U")
        monkeypatch.setattr(parts.store, "get_message", fail)
        if ends_by == "arrival":
            for name in ("T", "U"):
                await producer.send(topic=name)
        else:
            parts.now_ms = LONG_MS
            parts.pull.sweep()
        response = await pulling
        remark = str(error) if isinstance(error, StoreError) else "internal error; see the server's log"
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        wanted = ResponseCode.SUCCESS if ends_by == "arrival" else ResponseCode.PULL_NOT_FOUND
        assert (await waiting).code == wanted
        assert parts.store.failure is None


# -- slow filters -------------------------------------------------------------------------------


def slow_filters(parts: BrokerParts) -> None:
    """Let every reading of the clock, which follows each filtered message, take 0.2 ms."""
    readings = itertools.count()
    parts.pull.now_ms = parts.slices.now_ms = lambda: next(readings) / 5


async def send_many(client: PartsClient, count: int) -> None:
    """Send messages that the filter of the tests drops, and then one that it accepts."""
    texts = [b"x\x012\x02"] * count + [b"n\x011\x02"]
    body = encode_batch([(0, b"%d" % number, text) for number, text in enumerate(texts)])
    assert (await client.send(body, batch=True)).code == ResponseCode.SUCCESS


async def test_a_slow_filter_of_held_pulls_continues_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many held pulls with slow filters would block the broker each time that a message arrives."""
    parts = BrokerParts(tmp_path, consume=SQL92)
    parts.add_topics("T")
    slow_filters(parts)
    async with served(parts, clients=2) as (consumer, producer):
        await producer.send()
        pulls = [await hold(parts, consumer, 1, sub="n = 1", kind="SQL92") for _ in range(20)]
        pulls += [await hold(parts, consumer, 1, sub="n = 1 ", kind="SQL92") for _ in range(20)]
        matches = Turns(Expression.matches)
        monkeypatch.setattr(Expression, "matches", lambda *args: matches(*args))  # noqa: PLW0108 - a method
        await send_many(producer, 70)
        assert [bodies(await pull) for pull in pulls] == [[b"70"]] * 40
        matches.stop()
        assert 142 <= matches.total <= 142 + 2
        assert matches.longest <= 12


async def test_pulls_that_end_together_leave_time_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32,000 pulls that timed out, or whose connection closed, at the same moment blocked the broker."""
    async with broker_of_two(tmp_path, "T") as (parts, consumer, producer):
        await producer.send()
        pulls = [await hold(parts, consumer, 1) for _ in range(60)]
        readings = itertools.count()
        parts.pull.now_ms = parts.slices.now_ms = lambda: LONG_MS + next(readings) / 5
        ended = Turns(parts.holds.release)
        monkeypatch.setattr(parts.holds, "release", ended)
        parts.pull.sweep()
        parts.pull.sweep()  # while the first one is in progress
        assert {(await pull).code for pull in pulls} == {ResponseCode.PULL_NOT_FOUND}
        assert (ended.total, ended.longest <= 12) == (60, True)
        for _ in range(60):
            await hold(parts, consumer, 1)
        consumer.channel.close()
        await until(lambda: not parts.holds)
        ended.stop()
        assert (ended.total, ended.longest <= 12) == (120, True)


async def test_the_pulls_of_a_connection_are_checked_together(tmp_path: Path) -> None:
    """Each of a thousand pulls of one consumer would be checked when a message arrives for all of them."""
    async with broker_of_two(tmp_path, "T") as (parts, consumer, producer):
        await producer.send()
        pulls = [await hold(parts, consumer, 1, sub=sub) for sub in ("a", "*") for _ in range(20)]
        checks = Turns(lambda *_: None)
        parts.pull.still_allowed = checks
        await producer.send(b"x", "TAGS\x01a\x02")
        assert [bodies(await pull) for pull in pulls] == [[b"x"]] * 40
        checks.stop()
        assert checks.total == 2
