"""The route table: brokers, their addresses and topics, as they registered them.

Pure: no clock, no sockets. `now_ms` is any steady clock's milliseconds; a channel is whatever
object stands for the connection a broker registered on.
Source: RouteInfoManager of RocketMQ 4.6.0; differs: one owner, so no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from rocketpy.protocol.bodies import (
    MASTER_ID,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from rocketpy.protocol.message.sysflag import TopicSysFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """What every request of a broker says about itself."""

    cluster: str
    name: str
    broker_id: int
    """0 for a master."""
    address: str


@dataclass(slots=True, kw_only=True)
class LiveBroker:
    """One broker process that is registered."""

    identity: BrokerIdentity
    ha_address: str
    channel: Hashable
    data_version: DataVersion
    """Of its topic table, as last registered."""
    updated_ms: int
    account: str
    """Who registered it, where there is access control."""


@dataclass(frozen=True, slots=True)
class MasterHint:
    """What a registering slave is told; both None for a master, or when the master is away."""

    address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class RouteTable:
    """All a name server knows. Every method answers from memory."""

    _queues: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    """topic -> broker name -> its queues."""
    _brokers: dict[str, BrokerData] = field(default_factory=dict)
    """broker name -> the addresses of its master and slaves."""
    _clusters: dict[str, set[str]] = field(default_factory=dict)
    """cluster name -> broker names."""
    _live: dict[str, LiveBroker] = field(default_factory=dict)
    """address -> the process behind it."""
    _filter_servers: dict[str, list[str]] = field(default_factory=dict)
    """address -> its filter servers (a 4.x feature that 4.6.0 still carries in routes)."""
    changes: int = 0
    """How often an answer to a client may have become another."""
    entries: int = 0
    """Brokers, pairs of a cluster and a broker, and pairs of a topic and a broker: what takes memory."""

    # -- what brokers do ----------------------------------------------------------------------

    def register(
        self,
        broker: BrokerIdentity,
        *,
        ha_address: str,
        topics: Mapping[str, TopicConfig],
        data_version: DataVersion,
        filter_servers: Iterable[str] | None,
        channel: Hashable,
        now_ms: int,
        account: str = "",
    ) -> MasterHint:
        """Take a broker's registration, a first one or a refreshing one.

        topics: all of the broker's, or those that changed (QUIRKS 13): a topic that is not among
        them stays as it is. They are only looked at when a master's data_version is new.
        filter_servers: None leaves them as they are.
        """
        before = self._live.get(broker.address)
        if before is not None and before.identity.name != broker.name:
            self._drop_live(before)  # nothing else would drop that name
        names = self._clusters.setdefault(broker.cluster, set())
        if broker.name not in names:
            names.add(broker.name)
            self.entries += 1
            self.changes += 1
        first = self._enter_address(broker)
        if broker.broker_id == MASTER_ID and (first or self.is_changed(broker.address, data_version)):
            for topic in topics.values():
                self._enter_queues(broker.name, topic)
        self.entries += broker.address not in self._live
        self._live[broker.address] = LiveBroker(
            identity=broker,
            ha_address=ha_address,
            channel=channel,
            data_version=data_version,
            updated_ms=now_ms,
            account=account,
        )
        self._enter_filter_servers(broker.address, filter_servers)
        return MasterHint() if broker.broker_id == MASTER_ID else self._master_hint(broker.name)

    def _enter_address(self, broker: BrokerIdentity) -> bool:
        """Return whether this id of this broker was unknown until now."""
        data = self._brokers.get(broker.name)
        if data is None:
            data = BrokerData(cluster=broker.cluster, broker_name=broker.name, broker_addrs={})
            self._brokers[broker.name] = data
        addresses = data.broker_addrs
        # A process that changed its role keeps its address: the entry under the old id goes away.
        for broker_id in [key for key, address in addresses.items() if address == broker.address]:
            if broker_id != broker.broker_id:
                del addresses[broker_id]
                self.changes += 1
        before = addresses.get(broker.broker_id)
        if before != broker.address:
            addresses[broker.broker_id] = broker.address
            self.changes += 1
        return before is None

    def _enter_queues(self, broker_name: str, topic: TopicConfig) -> None:
        brokers = self._queues.setdefault(topic.topic_name, {})
        entry = QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_syn_flag=topic.topic_sys_flag,
        )
        if brokers.get(broker_name) != entry:
            self.entries += broker_name not in brokers
            brokers[broker_name] = entry
            self.changes += 1

    def find_duplicate(self, broker: BrokerIdentity) -> LiveBroker | None:
        """Return the process at another address that is registered with the same name and id."""
        data = self._brokers.get(broker.name)
        address = None if data is None else data.broker_addrs.get(broker.broker_id)
        return None if address is None or address == broker.address else self._live.get(address)

    def live_broker(self, address: str) -> LiveBroker | None:
        """Return the process at an address."""
        return self._live.get(address)

    def count_new(self, broker: BrokerIdentity, topics: Iterable[str]) -> int:
        """Return how many `entries` a registration would add."""
        new = sum(broker.name not in self._queues.get(topic, ()) for topic in topics)
        is_joining = broker.name not in self._clusters.get(broker.cluster, ())
        return new + is_joining + (broker.address not in self._live)

    def _enter_filter_servers(self, address: str, filter_servers: Iterable[str] | None) -> None:
        if filter_servers is None:
            return
        servers = list(filter_servers)
        self.changes += servers != self._filter_servers.get(address, [])
        if servers:
            self._filter_servers[address] = servers
        else:
            self._filter_servers.pop(address, None)

    def _master_hint(self, broker_name: str) -> MasterHint:
        address = self._brokers[broker_name].broker_addrs.get(MASTER_ID)
        master = self._live.get(address) if address is not None else None
        return MasterHint() if master is None else MasterHint(address, master.ha_address)

    def unregister(self, broker: BrokerIdentity) -> None:
        """Forget a broker that says goodbye; one that is not known is no error."""
        self._drop(broker.address, broker.name, broker.broker_id)

    def is_changed(self, address: str, data_version: DataVersion) -> bool:
        """Whether a broker must send its topics again: it is unknown or registered another version."""
        return self.data_version_of(address) != data_version

    def data_version_of(self, address: str) -> DataVersion | None:
        """The version last registered from an address."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def touch(self, address: str, now_ms: int) -> None:
        """A broker showed that it lives."""
        live = self._live.get(address)
        if live is not None:
            live.updated_ms = now_ms

    # -- what ends them -----------------------------------------------------------------------

    def drop_inactive(self, now_ms: int, expired_ms: int) -> list[LiveBroker]:
        """Drop every broker not heard of for longer than expired_ms; return them."""
        late = [live for live in self._live.values() if live.updated_ms + expired_ms < now_ms]
        for live in late:
            self._drop_live(live)
        return late

    def drop_channel(self, channel: Hashable) -> list[LiveBroker]:
        """Drop every broker that registered on a connection that is gone; return them."""
        gone = [live for live in self._live.values() if live.channel is channel]
        for live in gone:
            self._drop_live(live)
        return gone

    def _drop_live(self, live: LiveBroker) -> None:
        broker = live.identity
        self._drop(broker.address, broker.name, broker.broker_id)

    def _drop(self, address: str, name: str, broker_id: int) -> None:
        self.changes += 1
        self.entries -= self._live.pop(address, None) is not None
        self._filter_servers.pop(address, None)
        data = self._brokers.get(name)
        if data is None:
            return
        # Only its own entry: meanwhile another process may have registered under the same id.
        if data.broker_addrs.get(broker_id) == address:
            del data.broker_addrs[broker_id]
        if not data.broker_addrs:
            self._forget_name(name)

    def _forget_name(self, name: str) -> None:
        del self._brokers[name]
        for cluster in [key for key, names in self._clusters.items() if name in names]:
            self._clusters[cluster].discard(name)
            self.entries -= 1
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in [key for key, brokers in self._queues.items() if name in brokers]:
            del self._queues[topic][name]
            self.entries -= 1
            if not self._queues[topic]:
                del self._queues[topic]

    # -- what operators do --------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Forget a topic on all brokers, until one of them registers a new version of its table."""
        self.entries -= len(self._queues.pop(topic, ()))
        self.changes += 1

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the right to write from all topics of a broker; return how many.

        It lasts until the broker registers a new version of its table.
        """
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Give back what `wipe_write_perm` took; return how many topics (a request of RocketMQ 4.9)."""
        return self._set_perm(broker_name, lambda perm: perm | PERM_WRITE)

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        found = [brokers for brokers in self._queues.values() if broker_name in brokers]
        self.changes += 1
        for brokers in found:
            entry = brokers[broker_name]
            brokers[broker_name] = msgspec.structs.replace(entry, perm=change(entry.perm))
        return len(found)

    # -- what clients ask ---------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers that serve a topic, with their queues; None when there is none."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        addresses = [address for broker in brokers for address in broker.broker_addrs.values()]
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=brokers,
            filter_server_table={
                address: self._filter_servers[address]
                for address in addresses
                if address in self._filter_servers
            },
        )

    def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers."""
        return ClusterInfo(
            broker_addr_table=dict(self._brokers),
            cluster_addr_table={name: sorted(brokers) for name, brokers in self._clusters.items()},
        )

    def topics(self) -> list[str]:
        """Every topic."""
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of any broker of a cluster; none for a cluster that is not there."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, brokers in self._queues.items() if not names.isdisjoint(brokers)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Clusters and brokers, each of which is a topic of its own, and some broker's address."""
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *sorted(brokers))]
        address = next((a for b in self._brokers.values() for a in b.broker_addrs.values()), None)
        return names, address

    def unit_topics(self) -> list[str]:
        """Topics with the unit flag."""
        return [t for t, flag in self._flags() if flag & TopicSysFlag.UNIT]

    def unit_sub_topics(self) -> list[str]:
        """Topics with the flag of a unit subscription."""
        return [t for t, flag in self._flags() if flag & TopicSysFlag.UNIT_SUB]

    def unit_sub_un_unit_topics(self) -> list[str]:
        """Topics with the flag of a unit subscription but without that of a unit."""
        return [
            t for t, flag in self._flags() if flag & TopicSysFlag.UNIT_SUB and not flag & TopicSysFlag.UNIT
        ]

    def _flags(self) -> Iterable[tuple[str, int]]:
        """Each topic with the flags on the first broker that registered it, as 4.6.0 looks at it."""
        return ((t, next(iter(q.values())).topic_syn_flag) for t, q in self._queues.items() if q)
