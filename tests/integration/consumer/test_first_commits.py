"""First commits of a group at a broker that, like RocketMQ's, makes its table of a topic without a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rocketpy import AdminClient, PullConsumer
from rocketpy.admin.reset import ResetTo
from rocketpy.client.instance import ClientInstance
from rocketpy.config import ClientConfig
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.consumer.group.offset_stores import BrokerOffsets
from rocketpy.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    GroupList,
    MessageQueue,
    QueueData,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Peer

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


class JavaBroker(Peer):
    """A name server and broker. Commits that arrive together read the table before any of them changes it.

    loses: how many commits get a response, but are overwritten.
    """

    def __init__(self) -> None:
        super().__init__(self.respond)
        self.offsets: dict[str, dict[int, int]] = {}
        self.loses = 0

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Respond like a broker with four queues of T, which end at offset 9."""
        match request.code:
            case RequestCode.GET_ROUTEINTO_BY_TOPIC:
                return request.reply(body=self._route().encode())
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = {data.broker_name: data for data in self._route().broker_datas}
                info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table={"c": ["broker-a"]})
                return request.reply(body=info.encode())
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                header = request.header_as(UpdateConsumerOffsetRequestHeader)
                table = self.offsets.get(header.topic)
                asyncio.get_running_loop().call_soon(self._commit, channel, request, header, table)
                return None
            case RequestCode.QUERY_CONSUMER_OFFSET:
                wanted = request.header_as(QueryConsumerOffsetRequestHeader)
                offset = self.offsets.get(wanted.topic, {}).get(wanted.queue_id)
                if offset is None:
                    return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="none")
                return request.reply(header=QueryConsumerOffsetResponseHeader(offset=offset))
            case RequestCode.GET_MIN_OFFSET:
                return request.reply(header=GetMinOffsetResponseHeader(offset=0))
            case RequestCode.GET_MAX_OFFSET:
                return request.reply(header=GetMaxOffsetResponseHeader(offset=9))
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return request.reply(body=GroupList(group_list=["g"]).encode())
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark="none")
        return request.reply()

    def _commit(
        self,
        channel: Channel,
        request: Command,
        header: UpdateConsumerOffsetRequestHeader,
        table: dict[int, int] | None,
    ) -> None:
        if self.loses:
            self.loses -= 1
        elif table is None:
            self.offsets[header.topic] = {header.queue_id: header.commit_offset}
        else:
            table[header.queue_id] = header.commit_offset
        channel.reply(request.reply())

    def _route(self) -> TopicRouteData:
        return TopicRouteData(
            queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6)],
            broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: self.address})],
        )

    @property
    def commits(self) -> int:
        """How many commits it received."""
        return len(self.requests(RequestCode.UPDATE_CONSUMER_OFFSET))


@pytest.fixture
async def broker() -> AsyncIterator[JavaBroker]:
    """A running broker."""
    async with JavaBroker() as running:
        yield running


@pytest.fixture
async def api(broker: JavaBroker) -> AsyncIterator[ConsumerApi]:
    """The requests of a group."""
    client = await ClientInstance.acquire(ClientConfig(namesrv=broker.address))
    yield ConsumerApi(client, "g", 3000)
    await client.release()


@pytest.mark.parametrize("pulls_commit", [True, False])
async def test_first_commits_of_several_queues_are_all_kept(
    broker: JavaBroker, api: ConsumerApi, pulls_commit: bool
) -> None:
    """A group would repeat the messages of all queues but one after the close of its only member."""
    offsets = BrokerOffsets(api, pulls_commit=pulls_commit)
    assert await offsets.write(dict.fromkeys(QUEUES, 7), again=True) is None
    assert broker.offsets == {"T": dict.fromkeys(range(4), 7)}


async def test_commits_of_a_pull_consumer_are_all_kept(broker: JavaBroker) -> None:
    """An application that commits its queues together would lose the offsets of all but one."""
    async with PullConsumer("g", broker.address) as consumer:
        await asyncio.gather(*(consumer.commit(queue, 7) for queue in QUEUES))
        assert [await consumer.committed(queue) for queue in QUEUES] == [7] * 4


async def test_a_reset_of_a_new_group_sets_all_queues(broker: JavaBroker) -> None:
    """The command would print new offsets that the broker does not have."""
    async with AdminClient(broker.address) as admin:
        await admin.groups.reset("g", "T", ResetTo.beginning())
    assert broker.offsets == {"T": dict.fromkeys(range(4), 0)}


async def test_a_commit_that_a_pull_overwrites_is_repeated(broker: JavaBroker, api: ConsumerApi) -> None:
    """A broker that handles an earlier pull late would bring back its offset after the member has closed."""
    offsets = BrokerOffsets(api, pulls_commit=True)
    broker.offsets["T"] = {0: 3}
    broker.loses = 1
    assert await offsets.write({QUEUES[0]: 7}, again=True) is None
    assert broker.offsets["T"] == {0: 7}


async def test_an_unchanged_offset_is_sent_twice(broker: JavaBroker, api: ConsumerApi) -> None:
    """A first commit that was lost to one of another member would be missing until the offset changes."""
    offsets = BrokerOffsets(api, pulls_commit=False)
    broker.loses = 1
    for _ in range(4):
        assert await offsets.write({QUEUES[0]: 7}) is None
    assert broker.offsets == {"T": {0: 7}}
    assert broker.commits == 2


async def test_commits_go_on_after_a_failed_first_one(broker: JavaBroker, api: ConsumerApi) -> None:
    """The commits of all other queues would fail with the first one, or wait forever."""
    script, failing = broker.script, 1

    def respond(channel: Channel, request: Command) -> Command | bytes | None:
        nonlocal failing
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET and failing:
            failing -= 1
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="later")
        assert script is not None
        return script(channel, request)

    broker.script = respond
    broker.offsets["T"] = {}
    offsets = BrokerOffsets(api, pulls_commit=False)
    assert await offsets.write(dict.fromkeys(QUEUES, 7)) is not None
    assert broker.offsets == {"T": dict.fromkeys(range(1, 4), 7)}
    assert await offsets.write(dict.fromkeys(QUEUES, 7)) is None
    assert broker.offsets == {"T": dict.fromkeys(range(4), 7)}


async def test_a_first_commit_that_connects_is_alone(broker: JavaBroker, api: ConsumerApi) -> None:
    """A commit during it would count as the first one of the new connection, and one of both be lost."""
    script, held = broker.script, asyncio.Event()
    assert script is not None
    for queue in QUEUES[:2]:
        assert await api.committed_offset(queue) is None
    channel = api.client.connections.get(broker.address).channel
    assert channel is not None
    channel.close()
    await channel.wait_closed()

    def respond(channel: Channel, request: Command) -> Command | bytes | None:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET and not held.is_set():
            waiting.append((channel, request))
            return None
        return script(channel, request)

    waiting: list[tuple[Channel, Command]] = []
    broker.script = respond
    async with asyncio.TaskGroup() as commits:
        commits.create_task(api.commit(QUEUES[0], 7))
        await broker.until(lambda: broker.commits == 1)
        commits.create_task(api.commit(QUEUES[1], 7))
        assert await api.committed_offset(QUEUES[2]) is None  # after what the second one has sent
        assert broker.commits == 1
        held.set()
        for channel, request in waiting:
            script(channel, request)
    assert broker.offsets == {"T": {0: 7, 1: 7}}
