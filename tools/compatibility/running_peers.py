"""`python -m tools.compatibility.running_peers`: this version and an earlier one together, as processes.

Scenarios: clients of both versions with name servers and brokers of both; a store that the versions use in
turn; masters with slaves of the other version; DLedger groups of both. `--old` is a commit or a directory.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from rocketpy import AdminClient, MessageExt, PullConsumer
from tests.crash.leader_kill import QUICK, kill_leaders
from tests.interop import probe
from tests.interop.cluster import Make
from tests.interop.java_peer import REPOSITORY
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import OurBroker, OurNameServer, checkout_of
from tools.compatibility.peer_client import DEAD, PENDING, REQUESTS, RETRIED, label
from tools.compatibility.peers import (
    CONF,
    QUEUES,
    STORED,
    TOPIC,
    Client,
    Place,
    Versions,
    await_messages,
    await_split,
    command,
    make_topics,
    produce,
    read_all,
    seen_by,
)

OLD_COMMIT = "4141086"
DELAYED = ("delayed", RETRIED, DEAD, PENDING)


# -- clients and servers ---------------------------------------------------------------------------


def clients(run: Path, versions: Versions, names_version: str, broker_version: str) -> str:
    """Producers and consumers of both versions, groups of one version and of both."""
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(run, checkout=versions[names_version]))
        broker = OurBroker(run, names.address, conf=CONF, checkout=versions[broker_version])
        stack.enter_context(broker)
        asyncio.run(make_topics(names.address, TOPIC, *(f"{TOPIC}-{suffix}" for suffix in REQUESTS)))

        def consumer(version: str, kind: str, group: str, topic: str = TOPIC) -> Client:
            arguments = ("consume", names.address, topic, group, kind)
            return stack.enter_context(Client(run, versions[version], *arguments))

        repliers = [
            consumer(version, "reply", f"reply-{version}", f"{TOPIC}-{version}") for version in REQUESTS
        ]
        groups = [
            Group(
                f"{kind}-{'-'.join(members)}",
                kind,
                [consumer(one, kind, f"{kind}-{'-'.join(members)}") for one in members],
            )
            for kind in ("push", "orderly", "lite")
            for members in (["old"], ["new"], ["old", "new"])
        ]
        for members in [*([one] for one in repliers), *(group.members for group in groups)]:
            await_split(members)
        sent = produce(run, names.address, versions, f"{STORED},requests")
        dead = sorted(text for text in sent if DEAD in text)
        for group in groups:
            group.check(names.address, sent, dead)

        # Members of the other version replace groups of one version; in mixed groups one member stops.
        for number, group in enumerate(groups):
            group.members.pop(number % len(group.members)).end()
            if not group.members:
                other = "new" if group.name.endswith("old") else "old"
                group.members.append(consumer(other, group.kind, group.name))
            group.before = seen_by(group.members)
        for group in groups:
            await_split(group.members)
        late = produce(run, names.address, again(versions), "plain")
        for group in groups:
            group.check_late(late)
        for member in [*repliers, *(member for group in groups for member in group.members)]:
            member.end()
    return f"{len(sent) + len(late)} messages to each of {len(groups)} groups, {len(dead) * 6} dead letters"


@dataclass
class Group:
    """A consumer group. before: how often its members had each message before the late ones were sent."""

    name: str
    kind: str
    members: list[Client]
    before: Counter[str] = field(default_factory=Counter)

    def check(self, namesrv: str, sent: list[str], dead: list[str]) -> None:
        """Wait for all messages; orderly consumers get them in order, dead ones are in their topic."""
        await_messages(self.members, sent, refusing=self.kind != "lite")
        if self.kind == "orderly":
            for member in self.members:
                check_order(member)
        if self.kind != "lite":

            def found() -> list[str]:
                letters = asyncio.run(fetch_dead_letters(namesrv, self.name))
                return sorted(label(message.body) for message in letters)

            probe.wait_until(lambda: found() == dead, f"dead letters of {self.name}")

    def check_late(self, late: list[str]) -> None:
        """Wait for these messages; none of the others may be redelivered."""
        wanted = Counter(late)
        probe.wait_until(
            lambda: seen_by(self.members) - self.before >= wanted, f"late messages of {self.name}"
        )
        extra = seen_by(self.members) - self.before - wanted
        assert not extra, (self.name, extra)


async def fetch_dead_letters(namesrv: str, group: str) -> list[MessageExt]:
    """The dead letters of the group."""
    async with AdminClient(namesrv) as admin:
        return (await admin.dead_letters.fetch(group)).messages


def again(versions: Versions) -> Versions:
    """Producers of both versions with names of their own, for more messages."""
    return {f"{version}.late": checkout for version, checkout in versions.items()}


def check_order(member: Client) -> None:
    """The messages of each key and producer must have come in the order in which they were sent."""
    numbers: dict[str, list[int]] = {}
    for event in member.seen:
        if " ordered " in event["label"]:
            key, _, number = event["label"].partition("|")[0].rpartition(" ")
            numbers.setdefault(key, []).append(int(number))
    assert all(found == sorted(found) for found in numbers.values()), numbers


# -- a store ---------------------------------------------------------------------------------------


def store(run: Path, versions: Versions) -> str:
    """Brokers of both versions on one store in turn, stopped and killed; clients are of the other version."""
    turns = ["old kill", "new stop", "old stop", "new kill", "old kill", "new stop"]
    sent: list[str] = []
    pending: list[str] = []
    places: dict[Place, tuple[str, str]] = {}
    repeated: list[str] = []
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(run))
        for number, (version, end) in enumerate(map(str.split, turns)):
            broker = OurBroker(run, names.address, conf=CONF, checkout=versions[version])
            stack.callback(broker.stop)
            broker.start()
            if not number:
                asyncio.run(make_topics(names.address, TOPIC))
            other = versions["new" if version == "old" else "old"]
            arguments = ("consume", names.address, TOPIC, "store", "push")
            with Client(run, other, *arguments) as consumer:
                found = produce(run, names.address, {f"s.{number}": versions[version]}, f"{STORED},pending")
                later = [text for text in found if PENDING in text]
                expected = pending + [text for text in found if text not in later]
                await_messages([consumer], expected, also=[*later, *repeated])
                came = seen_by([consumer.end()])
            sent += [*expected, *(text for text in later if text in came)]
            pending = [text for text in later if text not in came]
            stored = asyncio.run(read_all(names.address, TOPIC))
            assert places.items() <= stored.items(), "messages are gone, or elsewhere"
            places = stored
            assert set(sent) <= {text for text, _ in places.values()}
            probe.wait_until(partial(offsets_saved, broker), "the offsets on the disk")
            # A kill loses the newest offset of delayed messages, so that they are redelivered.
            delayed = [text for text in [*sent, *pending] if any(kind in text for kind in DELAYED)]
            repeated = delayed if end == "kill" else []
            getattr(broker, end)()
            if end == "stop":
                for checkout in versions.values():
                    command(checkout, "store", "check", str(broker.store))
    return f"{len(places)} messages, {len(turns)} brokers in turn"


def offsets_saved(broker: OurBroker) -> bool:
    """Whether the group's offsets on the disk are those that the broker knows."""
    table = probe.loads((broker.store / "config/consumerOffset.json").read_bytes())["offsetTable"]
    saved = {int(queue): offset for queue, offset in table.get(f"{TOPIC}@store", {}).items()}
    return saved == asyncio.run(committed(broker.namesrv))


