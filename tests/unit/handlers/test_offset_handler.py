"""OffsetHandler: offsets of consumer groups."""

from __future__ import annotations

from pathlib import Path

from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper, SubscriptionData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.services.cluster.slave_sync import WITH_VERSIONS
from tests.unit.handlers.broker_parts import BrokerParts, PartsClient, broker, served
from tests.unit.store.helpers import put


async def query(client: PartsClient, queue_id: int = 0, topic: str = "T") -> Command:
    """Query the offset of group g."""
    header = QueryConsumerOffsetRequestHeader(consumer_group="g", topic=topic, queue_id=queue_id)
    return await client.call(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def commit(client: PartsClient, offset: int, group: str = "g", queue_id: int = 0) -> Command:
    """Commit an offset."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset
    )
    return await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_a_new_group_starts_at_0_of_a_queue_that_is_whole(tmp_path: Path) -> None:
    """QUIRKS 33. A new group would miss the messages that were sent before its first start."""
    async with broker(tmp_path) as (parts, client):
        put(parts.store, 0)
        assert (await query(client)).ext_fields() == {"offset": "0"}
        # the first messages of this queue have expired
        put(parts.store, 1, queue_id=1)
        parts.store.queues.queues["T", 1].min_offset = 1
        assert (await query(client, 1)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_group_starts_at_the_first_message_since_the_deletion_of_its_topic(tmp_path: Path) -> None:
    """Queues of the new topic continue the old offsets: a group without one would begin at their end."""
    async with broker(tmp_path) as (parts, client):
        put(parts.store, 0)
        put(parts.store, 1)
        parts.store.queues.queues["T", 0].min_offset = 1
        begin = parts.store.min_physical_offset
        for log_end, code in ((begin - 1, ResponseCode.QUERY_NOT_FOUND), (begin, ResponseCode.SUCCESS)):
            # if the log begins after the deletion, messages of the new topic may have expired
            parts.topics.deleted = {"T": log_end}
            assert (await query(client)).code == code
        assert (await query(client)).ext_fields() == {"offset": "1"}
        parts.topics.deleted = {"Other": begin}
        assert (await query(client)).code == ResponseCode.QUERY_NOT_FOUND


async def test_offsets_above_the_limit_are_rejected(tmp_path: Path) -> None:
    """maxConsumerOffsets: clients could fill the memory of the broker with offsets of invented queues."""
    async with broker(tmp_path, consume=ConsumeConfig(offsets_max=1)) as (_parts, client):
        assert (await commit(client, 1)).code == ResponseCode.SUCCESS
        response = await commit(client, 1, queue_id=1)
        assert (response.code, "maxConsumerOffsets" in (response.remark or "")) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )


async def test_a_slave_gets_commit_times_only_on_request(tmp_path: Path) -> None:
    """A Java slave could not read the response, or a slave of rocketpy would lack the times it merges by."""
    async with broker(tmp_path) as (_parts, client):
        await commit(client, 7)
        plain = await client.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert ConsumerOffsetSerializeWrapper.decode(plain.body).version_table is None
        request = Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
        request.ext = {WITH_VERSIONS: "true"}
        found = ConsumerOffsetSerializeWrapper.decode((await client.request(request)).body)
        assert found.offset_table == {"T@g": {0: 7}}
        assert found.version_table is not None


async def test_offsets_are_cloned_for_subscribed_topics(tmp_path: Path) -> None:
    """The tool cloneGroupOffset would copy nothing, or topics that the group no longer reads."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", "U")
    parts.offsets.commit("g", "T", 0, 3)
    parts.offsets.commit("g", "U", 0, 4)
    parts.offsets.commit("g", "Deleted", 0, 5)
    async with served(parts) as (client,):
        await client.beat(subscriptions=(SubscriptionData(topic="U", sub_string="*"),))
        for target, topic, offline in (("h", None, False), ("i", "T", False), ("j", "T", True)):
            header = CloneGroupOffsetRequestHeader(
                src_group="g", dest_group=target, topic=topic, offline=offline
            )
            assert (await client.call(RequestCode.CLONE_GROUP_OFFSET, header)).code == ResponseCode.SUCCESS
    assert [parts.offsets.topics_of(group) for group in "hij"] == [["U"], [], ["T"]]
