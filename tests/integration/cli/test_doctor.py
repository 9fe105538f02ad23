"""rocketpy doctor finds planted faults of real servers and of this machine, and names what helps."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from rocketpy import AdminClient, Message, Producer
from rocketpy.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_cli.doctor.brokers import BrokerAddress, BrokerState, _check_replicas, _check_version
from rocketpy_cli.doctor.findings import Findings
from tests.integration import processes
from tests.integration.access_place import Servers
from tests.integration.cli.commands import run, run_process
from tests.integration.consumer.test_dead_letters import dead
from tests.integration.ha_pair import pair
from tests.integration.sdk_groups import Seen, consuming
from tests.integration.security.test_tls import servers, tls_settings
from tests.interop.processes import free_broker_port
from tests.waiting import LIMIT_S, until

NOBODY = "127.0.0.1:1"
ADMIN = {"ROCKETPY_ACCESS_KEY": "operator", "ROCKETPY_SECRET_KEY": "operator-secret"}

SHIFTED = """
import sys, time
from rocketpy_broker.cli import main

ahead_s = float(sys.argv[1])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + ahead_s
time.time_ns = lambda: real_ns() + round(ahead_s * 1e9)
sys.exit(main(sys.argv[2:]))
"""
"""A server whose clock is wrong."""


class Line(NamedTuple):
    """One finding, as --json prints it."""

    check: str
    level: str
    subject: str
    text: str
    remedy: str


class Report(NamedTuple):
    """The exit status and the findings of a run."""

    status: int | None
    lines: list[Line]

    def only(self, level: str) -> Line:
        """The one finding of this level."""
        (line,) = [line for line in self.lines if line.level == level]
        return line

    def of(self, check: str, level: str) -> Line:
        """The first finding of a check with this level."""
        found = [line for line in self.lines if (line.check, line.level) == (check, level)]
        assert found, self.lines
        return found[0]


async def examine(namesrv: str, *options: str, **environment: str) -> Report:
    """Run the command; return its findings."""
    # --disk 100: only the test of that limit depends on how full this machine's disk is.
    # PYTHONPATH needs a process, since Python reads it at startup.
    running = run_process if "PYTHONPATH" in environment else run
    done = await running(
        "doctor", "--json", "-n", namesrv, "--disk", "100", *options, given=b"", **environment
    )
    assert done.err == "", done.err
    return Report(done.status, [Line(**json.loads(line)) for line in done.out.splitlines()])


# -- nothing wrong ----------------------------------------------------------------------------


async def test_a_healthy_cluster(cluster: EmbeddedCluster) -> None:
    """False alarms would hide the real ones."""
    report = await examine(cluster.namesrv_address)
    assert (report.status, {line.level for line in report.lines}) == (0, {"ok"})
    assert {line.check for line in report.lines} >= {
        "module", "profile", "name server", "reach", "clock", "disk", "permission",
    }  # fmt: skip


async def test_a_report_for_people(cluster: EmbeddedCluster) -> None:
    """A user would read JSON."""
    done = await run("doctor", "-n", f"{cluster.namesrv_address};{NOBODY}", "--disk", "100")
    assert (done.status, done.err) == (1, "")
    assert f"problem  name server {NOBODY}: cannot be reached" in done.out
    assert "→ Correct host and port" in done.out
    assert done.out.splitlines()[-1].startswith("problems: 1, warnings: 0, ")


# -- name servers -----------------------------------------------------------------------------


async def test_nothing_listens() -> None:
    """A wrong port would look like a cluster that is down."""
    report = await examine(NOBODY)
    line = report.only("problem")
    assert (report.status, line.check) == (1, "name server")
    assert "connection refused" in line.text
    assert "Correct host and port" in line.remedy


async def test_a_broker_as_name_server(cluster: EmbeddedCluster) -> None:
    """Newcomers who pass a broker's address, the most common mistake, would not learn that."""
    report = await examine(str(cluster.brokers[0].address))
    assert (report.status, report.only("problem").text) == (1, "it is a broker, not a name server")
    assert "9876" in report.only("problem").remedy


async def test_a_web_server_as_name_server() -> None:
    """The dashboard's address would be taken for one that does not respond."""

    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        report = await examine(f"{host}:{port}")
    assert report.status == 1
    assert "it is not a RocketMQ server: " in report.only("problem").text
    assert "web server" in report.only("problem").remedy


async def test_tls_that_is_required(tmp_path: Path) -> None:
    """A connection that ends at once would say nothing about TLS."""
    settings = tls_settings(trustme.CA(), tmp_path, "enforcing")
    async with servers(tmp_path, settings) as (names, _):
        report = await examine(str(replace(names.address, scheme="tcp")))
    assert report.status == 1
    assert report.of("tls", "problem").text.startswith("it requires TLS")
    assert "tls://" in report.of("tls", "problem").remedy


