"""A master of one make and a slave of the other: equal logs after kills, and sends that wait for both.

HA_MESSAGES: number of messages. The full run:
`HA_MESSAGES=100000 python -m tests.interop.run -n0 -k logs_are_equal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketpy import ConsumeFrom, Message, Producer, ProducerConfig, PushConfig, SendStatus, sync
from tests.interop import probe
from tests.interop.cluster import Make, new_broker, stopping
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaNameServer, NameServerProcess, OurNameServer
from tests.mqproducer.ordered_topic import ordered_topic_while_a_master_is_away

pytestmark = pytest.mark.interop

MESSAGES = int(os.environ.get("HA_MESSAGES", "3000"))
BOOT_S = 180
GET_ALL_TOPIC_CONFIG, GET_BROKER_RUNTIME_INFO = 21, 28
TOPIC, QUEUES = "HaInterop", 4
CONF = {"brokerName": "pair", "mappedFileSizeCommitLog": 1 << 20 if MESSAGES < 50_000 else 16 << 20}
MIXED = pytest.mark.parametrize(
    ("master", "slave"),
    [
        pytest.param("java", "our", id="Java master -> our slave"),
        pytest.param("our", "java", id="our master -> Java slave"),
    ],
)


def one_of_pair(
    make: Make, peer: JavaPeer, run: Path, namesrv: NameServerProcess, *, slave: bool, sync: bool = False
) -> BrokerProcess:
    role = "SLAVE" if slave else "SYNC_MASTER" if sync else "ASYNC_MASTER"
    conf = {**CONF, "brokerRole": role, "brokerId": int(slave)}
    return new_broker(make, peer, run / role.lower(), namesrv.address, conf=conf)


@MIXED
def test_logs_are_equal_after_the_slave_was_killed(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, master: Make, slave: Make
) -> None:
    """The log of a slave that was killed and restarted would have a gap, or differ from the master's."""
    first = one_of_pair(master, peer, tmp_path, namesrv, slave=False).start(BOOT_S)
    second = one_of_pair(slave, peer, tmp_path, namesrv, slave=True)
    with stopping([first, second]):
        asyncio.run(send_some(namesrv.address, 1, first_body=0))
        second.start(BOOT_S)
        # Not earlier: to an empty slave, RocketMQ sends only its last file (QUIRKS 53).
        probe.wait_until(lambda: log_of(first) == log_of(second), "the slave's first bytes", timeout_s=60)
        with ThreadPoolExecutor(1) as background:
            sent = Counter[str]()
            sending = background.submit(
                asyncio.run, send_some(namesrv.address, MESSAGES, first_body=1, sent=sent)
            )
            probe.wait_until(lambda: sent.total() > MESSAGES // 3 or sending.done(), "a third", timeout_s=600)
            second.kill()
            probe.wait_until(lambda: sent.total() > MESSAGES // 2 or sending.done(), "a half", timeout_s=600)
            second.start(BOOT_S)
            sending.result()
        probe.wait_until(lambda: log_of(first) == log_of(second), "equal logs", timeout_s=300)
        assert len(log_of(first)) > 100 * MESSAGES
        probe.wait_until(lambda: stored(second.address) == 1 + MESSAGES, "the slave's queues", timeout_s=120)


@MIXED
def test_a_sync_master_waits_for_the_other_make(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, master: Make, slave: Make
) -> None:
    """A SYNC_MASTER would respond SEND_OK without a copy on its slave, or never respond."""
    first = one_of_pair(master, peer, tmp_path, namesrv, slave=False, sync=True).start(BOOT_S)
    second = one_of_pair(slave, peer, tmp_path, namesrv, slave=True)
    with stopping([first, second]):
        assert statuses(namesrv.address, 1) == {SendStatus.SLAVE_NOT_AVAILABLE}
        second.start(BOOT_S)
        probe.wait_until(
            lambda: statuses(namesrv.address, 1) == {SendStatus.SEND_OK}, "the first SEND_OK", timeout_s=60
        )
        assert statuses(namesrv.address, 200) == {SendStatus.SEND_OK}
        assert log_of(first) == log_of(second)
        second.kill()
        probe.wait_until(
            lambda: statuses(namesrv.address, 1) == {SendStatus.SLAVE_NOT_AVAILABLE},
            "the slave to be missed",
            timeout_s=60,
        )


@MIXED
def test_consumers_read_from_the_slave_and_return(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, master: Make, slave: Make
) -> None:
    """Without the master, a broker's consumers would stop, although a slave has all messages."""
    first = one_of_pair(master, peer, tmp_path, namesrv, slave=False).start(BOOT_S)
    second = one_of_pair(slave, peer, tmp_path, namesrv, slave=True)
    address, home, ours = namesrv.address, tmp_path / "java-consumer", list[bytes]()
    with stopping([first, second]):
        asyncio.run(send_some(address, 1, first_body=0))
        second.start(BOOT_S)
        probe.wait_until(lambda: log_of(first) == log_of(second), "the slave's first bytes", timeout_s=60)
        asyncio.run(send_some(address, 99, first_body=1))
        probe.wait_until(lambda: stored(second.address) == 100, "the slave's queues", timeout_s=60)
        probe.wait_until(lambda: knows_topic(second.address), "the slave's topics", timeout_s=60)
        first.kill()
        push = sync.PushConsumer(
            "ours",
            address,
            lambda message: ours.append(message.body),
            config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET),
        )
        push.subscribe(TOPIC)
        with push, peer.running("Push", address, "javas", TOPIC, "AVG", "false", home=home):
            theirs = JavaMember(home / "console.log").bodies
            probe.wait_until(lambda: min(len(set(ours)), len(set(theirs()))) == 100, "100 from the slave")
            assert len(set(pulled(address))) == 100
            first.start(BOOT_S)
            asyncio.run(send_some(address, 50, first_body=100))
            probe.wait_until(lambda: min(len(set(ours)), len(set(theirs()))) == 150, "the others")
            probe.wait_until(lambda: reads_again(address, first.address), "reads from the master", step_s=1)
        probe.wait_until(lambda: log_of(first) == log_of(second), "equal logs", timeout_s=60)


def test_a_java_slave_connects_despite_idle_connections(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess
) -> None:
    """RocketMQ's slave, which is silent for its first 5 s, would be rejected like an idle connection."""
    first = one_of_pair("our", peer, tmp_path, namesrv, slave=False).start(BOOT_S)
    second = one_of_pair("java", peer, tmp_path, namesrv, slave=True)
    with stopping([first, second]), contextlib.ExitStack() as opened:
        asyncio.run(send_some(namesrv.address, 10, first_body=0))
        for _ in range(64):
            opened.enter_context(socket.create_connection(("127.0.0.1", first.port + 1)))
        second.start(BOOT_S)
        probe.wait_until(lambda: log_of(first) == log_of(second), "equal logs", timeout_s=60)


def test_a_java_slave_gets_nothing_where_a_secret_is_required(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess
) -> None:
    """An operator of a mixed pair would not see which slave copies nothing, and why."""
    conf = {**CONF, "haSecret": "a long random text"}
    first = new_broker("our", peer, tmp_path / "master", namesrv.address, conf=conf).start(BOOT_S)
    second = one_of_pair("java", peer, tmp_path, namesrv, slave=True)
    with stopping([first, second]):
        asyncio.run(send_some(namesrv.address, 10, first_body=0))
        second.start(BOOT_S)
        said = "RocketMQ's slaves cannot join a master with haSecret"
        probe.wait_until(lambda: said in first.logs(), "the refusal", timeout_s=60)
        assert log_of(second) == b""


@pytest.mark.parametrize(
    ("make", "last"),
    [
        pytest.param("java", "our", id="RocketMQ's slave -> our slave"),
        pytest.param("our", "java", id="our slave -> RocketMQ's slave"),
    ],
)
def test_a_slave_of_a_slave(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, make: Make, last: Make
) -> None:
    """Each slave would have to copy from the master, and load its network."""
    first = one_of_pair(make, peer, tmp_path, namesrv, slave=False).start(BOOT_S)
    second = one_of_pair(make, peer, tmp_path, namesrv, slave=True).start(BOOT_S)
    chain = {"brokerRole": "SLAVE", "brokerId": 2, "haMasterAddress": f"127.0.0.1:{second.port + 1}"}
    third = new_broker(last, peer, tmp_path / "third", namesrv.address, conf={**CONF, **chain})
    with stopping([first, second, third.start(BOOT_S)]):
        asyncio.run(send_some(namesrv.address, 300, first_body=0))
        probe.wait_until(lambda: log_of(first) == log_of(third), "equal logs", timeout_s=60)
        # RocketMQ creates a file and sets its length in two steps; it cannot start after a kill in between.
        probe.wait_until(lambda: stored(second.address) == 300, "the slave's queues", timeout_s=60)
        second.kill()
        asyncio.run(send_some(namesrv.address, 300, first_body=300))
        second.start(BOOT_S)
        probe.wait_until(lambda: log_of(first) == log_of(third), "equal logs again", timeout_s=60)
        probe.wait_until(lambda: stored(third.address) == 600, "the last slave's queues", timeout_s=60)
        assert log_of(second) == log_of(third)


@pytest.mark.parametrize("make", ["java", "our"])
def test_an_ordered_topic_keeps_its_queues(peer: JavaPeer, tmp_path: Path, make: Make) -> None:
    """Without a master, keys of an ordered topic would move to other queues, and lose their order."""
    conf = {"orderMessageEnable": "true"}
    java = make == "java"
    names = JavaNameServer(peer, tmp_path, conf=conf) if java else OurNameServer(tmp_path, conf=conf)
    with stopping([names.start()]):
        first = one_of_pair(make, peer, tmp_path, names, slave=False).start(BOOT_S)
        second = one_of_pair(make, peer, tmp_path, names, slave=True).start(BOOT_S)
        other = new_broker(
            make, peer, tmp_path / "other", names.address, conf={**CONF, "brokerName": "other"}
        )

        async def copied() -> None:
            def is_so() -> bool:
                return log_of(first) == log_of(second) and knows_topic(second.address, "Ordered")

            await asyncio.to_thread(probe.wait_until, is_so, "the slave to have it all", timeout_s=60)

        async def kill() -> None:
            await asyncio.to_thread(first.kill)

        async def start() -> None:
            await asyncio.to_thread(first.start, BOOT_S)

        with stopping([first, second, other.start(BOOT_S)]):
            asyncio.run(
                ordered_topic_while_a_master_is_away(names.address, copied=copied, kill=kill, start=start)
            )


def knows_topic(address: str, topic: str = TOPIC) -> bool:
    return topic.encode() in probe.ask(address, GET_ALL_TOPIC_CONFIG)[2]


def reads_again(namesrv: str, address: str) -> bool:
    """Send a message, and return whether a consumer received one from the broker since its start."""
    asyncio.run(send_some(namesrv, 1, first_body=150))
    return int(probe.table(probe.ask(address, GET_BROKER_RUNTIME_INFO)[2])["msgGetTotalTodayNow"]) > 0


def pulled(namesrv: str) -> list[bytes]:
    """All messages, by rocketpy's pull consumer."""
    bodies: list[bytes] = []
    with sync.PullConsumer("pullers", namesrv) as consumer:
        for queue in consumer.fetch_queues(TOPIC):
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                found = consumer.pull(queue, offset)
                bodies += [message.body for message in found.messages]
                offset = found.next_offset
    return bodies


def statuses(namesrv: str, count: int) -> set[SendStatus]:
    return asyncio.run(send_some(namesrv, count, first_body=0, patient=False))


async def send_some(
    namesrv: str, count: int, *, first_body: int, patient: bool = True, sent: Counter[str] | None = None
) -> set[SendStatus]:
    """Send messages of mixed size, many at a time; every one is stored when it returns.

    sent: updated with the number of sends by status.
    """
    found: set[SendStatus] = set()
    chance = random.Random(first_body)
    async with Producer(
        "ha-interop", namesrv=namesrv, config=ProducerConfig(send_timeout_ms=15_000)
    ) as producer:
        for start in range(first_body, first_body + count, 256):
            numbers = range(start, min(start + 256, first_body + count))
            results = await asyncio.gather(*(producer.send(Message(TOPIC, body(n, chance))) for n in numbers))
            found |= {result.status for result in results}
            if sent is not None:
                sent.update(result.status.name for result in results)
    assert not patient or found == {SendStatus.SEND_OK}
    return found


def body(number: int, chance: random.Random) -> bytes:
    """A body that begins with its number; most are small, some have many kilobytes."""
    size = chance.choice((10, 100, 100, 1000, 1000, 1000, 3000, 20_000 if number % 10 == 0 else 500))
    return b"%d " % number + chance.randbytes(size)


def log_of(broker: BrokerProcess) -> bytes:
    """The commit log, without the preallocated bytes after its end."""
    files = sorted((broker.store / "commitlog").glob("*")) if broker.store.exists() else []
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def stored(address: str) -> int:
    return sum(probe.offset(address, probe.MAX_OFFSET, TOPIC, queue_id) for queue_id in range(QUEUES))
