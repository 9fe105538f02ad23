"""SlaveSync: a slave's tables against the handlers of a master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import (
    DataVersion,
    MessageRequestModeSerializeWrapper,
    RequestMode,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.admin import AdminHandler
from rocketpy_broker.handlers.assignments import AssignmentHandler
from rocketpy_broker.handlers.pull.offsets import OffsetHandler
from rocketpy_broker.handlers.pull.query import QueryHandler
from rocketpy_broker.services.cluster import slave_sync
from rocketpy_broker.services.cluster.slave_sync import SlaveSync
from rocketpy_broker.services.cluster.topic_queues import TopicQueues
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.formats import SEEN_GROUP
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import system_clock
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.integration.sdk_peers import Peer
from tests.unit.handlers.handler_server import HandlerServer, running
from tests.unit.store.helpers import drop_queues, put, small_config
from tests.waiting import until


class Tables:
    """The tables of one broker, below a directory."""

    def __init__(self, root: Path) -> None:
        self.config = BrokerConfig(store=small_config(root), name="b")
        self.tasks = Tasks(root.name)
        self.store = MessageStore(self.config.store)
        self.topics = TopicTable(self.config, root / "topics.json", self.tasks)
        self.groups = SubscriptionGroupTable(
            root / "groups.json", self.tasks, self.config.consume, retry_queues_max=16
        )
        self.modes = RequestModeTable(root / "modes.json", self.tasks)
        self.offsets = ConsumerOffsets(root / "offsets.json")
        driver = StoreDriver(self.store)
        self.delay = DelayService(
            self.store,
            driver,
            root / "delay.json",
            self.tasks,
            queue_to_deliver=self.topics.queue_to_deliver,
            interval_ms=1000,
        )

    def server(self) -> HandlerServer:
        """What a slave can request of this broker."""
        admin = AdminHandler(
            self.store,
            self.topics,
            self.groups,
            self.config,
            offsets=self.offsets,
            modes=self.modes,
            order=PopOrder(self.config.store.root / "order.json", self.offsets),
            remove_check_points=self._remove_check_points,
            delay_offsets=lambda: {1: 7},
            info=dict,
            wait_registered=self.groups.save,
            delete_expired_files=self.groups.save,
            drop_queues=self._drop_queues,
        )
        slices = Slices(self.tasks, lambda: asyncio.get_running_loop().time() * 1000)
        offsets = OffsetHandler(self.store, self.offsets, ClientRegistry(), self.topics, slices)
        queues = TopicQueues(self.config.consume, self.tasks, route=_no_route, now_ms=slices.now_ms)
        modes = AssignmentHandler(
            self.topics, self.groups, ClientRegistry(), self.modes, queues, self.config.consume
        )
        query = QueryHandler(
            self.store,
            ClientRegistry().subscription,
            slices=slices,
            may_read=lambda _, __: True,
            topics=self.topics,
        )
        return HandlerServer(admin, offsets, modes, query)

    def sync(self, interval_ms: int = 1000, may_sync: Callable[[], bool] = lambda: True) -> SlaveSync:
        """A SlaveSync that copies a master's tables into these."""
        return SlaveSync(
            self.topics,
            self.groups,
            self.modes,
            self.offsets,
            self.delay,
            self.store,
            self.tasks,
            registration=self.config.registration,
            interval_ms=interval_ms,
            drop_queues=self._drop_queues,
            may_sync=may_sync,
        )

    async def _remove_check_points(self, _: str) -> None:
        """There are none."""

    async def _drop_queues(self, is_unwanted: Callable[[ConsumeQueue], bool]) -> int:
        return drop_queues(self.store, is_unwanted)


async def _no_route(_: str) -> TopicRouteData | None:
    return None


@pytest.fixture
def master(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "master")


@pytest.fixture
def slave(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "slave")


async def test_all_tables_are_copied(master: Tables, slave: Tables) -> None:
    """A slave that becomes the master would lack topics and groups, and deliver messages twice."""
    await master.topics.update(TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3))
    await master.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=5))
    master.offsets.commit("g", "T", 2, 42)
    await master.modes.set(
        SetMessageRequestModeRequestBody(topic="T", consumer_group="g", mode=RequestMode.POP)
    )
    await slave.topics.update(TopicConfig(topic_name="Gone"))
    sync = slave.sync()
    server = master.server()
    async with running(server):
        sync.follow(server.address)
        for _ in range(2):
            await sync.sync_all()
            assert slave.topics.snapshot() == master.topics.snapshot()
            assert slave.groups.snapshot() == master.groups.snapshot()
            assert slave.modes.snapshot() == master.modes.snapshot()
            assert slave.offsets.get("g", "T", 2) == 42
            assert slave.delay.offsets() == {1: 7}
            await master.topics.delete("T")
        await sync.close()
    again = Tables(slave.config.store.root)
    again.topics.load()
    assert again.topics.get("T") is None
    assert again.topics.version == master.topics.version


