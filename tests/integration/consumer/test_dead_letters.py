"""Dead letters: how an operator reads them, and sends them to their group for another attempt."""

from __future__ import annotations

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    Later,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
)
from rocketpy.config import CompressionConfig
from rocketpy.errors import ConfigInvalid, GroupInvalid, MessageInvalid, RecordCorrupt
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.broker.test_broker import records, send_header
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until


async def dead(cluster: EmbeddedCluster, count: int, *, namespace: str = "") -> list[Message]:
    """Send messages of many kinds, and let a group give all of them up; return them."""
    sent = [
        Message(
            "T",
            b"%d " % number + b"x" * 200 * (number % 2),
            tags="t",
            keys=["k"],
            flag=number,
            delay_level=2 * (number % 2),
            wait_store=number % 3 > 0,
            properties={"n": str(number)},
        )
        for number in range(count)
    ]
    gives_up = Seen(lambda _: Later(delay_level=-1))
    config = ProducerConfig(compression=CompressionConfig(above_bytes=100))
    client = ClientConfig(namespace=namespace)
    async with Producer("p", cluster.namesrv_address, config=config, client=client) as producer:
        await producer.create_topic("T")
        for message in sent:
            await producer.send(message)
    async with consuming(cluster, gives_up, namespace=namespace):
        await gives_up.until(count)
        topic = f"%DLQ%{namespace}%g" if namespace else "%DLQ%g"

        def stored() -> int:
            return sum(broker.store.max_offset_in_queue(topic, 0) for broker in cluster.brokers)

        await until(lambda: stored() == count)
    return sent


def by_number(messages: list[MessageExt]) -> dict[str, MessageExt]:
    """Received messages by the property n."""
    return {message.properties["n"]: message for message in messages}


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_dead_letters_are_read_and_resent(namespace: str) -> None:
    """Dead letters would be lost, be handled by other groups too, or be resent with other content."""
    client = ClientConfig(namespace=namespace)
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        sent = await dead(cluster, 7, namespace=namespace)
        address = cluster.namesrv_address
        async with (
            AdminClient(address, client=client) as admin,
            PullConsumer("readers", address, client=client) as reader,
        ):
            assert await reader.fetch_queues("%DLQ%g") == ()  # its permission is write only
            letters = by_number((await admin.dead_letters.fetch("g")).messages)
            assert set(letters) == {message.properties["n"] for message in sent}
            assert {letter.topic for letter in letters.values()} == {"%DLQ%g"}
            seen, others = Seen(), Seen()
            async with (
                consuming(cluster, seen, namespace=namespace),
                consuming(cluster, others, group="other", namespace=namespace),
            ):
                await others.until(7)
                results = {
                    number: await admin.dead_letters.resend(letter) for number, letter in letters.items()
                }
                await seen.until(7)
            assert others.bodies.total() == 7
            assert seen.bodies.total() == 7
            for message in sent:
                again = by_number(seen.messages)[message.properties["n"]]
                letter = letters[message.properties["n"]]
                assert (again.topic, again.body, again.tags, again.keys, again.flag) == (
                    "T", message.body, "t", ("k",), message.flag,
                )  # fmt: skip
                assert (again.reconsume_times, again.delay_level) == (0, 0)
                assert again.message_id == letter.message_id
                assert again.born_timestamp == letter.born_timestamp
                assert again.wait_store
                assert results[message.properties["n"]].offset_message_id == again.offset_message_id
            assert len((await admin.dead_letters.fetch("g")).messages) == 7  # a resend removes none


