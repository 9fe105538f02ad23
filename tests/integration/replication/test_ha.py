"""A master and its slaves on sockets: copies, rejected slaves, and restarts."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SendStatus,
)
from rocketpy.errors import TransportError
from rocketpy.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address, ChannelOptions, StreamProtocol, connect, register_transport
from rocketpy.transport.tcp import TcpTransport
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.replication.ha.client import HaClientState
from rocketpy_broker.replication.ha.master import MasterSession
from rocketpy_broker.store import MessageStore
from tests.integration.ha_pair import Pair, caught_up, log_bytes, pair
from tests.integration.raw_client import RawClient
from tests.integration.sdk_peers import Peer
from tests.ports import no_server_at
from tests.waiting import LIMIT_S, until

PATIENT = ProducerConfig(send_timeout_ms=60_000)
"""Timeouts that a machine that pauses for seconds does not exceed."""


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path) as it:
        yield it


async def send(brokers: Pair, count: int, size: int = 500, topic: str = "HaTopic") -> None:
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        await asyncio.gather(
            *(
                producer.send(Message(topic, f"{n} ".encode() * (size // 5), keys=[f"k{n}"]))
                for n in range(count)
            )
        )


async def test_a_slave_finds_its_master_and_copies_everything(brokers: Pair) -> None:
    """A master's messages would be lost with its machine."""
    master = await brokers.master()
    await send(brokers, 300)
    slave = await brokers.slave()
    await send(brokers, 200)
    await caught_up(master, slave)
    assert len(master.store.commit_log.files.mapped_files) > 3
    assert log_bytes(slave) == log_bytes(master)
    assert slave.store.min_physical_offset == 0
    await until(lambda: slave.store.dispatch_behind_bytes == 0)
    for queue_id in range(4):
        ours, theirs = (b.store.queues.queues["HaTopic", queue_id] for b in (slave, master))
        assert list(ours.units()) == list(theirs.units())
    states = master.replication.connected.states(master.store.max_physical_offset)
    await until(lambda: master.replication.connected.acked == master.store.max_physical_offset)
    assert [state.broker_id for state in states] == [1]


