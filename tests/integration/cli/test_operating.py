"""rocketpy topic, group, broker, namesrv, message and acl: commands that show and change a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rocketpy import Later, Message, MessageExt, MessageQueue
from rocketpy.admin import Permission
from rocketpy.sync import AdminClient, LitePullConsumer, Producer, PushConsumer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.access_place import Servers, Thread
from tests.integration.cli.in_process import Shell, shared_cluster, wait_until
from tests.integration.client.admin.admin_place import OTHER, other_cluster
from tests.waiting import LIMIT_S

T = TypeVar("T")


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedCluster]:
    with shared_cluster() as cluster:
        yield cluster


@pytest.fixture
def shell(running: EmbeddedCluster) -> Shell:
    return Shell(running.namesrv_address)


@pytest.fixture(scope="module")
def admin(running: EmbeddedCluster) -> Iterator[AdminClient]:
    with AdminClient(running.namesrv_address) as started:
        yield started


def fill(shell: Shell, admin: AdminClient, topic: str, group: str) -> None:
    """Three messages in one queue, of which a group has consumed two."""
    admin.topics.create(topic, 1)
    send_three(topic, shell)
    admin.groups.create(group)
    assert shell.run("group", "reset", group, topic, "--to", "2", "--yes").status == 0


def send_three(topic: str, shell: Shell) -> None:
    """Send three messages to a topic."""
    with Producer("senders", shell.namesrv) as producer:
        for number in range(3):
            producer.send(Message(topic, b"%d" % number))


@contextmanager
def served(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """A server in a thread of its own."""
    thread = Thread()
    try:
        stack = AsyncExitStack()
        server = thread.run(stack.enter_async_context(make()))
        try:
            yield server
        finally:
            thread.run(stack.aclose())
    finally:
        thread.close()


@contextmanager
def operated(path: Path, monkeypatch: pytest.MonkeyPatch, conf: str = "") -> Iterator[Shell]:
    """An administrator's shell, and servers with access control. conf: lines of their files."""
    with served(lambda: Servers(path, monkeypatch, conf=conf)) as servers:
        yield Shell(str(servers.names), ROCKETPY_ACCESS_KEY="operator", ROCKETPY_SECRET_KEY="operator-secret")


# -- topics -----------------------------------------------------------------------------------


def test_topics_are_created_listed_and_described(shell: Shell, admin: AdminClient) -> None:
    """A user could not see which topics a cluster has, and what is in them."""
    fill(shell, admin, "Described", "readers")
    assert {"topic": "Described"} in shell.rows("topic", "list", "--cluster", "DefaultCluster")
    assert "Described" in shell.text("topic", "list").split()
    (found,) = shell.rows("topic", "describe", "Described")
    assert found["groups"] == ["readers"]
    assert found["brokers"] == [
        {
            "broker_name": "broker-a",
            "read_queues": 1,
            "write_queues": 1,
            "perm": "rw",
            "ordered": False,
            "attributes": {},
        }
    ]
    (queue,) = found["queues"]
    assert queue.pop("last_stored_timestamp") > 0
    assert queue == {
        "broker_name": "broker-a",
        "queue_id": 0,
        "min_offset": 0,
        "max_offset": 3,
        "messages": 3,
    }
    lines = shell.text("topic", "describe", "Described").splitlines()
    assert lines[0].endswith("groups: readers")
    assert lines[2].split() == [
        *("broker", "read", "queues", "write", "queues", "perm", "ordered", "attributes")
    ]
    assert lines[6].split()[:5] == ["broker-a", "0", "0", "3", "3"]


def test_a_topic_is_altered(shell: Shell, admin: AdminClient) -> None:
    """A setting would not reach the broker, or would reset the others."""
    shell.text("topic", "create", "Altered", "-q", "2", "--ordered", "--perm", "r", "--yes")
    shell.text("topic", "alter", "Altered", "--queues", "4", "--write-queues", "3", "--yes")
    settings = admin.topics.describe("Altered").brokers["broker-a"]
    assert (settings.read_queues, settings.write_queues, settings.ordered) == (4, 3, True)
    (done,) = shell.rows("topic", "alter", "Altered", "--perm", "rw", "--unordered", "--yes")
    assert done == {"topic": "Altered", "perm": "rw", "ordered": False, "cluster": shell.namesrv}
    settings = admin.topics.describe("Altered").brokers["broker-a"]
    assert (int(settings.perm), settings.write_queues, settings.ordered) == (6, 3, False)
    assert shell.run("topic", "alter", "Altered", "--yes").status == 2


