"""Tables of topics and groups under floods of changes: saved together, bounded, kept once acknowledged."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
)
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker import Broker, load_broker_config
from rocketpy_broker.store.files.disk import OsDisk
from tests.integration.broker.test_broker import records, send, send_header
from tests.integration.processes import start, stop
from tests.integration.raw_client import RawClient, new_topic, serving
from tests.integration.small import SMALL
from tests.waiting import until


class HeldDisk(OsDisk):
    """A disk that blocks the creation of files until `may_go_on` is set, and fails it if `is_full`."""

    def __init__(self) -> None:
        self.waits, self.may_go_on = threading.Event(), threading.Event()
        self.is_full = False

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file, once that is allowed."""
        if create:
            self.waits.set()
            assert self.may_go_on.wait(60)
            if self.is_full:
                raise OSError(28, "No space left on device")
        return super().open(path, create=create)


@pytest.fixture
async def disk(broker: Broker) -> AsyncIterator[HeldDisk]:
    """The disk to which the broker saves its table of topics from now on. It blocks the first save."""
    held = HeldDisk()
    broker.topics._disk = held
    try:
        yield held
    finally:
        held.is_full = False
        held.may_go_on.set()


def heartbeat(groups: int) -> bytes:
    """The body of a heartbeat with this many consumer groups."""
    data = [
        ConsumerData(
            group_name=f"group-{number}",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
        )
        for number in range(groups)
    ]
    return HeartbeatData(client_id="c@1", consumer_data_set=data).encode()


async def serves_another(broker: Broker) -> bool:
    """Whether another client is served now."""
    async with await RawClient.open(broker.address) as other:
        header = GetTopicConfigRequestHeader(topic="SELF_TEST_TOPIC")
        return (await other.call(RequestCode.GET_TOPIC_CONFIG, header)).code == 0


