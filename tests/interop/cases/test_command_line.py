"""The command line with RocketMQ's servers: each command that reads, and each that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketpy import ConsumeFrom, Later, MessageExt, PushConfig
from rocketpy.config import ClientConfig
from rocketpy.sync import AdminClient, PushConsumer
from tests.integration.cli.in_process import Shell, wait_until
from tests.interop.cluster import Cluster, new_broker, stopping
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import ALL_VERSIONS, OPERATOR, OPERATOR_ACL, OUR_SDK, Side, serve

pytestmark = pytest.mark.interop

BROKER, CLUSTER = "shown", "InteropCluster"


@pytest.fixture(scope="module", params=[OUR_SDK[0], *ALL_VERSIONS], ids=lambda side: side.direction)
def side(request: pytest.FixtureRequest) -> Side:
    """A pairing with servers of one version."""
    found: Side = request.param
    return found


@pytest.fixture(scope="module")
def servers(side: Side, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One running pair of servers for each version. That of 4.6.0 has access control."""
    run = tmp_path_factory.mktemp("cli")
    conf = {"brokerName": BROKER}
    if side.version == DEFAULT_VERSION:
        directory = run / "java-broker" / "conf"
        directory.mkdir(parents=True)
        (directory / "plain_acl.yml").write_text(OPERATOR_ACL)
        conf |= {"aclEnable": "true"}
    with serve(side, peer, run, conf=conf) as running:
        yield running


@pytest.fixture(scope="module")
def shell(servers: Cluster) -> Shell:
    """An administrator's shell."""
    keys = {"ROCKETPY_ACCESS_KEY": OPERATOR.access_key, "ROCKETPY_SECRET_KEY": OPERATOR.secret_key}
    return Shell(servers.namesrv.address, **keys)


@pytest.fixture(scope="module")
def filled(shell: Shell) -> str:
    """A topic with eight messages in one queue, of which the group `readers` has consumed three."""
    # Until its first sample, a broker of 4.6.0 fails a query of its state with NoSuchElementException.
    wait_until(lambda: shell.run("broker", "list").status == 0)
    shell.text("topic", "create", "Filled", "--queues", "1", "--yes")
    for number in range(8):
        shell.text("send", "Filled", str(number), "--tags", "t", "--key", f"k{number}")
    wait_until(lambda: found(shell, "Filled") == 8)
    shell.text("group", "create", "readers", "--max-retries", "3", "--yes")
    shell.text("group", "reset", "readers", "Filled", "--to", "3", "--yes")
    return "Filled"


def found(shell: Shell, topic: str) -> int:
    """How many messages a topic has; RocketMQ's brokers dispatch a little after they respond."""
    (described,) = shell.rows("topic", "describe", topic)
    return sum(queue["messages"] for queue in described["queues"])


def client(servers: Cluster) -> ClientConfig:
    return ClientConfig(namesrv=servers.namesrv.address, credentials=OPERATOR)


# -- commands that read -----------------------------------------------------------------------


