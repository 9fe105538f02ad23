"""Reads the metrics of a broker from its services, when they are requested.

Services count in plain attributes, so that no message pays for names, labels or lags. These are made here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rocketpy.protocol.codes import ResponseCode
from rocketpy.telemetry.plugin import Measured, Metric
from rocketpy.transport import MemoryBudget
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.pull.long_polling import HoldTable
from rocketpy_broker.handlers.pull.pull import Queue
from rocketpy_broker.metrics import catalog
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.peer import PeerHealth
from rocketpy_broker.replication.ha.client import HaClientState
from rocketpy_broker.replication.ha.connected_slaves import SlaveState
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.slices import SLICE_MS
from rocketpy_broker.services.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    BrokerStats,
    PutCounts,
)
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.stats import PUT_BOUNDS_MS
from rocketpy_broker.store.upkeep.driver import StoreHealth

Values = list[tuple[tuple[str, ...], float]]

OTHER_GROUPS: Final = "(other groups)"
"""Label of the sum of groups beyond `_LABEL_BYTES_MAX`."""
_LABEL_BYTES_MAX: Final = 4 << 20
"""Limit of one metric with a value for each group that clients name in heartbeats."""
_CONFLICTS_MAX: Final = 1000
_SERIES_BYTES: Final = 80
"""Bytes of a value on the page without its label."""


class BrokerState(NamedTuple):
    """State of a broker."""

    is_serving: bool
    stalled: int
    """Number of jobs that do not succeed, see `BrokerHealth.stalled`."""
    connections: int
    memory: MemoryBudget
    name_servers: int
    booted_ms: int
    store: StoreHealth
    delayed: dict[int, int]
    """Waiting messages by level."""
    timed: int
    """Messages with a due time that are not delivered yet."""
    timed_late_ms: int
    """For how long one of them has been due."""
    halves: int
    """Open transactions."""
    slaves: Sequence[SlaveState]
    """Connected ones."""
    slave_state: HaClientState | None
    peer: PeerHealth | None
    """Health of the DLedger peer; None without a DLedger group."""
    missing_replicas: int
    """1 for a SYNC_MASTER without a slave that keeps up; on a DLedger leader, peers that do not respond."""
    pops_held: int
    """Pops that wait for messages."""
    revived: int
    """Messages that were delivered again after the end of their invisible time, since the start."""
    revive_late_ms: int
    """For how long a message waits to be delivered again."""
    less_durable: Mapping[int, int]
    """Stored messages by the code of a response other than SUCCESS."""


class MetricSources(NamedTuple):
    """The services of a broker that metrics are read from."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    holds: HoldTable[Queue]
    stats: BrokerStats
    puts: Callable[[], PutCounts]
    state: Callable[[], BrokerState]
    in_flight: Callable[[str, str, int], int] = lambda *_: 0
    """See `DeliveryServices.in_flight`."""


def collect(sources: MetricSources) -> list[Measured]:
    """Return the current values of all metrics. Call it in the event loop of the broker."""
    return [_measured(sources, *step) for step in _collect(sources) if step is not None]


