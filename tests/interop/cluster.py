"""A name server and a broker of either make, and the Java drivers pointed at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.interop.java_peer import JavaPeer
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)

Make = Literal["java", "our"]
BINARY_HEADERS: Mapping[str, str] = {"rocketmq.serialize.type": "ROCKETMQ"}
JAVA_CONF: Mapping[str, object] = {
    "longPollingEnable": "false",  # an empty pull is answered after one second and not after twenty
    "waitTimeMillsInSendQueue": 10_000,  # a cold JVM on a busy machine takes longer than its 200 ms
}
_names = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """Running servers of one case, and the ways to drive them with RocketMQ's own client."""

    peer: JavaPeer
    run: Path
    namesrv: NameServerProcess
    broker: BrokerProcess
    java_properties: Mapping[str, str] = field(default_factory=dict)

    def topic(self, stem: str) -> str:
        """A topic name no other case has used."""
        return f"{stem}_{next(_names)}"

    def produce(self, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do send steps with DefaultMQProducer (see java/Produce.java); one answer a step."""
        return self._drive("Produce", steps)

    def consume(self, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do read steps with DefaultMQPullConsumer (see java/Consume.java); no answer may be an error."""
        answers = self._drive("Consume", steps)
        failed = [answer for answer in answers if "error" in answer]
        assert not failed, failed
        return answers

    def pull_all(self, topic: str) -> list[dict[str, Any]]:
        """Every message of every queue of `topic`, as RocketMQ's pull consumer sees them."""
        return [answer for answer in self.consume({"do": "pull", "topic": topic}) if "body" in answer]

    def admin(self, *arguments: str) -> str:
        """RocketMQ's own mqadmin with these arguments; returns what it printed."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        properties = {"rocketmq.namesrv.addr": self.namesrv.address, **self.java_properties}
        return self.peer.run("Main", main, *arguments, home=self.run / "mqadmin", properties=properties)

    def logs(self) -> str:
        """The end of every server's logs."""
        return f"{self.namesrv.logs()}\n{self.broker.logs()}"

    def _drive(self, driver: str, steps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        arguments = (self.namesrv.address, f"interop_{driver.lower()}")
        home = self.run / driver.lower()
        return self.peer.drive(driver, *arguments, home=home, steps=steps, properties=self.java_properties)


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
) -> Iterator[Cluster]:
    """Start both servers, and stop them at the end.

    namesrv, broker: whose. conf: broker.conf keys. names_conf: namesrv.conf keys, for ours.
    namesrv_port: a free one when left out.
    client, server: system properties of Java clients and of a Java broker.
    """
    with (
        _name_server(peer, run, namesrv, namesrv_port, names_conf) as names,
        _broker(peer, run, names.address, broker, conf, server) as one,
    ):
        yield Cluster(peer, run, names, one, client or {})


@contextmanager
def _name_server(
    peer: JavaPeer, run: Path, make: Make, port: int | None, conf: Mapping[str, object] | None
) -> Iterator[NameServerProcess]:
    server = (
        JavaNameServer(peer, run, port=port) if make == "java" else OurNameServer(run, port=port, conf=conf)
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
    peer: JavaPeer,
    run: Path,
    namesrv: str,
    *,
    store: Path | None = None,
    port: int | None = None,
    conf: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> BrokerProcess:
    """A broker of either make, not started. `properties` matter to Java's only."""
    if make == "our":
        return OurBroker(run, namesrv, store=store, port=port, conf=conf)
    quick = {**JAVA_CONF, **(conf or {})}
    return JavaBroker(peer, run, namesrv, store=store, port=port, conf=quick, properties=properties)


@contextmanager
def stopping(servers: Sequence[NameServerProcess | BrokerProcess]) -> Iterator[None]:
    """At the end stop ours in order (they must be able to) and kill Java's, which take their time."""
    try:
        yield
    finally:
        for server in servers:
            if isinstance(server, (JavaNameServer, JavaBroker)):
                server.kill()
            else:
                server.stop()
