"""Checks of brokers: reachable, access, clock, disk, replication, version, permissions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from rocketpy.cli.doctor.findings import Findings, add_refusal
from rocketpy.cli.doctor.name_servers import TIMEOUT_MS, Knowledge
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    KVTable,
    TopicConfigSerializeWrapper,
    decode_settings,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command

T = TypeVar("T")

_CLOCK_S_MAX: Final = 3.0
"""Clocks of machines with NTP differ by far less. Brokers report their time in whole seconds."""
_STUCK_S: Final = 1.0
"""How long a slave may make no progress; it gets what is new within milliseconds."""
_DISK_RATIOS: Final = ("commitLogDiskRatio", "consumeQueueDiskRatio")
_FEATURES: Final = {
    (4, 2, 0): "batches of messages",
    (4, 3, 0): "transactions",
    (4, 4, 0): "access control and message traces",
    (4, 6, 0): "requests with a reply (from 4.7 on)",
}
"""Versions of RocketMQ, and what came with them."""
_OFF: Final = {"enablePropertyFilter": "SQL92 filters", "traceTopicEnable": "message traces"}
"""Settings that are false by default -> what they turn on."""


class Place(NamedTuple):
    """A broker that name servers know."""

    name: str
    broker_id: int
    address: str

    @property
    def subject(self) -> str:
        """Its name in findings."""
        role = "" if self.broker_id == MASTER_ID else f" (slave {self.broker_id})"
        return f"broker {self.name}{role} at {self.address}"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a broker. skew_s: how far its clock is ahead of this machine's; None if not known."""

    table: Mapping[str, str]
    skew_s: float | None

    @property
    def end(self) -> int:
        """The end of its log."""
        return int(self.table.get("commitLogMaxOffset", -1))


async def check_brokers(
    findings: Findings, client: ClientInstance, known: Mapping[str, Knowledge], disk_percent: float
) -> None:
    """Check every broker that a name server knows. disk_percent: how full a disk may be."""
    places = sorted({place for one in known.values() for place in _places(one)})
    _check_masters(findings, places)
    states = {
        place: state
        for place, state in zip(
            places,
            await asyncio.gather(*(_read_state(findings, client, place) for place in places)),
            strict=True,
        )
        if state is not None
    }
    for place, state in states.items():
        _check_clock(findings, place, state)
        _check_disk(findings, place, state, disk_percent)
        _check_version(findings, place, state)
    await asyncio.gather(*(_check_features(findings, client, place) for place in states))
    await _check_slaves(findings, client, states)
    masters = [place for place in states if place.broker_id == MASTER_ID]
    await asyncio.gather(*(_check_permissions(findings, client, place, known) for place in masters))


def _places(one: Knowledge) -> Iterable[Place]:
    for name, data in one.cluster.broker_addr_table.items():
        for broker_id, address in data.broker_addrs.items():
            yield Place(name, broker_id, address)


def _check_masters(findings: Findings, places: Iterable[Place]) -> None:
    ids: dict[str, set[int]] = {}
    for place in places:
        ids.setdefault(place.name, set()).add(place.broker_id)
    for name, found in ids.items():
        if MASTER_ID not in found:
            findings.problem(
                "master",
                f"broker {name}",
                f"it has no master, only {len(found)} slaves, so it takes no messages",
                "Start its master again, or make a slave the master: rocketpy-broker promote (a DLedger "
                "group needs a majority of its peers)",
            )


async def _read_state(findings: Findings, client: ClientInstance, place: Place) -> State | None:
    try:
        response = await _request(client, place, RequestCode.GET_BROKER_RUNTIME_INFO)
    except RocketError as error:
        findings.problem(
            "reach",
            place.subject,
            f"it cannot be reached from this machine: {error}",
            "Start it if it is down. If it runs, set brokerIP1 in its file to an address that clients reach, "
            "or open its port in the firewall",
        )
        return None
    if response.code != ResponseCode.SUCCESS:
        add_refusal(findings, place.subject, response.remark)
        return None
    try:
        table = KVTable.decode(response.body).table
    except RocketError as error:
        findings.not_checked("reach", place.subject, error)
        return None
    findings.ok("reach", place.subject, f"it responds, version {table.get('brokerVersionDesc', 'unknown')}")
    return State(table, _skew_s(table, time.time()))


async def _request(client: ClientInstance, place: Place, code: int) -> Command:
    return await client.request(place.address, Command.request(code), TIMEOUT_MS)


async def _read(
    findings: Findings,
    client: ClientInstance,
    place: Place,
    check: str,
    code: int,
    decode: Callable[[bytes], T],
) -> T | None:
    """Return what a broker responds; None if there is a finding instead."""
    try:
        response = await _request(client, place, code)
        if response.code == ResponseCode.SUCCESS:
            return decode(response.body)
        add_refusal(findings, place.subject, response.remark)
    except RocketError as error:
        findings.not_checked(check, place.subject, error)
    return None


# -- state ------------------------------------------------------------------------------------


def _skew_s(table: Mapping[str, str], now_s: float) -> float | None:
    """Return how far the broker's clock is ahead: it reports its start, and how long ago that is."""
    numbers = re.findall(r"-?\d+", table.get("runtime", ""))
    booted_ms = table.get("bootTimestamp", "")
    if len(numbers) != 4 or not booted_ms.isdigit():
        return None
    days, hours, minutes, seconds = map(int, numbers)
    runs_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5  # whole seconds, rounded down
    return int(booted_ms) / 1000 + runs_s - now_s