def test_topics_groups_and_brokers_are_shown(servers: Cluster, shell: Shell, filled: str, side: Side) -> None:
    """An operator of RocketMQ's servers would see no data, or wrong data."""
    assert {"topic": filled} in shell.rows("topic", "list", "--cluster", CLUSTER)
    (topic,) = shell.rows("topic", "describe", filled, "--cluster", CLUSTER)
    assert (topic["groups"], topic["queues"][0]["messages"]) == (["readers"], 8)
    assert shell.rows("topic", "delete", filled, "--dry-run")
    (group,) = [row for row in shell.rows("group", "list") if row["group"] == "readers"]
    assert (group["broker_name"], group["max_retries"], group["enabled"]) == (BROKER, 3, True)
    (described,) = shell.rows("group", "describe", "readers")
    assert (described["lag"], described["members"]) == (5, [])
    (lag,) = shell.rows("group", "lag", "readers", "--topic", filled)
    assert (lag["group_offset"], lag["end_offset"], lag["lag"]) == (3, 8, 5)
    assert shell.rows("group", "members", "readers") == []
    assert shell.rows("group", "delete", "readers", "--dry-run") == [described]
    (broker,) = shell.rows("broker", "list", "--cluster", CLUSTER)
    assert (broker["broker_name"], broker["address"]) == (BROKER, servers.broker.address)
    assert broker["version"].startswith("V" + side.version.replace(".", "_"))
    (runtime,) = shell.rows("broker", "runtime", BROKER)
    assert int(runtime["bootTimestamp"]) > 0
    assert {"minute", "hour", "day"} == {
        row["period"] for row in shell.rows("broker", "stats", BROKER, "TOPIC_PUT_NUMS", filled)
    }
    assert shell.rows("broker", "producers", "nobody") == []
    assert shell.rows("broker", "config", "get", BROKER, "brokerName") == [{"brokerName": BROKER}]
    (plan,) = shell.rows("broker", "drain", BROKER, "--dry-run")
    assert (plan["cluster"], plan["topics"], plan["slaves"]) == (CLUSTER, [], [])
    assert filled in plan["unmovable_topics"]
    names = {row["name"]: row["value"] for row in shell.rows("namesrv", "config", "get")}
    assert names["orderMessageEnable"] in ("true", "false")


def test_messages_are_shown(shell: Shell, filled: str) -> None:
    """A message of RocketMQ's brokers could not be looked up."""
    rows = shell.rows("message", "between", filled, "--from", "1h")
    assert [row["body"] for row in rows] == [str(number) for number in range(8)]
    one = rows[1]
    (at,) = shell.rows("message", "at", filled, BROKER, "0", "1")
    assert at == one
    wait_until(lambda: shell.run("message", "find", filled, "--key", "k1").status == 0)
    assert shell.rows("message", "find", filled, "--key", "k1")[0]["message_id"] == one["message_id"]
    (by_unique_id,) = shell.rows("message", "get", one["message_id"], "--topic", filled)
    assert by_unique_id["body"] == "1"
    details = shell.text("message", "get", one["message_id"], "--topic", filled)
    (line,) = [line for line in details.splitlines() if line.startswith("broker's id: ")]
    (by_id,) = shell.rows("message", "get", line.split()[-1])
    assert (by_id["body"], by_id["message_id"]) == ("1", one["message_id"])
    (track,) = shell.rows("message", "consumers", one["message_id"], "--topic", filled)
    assert track == {"group": "readers", "state": "consumed", "online": False}


def test_messages_are_read(shell: Shell, filled: str, tmp_path: Path) -> None:
    """A topic of RocketMQ's brokers could not be printed or exported."""
    bodies = [str(number) for number in range(8)]
    assert shell.text("consume", filled).split() == bodies
    assert shell.text("consume", filled, "--from", "-2", "--tags", "t").split() == bodies[-2:]
    assert shell.text("consume", filled, "--from", "1h", "--count", "3").split() == bodies[:3]
    assert shell.text("consume", filled, "--group", "printers").split() == bodies
    (done,) = shell.rows("export", filled, "--to", str(tmp_path / "archive"))
    assert done["exported_now"] == 8


@pytest.mark.usefixtures("filled")
def test_the_doctor_finds_nothing_wrong(shell: Shell) -> None:
    """A healthy cluster of RocketMQ would be reported as faulty, or a check not run."""
    done = shell.run("doctor", "--json", "--disk", "100")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {line["level"] for line in lines} <= {"ok", "warning"}, lines
    warned = {line["check"] for line in lines if line["level"] == "warning"}
    assert warned <= {"features", "dead letters"}, lines
    assert {line["check"] for line in lines} >= {"name server", "reach", "clock", "disk", "permission", "lag"}
    assert (done.status, done.err) == (0, "")


# -- commands that change ---------------------------------------------------------------------


