"""DLedger groups of Java's and our brokers: each make leads in turn, leaders are killed under load."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rocketpy import ClientConfig
from rocketpy.protocol.record import decode
from rocketpy.protocol.sysflag import MessageSysFlag
from tests.interop import probe
from tests.interop.cluster import Make, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.ledger_group import GROUP, LedgerGroup
from tests.interop.processes import NameServerProcess, OurNameServer
from tests.soak.bodies import number_of
from tests.soak.faults import read_back
from tests.soak.group_load import GroupLoad
from tests.soak.load import TOPIC
from tests.soak.places import Place

pytestmark = pytest.mark.interop

DIRECTION = "DLedger group of Java's and our peers"
KILLS, KILLS_MAX = 3, 12
STRETCH = 100
"""Messages that are acknowledged between two kills, at least."""


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NameServerProcess]:
    """Ours."""
    server = OurNameServer(tmp_path).start()
    with stopping([server]):
        yield server


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
    """A peer of the other make would refuse what it is pushed, keep what was replaced, or lose a message."""
    with LedgerGroup(tmp_path, namesrv.address, makes, peer) as group:
        try:
            led = asyncio.run(_run(group))
        except BaseException:
            print(group.logs())
            raise
        assert led == set(makes)
        assert led_terms_rise(group)


def led_terms_rise(group: LedgerGroup) -> bool:
    """Whether the ledger holds entries of as many terms as there were leaders that took some."""
    terms = [entry.term for entry in group.entries("n0")]
    return terms == sorted(terms) and len(set(terms)) > KILLS


async def _run(group: LedgerGroup) -> set[Make]:
    """Send, and kill leaders until there were KILLS and each make has led. Returns the makes that led."""
    client = ClientConfig(namesrv=group.namesrv, route_refresh_ms=500)
    await _until(lambda: group.master() is not None, "a master", 60)
    await group.make_topic(TOPIC, 4)
    load, led = GroupLoad(client), set[Make]()
    async with load.sending():
        for kills in range(KILLS_MAX + 1):
            await _more(load, f"kill {kills} of {KILLS}")
            leader = await _leader(group)
            led.add(group.makes[leader])
            if kills >= KILLS and led == set(group.makes.values()):
                break
            await asyncio.to_thread(group.brokers[leader].kill)
            load.note_kill()
            await _more(load, f"the death of {leader}")
            await asyncio.to_thread(group.brokers[leader].start)
    await _until(group.are_equal, "equal entries", 120)
    _check_ledger(group, load)
    problems: list[str] = []
    found = await read_back(client, load.ledger, problems)
    assert [*problems, *load.ledger.problems(found)] == []
    assert load.acked_count > KILLS * STRETCH
    return led


def _check_ledger(group: LedgerGroup, load: GroupLoad) -> None:
    """What was acknowledged is in the data files, where its answer said."""
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
    """Whoever leads and is the master for producers."""
    await _until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader", 120)
    leader = group.leader()
    assert leader is not None
    return leader


async def _more(load: GroupLoad, after: str) -> None:
    count = load.acked_count + STRETCH
    await _until(lambda: load.acked_count >= count, f"{STRETCH} messages more after {after}", 120)


async def _until(condition: Callable[[], object], what: str, timeout_s: float) -> None:
    await asyncio.to_thread(probe.wait_until, condition, what, timeout_s)
