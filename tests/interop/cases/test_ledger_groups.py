"""DLedger groups of both makes: each make leads in turn, and leaders are killed under load.

LEDGER_KILLS: number of leaders that are killed in each group. The full run of the mixed groups:
`LEDGER_KILLS=20 python -m tests.interop.run -n0 -s -k "leaders_are_killed and Python and Java"`.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rocketpy import ClientConfig, ConsumeFrom, MessageExt, PushConfig, PushConsumer
from rocketpy.protocol.message.record import decode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from tests.interop import probe
from tests.interop.cluster import Make, stopping
from tests.interop.fail_over import KeyedLoad, Promises, check_messages
from tests.interop.java_peer import JavaPeer
from tests.interop.ledger_group import GROUP, LedgerGroup
from tests.interop.processes import NameServerProcess
from tools.soak.bodies import number_of
from tools.soak.faults import read_back
from tools.soak.load import TOPIC
from tools.soak.places import Place

pytestmark = pytest.mark.interop

DIRECTION = "DLedger group of Java's and our peers"
KILLS = int(os.environ.get("LEDGER_KILLS", "3"))
KILLS_MAX = max(12, 2 * KILLS)
ACKED_BETWEEN_KILLS = 100
"""Messages that are acknowledged between two kills, at least."""
CONF = {"registerNameServerPeriod": 10_000}
"""RocketMQ's follower finds the leader when it registers: every 30 s by default, every 10 s at least."""

FROM_THE_FIRST = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)


def test_a_peer_with_a_secret_rejects_java_peers(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess
) -> None:
    """An operator of a mixed group would see a peer that does not take part, but not the reason."""
    conf = {**CONF, "dLegerSecret": "a long random text"}  # Java's brokers ignore this key
    with LedgerGroup(tmp_path, namesrv.address, ("our", "java", "java"), peer, conf=conf) as group:
        probe.wait_until(lambda: group.master() in ("n1", "n2"), "Java's peers to elect one", timeout_s=90)
        ours = group.brokers["n0"]
        for said in (
            "does not know the handshake that dLegerSecret requires: it is RocketMQ's, or has no secret",
            "without the handshake that dLegerSecret requires, which RocketMQ's peers do not know",
        ):
            probe.wait_until(lambda said=said: said in ours.logs(), said, timeout_s=30)  # type: ignore[misc]


@pytest.mark.parametrize(
    "makes",
    [
        pytest.param(("java", "java", "java"), id="3 Java, which proves the rig"),
        pytest.param(("java", "java", "our"), id="2 Java + 1 Python"),
        pytest.param(("java", "our", "our"), id="1 Java + 2 Python"),
        pytest.param(("our", "our", "our"), id="3 Python"),
    ],
)
def test_leaders_are_killed_and_nothing_is_lost(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, makes: Sequence[Make]
) -> None:
    """A peer of the other make would reject pushed entries, keep replaced ones, or lose a message."""
    with LedgerGroup(tmp_path, namesrv.address, makes, peer, conf=CONF) as group:
        try:
            led = asyncio.run(_run(group))
        except BaseException:
            print(group.logs())
            raise
        assert led == set(makes)
        assert led_terms_rise(group)


def led_terms_rise(group: LedgerGroup) -> bool:
    """Whether the ledger has entries of as many terms as there were leaders that appended some."""
    terms = [entry.term for entry in group.entries("n0")]
    return terms == sorted(terms) and len(set(terms)) > KILLS