def test_a_topic_is_deleted_after_a_dry_run(shell: Shell, admin: AdminClient) -> None:
    """A dry run would delete the topic, or the command would keep it."""
    fill(shell, admin, "Deleted", "leavers")
    (shown,) = shell.rows("topic", "delete", "Deleted", "--dry-run")
    assert shown["queues"][0]["messages"] == 3
    assert "Deleted" in admin.topics.list()
    shell.text("topic", "delete", "Deleted", "--yes")
    assert "Deleted" not in admin.topics.list()


def test_a_dry_run_shows_what_one_cluster_has(
    shell: Shell, admin: AdminClient, running: EmbeddedCluster, tmp_path: Path
) -> None:
    """An operator would see queues that the deletion keeps, or be asked to delete from the wrong cluster."""
    with served(lambda: other_cluster(running, tmp_path)):
        admin.topics.create("Both", 2)
        admin.groups.create("both")
        admin.topics.create("Here", 1, cluster="DefaultCluster")
        for cluster, broker in (("DefaultCluster", "broker-a"), (OTHER, "other-a")):
            only = ("--cluster", cluster, "--dry-run")
            (topic,) = shell.rows("topic", "delete", "Both", *only)
            assert {row["broker_name"] for row in topic["brokers"] + topic["queues"]} == {broker}
            (group,) = shell.rows("group", "delete", "both", *only)
            assert [row["broker_name"] for row in group["brokers"]] == [broker]
        assert "no broker of cluster OtherCluster has topic Here" in shell.fails(
            "topic", "delete", "Here", *only
        )
        assert "there is no cluster 'Nowhere'" in shell.fails(
            "topic", "describe", "Both", "--cluster", "Nowhere"
        )
        admin.topics.delete("Both")


# -- groups -----------------------------------------------------------------------------------


def test_lag(shell: Shell, admin: AdminClient) -> None:
    """An operator could not see how far a group is behind."""
    fill(shell, admin, "Late", "latecomers")
    (row,) = shell.rows("group", "lag", "latecomers", "--topic", "Late")
    assert row.pop("last_consumed_timestamp") > 0
    assert row == {
        "topic": "Late",
        "broker_name": "broker-a",
        "queue_id": 0,
        "end_offset": 3,
        "group_offset": 2,
        "in_flight": 0,
        "lag": 1,
    }
    (total,) = shell.rows("group", "lag", "latecomers", "--total")
    assert (total["group"], total["lag"]) == ("latecomers", 1)
    lines = shell.text("group", "lag", "latecomers", "--clients").splitlines()
    assert lines[1].split()[:6] == ["Late", "broker-a", "0", "3", "2", "1"]
    assert lines[-1].startswith("lag of group latecomers: 1; ")
    assert "there is no group nobody" in shell.fails("group", "lag", "nobody")


def test_a_dry_run_of_a_reset_changes_nothing(shell: Shell, admin: AdminClient) -> None:
    """A group would skip or repeat messages after a dry run."""
    fill(shell, admin, "Kept", "keepers")
    queue = MessageQueue("Kept", "broker-a", 0)
    change = {"topic": "Kept", "broker_name": "broker-a", "queue_id": 0, "old_offset": 2}
    for to, new in (("begin", 0), ("end", 3), ("1", 1), ("1h", 0)):
        assert shell.rows("group", "reset", "keepers", "Kept", "--to", to, "--dry-run") == [
            change | {"new_offset": new}
        ]
        assert admin.groups.lag("keepers", "Kept").queues[queue].group_offset == 2
    assert "nothing was changed" in shell.text(
        "group", "reset", "keepers", "Kept", "--to", "end", "--dry-run"
    )
    assert shell.rows("group", "reset", "keepers", "Kept", "--to", "begin", "--yes") == [
        change | {"new_offset": 0}
    ]
    assert admin.groups.lag("keepers", "Kept").queues[queue].group_offset == 0
    assert shell.run("group", "reset", "keepers", "Kept", "--to", "-3", "--dry-run").status == 2