async def test_tls_that_is_not_spoken(cluster: EmbeddedCluster) -> None:
    """A failed handshake would look like a wrong certificate."""
    report = await examine(f"tls://{cluster.namesrv_address}")
    assert report.status == 1
    assert report.of("tls", "problem").text.startswith("it does not speak TLS")
    assert "without tls://" in report.of("tls", "problem").remedy


async def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    """A user would not learn that the profile lacks the certificate authority."""
    async with servers(tmp_path, tls_settings(trustme.CA(), tmp_path, "enforcing")) as (names, _):
        report = await examine(str(names.address))
    assert report.status == 1
    assert "tls_ca" in report.of("tls", "problem").remedy


async def test_name_servers_that_disagree(cluster: EmbeddedCluster) -> None:
    """Producers and consumers would see different clusters, by chance."""
    async with EmbeddedCluster() as other:
        report = await examine(f"{cluster.namesrv_address};{other.namesrv_address}")
    line = report.of("agreement", "problem")
    assert report.status == 1
    assert f"broker broker-a id 0: {cluster.brokers[0].address} at {cluster.namesrv_address}" in line.text
    assert "namesrvAddr of every broker" in line.remedy


# -- access -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "no access key was given"),
        ({**ADMIN, "ROCKETPY_SECRET_KEY": "wrong-secret"}, "the secret key is wrong"),
        ({**ADMIN, "ROCKETPY_ACCESS_KEY": "nobody"}, "it does not know the access key"),
    ],
)
async def test_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    """A user could not distinguish missing, unknown and wrong keys, which get the same response code."""
    async with Servers(tmp_path, monkeypatch) as place:
        report = await examine(str(place.names), **environment)
    line = report.of("access", "problem")
    assert report.status == 1
    assert says in line.text
    assert "ROCKETPY_SECRET_KEY" in line.remedy


async def test_the_right_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor that does not sign its requests would report correct keys as wrong."""
    async with Servers(tmp_path, monkeypatch) as place:
        report = await examine(str(place.names), **ADMIN)
    assert (report.status, {line.level for line in report.lines}) == (0, {"ok"})


async def test_the_keys_of_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account without the right to read broker state would be reported as a fault of the cluster."""
    keys = {"ROCKETPY_ACCESS_KEY": "my-account", "ROCKETPY_SECRET_KEY": "my-secret"}
    async with Servers(tmp_path, monkeypatch) as place:
        report = await examine(str(place.names), **keys)
    line = report.of("access", "warning")
    assert report.status == 0
    assert "admin: true" in line.remedy


# -- brokers ----------------------------------------------------------------------------------


@asynccontextmanager
async def broker_process(
    root: Path, *options: str, clock_ahead_s: float = 0
) -> AsyncIterator[tuple[str, str]]:
    """The addresses of a name server and a broker, in processes of their own."""
    names, namesrv = await processes.start("namesrv", "--listen", "127.0.0.1:0")
    address = f"127.0.0.1:{free_broker_port()}"
    broker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SHIFTED, str(clock_ahead_s), "broker", "--listen", address,
        "--namesrv", namesrv, "--store", str(root), "--set", "mappedFileSizeCommitLog=1048576", *options,
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        assert broker.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            assert b" ready at " in await broker.stdout.readline()
        yield namesrv, address
    finally:
        await processes.stop(broker)
        await processes.stop(names)


@pytest.mark.parametrize(("ahead_s", "says"), [(3600, "3600 s ahead of"), (-30, "30 s behind")])
async def test_a_wrong_clock(tmp_path: Path, ahead_s: float, says: str) -> None:
    """Messages would get wrong times, and an operator would not check the clock."""
    async with broker_process(tmp_path, clock_ahead_s=ahead_s) as (namesrv, _):
        report = await examine(namesrv)
    assert report.status == 1
    assert says in report.only("problem").text
    assert "NTP" in report.only("problem").remedy


async def test_an_address_that_cannot_be_reached(tmp_path: Path) -> None:
    """With containers, routes often have an address that clients cannot reach; nothing would report it."""
    async with broker_process(tmp_path, "--set", "brokerIP1=127.0.0.2") as (namesrv, _):
        report = await examine(namesrv)
    line = report.of("reach", "problem")
    assert (report.status, "127.0.0.2" in line.subject) == (1, True)
    assert "brokerIP1" in line.remedy


async def test_a_disk_that_is_too_full(cluster: EmbeddedCluster) -> None:
    """An operator would notice a full disk only when the broker rejects messages, at 90 %."""
    report = await examine(cluster.namesrv_address, "--disk", "0")
    line = report.of("disk", "problem")
    assert report.status == 1
    assert "% full (limit 0 %)" in line.text
    assert "fileReservedTime" in line.remedy