async def collect_in_slices(sources: MetricSources) -> list[Measured]:
    """Do the work of `collect`, but let others run in between: a broker may have thousands of queues."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + SLICE_MS / 1000
    found: list[Measured] = []
    for step in _collect(sources):
        if step is not None:
            found.append(_measured(sources, *step))
        if clock() >= end_s:
            await asyncio.sleep(0)
            end_s = clock() + SLICE_MS / 1000
    return found


def _measured(sources: MetricSources, metric: Metric, values: Values) -> Measured:
    broker = (sources.config.cluster_name, sources.config.name)
    return Measured(metric, [((*broker, *labels), value) for labels, value in values])


def _collect(sources: MetricSources) -> Iterator[tuple[Metric, Values] | None]:
    """Yield metrics with their values, and None between the steps of long work."""
    state = sources.state()
    yield from _traffic(sources)
    yield from _progress(sources)
    yield from _clients(sources, state)
    yield from _storage(sources.store, state.store)
    yield catalog.DELAYED, [((str(level),), count) for level, count in state.delayed.items()]
    yield catalog.TIMED, _single_value(state.timed)
    yield catalog.TIMED_LATE, _single_value(state.timed_late_ms / 1000)
    yield catalog.POPS_HELD, _single_value(state.pops_held)
    yield catalog.REVIVED, _single_value(state.revived)
    yield catalog.REVIVE_LATE, _single_value(state.revive_late_ms / 1000)
    yield catalog.HALF, _single_value(state.halves)
    yield catalog.SLAVES, _single_value(len(state.slaves))
    yield catalog.SLAVE_LAG, [((slave.address,), slave.lag_bytes) for slave in state.slaves]
    states = [] if state.slave_state is None else list(HaClientState)  # a master has no values
    yield (
        catalog.SLAVE_STATE,
        [((known.name.lower(),), float(known is state.slave_state)) for known in states],
    )
    yield catalog.MISSING_REPLICAS, _single_value(state.missing_replicas)
    yield (
        catalog.LESS_DURABLE,
        [((ResponseCode(code).name,), float(count)) for code, count in state.less_durable.items()],
    )
    yield from _dledger(state.peer)
    yield catalog.PERMISSION, _single_value(sources.config.permission)
    yield catalog.SERVING, _single_value(state.is_serving)
    yield catalog.STALLED, _single_value(state.stalled)
    yield catalog.NAME_SERVERS, _single_value(state.name_servers)
    yield catalog.BOOTED, _single_value(state.booted_ms / 1000)


def _traffic(sources: MetricSources) -> Iterator[tuple[Metric, Values]]:
    stats, store = sources.stats, sources.store.stats
    yield catalog.MESSAGES_IN, [((topic,), count) for topic, count, _ in sources.puts()]
    yield catalog.BYTES_IN, _single_value(store.put_bytes)
    for metric, name in (
        (catalog.MESSAGES_OUT, GROUP_GET_NUMS),
        (catalog.BYTES_OUT, GROUP_GET_SIZE),
        (catalog.SENT_BACK, SNDBCK_PUT_NUMS),
    ):
        yield metric, [(_topic_and_group(key), counter.value) for key, counter in stats.named(name)]
    yield catalog.PULLS_FOUND, _single_value(store.found)
    yield catalog.PULLS_MISSED, _single_value(store.missed)
    yield catalog.PULLS_HELD, _single_value(len(sources.holds))
    yield catalog.PUT_TIMES, list(_cumulated(store.times_by_duration))
    yield catalog.PUT_MAX, _single_value(store.put_ms_max)


def _cumulated(times: Iterable[int]) -> Iterator[tuple[tuple[str], float]]:
    """Yield a histogram as Prometheus counts it: each value includes all shorter times."""
    total = 0
    for count, bound in zip(times, [*map(str, PUT_BOUNDS_MS), "+Inf"], strict=True):
        total += count
        yield (bound,), total


def _progress(sources: MetricSources) -> Iterator[tuple[Metric, Values] | None]:
    """Yield the depths of queues and the lags of consumer groups, and None after each queue."""
    store = sources.store
    kept: dict[str, int] = {}
    for topic, queue_id in store.list_queues():
        end = store.max_offset_in_queue(topic, queue_id)
        kept[topic] = kept.get(topic, 0) + end - max(store.min_offset_in_queue(topic, queue_id), 0)
        yield None
    yield catalog.QUEUE_MESSAGES, [((topic,), count) for topic, count in kept.items()]
    lags: Values = []
    in_flight: Values = []
    ages: Values = []
    now_ms = store.clock()
    for topic, group in sources.offsets.pairs:
        lag, popped, oldest_ms = 0, 0, now_ms
        for queue_id, offset in sources.offsets.queues(group, topic).items():
            popped += sources.in_flight(topic, group, queue_id)
            behind = store.max_offset_in_queue(topic, queue_id) - offset
            if behind > 0:
                lag += behind
                stored_ms = store.store_timestamp(topic, queue_id, offset)
                oldest_ms = min(oldest_ms, stored_ms) if stored_ms > 0 else oldest_ms
            yield None
        lags.append(((topic, group), lag))
        if popped:
            in_flight.append(((topic, group), popped))
        ages.append(((topic, group), now_ms - oldest_ms))
    yield catalog.LAG_MESSAGES, lags
    yield catalog.IN_FLIGHT, in_flight
    yield catalog.LAG_LATENCY, ages


def _clients(sources: MetricSources, state: BrokerState) -> Iterator[tuple[Metric, Values]]:
    clients = sources.clients
    yield catalog.CONNECTIONS, _single_value(state.connections)
    yield catalog.CONNECTION_BYTES, [((kind,), float(size)) for kind, size in state.memory.by_kind().items()]
    yield catalog.CONNECTION_REFUSALS, _single_value(state.memory.refusals)
    yield (
        catalog.PRODUCERS,
        _bounded((group, len(clients.producers(group))) for group in clients.producer_groups),
    )
    conflicts: Iterator[tuple[tuple[str, ...], float]] = (
        ((name, conflict.kind), 1.0)
        for name in clients.consumer_groups
        for conflict in clients.conflicts(name, str)
    )
    groups = [clients.consumer_group(name) for name in clients.consumer_groups]
    yield (
        catalog.CONSUMERS,
        _bounded((group.name, len(group.members)) for group in groups if group is not None),
    )
    yield (
        catalog.CONSUMER_CONFLICTS,
        list(itertools.islice(conflicts, _CONFLICTS_MAX)),
    )


def _storage(store: MessageStore, health: StoreHealth) -> Iterator[tuple[Metric, Values]]:
    yield catalog.STORAGE_BYTES, _single_value(store.max_physical_offset - store.min_physical_offset)
    yield catalog.FLUSH_BEHIND, _single_value(health.unflushed_bytes)
    yield catalog.FLUSHES, _single_value(health.flushes)
    yield catalog.FLUSH_SECONDS, _single_value(health.flush_seconds)
    yield catalog.FLUSH_MAX, _single_value(health.flush_seconds_max)
    yield catalog.DISPATCH_BEHIND, _single_value(store.dispatch_behind_bytes)
    yield catalog.DISPATCH_WAITING, _single_value(health.dispatch_waiting)
    yield catalog.DAMAGED_READS, _single_value(store.stats.damaged_reads)
    yield catalog.FORCED_DELETIONS, _single_value(store.stats.forced_messages)
    earliest_ms = store.earliest_store_time()
    yield catalog.RESERVE_TIME, _single_value(store.clock() - earliest_ms if earliest_ms > 0 else 0)
    try:
        disk = os.statvfs(store.config.root)
    except OSError:
        return
    yield catalog.DISK_USED, _single_value(1 - disk.f_bavail / disk.f_blocks if disk.f_blocks else 0)
    yield catalog.DISK_FREE, _single_value(disk.f_bavail * disk.f_frsize)


def _dledger(peer: PeerHealth | None) -> Iterator[tuple[Metric, Values]]:
    peers = [] if peer is None else [peer]  # without one, the metrics have no values
    yield catalog.DLEDGER_TERM, [((), float(peer.term)) for peer in peers]
    yield catalog.DLEDGER_CHANGES, [((), float(peer.leader_changes)) for peer in peers]
    yield catalog.DLEDGER_UNCOMMITTED, [((), float(peer.end_index - peer.committed_index)) for peer in peers]
    yield catalog.DLEDGER_ROLE, [((role.value,), float(role is peer.role)) for peer in peers for role in Role]
    yield catalog.DLEDGER_LAG, [((name,), float(lag)) for peer in peers for name, lag in peer.lags.items()]
    yield (
        catalog.DLEDGER_LAG_SECONDS,
        [((name,), lag_ms / 1000) for peer in peers for name, lag_ms in peer.lags_ms.items()],
    )


def _bounded(groups: Iterable[tuple[str, int]]) -> Values:
    """Return values by group, and the sum of those beyond a limit, since clients may invent groups."""
    values: Values = []
    left, others = _LABEL_BYTES_MAX, 0
    for group, count in groups:
        left -= len(group) + _SERIES_BYTES
        if left >= 0:
            values.append(((group,), count))
        else:
            others += count
    return [*values, ((OTHER_GROUPS,), others)] if others else values


def _single_value(value: float) -> Values:
    return [((), float(value))]


def _topic_and_group(key: str) -> tuple[str, str]:
    topic, _, group = key.rpartition("@")
    return topic, group
