"""Groups: consumer groups, their settings, members and lag.

Source: RocketMQ 4.6 DefaultMQAdminExtImpl, ConsumerProgressSubCommand, ResetOffsetByTimeCommand,
CloneGroupOffsetCommand, DeleteSubscriptionGroupCommand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Unpack, cast

import msgspec

from rocketpy.admin.group_settings import (
    GroupChanges,
    GroupSettings,
    check_existing,
    fields_of,
    group_settings,
    raw_group,
)
from rocketpy.admin.requests import AdminRequests, Masters, all_of, masters_of
from rocketpy.admin.reset import OffsetChange, OffsetReset, ResetTo
from rocketpy.admin.topics import Topics
from rocketpy.client.broker_api import create_missing
from rocketpy.client.group_conflicts import Conflict, MemberSettings, find_conflicts, settings_of, texts_of
from rocketpy.client.topic_configs import TopicConfigs
from rocketpy.consumer.fetch.subscription import retry_topic
from rocketpy.consumer.group.conflict_check import members_of, running_data
from rocketpy.errors import BrokerError, ConfigInvalid, RocketError, UsageError
from rocketpy.message.message import check_group
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupWrapper,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode, version_name
from rocketpy.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.runtime.application import shown
from rocketpy.runtime.text import did_you_mean

log: Final = logging.getLogger("rocketpy.client")

_BROADCASTING: Final = "BROADCASTING"


class GroupSummary(NamedTuple):
    """A consumer group."""

    name: str
    """The name of the group."""
    brokers: Mapping[str, GroupSettings]
    """Its settings, by broker name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer that is online."""

    client_id: str
    """Its client id."""
    address: str
    """The address of its connection, as a broker sees it."""
    language: str
    """The language of its client, such as JAVA or PYTHON."""
    version: str
    """The version of RocketMQ whose protocol it speaks, such as 4.6.0."""
    broadcasting: bool
    """Whether it receives all messages, instead of a share of them."""
    brokers: tuple[str, ...]
    """The brokers that it is connected to, sorted."""
    subscriptions: Mapping[str, str]
    """Topic -> filter expression. Brokers of RocketMQ keep them by group, not by member: the newest ones that
    any member has sent. Then `Groups.conflicts` shows whether members differ."""


class QueueLag(NamedTuple):
    """The progress of a group in one queue."""

    end_offset: int
    """The offset that the next message will get."""
    group_offset: int
    """The offset that the group committed; 0 if it has none."""
    last_consumed_ms: int | None
    """When the last consumed message was stored, in ms since 1970; None without one."""
    client_id: str | None = None
    """The member to which the queue is assigned, if `lag` was called with ``with_clients=True``."""
    in_flight: int = 0
    """The number of messages that members handle now: popped and not acknowledged. Brokers of RocketMQ 5 also
    count pulled messages, as far as they know these."""

    @property
    def lag(self) -> int:
        """The number of messages after the group's offset.

        Negative if the offset is beyond the end of the queue, which may have lost messages: the group will
        skip that many.
        """
        return self.end_offset - self.group_offset


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The progress of a group in its queues."""

    queues: Mapping[MessageQueue, QueueLag]
    """The progress by queue, sorted; it includes the queues of its retry topic."""
    messages_per_second: float
    """How many messages it consumes per second, measured by the brokers."""

    @property
    def total(self) -> int:
        """The number of messages that the group has not consumed. Offsets beyond the end reduce no lag."""
        return sum(max(queue.lag, 0) for queue in self.queues.values())

    @property
    def in_flight(self) -> int:
        """The number of messages that members handle now; see `QueueLag.in_flight`."""
        return sum(queue.in_flight for queue in self.queues.values())


