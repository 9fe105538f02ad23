"""Checks of brokers: reachability, access, clock, disk, version, features, replicas and permissions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

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
from rocketpy_cli.doctor.findings import Findings, add_error_response
from rocketpy_cli.doctor.name_servers import TIMEOUT_MS, NameServerView

T = TypeVar("T")

_CLOCK_SKEW_S_MAX: Final = 3.0
"""Maximum difference of clocks. NTP keeps it much smaller, but brokers report times in whole seconds."""
_PROGRESS_WAIT_S: Final = 1.0
"""Time in which a slave that is behind must make progress. It normally gets new bytes within milliseconds."""
_DISK_RATIOS: Final = ("commitLogDiskRatio", "consumeQueueDiskRatio")
_FEATURES: Final = {
    (4, 2, 0): "batches of messages",
    (4, 3, 0): "transactions",
    (4, 4, 0): "access control and message traces",
    (4, 6, 0): "requests with a reply",
}
"""Features by the version of RocketMQ that introduced them."""
_OFF_BY_DEFAULT: Final = {"enablePropertyFilter": "SQL92 filters", "traceTopicEnable": "message traces"}
"""Features by the setting that enables them, which is false by default."""


class BrokerAddress(NamedTuple):
    """The name, id and address of a broker, as name servers report them."""

    name: str
    broker_id: int
    address: str

    @property
    def subject(self) -> str:
        """The subject of findings about this broker."""
        role = "" if self.broker_id == MASTER_ID else f" (slave {self.broker_id})"
        return f"broker {self.name}{role} at {self.address}"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The state of a broker."""

    table: Mapping[str, str]
    skew_s: float | None
    """Seconds by which its clock is ahead of this one's; None if unknown."""

    @property
    def end(self) -> int:
        """End offset of its commit log; -1 if unknown."""
        return int(self.table.get("commitLogMaxOffset", -1))


async def check_brokers(
    findings: Findings, client: ClientInstance, known: Mapping[str, NameServerView], disk_percent: float
) -> None:
    """Check every broker that a name server reports. disk_percent: disk usage that is a problem."""
    brokers = sorted({broker for view in known.values() for broker in _brokers_of(view)})
    _check_masters(findings, brokers)
    states = {
        broker: state
        for broker, state in zip(
            brokers,
            await asyncio.gather(*(_read_state(findings, client, broker) for broker in brokers)),
            strict=True,
        )
        if state is not None
    }
    for broker, state in states.items():
        if problem := state.table.get("brokerProblem"):
            findings.problem("health", broker.subject, problem, "See its log; its /readyz says the same")
        _check_clock(findings, broker, state)
        _check_disk(findings, broker, state, disk_percent)
        _check_version(findings, broker, state)
    settings = await asyncio.gather(*(_read_settings(findings, client, broker) for broker in states))
    for broker, values in zip(states, settings, strict=True):
        _check_features(findings, broker, values)
        _check_replicas(findings, broker, states, values)
    await _check_slaves(findings, client, states)
    masters = [broker for broker in states if broker.broker_id == MASTER_ID]
    await asyncio.gather(*(_check_permissions(findings, client, broker, known) for broker in masters))


def _brokers_of(view: NameServerView) -> Iterable[BrokerAddress]:
    for name, data in view.cluster.broker_addr_table.items():
        for broker_id, address in data.broker_addrs.items():
            yield BrokerAddress(name, broker_id, address)


def _check_masters(findings: Findings, brokers: Iterable[BrokerAddress]) -> None:
    ids: dict[str, set[int]] = {}
    for broker in brokers:
        ids.setdefault(broker.name, set()).add(broker.broker_id)
    for name, found in ids.items():
        if MASTER_ID not in found:
            findings.problem(
                "master",
                f"broker {name}",
                f"it has {len(found)} slaves and no master, so producers cannot send to it",
                "Start its master again, or make a slave the master: rocketpy-broker promote (a DLedger "
                "group needs a majority of its peers)",
            )