async def test_a_bug_in_the_session_of_a_slave_ends_only_its_connection(
    brokers: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next send would stop the master, or other slaves would get nothing."""
    master = await brokers.master()
    other, strange = await brokers.slave(), await brokers.slave("strange", 2)
    await send(brokers, 20)
    await caught_up(master, other)
    await caught_up(master, strange)
    step, failures = MasterSession.step, 0

    def fail(session: MasterSession, event: Any, now_ms: float) -> Any:
        nonlocal failures
        if session.slave is not None and session.slave.broker_id == 2:
            failures += 1
            raise ValueError("a bug")
        return step(session, event, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(MasterSession, "step", fail)
        await until(lambda: failures)
        await send(brokers, 20)
        await caught_up(master, other)
        await until(lambda: failures > 2)  # it connects again and again
        assert master.health().failure is None
        assert master.health().stalled == ()
    await caught_up(master, strange)
    assert "ValueError: a bug" in caplog.text


class Carrier(TcpTransport):
    """A transport of a user, which records the addresses that it connects to."""

    def __init__(self) -> None:
        self.connected: set[Address] = set()

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        self.connected.add(address)
        await super().connect(address, protocol, options)


async def test_replication_uses_a_registered_transport(brokers: Pair) -> None:
    """Clients would use QUIC, for example, while slaves try TCP, where nothing listens."""
    carrier = Carrier()
    register_transport("carrier", carrier)
    listen = "carrier://127.0.0.1:0"
    master = await brokers.master(listen=listen)
    slave = await brokers.slave(listen=listen)
    await send(brokers, 100)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    ha_address = Address.parse(master.replication.advertised_address)
    assert ha_address.scheme == "carrier"
    assert carrier.connected >= {ha_address, master.address}


async def test_a_slave_continues_after_a_restart(brokers: Pair) -> None:
    """A restarted slave would copy everything a second time, or miss messages."""
    master = await brokers.master()
    slave = await brokers.slave()
    await send(brokers, 100)
    await caught_up(master, slave)
    await brokers.stop(slave)
    await send(brokers, 100)
    slave = await brokers.slave()
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert not (brokers.root / "slave" / "cut").exists()


async def test_a_slave_that_stops_while_it_catches_up(brokers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a slave copied in a burst would be in no queue after a clean stop."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._BACKLOG_INTERVAL_S", 3600)
    master = await brokers.master()
    await send(brokers, 400, size=2000)
    slave = await brokers.slave()
    await caught_up(master, slave)
    assert slave.store.dispatch_behind_bytes > 0
    await brokers.stop(slave)
    with MessageStore(slave.store.config) as store:
        queues = [(queue.topic, queue.queue_id) for queue in master.store.queues.queues.values()]
        ends = [[one.max_offset_in_queue(*queue) for queue in queues] for one in (store, master.store)]
        assert ends[0] == ends[1]
        assert sum(ends[0]) == 400


async def test_slaves_of_slaves(brokers: Pair) -> None:
    """Many slaves would all load the master."""
    master = await brokers.master()
    first = await brokers.slave("first", 1)
    second = await brokers.slave("second", 2, haMasterAddress=first.replication.advertised_address)
    await send(brokers, 100)
    await caught_up(master, first, second)
    assert log_bytes(second) == log_bytes(master)
    assert first.replication.connected.connections == master.replication.connected.connections == 1


async def test_a_slave_rejects_sends(brokers: Pair) -> None:
    """The slave's log would differ from its master's (QUIRKS 39)."""
    await brokers.master()
    slave = await brokers.slave()
    before = slave.topics.names
    channel = await connect(slave.address, Peer())
    for topic in ("TBW102", "BenchmarkTest", "New"):
        header = SendMessageRequestHeaderV2(
            producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=0, flag=0, properties="", reconsume_times=0,
        )  # fmt: skip
        response = await channel.request(Command.request(RequestCode.SEND_MESSAGE_V2, header, b"x"), 60_000)
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "slave" in (response.remark or "")
    channel.close()
    assert slave.store.max_physical_offset == 0
    assert slave.topics.names == before


async def test_consumers_read_from_the_slave_without_the_master(brokers: Pair) -> None:
    """A dead master would stop consumers, although its slave has all messages."""
    master = await brokers.master()
    slave = await brokers.slave()
    await send(brokers, 50)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    await brokers.stop(master)
    bodies = set()
    async with PullConsumer("readers", namesrv=brokers.namesrv_address) as consumer:
        for queue in await consumer.fetch_queues("HaTopic"):
            offset = 0
            while offset < await consumer.max_offset(queue):
                result = await consumer.pull(queue, offset, max_count=32)
                bodies |= {message.body for message in result.messages}
                offset = result.next_offset
    assert len(bodies) == 50


async def _put(broker: Broker, count: int) -> None:
    """Store this many messages in queue 0."""
    header = SendMessageRequestHeaderV2(
        producer_group="g", topic="HaTopic", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0, properties="WAIT\x01true\x02", reconsume_times=0,
    )  # fmt: skip
    channel = await connect(broker.address, Peer())
    for number in range(count):
        request = Command.request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)
        assert (await channel.request(request, 60_000)).code == 0
    channel.close()


async def _pull_at(
    broker: Broker, offset: int, *, suspend: bool = False, topic: str = "HaTopic", commit: int | None = None
) -> Command:
    """Pull from queue 0 as a consumer. commit: the offset that the pull commits."""
    header = PullMessageRequestHeader(
        consumer_group="readers", topic=topic, queue_id=0, queue_offset=offset, max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION
        | (commit is not None) * PullSysFlag.COMMIT_OFFSET
        | suspend * PullSysFlag.SUSPEND,
        commit_offset=commit or 0, suspend_timeout_millis=20_000, sub_version=0, subscription="*",
        expression_type="TAG",
    )  # fmt: skip
    channel = await connect(broker.address, Peer())
    response = await channel.request(Command.request(RequestCode.PULL_MESSAGE, header), 60_000)
    channel.close()
    return response


async def test_a_slave_ignores_the_offset_in_a_pull(brokers: Pair) -> None:
    """A slave would overwrite the offsets that it copies, and readers repeat or skip messages."""
    master = await brokers.master()
    slave = await brokers.slave()
    await _put(master, 5)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    assert (await _pull_at(master, 3, commit=2)).code == ResponseCode.SUCCESS
    assert master.consumers.offsets.get("readers", "HaTopic", 0) == 2
    await until(lambda: slave.consumers.offsets.get("readers", "HaTopic", 0) == 2)
    await brokers.stop(master)
    assert (await _pull_at(slave, 3, commit=4)).code == ResponseCode.SUCCESS
    assert slave.consumers.offsets.get("readers", "HaTopic", 0) == 2


@pytest.mark.parametrize("suspend", [False, True])
async def test_a_slave_does_not_correct_offsets(brokers: Pair, *, suspend: bool) -> None:
    """A slave that lags would move the readers of a dead master back to handled messages.

    Source: PullMessageProcessor of RocketMQ, offsetCheckInSlave=false.
    """
    master = await brokers.master()
    slave = await brokers.slave(shortPollingTimeMills="10")
    await _put(master, 5)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    await brokers.stop(master)
    for offset in (6, 10**9, -1):
        response = await _pull_at(slave, offset, suspend=suspend)
        found = response.header_as(PullMessageResponseHeader)
        assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (found.next_begin_offset, found.suggest_which_broker_id) == (offset, 0)
    assert (await _pull_at(slave, 5)).code == ResponseCode.PULL_NOT_FOUND
    assert (await _pull_at(slave, 0)).code == ResponseCode.SUCCESS
    assert slave.store.max_offset_in_queue("OFFSET_MOVED_EVENT", 0) == 0


async def test_a_slave_never_says_that_something_does_not_exist(brokers: Pair) -> None:
    """Consumers would give up messages that the slave has, or skip those that their group has not consumed.

    A slave copies topics, groups and offsets, and may be behind.
    """
    closed: dict[str, Any] = {"autoCreateSubscriptionGroup": "false"}
    master, slave = await brokers.master(**closed), await brokers.slave(**closed)
    await until(lambda: slave.consumers.groups.get("TOOLS_CONSUMER") is not None)
    await slave._sync.close()
    await master.consumers.groups.update(SubscriptionGroupConfig(group_name="readers"))
    await _put(master, 1)
    master.consumers.offsets.commit("readers", "HaTopic", 0, 1)
    await caught_up(master, slave)
    unknown: dict[RequestCode, Header] = {
        RequestCode.GET_TOPIC_STATS_INFO: GetTopicStatsInfoRequestHeader(topic="HaTopic"),
        RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanRequestHeader(
            topic="HaTopic", group="readers"
        ),
        RequestCode.GET_TOPIC_CONFIG: GetTopicConfigRequestHeader(topic="HaTopic"),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GetSubscriptionGroupConfigRequestHeader(group="readers"),
        RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetRequestHeader(
            consumer_group="readers", topic="HaTopic", queue_id=0
        ),
    }
    async with await RawClient.open(slave.address) as client:
        for code, header in unknown.items():
            response = await client.call(code, header)
            assert (response.code, "from its master" in (response.remark or "")) == (2, True), code
    assert (await _pull_at(slave, 0)).code == ResponseCode.SYSTEM_BUSY  # the group is unknown
    await slave.consumers.groups.update(SubscriptionGroupConfig(group_name="readers"))
    assert [record.body for record in decode_all((await _pull_at(slave, 0)).body)] == [b"0"]
    assert (await _pull_at(slave, 0, topic="Missing")).code == ResponseCode.SYSTEM_BUSY
    await slave.topics.update(
        TopicConfig(topic_name="HaTopic", read_queue_nums=0, write_queue_nums=0, perm=6)
    )  # the master has given it a queue since
    assert [record.body for record in decode_all((await _pull_at(slave, 0)).body)] == [b"0"]
    await slave.topics.update(TopicConfig(topic_name="HaTopic", perm=2))
    assert (await _pull_at(slave, 0)).code == ResponseCode.NO_PERMISSION
    slave._sync.start()
    await until(lambda: slave.consumers.offsets.get("readers", "HaTopic", 0) == 1)
    async with await RawClient.open(slave.address) as client:
        header = QueryConsumerOffsetRequestHeader(consumer_group="new", topic="HaTopic", queue_id=1)
        response = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
        assert response.code != ResponseCode.SYSTEM_BUSY  # the master has none either


async def test_a_reader_ahead_of_a_slave_gets_new_messages(brokers: Pair) -> None:
    """A reader ahead of the slave would pull without a pause, or miss messages that only the master has."""
    master = await brokers.master()
    slave = await brokers.slave(shortPollingTimeMills="600000")
    await _put(master, 5)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    waiting = asyncio.create_task(_pull_at(slave, 6, suspend=True))
    await until(lambda: ("HaTopic", 0) in slave.consumers.holds.queues)
    await _put(master, 2)
    response = await waiting
    assert response.code == ResponseCode.SUCCESS
    assert [record.body for record in decode_all(response.body)] == [b"1"]


@pytest.mark.parametrize(("percent", "chosen"), [("0", 1), ("40", 0)])
async def test_readers_far_behind_are_sent_to_the_slave(brokers: Pair, percent: str, chosen: int) -> None:
    """Reads of old messages from the master's disk would delay all sends, or a slave serve all readers."""
    master = await brokers.master(slaveReadEnable="true", accessMessageInMemoryMaxRatio=percent)
    slave = await brokers.slave(slaveReadEnable="true")
    await send(brokers, 50)
    await caught_up(master, slave)
    await until(lambda: slave.topics.get("HaTopic") is not None)
    async with PullConsumer("readers", namesrv=brokers.namesrv_address) as reader:
        ends = {queue: await reader.max_offset(queue) for queue in await reader.fetch_queues("HaTopic")}
        found = await reader.pull(max(ends, key=lambda queue: ends[queue]), 0, max_count=1)
    assert found.suggested_broker_id == chosen
    seen: list[bytes] = []
    consumer = PushConsumer(
        "g",
        brokers.namesrv_address,
        lambda message: seen.append(message.body),
        config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, pull_batch_size=1),
    )
    consumer.subscribe("HaTopic")
    async with consumer:
        await until(lambda: len(seen) == 50)
    assert (slave.consumers.stats.pulled_total > 0) == (chosen == 1)


