"""rocketpy's clients with Java brokers that require an access key: ACL 1.0 of 4.6 and 4.9, ACL 2.0 of 5.3."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageTraceConfig,
    Outcome,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SendStatus,
)
from rocketpy.client.instance import ClientInstance
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError, RouteNotFound
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from tests.interop.accounts import has_acl_2, refusals, serve_with_accounts, write_accounts
from tests.interop.cluster import Cluster, only_broker
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, NEWER, OPERATOR, OUR_SDK, Side, serve
from tests.mqconsumer.group import BROKER_SETTINGS, FIRST, Seen, until
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.interop

SIDES = (OUR_SDK[0], OUR_SDK[1], NEWER[0], *ALL_VERSIONS[1:])
WRITER = Credentials(access_key="acl-writer", secret_key="12345678")
READER = Credentials(access_key="acl-reader", secret_key="87654321")
FORGER = Credentials(access_key="acl-writer", secret_key="87654321")
ACCOUNTS = """
- accessKey: acl-writer
  secretKey: '12345678'
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - Closed=DENY
- accessKey: acl-reader
  secretKey: '87654321'
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A pair of servers, the broker with two accounts."""
    side: Side = request.param
    run = tmp_path_factory.mktemp("acl")
    with serve_with_accounts(
        side,
        peer,
        run,
        ACCOUNTS,
        readers=[READER.access_key, WRITER.access_key],
        conf={**BROKER_SETTINGS, "traceTopicEnable": "true"},
    ) as running:
        yield running


def client(
    servers: Cluster, keys: Credentials | None, codec: Literal["json", "rocketmq"] = "json"
) -> ClientConfig:
    """A client's settings with these keys."""
    return ClientConfig(namesrv=servers.namesrv.address, credentials=keys, codec=codec)


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_signed_messages_are_accepted(servers: Cluster, codec: Literal["json", "rocketmq"]) -> None:
    """Brokers would reject signatures over other fields, or fields in another order."""
    topic = servers.topic(f"signed_{codec}")
    sender_of = client(servers, WRITER, codec)
    properties = {"unicode": "地球 🚀", "a": '"%s"\\'}
    async with Producer("acl_writers", client=sender_of) as sender:
        one = await sender.send(Message(topic, b"one", tags="t", keys="k", properties=properties))
        assert one.status is SendStatus.SEND_OK
        futures = [sender.send_nowait(Message(topic, b"%d" % n, properties=properties)) for n in range(50)]
        assert {(await future).status for future in futures} == {SendStatus.SEND_OK}
        assert len(await sender.send_batch([Message(topic, b"a"), Message(topic, b"b")])) == 2
    async with PullConsumer("acl_readers", client=client(servers, READER, codec)) as reader:
        assert (await reader.view_message(one.offset_message_id)).properties.items() >= properties.items()
        assert (await reader.pull(one.queue, one.queue_offset)).messages[0].body == b"one"


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_signed_look_ups_are_accepted(servers: Cluster, codec: Literal["json", "rocketmq"]) -> None:
    """Messages and traces would not be found by key or id: versions sign other fields of these requests."""
    topic, settings = servers.topic(f"found_{codec}"), client(servers, WRITER, codec)
    traced = ProducerConfig(message_trace=MessageTraceConfig())
    async with Producer(f"acl_traced_{codec}", client=settings, config=traced) as sender:
        sent = await sender.send(Message(topic, b"one", keys="k"))
        await sender.flush()
        async with asyncio.timeout(LIMIT_S):
            assert await found_by_key(sender, topic, "k") == [b"one"]
        assert (await sender.view_message(sent.message_id, topic)).body == b"one"
    async with AdminClient(client=client(servers, READER, codec)) as admin, asyncio.timeout(LIMIT_S):
        by_key = await admin.messages.by_key(topic, "k")
        assert [one.body for one in by_key.messages] == [b"one"]
        assert (await admin.messages.by_unique_id(topic, sent.message_id)).body == b"one"
        while not (await admin.messages.traces(sent.message_id)).messages:  # noqa: ASYNC110 - also indexed later
            await asyncio.sleep(0.1)


async def found_by_key(sender: Producer, topic: str, key: str) -> list[bytes]:
    """Return the bodies of the messages with a key, once the topic is registered and its messages indexed."""
    while True:
        with suppress(RouteNotFound):
            if messages := (await sender.query_message(topic, key)).messages:
                return [message.body for message in messages]
        await asyncio.sleep(0.1)


