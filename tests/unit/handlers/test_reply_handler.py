"""ReplyHandler: a reply is pushed to the requester, and stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeader
from rocketpy.protocol.message.record import host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.config.model import SendConfig
from rocketpy_broker.handlers.send.reply import _java_text
from rocketpy_broker.store.busy import Reason, StoreBusy
from tests.unit.handlers.broker_parts import PartsClient, broker, broker_of_two, send_header

REPLIES = "DefaultCluster_REPLY_TOPIC"
TEXT = "REPLY_TO_CLIENT\x01asker@1\x02CORRELATION_ID\x017\x02"


async def reply(client: PartsClient, body: bytes, text: str = TEXT, topic: str = REPLIES) -> Command:
    """Send a reply."""
    return await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, send_header(text, topic=topic), body)


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (TEXT, "push reply message fail, channel of <asker@1> not found."),
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
async def test_a_reply_without_its_requester_is_stored_and_fails(
    tmp_path: Path, text: str, remark: str
) -> None:
    """QUIRKS 30. The replier would not try the next broker, which it does only after a failure."""
    async with broker(tmp_path) as (parts, client):
        response = await reply(client, b"x", text)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert response.ext_fields()["queueOffset"] == "0"
        assert len(parts.records(REPLIES)) == 1


async def test_the_requester_decides_about_success(tmp_path: Path) -> None:
    """The replier would get SUCCESS for a reply that the requester rejected, or never received."""
    async with broker_of_two(tmp_path) as (_parts, client, requester):
        await requester.produce("asker@1", "p")
        requester.respond = lambda request: request.reply(1, remark="no such request")
        response = await reply(client, b"x")
        assert (response.code, response.remark) == (1, "push reply message fail. no such request")

        def leave(_: Command) -> None:
            requester.channel.close()

        requester.respond = leave
        response = await reply(client, b"y")
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert (response.remark or "").startswith("push reply message fail. ")


async def test_a_reply_may_be_pushed_without_being_stored(tmp_path: Path) -> None:
    """storeReplyMessageEnable=false, and a busy store: the requester would not get the reply."""
    async with broker_of_two(tmp_path / "a", send=SendConfig(store_replies=False)) as (
        parts,
        client,
        requester,
    ):
        await requester.produce("asker@1", "p")
        response = await reply(client, b"x")
        assert (response.code, response.ext_fields()["msgId"]) == (ResponseCode.SUCCESS, "0")
        assert parts.store.max_physical_offset == 0
    async with broker_of_two(tmp_path / "b") as (parts, client, requester):
        await requester.produce("asker@1", "p")
        parts.store.reject(Reason.BUSY, StoreBusy("busy"))
        assert (await reply(client, b"x")).code == ResponseCode.SUCCESS
        assert [push.body for push in requester.received] == [b"x"]


async def test_a_reply_is_checked_like_a_send(tmp_path: Path) -> None:
    """A reply could be stored in a topic that takes no messages."""
    async with broker(tmp_path) as (parts, client):
        header = SendMessageRequestHeader(
            producer_group="p", topic="TBW102", default_topic="", default_topic_queue_nums=1, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0,
        )  # fmt: skip
        response = await client.call(RequestCode.SEND_REPLY_MESSAGE, header, b"x")
        assert (response.code, parts.store.max_physical_offset) == (ResponseCode.SYSTEM_ERROR, 0)


@pytest.mark.parametrize(("host", "port", "text"), [("127.0.0.1", 1, "/127.0.0.1:1"), ("::1", 2, "/[::1]:2")])
def test_addresses_are_written_as_java_prints_them(host: str, port: int, text: str) -> None:
    """QUIRKS 30. Java clients parse these texts, and would reject others."""
    assert _java_text(host_bytes(host, port)) == text
