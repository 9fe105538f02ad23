"""The route table: the registered brokers with their addresses and topics.

No I/O or clock: `now_ms` is the time of any monotonic clock. A channel is any object that stands
for the connection of a broker.

Source: RouteInfoManager of RocketMQ 4.6.0. Differs: no locks, as there is one thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
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
    """Identity of a broker, which is part of all its requests."""

    cluster: str
    name: str
    broker_id: int
    """0 for a master."""
    address: str


@dataclass(slots=True, kw_only=True)
class LiveBroker:
    """A registered broker process."""

    identity: BrokerIdentity
    ha_address: str
    channel: Hashable
    data_version: DataVersion
    """Version of the topics that it registered last."""
    updated_ms: int
    account: str
    """Account that registered it; empty without access control."""


@dataclass(frozen=True, slots=True)
class MasterHint:
    """Addresses of the master, for a slave that registers.

    Both are None if the master itself registers, or if none is registered.
    """

    address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class RouteTable:
    """The brokers and topics that a name server knows."""

    _queues: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    """topic -> broker name -> its queues."""
    _brokers: dict[str, BrokerData] = field(default_factory=dict)
    """broker name -> the addresses of its master and slaves."""
    _clusters: dict[str, set[str]] = field(default_factory=dict)
    """cluster name -> broker names."""
    _live: dict[str, LiveBroker] = field(default_factory=dict)
    """address -> the process at it."""
    _filter_servers: dict[str, list[str]] = field(default_factory=dict)
    """address -> its filter servers (a feature of 4.x that 4.6.0 deprecates)."""
    changes: int = 0
    """Number of changes that may affect responses to clients."""
    entries: int = 0
    """Number of brokers, pairs of a cluster and a broker, and pairs of a topic and a broker."""

    # -- registration -------------------------------------------------------------------------

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
        """Register a broker, or refresh its registration.

        topics: all topics of the broker, or the changed ones (QUIRKS 13); others stay as they are. They are
        used only if the broker is a master, and it or its data_version is new. filter_servers: None for no
        change.
        """
        before = self._live.get(broker.address)
        if before is not None and before.identity.name != broker.name:
            self._drop_live(before)  # nothing else would remove the entry of its old name
        names = self._clusters.setdefault(broker.cluster, set())
        if broker.name not in names:
            names.add(broker.name)
            self.entries += 1
            self.changes += 1
        first = self._put_address(broker)
        if broker.broker_id == MASTER_ID and (first or self.is_changed(broker.address, data_version)):
            for topic in topics.values():
                self._put_queues(broker.name, topic)
        self.entries += broker.address not in self._live
        self._live[broker.address] = LiveBroker(
            identity=broker,
            ha_address=ha_address,
            channel=channel,
            data_version=data_version,
            updated_ms=now_ms,
            account=account,
        )
        self._put_filter_servers(broker.address, filter_servers)
        return MasterHint() if broker.broker_id == MASTER_ID else self._master_hint(broker.name)

    def _put_address(self, broker: BrokerIdentity) -> bool:
        """Add an address; return whether the id of the broker was unknown."""
        data = self._brokers.get(broker.name)
        if data is None:
            data = BrokerData(cluster=broker.cluster, broker_name=broker.name, broker_addrs={})
            self._brokers[broker.name] = data
        addresses = data.broker_addrs
        # A process keeps its address when its role changes; the entry of its old id is removed.
        for broker_id in [key for key, address in addresses.items() if address == broker.address]:
            if broker_id != broker.broker_id:
                del addresses[broker_id]
                self.changes += 1
        before = addresses.get(broker.broker_id)
        if before != broker.address:
            addresses[broker.broker_id] = broker.address
            self.changes += 1
        return before is None

    def _put_queues(self, broker_name: str, topic: TopicConfig) -> None:
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
        """Return the broker with the same name and id, but another address; None without one."""
        data = self._brokers.get(broker.name)
        address = None if data is None else data.broker_addrs.get(broker.broker_id)
        return None if address is None or address == broker.address else self._live.get(address)

    def live_broker(self, address: str) -> LiveBroker | None:
        """Return the broker at an address; None if it is unknown."""
        return self._live.get(address)

    def count_new(self, broker: BrokerIdentity, topics: Iterable[str]) -> int:
        """Return the number of `entries` that a registration would add."""
        new = sum(broker.name not in self._queues.get(topic, ()) for topic in topics)
        is_joining = broker.name not in self._clusters.get(broker.cluster, ())
        return new + is_joining + (broker.address not in self._live)

    def _put_filter_servers(self, address: str, filter_servers: Iterable[str] | None) -> None:
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
        """Remove a broker. An unknown one is not an error."""
        self._drop(broker.address, broker.name, broker.broker_id)

    def is_changed(self, address: str, data_version: DataVersion) -> bool:
        """Whether a broker must send its topics: it is unknown, or it registered another version."""
        return self.data_version_of(address) != data_version

    def data_version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics that the broker at an address registered; None for none."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def touch(self, address: str, now_ms: int) -> None:
        """Record that a broker is alive."""
        live = self._live.get(address)
        if live is not None:
            live.updated_ms = now_ms

    # -- removal -------------------------------------------------------------------------------

    def drop_inactive(self, now_ms: int, expired_ms: int) -> list[LiveBroker]:
        """Remove and return the brokers that were silent for longer than expired_ms."""
        late = [live for live in self._live.values() if live.updated_ms + expired_ms < now_ms]
        for live in late:
            self._drop_live(live)
        return late

    def drop_channel(self, channel: Hashable) -> list[LiveBroker]:
        """Remove and return the brokers that registered on a closed connection."""
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
        # Only its own entry: another process may have registered with the same id since.
        if data.broker_addrs.get(broker_id) == address:
            del data.broker_addrs[broker_id]
        if not data.broker_addrs:
            self._drop_name(name)

    def _drop_name(self, name: str) -> None:
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

    # -- changes by operators ------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Remove a topic until a broker with it registers a new version of its topics."""
        self.entries -= len(self._queues.pop(topic, ()))
        self.changes += 1

    def set_write_perm(self, broker_name: str, *, is_writable: bool) -> int:
        """Set or clear the write permission of all topics of a broker; return the number of topics.

        It lasts until the broker registers a new version of its topics. 4.6.0 can only clear it; 4.9 can set
        it again.
        """
        found = [brokers for brokers in self._queues.values() if broker_name in brokers]
        self.changes += 1
        for brokers in found:
            entry = brokers[broker_name]
            perm = entry.perm | PERM_WRITE if is_writable else entry.perm & ~PERM_WRITE
            brokers[broker_name] = msgspec.structs.replace(entry, perm=perm)
        return len(found)

    # -- routes --------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers and queues of a topic; None without any."""
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
        """Return all clusters and brokers."""
        return ClusterInfo(
            broker_addr_table=dict(self._brokers),
            cluster_addr_table={name: sorted(brokers) for name, brokers in self._clusters.items()},
        )

    def topics(self) -> list[str]:
        """Return all topics."""
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of all brokers of a cluster; none for an unknown cluster."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, brokers in self._queues.items() if not names.isdisjoint(brokers)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are topics as well, and one broker's address."""
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *sorted(brokers))]
        addresses = (address for broker in self._brokers.values() for address in broker.broker_addrs.values())
        address = next(addresses, None)
        return names, address

    def unit_topics(self) -> list[str]:
        """Return the topics with the unit flag."""
        return [topic for topic, flag in self._flags() if flag & TopicSysFlag.UNIT]

    def unit_sub_topics(self) -> list[str]:
        """Return the topics with the unit subscription flag."""
        return [topic for topic, flag in self._flags() if flag & TopicSysFlag.UNIT_SUB]

    def unit_sub_un_unit_topics(self) -> list[str]:
        """Return the topics with the unit subscription flag, but without the unit flag."""
        flags = TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB
        return [topic for topic, flag in self._flags() if flag & flags == TopicSysFlag.UNIT_SUB]

    def _flags(self) -> Iterator[tuple[str, int]]:
        """Yield each topic with its flags at the first broker that registered it, as in 4.6.0."""
        for topic, brokers in self._queues.items():
            if brokers:
                yield topic, next(iter(brokers.values())).topic_syn_flag
