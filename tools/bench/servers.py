"""The servers of a benchmark: RocketMQ's and rocketpy's all run, and are driven in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.interop import probe
from tests.interop.cluster import stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)

JAVA = "Java broker"
# The heap of RocketMQ's own scripts, reduced for a small machine; the collector is JDK 17's default, G1.
BROKER_JVM = ("-server", "-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:MaxDirectMemorySize=1g", "-XX:+AlwaysPreTouch")
TOPIC, QUEUES = "BenchTopic", 8
# These are Java's defaults, too; all other settings are each broker's defaults.
CONF = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "flushDiskType": "ASYNC_FLUSH",
}


@dataclass(frozen=True)
class Server:
    """One server of a benchmark: its name in the table and its processes."""

    name: str
    namesrv: NameServerProcess
    broker: BrokerProcess
    topic: str = TOPIC
    slave: BrokerProcess | None = None

    @property
    def namesrv_address(self) -> str:
        """The address of the name server."""
        return self.namesrv.address

    @property
    def broker_pid(self) -> int:
        """The process id of the broker."""
        return self.broker.pid


@contextmanager
def servers(peer: JavaPeer, run: Path, loops: list[str], *, slaves: bool = False) -> Iterator[list[Server]]:
    """Java's, and rocketpy's on each event loop, each with the same topic and number of queues.

    slaves: whether each is a SYNC_MASTER with one slave.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(_running(_java(peer, run / "java"), slaves))]
        running += [stack.enter_context(_running(_ours(run / loop, loop), slaves)) for loop in loops]
        for server in running:
            _create_topic(peer, run, server)
        yield running


@dataclass(frozen=True)
class _Make:
    """A name server, and a function that creates a broker of the same make."""

    name: str
    namesrv: NameServerProcess
    broker: Callable[..., BrokerProcess]


def _java(peer: JavaPeer, run: Path) -> _Make:
    return _Make(JAVA, JavaNameServer(peer, run), partial(JavaBroker, peer, run, jvm=BROKER_JVM))


def _ours(run: Path, loop: str) -> _Make:
    return _Make(f"ours, {loop}", OurNameServer(run), partial(OurBroker, run, options=("--loop", loop)))


@contextmanager
def _running(make: _Make, slaves: bool) -> Iterator[Server]:
    names = make.namesrv
    with ExitStack() as stack:
        stack.enter_context(stopping([names.start()]))
        if not slaves:
            broker = make.broker(names.address, name="broker", conf=CONF)
            stack.enter_context(stopping([broker.start()]))
            yield Server(make.name, names, broker)
            return
        pair = {**CONF, "brokerName": "pair"}
        master = make.broker(names.address, name="master", conf={**pair, "brokerRole": "SYNC_MASTER"})
        stack.enter_context(stopping([master.start()]))
        slave = make.broker(names.address, name="slave", conf={**pair, "brokerRole": "SLAVE", "brokerId": 1})
        stack.enter_context(stopping([slave.start()]))
        yield Server(make.name, names, master, slave=slave)


def _create_topic(peer: JavaPeer, run: Path, server: Server) -> None:
    """Create the topic with mqadmin, so that both brokers have the same number of queues."""
    arguments = ("-b", server.broker.address, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
    properties = {"rocketmq.namesrv.addr": server.namesrv_address}
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    peer.run(main, "updateTopic", *arguments, home=run / "mqadmin", properties=properties)
    address = server.namesrv_address
    probe.wait_until(lambda: probe.route(address, TOPIC) is not None, f"the route of {TOPIC} at {address}")