async def test_modes_of_a_master_without_versions_are_copied(slave: Tables) -> None:
    """A slave of RocketMQ's broker would copy the modes once, and then never again."""

    async def adopt(*groups: str) -> list[str]:
        modes = {group: SetMessageRequestModeRequestBody(topic="T", consumer_group=group) for group in groups}
        wrapper = MessageRequestModeSerializeWrapper(message_request_mode_map={"T": modes} if modes else {})
        assert wrapper.data_version == DataVersion()
        await slave.modes.adopt(wrapper)
        return sorted(slave.modes.get("T") or {})

    assert await adopt("g", "h") == ["g", "h"]
    assert await adopt("h", "i") == ["h", "i"]
    assert await adopt() == []


async def test_tables_copied_before_a_failure_are_kept(master: Tables, slave: Tables) -> None:
    """One request that a master rejects would stop the copy of all tables."""
    await master.topics.update(TopicConfig(topic_name="T"))
    sync = slave.sync()
    server = master.server()
    del server.handlers[RequestCode.GET_ALL_CONSUMER_OFFSET]
    async with running(server):
        await sync.sync_all()  # no master is known
        assert server.requests == []
        sync.follow(server.address)
        with pytest.raises(BrokerError):
            await sync.sync_all()
        assert slave.topics.get("T") is not None
        sync.unfollow()
        await sync.sync_all()
        assert len(server.requests) == 2


async def test_a_failed_copy_is_reported_once_and_repeated(
    master: Tables, slave: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """After one failed request a slave would never copy again, or it would fill the log."""
    sync = slave.sync(interval_ms=1)
    server = master.server()
    handler = server.handlers.pop(RequestCode.GET_ALL_CONSUMER_OFFSET)
    sync.start()
    async with running(server):
        sync.follow(server.address)
        await until(lambda: len(server.requests) > 6)  # each copy ends at its second request
        assert "code 3" in sync.problem
        assert slave.delay.offsets() == {}
        server.handlers[RequestCode.GET_ALL_CONSUMER_OFFSET] = handler
        await until(lambda: not sync.problem)
        assert slave.delay.offsets() == {1: 7}
        await sync.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["rocketpy.broker.sync"]
    assert server.address in warnings[0].getMessage()


async def test_a_master_that_does_not_respond_is_asked_over_a_new_connection(
    slave: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a firewall has dropped would be used again and again."""
    monkeypatch.setattr("rocketpy_broker.services.cluster.remoting_client._TIMEOUT_MS", 50)
    sync = slave.sync(interval_ms=1)
    async with Peer(lambda _channel, _request: None) as silent:
        sync.follow(silent.address)
        sync.start()
        await until(lambda: silent.opened > 1)
        await sync.close()
        assert "did not respond in time" in sync.problem


@pytest.mark.parametrize("is_new", [False, True])
async def test_queues_of_a_topic_that_its_master_lacks(master: Tables, slave: Tables, is_new: bool) -> None:
    """A new topic would begin with the messages of the deleted one; or lose messages that just arrived.

    A master of RocketMQ does not say that it deleted a topic: the slave sees that it is no longer listed.
    """
    await slave.topics.update(TopicConfig(topic_name="T"))
    with slave.store as store:
        if not is_new:
            put(store, 0)
        before_ms = system_clock()
        await until(lambda: system_clock() > before_ms)
        await master.topics.update(TopicConfig(topic_name="Other"))
        changed_ms = system_clock()
        await until(lambda: system_clock() > changed_ms)
        if is_new:
            put(store, 0)
        store.dispatch()
        server = master.server()
        sync = slave.sync()
        async with running(server):
            sync.follow(server.address)
            await sync.sync_all()
            await sync.close()
        assert ("T" in {topic for topic, _ in store.queues.queues}) is is_new


async def test_nothing_is_copied_while_it_is_not_allowed(master: Tables, slave: Tables) -> None:
    """A slave that waits for its promotion would replace its tables by those of an old master."""
    asked: list[bool] = []
    is_allowed = False

    def may_sync() -> bool:
        asked.append(is_allowed)
        return is_allowed

    await master.topics.update(TopicConfig(topic_name="T"))
    sync = slave.sync(interval_ms=1, may_sync=may_sync)
    server = master.server()
    sync.start()
    async with running(server):
        sync.follow(server.address)
        await until(lambda: len(asked) > 3)
        assert server.requests == []
        is_allowed = True
        await until(lambda: slave.topics.get("T") is not None)
        await sync.close()


async def test_offsets_wait_for_the_check_points_of_pops(
    master: Tables, slave: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the master, a slave would skip the messages of pops whose check points it lacks."""
    monkeypatch.setattr(slave_sync, "_WAITS_MAX", 2)
    master.store.open()
    slave.store.open()
    topic = "rmq_sys_REVIVE_LOG_c"
    put(master.store, 1, topic=topic)
    master.offsets.commit(SEEN_GROUP, topic, 0, 0)
    master.offsets.commit("g", "T", 0, 7)
    sync = slave.sync()
    server = master.server()
    async with running(server):
        sync.follow(server.address)
        await sync.sync_all()
        assert slave.offsets.get("g", "T", 0) is None
        put(slave.store, 1, topic=topic)
        await sync.sync_all()
        assert slave.offsets.get("g", "T", 0) == 7
        await sync.close()
    master.store.close()
    slave.store.close()