async def test_a_query_by_id_finds_a_replica(brokers: Pair) -> None:
    """A query by id would fail while the master is offline, or return another message (QUIRKS 69)."""
    master = await brokers.master()
    slave = await brokers.slave()
    other = await brokers.start("other", brokerName="other")
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        queues = [MessageQueue("HaTopic", name, 0) for name in ("pair", "other")]
        sends = [(Message("HaTopic", body), queue) for queue in queues for body in (b"first", b"second")]
        ids = [(await producer.send(one, queue=queue)).offset_message_id for one, queue in sends]
    await caught_up(master, slave)
    addresses = [str(broker.address) for broker in (master, other)]
    await brokers.stop(master)
    await brokers.stop(other)
    with no_server_at(*addresses):
        async with (
            PullConsumer("readers", namesrv=brokers.namesrv_address) as consumer,
            AdminClient(brokers.namesrv_address) as admin,
        ):
            for look_up in (consumer.view_message, admin.view_message):
                found = [await look_up(message_id) for message_id in ids[:2]]
                assert [message.body for message in found] == [b"first", b"second"]
                assert {message.queue.broker_name for message in found} == {"pair"}
                with pytest.raises(TransportError):
                    await look_up(ids[2])
            assert (await admin.view_message(ids[1], "HaTopic")).body == b"second"