async def test_a_heartbeat_with_new_groups_costs_one_save_and_blocks_no_client(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """3,000 new groups in a heartbeat stopped the broker for 81 s: each one's topic was saved separately."""
    before = broker.topics.saver.saves
    asking = asyncio.create_task(client.call(RequestCode.HEART_BEAT, body=heartbeat(200)))
    assert await asyncio.to_thread(disk.waits.wait, 60)
    assert await serves_another(broker)
    assert not asking.done()
    disk.may_go_on.set()
    assert (await asking).code == 0
    assert broker.topics.saver.saves == before + 1
    assert sum(name.startswith("%RETRY%group-") for name in broker.topics.names) == 200


async def test_a_heartbeat_with_too_many_new_groups_is_rejected(broker: Broker, client: RawClient) -> None:
    """One frame could create tens of thousands of groups and topics."""
    response = await client.call(RequestCode.HEART_BEAT, body=heartbeat(3000))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert "maxNewGroupsPerHeartbeat" in response.remark
    assert "3000" in response.remark
    assert (await client.call(RequestCode.HEART_BEAT, body=heartbeat(257))).code == ResponseCode.SYSTEM_ERROR
    assert not any("group-" in name for name in (*broker.topics.names, *broker.consumers.groups.names))
    assert (await client.call(RequestCode.HEART_BEAT, body=heartbeat(256))).code == 0


async def test_a_heartbeat_with_too_many_new_groups_is_not_read_further(client: RawClient) -> None:
    """The broker spent 3 to 12 ms on the subscriptions of 3,000 groups before it rejected them."""
    body = heartbeat(3000).replace(b'"subscriptionDataSet":[', b'"subscriptionDataSet":[7,')
    assert body != heartbeat(3000)
    response = await client.call(RequestCode.HEART_BEAT, body=body)
    assert "maxNewGroupsPerHeartbeat" in (response.remark or "")


async def test_sends_to_many_new_topics_are_saved_together(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """47 sends a second to random topics kept a broker busy with its table of topics."""
    disk.may_go_on.set()
    before = broker.topics.saver.saves
    sends = [
        Command.request(RequestCode.SEND_MESSAGE_V2, send_header(topic=f"T{number}"), b"%d" % turn)
        for number in range(100)
        for turn in range(3)
    ]
    for opaque, request in enumerate(sends):
        request.opaque = opaque
    client.writer.write(b"".join(map(encode_command, sends)))
    responses = [await client.next() for _ in sends]
    assert {response.code for response in responses} == {0}
    offsets = {response.opaque: response.ext_fields()["queueOffset"] for response in responses}
    assert [offsets[opaque] for opaque in range(len(sends))] == ["0", "1", "2"] * 100
    assert broker.topics.saver.saves - before < 20
    assert [record.body for record in await records(client, topic="T99")] == [b"0", b"1", b"2"]


async def test_only_a_send_to_a_new_topic_waits_for_its_save(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """An acknowledged message would be unreadable after a crash, because its topic is missing."""
    sending = asyncio.create_task(send(client, b"first", topic="New"))
    assert await asyncio.to_thread(disk.waits.wait, 60)
    assert await serves_another(broker)
    assert broker.topics.get("New") is None
    assert not sending.done()
    disk.may_go_on.set()
    assert (await sending).code == 0
    assert b"New" in broker.topics.path.read_bytes()


class SlowFiles(OsDisk):
    """A disk that blocks the creation of consume queue files until that is allowed."""

    def __init__(self) -> None:
        self.waits, self.may_go_on = threading.Event(), threading.Event()
        self.held: set[Path] = set()

    def create(self, path: Path, size: int) -> int:
        """Make the file, once that is allowed."""
        if "consumequeue" in path.parts:
            self.held.add(path)
            self.waits.set()
            assert self.may_go_on.wait(60)
        return super().create(path, size)


async def test_files_of_new_queues_block_no_client(tmp_path: Path) -> None:
    """5,000 new topics stopped a broker for seconds, while the first flush made their queues' files."""
    disk = SlowFiles()
    settings = {**SMALL, "listenPort": "0", "storePathRootDir": str(tmp_path)}
    broker = Broker(load_broker_config(None, settings), disk=disk)
    await broker.start()
    try:
        async with await RawClient.open(broker.address) as client:
            for number in range(100):
                assert (await send(client, b"x", topic=f"T{number}")).code == 0
            assert await asyncio.to_thread(disk.waits.wait, 60)
            for _ in range(100):
                assert await serves_another(broker)
            held = set(disk.held)
            disk.may_go_on.set()
            await until(lambda: all(path.exists() for path in held))
            assert [record.body for record in await records(client, topic="T7")] == [b"x"]
    finally:
        disk.may_go_on.set()
        await broker.close()
    again = Broker(load_broker_config(None, settings))
    await again.start()
    assert again.recovery is not None
    assert again.recovery.clean
    assert all(again.store.max_offset_in_queue(f"T{number}", 0) == 1 for number in range(100))
    await again.close()


class NewTopicsMeanwhile(OsDisk):
    """A disk that notes which threads make queue files, and waits for a message to a new topic."""

    def __init__(self) -> None:
        self.makers: set[int] = set()
        self.makes, self.has_message = threading.Event(), threading.Event()

    def create(self, path: Path, size: int) -> int:
        """Make the file once another topic has a message."""
        if "consumequeue" in path.parts:
            self.makers.add(threading.get_ident())
            self.makes.set()
        if "consumequeue" in path.parts and threading.current_thread() is not threading.main_thread():
            assert self.has_message.wait(60)
            self.has_message.clear()
        return super().create(path, size)


async def test_topics_created_during_a_flush_block_no_client(tmp_path: Path) -> None:
    """The flush made their files in the event loop: 0.4 s for 200 topics, 1.8 s on a busy disk."""
    disk = NewTopicsMeanwhile()
    settings = {
        **SMALL,
        "listenPort": "0",
        "storePathRootDir": str(tmp_path),
        "flushIntervalConsumeQueue": "10",
    }
    broker = Broker(load_broker_config(None, settings), disk=disk)
    await broker.start()
    async with await RawClient.open(broker.address) as client:
        assert (await send(client, b"x", topic="T0")).code == 0
        for number in range(1, 13):
            assert await asyncio.to_thread(disk.makes.wait, 60)
            disk.makes.clear()
            assert (await send(client, b"x", topic=f"T{number}")).code == 0
            disk.has_message.set()
        assert threading.get_ident() not in disk.makers
        assert not (tmp_path / "consumequeue" / "T12" / "0" / f"{0:020d}").exists()
        checkpoint = broker.store.checkpoint
        assert checkpoint.dispatched_offset < broker.store.max_physical_offset
        await until(disk.makes.is_set)
        disk.makes.clear()
        disk.has_message.set()
        await until(lambda: broker.store.checkpoint.dispatched_offset == broker.store.max_physical_offset)
    assert threading.get_ident() not in disk.makers
    await broker.close()


async def test_messages_that_wait_for_a_topic_are_bounded(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """A client could fill the broker's memory while the disk is slow."""
    request = encode_command(
        Command.request(RequestCode.SEND_MESSAGE_V2, send_header(topic="New"), bytes(500_000))
    )
    client.writer.write(request * 100)
    stored = (8 << 20) // 500_000
    refused = [await client.next() for _ in range(100 - stored)]
    assert {response.code for response in refused} == {ResponseCode.SYSTEM_BUSY}
    assert "bytes of this connection wait" in (refused[0].remark or "")
    disk.may_go_on.set()
    assert [(await client.next()).code for _ in range(stored)] == [0] * stored
    assert broker._servers[0].memory.by_kind()["waiting"] == 0


async def test_a_send_that_waits_for_its_topic_gets_a_response_before_a_stop(tmp_path: Path) -> None:
    """Its producer could not know whether the message is stored, and sent it to no other broker."""
    settings = {**SMALL, "listenPort": "0", "storePathRootDir": str(tmp_path)}
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    disk = broker.topics._disk = HeldDisk()
    try:
        async with (
            await RawClient.open(broker.address) as first,
            await RawClient.open(broker.address) as late,
        ):
            sending = [asyncio.create_task(send(first, b"x", topic="New"))]
            assert await asyncio.to_thread(disk.waits.wait, 60)
            sending.append(asyncio.create_task(send(late, b"x", topic="Later")))
            await until(lambda: "Later" in broker.topics._creating)
            closing = asyncio.create_task(broker.close())
            await until(lambda: broker.phase not in (None, "stopping: consumers"))
            disk.may_go_on.set()
            for one in sending:
                assert (await one).code in (0, ResponseCode.SERVICE_NOT_AVAILABLE)
            await closing
    finally:
        disk.may_go_on.set()
        await broker.close()


async def test_headers_of_messages_that_wait_for_a_topic_are_bounded(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """Only bodies were counted, and a header may have a mebibyte: 4 GB on one connection."""
    header = send_header(topic="New", text="x" * 900_000)
    client.writer.write(encode_command(Command.request(RequestCode.SEND_MESSAGE_V2, header, b"x")) * 20)
    waiting = (8 << 20) // 900_000
    refused = [await client.next() for _ in range(20 - waiting)]
    assert {response.code for response in refused} == {ResponseCode.SYSTEM_BUSY}
    disk.may_go_on.set()
    responses = [await client.next() for _ in range(waiting)]
    assert {response.code for response in responses} == {ResponseCode.MESSAGE_ILLEGAL}
    assert broker._servers[0].memory.by_kind()["waiting"] == 0


async def test_a_topic_that_cannot_be_saved_is_rejected(
    broker: Broker, client: RawClient, disk: HeldDisk
) -> None:
    """With a full disk, topics would be missing after a restart, or requests would get no response."""
    disk.is_full = True
    disk.may_go_on.set()
    for response in (
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("Mine")),
        await send(client, b"x", topic="New"),
    ):
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark is not None
        assert "No space left" in response.remark
    assert (await client.call(RequestCode.HEART_BEAT, body=heartbeat(1))).code == 0  # they are made later
    assert {"Mine", "New", "%RETRY%group-0"}.isdisjoint(broker.topics.names)
    assert broker.consumers.clients.consumer_group("group-0") is not None
    disk.is_full = False
    assert (await client.call(RequestCode.HEART_BEAT, body=heartbeat(1))).code == 0
    assert "%RETRY%group-0" in broker.topics.names
    assert (await send(client, b"x", topic="New")).code == 0


async def test_responses_have_the_current_tables(broker: Broker, client: RawClient) -> None:
    """A slave would copy outdated tables, since brokers cache the response for each version of a table."""
    seen = []
    for number in range(3):
        assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic(f"T{number}"))).code == 0
        broker.topics.add([TopicConfig(topic_name=f"A{number}")])
        broker.consumers.groups.find(f"g{number}")
        group = SubscriptionGroupConfig(group_name=f"h{number}").encode()
        assert (await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
        await broker.topics.saver.drain()  # the save of A{number} changes the version
        for _ in range(2):
            response = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
            topics = TopicConfigSerializeWrapper.decode(response.body)
            assert topics == broker.topics.snapshot()
            response = await client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            groups = SubscriptionGroupWrapper.decode(response.body)
            assert groups == broker.consumers.groups.snapshot()
        seen.append((len(topics.topic_config_table), len(groups.subscription_group_table)))
    assert [(a - seen[0][0], b - seen[0][1]) for a, b in seen] == [(0, 0), (2, 2), (4, 4)]
    header = DeleteTopicRequestHeader(topic="T0")
    assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 0
    response = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert "T0" not in TopicConfigSerializeWrapper.decode(response.body).topic_config_table


async def test_requests_about_a_large_topic_block_no_client() -> None:
    """16 KB of them stopped the broker for 150 s, while it kept 1.7 GB of responses."""
    async with serving(settings={**SMALL, "maxTopicQueues": "6000"}) as (cluster, hog):
        broker = cluster.brokers[0]
        assert (await hog.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("Large", 6_000))).code == 0
        request = Command.request(
            RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="Large")
        )
        hog.writer.write(encode_command(request) * 20)
        await hog.writer.drain()
        for _ in range(5):
            assert await serves_another(broker)
        channels = [channel for server in broker._servers for channel in server.channels]
        unsent = [channel._unsent_bytes() for channel in channels]
        responses = [await hog.next() for _ in range(20)]
        assert {(response.code, len(response.body)) for response in responses} == {
            (0, len(responses[0].body))
        }
        # The next response may be complete when one exceeds the mark; no other begins.
        two_responses = 2 * len(encode_command(responses[0]))
        assert max(unsent) <= broker.config.listen.options.write_high_bytes + two_responses


async def test_responses_that_fit_no_frame_are_not_made() -> None:
    """A query of all groups of a broker could take seconds, and more memory than a frame may have."""
    async with serving(settings={**SMALL, "maxTopicQueues": "20000"}) as (cluster, client):
        assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("L", 20_000))).code == 0
        offsets, groups = cluster.brokers[0].consumers.offsets, cluster.brokers[0].consumers.groups
        for number in range(10):
            offsets.commit(f"g{number}", "L", 0, 1)
            groups.find(f"g{number}")
        ordered = GetConsumeStatsInBrokerHeader(is_order=True)
        assert (await client.call(RequestCode.GET_BROKER_CONSUME_STATS, ordered)).code == 0
        every = GetConsumeStatsInBrokerHeader(is_order=False)
        response = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, every)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "more than 12582912" in (response.remark or "")
        one = GetConsumeStatsRequestHeader(consumer_group="g1")
        assert (await client.call(RequestCode.GET_CONSUME_STATS, one)).code == 0