def test_offsets_are_cloned(shell: Shell, admin: AdminClient) -> None:
    """A new group would begin elsewhere than the one it replaces."""
    fill(shell, admin, "Shared", "old-group")
    admin.groups.create("new-group")
    shell.text("group", "clone", "old-group", "new-group", "--topic", "Shared", "--yes")
    assert admin.groups.lag("new-group", "Shared").total == 1


def test_what_exists_is_not_created_again(shell: Shell, admin: AdminClient) -> None:
    """A script that creates its topics and groups would undo changes, or not say that they are different."""
    shell.text("topic", "create", "Twice", "--queues", "4", "--yes")
    shell.text("topic", "alter", "Twice", "--perm", "r", "--yes")
    told = shell.text("topic", "create", "Twice", "--queues", "2", "--yes")
    assert "created only where it was missing, left unchanged on broker-a" in told
    assert "left unchanged (rocketpy topic alter changes it):" in told
    ((broker, settings),) = admin.topics.describe("Twice").brokers.items()
    assert (settings.write_queues, settings.perm) == (4, Permission.READ)
    (done,) = shell.rows("topic", "create", "Twice", "--yes")
    shown = {"read_queues": 4, "write_queues": 4, "perm": "r", "ordered": False, "attributes": {}}
    assert done["unchanged"] == [{"broker_name": broker, **shown}]
    assert "use AdminClient.topics.alter or rocketpy topic alter" in shell.fails(
        "topic", "create", "Twice", "--queues", "8", "--yes"
    )
    shell.text("group", "create", "twice", "--max-retries", "3", "--yes")
    told = shell.text("group", "create", "twice", "--max-retries", "5", "--yes")
    assert "left unchanged (rocketpy group alter changes it):" in told
    (done,) = shell.rows("group", "create", "twice", "--yes")
    assert [(row["broker_name"], row["max_retries"]) for row in done["unchanged"]] == [(broker, 3)]


def test_a_group_is_created_altered_and_deleted(shell: Shell, admin: AdminClient) -> None:
    """A setting would not reach the broker, or a preview would delete the group."""
    shell.text("group", "create", "passing", "--max-retries", "3", "--no-broadcast", "--yes")
    shell.text("group", "alter", "passing", "--disabled", "--yes")
    (row,) = [one for one in shell.rows("group", "list") if one["group"] == "passing"]
    settings = (row["max_retries"], row["broadcast"], row["enabled"], row["notify_changes"])
    assert settings == (3, False, False, True)
    assert shell.run("group", "alter", "passing", "--yes").status == 2
    (shown,) = shell.rows("group", "delete", "passing", "--dry-run")
    assert (shown["group"], shown["members"], shown["brokers"]) == ("passing", [], [row])
    shell.text("group", "delete", "passing", "--yes")
    assert "passing" not in [group.name for group in admin.groups.list()]
    assert "there is no group passing" in shell.fails("group", "describe", "passing")


def test_members(shell: Shell, admin: AdminClient) -> None:
    """An operator could not see who consumes what."""
    fill(shell, admin, "Read", "members")
    assert shell.text("group", "members", "members") == "group members has no members online\n"
    consumer = LitePullConsumer("members", shell.namesrv)
    consumer.subscribe("Read", "*")
    with consumer:
        consumer.poll(5000)
        (member,) = shell.rows("group", "members", "members")
        (shown,) = shell.rows("group", "describe", "members")
        assert "stopped" not in shell.text("group", "describe", "members")
        refused = shell.fails("group", "reset", "members", "Read", "--to", "0", "--yes")
    assert (member["language"], member["brokers"]) == ("PYTHON", ["broker-a"])
    assert shown["members"] == [{**member, "subscriptions": {"Read": "*"}}]
    assert shown["conflicts"] == []
    assert shown["subscriptions"]["Read"] == "*"
    assert "1 members online" in refused


# -- brokers ----------------------------------------------------------------------------------