def test_topics_and_groups_are_changed(servers: Cluster, shell: Shell, filled: str) -> None:
    """A change would be lost, or reset other settings."""
    shell.text("topic", "create", "Changed", "--queues", "2", "--yes")
    shell.text("topic", "alter", "Changed", "--queues", "4", "--perm", "r", "--yes")
    (topic,) = shell.rows("topic", "describe", "Changed")
    (settings,) = topic["brokers"]
    assert (settings["read_queues"], settings["write_queues"], settings["perm"]) == (4, 4, "r")
    shell.text("topic", "delete", "Changed", "--cluster", CLUSTER, "--yes")
    assert {"topic": "Changed"} not in shell.rows("topic", "list")
    shell.text("group", "create", "clones", "--yes")
    shell.text("group", "alter", "clones", "--max-retries", "5", "--yes")
    shell.text("group", "clone", "readers", "clones", "--topic", filled, "--yes")
    (lag,) = shell.rows("group", "lag", "clones", "--topic", filled)
    assert lag["group_offset"] == 3
    (preview,) = shell.rows("group", "reset", "clones", filled, "--to", "end", "--dry-run")
    assert (preview["old_offset"], preview["new_offset"]) == (3, 8)
    assert shell.rows("group", "reset", "clones", filled, "--to", "end", "--yes") == [preview]
    shell.text("group", "delete", "clones", "--yes")
    left = [row["max_retries"] for row in shell.rows("group", "list") if row["group"] == "clones"]
    assert left == ([16] if servers.version == "5.5.0" else [])  # it creates the group again, with defaults


def test_settings_are_changed(shell: Shell, side: Side, tmp_path: Path) -> None:
    """An operator could not change a running server."""
    shell.text("broker", "config", "set", BROKER, "fileReservedTime=47", "deleteWhen=05", "--yes")
    wanted = {"fileReservedTime": "47", "deleteWhen": "05"}
    assert shell.rows("broker", "config", "get", BROKER, *wanted) == [wanted]
    shell.text("namesrv", "config", "set", "orderMessageEnable=true", "--yes")
    names = {row["name"]: row["value"] for row in shell.rows("namesrv", "config", "get")}
    assert names["orderMessageEnable"] == "true"
    shell.text("namesrv", "put", "shop", "region", "north", "--yes")
    assert shell.rows("namesrv", "get", "shop", "region") == [{"key": "region", "value": "north"}]
    shell.text("namesrv", "delete", "shop", "region", "--yes")
    assert "has no key region" in shell.fails("namesrv", "get", "shop", "region")
    shell.text("broker", "clean-queues", "--yes")
    shell.text("broker", "clean-topics", "--cluster", CLUSTER, "--yes")
    if side.version == DEFAULT_VERSION:
        (tmp_path / "secret").write_text("fresh-secret", "utf-8")
        (before,) = shell.rows("acl", "version")
        given = ("--topic", "News=PUB", "--secret-file", str(tmp_path / "secret"))
        shell.text("acl", "put", "newcomer", *given, "--yes")
        (account,) = [row for row in shell.rows("acl", "list") if row["access_key"] == "newcomer"]
        assert account["topics"] == {"News": "PUB"}
        (after,) = shell.rows("acl", "version")
        assert after != before
        shell.text("acl", "set-white-addresses", "10.9.8.7", "--yes")
        assert [row["address"] for row in shell.rows("acl", "white-addresses")] == ["10.9.8.7"]
        shell.text("acl", "delete", "newcomer", "--yes")
        assert [row["access_key"] for row in shell.rows("acl", "list")] == ["operator"]


def test_messages_are_sent(shell: Shell, tmp_path: Path) -> None:
    """Lines or archives would not arrive at RocketMQ's brokers, or a measurement count others."""
    shell.text("topic", "create", "Sent", "--queues", "2", "--yes")
    file = tmp_path / "lines"
    lines = [f"line {number}" for number in range(3000)]
    file.write_text("\n".join(lines), "utf-8")
    (done,) = shell.rows("send", "Sent", "--file", str(file))
    assert (done["stored"], done["failed"]) == (3000, 0)
    wait_until(lambda: found(shell, "Sent") == 3000)
    archive = str(tmp_path / "archive")
    shell.text("export", "Sent", "--to", archive)
    (done,) = shell.rows("import", archive, "--topic", "Sent", "--yes")
    assert done["sent_now"] == 3000
    wait_until(lambda: found(shell, "Sent") == 6000)
    assert sorted(shell.text("consume", "Sent").splitlines()) == sorted(lines * 2)
    (figures,) = shell.rows("bench", "Sent", "--messages", "500", "--size", "100", "--yes")
    assert (figures["send"]["messages"], figures["consume"]["messages"], figures["failed"]) == (500, 500, 0)


