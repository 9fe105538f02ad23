"""rocketpy-broker stop --drain with real processes: a rolling restart that producers do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from rocketpy import AdminClient, ClientConfig, Message, Producer, PullConsumer, RocketError
from rocketpy.protocol.bodies import PERM_WRITE, MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import CreateTopicRequestHeader
from rocketpy.transport import Address
from rocketpy_broker.cli.process import DRAIN_SIGNAL
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.store import MessageStore
from tests.integration.cli.commands import run as rocketpy
from tests.integration.processes import output_of, start, stop
from tests.integration.raw_client import RawClient
from tests.interop.processes import free_broker_port
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

QUICK_REFRESH_MS = 500
"""30 s by default, like drainWaitMs, which is 0 here: brokers wait only until sends pause."""


class Place:
    """A broker process that can be restarted with the same store, name and port."""

    def __init__(self, name: str, root: Path, namesrv: str, *settings: str) -> None:
        self.name = name
        self.store = root / name
        self.address = f"127.0.0.1:{free_broker_port()}"
        self.arguments = (
            "broker", "--listen", self.address, "--namesrv", namesrv, "--store", str(self.store),
            "--name", name, "--set", "mappedFileSizeCommitLog=16777216", "--set", "drainWaitMs=0", *settings,
        )  # fmt: skip
        self.process: Process | None = None

    async def start(self) -> None:
        self.process, _ = await start(*self.arguments)

    async def drain(self, *options: str) -> tuple[int | None, str]:
        return await output_of("stop", "--store", str(self.store), "--drain", *options)

    async def ended(self) -> tuple[int | None, str]:
        assert self.process is not None
        async with asyncio.timeout(LIMIT_S):
            _, errors = await self.process.communicate()
        return self.process.returncode, errors.decode()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            await stop(self.process)


@asynccontextmanager
async def brokers(root: Path, *names: str) -> AsyncIterator[tuple[str, list[Place]]]:
    """A name server, and brokers that serve topic T with four queues each."""
    async with AsyncExitStack() as stack:
        process, namesrv = await start("namesrv", "--listen", "127.0.0.1:0")
        stack.push_async_callback(stop, process)
        places = [Place(name, root, namesrv) for name in names]
        for place in places:
            await place.start()
            stack.push_async_callback(place.close)
        async with AdminClient(namesrv) as admin:
            await admin.topics.create("T", 4)
        yield namesrv, places


def ledger_places(root: Path, namesrv: str) -> list[Place]:
    """The peers of a DLedger group named raft."""
    names = ("n0", "n1", "n2")
    peers = ";".join(f"{name}-127.0.0.1:{free_broker_port()}" for name in names)
    settings = {
        "enableDLegerCommitLog": "true", "dLegerGroup": "raft", "dLegerPeers": peers,
        "dLegerHeartbeatMillis": "300", "dLegerVoteMillisMin": "50", "dLegerVoteMillisMax": "250",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    places = [Place(name, root, namesrv, *words, "--set", f"dLegerSelfId={name}") for name in names]
    for place in places:
        place.arguments = tuple("raft" if word == place.name else word for word in place.arguments)
    return places


async def leader_of(namesrv: str, places: Sequence[Place]) -> Place:
    """The leader of a group, once a name server knows it."""
    async with asyncio.timeout(LIMIT_S), AdminClient(namesrv) as admin:
        while True:
            for broker in await admin.brokers.list():
                for place in places:
                    if (broker.name, broker.broker_id, broker.address) == ("raft", 0, place.address):
                        return place
            await asyncio.sleep(0.05)


class Load:
    """Sends to topic T until it is stopped, and records the outcome of each message."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.by_broker: Counter[str] = Counter()
        self.attempts: Counter[int] = Counter()
        self.failed: list[RocketError] = []
        self._stopping = False

    async def run(self, producer: Producer, number: int) -> None:
        sent = 0
        while not self._stopping:
            body = b"%d-%d" % (number, sent)
            sent += 1
            try:
                result = await producer.send(Message("T", body))
            except RocketError as error:
                self.failed.append(error)
            else:
                self.acknowledged.add(body)
                self.by_broker[result.queue.broker_name] += 1
                self.attempts[result.attempts] += 1
            await asyncio.sleep(0.002)  # limits the load to what two busy cores can handle

    async def goes_on(self, broker: str) -> None:
        """Wait until a broker has taken a hundred more messages."""
        enough = self.by_broker[broker] + 100
        await until(lambda: self.by_broker[broker] >= enough)

    @contextmanager
    def stopped_at_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._stopping = True


async def writable(namesrv: str, topic: str = "T") -> set[str]:
    """The brokers to which producers may send messages of a topic."""
    async with AdminClient(namesrv) as admin:
        route = await admin._running_client().routes.get(topic, fresh=True)
        return {queues.broker_name for queues in route.queue_datas if queues.perm & PERM_WRITE}


