"""Brokers of a DLedger group: acknowledged messages survive each change of the leader."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RetryConfig,
    SendStatus,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.record import decode
from rocketpy.protocol.remoting.command import Command
from rocketpy.telemetry import Measured
from rocketpy.transport import Address, ClientOnlyEndpoint, connect
from rocketpy_broker import EmbeddedCluster, cli
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.handlers.send.response_waiters import PC_BUSY
from rocketpy_broker.replication.ha_status import find_broker_addresses
from tests.integration.delays import jump_ahead
from tests.integration.ledger_group import ledger_group
from tests.waiting import LIMIT_S, until


def bodies_of(broker: Broker, topic: str = "T") -> set[bytes]:
    """The messages in a broker's queues of a topic."""
    store = broker.store
    store.dispatch()
    found = set()
    for queue_id in (queue_id for name, queue_id in list(store.queues.queues) if name == topic):
        offset = 0
        while units := store.units(topic, queue_id, offset, 1000):
            offset += len(units)
            for physical, size, _ in units:
                data = store.look_message(physical, size)
                assert data is not None
                found.add(decode(data).body)
    return found


def count_of(broker: Broker, topic: str = "T") -> int:
    """The number of messages in a broker's queues of a topic."""
    store = broker.store
    keys = [key for key in list(store.queues.queues) if key[0] == topic]
    return sum(store.max_offset_in_queue(*key) for key in keys)


async def send(producer: Producer, *bodies: bytes) -> None:
    results = await asyncio.gather(*(producer.send(Message("T", body)) for body in bodies))
    assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_messages_are_on_every_broker(tmp_path: Path) -> None:
    """The messages of a lost broker would be lost with it."""
    async with ledger_group(tmp_path) as group, group.producer() as producer:
        await group.master()
        bodies = {b"%d" % number for number in range(300)}
        await send(producer, *bodies)
        await until(lambda: all(bodies_of(broker) == bodies for broker in group.running.values()))


async def test_the_response_to_the_first_message_of_a_topic_waits_for_its_commit(tmp_path: Path) -> None:
    """A message committed before its sender waited would be reported as failed, and stored twice."""
    async with ledger_group(tmp_path, 1) as group, group.producer() as producer:
        master = await group.master()
        topics = [f"New{number}" for number in range(10)]
        for topic in topics:
            assert (await producer.send(Message(topic, b"first"))).status is SendStatus.SEND_OK
        stored = [
            unit for topic in topics for queue in range(4) for unit in master.store.units(topic, queue, 0, 9)
        ]
        assert len(stored) == len(topics)


async def test_a_leader_that_stops_waits_for_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each stop of a leader, sends whose messages the group has would be reported as uncertain."""
    async with ledger_group(tmp_path, 1, commit_wait_ms=500) as group, group.producer() as producer:
        master = await group.master()
        await send(producer, b"before")
        ledger, held = master.ledger, list[int]()
        assert ledger._waiters is not None
        monkeypatch.setattr(ledger._waiters, "_timeout_s", LIMIT_S)
        committed = ledger.committed
        monkeypatch.setattr(ledger, "committed", held.append)
        sending = asyncio.create_task(send(producer, b"last"))
        await until(lambda: bool(held))
        closing = asyncio.create_task(group.stop("n0"))
        await until(lambda: master.phase == "stopping: replication")
        monkeypatch.setattr(ledger, "committed", committed)
        committed(held[-1])
        await sending
        await closing


async def test_a_leader_without_a_majority_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait forever for the commit of a send, though the producer has its response."""
    async with ledger_group(tmp_path, commit_wait_ms=100) as group:
        master = await group.master()
        request = Command.request(RequestCode.SEND_MESSAGE_V2, header(), b"x")
        assert (await ask(master, request)).code == 0
        for broker in group.slaves():
            await group.stop(group.name_of(broker))
        waiters = master.ledger._waiters
        assert waiters is not None
        monkeypatch.setattr(waiters, "_timeout_s", 2.0)  # it outlasts the earlier steps of a stop
        sending = asyncio.create_task(ask(master, request))
        await until(lambda: bool(waiters._groups))
        stopping = asyncio.create_task(group.stop(group.name_of(master)))
        await until(lambda: master.phase == "stopping: replication")
        await until(stopping.done)
        assert (await sending).remark == PC_BUSY


