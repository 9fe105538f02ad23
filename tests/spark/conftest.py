"""One Spark session and one broker for all tests here; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from examples.spark_session import start_session
from rocketpy import MessageExt, PullStatus
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.sync import AdminClient, PullConsumer
from tests.interop import probe
from tests.interop.processes import BrokerProcess, NameServerProcess, OurBroker, OurNameServer

CLUSTER = "InteropCluster"
# The broker must not reject messages because Spark keeps the machine busy.
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
CONF = {**PATIENT, "autoCreateTopicEnable": "false", "enablePropertyFilter": "true"}
# The JVM of a test runs for a minute, so full JIT compilation costs more than it saves.
QUICK_TO_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_numbers = itertools.count()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect these files only on request: their import needs PySpark and takes seconds."""
    chosen = str(config.getoption("markexpr"))
    return True if "spark" not in chosen or "not spark" in chosen else None


@dataclass
class Place:
    """A name server and a broker as processes, with helpers of tests."""

    names: NameServerProcess
    broker: BrokerProcess
    options: dict[str, str] = field(default_factory=dict)

    @property
    def namesrv(self) -> str:
        """Option nameServer."""
        return self.names.address

    def topic(self, queues: int = 4) -> str:
        """Create a topic, since this broker does not create topics automatically; return its name."""
        name = f"SparkTopic{next(_numbers)}"
        with AdminClient(self.namesrv) as admin:
            admin.create_topic(name, queues, key=CLUSTER)
        return name

    def stored(self, topic: str) -> int:
        """How many messages a topic has, without reading them."""
        self._wait_for_dispatch()
        with PullConsumer("spark_tests", self.namesrv) as consumer:
            return sum(map(consumer.max_offset, consumer.fetch_queues(topic)))

    def messages(self, topic: str) -> list[MessageExt]:
        """All messages of a topic, queue by queue."""
        self._wait_for_dispatch()
        found: list[MessageExt] = []
        with PullConsumer("spark_tests", self.namesrv) as consumer:
            for queue in consumer.fetch_queues(topic):
                offset = consumer.min_offset(queue)
                while (result := consumer.pull(queue, offset)).status is PullStatus.FOUND:
                    found += result.messages
                    offset = result.next_offset
        return found

    def _wait_for_dispatch(self) -> None:
        """Wait until stored messages are in their queues: RocketMQ's broker adds them after its response."""

        def is_done() -> bool:
            status, _, body = probe.ask(self.broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            # RocketMQ's broker fails to respond in its first second.
            return status == ResponseCode.SUCCESS and int(probe.table(body)["dispatchBehindBytes"]) <= 0

        probe.wait_until(is_done, "the dispatch of stored messages")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The servers that all tests share, except those that stop their servers."""
    yield from open_place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Place]:
    """Servers that a test may kill."""
    yield from open_place(tmp_path)


def open_place(run: Path) -> Iterator[Place]:
    """Start the servers, and stop them."""
    with OurNameServer(run) as names, OurBroker(run, names.address, conf=CONF) as broker:
        yield Place(names, broker)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session that tries each task twice."""
    settings = {**QUICK_TO_START, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = start_session("rocketpy tests", "local[2,2]", settings)
    yield session
    session.stop()


Write = Callable[..., None]


@pytest.fixture
def write(place: Place) -> Write:
    """Write a frame to the shared broker, with options."""

    def save(frame: Any, **options: object) -> None:
        given = {"nameServer": place.namesrv, "sendTimeoutMs": "30000", **options}
        frame.write.format("rocketmq").options(**given).mode("append").save()

    return save