async def stored(namesrv: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with PullConsumer("readers", namesrv) as consumer:
        for queue in await consumer.fetch_queues("T"):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found.update(message.body for message in pulled.messages)
                offset = pulled.next_offset
    return found


async def test_a_rolling_restart_fails_no_send(tmp_path: Path) -> None:
    """Each update of a cluster would cost its producers errors, retries or copies of messages."""
    load = Load()
    async with brokers(tmp_path, "a", "b") as (namesrv, places):
        client = ClientConfig(namesrv=namesrv, route_refresh_ms=QUICK_REFRESH_MS)
        async with Producer("g", client=client) as producer, asyncio.TaskGroup() as senders:
            with load.stopped_at_the_end():
                for number in range(8):
                    senders.create_task(load.run(producer, number))
                for place in places:
                    await load.goes_on(place.name)
                    assert await place.drain() == (0, "")
                    assert (await place.ended())[0] == 0
                    await place.start()
                    assert await writable(namesrv) == {"a", "b"}
                await load.goes_on(places[-1].name)
        assert load.failed == []
        assert set(load.attempts) == {1}, "a send met a stopped broker"
        found = await stored(namesrv)
    assert set(found) == load.acknowledged
    assert set(found.values()) == {1}


async def test_a_rolling_restart_by_an_operator_elsewhere(tmp_path: Path) -> None:
    """The command line would say too early that a broker can be stopped."""
    load = Load()
    async with brokers(tmp_path, "a", "b") as (namesrv, (place, _)):
        client = ClientConfig(namesrv=namesrv, route_refresh_ms=QUICK_REFRESH_MS)
        async with Producer("g", client=client) as producer, asyncio.TaskGroup() as senders:
            with load.stopped_at_the_end():
                for number in range(8):
                    senders.create_task(load.run(producer, number))
                await load.goes_on("a")
                done = await rocketpy("broker", "drain", "a", "--wait", "1", "--yes", "-n", namesrv)
                assert (done.status, done.err) == (0, "")
                assert "broker a can be stopped now" in done.out
                await place.close()
                await place.start()
                assert await writable(namesrv) == {"a", "b"}
                await load.goes_on("a")
        assert (load.failed, set(load.attempts)) == ([], {1})
        assert set(await stored(namesrv)) == load.acknowledged


@pytest.mark.parametrize("by", ["stop", "drain"])
async def test_a_leader_of_a_dledger_group_is_restarted(tmp_path: Path, by: str) -> None:
    """Producers of the whole cluster would see an election."""
    load = Load()
    async with AsyncExitStack() as stack:
        namesrv, _ = await stack.enter_async_context(brokers(tmp_path, "b"))
        places = ledger_places(tmp_path, namesrv)
        await asyncio.gather(*(place.start() for place in places))
        for place in places:
            stack.push_async_callback(place.close)
        leader = await leader_of(namesrv, places)
        async with AdminClient(namesrv) as admin:
            await admin.topics.create("T", 4)
        client = ClientConfig(namesrv=namesrv, route_refresh_ms=QUICK_REFRESH_MS)
        async with Producer("g", client=client) as producer, asyncio.TaskGroup() as senders:
            with load.stopped_at_the_end():
                for number in range(8):
                    senders.create_task(load.run(producer, number))
                await load.goes_on("raft")
                if by == "stop":
                    assert await leader.drain() == (0, "")
                else:
                    words = ("broker", "drain", "raft", "--wait", "1", "--yes", "-n", namesrv)
                    done = await rocketpy(*words)
                    assert (done.status, done.err) == (0, "")
                    assert "DLedger 0.1 cannot transfer leadership" in done.out
                    await leader.close()
                others = [place for place in places if place is not leader]
                assert await leader_of(namesrv, others) in others
                await load.goes_on("raft")
                await leader.start()
        assert (load.failed, set(load.attempts)) == ([], {1})
        assert set(await stored(namesrv)) == load.acknowledged


async def test_a_draining_broker_is_hidden_and_serves(tmp_path: Path) -> None:
    """A producer with an old route would get errors, or the next registration make the broker writable."""
    async with brokers(tmp_path, "a", "b") as (namesrv, (place, _)):
        async with Producer("g", namesrv) as producer:
            queue = next(q for q in await producer.fetch_publish_message_queues("T") if q.broker_name == "a")
            assert place.process is not None
            place.process.send_signal(DRAIN_SIGNAL)
            async with asyncio.timeout(LIMIT_S):
                while await writable(namesrv) != {"b"}:
                    await producer.send(Message("T", b"old route"), queue=queue)
            async with AdminClient(namesrv) as admin:
                await admin.topics.alter(
                    "T", read_queues=8, write_queues=8
                )  # registers another version of the topics
            assert await writable(namesrv) == {"b"}
            await producer.send(Message("T", b"old route"), queue=queue)
        assert (await place.ended())[0] == 0


async def test_a_drain_ends_although_sends_continue(tmp_path: Path) -> None:
    """A producer that never refreshes its route would keep a broker from stopping."""
    load = Load()
    async with brokers(tmp_path, "a", "b") as (namesrv, (place, _)):
        client = ClientConfig(namesrv=namesrv, route_refresh_ms=3_600_000)
        async with Producer("g", client=client) as producer, asyncio.TaskGroup() as senders:
            with load.stopped_at_the_end():
                senders.create_task(load.run(producer, 0))
                await until(lambda: load.by_broker["a"] > 10)
                status, says = await place.drain("--timeout", "3")
        assert (status, "was not drained within 3 s" in says) == (1, True)
        assert (await place.ended())[0] == 0
        assert load.failed == []


async def test_a_slave_gets_all_messages_before_the_stop(tmp_path: Path) -> None:
    """The slave would serve consumers without the last messages until the master is back."""
    async with brokers(tmp_path, "a", "b") as (namesrv, (place, _)):
        slave = Place("slave", tmp_path, namesrv, "--set", "brokerRole=SLAVE", "--set", "brokerId=1")
        slave.arguments = tuple("a" if word == "slave" else word for word in slave.arguments)
        await slave.start()
        assert slave.process is not None
        assert place.process is not None
        try:
            await copied(slave, place)
            slave.process.send_signal(signal.SIGSTOP)
            async with Producer("g", namesrv) as producer:
                for _ in range(8):
                    await producer.send(Message("T", b"late"))
            place.process.send_signal(DRAIN_SIGNAL)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(place.process.wait(), 4)
            slave.process.send_signal(signal.SIGCONT)
            assert (await place.ended())[0] == 0
            assert await log_end(slave) == stored_end(place)
        finally:
            slave.process.send_signal(signal.SIGCONT)
            await slave.close()


async def log_end(place: Place) -> int:
    """The end of a broker's log, as it reports it itself."""
    _, output = await output_of("ha", "status", "--broker", place.address, "--json")
    return int(json.loads(output)["max_offset"])


async def copied(slave: Place, master: Place) -> None:
    """Wait until the slave is connected and has all records of the master."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            _, output = await output_of("ha", "status", "--broker", master.address, "--json")
            slaves = json.loads(output)["slaves"]
            if slaves and slaves[0]["received"] >= 0 and await log_end(slave) == await log_end(master):
                return


def stored_end(place: Place) -> int:
    """The end of the log of a broker that has stopped."""
    settings = {"storePathRootDir": str(place.store), "mappedFileSizeCommitLog": "16777216"}
    with MessageStore(load_broker_config(None, settings).store) as store:
        return store.max_physical_offset


async def test_the_only_broker_is_not_hidden(tmp_path: Path) -> None:
    """Producers of a cluster with one broker would fail for the whole drain, not only for the restart."""
    async with brokers(tmp_path, "a") as (_, (place,)):
        assert await place.drain() == (0, "")
        status, errors = await place.ended()
    assert status == 0
    assert "are on no other broker with a master" in errors


async def test_a_topic_of_one_broker_is_not_hidden(tmp_path: Path) -> None:
    """Producers of such a topic would fail during the whole drain, or their sends prolong it."""
    stopping = asyncio.Event()
    async with brokers(tmp_path, "a", "b") as (namesrv, (place, other)):
        async with Producer("g", namesrv) as producer, asyncio.TaskGroup() as senders:
            alone = MessageQueue("Alone", "a", 0)
            await create_at(place.address, "Alone")

            async def send() -> None:
                while not stopping.is_set():
                    with contextlib.suppress(RocketError):  # once the broker has stopped
                        await producer.send(Message("Alone", b"x"), queue=alone)

            senders.create_task(send())
            try:
                assert place.process is not None
                place.process.send_signal(DRAIN_SIGNAL)
                async with asyncio.timeout(LIMIT_S):
                    while await writable(namesrv) != {"b"}:
                        pass
                assert await writable(namesrv, "Alone") == {"a"}
                status, errors = await place.ended()
            finally:
                stopping.set()
        assert other.process is not None
    assert status == 0
    assert "1 topics are on no other broker with a master" in errors
    assert errors.rstrip().endswith(": Alone")


async def create_at(address: str, topic: str) -> None:
    """Create a topic on one broker only."""
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0,
    )  # fmt: skip
    async with await RawClient.open(Address.parse(address)) as client:
        response = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert response.code == 0


@pytest.mark.parametrize(("made", "says"), [(False, "there is no store in"), (True, "no broker has")])
async def test_a_drain_of_a_store_that_no_broker_has_open(tmp_path: Path, says: str, *, made: bool) -> None:
    """A script would take a broker for stopped that runs elsewhere."""
    if made:
        (tmp_path / "lock").touch()
    status, output = await output_of("stop", "--store", str(tmp_path))
    assert status == 1
    assert says in output


async def test_a_process_that_cannot_drain_is_left_alone(tmp_path: Path) -> None:
    """The signal would kill RocketMQ's own broker, which holds the same lock."""
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(1); input()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-uc", holder, str(tmp_path / "lock"), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        await process.stdout.readline()
    try:
        status, output = await output_of("stop", "--store", str(tmp_path), "--drain")
        assert (status, process.returncode) == (1, None)
        assert f"process {process.pid} cannot drain" in output
        status, _ = await output_of("stop", "--store", str(tmp_path))
        assert (status, await process.wait()) == (0, -signal.SIGTERM)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
