"""Metrics of brokers: at the endpoint for Prometheus, through OpenTelemetry, and in dashboards."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rocketpy import LocalTransactionState, Message, Producer, PullConsumer
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import ConsumerSendMsgBackRequestHeader, UpdateConsumerOffsetRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.telemetry.plugin import Measured
from rocketpy.transport import connect
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.metrics import catalog, prometheus
from rocketpy_broker.metrics.collecting import _dledger
from rocketpy_broker.metrics.http_server import HttpServer
from rocketpy_broker.metrics.prometheus import MetricsPage
from rocketpy_broker.metrics.reporting import MetricsReporter
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.peer import PeerHealth
from tests.integration.ha_pair import caught_up, pair
from tests.integration.server.test_embedded import Silent
from tests.mqproducer.place import eventually
from tests.otel.recorder import Recorder, run_alone
from tests.waiting import until
from tools.import_map import ROOT

GRAFANA = ROOT / "integrations/otel/grafana"

Samples = dict[str, list[tuple[dict[str, str], float]]]


@asynccontextmanager
async def busy_broker(tmp_path: Path, **settings: str) -> AsyncIterator[Broker]:
    """A broker after messages of every kind, with a group that is behind."""
    names = NameServer(load_namesrv_config(None, {"listen": "127.0.0.1:0", "kvConfigPath": f"{tmp_path}/kv"}))
    await names.start()
    given = {
        "storePathRootDir": str(tmp_path / "store"),
        "listen": "127.0.0.1:0",
        "namesrvAddr": str(names.address),
        "metricsPort": "0",
        **settings,
    }
    broker = Broker(load_broker_config(None, given))
    await broker.start()
    try:
        await _traffic(broker, str(names.address))
        yield broker
    finally:
        await broker.close()
        await names.close()


async def _traffic(broker: Broker, namesrv: str) -> None:
    async with Producer("senders", namesrv) as producer, PullConsumer("readers", namesrv) as consumer:
        await producer.create_topic("T", 1)
        for _ in range(5):
            await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"late", delay_level=18))
        await producer.send_in_transaction(
            Message("T", b"half"),
            local_transaction=lambda _: LocalTransactionState.UNKNOWN,
            check=lambda _: LocalTransactionState.UNKNOWN,
        )
        (queue,) = await consumer.fetch_queues("T")
        first = (await consumer.pull(queue, 0)).messages[0]
        channel = await connect(str(broker.address), Silent())
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group="readers", topic="T", queue_id=0, commit_offset=3
        )
        await channel.request(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header), 3000)
        groups = [ConsumerData(group_name="readers")]
        senders = [ProducerData(group_name="steady")]
        body = HeartbeatData(client_id="me", consumer_data_set=groups, producer_data_set=senders).encode()
        await channel.request(Command.request(RequestCode.HEART_BEAT, body=body), 3000)
        back = ConsumerSendMsgBackRequestHeader(offset=first.physical_offset, group="readers", delay_level=17)
        response = await channel.request(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, back), 3000)
        assert response.code == 0, response.remark


async def http(broker: Broker, request: str) -> tuple[int, str]:
    """Status and body of one request to a broker's metrics endpoint."""
    assert broker.http is not None
    reader, writer = await asyncio.open_connection(*broker.http.address)
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = (await reader.read()).decode()
    writer.close()
    head, _, body = response.partition("\r\n\r\n")
    return int(head.split()[1]), body


