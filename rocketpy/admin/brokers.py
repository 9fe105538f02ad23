"""Brokers: lists them, with their state, settings and statistics.

Source: RocketMQ 4.6 DefaultMQAdminExt; mqadmin's commands clusterList, brokerStatus, getBrokerConfig,
updateBrokerConfig, wipeWritePerm, producerConnection, statsAll, cleanExpiredCQ, cleanUnusedTopic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpy.admin.drain import Drain, DrainPlan, DrainProgress
from rocketpy.admin.requests import AdminRequests
from rocketpy.errors import BrokerError, RocketError
from rocketpy.protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    Connection,
    KVTable,
    ProducerConnection,
    decode_settings,
    encode_settings,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode, version_name
from rocketpy.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    GetProducerConnectionListRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

_NO_PRODUCERS: Final = "not exist"
"""Part of the remark of a broker that knows no producer of the group: RocketMQ has no code for this error."""


@dataclass(frozen=True)
class BrokerSummary:
    """One broker, as `Brokers.list` finds it."""

    cluster: str
    """The name of its cluster."""
    name: str
    """Its name, which a master and its slaves share."""
    broker_id: int
    """0 for a master."""
    address: str
    """Its address for clients."""
    version: str | None
    """Its version, such as ``V4_6_0``; None if it did not respond."""
    in_per_second: float | None
    """Messages stored per second, over the last 10 s; None if it did not respond."""
    out_per_second: float | None
    """Messages delivered per second, over the last 10 s; None if it did not respond."""
    error: RocketError | None
    """The error of its request for this summary; None if it responded."""


class StatsPeriod(NamedTuple):
    """A statistic over a period."""

    total: int
    """The sum of its values."""
    per_second: float
    """The sum, divided by the seconds of the period."""
    average: float
    """The average value."""


class BrokerStatistic(NamedTuple):
    """A statistic of a broker, over its last minute, hour and day."""

    minute: StatsPeriod
    hour: StatsPeriod
    day: StatsPeriod


class ProducerMember(NamedTuple):
    """A producer that is online."""

    client_id: str
    """Its client id."""
    address: str
    """The address of its connection, as a broker sees it."""
    language: str
    """The language of its client, such as JAVA or PYTHON."""
    version: str
    """The version of RocketMQ whose protocol it speaks, such as 4.6.0."""
    brokers: tuple[str, ...]
    """The brokers that it is connected to, sorted."""


class Brokers:
    """Brokers: ``admin.brokers``.

    Every method raises ClientClosed, TransportError and BrokerError. A method with the argument `address`
    sends its request to that broker, which may be a slave.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def list(self, cluster: str | None = None) -> tuple[BrokerSummary, ...]:
        """Return every broker that a name server knows, sorted by cluster, name and id.

        A broker that does not respond is listed with its error.

        Args:
            cluster: Only the brokers of this cluster.

        Raises:
            ConfigInvalid: A name server does not know the cluster.
        """
        found = await self._requests.cluster(cluster)
        members = [
            (own_cluster, name, broker_id, address)
            for own_cluster, names in sorted(found.cluster_addr_table.items())
            if cluster in (None, own_cluster)
            for name in sorted(names)
            if name in found.broker_addr_table
            for broker_id, address in sorted(found.broker_addr_table[name].broker_addrs.items())
        ]
        return tuple(await asyncio.gather(*(self._summary(*member) for member in members)))

    async def _summary(self, cluster: str, name: str, broker_id: int, address: str) -> BrokerSummary:
        try:
            state = await self.runtime(address)
        except RocketError as error:
            return BrokerSummary(cluster, name, broker_id, address, None, None, None, error)
        return BrokerSummary(
            cluster,
            name,
            broker_id,
            address,
            state.get("brokerVersionDesc"),
            _first_rate(state.get("putTps")),
            _first_rate(state.get("getTransferedTps") or state.get("getTransferredTps")),  # 4.x or 5.x
            None,
        )

    async def runtime(self, address: str) -> dict[str, str]:
        """Return the runtime info of a broker: texts by RocketMQ's names, such as ``msgPutTotalTodayNow``.

        Args:
            address: The address of the broker, as in `BrokerSummary.address`.
        """
        response = await self._requests.call(address, address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(response.body).table

    async def config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker by their names in broker.conf.

        Args:
            address: The address of the broker.
        """
        response = await self._requests.call(address, address, RequestCode.GET_BROKER_CONFIG)
        return decode_settings(response.body)

    async def set_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker.

        A rocketpy broker allows this with ``remoteConfigUpdateEnable=true`` in its file, and for few
        settings.

        Args:
            address: The address of the broker.
            changes: New values by name, as in broker.conf.

        Raises:
            BrokerError: The broker rejected the changes; nothing has changed.
        """
        code = RequestCode.UPDATE_BROKER_CONFIG
        await self._requests.call(address, address, code, body=encode_settings(changes))

    async def stats(self, address: str, name: str, key: str) -> BrokerStatistic:
        """Return a statistic of a broker.

        Args:
            address: The address of the broker.
            name: ``TOPIC_PUT_NUMS``, ``TOPIC_PUT_SIZE``, ``GROUP_GET_NUMS``, ``GROUP_GET_SIZE``,
                ``SNDBCK_PUT_NUMS``, ``BROKER_PUT_NUMS`` or ``BROKER_GET_NUMS``.
            key: A topic, ``topic@group``, or for the last two the cluster.

        Raises:
            BrokerError: The broker has counted nothing for this name and key since its start.
        """
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        response = await self._requests.call(address, address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        found = BrokerStatsData.decode(response.body)
        return BrokerStatistic(*map(_period, (found.stats_minute, found.stats_hour, found.stats_day)))

    async def producers(self, group: str) -> tuple[ProducerMember, ...]:
        """Return the producers of a group that are online, sorted by client id; none for an unknown group.

        Brokers know a producer from its first heartbeat on.

        Args:
            group: The name of the producer group.

        Raises:
            RouteNotFound: There is no broker, or one has no master.
            BrokersFailed: Some brokers failed.
        """
        requests = self._requests
        masters = await requests.masters()
        found = await requests.gather_at(
            masters, lambda address, broker: self._producers_at(address, broker, group)
        )
        members: dict[str, ProducerMember] = {}
        for broker, connections in found.items():
            for connection in connections:
                known = members.get(connection.client_id)
                brokers = (*(known.brokers if known is not None else ()), broker)
                members[connection.client_id] = ProducerMember(
                    connection.client_id,
                    connection.client_addr,
                    connection.language,
                    version_name(connection.version),
                    brokers,
                )
        return tuple(members[client_id] for client_id in sorted(members))

    async def _producers_at(self, address: str | None, broker: str, group: str) -> Sequence[Connection]:
        header = GetProducerConnectionListRequestHeader(producer_group=self._requests.wrap(group))
        try:
            response = await self._requests.call(
                address, broker, RequestCode.GET_PRODUCER_CONNECTION_LIST, header
            )
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and _NO_PRODUCERS in (error.remark or ""):
                return []
            raise
        return ProducerConnection.decode(response.body).connection_set

    # -- changes ------------------------------------------------------------------------------

    async def wipe_write_permission(self, broker: str) -> int:
        """Have every name server hide a broker from producers, for instance before it is stopped.

        The broker stays hidden until `add_write_permission`, or until it registers changed topics.

        Args:
            broker: The name of the broker.

        Returns:
            The highest number of topics that a name server has changed.

        Raises:
            BrokersFailed: Some name servers failed; the call may be repeated.
        """
        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker)
        found = await self._requests.call_all_namesrv(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return max(
            response.header_as(WipeWritePermOfBrokerResponseHeader).wipe_topic_count
            for response in found.values()
        )

    async def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`. Name servers of RocketMQ support it from 4.9 on.

        With older name servers, the broker restores the permission when its topics change, or at a restart.

        Args:
            broker: The name of the broker.

        Returns:
            The highest number of topics that a name server has changed.

        Raises:
            BrokersFailed: Some name servers failed; the call may be repeated.
        """
        header = AddWritePermOfBrokerRequestHeader(broker_name=broker)
        found = await self._requests.call_all_namesrv(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return max(
            response.header_as(AddWritePermOfBrokerResponseHeader).add_topic_count
            for response in found.values()
        )

    async def plan_drain(self, broker: str) -> DrainPlan:
        """Return what `drain` would do, and change nothing.

        Args:
            broker: The name of the broker.

        Raises:
            RouteNotFound: No name server knows a master with this name.
            BrokersFailed: Some brokers failed.
        """
        return await Drain(self._requests, broker).plan()

    async def drain(
        self,
        broker: str,
        *,
        wait_ms: float = 35_000,
        quiet_ms: float = 5_000,
        on_progress: Callable[[DrainProgress], object] | None = None,
    ) -> DrainPlan:
        """Move producers from a broker to others; return when it can be stopped without a failed send.

        It wipes the write permission. Then it waits until producers have fresh routes, the broker stores no
        more messages, and its slaves have all messages. Delayed messages and retries that the broker stores
        count, too. There is no time limit: cancel the call to stop waiting.

        The broker stays hidden from producers until its next start, or `add_write_permission`.

        Args:
            broker: The name of the broker.
            wait_ms: The minimum time to wait. It must be longer than the interval in which producers refresh
                routes (30 s by default).
            quiet_ms: For how long the broker must store no message.
            on_progress: Called about once a second.

        Returns:
            The plan that was carried out.

        Raises:
            ConfigInvalid: `wait_ms` or `quiet_ms` is too small.
            RouteNotFound: No name server knows a master with this name, or no other broker has its topics.
            BrokersFailed: Some brokers or name servers failed; the call may be repeated.
        """
        return await Drain(self._requests, broker).run(wait_ms, quiet_ms, on_progress)

    async def clean_expired_queues(self, cluster: str | None = None) -> None:
        """Have every master delete the queues whose messages have all expired.

        Raises:
            BrokersFailed: Some brokers failed; the call may be repeated.
        """
        await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster)

    async def clean_unused_topics(self, cluster: str | None = None) -> None:
        """Have every master delete the queues of topics that do not exist any more.

        Raises:
            BrokersFailed: Some brokers failed; the call may be repeated.
        """
        await self._clean(RequestCode.CLEAN_UNUSED_TOPIC, cluster)

    async def _clean(self, code: RequestCode, cluster: str | None) -> None:
        targets = await self._requests.masters(cluster)
        await self._requests.call_all(targets, code, decode=lambda _: None)


def _first_rate(text: str | None) -> float | None:
    """Return the first rate of a text, that of the last 10 s; 0 for an empty text, None if invalid."""
    words = (text or "").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return None


def _period(item: BrokerStatsItem) -> StatsPeriod:
    return StatsPeriod(item.sum, item.tps or 0.0, item.avgpt or 0.0)
