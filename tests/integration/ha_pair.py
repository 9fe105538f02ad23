"""A name server, a master and slaves in this process, on sockets, with short times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rocketpy.transport import Address
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.model import ListenConfig, NamesrvConfig
from rocketpy_broker.namesrv import NameServer
from tests.waiting import until

SMALL = {
    "brokerName": "pair",
    "listen": "127.0.0.1:0",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


def make(root: Path, name: str, namesrv: str, **settings: str) -> Broker:
    """A broker of the pair; intervals that are fixed in RocketMQ are shortened."""
    given = {**SMALL, "namesrvAddr": namesrv, "storePathRootDir": str(root / name), **settings}
    config = load_broker_config(overrides=given)
    return Broker(replace(config, ha=replace(config.ha, reconnect_ms=50, sync_interval_ms=50)))


class Pair:
    """The parts of a test: a name server, and the brokers that it starts."""

    def __init__(self, root: Path, namesrv: NameServer) -> None:
        self.root = root
        self.namesrv = namesrv
        self.running: list[Broker] = []

    @property
    def namesrv_address(self) -> str:
        return str(self.namesrv.address)

    async def start(self, name: str, **settings: str) -> Broker:
        """Start a broker with a directory of that name."""
        broker = make(self.root, name, self.namesrv_address, **settings)
        await broker.start()
        self.running.append(broker)
        return broker

    async def master(self, **settings: str) -> Broker:
        return await self.start("master", **settings)

    async def slave(self, name: str = "slave", broker_id: int = 1, **settings: str) -> Broker:
        return await self.start(name, brokerRole="SLAVE", brokerId=str(broker_id), **settings)

    async def stop(self, broker: Broker) -> None:
        self.running.remove(broker)
        await broker.close()


@asynccontextmanager
async def pair(root: Path) -> AsyncIterator[Pair]:
    """A name server; the brokers that were started are stopped at the end."""
    listen = ListenConfig(address=Address("tcp", "127.0.0.1", 0))
    namesrv = NameServer(NamesrvConfig(listen=listen, order_message_enable=True))
    await namesrv.start()
    it = Pair(root, namesrv)
    try:
        yield it
    finally:
        for broker in list(it.running):
            await it.stop(broker)
        await namesrv.close()


async def caught_up(master: Broker, *slaves: Broker) -> None:
    """Wait until the slaves have all records of the master."""
    await until(
        lambda: all(slave.store.max_physical_offset == master.store.max_physical_offset for slave in slaves)
    )


def log_bytes(broker: Broker) -> bytes:
    """The written part of the commit log."""
    return b"".join(file.read(0, file.wrote) for file in broker.store.commit_log.files.mapped_files)
