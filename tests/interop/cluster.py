"""A name server and a broker of either make, and Java drivers that use them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rocketpy import AdminClient
from rocketpy.admin.brokers import BrokerSummary
from tests.interop import probe
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, lines_of, results_of
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)
from tests.waiting import LIMIT_S

Make = Literal["java", "our"]
BINARY_HEADERS: Mapping[str, str] = {"rocketmq.serialize.type": "ROCKETMQ"}
PATIENT: Mapping[str, object] = {
    "waitTimeMillsInSendQueue": 10_000,  # concurrent cases delay a broker by more than the default 200 ms
}
JAVA_CONF: Mapping[str, object] = {
    **PATIENT,
    "longPollingEnable": "false",  # empty pulls are held for one second instead of twenty
}
_names = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """Running servers, and methods that use them with RocketMQ's client."""

    peer: JavaPeer
    run: Path
    namesrv: NameServerProcess
    broker: BrokerProcess
    java_properties: Mapping[str, str] = field(default_factory=dict)
    version: str = DEFAULT_VERSION
    """Version of RocketMQ's servers."""

    def topic(self, stem: str) -> str:
        """A topic name no other case has used."""
        return f"{stem}_{next(_names)}"

    def produce(self, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do send steps with DefaultMQProducer (see java/Produce.java); one result per step."""
        return self.drive("Produce", *steps)

    def produce_bodies(self, topic: str, queues: int, *bodies: str) -> None:
        """Send messages to all queues of a topic in turn."""
        steps = [
            {"how": "queue", "topic": topic, "queue": number % queues, "body": body.encode().hex()}
            for number, body in enumerate(bodies)
        ]
        assert {result.get("status") for result in self.produce(*steps)} == {"SEND_OK"}

    def consume(self, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do read steps with DefaultMQPullConsumer (see java/Consume.java); no result may be an error."""
        found = self.drive("Consume", *steps)
        failed = [result for result in found if "error" in result]
        assert not failed, failed
        return found

    def pull_all(self, topic: str, count: int = 0) -> list[dict[str, Any]]:
        """Every message of every queue of `topic`, as RocketMQ's pull consumer sees them.

        count: waits until there are so many, since RocketMQ's brokers dispatch a little after they respond.
        """
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            found[:] = [result for result in self.consume({"do": "pull", "topic": topic}) if "body" in result]
            return len(found) >= count

        probe.wait_until(has_all, f"{count} messages of {topic}")
        return found

    def admin(self, *arguments: str) -> str:
        """RocketMQ's own mqadmin with these arguments; returns its output, errors last."""
        # Its home is the JVM's: RocketMQ reads it only once, and the directory of a case is deleted.
        properties = {"rocketmq.namesrv.addr": self.namesrv.address}
        return "".join(
            self.peer.run_warm("Admin", *arguments, jvm=self.java_properties, properties=properties)
        )

    def admin_shows(self, text: str, *arguments: str) -> str:
        """Repeat an mqadmin command until it prints `text`: brokers index and register a little later."""
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            shown = self.admin(*arguments)
            return text in shown

        try:
            probe.wait_until(is_shown, f"mqadmin {' '.join(arguments)} to show {text}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it shows\n{shown}\n{self.report()}") from None
        return shown

    def make_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic on the broker with mqadmin, and wait until the name server has its route."""
        what = ("-b", self.broker.address, "-t", topic, "-r", str(queues), "-w", str(queues))
        self.admin_shows("success", "updateTopic", *what)  # mqadmin gives up after five seconds
        probe.wait_until(lambda: probe.route(self.namesrv.address, topic), f"the route of {topic}")

    def warm_up(self) -> None:
        """Make the first send, which takes longer than the timeouts of the examples."""
        (result,) = self.produce({"how": "sync", "topic": "WarmUp", "body": "00"})
        assert result.get("status") == "SEND_OK", result

    def drive(self, driver: str, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run steps with one of the drivers; return its results."""
        arguments = (self.namesrv.address, f"interop_{driver.lower()}")
        steps_in = lines_of(steps)
        return results_of(self.peer.run_warm(driver, *arguments, jvm=self.java_properties, stdin=steps_in)[0])

    def report(self) -> str:
        """The end of every server's logs, and the stacks of their JVMs."""
        return f"{self.namesrv.report()}\n{self.broker.report()}"


@contextmanager
def cluster(
    peer: JavaPeer,
    run: Path,
    *,
    namesrv: Make = "java",
    broker: Make = "java",
    namesrv_port: int | None = None,
    client: Mapping[str, str] | None = None,
    conf: Mapping[str, object] | None = None,
    names_conf: Mapping[str, object] | None = None,
    server: Mapping[str, str] | None = None,
    java: Mapping[str, str] | None = None,
    servers: JavaPeer | None = None,
) -> Iterator[Cluster]:
    """Start both servers, and stop them at the end.

    namesrv, broker: the make of each. conf: broker.conf keys. names_conf: namesrv.conf keys of rocketpy's.
    namesrv_port: a free one if omitted.
    client, server: system properties of Java clients and of a Java broker. java: those of both Java servers.
    servers: the RocketMQ version of Java servers; by default that of the clients, `peer`.
    """
    with (
        name_server(servers or peer, run, namesrv, namesrv_port, names_conf, java) as names,
        _broker(servers or peer, run, names.address, broker, conf, {**(java or {}), **(server or {})}) as one,
    ):
        yield Cluster(peer, run, names, one, client or {}, (servers or peer).version)


@contextmanager
def name_server(
    peer: JavaPeer,
    run: Path,
    make: Make,
    port: int | None = None,
    conf: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[NameServerProcess]:
    """A name server of either make, running. `properties` matter to Java's only."""
    server = (
        JavaNameServer(peer, run, port=port, properties=properties)
        if make == "java"
        else OurNameServer(run, port=port, conf=conf)
    )
    with stopping([server.start()]):
        yield server


@contextmanager
def _broker(
    peer: JavaPeer,
    run: Path,
    namesrv: str,
    make: Make,
    conf: Mapping[str, object] | None,
    properties: Mapping[str, str] | None,
) -> Iterator[BrokerProcess]:
    server = new_broker(make, peer, run, namesrv, conf=conf, properties=properties)
    with stopping([server.start()]):
        yield server


def new_broker(
    make: Make,
    peer: JavaPeer | None,
    run: Path,
    namesrv: str,
    *,
    store: Path | None = None,
    port: int | None = None,
    conf: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> BrokerProcess:
    """A broker of either make, not started. `peer` and `properties` matter to Java's only."""
    if make == "our":
        return OurBroker(run, namesrv, store=store, port=port, conf={**PATIENT, **(conf or {})})
    if peer is None:
        raise ValueError("Java's broker needs a JavaPeer")
    quick = {**JAVA_CONF, **(conf or {})}
    return JavaBroker(peer, run, namesrv, store=store, port=port, conf=quick, properties=properties)


@contextmanager
def stopping(servers: Sequence[NameServerProcess | BrokerProcess]) -> Iterator[None]:
    """At the end, stop rocketpy's servers in order (which must succeed) and kill Java's, which are slow.

    On an error their logs and the stacks of their JVMs are printed first.
    """
    try:
        yield
    except BaseException:
        # pytest shows this below the failure.
        print(*(server.report() for server in servers), sep="\n")
        raise
    finally:
        for server in servers:
            if isinstance(server, (JavaNameServer, JavaBroker)):
                server.kill()
            else:
                server.stop()


async def only_broker(admin: AdminClient) -> BrokerSummary:
    """The only broker of a cluster, once it reports its state, which Java brokers do after a second."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            (broker,) = await admin.brokers.list()
            if broker.error is None:
                return broker
            await asyncio.sleep(0.1)