def test_brokers_and_their_state(shell: Shell, admin: AdminClient, running: EmbeddedCluster) -> None:
    """An operator could not see which brokers there are, and how they are."""
    fill(shell, admin, "Counted", "counters")
    (row,) = shell.rows("broker", "list")
    address = str(running.brokers[0].address)
    assert (row["cluster"], row["broker_name"], row["broker_id"]) == ("DefaultCluster", "broker-a", 0)
    assert (row["address"], row["version"], row["error"]) == (address, "V4_6_0", None)
    assert shell.text("broker", "list").splitlines()[0].split()[-2:] == ["in/s", "out/s"]
    for named in ("broker-a", address):
        (state,) = shell.rows("broker", "runtime", named)
        assert int(state["putMessageTimesTotal"]) >= 3
    counted = ("broker", "stats", "broker-a", "TOPIC_PUT_NUMS", "Counted")
    before = shell.rows(*counted)[0]  # a topic is counted from its first sample on
    send_three("Counted", shell)
    after = shell.rows(*counted)[0]
    assert (after["period"], after["total"] - before["total"]) == ("minute", 3)
    assert shell.rows("broker", "producers", "nobody") == []
    assert "it knows: broker-a" in shell.fails("broker", "runtime", "other").replace("the name server", "it")


def test_settings_of_a_broker(shell: Shell) -> None:
    """An operator could not see a setting, or a refused change would look done."""
    assert shell.rows("broker", "config", "get", "broker-a", "brokerName") == [{"brokerName": "broker-a"}]
    assert "has no setting bogus" in shell.fails("broker", "config", "get", "broker-a", "bogus")
    refused = shell.fails("broker", "config", "set", "broker-a", "fileReservedTime=48", "--yes")
    assert "remoteConfigUpdateEnable" in refused
    assert shell.run("broker", "config", "set", "broker-a", "word", "--yes").status == 2


def test_accepted_changes_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change would look done, and not reach the server."""
    with operated(tmp_path, monkeypatch, "remoteConfigUpdateEnable=true\n") as shell:
        (broker,) = shell.rows("broker", "list")
        name = broker["broker_name"]
        (done,) = shell.rows("broker", "config", "set", name, "fileReservedTime=47", "deleteWhen=05", "--yes")
        wanted = {"fileReservedTime": "47", "deleteWhen": "05"}
        assert (done["broker_name"], done["settings"]) == (name, wanted)
        assert shell.rows("broker", "config", "get", name, *wanted) == [wanted]
        text = shell.text("namesrv", "config", "set", "orderMessageEnable=true", "--yes")
        assert text.startswith("set orderMessageEnable=true on every name server at ")
        values = {row["name"]: row["value"] for row in shell.rows("namesrv", "config", "get")}
        assert values["orderMessageEnable"] == "true"


def test_queues_and_topics_are_cleaned(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Files of deleted topics would stay until an operator uses mqadmin."""
    caplog.set_level("INFO", "rocketpy.broker")
    (done,) = shell.rows("broker", "clean-topics", "--yes")
    assert done == {"deleted": "the queues of deleted topics", "cluster": shell.namesrv}
    assert "0 unused queues deleted" in caplog.text
    text = shell.text("broker", "clean-queues", "--cluster", "DefaultCluster", "--yes")
    assert text.startswith("deleted queues without messages on every master of cluster DefaultCluster at ")
    assert "0 expired queues deleted" in caplog.text
    assert "no cluster 'Nowhere'" in shell.fails("broker", "clean-queues", "--cluster", "Nowhere", "--yes")


def test_settings_of_name_servers(shell: Shell) -> None:
    """A key would not be set, or a preview would delete it."""
    shell.text("namesrv", "put", "shop", "region", "north", "--yes")
    row = {"key": "region", "value": "north"}
    for words in (["get", "shop"], ["get", "shop", "region"], ["delete", "shop", "region", "--dry-run"]):
        assert shell.rows("namesrv", *words) == [row]
    shell.text("namesrv", "delete", "shop", "region", "--yes")
    assert "namespace shop has no key region" in shell.fails("namesrv", "get", "shop", "region")
    settings = {row["name"] for row in shell.rows("namesrv", "config", "get")}
    assert "listenPort" in settings
    assert "remoteConfigUpdateEnable" in shell.fails("namesrv", "config", "set", "a=b", "--yes")


# -- messages ---------------------------------------------------------------------------------


