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
from rocketpy.sync import AdminClient, PullConsumer
from tests.interop.processes import BrokerProcess, NameServerProcess, OurBroker, OurNameServer

CLUSTER = "InteropCluster"
# A machine that is busy with Spark must not make the broker refuse messages by itself.
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
CONF = {**PATIENT, "autoCreateTopicEnable": "false", "enablePropertyFilter": "true"}
# A test's JVM lives for a minute: compiling its code well costs more than it gains.
QUICK_TO_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_numbers = itertools.count()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without PySpark these files cannot be imported, and with it that takes seconds: only when asked for."""
    chosen = str(config.getoption("markexpr"))
    return True if "spark" not in chosen or "not spark" in chosen else None


@dataclass
class Place:
    """A name server and a broker in processes of their own, and what tests ask of them."""

    names: NameServerProcess
    broker: BrokerProcess
    options: dict[str, str] = field(default_factory=dict)

    @property
    def namesrv(self) -> str:
        """Option nameServer."""
        return self.names.address

    def topic(self, queues: int = 4) -> str:
        """A new topic: this broker makes none by itself."""
        name = f"SparkTopic{next(_numbers)}"
        with AdminClient(self.namesrv) as admin:
            admin.create_topic(name, queues, key=CLUSTER)
        return name

    def stored(self, topic: str) -> int:
        """How many messages a topic has, without reading them."""
        with PullConsumer("spark_tests", self.namesrv) as consumer:
            return sum(map(consumer.max_offset, consumer.fetch_queues(topic)))

    def messages(self, topic: str) -> list[MessageExt]:
        """All messages of a topic, queue by queue."""
        found: list[MessageExt] = []
        with PullConsumer("spark_tests", self.namesrv) as consumer:
            for queue in consumer.fetch_queues(topic):
                offset = consumer.min_offset(queue)
                while (result := consumer.pull(queue, offset)).status is PullStatus.FOUND:
                    found += result.messages
                    offset = result.next_offset
        return found


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The servers of all tests here but those that stop theirs."""
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
