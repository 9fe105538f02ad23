"""Heartbeats of clients, their groups and connections, and the queue locks of orderly consumers.

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener and, for connections
and locks, AdminBrokerProcessor of RocketMQ 4.6.0.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from rocketpy.errors import RocketError, UsageError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    CheckClientRequestBody,
    Connection,
    ConsumerConnection,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    UnlockBatchRequestBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    BrokerFeature,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    HeartbeatResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.sysflag import TopicSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.filter import ExpressionInvalid, bounded, filter_of
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.handlers.pull.pull_checks import ExpressionPolicy
from rocketpy_broker.services.metadata.clients import ClientChannelInfo, ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.locks import QueueLocks
from rocketpy_broker.services.metadata.topics import TopicTable, own_topic
from rocketpy_broker.services.slices import Lasting, Slices, Turns
from rocketpy_broker.store.files.batch_saver import PendingChange
from rocketpy_broker.store.files.disk import system_clock

log = logging.getLogger("rocketpy.broker.clients")

_GROUP_CHARACTERS_MAX: Final = 255
"""Limit of a group's name, which RocketMQ's clients check; its brokers do not."""
_OWNERS_MIN: Final = 4
"""An account or host may create this part of maxConsumerGroups by its heartbeats. Not in RocketMQ."""
_LOCK_BYTES_MAX: Final = 2 << 20
"""Limit of a request to lock or unlock queues, about 25,000 of them. Not in RocketMQ."""
_LOCK_BATCH: Final = 64
"""Number of queues that are locked before the slice may end."""


class _GroupName(msgspec.Struct, rename="camel", gc=False):
    group_name: str


class _GroupNames(msgspec.Struct, rename={"client_id": "clientID", "consumer_data_set": "consumerDataSet"}):
    """The part of a heartbeat that names groups; checked first, since it decodes in a tenth of the time."""

    client_id: str
    consumer_data_set: list[_GroupName] = []


@dataclass(eq=False)
class ClientHandler:
    """Keeps the registry of clients and notifies a group's members when one joins or leaves."""

    clients: ClientRegistry
    groups: SubscriptionGroupTable
    topics: TopicTable
    locks: QueueLocks
    expressions: ExpressionPolicy
    config: ConsumeConfig
    _: KW_ONLY
    slices: Slices
    now_ms: Callable[[], float]
    """A monotonic clock."""
    owner: Callable[[Channel], str]
    """Returns the owner of a connection; see `ClientRegistry`."""
    features: Collection[BrokerFeature] = (BrokerFeature.DEAD_LETTER_REASONS,)
    """Features of the broker, which the response to each heartbeat names."""

    def __post_init__(self) -> None:
        self._limited_log = RateLimitedLog(log)
        self._changed: dict[str, None] = {}
        """Consumer groups whose members are to be notified."""
        self._is_notifying = False
        self._locking = Turns(self.slices)
        self._created: dict[str, set[str]] = {}
        """Account or host -> consumer groups that its heartbeats have created."""
        self._reported: dict[str, Hashable] = {}
        """Group -> state of its conflicts that was logged."""

    @handles(RequestCode.HEART_BEAT)
    def heart_beat(self, channel: Channel, request: Command) -> Command | None:
        """Handle HEART_BEAT. If retry topics are created, the response waits until they are saved.

        Differs: 4.6.0 creates as many groups as a heartbeat names.
        """
        owner = self.owner(channel)
        rejection = self._rejection_of_new_groups(owner, request)
        if rejection is not None:
            log.warning("%s: %s", channel.remote_address, rejection)
            raise Rejected(ResponseCode.SYSTEM_ERROR, rejection)
        beat = HeartbeatData.decode(request.body)
        _check_group_names(beat)
        if not self.clients.reserve(channel, beat, language=request.language):
            text = "the subscriptions of this connection take too much memory; see maxConnectionBytes"
            raise Rejected(ResponseCode.SYSTEM_BUSY, text)
        making = [saving for data in beat.consumer_data_set if (saving := self._prepare_group(data))]
        for data in beat.consumer_data_set:
            data.subscription_data_set = list(map(bounded, data.subscription_data_set))
        changed = self.clients.heartbeat(
            channel,
            beat,
            language=request.language,
            version=request.version,
            now_ms=int(self.now_ms()),
            owner=owner,
        )
        if self.clients.owner_of(beat.client_id) != owner:
            self._limited_log.warning(
                beat.client_id,
                "client id %s of %s is in use: a connection of another owner has registered it, and gets its "
                "replies until it closes; set a different instanceName",
                beat.client_id[:200],
                channel.remote_address,
            )
        self._report_conflicts(channel, beat)
        self._notify(changed)
        header = HeartbeatResponseHeader.of(self.features)
        if beat.without_sub:  # a broker of 5.x, which was at this address before, has them
            header.is_sub_change = True
        response = request.reply(header=header)
        if not making:
            return response

        def saved(_: RocketError | None) -> None:
            """Respond; a failure was logged, and the next heartbeat tries again."""
            if not request.is_oneway:
                channel.reply(response)

        making[-1].waiters.append(saved)
        return None

    def _report_conflicts(self, channel: Channel, beat: HeartbeatData) -> None:
        """Log the conflicts of a client's groups, and another client with its id, once."""
        for data in beat.consumer_data_set:
            state = self.clients.conflict_state(data.group_name)
            if not state or self._reported.get(data.group_name) == state:
                continue
            self._reported[data.group_name] = state
            for one in self.clients.conflicts(data.group_name, attrgetter("remote_address")):
                self._limited_log.warning(f"{one.kind} {data.group_name}", "%s", one.text)
        if beat.producer_data_set and self.clients.is_shared(beat.client_id):
            self._limited_log.warning(
                f"shared {beat.client_id}",
                "producers on several connections have the client id %s, one of them %s: replies to requests "
                "reach only one of them; give each client its own instance_name, or none",
                beat.client_id[:200],
                channel.remote_address,
            )

    def _rejection_of_new_groups(self, owner: str, request: Command) -> str | None:
        """Return the reason to reject a heartbeat with too many new groups; None for an acceptable one."""
        beat = fastjson.decode(request.body, _GroupNames)
        new = {data.group_name for data in beat.consumer_data_set if not self._exists(data.group_name)}
        if not new:
            return None
        if len(new) > self.config.new_groups_max:
            return (
                f"the heartbeat of {beat.client_id[:200]} names {len(new)} consumer groups that this broker "
                f"does not have; the limit of maxNewGroupsPerHeartbeat is {self.config.new_groups_max}"
            )
        return self._rejection_of_owner(owner, new)

    def _exists(self, name: str) -> bool:
        """Whether there are a group and its retry topic."""
        return self.groups.get(name) is not None and self.topics.get(RETRY_TOPIC_PREFIX + name) is not None

    def _rejection_of_owner(self, owner: str, new: set[str]) -> str | None:
        """Return the reason to reject new groups of an account or host; None if it may have them.

        One account must not use up the groups and retry topics of the broker.
        """
        if not owner:  # an address on the allow list
            return None
        limit = max(self.config.groups_max // _OWNERS_MIN, 1)
        created = self._created.get(owner, set())
        if len(created | new) > limit:
            created = set(filter(self._exists, created))
        if len(created | new) > limit:
            return (
                f"the heartbeats of {owner} have created {len(created)} consumer groups, and name {len(new)} "
                f"new ones; the limit is {limit}, a part of maxConsumerGroups. Delete unused groups, or let "
                "an administrator create them"
            )
        self._created[owner] = created.union(name for name in new if len(name) <= _GROUP_CHARACTERS_MAX)
        return None

    def _prepare_group(self, data: ConsumerData) -> PendingChange[Any] | None:
        """Create a consumer's group and its retry topic, if that is configured.

        Returns the pending save of the topic, None if there is nothing to save.
        """
        group = self.groups.find(data.group_name)
        topic = RETRY_TOPIC_PREFIX + data.group_name
        if group is None or self.topics.get(topic) is not None:
            return None
        sys_flag = data.unit_mode * TopicSysFlag.UNIT_SUB
        try:
            return self.topics.create(
                own_topic(topic, group.retry_queue_nums, PERM_READ | PERM_WRITE, sys_flag)
            )
        except UsageError as error:
            log.warning("topic %s is not created: %s", topic[:200], error)
            return None

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: Command) -> Command:
        """Handle UNREGISTER_CLIENT, which a client sends several times (QUIRKS 10)."""
        header = request.header_as(UnregisterClientRequestHeader)
        changed = self.clients.unregister(
            channel, producer_group=header.producer_group, consumer_group=header.consumer_group
        )
        self._notify(changed)
        return request.reply()

    @handles(RequestCode.CHECK_CLIENT_CONFIG)
    def check_config(self, channel: Channel, request: Command) -> Command:
        """Handle CHECK_CLIENT_CONFIG: check whether this broker supports a consumer's filter."""
        body = CheckClientRequestBody.decode(request.body)
        wanted = body.subscription_data
        self.expressions.check(wanted.expression_type, body.group)
        self.expressions.compile(wanted, channel)
        try:
            filter_of(wanted)
        except ExpressionInvalid as error:
            raise Rejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return request.reply()

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUMER_LIST_BY_GROUP."""
        name = request.header_as(GetConsumerListByGroupRequestHeader).consumer_group
        group = self.clients.consumer_group(name)
        if group is None:  # QUIRKS 38
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return request.reply(
            body=GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids).encode()
        )

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUMER_CONNECTION_LIST."""
        name = request.header_as(GetConsumerConnectionListRequestHeader).consumer_group
        group = self.clients.consumer_group(name)
        if group is None:
            raise Rejected(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(
                group.members, group.declared if self.clients.conflict_state(name) else {}
            ),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return request.reply(body=body.encode())

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, channel: Channel, request: Command) -> Command:
        """Handle GET_PRODUCER_CONNECTION_LIST."""
        name = request.header_as(GetProducerConnectionListRequestHeader).producer_group
        members = self.clients.producers(name)
        if not members:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return request.reply(body=ProducerConnection(connection_set=_connections(members)).encode())

    @handles(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_PRODUCER_INFO. Source: ProducerManager of RocketMQ 4.9.7."""
        clients, now_ms, wall_ms = self.clients, self.now_ms(), system_clock()
        table = {
            group: [
                ProducerInfo(
                    client_id=info.client_id,
                    remote_ip=f"/{cast(Channel, member).remote_address}",
                    language=info.language,
                    version=info.version,
                    last_update_timestamp=wall_ms - int(now_ms - info.updated_ms),
                )
                for member, info in clients.producers(group).items()
            ]
            for group in clients.producer_groups
        }
        return request.reply(body=ProducerTableInfo(data=table).encode())

    @handles(RequestCode.LOCK_BATCH_MQ)
    async def lock_queues(self, channel: Channel, request: Command) -> Command:
        """Handle LOCK_BATCH_MQ: lock queues, or renew locks."""
        return await self._locking.run(self._lock(request), channel)

    def _lock(self, request: Command) -> Generator[None, None, Command]:
        _check_lock_size(request)
        wanted = LockBatchRequestBody.decode(request.body)
        got: list[MessageQueue] = []
        for start in range(0, len(wanted.mq_set), _LOCK_BATCH):
            queues = wanted.mq_set[start : start + _LOCK_BATCH]
            got += self.locks.lock(wanted.consumer_group, wanted.client_id, queues, int(self.now_ms()))
            if self.slices.is_over():
                yield
        return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=got).encode())

    @handles(RequestCode.UNLOCK_BATCH_MQ)
    async def unlock_queues(self, channel: Channel, request: Command) -> Command:
        """Handle UNLOCK_BATCH_MQ, also for a client that has disconnected."""
        return await self._locking.run(self._unlock(request), Lasting(channel))

    def _unlock(self, request: Command) -> Generator[None, None, Command]:
        _check_lock_size(request)
        body = UnlockBatchRequestBody.decode(request.body)
        for start in range(0, len(body.mq_set), _LOCK_BATCH):
            self.locks.unlock(body.consumer_group, body.client_id, body.mq_set[start : start + _LOCK_BATCH])
            if self.slices.is_over():
                yield
        return request.reply()

    def drop_expired_locks(self) -> Awaitable[None]:
        """Remove the locks that have expired."""
        return self.slices.run_upkeep(self._drop_locks())

    def _drop_locks(self) -> Generator[None, None, None]:
        for _ in self.locks.drop_expired(int(self.now_ms())):
            if self.slices.is_over():
                yield

    def channel_closed(self, channel: Channel) -> None:
        """Remove the clients of a closed channel."""
        self._notify(self.clients.drop_channel(channel))

    def drop_inactive(self) -> None:
        """Remove the clients that sent no heartbeat for too long."""
        self._notify(self.clients.drop_inactive(int(self.now_ms())))
        existing = {owner: set(filter(self._exists, names)) for owner, names in self._created.items()}
        self._created = {owner: names for owner, names in existing.items() if names}
        self._reported = {
            name: state for name, state in self._reported.items() if self.clients.conflict_state(name)
        }

    def _notify(self, changed: Iterable[str]) -> None:
        """Notify all members of these groups, also new ones, to rebalance (QUIRKS 41).

        A group may have thousands of members. Changes during its notification cause one more.
        """
        self._changed.update(dict.fromkeys(changed))
        if self._changed and not self._is_notifying:
            self._is_notifying = True
            self.slices.start(self._notify_members())

    def _notify_members(self) -> Iterator[None]:
        while self._changed:
            name = next(iter(self._changed))
            del self._changed[name]
            group = self.clients.consumer_group(name)
            settings = self.groups.get(name)
            if group is None or not self.config.notify_ids_changed:
                continue
            if settings is not None and not settings.notify_consumer_ids_changed_enable:
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=name)
            for channel in list(group.members):
                with contextlib.suppress(RocketError):  # a closing channel needs no notification
                    cast(Channel, channel).oneway(
                        Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
                    )
                if self.slices.is_over():
                    yield
        self._is_notifying = False


def _check_group_names(beat: HeartbeatData) -> None:
    """Raise Rejected for a name that no RocketMQ client accepts. Names are labels of metrics."""
    names = [data.group_name for data in beat.producer_data_set]
    names += [data.group_name for data in beat.consumer_data_set]
    for name in names:
        if len(name) > _GROUP_CHARACTERS_MAX:
            text = f"group {name[:20]!r}...: {len(name)} characters, the limit is {_GROUP_CHARACTERS_MAX}"
            raise Rejected(ResponseCode.SYSTEM_ERROR, text)


def _check_lock_size(request: Command) -> None:
    """Raise Rejected for a request that names too many queues: it is decoded in one step."""
    if len(request.body) > _LOCK_BYTES_MAX:
        text = f"the request has {len(request.body)} bytes, more than {_LOCK_BYTES_MAX}: name fewer queues"
        raise Rejected(ResponseCode.SYSTEM_ERROR, text)


def _connections(
    members: Mapping[Hashable, ClientChannelInfo], declared: Mapping[Hashable, ConsumerData] | None = None
) -> list[Connection]:
    return [
        Connection(
            client_id=info.client_id,
            client_addr=cast(Channel, channel).remote_address,
            language=info.language,
            version=info.version,
            consumer_data=None if declared is None else declared.get(channel),
        )
        for channel, info in members.items()
    ]