async def test_the_next_master_has_acknowledged_messages_and_accepts_more(tmp_path: Path) -> None:
    """When the master stops, acknowledged messages would be lost, or all later sends fail (I1)."""
    async with ledger_group(tmp_path) as group, group.producer() as producer:
        first = await group.master()
        old = {b"%d" % number for number in range(100)}
        await send(producer, *old)
        name = group.name_of(first)
        await group.stop(name)
        second = await group.master()
        assert second is not first
        assert bodies_of(second) == old
        new = {b"new %d" % number for number in range(100)}
        await send(producer, *new)
        again = await group.start(name)
        await until(lambda: bodies_of(again) == old | new)
        assert again.ledger.broker_id in (1, 2, 3)


def header(topic: str = "T", **fields: object) -> SendMessageRequestHeaderV2:
    given = {
        "producer_group": "g", "topic": topic, "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": 0, "sys_flag": 0, "born_timestamp": 0, "flag": 0, "properties": "", "reconsume_times": 0,
        **fields,
    }  # fmt: skip
    return SendMessageRequestHeaderV2(**given)  # type: ignore[arg-type]


async def ask(broker: Broker, request: Command) -> Command:
    channel = await connect(broker.address, ClientOnlyEndpoint())
    try:
        return await channel.request(request, 10_000)
    finally:
        channel.close()


async def test_a_follower_rejects_sends_as_a_slave_does(tmp_path: Path) -> None:
    """A producer with an old route would not learn that it must refresh it."""
    async with ledger_group(tmp_path) as group:
        await group.master()
        for broker in group.slaves():
            response = await ask(broker, Command.request(RequestCode.SEND_MESSAGE_V2, header(), b"x"))
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "does not lead" in (response.remark or "")


async def test_without_a_majority_sends_end_in_time_with_a_code_for_a_retry(tmp_path: Path) -> None:
    """A producer would wait for its timeout, and not learn that it may try another broker (4.6.0's codes)."""
    settings = {"dLegerPendingMax": "3"}
    async with ledger_group(tmp_path, settings=settings, commit_wait_ms=500) as group:
        master = await group.master()
        await ask(master, Command.request(RequestCode.SEND_MESSAGE_V2, header(), b"x"))
        for broker in group.slaves():
            await group.stop(group.name_of(broker))
        responses = await asyncio.gather(
            *(ask(master, Command.request(RequestCode.SEND_MESSAGE_V2, header(), b"x")) for _ in range(4))
        )
        assert {response.code for response in responses} == {ResponseCode.SYSTEM_ERROR}
        assert {response.remark for response in responses} == {PC_BUSY}
        # Sends with WAIT=false, which wait for no flush or slave, get no earlier response either.
        one = header(properties="WAIT\x01false\x02")
        response = await ask(master, Command.request(RequestCode.SEND_MESSAGE_V2, one, b"x"))
        assert response.code == ResponseCode.SYSTEM_ERROR


async def test_roles_reach_the_name_server(tmp_path: Path) -> None:
    """Clients would send to a follower, or to a former leader (QUIRKS 65)."""
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        own = {name: broker.advertised_address for name, broker in group.running.items()}
        wanted = {0: own.pop(group.name_of(master))} | {int(name[1:]) + 1: own[name] for name in own}
        namesrv = [Address.parse(group.namesrv_address)]
        async with asyncio.timeout(LIMIT_S):
            for pause_s in itertools.repeat(0.05):
                found = {id_: address for _, id_, address in await find_broker_addresses(namesrv)}
                if found == wanted:
                    break
                await asyncio.sleep(pause_s)


async def addresses(namesrv: str) -> dict[int, str]:
    """The members of the group by their ids, as the name server returns them."""
    return {id_: address for _, id_, address in await find_broker_addresses([Address.parse(namesrv)])}


def contains(part: dict[int, str], registered: dict[int, str]) -> bool:
    return part.items() <= registered.items()


