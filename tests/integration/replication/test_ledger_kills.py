"""Masters of a DLedger group are killed: clients continue, and no message is lost."""

import asyncio
import itertools
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy import Message, Producer, PullConsumer, SendStatus
from rocketpy.errors import RocketError
from rocketpy.transport import Address
from rocketpy_broker.replication.ha_status import find_broker_addresses
from tests.integration.processes import start, stop
from tests.interop.processes import free_port
from tests.waiting import LIMIT_S

ROUNDS = 3
CONF = """
brokerName=raft
enableDLegerCommitLog=true
dLegerGroup=raft
dLegerHeartbeatMillis=200
dLegerHeartbeatsMissed=5
dLegerVoteMillisMin=50
dLegerVoteMillisMax=250
mappedFileSizeCommitLog=1048576
maxHashSlotNum=1000
maxIndexNum=4000
registerNameServerPeriod=10000
"""


class Group:
    """A DLedger group as processes, by peer id."""

    def __init__(self, root: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._root = root
        self.peers = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(3)}
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, Process] = {}

    async def start(self, name: str) -> None:
        conf = self._root / f"{name}.conf"
        peers = ";".join(f"{peer}-{address}" for peer, address in self.peers.items())
        own = f"dLegerPeers={peers}\ndLegerSelfId={name}\nstorePathRootDir={self._root}/{name}\n"
        conf.write_text(f"{CONF}{own}namesrvAddr={self.namesrv}\n")
        listen = self.addresses.get(name, "127.0.0.1:0")
        self.processes[name], self.addresses[name] = await start(
            "broker", "-c", str(conf), "--listen", listen
        )

    async def master(self, *, other_than: str = "") -> str:
        """The peer whose broker is the master at the name servers."""
        async with asyncio.timeout(LIMIT_S):
            for pause_s in itertools.repeat(0.05):
                found = {
                    id_: address
                    for _, id_, address in await find_broker_addresses([Address.parse(self.namesrv)])
                }
                for name, address in self.addresses.items():
                    if found.get(0) == address and name != other_than:
                        return name
                await asyncio.sleep(pause_s)
        raise AssertionError


@asynccontextmanager
async def group_of_processes(root: Path) -> AsyncIterator[Group]:
    namesrv, address = await start("namesrv", "--listen", "127.0.0.1:0")
    group = Group(root, address)
    try:
        for name in group.peers:
            await group.start(name)
        yield group
    finally:
        for process in group.processes.values():
            await stop(process)
        await stop(namesrv)


@pytest.mark.slow
async def test_masters_are_killed_under_load(tmp_path: Path) -> None:
    """Acknowledged messages would be lost with a killed master, or its senders stop (I1)."""
    acked: set[bytes] = set()
    stopping = asyncio.Event()

    async def load(producer: Producer, sender: int) -> None:
        for number in itertools.count():
            if stopping.is_set():
                return
            body = b"%d-%d" % (sender, number)
            try:
                result = await producer.send(Message("T", body))
            except RocketError:
                continue
            if result.status is SendStatus.SEND_OK:
                acked.add(body)

    async with group_of_processes(tmp_path) as group:
        name = await group.master()
        async with Producer("g", namesrv=group.namesrv) as producer:
            loads = [asyncio.create_task(load(producer, sender)) for sender in range(4)]
            for _ in range(ROUNDS):
                before = len(acked)
                await _more_than(acked, before + 50)
                await stop(group.processes[name], signal.SIGKILL)
                killed, name = name, await group.master(other_than=name)
                await _more_than(acked, len(acked) + 50)
                await group.start(killed)
            stopping.set()
            await asyncio.gather(*loads)
        found = await _bodies(group.namesrv)
        assert acked - found == set()


async def _more_than(acked: set[bytes], count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(acked) <= count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


async def _bodies(namesrv: str) -> set[bytes]:
    found: set[bytes] = set()
    async with PullConsumer("readers", namesrv=namesrv) as consumer:
        for queue in await consumer.fetch_queues("T"):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset=offset, max_count=32)
                found |= {message.body for message in result.messages}
                offset = result.next_offset
    return found