def samples(text: str) -> Samples:
    """The samples of a page by name; counters have the name that queries use."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


async def test_every_metric_is_on_the_endpoint(tmp_path: Path) -> None:
    """Graphs of operators would be empty or wrong."""
    async with busy_broker(tmp_path) as broker:
        status, text = await http(broker, "GET /metrics")
    assert status == 200
    found = samples(text)
    missing = {metric.name for metric in catalog.CATALOG} - set(found)
    of_groups = {name for name in missing if name.startswith("rocketmq_dledger_")}
    assert missing - of_groups == {
        catalog.SLAVE_LAG.name,
        catalog.SLAVE_STATE.name,
        catalog.CONSUMER_CONFLICTS.name,
        catalog.IN_FLIGHT.name,
    }
    assert all(
        labels["cluster"] == "DefaultCluster" and labels["node_id"] == "broker-a"
        for values in found.values()
        for labels, _ in values
    )

    def value(name: str, **labels: str) -> float:
        (only,) = [value for given, value in found[f"rocketmq_{name}"] if labels.items() <= given.items()]
        return only

    assert value("messages_in_total", topic="T") == 5
    assert value("messages_out_total", topic="T", consumer_group="readers") == 5
    assert value("throughput_out_total", topic="T", consumer_group="readers") > 5 * 91
    assert value("throughput_in_total") > value("throughput_out_total", topic="T")
    assert value("consumer_lag_messages", topic="T", consumer_group="readers") == 2
    assert value("consumer_lag_latency", topic="T", consumer_group="readers") >= 0
    assert value("topic_messages", topic="T") == 5
    assert value("delayed_messages", level="18") == 1
    assert value("half_messages") == 1
    assert value("consumer_connections", consumer_group="readers") == 1
    assert value("producer_connections", producer_group="steady") == 1
    assert value("messages_sent_back_total", topic="T", consumer_group="readers") == 1
    assert value("broker_serving") == 1
    assert value("broker_stalled_jobs") == 0
    assert value("broker_name_servers") == 1
    assert value("broker_permission") == 6
    assert value("put_within_milliseconds_total", le="+Inf") == 8
    assert 0 < value("disk_used_ratio") < 1
    assert value("storage_size") == value("throughput_in_total")


async def test_values_have_the_units_of_their_metrics(tmp_path: Path) -> None:
    """Graphs and alerts would be wrong by a factor, or compare a ratio with bytes."""
    begin_s = time.time()
    async with busy_broker(tmp_path) as broker:
        channels = [await connect(str(broker.address), Silent()) for _ in range(2)]
        for number, channel in enumerate(channels):
            topics = [SubscriptionData(topic="T", sub_string="*" if number else "a", sub_version=1)]
            group = ConsumerData(group_name="differing", subscription_data_set=topics)
            body = HeartbeatData(client_id=f"c{number}", consumer_data_set=[group]).encode()
            await channel.request(Command.request(RequestCode.HEART_BEAT, body=body), 3000)
        store = broker.store
        oldest_ms = store.store_timestamp("T", 0, 3)
        later_ms = store.clock() + 2
        await until(lambda: store.clock() > later_ms)
        before_ms = store.clock()
        found = samples((await http(broker, "GET /metrics"))[1])
        after_ms = store.clock()
        disk = shutil.disk_usage(tmp_path)

        def values(name: str, **labels: str) -> list[float]:
            return [value for given, value in found[f"rocketmq_{name}"] if labels.items() <= given.items()]

        (booted,) = values("broker_start_time_seconds")
        assert begin_s - 1 <= booted <= time.time()
        (latency,) = values("consumer_lag_latency", topic="T", consumer_group="readers")
        assert before_ms - oldest_ms <= latency <= after_ms - oldest_ms
        assert values("consumer_group_conflicts", consumer_group="differing") == [1]
        (used,) = values("disk_used_ratio")
        assert 0 <= used <= 1
        assert abs((1 - used) * disk.total - disk.free) < disk.total / 5
        (free,) = values("disk_free_bytes")
        assert abs(free - disk.free) < disk.total / 5


def test_entries_without_a_majority_are_counted() -> None:
    """The graph of a leader without a majority would stay flat."""
    health = PeerHealth(Role.LEADER, 3, "n0", 12, 7, 1, {"n1": 5}, {"n1": 1500}, "", ())
    found = {metric.name: dict(values) for metric, values in _dledger(health)}
    assert found[catalog.DLEDGER_UNCOMMITTED.name] == {(): 5}
    assert found[catalog.DLEDGER_LAG.name] == {("n1",): 5}
    assert found[catalog.DLEDGER_LAG_SECONDS.name] == {("n1",): 1.5}
    roles = {("leader",): 1, ("follower",): 0, ("candidate",): 0}
    assert found[catalog.DLEDGER_ROLE.name] == roles


async def test_a_page_that_takes_long_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapers could use most of a broker's event loop; or they would get values that are minutes old."""
    now, collected = 1000.0, 0

    async def collect() -> list[Measured]:
        nonlocal now, collected
        collected += 1
        now += 0.1
        return []

    monkeypatch.setattr(time, "monotonic", lambda: now)
    page = MetricsPage(collect)
    first = await page()
    kept_s = 0.1 * prometheus._CACHE_FACTOR
    now += kept_s - 0.01
    assert await page() is first
    assert collected == 1
    now += 0.02
    assert (await page()).body == first.body
    assert collected == 2
    now += 1000
    await page()
    assert collected == 3