class Groups:
    """Consumer groups: `AdminClient.groups`. Each method raises TransportError and BrokerError.

    A method that needs several brokers raises BrokersFailed when some of them fail. Every method can be
    repeated.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._topics = TopicConfigs(requests.call)

    # -- settings -----------------------------------------------------------------------------

    async def list(
        self, cluster: str | None = None, *, include_system: bool = False
    ) -> tuple[GroupSummary, ...]:
        """Return the consumer groups, sorted by name. With a client namespace, only groups in it.

        Args:
            cluster: Only groups on brokers of this cluster.
            include_system: Also the groups that each broker creates for itself.

        Raises:
            ConfigInvalid: There is no such cluster.
        """
        tables = await self._requests.call_all(
            await self._requests.masters(cluster),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            decode=lambda response: SubscriptionGroupWrapper.decode(response.body).subscription_group_table,
        )
        found: dict[str, dict[str, GroupSettings]] = {}
        for broker, table in tables.items():
            for name, config in table.items():
                if include_system or not _is_system(name):
                    found.setdefault(name, {})[broker] = group_settings(config)
        names = self._requests.own(found)
        return tuple(GroupSummary(name, found[self._requests.wrap(name)]) for name in names)

    async def create(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **settings: Unpack[GroupChanges],
    ) -> dict[str, GroupSettings]:
        """Create a consumer group on the brokers that lack it.

        Where it exists, it stays unchanged; `alter` changes it. Only brokers with
        autoCreateSubscriptionGroup=false need this call. Others create a group when its first member joins.

        Args:
            group: The name of the group.
            cluster: Create it on the brokers of this cluster only.
            broker: Create it on the broker of this name only.
            **settings: Its settings; see `GroupSettings` for them and their defaults.

        Returns:
            The settings of the group where it existed and was left unchanged, by broker name.

        Raises:
            GroupInvalid: The name is invalid.
            ConfigInvalid: There is no such cluster or broker, no such setting, or a number is below 0. Or the
                group exists with fewer retry queues than given; then no broker was changed.
            BrokersFailed: Some brokers failed. Its `results` have the settings that were left unchanged, and
                None for brokers on which the group was created.
        """
        name = self._requests.wrap(check_group(group))
        wanted = {**asdict(GroupSettings()), **settings}
        config = {"groupName": name} | fields_of(wanted)

        async def check(existing: Mapping[str, GroupSettings], _: object) -> None:
            check_existing(group, settings.get("retry_queues", 0), existing)

        async def put(address: str | None, broker: str) -> None:
            await self._put_config(address, broker, name, config, cast(int, wanted["retry_queues"]))

        found, errors = await create_missing(
            await self._requests.masters(cluster, broker),
            find=lambda address, broker: self._find_settings(address, broker, name),
            check=check,
            create=put,
        )
        all_of(found, errors)
        return {broker: known for broker, known in found.items() if known is not None}

    async def alter(self, group: str, **changes: Unpack[GroupChanges]) -> None:
        """Change settings of a consumer group on each broker that has it. Other settings stay unchanged.

        A higher `retry_queues` adds the queues to the group's retry topic first.

        Args:
            group: The name of the group.
            **changes: The settings to change; see `GroupSettings`.

        Raises:
            ConfigInvalid: No setting is given, there is no such setting, or a number is below 0.
            BrokerError: No broker has the group.
        """
        fields = fields_of(changes)
        if not fields:
            raise ConfigInvalid(f"group {group} was not changed: give a setting to change")
        masters = await self._requests.masters()
        name = self._requests.wrap(group)
        configs = await self._raw_configs(masters, name)
        if not configs:
            raise await self._missing(group)
        known = {broker: masters[broker] for broker in configs}
        retry_queues = changes.get("retry_queues", 0)
        await self._requests.gather_at(
            known,
            lambda address, broker: self._put_config(
                address, broker, name, configs[broker] | fields, retry_queues
            ),
        )

    async def delete(self, group: str, *, cluster: str | None = None, keep_topics: bool = False) -> None:
        """Delete a consumer group, with its retry topic and dead letters.

        A missing group is not an error. Brokers that create groups by themselves create it again when a
        member is online; a broker of 5.5.0 always does, with default settings.

        Args:
            group: The name of the group.
            cluster: Delete it on the brokers of this cluster only.
            keep_topics: Keep the group's retry topic and its dead letters.

        Raises:
            GroupInvalid: The name is invalid.
            ConfigInvalid: There is no such cluster.
        """
        header = DeleteSubscriptionGroupRequestHeader(group_name=self._requests.wrap(check_group(group)))
        masters = await self._requests.masters(cluster)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        await self._requests.call_all(masters, code, header, decode=lambda _: None)
        if not keep_topics:
            for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
                await Topics(self._requests).delete(prefix + group, cluster=cluster)

    # -- members and progress -----------------------------------------------------------------

    async def members(self, group: str, *, cluster: str | None = None) -> tuple[Member, ...]:
        """Return the members of a group that are online, sorted by client id; none for an unknown group.

        Args:
            group: The name of the group.
            cluster: Only members that are connected to brokers of this cluster.

        Raises:
            ConfigInvalid: There is no such cluster.
        """
        requests = self._requests
        masters = await requests.masters(cluster)
        found = await requests.gather_at(
            masters, lambda address, broker: self._connections(address, broker, group)
        )
        subscriptions = _newest(
            subscription
            for connections in found.values()
            for subscription in connections.subscription_table.values()
        )
        texts = self._texts(subscriptions)
        members: dict[str, Member] = {}
        for broker, connections in found.items():
            for client in connections.connection_set:
                known, own = members.get(client.client_id), client.consumer_data
                model = connections.message_model if own is None else own.message_model
                members[client.client_id] = Member(
                    client_id=client.client_id,
                    address=client.client_addr,
                    language=client.language,
                    version=version_name(client.version),
                    broadcasting=model == _BROADCASTING,
                    brokers=(*(known.brokers if known is not None else ()), broker),
                    subscriptions=texts if own is None else self._texts(_newest(own.subscription_data_set)),
                )
        return tuple(members[client_id] for client_id in sorted(members))

    async def conflicts(self, group: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Return how the members of a group differ that are online, a text for each difference.

        All members must have the same subscriptions, message model, kind (push or pull) and start position,
        and client ids of their own. Otherwise some messages reach no member, or several. If brokers do not
        know the settings of each member, the members are asked; those that do not respond are left out.

        Args:
            group: The name of the group.
            cluster: Only members that are connected to brokers of this cluster.

        Raises:
            ConfigInvalid: There is no such cluster.
        """
        masters = await self._requests.masters(cluster)
        found = await self._requests.gather_at(
            masters, lambda address, broker: self._connections(address, broker, group)
        )
        name, infos, conflicts = self._requests.wrap(group), dict[str, MemberSettings](), list[Conflict]()
        for broker, connections in found.items():
            members = members_of(connections)
            ids = {member.client_id for member in members}
            if len(ids) > 1 and all(member.settings is None for member in members):
                unknown = sorted(ids - infos.keys())
                asked = await asyncio.gather(
                    *(
                        self._running_info(client_id, masters.get(broker), broker, group)
                        for client_id in unknown
                    )
                )
                infos |= {
                    client_id: settings_of(running_data(info, name))
                    for client_id, info in zip(unknown, asked, strict=True)
                    if info is not None
                }
                members = [member._replace(settings=infos.get(member.client_id)) for member in members]
            conflicts += find_conflicts(group, members)
        return tuple(texts_of(conflicts))

    async def lag(
        self, group: str, topic: str | None = None, *, cluster: str | None = None, with_clients: bool = False
    ) -> GroupLag:
        """Return the progress of a group in each of its queues.

        While the group is online, topics that it does not subscribe to are left out.

        Args:
            group: The name of the group.
            topic: Only queues of this topic.
            cluster: Only queues on brokers of this cluster.
            with_clients: Also ask each member for its queues. Queues of a member that does not respond have
                no `client_id`.

        Raises:
            ConfigInvalid: There is no such cluster.
            RouteNotFound: No name server knows the topic, or a broker has no master.
            BrokerError: No broker knows the group: it has neither settings nor offsets nor members.
        """
        requests = self._requests
        name = requests.wrap(group)
        header = GetConsumeStatsRequestHeader(
            consumer_group=name, topic=None if topic is None else requests.wrap(topic)
        )
        masters = await (requests.masters(cluster) if topic is None else requests.masters_of(topic, cluster))
        parts = await requests.call_all(
            masters,
            RequestCode.GET_CONSUME_STATS,
            header,
            decode=lambda response: ConsumeStats.decode(response.body),
        )
        clients = await self._clients(group) if with_clients else {}
        queues = {
            requests.unwrap_queue(queue): QueueLag(
                found.broker_offset,
                found.consumer_offset,
                found.last_timestamp or None,
                clients.get(queue),
                max((found.pull_offset or 0) - found.consumer_offset, 0),
            )
            for part in parts.values()
            for queue, found in part.offset_table.items()
        }
        # Without a topic, brokers list the queues in which the group has offsets; with one, all its queues.
        is_known = (
            (bool(queues) and topic is None)
            or any(queue.group_offset > 0 for queue in queues.values())
            or await self._exists(group)
            or (topic is not None and await self._consumes(group, topic, masters))
        )
        if not is_known:
            raise await self._missing(group)
        return GroupLag(
            {queue: queues[queue] for queue in sorted(queues)},
            sum(part.consume_tps or 0.0 for part in parts.values()),
        )

    # -- changes of offsets -------------------------------------------------------------------

    async def reset(
        self, group: str, topic: str, to: ResetTo, *, dry_run: bool = False
    ) -> dict[MessageQueue, OffsetChange]:
        """Reset the offsets of a group in a topic; return the changes by queue.

        Brokers notify the running members, which continue from the new offsets some seconds later; Java
        members need ten. A member that starts during the call may miss the reset: repeat the call then.

        Args:
            group: The name of the group.
            topic: The name of the topic.
            to: The position from which the group continues.
            dry_run: Only return what would be changed.

        Raises:
            UsageError: `to` is no `ResetTo`, or it is an offset, and members of the group are online.
            BrokerError: No broker knows the group: it has neither settings nor offsets.
            RouteNotFound: No name server knows the topic.
        """
        if not isinstance(to, ResetTo):
            raise ConfigInvalid(f"to is {shown(to)}; write ResetTo.time(...), or another method of ResetTo")
        requests = self._requests
        if to.needs_stopped_members:
            await self._require_stopped(
                group, "offsets can only be reset to a time, the beginning or the end"
            )
        route = await requests.route(topic)
        masters = masters_of(route.broker_datas)
        is_known = await self._consumes(group, topic, masters) or await self._raw_configs(
            masters, requests.wrap(group)
        )
        if not is_known:
            raise await self._missing(group)
        reset = OffsetReset(requests, requests.wrap(check_group(group)), requests.wrap(topic), to)
        changes = await requests.gather(
            {
                data.broker_name: reset.run_at(masters.get(data.broker_name), data, dry_run=dry_run)
                for data in route.queue_datas
            }
        )
        merged = {queue: change for part in changes.values() for queue, change in part.items()}
        return {requests.unwrap_queue(queue): merged[queue] for queue in sorted(merged)}

    async def clone(self, source: str, target: str, topic: str) -> None:
        """Give a group the offsets of another group in a topic.

        Args:
            source: The group with the offsets.
            target: The group that gets them. All of its members must be stopped.
            topic: The name of the topic.

        Raises:
            GroupInvalid: The name of the target is invalid.
            UsageError: Members of the target are online.
            BrokerError: No broker has offsets of the source, and it is not online.
            RouteNotFound: No name server knows the topic.
        """
        requests = self._requests
        header = CloneGroupOffsetRequestHeader(
            src_group=requests.wrap(source),
            dest_group=requests.wrap(check_group(target)),
            topic=requests.wrap(topic),
            offline=True,  # also if online members of the source do not subscribe to the topic
        )
        masters = await requests.masters_of(topic)
        if not await self._consumes(source, topic, masters):
            if not await self._exists(source):
                raise await self._missing(source)
            raise _unknown(f"group {source} has no offsets in topic {topic}")
        await self._require_stopped(target, "its members would overwrite the offsets")
        await requests.call_all(masters, RequestCode.CLONE_GROUP_OFFSET, header, decode=lambda _: None)

    # -- internals ----------------------------------------------------------------------------

    async def _exists(self, group: str) -> bool:
        """Return whether a group has settings or members. Accounts that may not list groups get True."""
        try:
            masters = await self._requests.masters()
            return bool(await self._raw_configs(masters, self._requests.wrap(group))) or bool(
                await self.members(group)
            )
        except RocketError:
            return True

    async def _missing(self, group: str) -> BrokerError:
        """Return the error about a group that no broker knows, with similar names."""
        names: list[str] = []
        with contextlib.suppress(RocketError):
            names = [known.name for known in await self.list(include_system=True)]
        hint = did_you_mean(group, names) or "; create it, or correct its name"
        return _unknown(f"there is no group {group}{hint}")

    async def _consumes(self, group: str, topic: str, masters: Masters) -> bool:
        """Return whether a group has offsets in a topic, or subscribes to it."""
        found = await self._requests.call_all(
            masters,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            QueryTopicConsumeByWhoRequestHeader(topic=self._requests.wrap(topic)),
            decode=lambda response: GroupList.decode(response.body).group_list,
        )
        return any(self._requests.wrap(group) in groups for groups in found.values())

    async def _require_stopped(self, group: str, reason: str) -> None:
        members = await self.members(group)
        if members:
            clients = ", ".join(member.client_id for member in members[:3])
            raise UsageError(
                f"group {group} has {len(members)} members online ({clients}): {reason}. Stop them first"
            )

    async def _put_config(
        self,
        address: str | None,
        broker: str,
        name: str,
        config: Mapping[str, object],
        retry_queues: int,
    ) -> None:
        """Create or change a group at a broker, whose retry topic gets this many queues first.

        Brokers of RocketMQ choose a queue for a retry by the setting of the group. Consumers do not read
        queues that the topic lacks.
        """
        topic = retry_topic(name)
        found = await self._topics.find(address, broker, topic) if retry_queues else None
        if found is not None:  # otherwise the broker creates it with the queues of the group
            enlarged = msgspec.structs.replace(
                found,
                read_queue_nums=max(found.read_queue_nums, retry_queues),
                write_queue_nums=max(found.write_queue_nums, retry_queues),
            )
            if enlarged != found:
                await self._topics.put(address, broker, enlarged)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._requests.call(address, broker, code, body=fastjson.dumps(config))

    async def _find_settings(self, address: str | None, broker: str, name: str) -> GroupSettings | None:
        response = await self._requests.call(address, broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        config = SubscriptionGroupWrapper.decode(response.body).subscription_group_table.get(name)
        return None if config is None else group_settings(config)

    async def _raw_configs(self, masters: Masters, name: str) -> dict[str, dict[str, object]]:
        """Return the settings of a group at each broker that has it; see `raw_group`."""
        found = await self._requests.call_all(
            masters,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            decode=lambda response: raw_group(response.body, name),
        )
        return {broker: config for broker, config in found.items() if config is not None}

    async def _connections(self, address: str | None, broker: str, group: str) -> ConsumerConnection:
        found = await self._requests.members_at(address, broker, self._requests.wrap(group))
        return ConsumerConnection() if found is None else found

    async def _clients(self, group: str) -> dict[MessageQueue, str]:
        """Return the client id of each queue's member. Topics contain the client namespace."""
        members = await self.members(group)
        masters = await self._requests.masters()
        queues = await asyncio.gather(
            *(self._queues_of(member, masters.get(member.brokers[0]), group) for member in members)
        )
        return {
            queue: member.client_id for member, held in zip(members, queues, strict=True) for queue in held
        }

    async def _queues_of(self, member: Member, address: str | None, group: str) -> Collection[MessageQueue]:
        info = await self._running_info(member.client_id, address, member.brokers[0], group)
        return () if info is None else info.mq_table

    async def _running_info(
        self, client_id: str, address: str | None, broker: str, group: str
    ) -> ConsumerRunningInfo | None:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=self._requests.wrap(group), client_id=client_id
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        try:
            response = await self._requests.call(address, broker, code, header)
            return ConsumerRunningInfo.decode(response.body)
        except RocketError as error:  # clients in some languages do not respond
            log.info("member %s of group %s did not report its state: %s", client_id, group, error)
            return None

    def _texts(self, subscriptions: Mapping[str, SubscriptionData]) -> dict[str, str]:
        return {
            self._requests.unwrap(topic): subscriptions[topic].sub_string or ""
            for topic in sorted(subscriptions)
        }


def _unknown(text: str) -> BrokerError:
    return BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text, "each broker")


def _is_system(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def _newest(subscriptions: Iterable[SubscriptionData]) -> dict[str, SubscriptionData]:
    """Return the newest subscription to each topic."""
    found: dict[str, SubscriptionData] = {}
    for subscription in subscriptions:
        if (
            subscription.topic not in found
            or subscription.sub_version > found[subscription.topic].sub_version
        ):
            found[subscription.topic] = subscription
    return found
