"""SendBackHandler: returned messages become delayed retries, or dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import SubscriptionGroupConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.message.sysflag import TopicSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.store import MessageInner
from tests.unit.handlers.broker_parts import HOST, BrokerParts, PartsClient, broker, served

SCHEDULED = "SCHEDULE_TOPIC_XXXX"


async def send_back(client: PartsClient, offset: int, level: int = 0, **header: Any) -> Command:
    """Return a message, as a consumer of group g."""
    settings: dict[str, Any] = {"offset": offset, "group": "g", "delay_level": level}
    wanted = ConsumerSendMsgBackRequestHeader(**{**settings, **header})
    return await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, wanted)


def only(records: list[Record]) -> Record:
    """Return the only record."""
    (record,) = records
    return record


@pytest.mark.parametrize(("level", "used"), [(1, 1), (0, 3), (9, 4)])
async def test_a_returned_message_is_delivered_again_later(tmp_path: Path, level: int, used: int) -> None:
    """QUIRKS 37. A consumer would get the message again at once, while its problem lasts."""
    async with broker(tmp_path, "T", delay_levels="1s 2s 3s 4s") as (parts, client):
        await client.send(b"hard", "TAGS\x01t\x02")
        assert (await send_back(client, 0, level)).code == ResponseCode.SUCCESS
        record = only(parts.records(SCHEDULED, used - 1))
        assert (record.body, record.reconsume_times, parts.delayed) == (b"hard", 1, [used])
        assert props.decode(record.properties) == {
            "TAGS": "t", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "WAIT": "false",
            "ORIGIN_MESSAGE_ID": message_id(HOST, 0), "DELAY": str(used), "REAL_TOPIC": "%RETRY%g",
            "REAL_QID": "0",
        }  # fmt: skip
        assert parts.sent_back == [("g", "T")]


@pytest.mark.parametrize(("level", "limit"), [(-1, 16), (1, 0)])
async def test_a_message_that_cannot_be_consumed_becomes_a_dead_letter(
    tmp_path: Path, level: int, limit: int
) -> None:
    """QUIRKS 37. A consumer could not get rid of a message that it can never process."""
    async with broker(tmp_path, "T") as (parts, client):
        await client.send(b"bad")
        response = await send_back(client, 0, level, max_reconsume_times=limit)
        assert response.code == ResponseCode.SUCCESS
        assert only(parts.records("%DLQ%g")).body == b"bad"
        assert parts.delayed == []


@pytest.mark.parametrize(
    ("settings", "header", "code", "remark"),
    [
        ({}, {"offset": 1 << 40}, ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        ({}, {"offset": -1}, ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        ({}, {"group": "no/group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no/group"),
        ({"permission": 4}, {}, ResponseCode.NO_PERMISSION, "the broker[broker-a]"),
        ({"delay_levels": ""}, {}, ResponseCode.SYSTEM_ERROR, "messageDelayLevel is empty"),
    ],
)
async def test_a_message_that_cannot_be_returned_is_reported(
    tmp_path: Path, settings: dict[str, Any], header: dict[str, Any], code: int, remark: str
) -> None:
    """A consumer would commit the offset of a message that is neither retried nor a dead letter."""
    async with broker(tmp_path, "T", **settings) as (parts, client):
        await client.send()
        response = await send_back(client, **{"offset": 0, **header})
        assert (response.code, remark in (response.remark or "")) == (code, True), response.remark
        assert parts.sent_back == []


async def test_the_group_decides_about_retries(tmp_path: Path) -> None:
    """retryQueueNums=0, a retry topic without write permission: an operator could not stop retries."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(auto_create_group=False))
    parts.add_topics("T")
    parts.add_topics("%RETRY%closed", perm=4)
    async with served(parts) as (client,):
        await parts.groups.update(SubscriptionGroupConfig(group_name="none", retry_queue_nums=0))
        await parts.groups.update(SubscriptionGroupConfig(group_name="closed"))
        await client.send()
        assert (await send_back(client, 0, group="none")).code == ResponseCode.SUCCESS
        response = await send_back(client, 0, group="closed")
        assert (response.code, response.remark) == (
            ResponseCode.NO_PERMISSION,
            "the topic[%RETRY%closed] sending message is forbidden",
        )
        assert parts.store.max_physical_offset == only(parts.records()).size


# -- records of a store that another broker has written ------------------------------------------


def stored(parts: BrokerParts, text: str = "", times: int = 0) -> int:
    """Store a message as RocketMQ's broker does, which checks neither properties nor retries."""
    receipt = parts.store.append(MessageInner("T", 0, b"old", text.encode(), reconsume_times=times))
    parts.store.write_out()
    parts.store.dispatch()
    return receipt.physical_offset


async def test_a_retry_topic_that_a_producer_has_set_does_not_count(tmp_path: Path) -> None:
    """An account that may send to one topic could have its messages delivered as those of another."""
    async with broker(tmp_path, "T") as (parts, client):
        offset = stored(parts, "RETRY_TOPIC\x01Foreign\x02ORIGIN_MESSAGE_ID\x01forged\x02")
        assert (await send_back(client, offset, -1)).code == ResponseCode.SUCCESS
        found = props.decode(only(parts.records("%DLQ%g")).properties)
        assert (found["RETRY_TOPIC"], "ORIGIN_MESSAGE_ID" in found) == ("T", False)
        assert parts.sent_back == [("g", "T")]


@pytest.mark.parametrize(
    ("times", "used", "after"), [(-(2**31), 3, 1), (-3, 3, 1), (2**31 - 1, None, 2**31 - 1)]
)
async def test_any_number_of_retries_can_be_returned(
    tmp_path: Path, times: int, used: int | None, after: int
) -> None:
    """A consumer could never return the message, or it would wait in a queue that no level has."""
    async with broker(tmp_path, "T", delay_levels="1s 2s 3s 4s") as (parts, client):
        response = await send_back(client, stored(parts, times=times), 0, max_reconsume_times=16)
        assert response.code == ResponseCode.SUCCESS
        where = ("%DLQ%g",) if used is None else (SCHEDULED, used - 1)
        assert only(parts.records(*where)).reconsume_times == after


async def test_a_retry_without_a_queue_is_refused(tmp_path: Path) -> None:
    """The retry would be stored where no consumer reads it, and the consumer would forget the message."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    parts.add_topics("%RETRY%g", read_queue_nums=0, write_queue_nums=4)
    async with served(parts) as (client,):
        await client.send()
        response = await send_back(client, 0)
        assert (response.code, response.remark) == (
            ResponseCode.NO_PERMISSION,
            "the topic[%RETRY%g] has no queue that consumers read",
        )
        assert (await send_back(client, 0, -1)).code == ResponseCode.SUCCESS
        assert only(parts.records("%DLQ%g")).body == b"x"


@pytest.mark.parametrize(("unit_mode", "flags"), [(False, 0), (True, TopicSysFlag.UNIT_SUB)])
async def test_the_retry_topic_of_a_unit_is_marked(tmp_path: Path, unit_mode: bool, flags: int) -> None:
    """The tools of units would not find the topic."""
    async with broker(tmp_path, "T") as (parts, client):
        await client.send()
        assert (await send_back(client, 0, 1, unit_mode=unit_mode)).code == ResponseCode.SUCCESS
        retries = parts.topics.get("%RETRY%g")
        assert retries is not None
        assert retries.topic_sys_flag == flags