async def _read_state(
    findings: Findings, client: ClientInstance, broker: BrokerAddress
) -> BrokerState | None:
    try:
        response = await _request(client, broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    except RocketError as error:
        findings.problem(
            "reach",
            broker.subject,
            f"it cannot be reached from this machine: {error}",
            "Start it if it is down. If it runs, set brokerIP1 in its file to an address that clients reach, "
            "or open its port in the firewall",
        )
        return None
    if response.code != ResponseCode.SUCCESS:
        add_error_response(findings, broker.subject, response.remark)
        return None
    try:
        table = KVTable.decode(response.body).table
    except RocketError as error:
        findings.not_checked("reach", broker.subject, error)
        return None
    findings.ok("reach", broker.subject, f"it responds, version {table.get('brokerVersionDesc', 'unknown')}")
    return BrokerState(table, _skew_s(table, time.time()))


async def _request(client: ClientInstance, broker: BrokerAddress, code: int) -> Command:
    return await client.request(broker.address, Command.request(code), TIMEOUT_MS)


async def _read(
    findings: Findings,
    client: ClientInstance,
    broker: BrokerAddress,
    check: str,
    code: int,
    decode: Callable[[bytes], T],
) -> T | None:
    """Return the decoded response of a broker. If that fails, add a finding and return None."""
    try:
        response = await _request(client, broker, code)
        if response.code == ResponseCode.SUCCESS:
            return decode(response.body)
        add_error_response(findings, broker.subject, response.remark)
    except RocketError as error:
        findings.not_checked(check, broker.subject, error)
    return None


# -- state ------------------------------------------------------------------------------------


def _skew_s(table: Mapping[str, str], now_s: float) -> float | None:
    """Return the seconds by which the broker's clock is ahead, computed from its start time and uptime."""
    numbers = re.findall(r"-?\d+", table.get("runtime", ""))
    booted_ms = table.get("bootTimestamp", "")
    if len(numbers) != 4 or not booted_ms.isdigit():
        return None
    days, hours, minutes, seconds = map(int, numbers)
    uptime_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5  # the broker rounds down
    return int(booted_ms) / 1000 + uptime_s - now_s


def _check_clock(findings: Findings, broker: BrokerAddress, state: BrokerState) -> None:
    if state.skew_s is None:
        return
    if abs(state.skew_s) < _CLOCK_SKEW_S_MAX:
        findings.ok("clock", broker.subject, "its clock agrees with that of this machine")
        return
    direction = "ahead of" if state.skew_s > 0 else "behind"
    findings.problem(
        "clock",
        broker.subject,
        f"its clock is {abs(state.skew_s):.0f} s {direction} that of this machine. So times of messages are "
        "wrong, resets to a time miss their offset, and signatures of version 2 are rejected",
        "Run NTP on both machines (timedatectl set-ntp true), and compare them with: date -u",
    )


def _check_disk(findings: Findings, broker: BrokerAddress, state: BrokerState, percent: float) -> None:
    ratios = [
        float(text)
        for name, text in state.table.items()
        if name.startswith(_DISK_RATIOS) and _is_number(text)
    ]
    if not ratios or max(ratios) < 0:
        return
    full = max(ratios) * 100
    if full < percent:
        findings.ok("disk", broker.subject, f"its disk is {full:.0f} % full")
        return
    findings.problem(
        "disk",
        broker.subject,
        f"its disk is {full:.0f} % full (limit {percent:g} %). Above 85 % old messages are deleted early, "
        "above 90 % new ones are rejected",
        "Enlarge the disk, lower fileReservedTime, or delete other files on it",
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text, re.IGNORECASE) is not None


def _check_version(findings: Findings, broker: BrokerAddress, state: BrokerState) -> None:
    found = re.match(r"V(\d+)_(\d+)_(\d+)", state.table.get("brokerVersionDesc", ""))
    if found is None:
        return
    version = tuple(map(int, found.groups()))
    missing = [feature for since, feature in _FEATURES.items() if version < since]
    if missing:
        text = f"its version {'.'.join(found.groups())} lacks {', '.join(missing)}"
        findings.warning(
            "version", broker.subject, text, "Upgrade it to RocketMQ 4.6 or later, or to rocketpy"
        )


async def _read_settings(
    findings: Findings, client: ClientInstance, broker: BrokerAddress
) -> Mapping[str, str]:
    """Return the settings of a broker; none, and a finding, if it does not show them."""
    code = RequestCode.GET_BROKER_CONFIG
    return await _read(findings, client, broker, "features", code, decode_settings) or {}


def _check_features(findings: Findings, broker: BrokerAddress, settings: Mapping[str, str]) -> None:
    off = [f"{what} ({key}=false)" for key, what in _OFF_BY_DEFAULT.items() if settings.get(key) == "false"]
    if off:
        remedy = "If you need them, set them to true in broker.conf and restart the broker"
        findings.ok("features", broker.subject, f"off: {', '.join(off)}", remedy)
    if settings.get("rejectTransactionMessage") == "true":
        remedy = "Set rejectTransactionMessage=false in broker.conf, or send transactions to other brokers"
        findings.warning("features", broker.subject, "it rejects transactions", remedy)


# -- replicas ---------------------------------------------------------------------------------


def _check_replicas(
    findings: Findings,
    broker: BrokerAddress,
    states: Mapping[BrokerAddress, BrokerState],
    settings: Mapping[str, str],
) -> None:
    """Check that a master has the replicas that its messages need.

    Brokers of rocketpy say what is missing. For those of RocketMQ, the brokers that respond are counted.
    """
    if broker.broker_id != MASTER_ID:
        return
    table = states[broker].table
    replicas = sum(other.name == broker.name for other in states) - 1
    peers = len(list(filter(None, settings.get("dLegerPeers", "").split(";"))))
    if settings.get("enableDLegerCommitLog") == "true" or table.get("dledgerGroup"):
        problem = table.get("dledgerProblem", "")
        if not problem and "dledgerGroup" not in table and replicas + 1 < peers:
            problem = f"only {replicas + 1} of the {peers} peers of its group respond"
        remedy = "Start missing peers, see the logs of those behind, and: rocketpy-broker dledger status"
        ok = "the peers of its group respond"
    elif (table.get("haRole") or settings.get("brokerRole")) == "SYNC_MASTER":
        problem = table.get("haProblem", "")
        if not problem and "haRole" not in table and not replicas:
            problem = "it is a SYNC_MASTER without a slave, so sends get SLAVE_NOT_AVAILABLE"
        remedy = "Start its slave, and see the slave's log and: rocketpy-broker ha status"
        ok = "it has a slave, as a SYNC_MASTER needs"
    else:
        return
    if problem:
        findings.problem("replicas", broker.subject, problem, remedy)
    else:
        findings.ok("replicas", broker.subject, ok)


# -- slaves -----------------------------------------------------------------------------------


async def _check_slaves(
    findings: Findings, client: ClientInstance, states: Mapping[BrokerAddress, BrokerState]
) -> None:
    """Check that slaves have all bytes of their masters' logs, or are copying them."""
    masters = {broker.name: state for broker, state in states.items() if broker.broker_id == MASTER_ID}
    pairs = [
        (broker, state, masters[broker.name])
        for broker, state in states.items()
        if broker.broker_id != MASTER_ID and broker.name in masters
    ]
    behind = []
    for broker, state, master in pairs:
        if state.end < master.end:
            behind.append((broker, state, master))
        else:
            findings.ok("slave", broker.subject, "it has all messages of its master")
    if not behind:
        return
    await asyncio.sleep(_PROGRESS_WAIT_S)  # a slave that copies makes progress meanwhile
    for broker, before, master in behind:
        await _check_progress(findings, client, broker, before, master)


async def _check_progress(
    findings: Findings,
    client: ClientInstance,
    broker: BrokerAddress,
    before: BrokerState,
    master: BrokerState,
) -> None:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    found = await _read(findings, client, broker, "slave", code, KVTable.decode)
    if found is None:
        return
    state = BrokerState(found.table, None)
    lag = master.end - state.end
    is_peer = "dledgerGroup" in state.table
    reason = state.table.get("dledgerProblem" if is_peer else "haProblem", "")
    if lag <= 0:
        findings.ok("slave", broker.subject, "it has all messages of its master")
    elif state.end > before.end:
        remedy = "Wait, and run the command again; if the lag grows, its disk or the network is too slow"
        text = f"it is {lag} bytes behind its master, and is copying them"
        findings.warning("slave", broker.subject, text, remedy)
    else:
        text = f"it is {lag} bytes behind its master, and is not copying{f': {reason}' if reason else ''}"
        remedy = (
            "See its log; check its disk and the ports in dLegerPeers, and ask with: rocketpy-broker dledger "
            "status"
            if is_peer
            else "See its log; check haMasterAddress, haSecret and the master's HA port (haListenPort, "
            "listenPort + 1 by default), and ask with: rocketpy-broker ha status"
        )
        findings.problem("slave", broker.subject, text, remedy)


# -- write permission -------------------------------------------------------------------------


async def _check_permissions(
    findings: Findings, client: ClientInstance, broker: BrokerAddress, known: Mapping[str, NameServerView]
) -> None:
    """Compare the permissions in the routes of name servers with those of the broker itself."""
    code, decode = RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper.decode
    found = await _read(findings, client, broker, "permission", code, decode)
    if found is None:
        return
    topics = found.topic_config_table
    for address, view in known.items():
        hidden = [
            topic
            for topic, route in view.routes.items()
            for queues in route.queue_datas
            if queues.broker_name == broker.name
            and topic in topics
            and topics[topic].perm & ~queues.perm & (PERM_READ | PERM_WRITE)
        ]
        if not hidden:
            text = f"the routes of name server {address} allow clients to use all its topics"
            findings.ok("permission", broker.subject, text)
            continue
        findings.problem(
            "permission",
            broker.subject,
            f"name server {address} hides {len(hidden)} of its topics from producers or consumers, such as "
            f"{hidden[0]}. Its write permission was wiped, it is draining, or brokerPermission limits it",
            f"Undo it: rocketpy broker restore-writes {broker.name}, or restart the broker; check "
            "brokerPermission in its file",
        )
