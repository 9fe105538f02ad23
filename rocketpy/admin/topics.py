"""Topics: lists topics, with their queues and settings on each broker.

Source: RocketMQ 4.6 DefaultMQAdminExtImpl, UpdateTopicSubCommand, DeleteTopicSubCommand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rocketpy.admin.name_servers import NameServers
from rocketpy.admin.requests import AdminRequests, all_of
from rocketpy.admin.reset import find_bound, find_committed
from rocketpy.client.admin import register_existing
from rocketpy.client.broker_api import create_missing
from rocketpy.client.routing.routes import order_counts
from rocketpy.client.topic_configs import (
    Permission,
    TopicConfigs,
    TopicSettings,
    check_attributes,
    check_existing,
    topic_settings,
    unchanged_topics,
)
from rocketpy.config import check_number
from rocketpy.errors import BrokerError, ConfigInvalid
from rocketpy.message.message import check_topic
from rocketpy.protocol.bodies import (
    ORDER_TOPIC_NAMESPACE,
    BrokerStatsData,
    GroupList,
    MessageQueue,
    TopicConfig,
    TopicStatsTable,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteTopicInNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketpy.runtime.application import shown

_PUT_COUNTS: Final = "TOPIC_PUT_NUMS"
"""The statistics of messages sent to a topic. Source: RocketMQ BrokerStatsManager."""


class QueueOffsets(NamedTuple):
    """The offsets of one queue."""

    min_offset: int
    """The lowest offset that can still be read."""
    max_offset: int
    """The offset that the next message will get."""
    last_stored_ms: int | None
    """When the last message was stored, in ms since 1970; None without one."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, as its brokers know it."""

    name: str
    """The name of the topic."""
    brokers: Mapping[str, TopicSettings]
    """Its settings, by broker name."""
    queues: Mapping[MessageQueue, QueueOffsets]
    """The offsets of its queues that can be written, sorted."""
    groups: tuple[str, ...]
    """The consumer groups that subscribe to it or have offsets in it, sorted."""
    messages_per_second: float
    """The messages sent to it per second, measured by the brokers over a minute."""