async def committed(namesrv: str) -> dict[int, int | None]:
    """The group's offsets by queue."""
    async with PullConsumer("store", namesrv) as consumer:
        return {
            queue.queue_id: await consumer.committed(queue) for queue in await consumer.fetch_queues(TOPIC)
        }


# -- replication -----------------------------------------------------------------------------------


def pair(run: Path, versions: Versions, master_version: str, slave_version: str) -> str:
    """A slave copies everything from its master, is promoted, and the old master becomes its slave."""
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(run))
        conf = {**CONF, "brokerName": "pair", "syncFlushTimeout": 20_000}
        master, slave = (
            OurBroker(run, names.address, name=name, conf={**conf, **role}, checkout=versions[version])
            for name, version, role in (
                ("master", master_version, {"brokerRole": "SYNC_MASTER"}),
                ("slave", slave_version, {"brokerRole": "SLAVE", "brokerId": 1}),
            )
        )
        for broker in (master, slave):
            stack.callback(broker.stop)
            broker.start()
        asyncio.run(make_topics(names.address, TOPIC))
        members = [
            stack.enter_context(Client(run, versions["old"], "consume", names.address, TOPIC, "pair", "push"))
        ]
        sent = produce(run, names.address, versions, STORED)
        await_messages(members, sent)
        members.pop().end()
        probe.wait_until(lambda: bytes_of(master) == bytes_of(slave), "equal commit logs")
        probe.wait_until(lambda: tables_of(master) == tables_of(slave), "equal tables")
        places = asyncio.run(read_all(names.address, TOPIC))
        for checkout in versions.values():
            command(checkout, "ha", "status", namesrv=names.address)

        master.kill()
        slave.stop()
        promote = ("promote", "-c", str(slave.home / "broker.conf"), "--role", "SYNC_MASTER")
        command(versions[slave_version], *promote, namesrv=names.address)
        slave.conf |= {"brokerRole": "SYNC_MASTER", "brokerId": 0}
        master.conf |= {"brokerRole": "SLAVE", "brokerId": 1}
        slave.start()
        master.start()
        members.append(
            stack.enter_context(Client(run, versions["new"], "consume", names.address, TOPIC, "pair", "push"))
        )
        late = produce(run, names.address, again(versions), STORED)
        await_messages(members, late)
        members.pop().end()
        stored = asyncio.run(read_all(names.address, TOPIC))
        assert places.items() <= stored.items()
        assert Counter(text for text, _ in stored.values()) >= Counter([*sent, *late])
        probe.wait_until(lambda: bytes_of(master) == bytes_of(slave), "equal commit logs after the promotion")
        size = len(bytes_of(slave).rstrip(b"\0"))
    return f"{len(stored)} messages, {size:,} bytes of equal commit logs, promoted"