def test_messages_by_offset_and_time(shell: Shell, admin: AdminClient) -> None:
    """A user who knows where or when a message was stored could not see it."""
    fill(shell, admin, "Found", "finders")
    assert shell.text("message", "at", "Found", "broker-a", "0", "1", "--format", "text") == "1\n"
    found = shell.rows("message", "at", "Found", "broker-a", "0", "1", "--count", "9")
    assert [row["queue_offset"] for row in found] == [1, 2]
    assert "its offsets: 0 to 2" in shell.fails("message", "at", "Found", "broker-a", "0", "3")
    found = shell.rows("message", "between", "Found", "--from", "1h")
    assert [row["body"] for row in found] == ["0", "1", "2"]
    limited = shell.run("--json", "message", "between", "Found", "--from", "1h", "--count", "2")
    assert len(limited.out.splitlines()) == 2
    assert "2 messages are the limit" in limited.err
    assert shell.rows("message", "between", "Found", "--from", "2h", "--to", "1h") == []
    assert shell.run("message", "between", "Found", "--from", "begin").status == 2


def test_who_consumed_a_message(shell: Shell, admin: AdminClient) -> None:
    """An operator could not see whether a group got a message, or give it to a consumer."""
    fill(shell, admin, "Tracked", "trackers")
    ids = [row["message_id"] for row in shell.rows("message", "between", "Tracked", "--from", "1h")]
    states = [shell.rows("message", "consumers", one, "--topic", "Tracked") for one in ids]
    assert [state["state"] for (state,) in states] == ["consumed", "consumed", "waiting"]
    assert states[0] == [{"group": "trackers", "state": "consumed", "online": False}]
    seen: list[bytes] = []
    consumer = PushConsumer("handlers", shell.namesrv, lambda message: seen.append(message.body))
    consumer.subscribe("Tracked")
    to = ["--group", "handlers", "--topic", "Tracked", "--yes"]
    with consumer:
        wait_until(lambda: shell.rows("group", "members", "handlers"))
        (member,) = shell.rows("group", "members", "handlers")
        wait_until(lambda: len(seen) == 3)  # a new group reads the topic from its first message
        (done,) = shell.rows("message", "deliver", ids[1], "--client", member["client_id"], *to)
        assert (done["status"], seen[-1]) == ("CR_SUCCESS", b"1")
        (done,) = shell.rows("message", "deliver", ids[0], *to)
        assert (done["client_id"], seen[-1]) == (member["client_id"], b"0")
    shell.fails("message", "deliver", ids[1], "--client", "nobody", *to)
    assert "group handlers has no members online" in shell.fails("message", "deliver", ids[1], *to)


def test_a_message_is_sent_again(shell: Shell, admin: AdminClient) -> None:
    """An operator could not have a message handled again, or it would go elsewhere."""
    fill(shell, admin, "Again", "repeaters")
    admin.topics.create("Elsewhere", 1)
    (first, *_) = shell.rows("message", "between", "Again", "--from", "1h")
    resend = ("message", "resend", first["message_id"], "--topic", "Again", "--yes")
    (done,) = shell.rows(*resend)
    assert (done["message_id"], done["queue_offset"], done["status"]) == (first["message_id"], 3, "SEND_OK")
    assert (
        shell.text(*resend, "--to", "Elsewhere")
        == f"{first['message_id']} broker-a, queue 0, offset 0: SEND_OK\n"
    )
    assert shell.text("message", "at", "Elsewhere", "broker-a", "0", "0", "--format", "text") == "0\n"
    shell.text(*resend, "--group", "repeaters")
    (copy,) = shell.rows("message", "at", "%RETRY%repeaters", "broker-a", "0", "0")
    assert (copy["body"], copy["message_id"]) == ("0", first["message_id"])
    assert "there is no group nobody" in shell.fails(*resend, "--group", "nobody")
    assert shell.run(*resend, "--group", "repeaters", "--to", "Elsewhere").status == 2


# -- access control ---------------------------------------------------------------------------


def test_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account would not be added, or a change would take an administrator's rights."""
    with operated(tmp_path, monkeypatch) as shell:
        _change_accounts(shell, tmp_path / "secret")