async def test_signed_fields_may_be_empty(servers: Cluster) -> None:
    """From 4.9.4 on, brokers read an empty value of a binary header as null, and sign the text "null"."""
    topic = servers.topic("empty")
    async with Producer("acl_writers", client=client(servers, WRITER, "rocketmq")) as sender:
        queue = (await sender.send(Message(topic, b"one"))).queue
        fields = {"topic": topic, "queueId": str(queue.queue_id), "unknown": ""}
        request = Command(RequestCode.GET_MAX_OFFSET, ext=fields)
        raw = await ClientInstance.acquire(client(servers, WRITER, "rocketmq"))
        try:
            response = await raw.request(servers.broker.address, request, 3000)
        finally:
            await raw.release()
        assert (response.code, response.ext_fields().get("offset")) == (0, "1"), response.remark


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_signed_consumers_join_retry_and_commit(
    servers: Cluster, codec: Literal["json", "rocketmq"]
) -> None:
    """A consumer with an account could not join its group, or would lose transactions, retries or offsets."""
    topic, group = servers.topic(f"consumed_{codec}"), f"acl_members_{codec}"
    settings = client(servers, WRITER, codec)
    async with Producer(f"acl_writers_{codec}", client=settings) as sender:
        await sender.send(Message(topic, b"plain"))
        done = await sender.send_in_transaction(
            Message(topic, b"committed"),
            local_transaction=lambda _: LocalTransactionState.COMMIT,
            check=lambda _: LocalTransactionState.COMMIT,
        )
        assert done.status is SendStatus.SEND_OK

        def fail_first(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise ValueError("the first attempt")

        seen, expected = Seen(fail_first), {b"plain", b"committed"}
        members = client(servers, READER, codec)
        pushing = PushConsumer(group, handler=seen, client=members, config=PushConfig(consume_from=FIRST))
        pushing.subscribe(topic)
        async with pushing:
            await until(lambda: {one.body for one in seen.messages if one.reconsume_times} == expected)
        await sender.send(Message(topic, b"later"))
    async with LitePullConsumer(group, client=members) as consumer:
        consumer.subscribe(topic)
        found: list[bytes] = []
        while b"later" not in found:
            found += [message.body for message in await consumer.poll()]
    assert b"plain" not in found, "the group went on where its first member had committed"


async def test_others_are_rejected(servers: Cluster) -> None:
    """A rejected client would not get the reason, and whether its message is stored."""
    topic = servers.topic("refused")
    async with Producer("acl_writers", client=client(servers, WRITER)) as sender:
        place = await sender.send(Message(topic, b"creates the topic"))
    words = refusals(servers.version, WRITER.access_key)
    refused_with = {None: words.no_key, FORGER: words.wrong_secret, READER: words.no_right}
    for keys, expected in refused_with.items():
        async with Producer("acl_others", client=client(servers, keys)) as other:
            with pytest.raises(BrokerError, match=expected) as refused:
                await other.send(Message(topic, b"no"), queue=place.queue)
            assert refused.value.outcome is Outcome.NOT_SENT
    async with PullConsumer("acl_readers", client=client(servers, READER)) as reader:
        assert await reader.max_offset(place.queue) == place.queue_offset + 1


async def test_a_denied_topic_rejects_messages(servers: Cluster) -> None:
    """An account could write to a denied topic; no batches are sent, since ACL 1.0 does not check them."""
    closed = refusals(servers.version, WRITER.access_key).closed_topic
    batch = [Message("Closed", b"a"), Message("Closed", b"b")]
    async with Producer("acl_writers", client=client(servers, WRITER)) as sender:
        with pytest.raises(BrokerError, match=closed) as refused:
            await sender.send(Message("Closed", b"no"))
        assert refused.value.outcome is Outcome.NOT_SENT
        if has_acl_2(servers.version):
            with pytest.raises(BrokerError, match=closed):
                await sender.send_batch(batch)
        else:
            results = await sender.send_batch(batch)
            assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_only_an_operator_administers(servers: Cluster) -> None:
    """An operator with an account could not create topics, or an application could."""
    topic = servers.topic("administered")
    async with AdminClient(client=client(servers, OPERATOR)) as admin:
        await admin.create_topic(topic, 2)
        await only_broker(admin)
        if has_acl_2(servers.version):
            with pytest.raises(BrokerError, match="request type 54 not supported"):
                await admin.accounts.list()
    async with AdminClient(client=client(servers, WRITER)) as admin:
        with pytest.raises(BrokerError, match=r"no permission|Need admin permission"):
            await admin.create_topic(servers.topic("refused"), 2)


@pytest.mark.parametrize("side", ALL_VERSIONS[1:], ids=lambda side: side.direction)
async def test_acl_1_is_not_in_5_3(peer: JavaPeer, tmp_path: Path, side: Side) -> None:
    """Users would believe that `aclEnable` protects a broker of 5.3, which ignores it."""
    write_accounts(tmp_path, ACCOUNTS)
    with serve(side, peer, tmp_path, conf={"aclEnable": "true"}) as servers:
        async with Producer("acl_nobody", client=client(servers, None)) as sender:
            assert (await sender.send(Message("Closed", b"yes"))).status is SendStatus.SEND_OK