async def test_a_slave_follows_the_new_epoch_after_a_crash_of_its_master(brokers: Pair) -> None:
    """A slave would keep records that its master lost, and copy the next ones to the wrong place."""
    master = await brokers.master()
    slave = await brokers.slave()
    await send(brokers, 40)
    await caught_up(master, slave)
    await brokers.stop(slave)
    await brokers.stop(master)
    assert len(master.replication.epochs.state.epochs) == 1
    (brokers.root / "master" / "abort").touch()
    cut = master.store.commit_log.files
    with (brokers.root / "master" / "commitlog" / cut.mapped_files[-1].path.name).open("r+b") as file:
        file.seek(cut.max_offset - cut.mapped_files[-1].start - 100)
        file.write(bytes(100))
    (brokers.root / "master" / "checkpoint").unlink()
    lost = log_bytes_of(brokers.root / "slave")
    master = await brokers.master()
    end = master.store.max_physical_offset
    await send(brokers, 10)
    slave = await brokers.slave()
    await until(lambda: slave.replication.client.state is HaClientState.COPIES)
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert [epoch.start for epoch in slave.replication.epochs.state.epochs] == [0, end]
    (aside,) = (brokers.root / "slave" / "cut").iterdir()
    assert lost.find(aside.read_bytes()) == end