def _change_accounts(shell: Shell, secret: Path) -> None:
    def account() -> dict[str, Any] | None:
        found = [row for row in shell.rows("acl", "list") if row["access_key"] == "newcomer"]
        return found[0] if found else None

    secret.write_text("fresh-secret\n", "utf-8")
    (before,) = shell.rows("acl", "version")
    put = ["acl", "put", "newcomer", "--yes"]
    shell.text(*put, "--secret-file", str(secret), "--admin", "--topic", "News=PUB", "--topic", "Old=SUB")
    shell.text(*put, "--default-group", "SUB")
    secret.write_text("\nfresh-secret\n", "utf-8")
    assert "is blank" in shell.run(*put, "--secret-file", str(secret)).err
    assert "white_address is blank" in shell.fails(*put, "--white-address", "")
    found = account()
    assert found is not None
    assert (found["admin"], found["default_group"]) == (True, "SUB")
    assert found["topics"] == {"News": "PUB", "Old": "SUB"}
    (after,) = shell.rows("acl", "version")
    assert after["version"] > before["version"]
    assert shell.rows("acl", "delete", "newcomer", "--dry-run") == [found]
    assert account() == found
    shell.text("acl", "delete", "newcomer", "--yes")
    assert account() is None
    assert "there is no account newcomer" in shell.fails("acl", "delete", "newcomer", "--dry-run")
    shell.text("acl", "set-white-addresses", "10.9.8.7", "--yes")
    assert [row["address"] for row in shell.rows("acl", "white-addresses")] == ["10.9.8.7"]


def test_write_permission_is_wiped_and_restored() -> None:
    """Producers would go on sending to a broker that is about to stop."""
    with shared_cluster(brokers=2) as cluster, AdminClient(cluster.namesrv_address) as admin:
        shell = Shell(cluster.namesrv_address)
        admin.topics.create("Moved", 1)
        (hidden,) = shell.rows("broker", "wipe-writes", "broker-a", "--yes")
        assert (hidden["broker_name"], hidden["topics"] > 0) == ("broker-a", True)
        assert [queue.broker_name for queue in admin.fetch_publish_message_queues("Moved")] == ["broker-b"]
        shell.text("broker", "restore-writes", "broker-a", "--yes")
        assert len(admin.fetch_publish_message_queues("Moved")) == 2
        (plan,) = shell.rows("broker", "drain", "broker-b", "--dry-run")
        assert (plan["broker_name"], plan["topics"], plan["unmovable_topics"]) == ("broker-b", ["Moved"], [])
        lines = shell.text("broker", "drain", "broker-b", "--dry-run").splitlines()
        assert [line.split() for line in lines if line.startswith("topics")] == [
            ["topics", "1", "topics", "(Moved)"]
        ]
        assert lines[-1] == "nothing was changed (--dry-run)"
        assert len(admin.fetch_publish_message_queues("Moved")) == 2
        failed = shell.fails("broker", "drain", "broker-b", "--timeout", "1", "--yes")
        assert "hidden, but not drained after 1 s" in failed
        assert [queue.broker_name for queue in admin.fetch_publish_message_queues("Moved")] == ["broker-a"]
        assert "no topics of broker other" in shell.fails("broker", "wipe-writes", "other", "--yes")


@pytest.mark.parametrize(
    "line",
    [
        "topic alter T --queues 2",
        "topic delete T",
        "group create g",
        "group alter g --disabled",
        "group delete g",
        "group reset g T --to begin",
        "group clone g h --topic T",
        "broker config set broker-a fileReservedTime=48",
        "broker wipe-writes broker-a",
        "broker restore-writes broker-a",
        "broker clean-queues",
        "broker drain broker-a",
        "broker clean-topics",
        "acl put newcomer",
        "acl delete newcomer",
        "acl set-white-addresses 10.0.0.1",
        "user put newcomer",
        "user delete newcomer",
        "user copy broker-a broker-b",
        "policy put newcomer Topic:A --action Pub",
        "policy delete newcomer Topic:A",
        "namesrv put shop region north",
        "namesrv delete shop region",
        "namesrv config set serverWorkerThreads=8",
        "message deliver 7F --group g --client c",
        "message resend 7F --group g",
    ],
)
def test_every_change_is_confirmed(shell: Shell, line: str) -> None:
    """A command meant for a test cluster could change production."""
    refused = shell.fails(*line.split(), status=2)
    assert f"at {shell.namesrv} (no profile): without a terminal, give --yes" in refused