def _check_clock(findings: Findings, place: Place, state: State) -> None:
    if state.skew_s is None:
        return
    if abs(state.skew_s) < _CLOCK_S_MAX:
        findings.ok("clock", place.subject, "its clock agrees with that of this machine")
        return
    direction = "ahead of" if state.skew_s > 0 else "behind"
    findings.problem(
        "clock",
        place.subject,
        f"its clock is {abs(state.skew_s):.0f} s {direction} that of this machine. Times of messages, resets "
        "to a time and signatures of version 2 go wrong",
        "Run NTP on both machines (timedatectl set-ntp true), and compare them with: date -u",
    )


def _check_disk(findings: Findings, place: Place, state: State, percent: float) -> None:
    ratios = [
        float(text)
        for name, text in state.table.items()
        if name.startswith(_DISK_RATIOS) and _is_number(text)
    ]
    if not ratios or max(ratios) < 0:
        return
    full = max(ratios) * 100
    if full < percent:
        findings.ok("disk", place.subject, f"its disk is {full:.0f} % full")
        return
    findings.problem(
        "disk",
        place.subject,
        f"its disk is {full:.0f} % full (limit {percent:g} %). Above 85 % old messages are deleted early, "
        "above 90 % new ones are refused",
        "Enlarge the disk, lower fileReservedTime, or delete what else is on the disk",
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text, re.IGNORECASE) is not None


def _check_version(findings: Findings, place: Place, state: State) -> None:
    found = re.match(r"V(\d+)_(\d+)_(\d+)", state.table.get("brokerVersionDesc", ""))
    if found is None:
        return
    version = tuple(map(int, found.groups()))
    missing = [feature for since, feature in _FEATURES.items() if version < since]
    if missing:
        text = f"its version {'.'.join(found.groups())} lacks {', '.join(missing)}"
        findings.warning(
            "version", place.subject, text, "Upgrade it to RocketMQ 4.6 or later, or to rocketpy"
        )


async def _check_features(findings: Findings, client: ClientInstance, place: Place) -> None:
    code = RequestCode.GET_BROKER_CONFIG
    settings = await _read(findings, client, place, "features", code, decode_settings)
    if settings is None:
        return
    off = [f"{what} ({key}=false)" for key, what in _OFF.items() if settings.get(key) == "false"]
    if off:
        remedy = "If you need them, change that in broker.conf and start the broker again"
        findings.ok("features", place.subject, f"off: {', '.join(off)}", remedy)
    if settings.get("rejectTransactionMessage") == "true":
        remedy = "Set rejectTransactionMessage=false in broker.conf, or send transactions to other brokers"
        findings.warning("features", place.subject, "it rejects transactions", remedy)


# -- slaves -----------------------------------------------------------------------------------


async def _check_slaves(findings: Findings, client: ClientInstance, states: Mapping[Place, State]) -> None:
    """Check that slaves have what their masters have, or are at least getting it."""
    masters = {place.name: state for place, state in states.items() if place.broker_id == MASTER_ID}
    pairs = [
        (place, state, masters[place.name])
        for place, state in states.items()
        if place.broker_id != MASTER_ID and place.name in masters
    ]
    behind = []
    for place, state, master in pairs:
        if state.end < master.end:
            behind.append((place, state, master))
        else:
            findings.ok("slave", place.subject, "it has all messages of its master")
    if not behind:
        return
    await asyncio.sleep(_STUCK_S)  # a slave that copies makes progress meanwhile
    for place, before, master in behind:
        await _check_progress(findings, client, place, before, master)


async def _check_progress(
    findings: Findings, client: ClientInstance, place: Place, before: State, master: State
) -> None:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    found = await _read(findings, client, place, "slave", code, KVTable.decode)
    if found is None:
        return
    state = State(found.table, None)
    lag = master.end - state.end
    reason = state.table.get("haProblem", "")
    if lag <= 0:
        findings.ok("slave", place.subject, "it has all messages of its master")
    elif state.end > before.end:
        remedy = "Wait, and run the command again; if the lag grows, its disk or the network is too slow"
        findings.warning("slave", place.subject, f"it is {lag} bytes behind its master, and copies", remedy)
    else:
        findings.problem(
            "slave",
            place.subject,
            f"it is {lag} bytes behind its master and copies nothing{f': {reason}' if reason else ''}",
            "See its log; check haMasterAddress, haSecret and the master's HA port (haListenPort, listenPort "
            "+ 1 by default), and ask with: rocketpy-broker ha status",
        )


# -- write permission -------------------------------------------------------------------------


async def _check_permissions(
    findings: Findings, client: ClientInstance, place: Place, known: Mapping[str, Knowledge]
) -> None:
    """Compare the permissions in routes with those that the broker itself has."""
    code, decode = RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper.decode
    found = await _read(findings, client, place, "permission", code, decode)
    if found is None:
        return
    topics = found.topic_config_table
    for address, one in known.items():
        hidden = [
            topic
            for topic, route in one.routes.items()
            for queues in route.queue_datas
            if queues.broker_name == place.name
            and topic in topics
            and topics[topic].perm & ~queues.perm & (PERM_READ | PERM_WRITE)
        ]
        if not hidden:
            findings.ok("permission", place.subject, f"clients may use all its topics, says {address}")
            continue
        findings.problem(
            "permission",
            place.subject,
            f"name server {address} hides {len(hidden)} of its topics from producers or consumers, such as "
            f"{hidden[0]}: the write permission was wiped, the broker drains, or brokerPermission limits it",
            f"Undo it: rocketpy broker restore-writes {place.name}, or start the broker again; check "
            "brokerPermission in its file",
        )