async def test_a_broker_that_is_not_ready(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose offsets are not saved would seem healthy, unless somebody asks its metrics port."""
    jobs = cluster.brokers[0].consumers.offsets.jobs
    monkeypatch.setattr(jobs, "problems", lambda: ["save of consumer offsets has failed for 61 s: no disk"])
    report = await examine(cluster.namesrv_address)
    line = report.of("health", "problem")
    assert report.status == 1
    assert line.text == "save of consumer offsets has failed for 61 s: no disk"


async def test_a_master_that_is_gone(tmp_path: Path) -> None:
    """A lost master would go unnoticed by consumers, which continue with the slave."""
    async with pair(tmp_path) as place:
        master = await place.master()
        await place.slave()
        await place.stop(master)
        report = await examine(place.namesrv_address)
    line = report.of("master", "problem")
    assert (report.status, line.subject) == (1, "broker pair")
    assert "rocketpy-broker promote" in line.remedy


async def test_a_slave_that_stays_behind(tmp_path: Path) -> None:
    """Its messages would be missing when the master fails."""
    async with pair(tmp_path) as place:
        await place.master(haSecret="one secret")
        await place.slave(haSecret="another secret")
        async with Producer("p", place.namesrv_address) as producer:
            await producer.send(Message("T", b"x"))
        report = await examine(place.namesrv_address)
    line = report.of("slave", "problem")
    assert (report.status, "is not copying" in line.text) == (1, True)
    assert "haSecret" in line.remedy


async def test_a_slave_that_copies(tmp_path: Path) -> None:
    """A healthy pair would be reported as faulty."""
    async with pair(tmp_path) as place:
        await place.master()
        slave = await place.slave()
        async with Producer("p", place.namesrv_address) as producer:
            await producer.send(Message("T", b"x"))
        report = await examine(place.namesrv_address)
        assert slave.store.max_physical_offset > 0
    assert report.of("slave", "ok").text == "it has all messages of its master"


async def test_a_wiped_write_permission(cluster: EmbeddedCluster) -> None:
    """A broker whose write permission was not restored would get no messages, without a reason."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.brokers.wipe_write_permission("broker-a")
    report = await examine(cluster.namesrv_address)
    line = report.only("problem")
    assert (report.status, line.check) == (1, "permission")
    assert line.remedy.startswith("Undo it: rocketpy broker restore-writes broker-a, ")


async def test_a_feature_that_is_off() -> None:
    """Transactions would fail with a code that says nothing of a setting."""
    async with EmbeddedCluster(settings={"rejectTransactionMessage": "true"}) as other:
        report = await examine(other.namesrv_address)
    assert (report.status, report.only("warning").text) == (0, "it rejects transactions")
    assert "rejectTransactionMessage=false" in report.only("warning").remedy
    assert "SQL92 filters (enablePropertyFilter=false)" in report.of("features", "ok").text


@pytest.mark.parametrize(
    ("version", "lacks"), [("V4_1_0", "batches"), ("V4_4_0", "requests"), ("V4_9_4", "")]
)
def test_an_old_version(version: str, lacks: str) -> None:
    """A user would see an error with a request code. The test passes in the report of such an old server."""
    findings = Findings()
    _check_version(findings, BrokerAddress("a", 0, "h:1"), BrokerState({"brokerVersionDesc": version}, None))
    assert [lacks in finding.text and "Upgrade" in finding.remedy for finding in findings] == [True] * bool(
        lacks
    )


# -- groups -----------------------------------------------------------------------------------


async def test_a_group_that_is_behind(cluster: EmbeddedCluster) -> None:
    """A group whose consumers were not restarted would go unnoticed."""
    namesrv = cluster.namesrv_address
    seen = Seen()
    async with Producer("p", namesrv) as producer:
        await producer.send(Message("T", b"first"))
        async with consuming(cluster, seen):
            await seen.until(1)
        for number in range(5):
            await producer.send(Message("T", b"%d" % number))
    report = await examine(namesrv, "--lag", "4")
    line = report.of("lag", "warning")
    assert (report.status, line.subject) == (0, "group g")
    assert line.text == "it is 5 messages behind, with 0 members online"
    assert "Start its consumers" in line.remedy
    assert (await examine(namesrv, "--lag", "5")).of("lag", "ok")


async def test_an_offset_beyond_the_end(cluster: EmbeddedCluster) -> None:
    """After a queue has lost its end, a group skips new messages, and its lag would be below 0."""
    (broker,) = cluster.brokers
    await broker.consumers.groups.update(SubscriptionGroupConfig(group_name="g"))
    broker.consumers.offsets.commit("g", "T", 0, 100)
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("T", 1)
    report = await examine(cluster.namesrv_address)
    line = report.of("lag", "problem")
    assert (report.status, line.subject) == (1, "group g")
    assert "beyond the end of MessageQueue(topic='T'" in line.text
    assert "rocketpy group reset g" in line.remedy
    assert report.of("lag", "ok").text == "it is 0 messages behind"


async def test_queues_that_are_not_read(cluster: EmbeddedCluster) -> None:
    """Messages that mqadmin has made unreadable would go unnoticed; the lag of RocketMQ's brokers is 0."""
    (broker,) = cluster.brokers
    await broker.consumers.groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=4))
    assert (await examine(cluster.namesrv_address)).status == 0  # no member has created the retry topic yet
    for topic, reads, writes in (("T", 2, 4), ("Drained", 4, 2), ("%RETRY%g", 1, 1)):
        config = TopicConfig(topic_name=topic, read_queue_nums=reads, write_queue_nums=writes)
        await broker.topics.update(config)
    await until(lambda: cluster.namesrv is not None and cluster.namesrv.routes.route("%RETRY%g") is not None)
    report = await examine(cluster.namesrv_address)
    name = broker.config.name
    lines = [line for line in report.lines if line.check == "queues"]
    assert [line.subject for line in lines] == [f"topic T on {name}", f"group g on {name}"]
    assert lines[0].text.startswith("producers write to 4 queues, and consumers read 2: ")
    assert lines[0].remedy.endswith(": rocketpy topic alter T --read-queues 4")
    assert lines[1].text.startswith("it has 4 retry queues, and its retry topic 1 to read: ")
    assert lines[1].remedy.endswith(": rocketpy group alter g --retry-queues 4")


