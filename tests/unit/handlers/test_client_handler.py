"""ClientHandler: heartbeats, members that are notified, and queue locks."""

from pathlib import Path

from rocketpy.protocol.bodies import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetConsumerListByGroupRequestHeader
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import BrokerConfig, ConsumeConfig
from rocketpy_broker.handlers.clients.clients import ClientHandler
from rocketpy_broker.handlers.pull.pull_checks import ExpressionPolicy
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.locks import QueueLocks
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.store import StoreConfig
from tests.unit.handlers.handler_server import HandlerServer, running
from tests.waiting import until

QUEUE = MessageQueue("T", "b", 0)


def server_at(root: Path, **consume: int) -> HandlerServer:
    """The handler with its tables, below a directory."""
    config = BrokerConfig(store=StoreConfig(root=root), consume=ConsumeConfig(**consume))  # type: ignore[arg-type]
    tasks = Tasks("the test")
    handler = ClientHandler(
        ClientRegistry(),
        SubscriptionGroupTable(root / "groups.json", tasks, config.consume, retry_queues_max=16),
        TopicTable(config, root / "topics.json", tasks),
        QueueLocks(),
        ExpressionPolicy(config.consume),
        config.consume,
        now_ms=lambda: 0.0,
        owner=lambda channel: channel.remote_host,
    )
    server = HandlerServer(handler)
    server.closed.append(handler.channel_closed)
    return server


def heartbeat(client_id: str, *groups: str) -> bytes:
    """The body of a heartbeat of a consumer."""
    data = [
        ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
        )
        for group in groups
    ]
    return HeartbeatData(client_id=client_id, consumer_data_set=data).encode()


async def test_members_are_notified_when_one_joins_or_leaves(tmp_path: Path) -> None:
    """QUIRKS 41: queues of a member that has left would wait for the next periodic rebalance."""
    async with running(server_at(tmp_path), clients=2) as (first, second):
        assert (await first.call(RequestCode.HEART_BEAT, body=heartbeat("c1", "g"))).code == 0
        await until(lambda: first.notified == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED])
        assert (await second.call(RequestCode.HEART_BEAT, body=heartbeat("c2", "g"))).code == 0
        await until(lambda: len(first.notified) == 2 and len(second.notified) == 1)
        assert (await second.call(RequestCode.HEART_BEAT, body=heartbeat("c2", "g"))).code == 0
        header = GetConsumerListByGroupRequestHeader(consumer_group="g")
        response = await first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        assert GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list == ["c1", "c2"]
        assert len(first.notified) == 2  # the second heartbeat has changed nothing
        second.channel.close()
        await until(lambda: len(first.notified) == 3)
        response = await first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        assert GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list == ["c1"]


async def test_a_heartbeat_of_too_many_new_groups_is_rejected(tmp_path: Path) -> None:
    """One heartbeat could fill the table of groups, and create as many retry topics."""
    async with running(server_at(tmp_path, new_groups_max=2)) as (client,):
        response = await client.call(RequestCode.HEART_BEAT, body=heartbeat("c", "a", "b", "c"))
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "names 3 consumer groups" in (response.remark or "")
        assert (await client.call(RequestCode.HEART_BEAT, body=heartbeat("c", "a", "b"))).code == 0
        assert (tmp_path / "topics.json").exists()  # the response waits for the retry topics


async def test_a_queue_is_locked_for_one_client(tmp_path: Path) -> None:
    """Two clients would consume one queue in order, at the same time."""
    async with running(server_at(tmp_path)) as (client,):
        for client_id, queues in (("c1", [QUEUE]), ("c2", []), ("c1", [QUEUE])):
            body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[QUEUE])
            response = await client.call(RequestCode.LOCK_BATCH_MQ, body=body.encode())
            assert LockBatchResponseBody.decode(response.body).lock_ok_mq_set == queues