def test_messages_are_handled_again(servers: Cluster, shell: Shell) -> None:
    """An operator could not have a message, or a dead letter, handled again."""
    shell.text("topic", "create", "Again", "--queues", "1", "--yes")
    shell.text("send", "Again", "first")
    seen: list[MessageExt] = []
    fails = True

    def handle(message: MessageExt) -> Later | None:
        seen.append(message)
        return Later(delay_level=-1) if fails else None

    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, persist_interval_ms=100)
    consumer = PushConsumer("handlers", None, handle, client=client(servers), config=config)
    consumer.subscribe("Again")
    with consumer:
        wait_until(
            lambda: {row["group"]: row for row in shell.rows("dlq", "list")}.get("handlers", {}).get(
                "messages"
            )
        )
        (member,) = shell.rows("group", "members", "handlers")
        assert member["language"] == "PYTHON"
        assert [row["body"] for row in shell.rows("dlq", "read", "handlers")] == ["first"]
        assert shell.rows("dlq", "resend", "handlers", "--all", "--dry-run")
        fails = False
        shell.text("dlq", "resend", "handlers", "--all", "--yes")
        wait_until(lambda: len(seen) == 2)
        to = (seen[0].message_id, "--topic", "Again", "--yes")
        (done,) = shell.rows("message", "deliver", *to, "--group", "handlers")
        assert (done["client_id"], done["status"], len(seen)) == (member["client_id"], "CR_SUCCESS", 3)
        shell.text("message", "resend", *to)
        wait_until(lambda: len(seen) == 4)
        shell.text("message", "resend", *to, "--group", "handlers")
        wait_until(lambda: len(seen) == 5)
        assert {message.body for message in seen} == {b"first"}
        assert "there is no group nobody" in shell.fails("message", "resend", *to, "--group", "nobody")


def test_a_broker_is_drained_and_restored(
    servers: Cluster, shell: Shell, side: Side, filled: str, tmp_path: Path
) -> None:
    """A rolling restart of RocketMQ's brokers would fail sends."""
    assert "was not hidden" in shell.fails("broker", "drain", BROKER, "--yes")
    with ExitStack() as stack:
        other = new_broker("our", None, tmp_path, servers.namesrv.address, conf={"brokerName": "other"})
        stack.enter_context(stopping([other.start()]))
        admin = stack.enter_context(AdminClient(client=client(servers)))
        shell.text("topic", "create", filled, "--queues", "1", "--yes")
        wait_until(lambda: len(admin.fetch_publish_message_queues(filled)) == 2)
        (done,) = shell.rows("broker", "drain", BROKER, "--wait", "0", "--yes")
        assert (done["broker_name"], filled in done["topics"]) == (BROKER, True)
        assert [queue.broker_name for queue in admin.fetch_publish_message_queues(filled)] == ["other"]
        ill = [json.loads(line) for line in shell.run("doctor", "--json", "--disk", "100").out.splitlines()]
        (problem,) = [line for line in ill if line["level"] == "problem"]
        assert problem["check"] == "permission"
        assert f"rocketpy broker restore-writes {BROKER}" in problem["remedy"]
        shell.text("broker", "wipe-writes", BROKER, "--yes")
        if side.version == DEFAULT_VERSION:
            shell.fails("broker", "restore-writes", BROKER, "--yes")  # name servers can do that since 4.9
        else:
            shell.text("broker", "restore-writes", BROKER, "--yes")
            assert len(admin.fetch_publish_message_queues(filled)) == 2