def test_a_broker_that_has_ended_has_no_metrics(tmp_path: Path) -> None:
    """The export at the end of a program would fail, or wait for the loop for ever."""

    async def run() -> MetricsReporter:
        async with busy_broker(tmp_path) as broker:
            assert broker.metrics is not None
            assert await asyncio.to_thread(broker.metrics.collect_from_any_thread) != []
            return broker.metrics

    assert asyncio.run(run()).collect_from_any_thread() == []


async def test_slaves_and_their_lag_show(tmp_path: Path) -> None:
    """A slave that is offline, or behind, would be noticed only when the master is lost."""
    async with pair(tmp_path) as brokers:
        master = await brokers.master(metricsPort="0")
        slave = await brokers.slave(metricsPort="0")
        await caught_up(master, slave)

        async def copies() -> bool | None:
            found = samples((await http(slave, "GET /metrics"))[1])["rocketmq_slave_state"]
            states = {labels["state"]: value for labels, value in found}
            return states == {"waits": 0, "connects": 0, "copies": 1, "refused": 0} or None

        await eventually(copies)

        async def connected() -> Samples | None:
            found = samples((await http(master, "GET /metrics"))[1])
            return found if found["rocketmq_slaves"][0][1] == 1 else None

        found = await eventually(connected)
    ((labels, lag),) = found["rocketmq_slave_lag_bytes"]
    assert ":" in labels["slave"]
    assert lag >= 0


async def test_the_endpoint_serves_only_metrics(tmp_path: Path) -> None:
    """An invalid request would end the endpoint, or hold a connection."""
    async with busy_broker(tmp_path) as broker:
        assert (await http(broker, "GET /config"))[0] == 404
        assert (await http(broker, "POST /metrics"))[0] == 405
        assert await http(broker, "HEAD /metrics") == (200, "")
        assert broker.http is not None
        host, port = broker.http.address
        assert host == "127.0.0.1"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"x" * 100_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        assert (await http(broker, "GET /metrics?x=1"))[0] == 200
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(host, port)


async def test_without_a_port_there_is_no_endpoint(tmp_path: Path) -> None:
    """A broker would listen at an address that is not configured."""
    given = {"storePathRootDir": str(tmp_path / "store"), "listen": "127.0.0.1:0"}
    broker = Broker(load_broker_config(None, given))
    await broker.start()
    try:
        assert broker.http is None
    finally:
        await broker.close()


async def test_an_alert_counts_dead_letters(tmp_path: Path) -> None:
    """Messages that a group gave up would expire before anyone looks at them."""
    async with busy_broker(tmp_path) as broker:
        channel = await connect(str(broker.address), Silent())
        back = ConsumerSendMsgBackRequestHeader(offset=0, group="readers", delay_level=-1)
        response = await channel.request(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, back), 3000)
        assert response.code == 0, response.remark
        text = (await http(broker, "GET /metrics"))[1]
    kept = {labels["topic"]: value for labels, value in samples(text)["rocketmq_topic_messages"]}
    assert kept["%DLQ%readers"] == 1
    (counted,) = set(re.findall(r'topic_messages\{topic=~"(.*?)"', expressions()["alerts.yml"][0]))
    assert re.fullmatch(counted, "%DLQ%readers")


