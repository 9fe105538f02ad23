"""An operator promotes a slave to master; all servers are processes."""

import asyncio
import signal
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from rocketpy import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, SendStatus
from rocketpy_broker import cli
from rocketpy_broker.replication.ha_status import query_broker
from tests.integration.processes import output_of, start, stop
from tests.waiting import LIMIT_S

_CONF = """brokerName=pair
brokerRole={role}
brokerId={broker_id}
storePathRootDir={root}
listenPort=0
mappedFileSizeCommitLog=65536
syncFlushTimeout=20000
"""


class Machine:
    """One broker of the pair, with its broker.conf and its store."""

    def __init__(self, root: Path, name: str, namesrv: str, role: str, broker_id: int) -> None:
        self.store = root / name
        self.conf = root / f"{name}.conf"
        self.conf.write_text(_CONF.format(role=role, broker_id=broker_id, root=self.store))
        self.namesrv = namesrv
        self.process: Process | None = None
        self.address = ""

    async def start(self) -> None:
        arguments = ("broker", "-c", str(self.conf), "--listen", "127.0.0.1:0", "--namesrv", self.namesrv)
        self.process, self.address = await start(*arguments)

    async def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        await stop(self.process, number)
        self.process = None

    async def promote(self, *arguments: str) -> tuple[int | None, str]:
        return await output_of(*self.promotion(*arguments), NAMESRV_ADDR=self.namesrv)

    def promotion(self, *arguments: str) -> tuple[str, ...]:
        """The arguments of the command that promotes it."""
        return "promote", "-c", str(self.conf), "--role", "SYNC_MASTER", *arguments

    def log(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.store / "commitlog").iterdir()))


async def send(namesrv: str, bodies: list[bytes]) -> set[SendStatus]:
    config = ProducerConfig(send_timeout_ms=20_000)
    async with Producer("ha", namesrv=namesrv, config=config) as producer:
        queue = MessageQueue("BenchmarkTest", "pair", 0)
        messages = [Message("BenchmarkTest", body) for body in bodies]
        results = [await producer.send(message, queue=queue) for message in messages]
    return {result.status for result in results}


async def read(namesrv: str) -> list[bytes]:
    bodies: list[bytes] = []
    async with PullConsumer("readers", namesrv=namesrv) as consumer:
        queue, offset = MessageQueue("BenchmarkTest", "pair", 0), 0
        while offset < await consumer.max_offset(queue):
            result = await consumer.pull(queue, offset, max_count=32)
            bodies += [message.body for message in result.messages]
            offset = result.next_offset
    return bodies


async def counts(machine: Machine, slaves: int) -> None:
    """Wait until this number of slaves has all records of the master."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            report = await query_broker(machine.address)
            if sum(slave.received == report.max_offset for slave in report.slaves) == slaves:
                return
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_the_furthest_slave_takes_over_and_the_old_master_follows(tmp_path: Path) -> None:
    """A slave that lacks acknowledged messages could be promoted, or none could.

    Records that only the old master has could return when it becomes a slave.
    """
    process, namesrv = await start("namesrv", "--listen", "127.0.0.1:0")
    old = Machine(tmp_path, "old", namesrv, "SYNC_MASTER", 0)
    near, far = (Machine(tmp_path, f"slave{n}", namesrv, "SLAVE", n) for n in (1, 2))
    try:
        await old.start()
        await asyncio.gather(near.start(), far.start())
        await counts(old, 2)
        first = [b"first %d" % n for n in range(20)]
        assert await send(namesrv, first) == {SendStatus.SEND_OK}
        await counts(old, 2)
        await far.stop()
        status, output = await far.promote()
        assert (status, "still responds" in output) == (1, True)
        second = [b"second %d" % n for n in range(20)]
        assert await send(namesrv, second) == {SendStatus.SEND_OK}
        await near.stop()
        await send(namesrv, [b"nobody else has this"])
        await old.stop(signal.SIGKILL)

        await near.start()
        before = far.conf.read_text()
        status, output = await far.promote()
        assert (status, "slave 1 at" in output and "has more" in output) == (1, True)
        assert far.conf.read_text() == before
        await near.stop()
        assert (await near.promote())[0] == 0
        assert "brokerRole=SYNC_MASTER\nbrokerId=0\n" in near.conf.read_text()
        await near.start()
        old.conf.write_text(_CONF.format(role="SLAVE", broker_id=3, root=old.store))
        await asyncio.gather(old.start(), far.start())
        await counts(near, 2)
        assert await send(namesrv, [b"third"]) == {SendStatus.SEND_OK}
        assert await read(namesrv) == [*first, *second, b"third"]
        await counts(near, 2)
        (aside,) = (old.store / "cut").iterdir()
        assert b"nobody else has this" in aside.read_bytes()
        assert not (far.store / "cut").exists()
        assert near.log() == old.log() == far.log()
    finally:
        for machine in (old, near, far):
            if machine.process is not None:
                await machine.stop()
        await stop(process)


async def test_promotions_rejected_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typing error would make an empty store, or an unknown one, the master."""
    machine = Machine(tmp_path, "alone", "127.0.0.1:1", "SLAVE", 1)
    monkeypatch.setenv("NAMESRV_ADDR", machine.namesrv)

    async def promote(*arguments: str) -> tuple[int, str]:
        status = await asyncio.to_thread(cli.main, machine.promotion(*arguments))
        return status, "".join(capsys.readouterr())

    status, output = await promote()
    assert (status, "there is no store in" in output) == (1, True)
    assert not machine.store.exists()
    (machine.store / "commitlog").mkdir(parents=True)
    status, output = await promote()
    assert status == 1
    assert "never followed" in output
    assert "no name server" in output
    assert (await promote("--force"))[0] == 0
    assert "brokerId=0" in machine.conf.read_text()
    status, output = await promote("--force")
    assert (status, "give the file of a stopped slave" in output) == (1, True)
    machine = Machine(tmp_path, "alone", "127.0.0.1:1", "SLAVE", 1)
    epochs = machine.store / "config" / "haEpochs.json"
    epochs.rename(epochs.with_name("haEpochs.json.bak"))  # others may have more messages
    status, output = await promote()
    assert (status, "its epochs are an older copy" in output) == (1, True)
    assert "never followed" not in output