def bytes_of(broker: OurBroker) -> bytes:
    """The whole commit log."""
    return b"".join(path.read_bytes() for path in sorted((broker.store / "commitlog").iterdir()))


def tables_of(broker: OurBroker) -> list[Any]:
    """The tables that a slave copies: topics, groups, consumer offsets and delay offsets."""
    files = {
        "topics": "topicConfigTable",
        "subscriptionGroup": "subscriptionGroupTable",
        "consumerOffset": "offsetTable",
        "delayOffset": "offsetTable",
    }
    return [
        probe.loads((broker.store / f"config/{name}.json").read_bytes())[key] for name, key in files.items()
    ]


def ledger(run: Path, versions: Versions, peers: Sequence[str]) -> str:
    """Leaders of both versions are killed under load; the others continue, and all ledgers become equal."""
    killed: Counter[str] = Counter()

    class Peer(OurBroker):
        def kill(self) -> None:
            killed[version_of[str(self.conf["dLegerSelfId"])]] += 1
            super().kill()

    version_of = {f"n{number}": version for number, version in enumerate(peers)}

    def new(*, make: Make, run: Path, namesrv: str, conf: Mapping[str, object]) -> OurBroker:  # noqa: ARG001
        checkout = versions[version_of[str(conf["dLegerSelfId"])]]
        return Peer(run, namesrv, conf={**CONF, **conf}, checkout=checkout)

    with (
        OurNameServer(run) as names,
        LedgerGroup(run, names.address, ["our"] * len(peers), conf=QUICK, new=new) as group,
    ):
        report = asyncio.run(kill_leaders(group, 8, Random(1)))
        assert not report.problems, report.problems
        assert set(killed) == set(versions), f"killed leaders: {killed}"
        probe.wait_until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader")
        asyncio.run(group.make_topic(TOPIC, QUEUES))
        arguments = ("consume", names.address, TOPIC, "ledger", "push")
        with ExitStack() as stack:
            members = [stack.enter_context(Client(run, path, *arguments)) for path in versions.values()]
            await_split(members)
            sent = produce(run, names.address, versions, STORED)
            await_messages(members, sent)
            for member in members:
                member.end()
        for checkout in versions.values():
            command(checkout, "dledger", "status", namesrv=names.address)
        probe.wait_until(group.are_equal, "equal ledgers")
        entries = len(group.entries("n0"))
    kills = ", ".join(f"{count} {version}" for version, count in killed.items())
    return f"{report.acked + len(sent)} messages, leaders killed: {kills}; {entries} equal entries"


def scenarios(versions: Versions) -> dict[str, Callable[[Path], str]]:
    """All scenarios by name."""
    found: dict[str, Callable[[Path], str]] = {}
    for names, broker in product(versions, repeat=2):
        found[f"clients, {names} name server, {broker} broker"] = partial(
            clients, versions=versions, names_version=names, broker_version=broker
        )
    found["store"] = partial(store, versions=versions)
    for master, slave in (("old", "new"), ("new", "old")):
        found[f"pair, {master} master, {slave} slave"] = partial(
            pair, versions=versions, master_version=master, slave_version=slave
        )
    for peers in (("old", "new", "old"), ("new", "old", "new")):
        found[f"ledger, {' '.join(peers)}"] = partial(ledger, versions=versions, peers=peers)
    return found


def main() -> int:
    """Run the scenarios; 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.compatibility.running_peers", description=__doc__)
    parser.add_argument("--old", default=OLD_COMMIT, help="default: %(default)s")
    parser.add_argument("--only", default="", help="scenarios whose name begins like this")
    options = parser.parse_args()
    versions = {"old": checkout_of(options.old), "new": REPOSITORY}
    chosen = {name: run for name, run in scenarios(versions).items() if name.startswith(options.only)}
    for name, scenario in chosen.items():
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rocketpy-peers-") as directory:
            done = scenario(Path(directory))
        print(f"{name}: {done}; {time.monotonic() - started:.0f} s", flush=True)
    return 0 if chosen else 2


if __name__ == "__main__":
    sys.exit(main())