async def until_registered(namesrv: str, condition: Callable[[dict[int, str]], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        for pause_s in itertools.repeat(0.02):
            if condition(await addresses(namesrv)):
                return
            await asyncio.sleep(pause_s)


async def test_consumers_find_survivors_that_restarted_without_a_majority(tmp_path: Path) -> None:
    """Stored messages could not be read until most of the group is back (4.6.0 registers them with id -1)."""
    async with ledger_group(tmp_path, 5, roleless_ms=200) as group:
        namesrv = group.namesrv_address
        bodies = {b"%d" % number for number in range(20)}
        async with group.producer() as producer:
            await group.master()
            for slave in group.slaves():
                await until((tmp_path / group.name_of(slave) / "config" / "topics.json").exists)
                await slave._sync.close()  # after a copy without the topic
            await send(producer, *bodies)
        await until(lambda: all(bodies_of(broker) == bodies for broker in group.running.values()))
        first, second, *others = (group.name_of(broker) for broker in group.slaves())
        for name in (*others, group.name_of(await group.master())):
            await group.stop(name)
        for name in (first, second):
            await group.stop(name)
            again = {-1: (await group.start(name)).advertised_address}
            await until_registered(namesrv, partial(contains, again))
        assert await addresses(namesrv) == again
        async with PullConsumer("readers", namesrv=namesrv) as consumer:
            queues = await consumer.fetch_queues("T")
            found = {m.body for queue in queues for m in (await consumer.pull(queue, 0)).messages}
        assert found == bodies
        await group.start(others[0])
        await until_registered(
            namesrv, lambda registered: 0 in registered and len(registered) == 3 and -1 not in registered
        )


async def test_a_broker_without_a_role_unregisters_at_its_stop(tmp_path: Path) -> None:
    """Clients would continue to send to a broker that has unregistered."""
    async with ledger_group(tmp_path, 3, roleless_ms=10) as group:
        await group.master()
        for name in list(group.running):
            await group.stop(name)
        alone = await group.start("n1")
        await until_registered(
            group.namesrv_address, lambda registered: registered == {-1: alone.advertised_address}
        )
        await group.stop("n1")
        await until_registered(group.namesrv_address, lambda registered: not registered)


async def test_a_new_topic_is_known_to_the_next_master(tmp_path: Path) -> None:
    """The next master would have the messages of the topic, but reject sends: TOPIC_NOT_EXIST (QUIRKS 68)."""
    settings = {"autoCreateTopicEnable": "true"}
    async with ledger_group(tmp_path, settings=settings) as group:
        first = await group.master()
        response = await ask(first, Command.request(RequestCode.SEND_MESSAGE_V2, header("New"), b"x"))
        assert response.code == 0
        # Followers copy tables every 10 s, so they have not copied the new topic yet.
        assert all(broker.topics.get("New") is None for broker in group.slaves())
        await group.stop(group.name_of(first))
        second = await group.master()
        topic = second.topics.get("New")
        assert topic is not None
        assert topic.write_queue_nums == 4
        last = header("New", default_topic="NotThere")
        response = await ask(second, Command.request(RequestCode.SEND_MESSAGE_V2, last, b"x"))
        assert response.code == 0


async def test_batches_delays_and_transactions(tmp_path: Path) -> None:
    """4.6.0 with DLedger refuses batches; delayed and half messages would be lost with their master."""
    settings = {"messageDelayLevel": "1s 1h", "transactionTimeOut": "200", "transactionCheckInterval": "300"}
    async with ledger_group(tmp_path, settings=settings) as group:
        first = await group.master()
        async with group.producer() as producer:
            batch = [Message("T", b"batch %d" % number) for number in range(5)]
            await producer.send_batch(batch)
            delayed = [Message("T", b"delayed %d" % number, delay_level=2) for number in range(5)]
            await asyncio.gather(*(producer.send(message) for message in delayed))
            await group.stop(group.name_of(first))
            second = await group.master()
            jump_ahead(second)
            wanted = {message.body for message in (*batch, *delayed)}
            await until(lambda: bodies_of(second) == wanted)


async def test_the_next_leader_repeats_no_delayed_message(tmp_path: Path) -> None:
    """Messages that a leader delivered since its followers copied the offsets would be delivered again."""
    settings = {"messageDelayLevel": "1s 1h", "flushDelayOffsetInterval": "50"}
    async with ledger_group(tmp_path, settings=settings) as group, group.producer() as producer:
        first = await group.master()
        wanted = [Message("T", b"delayed %d" % number, delay_level=2) for number in range(20)]
        await asyncio.gather(*(producer.send(message) for message in wanted))
        jump_ahead(first)
        await until(lambda: first.delivery.delay.waiting() == {2: 0})
        await producer.send(Message("T", b"later", delay_level=2))
        await until(lambda: first.delivery.delay.waiting() == {2: 0})
        await group.stop(group.name_of(first))
        second = await group.master()
        jump_ahead(second)
        await producer.send(Message("T", b"last", delay_level=2))
        await until(lambda: b"last" in bodies_of(second))
        assert count_of(second) == len(wanted) + 2


async def test_the_next_leader_goes_on_with_timers(tmp_path: Path) -> None:
    """Timers of the former leader would be lost, delivered twice, or not be recalled."""
    async with ledger_group(tmp_path, settings={"timerFlushIntervalMs": "50"}) as group:
        first = await group.master()
        async with group.producer() as producer:
            delays = [300 + 100 * number for number in range(30)]
            wanted = [
                Message("T", b"timer %d" % delay, delay=timedelta(milliseconds=delay)) for delay in delays
            ]
            await asyncio.gather(*(producer.send(message) for message in wanted))
            late = await producer.send(Message("T", b"recalled", delay=timedelta(seconds=5)))
            await until(lambda: count_of(first) >= 5)
            await group.stop(group.name_of(first))
            second = await group.master()
            await producer.recall("T", late.recall_handle or "")
            last = await producer.send(Message("T", b"last", delay=timedelta(seconds=6)))
            assert last.recall_handle is not None
            await until(lambda: b"last" in bodies_of(second))
            assert bodies_of(second) == {message.body for message in wanted} | {b"last"}
            assert count_of(second) == len(wanted) + 1


async def test_a_stopping_leader_reports_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator would look for lost delays and transactions, which the next leader continues."""
    settings = {"messageDelayLevel": "1s 1h", "transactionCheckInterval": "100000"}
    async with ledger_group(tmp_path, settings=settings) as group:
        master = await group.master()
        async with group.producer() as producer:
            await producer.send(Message("T", b"late", delay_level=1))
            jump_ahead(master)
            await until(lambda: master.delivery.delay.waiting() == {1: 0})
        for name in [name for name, broker in group.running.items() if broker is not master]:
            await group.stop(name)
        await group.end_silence()
        await until(lambda: not master.is_master)
        await group.stop(group.name_of(master))
    registered = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in registered if "not saved" in text or "not noted" in text] == []


async def test_consumers_continue_with_the_next_master(tmp_path: Path) -> None:
    """A consumer group would start over, or stop, at each change of the master."""
    async with ledger_group(tmp_path) as group, group.producer() as producer:
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            seen.append(message.body)

        first = await group.master()
        await send(producer, b"a")
        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer("readers", group.namesrv_address, handle, config=config)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: b"a" in seen)
            await group.stop(group.name_of(first))
            await group.master()
            await send(producer, b"b")
            await until(lambda: b"b" in seen)


async def test_offsets_and_groups_are_the_next_masters_too(tmp_path: Path) -> None:
    """Consumers would start over at each change of masters."""
    async with ledger_group(tmp_path, sync_ms=50) as group:
        first = await group.master()
        first.consumers.offsets.commit("readers", "T", 0, 7)
        first.consumers.groups.find("readers")
        await until(
            lambda: all(
                slave.consumers.offsets.get("readers", "T", 0) == 7 and slave.consumers.groups.get("readers")
                for slave in group.slaves()
            )
        )
        await group.stop(group.name_of(first))
        second = await group.master()
        assert second.consumers.offsets.get("readers", "T", 0) == 7
        second.consumers.offsets.commit("readers", "T", 0, 8)
        await until(
            lambda: all(slave.consumers.offsets.get("readers", "T", 0) == 8 for slave in group.slaves())
        )


async def test_the_next_master_checks_open_transactions(tmp_path: Path) -> None:
    """A transaction whose master is lost would stay open."""
    settings = {"transactionTimeOut": "3600000", "transactionCheckInterval": "50"}
    client = ClientConfig(route_refresh_ms=200, heartbeat_ms=200)
    async with ledger_group(tmp_path, settings=settings) as group:
        first = await group.master()
        async with group.producer(client) as producer:
            await producer.send_in_transaction(
                Message("T", b"half"),
                local_transaction=lambda _: LocalTransactionState.UNKNOWN,
                check=lambda _: LocalTransactionState.COMMIT,
            )
            await group.stop(group.name_of(first))
            second = await group.master()
            jump_ahead(second)
            await until(lambda: bodies_of(second) == {b"half"})


async def test_an_embedded_cluster_with_replicas() -> None:
    """An application could not be tested against a change of masters without machines."""
    # The timeouts are the defaults of applications: a pause of this machine may change the master, too.
    config = ProducerConfig(send_timeout_ms=60_000, retry=RetryConfig(times=1000))
    async with EmbeddedCluster(transport="memory", replicas=3) as cluster:
        assert len(cluster.brokers) == 3
        async with Producer("g", namesrv=cluster.namesrv_address, config=config) as producer:
            await send(producer, *(b"%d" % number for number in range(50)))
            master = await master_of(cluster)
            await master.close()
            cluster.brokers.remove(master)
            await master_of(cluster)
            await send(producer, b"more")
        assert len(bodies_of(await master_of(cluster))) == 51


async def master_of(cluster: EmbeddedCluster) -> Broker:
    """The master, once there is one."""
    await until(lambda: any(broker.is_master for broker in cluster.brokers))
    return next(broker for broker in cluster.brokers if broker.is_master)


async def run(*arguments: str) -> int:
    """The exit status of a command of rocketpy-broker."""
    return await asyncio.to_thread(cli.main, arguments)


async def test_the_command_shows_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator could not see which peer leads, or that a peer is offline."""
    async with ledger_group(tmp_path) as group:
        name = group.name_of(await group.master())
        await until(lambda: all(broker.ledger.broker_id >= 0 for broker in group.running.values()))
        status = "dledger", "status", "--namesrv", group.namesrv_address
        assert await run(*status) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
        assert {row[0] for row in rows} == {"raft"}
        assert {row[1]: row[4] for row in rows}[name] == "leader"
        assert {row[6] for row in rows} == {name}
        assert await run(*status, "--json") == 0
        reports = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
        assert {report["peer"]: report["role"] for report in reports}[name] == "leader"
        for other in [other for other in group.running if other != name]:
            await group.stop(other)
        await group.end_silence()
        await until(lambda: group.running[name].ledger.is_slave)
        assert await run(*status) == 1
        assert await run("dledger", "transfer") == 2
        assert "cannot transfer leadership" in capsys.readouterr().err


async def test_the_command_reports_a_missing_group(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator would get an empty table, without knowing whether the cluster has groups at all."""
    async with EmbeddedCluster() as cluster:
        namesrv = cluster.namesrv_address
        assert await run("dledger", "status", "--namesrv", namesrv) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert f"no broker at {namesrv} reports a DLedger group" in errors


def measure(broker: Broker) -> Sequence[Measured]:
    assert broker.metrics is not None
    return broker.metrics.collect_from_any_thread()


async def test_metrics_of_a_group(tmp_path: Path) -> None:
    """No alert would show a group without a leader, or a peer that falls behind."""
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        (slave, _) = group.slaves()
        found = {measured.metric.name: dict(measured.values) for measured in measure(master)}
        place = ("DefaultCluster", "raft")
        assert found["rocketmq_dledger_term"] == {place: master.ledger.peer.state.term}
        assert found["rocketmq_dledger_role"][*place, "leader"] == 1
        assert set(found["rocketmq_dledger_peer_lag_entries"]) == {
            (*place, name) for name, broker in group.running.items() if broker is not master
        }
        found = {measured.metric.name: dict(measured.values) for measured in measure(slave)}
        assert found["rocketmq_dledger_role"][*place, "follower"] == 1
        assert found["rocketmq_dledger_peer_lag_entries"] == {}


async def test_a_stopped_broker_does_not_register_again(tmp_path: Path) -> None:
    """A broker that stopped soon after an election would be in the routes again, and clients fail there."""
    async with ledger_group(tmp_path) as group:
        broker = await group.master()
        assert broker._role_changes is not None
        timers = list(broker._role_changes._timers)
        broker._role_changes.leader_changed()
        timers += broker._role_changes._timers
        assert len(broker._role_changes._timers) == 4
        await group.stop(group.name_of(broker))
        assert all(timer.cancelled() for timer in timers)


async def test_a_clean_stop_saves_how_far_messages_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted group without a leader would not serve the messages of its last second."""
    monkeypatch.setattr("rocketpy_broker.replication.dledger.peer._CHECKPOINT_S", 3600)
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        async with group.producer() as producer:
            await producer.send(Message("T", b"x"))
        peer = group.slaves()[0].ledger.peer
        await until(lambda: peer.committed_index == master.ledger.peer.committed_index > 0)
        committed = peer.committed_index
        assert peer._files.load_checkpoint().committed_index < committed
        await group.stop(peer.settings.self_id)
        assert peer._files.load_checkpoint().committed_index == committed