async def test_dead_letters_that_wait(cluster: EmbeddedCluster) -> None:
    """Dead letters would go unnoticed until they expire."""
    await dead(cluster, 3)
    report = await examine(cluster.namesrv_address)
    line = report.of("dead letters", "warning")
    assert (report.status, line.subject, line.text) == (0, "group g", "there are 3 dead letters")
    assert "rocketpy dlq resend g --all" in line.remedy


# -- this machine -----------------------------------------------------------------------------


async def test_the_other_package_of_the_name(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A user whose files were replaced by the flight simulator would see unrelated errors."""
    info = tmp_path / "rocketpy-1.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rocketpy\nVersion: 1.9.0\n")
    report = await examine(cluster.namesrv_address, PYTHONPATH=str(tmp_path))
    line = report.only("problem")
    assert (report.status, line.check) == (1, "module")
    assert "rocketpy 1.9.0, a flight simulator" in line.text
    assert "pip uninstall rocketpy rocketpy-mq" in line.remedy


@pytest.mark.parametrize(("mode", "level"), [(0o644, "problem"), (0o600, "ok")])
async def test_a_secret_that_others_can_read(
    cluster: EmbeddedCluster, tmp_path: Path, mode: int, level: str
) -> None:
    """Every user of the machine could act as the account."""
    file = tmp_path / "rocketpy.toml"
    file.write_text('[staging]\naccess_key = "someone"\nsecret_key = "a secret"\n')
    file.chmod(mode)
    report = await examine(cluster.namesrv_address, ROCKETPY_CONFIG=str(file))
    line = report.of("profile", level)
    assert ("chmod 600" in line.remedy) == (level == "problem")
    assert "a secret" not in line.text.replace("no secret key", "")


async def test_a_profile_that_does_not_exist() -> None:
    """The command would end with a line on stderr instead of a report."""
    done = await run("doctor", "--json", "--profile", "nowhere")
    assert done.status == 1
    assert "profile nowhere was not found" in done.out


@pytest.mark.parametrize(
    ("settings", "replicas", "problem"),
    [
        ({"brokerRole": "ASYNC_MASTER"}, 0, None),
        ({"brokerRole": "SYNC_MASTER"}, 1, ""),
        ({"brokerRole": "SYNC_MASTER"}, 0, "it is a SYNC_MASTER without a slave"),
        ({"enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:1;n1-b:2;n2-c:3"}, 2, ""),
        (
            {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:1;n1-b:2;n2-c:3"},
            1,
            "only 2 of the 3 peers of its group respond",
        ),
    ],
)
def test_replicas_of_rocketmqs_brokers_are_counted(
    settings: dict[str, str], replicas: int, problem: str | None
) -> None:
    """RocketMQ's brokers do not say that their slave is missing."""
    states = {
        BrokerAddress("b", number, f"host:{number}"): BrokerState({}, None) for number in range(replicas + 1)
    }
    states[BrokerAddress("other", 1, "host:9")] = BrokerState({}, None)
    findings = Findings()
    _check_replicas(findings, BrokerAddress("b", 0, "host:0"), states, settings)
    if problem is None:
        assert findings == []
    else:
        (found,) = findings
        assert (found.level, found.text.startswith(problem)) == ("problem" if problem else "ok", True)