def log_bytes_of(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


async def test_a_slave_with_other_file_sizes_reports_the_remedy(brokers: Pair) -> None:
    """The slave would reconnect repeatedly without naming the reason."""
    await brokers.master(fileReservedTime="1")
    await send(brokers, 300)
    master = brokers.running[0]
    while master.store.min_physical_offset == 0:
        master.store.commit_log.files.take_first().delete()
    slave = await brokers.slave(mappedFileSizeCommitLog="131072")
    await until(lambda: "mappedFileSizeCommitLog" in slave.replication.client.problem)


@pytest.mark.parametrize("secret", ["", "other"])
async def test_a_slave_without_the_secret_gets_nothing(brokers: Pair, secret: str) -> None:
    """Each client that reaches the HA port could read every message."""
    await brokers.master(haSecret="known")
    await send(brokers, 10)
    slave = await brokers.slave(haSecret=secret) if secret else await brokers.slave()
    await until(lambda: slave.replication.client.problem != "")
    assert slave.store.max_physical_offset == 0


@pytest.mark.parametrize("idle", [64, 300])
async def test_a_slave_connects_despite_idle_connections(brokers: Pair, idle: int) -> None:
    """Silent connections would occupy all places, so that the slave of a SYNC_MASTER is rejected."""
    master = await brokers.master()
    await send(brokers, 10)
    port = master.replication.server.address
    assert port is not None
    with contextlib.ExitStack() as opened:
        for _ in range(idle):
            opened.enter_context(socket.create_connection((port.host, port.port)))
        slave = await brokers.slave()
        await caught_up(master, slave)
        assert [state.broker_id for state in master.replication.slaves()] == [1]


async def test_replication_over_memory(brokers: Pair) -> None:
    """A replicated broker could not be tried inside one process."""
    master = await brokers.start("master", listen="memory://ha-master")
    slave = await brokers.start("slave", listen="memory://ha-slave", brokerRole="SLAVE", brokerId="1")
    await send(brokers, 20)
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)


async def test_a_slave_copies_topics_groups_and_offsets(brokers: Pair) -> None:
    """A promoted slave would not know the topics of its messages (QUIRKS 56, 68)."""
    master = await brokers.master()
    master.consumers.groups.find("old")
    slave = await brokers.slave()
    await send(brokers, 1, topic="Late")
    master.consumers.groups.find("made")
    await master.consumers.groups.delete("old")
    master.consumers.offsets.commit("made", "Late", 0, 7)
    await until(lambda: slave.consumers.offsets.get("made", "Late", 0) == 7)
    await until(lambda: slave.consumers.groups.get("made") is not None)
    await until(lambda: slave.topics.snapshot() == master.topics.snapshot())
    await until(lambda: slave.consumers.groups.snapshot() == master.consumers.groups.snapshot())
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        await producer.send(Message("Late", b"soon", delay_level=1))
    await until((brokers.root / "slave" / "config" / "delayOffset.json").exists)
    await until(lambda: slave.delivery.delay.offsets() == {1: 1})
    await master.topics.delete("Late")
    await until(lambda: slave.topics.get("Late") is None)