# -- names that do not exist ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("group lag biling", "billing"),
        ("group lag biling --topic NearOrders", "billing"),
        ("group members biling", "billing"),
        ("group describe biling", "billing"),
        ("group delete biling --yes", "billing"),
        ("group alter biling --disabled --yes", "billing"),
        ("group reset biling NearOrders --to end --dry-run", "billing"),
        ("group clone biling other -t NearOrders --yes", "billing"),
        ("group lag billing --topic NearOrder", "NearOrders"),
        ("topic describe nearorders", "NearOrders"),
        ("topic delete NearOrder --yes", "NearOrders"),
        ("topic alter NearOrder --queues 8 --yes", "NearOrders"),
        ("message find NearOrder --key k", "NearOrders"),
        ("message between NearOrder --from 1h", "NearOrders"),
        ("message at NearOrder broker-a 0 0", "NearOrders"),
        ("consume NearOrder", "NearOrders"),
        ("message get 7F0000014AF00146800F8D4334A70002 --topic NearOrder", "NearOrders"),
    ],
)
def test_a_misspelt_name_is_an_error_with_similar_names(
    shell: Shell, admin: AdminClient, line: str, meant: str
) -> None:
    """A typo would show a lag that looks real, report a deletion, or leave the user without a clue."""
    admin.topics.create("NearOrders", 1)
    admin.groups.create("billing")
    assert f"did you mean {meant}?" in shell.fails(*line.split())


def test_a_new_group_has_a_lag_but_no_error_about_its_name(shell: Shell, admin: AdminClient) -> None:
    """A group that has not consumed yet would be called unknown."""
    admin.topics.create("LagOfNew", 1)
    send_three("LagOfNew", shell)
    admin.groups.create("has_not_begun")
    (row,) = shell.rows("group", "lag", "has_not_begun", "--topic", "LagOfNew")
    assert row["lag"] == 3
    assert "has consumed nothing yet" in shell.fails("group", "lag", "has_not_begun")


def test_a_unique_id_is_found_without_its_topic(shell: Shell, admin: AdminClient) -> None:
    """The id in a producer's log would be taken for a broker's address."""
    admin.topics.create("UniqueIds", 1)
    with Producer("senders", shell.namesrv) as producer:
        sent = producer.send(Message("UniqueIds", b"found"))
    wait_until(lambda: shell.run("message", "get", sent.message_id).status == 0)
    for message_id in (sent.message_id, sent.offset_message_id):
        assert shell.text("message", "get", message_id, "--format", "{body}") == "found\n"
    unknown = sent.message_id[:-4] + "FFFF"
    assert "no topic has a message with the unique id" in shell.fails("message", "get", unknown)
    assert "must have 32 or 56 hexadecimal digits" in shell.fails("message", "get", "42")


def test_topics_and_groups_are_created_on_one_broker() -> None:
    """An operator could not create a topic on a broker that is new in the cluster, as updateTopic -b does."""
    with shared_cluster(brokers=2) as cluster:
        shell = Shell(cluster.namesrv_address)
        names = sorted({row["broker_name"] for row in shell.rows("broker", "list")})
        assert len(names) == 2
        for kind in ("topic", "group"):
            shell.text(kind, "create", "OfOne", "--broker", names[1], "--yes")
            (found,) = shell.rows(kind, "describe", "OfOne")
            assert [row["broker_name"] for row in found["brokers"]] == [names[1]]
            error = shell.fails(kind, "create", "OfOne", "--broker", "nobody", "--yes")
            assert f"there is no broker nobody; the name server knows: {', '.join(names)}" in error


def test_a_description_counts_dead_letters(shell: Shell, admin: AdminClient) -> None:
    """An operator would not see that a group gives up messages."""
    admin.groups.create("gives_up")
    assert "dead letters" not in shell.text("group", "describe", "gives_up")
    assert shell.rows("group", "describe", "gives_up")[0]["dead_letters"] == 0
    admin.topics.create("GivenUp", 1)
    done = threading.Event()

    def give_up(message: MessageExt) -> Later:
        assert message.body == b"x"
        done.set()
        return Later(delay_level=-1)

    consumer = PushConsumer("gives_up", shell.namesrv, give_up)
    consumer.subscribe("GivenUp")
    with consumer, Producer("senders", shell.namesrv) as producer:
        producer.send(Message("GivenUp", b"x"))
        assert done.wait(LIMIT_S)
        wait_until(lambda: shell.rows("group", "describe", "gives_up")[0]["dead_letters"] == 1)
    assert ", 1 dead letters (rocketpy dlq read)" in shell.text("group", "describe", "gives_up")