async def _run(group: LedgerGroup) -> set[Make]:
    """Send, and kill leaders until there were KILLS and each make has led. Returns the makes that led."""
    client = ClientConfig(namesrv=group.namesrv, route_refresh_ms=500)
    await _until(lambda: group.master() is not None, "a master", 60)
    await group.make_topic(TOPIC, 4)
    load, led, checked, handled = KeyedLoad(client), Counter[Make](), 0, Counter[int | None]()

    async def handle(message: MessageExt) -> None:
        handled[number_of(message.body)] += 1

    consumer = PushConsumer("lasting", handler=handle, client=client, config=FROM_THE_FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        async with load.sending():
            for kills in range(KILLS_MAX + 1):
                await _more(load, f"kill {kills} of {KILLS}")
                leader = await _leader(group)
                led[group.makes[leader]] += 1
                if kills >= KILLS and set(led) == set(group.makes.values()):
                    break
                checked += await _kill(group, load, client, leader, kills)
        await _until(
            lambda: load.ledger.acked.keys() <= handled.keys(), "consumers to get every message", 120
        )
    await _until(group.are_equal, "equal entries", 120)
    _check_ledger(group, load)
    problems: list[str] = []
    found = await read_back(client, load.ledger, problems)
    assert [*problems, *load.ledger.problems(found)] == []
    assert load.acked_count > KILLS * ACKED_BETWEEN_KILLS
    print(
        f"{'+'.join(group.makes.values())}: {kills} leaders killed (leaders: {dict(led)}), {checked:,} "
        f"messages read by key, two ids and queue after a fail-over, {load.acked_count:,} at the end; "
        f"a consumer group got each of these, {handled.total() - len(handled):,} more than once"
    )
    return set(led)


async def _kill(group: LedgerGroup, load: KeyedLoad, client: ClientConfig, leader: str, number: int) -> int:
    """Kill the leader and check its successor. Returns how many messages were checked.

    If followers are of both makes, the one of the leader's make is killed first: it misses entries, so a peer
    of the other make is elected. Messages of earlier rounds are not looked up by key, since RocketMQ's broker
    loses its key index when it is killed (QUIRKS 66).
    """
    promises = Promises(number)
    await promises.make(group, client)
    # RocketMQ's followers copy topics, groups and offsets every 10 s (QUIRKS 68).
    await _until(lambda: promises.is_copied(group), f"all to know {promises.topic}", 120)
    behind = _left_behind(group, leader)
    if behind is not None:
        await asyncio.to_thread(group.brokers[behind].kill)
        await _more(load, f"{behind} was killed")
    killed_at = time.monotonic()
    await asyncio.to_thread(group.brokers[leader].kill)
    taken = load.take()
    load.note_kill()
    if behind is not None:
        await asyncio.to_thread(group.brokers[behind].start)
    await _more(load, f"the death of {leader}")
    successor = await _leader(group)
    assert successor not in (leader, behind)
    recovered_s = time.monotonic() - killed_at
    assert await promises.check(group, client) == []
    assert await check_messages(client, taken) == []
    print(
        f"round {number + 1}: {group.makes[leader]} {leader} killed, {group.makes[successor]} {successor} "
        f"leads; {ACKED_BETWEEN_KILLS} sends after {recovered_s:.1f} s; "
        f"{len(taken)} + {len(promises.sent)} messages, {promises.group} and its offsets found"
    )
    await asyncio.to_thread(group.brokers[leader].start)
    return len(taken) + len(promises.sent)


def _left_behind(group: LedgerGroup, leader: str) -> str | None:
    """Return the follower of the leader's make, if the other follower is of the other make."""
    followers = [peer_id for peer_id in group.makes if peer_id != leader]
    alike = [peer_id for peer_id in followers if group.makes[peer_id] == group.makes[leader]]
    return alike[0] if len(alike) == 1 else None


def _check_ledger(group: LedgerGroup, load: KeyedLoad) -> None:
    """Check that the data files have all acknowledged messages at the offsets of their responses."""
    found: dict[int, list[Place]] = {}
    for entry in group.entries("n0"):
        record = decode(entry.body)
        assert record.physical_offset == entry.pos + 48
        body = zlib.decompress(record.body) if record.sys_flag & MessageSysFlag.COMPRESSED else record.body
        number = number_of(body) if record.topic == TOPIC else None
        if number is not None:
            found.setdefault(number, []).append((GROUP, record.queue_id, record.queue_offset))
    assert load.ledger.missing(found) == []


async def _leader(group: LedgerGroup) -> str:
    """The leader, which is the master for producers."""
    await _until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader", 120)
    leader = group.leader()
    assert leader is not None
    return leader


async def _more(load: KeyedLoad, after: str) -> None:
    count = load.acked_count + ACKED_BETWEEN_KILLS
    await _until(lambda: load.acked_count >= count, f"{ACKED_BETWEEN_KILLS} messages more after {after}", 120)


async def _until(condition: Callable[[], object], what: str, timeout_s: float) -> None:
    await asyncio.to_thread(probe.wait_until, condition, what, timeout_s)


@pytest.mark.parametrize("make", ["java", "our"])
def test_a_broker_without_a_role_registers(
    peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess, make: Make
) -> None:
    """Clients could read the messages of a single surviving peer with one make only."""
    group = LedgerGroup(tmp_path, namesrv.address, (make,) * 3, peer, conf=CONF)
    survivor = group.brokers["n1"]
    with stopping([survivor.start()]):
        probe.wait_until(
            lambda: probe.members(namesrv.address, GROUP) == {"-1": survivor.address}, "id -1", timeout_s=60
        )