async def test_a_sync_master_responds_once_a_slave_has_the_message(brokers: Pair) -> None:
    """SEND_OK of a SYNC_MASTER would not survive the loss of its machine (recorded: ha3)."""
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        settings = {"flushDiskType": flush, "syncFlushTimeout": "700"}
        master = await brokers.start(f"m-{flush}", brokerName=flush, brokerRole="SYNC_MASTER", **settings)
        async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
            alone = await producer.send(Message("BenchmarkTest", b"0"), queue=_queue(flush))
            assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
            slave = await brokers.slave(f"s-{flush}", 1, brokerName=flush, **settings)
            await until(lambda master=master: master.replication.connected.is_slave_ok(1 << 20))  # type: ignore[misc]
            for number in range(30):
                result = await producer.send(Message("BenchmarkTest", b"%d" % number), queue=_queue(flush))
                assert result.status is SendStatus.SEND_OK
                end = master.store.max_physical_offset
                assert slave.store.max_physical_offset == end
                assert flush == "ASYNC_FLUSH" or slave.store.flushed_offset == end
            results = await asyncio.gather(
                *(
                    producer.send(Message("BenchmarkTest", bytes(9000)), queue=_queue(flush))
                    for _ in range(50)
                )
            )
            assert {result.status for result in results} == {SendStatus.SEND_OK}


async def time_out(master: Broker) -> None:
    """Wait for a send that waits for a slave, and end its timeout."""
    waiters = master.replication._waiters
    assert waiters is not None
    await until(lambda: waiters._waiting.deadline_ms is not None)
    waiters._waiting._groups[0].deadline_ms = 0
    waiters._expire(0)


async def empty_slave(master: Broker) -> asyncio.StreamWriter:
    """Connect as a slave that has nothing yet, and reports nothing more by itself."""
    _, wire = await asyncio.open_connection(*master.replication.advertised_address.split(":"))
    wire.write(bytes(8))
    await until(lambda: master.replication.connected.is_slave_ok(1))
    return wire


async def test_a_silent_slave_delays_a_send_until_the_timeout(brokers: Pair) -> None:
    """A producer would wait forever, or believe that a slave has the message (recorded: ha3)."""
    master = await brokers.master(brokerRole="SYNC_MASTER", syncFlushTimeout="600000")
    wire = await empty_slave(master)
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        sending = asyncio.create_task(producer.send(Message("BenchmarkTest", b"x"), queue=_queue("pair")))
        await until(lambda: master.store.max_physical_offset > 0)
        assert master.store.max_offset_in_queue("BenchmarkTest", 0) == 0  # it cannot be read yet
        await time_out(master)
        assert (await sending).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        await until(lambda: master.store.max_offset_in_queue("BenchmarkTest", 0) == 1)
        message = Message("BenchmarkTest", b"y", wait_store=False)
        assert (await producer.send(message, queue=_queue("pair"))).status is SendStatus.SEND_OK
        await time_out(master)  # otherwise the stop waits for the slave
    wire.close()


async def test_a_master_that_stops_waits_for_its_slave(brokers: Pair) -> None:
    """At each restart of a SYNC_MASTER, sends whose messages the slave has would be reported as uncertain."""
    master = await brokers.master(brokerRole="SYNC_MASTER", syncFlushTimeout="60000")
    wire = await empty_slave(master)
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        sending = asyncio.create_task(producer.send(Message("BenchmarkTest", b"x"), queue=_queue("pair")))
        await until(lambda: master.store.max_physical_offset > 0)
        closing = asyncio.create_task(master.close())
        await until(lambda: master.phase == "stopping: replication")
        wire.write(master.store.max_physical_offset.to_bytes(8, "big"))
        assert (await sending).status is SendStatus.SEND_OK
        await closing
    wire.close()


