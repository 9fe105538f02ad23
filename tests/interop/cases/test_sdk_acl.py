"""rocketpy's client with Java brokers that require an access key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from rocketpy import ClientConfig, LocalTransactionState, Message, Outcome, Producer, PullConsumer, SendStatus
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import NEWER, OUR_SDK, Side, serve
from tests.mqproducer.place import BROKER_SETTINGS

pytestmark = pytest.mark.interop

# RocketMQ 5.3 has no ACL 1.0 any more.
SIDES = (OUR_SDK[0], OUR_SDK[1], NEWER[0])
WRITER = Credentials(access_key="acl-writer", secret_key="12345678")
READER = Credentials(access_key="acl-reader", secret_key="87654321")
FORGER = Credentials(access_key="acl-writer", secret_key="87654321")
PLAIN_ACL = """
accounts:
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
    conf = run / "java-broker" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL)
    with serve(side, peer, run, conf={**BROKER_SETTINGS, "aclEnable": "true"}) as running:
        yield running


def client(
    servers: Cluster, keys: Credentials | None, codec: Literal["json", "rocketmq"] = "json"
) -> ClientConfig:
    """A client's settings with these keys."""
    return ClientConfig(namesrv=servers.namesrv.address, credentials=keys, codec=codec)


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_signed_messages_are_accepted(servers: Cluster, codec: Literal["json", "rocketmq"]) -> None:
    """A signature over other fields, or in another order, than the broker's would be refused."""
    topic = servers.topic(f"signed_{codec}")
    sender_of = client(servers, WRITER, codec)
    properties = {"unicode": "地球 🚀", "a": '"%s"\\'}
    async with Producer("acl_writers", client=sender_of) as sender:
        one = await sender.send(Message(topic, b"one", tags="t", keys="k", properties=properties))
        assert one.status is SendStatus.SEND_OK
        futures = [sender.send_nowait(Message(topic, b"%d" % n, properties=properties)) for n in range(50)]
        assert {(await future).status for future in futures} == {SendStatus.SEND_OK}
        assert len(await sender.send_batch([Message(topic, b"a"), Message(topic, b"b")])) == 2
        done = await sender.send_in_transaction(
            Message(topic, b"tx"),
            local_transaction=lambda _: LocalTransactionState.COMMIT,
            check=lambda _: LocalTransactionState.COMMIT,
        )
        assert done.status is SendStatus.SEND_OK
    async with PullConsumer("acl_readers", client=client(servers, READER, codec)) as reader:
        assert (await reader.view_message(one.offset_message_id)).properties.items() >= properties.items()
        assert (await reader.pull(one.queue, one.queue_offset)).messages[0].body == b"one"


async def test_others_are_rejected(servers: Cluster) -> None:
    """A client without a key, with a wrong one, or without a right would not get reason and outcome."""
    topic = servers.topic("refused")
    async with Producer("acl_writers", client=client(servers, WRITER)) as sender:
        place = await sender.send(Message(topic, b"creates the topic"))
    refusals = {
        None: "No accessKey is configured",
        FORGER: "Check signature failed for accessKey=acl-writer",
        READER: "No default permission",
    }
    for keys, words in refusals.items():
        async with Producer("acl_others", client=client(servers, keys)) as other:
            with pytest.raises(BrokerError, match=words) as refused:
                await other.send(Message(topic, b"no"), queue=place.queue)
            assert refused.value.outcome is Outcome.NOT_SENT
    async with PullConsumer("acl_readers", client=client(servers, READER)) as reader:
        assert await reader.max_offset(place.queue) == place.queue_offset + 1


async def test_a_closed_topic_is_closed(servers: Cluster) -> None:
    """A topic that an account must not touch would be written by it; RocketMQ lets batches through."""
    async with Producer("acl_writers", client=client(servers, WRITER)) as sender:
        with pytest.raises(BrokerError, match="topic:Closed") as refused:
            await sender.send(Message("Closed", b"no"))
        assert refused.value.outcome is Outcome.NOT_SENT
        batch = await sender.send_batch([Message("Closed", b"a"), Message("Closed", b"b")])
        assert {result.status for result in batch} == {SendStatus.SEND_OK}