async def test_an_administrators_change_survives_a_kill(tmp_path: Path) -> None:
    """A broker that is killed right after its response would lose an operator's change."""
    arguments = (
        "--listen",
        "127.0.0.1:0",
        "--store",
        str(tmp_path),
        "--set",
        "mappedFileSizeCommitLog=1048576",
    )
    process, address = await start("broker", *arguments)
    async with await RawClient.open(address) as admin:

        async def done(code: int, header: Header | None = None, body: bytes = b"") -> None:
            assert (await admin.call(code, header, body)).code == 0

        for number in range(20):
            await done(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic(f"T{number}"))
            group = SubscriptionGroupConfig(group_name=f"g{number}", retry_max_times=number)
            await done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
        await done(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T1", 7))
        await done(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T0"))
        await done(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader(group_name="g0")
        )
        await stop(process, signal.SIGKILL)
    process, address = await start("broker", *arguments)
    try:
        async with await RawClient.open(address) as admin:
            found = []
            for number in range(20):
                topic = GetTopicConfigRequestHeader(topic=f"T{number}")
                group_header = GetSubscriptionGroupConfigRequestHeader(group=f"g{number}")
                found.append(
                    (
                        await admin.call(RequestCode.GET_TOPIC_CONFIG, topic),
                        await admin.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group_header),
                    )
                )
    finally:
        await stop(process)
    assert [(a.code, b.code) for a, b in found] == [
        (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), *[(0, 0)] * 19,
    ]  # fmt: skip
    queues = [TopicConfig.decode(topic.body).write_queue_nums for topic, _ in found[1:]]
    tries = [SubscriptionGroupConfig.decode(group.body).retry_max_times for _, group in found[1:]]
    assert queues == [7, *[3] * 18]
    assert tries == list(range(1, 20))