class Topics:
    """Topics: `AdminClient.topics`. Each method raises TransportError and BrokerError.

    A method that needs several brokers raises BrokersFailed when some of them fail. Every method can be
    repeated.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._configs = TopicConfigs(requests.call)

    async def list(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[str, ...]:
        """Return the names of the topics, sorted. With a client namespace, only topics in it.

        Args:
            cluster: Only topics of this cluster.
            include_system: Also topics that brokers create themselves, retry topics and dead-letter topics.

        Raises:
            ConfigInvalid: There is no such cluster.
        """
        if cluster is not None:
            await self._requests.masters(cluster)
        return await self._requests.topics(cluster, include_system=include_system)

    async def describe(self, topic: str, *, cluster: str | None = None) -> TopicDescription:
        """Return settings, offsets and consumer groups of a topic.

        Args:
            topic: The name of the topic.
            cluster: Only the part of the topic on brokers of this cluster.

        Raises:
            ConfigInvalid: There is no such cluster.
            RouteNotFound: No name server knows the topic, or a broker of it has no master.
        """
        requests = self._requests
        name = requests.wrap(topic)
        masters = await requests.masters_of(topic, cluster)
        parts = await requests.gather_at(
            masters, lambda address, broker: self._describe_at(address, broker, name)
        )
        offsets = {queue: found for part in parts.values() for queue, found in part.queues.items()}
        return TopicDescription(
            name=topic,
            brokers={broker: part.settings for broker, part in parts.items()},
            queues={requests.unwrap_queue(queue): offsets[queue] for queue in sorted(offsets)},
            groups=tuple(sorted({requests.unwrap(name) for part in parts.values() for name in part.groups})),
            messages_per_second=sum(part.rate for part in parts.values()),
        )

    async def create(
        self,
        topic: str,
        queues: int = 4,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        perm: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> dict[str, TopicSettings]:
        """Create a topic on the brokers that lack it; return when a name server knows it.

        Where it exists, it stays unchanged; `alter` changes it. So this call can be part of a deployment, and
        does not undo what an operator has altered.

        Args:
            topic: The name of the topic.
            queues: The number of queues for reading and for writing, on each broker.
            cluster: Create it on the brokers of this cluster only.
            broker: Create it on the broker of this name only.
            perm: What clients may do with it.
            ordered: Make it an ordered topic: its queues do not change while a broker is down.
            attributes: Attributes of RocketMQ 5, such as ``{"message.type": "FIFO"}``, which its proxies
                check.

        Returns:
            The settings of the topic where it existed and was left unchanged, by broker name.

        Raises:
            TopicInvalid: The name is invalid.
            ConfigInvalid: There is no such cluster or broker, or `queues` is below 1. Or the topic exists
                with fewer queues, or unordered although `ordered` is true; then no broker was changed. Or a
                broker has no attributes, as RocketMQ before 5.0; it has created the topic without them.
            RouteNotFound: There is no broker.
            BrokersFailed: Some brokers failed. Its `results` have the settings that were left unchanged, and
                None for brokers on which the topic was created.
            RequestTimeout: The brokers have the topic, but no name server knows it yet.
        """
        check_number("queues", queues, 1)
        wanted_attributes = attributes or {}
        check_attributes(wanted_attributes)
        requests = self._requests
        masters = await requests.masters(cluster, broker)
        wanted = TopicConfig(
            topic_name=requests.wrap(check_topic(topic)),
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=_perm_value(perm),
            order=ordered,
        )

        async def check(existing: Mapping[str, TopicConfig], missing: Sequence[str]) -> None:
            check_existing(topic, wanted, existing)
            if ordered or len(missing) == len(masters):  # otherwise it keeps its order, or lack of it
                await self._set_ordered_queues(topic, dict.fromkeys(missing, queues if ordered else 0))

        found, errors = await create_missing(
            masters,
            find=lambda address, broker: self._configs.find(address, broker, wanted.topic_name),
            check=check,
            create=lambda address, broker: self._configs.create(
                address, broker, wanted, attributes=wanted_attributes
            ),
        )
        existing = unchanged_topics(found)
        if errors:
            all_of({broker: existing.get(broker) for broker in found}, errors)
        await register_existing(requests.running(), self._configs, masters, found)
        await requests.wait_until_known(topic, found)
        return existing

    async def alter(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Permission | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change settings of a topic on each of its brokers. Other settings stay unchanged.

        To remove queues without loss: lower `write_queues`, wait until consumers have read the removed
        queues, then lower `read_queues`. While a group with offsets in them, or online, has not read all of
        their messages, `read_queues` is not lowered.

        Args:
            topic: The name of the topic.
            read_queues: The number of queues that consumers read, on each broker.
            write_queues: The number of queues that producers write to, on each broker.
            perm: What clients may do with it.
            ordered: Whether it is an ordered topic.
            attributes: Attributes to set, such as ``{"message.type": "FIFO"}``, or to remove with None.

        Raises:
            ConfigInvalid: No setting is given, a number is below 0, the topic would have more queues to
                write than to read, or messages would not be consumed; then no broker was changed. Or a broker
                has no attributes, as RocketMQ before 5.0.
            RouteNotFound: No name server knows the topic.
        """
        changes: dict[str, int | bool] = {}
        for setting, field, count in (
            ("read_queues", "read_queue_nums", read_queues),
            ("write_queues", "write_queue_nums", write_queues),
        ):
            if count is not None:
                check_number(setting, count, 0)
                changes[field] = count
        if perm is not None:
            changes["perm"] = _perm_value(perm)
        if ordered is not None:
            changes["order"] = ordered
        wanted = attributes or {}
        check_attributes(wanted)
        if not changes and not wanted:
            raise ConfigInvalid(f"topic {topic} was not changed: give a setting to change")
        masters = await self._requests.masters_of(topic)
        name = self._requests.wrap(topic)
        found = await self._requests.gather_at(
            masters, lambda address, broker: self._get_config(address, broker, name)
        )
        configs = {broker: msgspec.structs.replace(config, **changes) for broker, config in found.items()}
        if read_queues is not None or write_queues is not None:
            _check_read(topic, configs)
        if read_queues is not None:
            unread = await self._requests.gather_at(
                masters,
                lambda address, broker: self._find_unread(address, broker, found[broker], read_queues),
            )
            _check_unread(topic, read_queues, unread)
        if ordered is not None or write_queues is not None:
            counts = {broker: config.write_queue_nums * config.order for broker, config in configs.items()}
            await self._set_ordered_queues(topic, counts)
        await self._requests.gather_at(
            masters, lambda address, broker: self._configs.put(address, broker, configs[broker], wanted)
        )

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages: at the brokers, then at each name server.

        A missing topic is not an error. Brokers of RocketMQ before 5 keep the offsets of consumer groups,
        which skip messages of a new topic of this name. With autoCreateTopicEnable, a producer that is still
        sending creates the topic again.

        Args:
            topic: The name of the topic.
            cluster: Delete it on the brokers of this cluster only.

        Raises:
            TopicInvalid: The name is invalid.
            ConfigInvalid: There is no such cluster.
        """
        requests = self._requests
        name = requests.wrap(check_topic(topic))
        brokers = await requests.masters()
        masters = brokers if cluster is None else await requests.masters(cluster)
        other_masters = {broker: address for broker, address in brokers.items() if broker not in masters}
        other_configs = await requests.gather_at(
            other_masters, lambda address, broker: self._configs.find(address, broker, name)
        )
        header = DeleteTopicRequestHeader(topic=name)
        await requests.call_all(masters, RequestCode.DELETE_TOPIC_IN_BROKER, header, decode=lambda _: None)
        await self._set_ordered_queues(topic, dict.fromkeys(masters, 0))
        in_namesrv = DeleteTopicInNamesrvRequestHeader(topic=name)
        await requests.call_all_namesrv(RequestCode.DELETE_TOPIC_IN_NAMESRV, in_namesrv)
        # A name server drops the routes of all clusters, and brokers register only topics that change.
        kept = {broker: config for broker, config in other_configs.items() if config is not None}
        await requests.gather(
            {
                broker: self._configs.put(other_masters[broker], broker, config)
                for broker, config in kept.items()
            }
        )
        if kept:
            await requests.wait_until_known(topic, kept)

    # -- internals ----------------------------------------------------------------------------

    async def _describe_at(self, address: str | None, broker: str, name: str) -> _TopicOnBroker:
        requests = self._requests
        config = await self._get_config(address, broker, name)
        stats = await requests.call(
            address, broker, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic=name)
        )
        return _TopicOnBroker(
            settings=topic_settings(config),
            queues={
                queue: QueueOffsets(found.min_offset, found.max_offset, found.last_update_timestamp or None)
                for queue, found in TopicStatsTable.decode(stats.body).offset_table.items()
            },
            groups=await self._groups_at(address, broker, name),
            rate=await self._get_rate(address, broker, name),
        )

    async def _get_rate(self, address: str | None, broker: str, name: str) -> float:
        header = ViewBrokerStatsDataRequestHeader(stats_name=_PUT_COUNTS, stats_key=name)
        try:
            response = await self._requests.call(address, broker, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except BrokerError as error:
            if "not exist" in (error.remark or ""):  # nothing was sent to it since the broker's start
                return 0.0
            raise
        return BrokerStatsData.decode(response.body).stats_minute.tps or 0.0

    async def _get_config(self, address: str | None, broker: str, name: str) -> TopicConfig:
        config = await self._configs.find(address, broker, name)
        if config is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {self._requests.unwrap(name)}", broker
            )
        return config

    async def _find_unread(
        self, address: str | None, broker: str, config: TopicConfig, read_queues: int
    ) -> dict[str, int]:
        """Return how many messages each group has not read of the queues from `read_queues` on."""
        name, requests = config.topic_name, self._requests
        queues = [MessageQueue(name, broker, number) for number in range(read_queues, config.read_queue_nums)]
        if not queues:
            return {}
        ends = [await find_bound(requests, address, queue, RequestCode.GET_MAX_OFFSET) for queue in queues]
        unread: dict[str, int] = {}
        for group in await self._groups_at(address, broker, name):
            members = await requests.members_at(address, broker, group)
            if members is not None and members.message_model == "BROADCASTING":
                continue  # its members have the offsets
            for queue, end in zip(queues, ends, strict=True):
                committed = await find_committed(requests, address, group, queue)
                if committed is not None and committed < end:
                    begin = await find_bound(requests, address, queue, RequestCode.GET_MIN_OFFSET)
                    unread[group] = unread.get(group, 0) + end - max(committed, begin)
        return {requests.unwrap(group): count for group, count in unread.items() if count}

    async def _groups_at(self, address: str | None, broker: str, name: str) -> Sequence[str]:
        header = QueryTopicConsumeByWhoRequestHeader(topic=name)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        return GroupList.decode((await self._requests.call(address, broker, code, header)).body).group_list

    async def _set_ordered_queues(self, topic: str, counts: Mapping[str, int]) -> None:
        """Set at the name servers how many queues of an ordered topic each broker has; 0 removes the broker.

        Call it before the topic is changed at the brokers: they register when a topic changes, and read this
        table at each registration.
        """
        name = self._requests.wrap(topic)
        table = NameServers(self._requests)
        known = dict(order_counts(name, await table.get(ORDER_TOPIC_NAMESPACE, name) or ""))
        wanted = {broker: count for broker, count in {**known, **counts}.items() if count}
        if wanted:
            value = ";".join(f"{broker}:{count}" for broker, count in sorted(wanted.items()))
            await table.put(ORDER_TOPIC_NAMESPACE, name, value)
        elif known:
            await table.delete(ORDER_TOPIC_NAMESPACE, name)


def _perm_value(perm: Permission) -> int:
    try:
        return Permission(perm).value
    except ValueError:
        raise ConfigInvalid(f"perm is {shown(perm)}; write Permission.READ | Permission.WRITE") from None


def _check_read(topic: str, configs: Mapping[str, TopicConfig]) -> None:
    """Raise ConfigInvalid if producers would write to queues that consumers do not read."""
    for broker, config in configs.items():
        reads, writes = config.read_queue_nums, config.write_queue_nums
        if writes > reads:
            raise ConfigInvalid(
                f"topic {topic} was not changed: it would have {writes} queues to write but {reads} to read "
                f"on broker {broker}, and messages in the other queues would not be consumed. To add queues, "
                "raise both numbers; to remove queues, lower write_queues first"
            )


def _check_unread(topic: str, read_queues: int, unread: Mapping[str, Mapping[str, int]]) -> None:
    """Raise ConfigInvalid if consumers could not read messages any more. unread: broker -> group -> count."""
    for broker, groups in unread.items():
        for group, count in groups.items():
            raise ConfigInvalid(
                f"topic {topic} was not changed: group {group} has not read {count} messages in the queues "
                f"from {read_queues} on of broker {broker}. Lower write_queues alone, wait until the group "
                "has read them (or reset its offsets to the end), then lower read_queues"
            )


class _TopicOnBroker(NamedTuple):
    """A topic, as one broker knows it."""

    settings: TopicSettings
    queues: Mapping[MessageQueue, QueueOffsets]
    groups: Sequence[str]
    rate: float
    """Messages sent to it per second."""