async def test_messages_waiting_for_disk_and_slave_cannot_be_read(
    brokers: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush for another message would show one that no slave has and a lost master would take (#8239)."""
    master = await brokers.master(
        brokerRole="SYNC_MASTER", flushDiskType="SYNC_FLUSH", syncFlushTimeout="600000"
    )
    wire = await empty_slave(master)
    driver, gate = master.replication._driver, asyncio.Event()
    original = driver.flush

    async def flush() -> int:
        flushed = await original()
        await gate.wait()
        return flushed

    monkeypatch.setattr(driver, "flush", flush)
    async with Producer("ha", namesrv=brokers.namesrv_address, config=PATIENT) as producer:
        sending = asyncio.create_task(producer.send(Message("BenchmarkTest", b"x"), queue=_queue("pair")))
        await until(lambda: master.store.flushed_offset == master.store.max_physical_offset > 0)
        master.store.dispatch()
        shown = master.store.max_offset_in_queue("BenchmarkTest", 0)
        gate.set()
        assert shown == 0
        await time_out(master)
        assert (await sending).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        await until(lambda: master.store.max_offset_in_queue("BenchmarkTest", 0) == 1)
    wire.close()


def _queue(broker: str) -> MessageQueue:
    return MessageQueue("BenchmarkTest", broker, 0)


async def test_access_control_holds_at_the_ha_port(brokers: Pair) -> None:
    """A program without an account could copy every message by sending eight zero bytes."""
    rules = brokers.root / "plain_acl.yml"
    rules.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\n")
    acl = {"aclEnable": "true", "rocketmq.acl.plain.file": str(rules)}
    master = await brokers.master(**acl)
    await send(brokers, 10)
    port = master.replication.server.address
    assert port is not None
    reader, writer = await asyncio.open_connection(port.host, port.port)
    writer.write(bytes(8))
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()
    unknown = await brokers.slave("unknown", 2)
    await until(lambda: "haSecret" in unknown.replication.client.problem)
    await brokers.stop(master)
    master = await brokers.master(**acl, haSecret="known")
    slave = await brokers.slave("slave", 1, **acl, haSecret="known")
    await caught_up(master, slave)


async def fill_topic(admin: AdminClient, both: Pair, bodies: list[bytes]) -> None:
    """Create topic T with two queues, and send these bodies to each."""
    await admin.create_topic("T", 2)
    async with Producer("senders", both.namesrv_address) as producer:
        for queue in await producer.fetch_publish_message_queues("T"):
            for body in bodies:
                await producer.send(Message("T", body), queue=queue)


def bounds(broker: Broker) -> list[tuple[int, int]]:
    """The offsets of the queues of T."""
    store = broker.store
    return [(store.min_offset_in_queue("T", n), store.max_offset_in_queue("T", n)) for n in range(2)]


def stored_bodies(broker: Broker) -> list[bytes]:
    """The bodies of all messages in the queues of T."""
    return [
        record.body
        for queue_id, (first, _) in enumerate(bounds(broker))
        for record in decode_all(broker.store.get_message("T", queue_id, first, 1000).body)
    ]


@pytest.mark.parametrize("while_away", ["nobody", "the slave", "both"])
async def test_a_slave_drops_the_messages_of_a_deleted_topic(tmp_path: Path, while_away: str) -> None:
    """Consumers of a slave would get messages of the deleted topic, or lack those of the new one of its name.

    while_away: who is stopped between the deletion and the new topic.
    """
    async with pair(tmp_path) as both, AdminClient(both.namesrv_address) as admin:
        master, slave = await both.master(), await both.slave()
        await fill_topic(admin, both, [b"old"] * 60)
        master.consumers.offsets.commit("g", "T", 0, 60)
        await caught_up(master, slave)
        await until(lambda: slave.consumers.offsets.get("g", "T", 0) == 60)
        assert bounds(slave) == [(0, 60), (0, 60)]
        if while_away == "nobody":
            await slave._sync.close()  # so the slave copies both changes together
        else:
            await both.stop(slave)
        await admin.topics.delete("T")
        if while_away == "both":
            await both.stop(master)
            master = await both.master()
        await fill_topic(admin, both, [b"new"] * 3)
        master.consumers.offsets.commit("g", "T", 1, 2)
        if while_away == "nobody":
            await caught_up(master, slave)
            slave._sync.start()
        else:
            slave = await both.slave()
        await until(lambda: slave.topics.version == master.topics.version)
        await caught_up(master, slave)
        await until(lambda: bounds(slave) == bounds(master))
        assert stored_bodies(slave) == stored_bodies(master) == [b"new"] * 6
        offsets = slave.consumers.offsets
        await until(lambda: [offsets.get("g", "T", n) for n in range(2)] == [None, 2])
        await both.stop(slave)
        slave = await both.slave()
        assert bounds(slave) == bounds(master)
        assert stored_bodies(slave) == [b"new"] * 6


async def test_a_slave_drops_the_queues_of_a_deleted_topic(tmp_path: Path) -> None:
    """Its messages would come back when a topic of this name is created later."""
    async with pair(tmp_path) as both, AdminClient(both.namesrv_address) as admin:
        master, slave = await both.master(), await both.slave()
        await fill_topic(admin, both, [b"old"] * 5)
        await caught_up(master, slave)
        await until(lambda: slave.topics.get("T") is not None)
        await admin.topics.delete("T")
        await until(lambda: slave.topics.version == master.topics.version)
        await until(lambda: not any(key[0] == "T" for key in slave.store.queues.queues))


async def test_recovery_does_not_bring_back_the_messages_of_a_deleted_topic(tmp_path: Path) -> None:
    """The log still has them: a lost or damaged queue directory would be rebuilt with them."""
    async with pair(tmp_path) as both, AdminClient(both.namesrv_address) as admin:
        master = await both.master()
        await fill_topic(admin, both, [b"old"] * 60)
        await admin.topics.delete("T")
        await fill_topic(admin, both, [b"new"] * 3)
        before = bounds(master)
        await both.stop(master)
        shutil.rmtree(tmp_path / "master" / "consumequeue")
        master = await both.master()
        assert bounds(master) == before
        assert stored_bodies(master) == [b"new"] * 6


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_a_shorter_log_does_not_lose_the_messages_of_a_new_topic(
    tmp_path: Path, is_promoted: bool
) -> None:
    """A deletion that was noted for a longer log would drop later messages with each start.

    is_promoted: a slave that lacks the end of the log becomes the master; otherwise the store was removed,
    and its config directory was kept.
    """
    async with pair(tmp_path) as both, AdminClient(both.namesrv_address) as admin:
        broker = await both.master()
        await fill_topic(admin, both, [b"old"] * 5)
        if is_promoted:
            slave = await both.slave()
            await caught_up(broker, slave)
            await slave.replication.client.close()
            await fill_topic(admin, both, [b"lost"] * 50)
        await admin.topics.delete("T")
        if is_promoted:
            await until(lambda: slave.topics.version == broker.topics.version)
            await both.stop(slave)
        await both.stop(broker)
        name = "slave" if is_promoted else "master"
        if not is_promoted:
            for directory in ("commitlog", "consumequeue", "index"):
                shutil.rmtree(tmp_path / name / directory, ignore_errors=True)
            for file in ("checkpoint", "queuesums"):
                (tmp_path / name / file).unlink()
        broker = await both.start(name)
        assert stored_bodies(broker) == []
        await fill_topic(admin, both, [b"new"] * 3)
        await both.stop(broker)
        broker = await both.start(name)
        assert stored_bodies(broker) == [b"new"] * 6


async def test_messages_are_sent_to_slaves_at_once(brokers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that fails would take the messages since its last heartbeat with it."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._TICK_S", 3600)
    quiet = {"haSendHeartbeatInterval": "1800000", "haHousekeepingInterval": "3600000"}
    master = await brokers.master(**quiet)
    slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1", **quiet)
    await until(lambda: master.replication.connected.acked >= 0)
    async with Producer("p", brokers.namesrv_address) as producer:
        for _ in range(3):
            await producer.send(Message("T", b"x"), timeout_ms=60_000)
            end = master.store.max_physical_offset
            await until(lambda end=end: slave.store.max_physical_offset >= end)  # type: ignore[misc]
