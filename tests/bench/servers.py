"""The servers of a benchmark run: RocketMQ's pair and ours, up for the whole run, driven in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
# A broker's heap as in RocketMQ's own scripts, cut to a small machine; the collector is JDK 17's choice, G1.
BROKER_JVM = ("-server", "-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:MaxDirectMemorySize=1g", "-XX:+AlwaysPreTouch")
TOPIC, QUEUES = "BenchTopic", 8
# These are Java's defaults too, and beside them each broker has its own.
CONF = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "flushDiskType": "ASYNC_FLUSH",
}


@dataclass(frozen=True)
class Server:
    """One driven server: its name in the table and its two processes."""

    name: str
    namesrv: NameServerProcess
    broker: BrokerProcess
    topic: str = TOPIC

    @property
    def namesrv_address(self) -> str:
        """Where clients start."""
        return self.namesrv.address

    @property
    def broker_pid(self) -> int:
        """For its CPU time and memory."""
        return self.broker.pid


@contextmanager
def servers(peer: JavaPeer, run: Path, loops: list[str]) -> Iterator[list[Server]]:
    """Java's pair and ours on each event loop, each with the same topic of the same number of queues."""
    with ExitStack() as stack:
        running = [stack.enter_context(_java(peer, run / "java"))]
        running += [stack.enter_context(_ours(run / loop, loop)) for loop in loops]
        for server in running:
            _create_topic(peer, run, server)
        yield running


@contextmanager
def _java(peer: JavaPeer, run: Path) -> Iterator[Server]:
    names = JavaNameServer(peer, run).start()
    with stopping([names]):
        broker = JavaBroker(peer, run, names.address, conf=CONF, jvm=BROKER_JVM).start()
        with stopping([broker]):
            yield Server(JAVA, names, broker)


@contextmanager
def _ours(run: Path, loop: str) -> Iterator[Server]:
    names = OurNameServer(run).start()
    with stopping([names]):
        broker = OurBroker(run, names.address, conf=CONF, options=("--loop", loop)).start()
        with stopping([broker]):
            yield Server(f"ours, {loop}", names, broker)


def _create_topic(peer: JavaPeer, run: Path, server: Server) -> None:
    """By RocketMQ's own admin tool, so that both brokers have the same number of queues."""
    arguments = ("-b", server.broker.address, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
    properties = {"rocketmq.namesrv.addr": server.namesrv_address}
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    peer.run(main, "updateTopic", *arguments, home=run / "mqadmin", properties=properties)
    address = server.namesrv_address
    probe.wait_until(lambda: probe.route(address, TOPIC) is not None, f"the route of {TOPIC} at {address}")