async def test_without_its_package_the_endpoint_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The scraper would get errors, or probes, which do not need the package, would fail."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with busy_broker(tmp_path) as broker:
        status, text = await http(broker, "GET /metrics")
        assert status == 501
        assert 'pip install "rocketpy-mq[metrics]"' in text
        assert (await http(broker, "GET /readyz"))[0] == 200
    assert 'pip install "rocketpy-mq[metrics]"' in caplog.text


async def test_a_port_in_use_is_reported_as_that_of_metrics() -> None:
    """An operator would look for the fault in listenPort, since a broker has several ports."""
    other = HttpServer("127.0.0.1", 0, Tasks("a server"))
    await other.start()
    port = other.address[1]
    try:
        with pytest.raises(OSError, match=rf"metricsPort {port}: .*in use") as failure:
            await HttpServer("127.0.0.1", port, Tasks("another")).start()
        assert failure.value.errno == errno.EADDRINUSE
    finally:
        await other.close()


def expressions() -> dict[str, list[str]]:
    """The queries of the dashboard and the alerts: file to expressions."""
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += [str(variable["query"]) for variable in dashboard["templating"]["list"]]
    return {"dashboard.json": asked, "alerts.yml": [(GRAFANA / "alerts.yml").read_text("utf-8")]}


async def test_dashboard_and_alerts_query_existing_metrics(tmp_path: Path) -> None:
    """A panel would stay empty, and an alert never fire."""
    async with busy_broker(tmp_path) as broker:
        text = (await http(broker, "GET /metrics"))[1]
    declared = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    asked = {
        (name, file)
        for file, texts in expressions().items()
        for expression in texts
        for name in re.findall(r"\brocketmq_\w+", expression)
    }
    assert len({name for name, _ in asked}) > 25
    assert [(name, file) for name, file in sorted(asked) if name not in declared] == []
    drawn = {name for name, file in asked if file == "dashboard.json"}
    assert {metric.name for metric in catalog.CATALOG} - drawn == set()


async def test_the_same_metrics_are_exported_through_opentelemetry(tmp_path: Path) -> None:
    """Users who collect all metrics through OpenTelemetry would miss those of brokers."""
    recorder = Recorder()
    async with busy_broker(tmp_path) as broker:
        assert broker.metrics is not None
        end = recorder.telemetry().observe_broker(broker.metrics.collect_from_any_thread)
        points: list[Any] = await asyncio.to_thread(recorder.points, "rocketmq_messages_in_total")
        topics = {point["topic"]: value for point, value in points}
        assert topics["T"] == 5
        assert {point["node_id"] for point, _ in points} == {"broker-a"}
        ((_, serving),) = recorder.points("rocketmq_broker_serving")
        assert serving == 1
        end()


def test_a_broker_exports_metrics_without_code(tmp_path: Path) -> None:
    """Telemetry of brokers would need code, while that of clients needs none."""
    program = f"""
import asyncio
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rocketpy import telemetry
from rocketpy_otel import OpenTelemetry
from rocketpy_broker.embedded import EmbeddedCluster

telemetry._load_installed = lambda found=OpenTelemetry(): found  # as an installed package does

async def main():
    reader = InMemoryMetricReader()
    async with EmbeddedCluster({str(tmp_path)!r}):
        metrics.set_meter_provider(MeterProvider([reader]))  # later than the broker
        data = await asyncio.to_thread(reader.get_metrics_data)
    names = {{m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}}
    assert "rocketmq_broker_serving" in names, names

asyncio.run(main())
"""
    run_alone(program)