async def test_dead_letters_are_read_in_parts() -> None:
    """An operator would read dead letters twice, miss some, or hold all of them in memory."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        await dead(cluster, 9)
        async with AdminClient(cluster.namesrv_address) as admin:
            parts: list[list[MessageExt]] = []
            offsets: dict[MessageQueue, int] = {}
            while (found := await admin.dead_letters.fetch("g", 4, offsets=offsets)).messages:
                parts.append(found.messages)
                offsets = found.next_offsets
            assert [len(part) for part in parts] == [4, 4, 1]
            assert len({message.message_id for part in parts for message in part}) == 9
            assert sorted(offsets) == [MessageQueue("%DLQ%g", name, 0) for name in ("broker-a", "broker-b")]


async def test_a_resent_dead_letter_that_fails_becomes_one_again() -> None:
    """A message that no consumer can handle would be retried forever, or be lost after it was resent."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster:
        await dead(cluster, 1)
        async with AdminClient(cluster.namesrv_address) as admin:
            (letter,) = (await admin.dead_letters.fetch("g")).messages
            fails = Seen(lambda _: Later(delay_level=2))
            async with consuming(cluster, fails, max_reconsume_times=1):
                await admin.dead_letters.resend(letter)
                await until(lambda: cluster.brokers[0].store.max_offset_in_queue("%DLQ%g", 0) == 2)
            assert [message.reconsume_times for message in fails.messages] == [0, 1]
            again = (await admin.dead_letters.fetch("g")).messages[1]
            assert (again.message_id, again.body) == (letter.message_id, letter.body)
            assert again.properties["RETRY_TOPIC"] == "T"


async def test_a_dead_letter_that_cannot_be_decoded_is_resent_unchanged() -> None:
    """Consumers that can decode it, with another package installed, would never get it, or get its raw
    bytes as if they were its body.
    """
    async with (
        EmbeddedCluster(settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        await RawClient.open(cluster.brokers[0].address) as client,
    ):
        compressed = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_TYPE_MASK  # an unknown type
        header = send_header(sys_flag=compressed, text="UNIQ_KEY\x01id\x02")
        assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"raw")).code == 0
        store = cluster.brokers[0].store
        async with consuming(cluster, Seen(), max_reconsume_times=0):
            await until(lambda: store.max_offset_in_queue("%DLQ%g", 0) == 1)
        (letter,) = (await admin.dead_letters.fetch("g")).messages
        assert letter.decode_error is not None
        await admin.dead_letters.resend(letter)
        (record,) = await records(client, topic="%RETRY%g")
        assert (record.body, record.sys_flag & compressed) == (b"raw", compressed)
        damaged = MessageExt(letter._whole, letter.queue, letter.body, None, RecordCorrupt(0, "crc"))
        with pytest.raises(MessageInvalid, match="is damaged and cannot be sent again"):
            await admin.dead_letters.resend(damaged)


async def test_other_messages_are_not_dead_letters() -> None:
    """A message of another topic would be sent to a group that does not subscribe to it."""
    async with (
        EmbeddedCluster() as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("p", cluster.namesrv_address) as producer,
        PullConsumer("c", cluster.namesrv_address) as consumer,
    ):
        assert await admin.dead_letters.fetch("nobody") == ([], {})
        result = await producer.send(Message("T", b"x"))
        (message,) = (await consumer.pull(result.queue, 0)).messages
        with pytest.raises(MessageInvalid, match="is not a dead letter"):
            await admin.dead_letters.resend(message)
        with pytest.raises(GroupInvalid):
            await admin.dead_letters.fetch("a b")
        with pytest.raises(ConfigInvalid, match="max_count"):
            await admin.dead_letters.fetch("g", 0)


async def test_topics_of_applications_are_listed() -> None:
    """A reader of topics by a pattern would get retries, other tenants' messages and internal topics."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        await dead(cluster, 1, namespace="tenant")
        address = cluster.namesrv_address
        async with AdminClient(address) as admin:
            await admin.create_topic("Other")
        found = {}
        for namespace in ("", "tenant", "unknown"):
            client = ClientConfig(namespace=namespace)
            async with PullConsumer("readers", address, client=client) as reader:
                found[namespace] = await reader.fetch_topics()
    assert found == {"": ("Other", "tenant%T"), "tenant": ("T",), "unknown": ()}
