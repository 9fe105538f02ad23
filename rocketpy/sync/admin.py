"""The parts of the blocking `AdminClient`; see those of `rocketpy.AdminClient`.

Written by python -m tools.blocking_admin --write; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Unpack

from rocketpy.admin import accounts, brokers, dead_letters, groups, messages, name_servers, topics
from rocketpy.admin.accounts import AccessRules, RulesVersion
from rocketpy.admin.brokers import BrokerStatistic, BrokerSummary, ProducerMember
from rocketpy.admin.dead_letters import DeadLetters, ResendProgress
from rocketpy.admin.drain import DrainPlan, DrainProgress
from rocketpy.admin.group_settings import GroupChanges, GroupSettings
from rocketpy.admin.groups import GroupLag, GroupSummary, Member
from rocketpy.admin.messages import Delivery, MessageTrack
from rocketpy.admin.reset import OffsetChange, ResetTo
from rocketpy.admin.topics import TopicDescription
from rocketpy.admin.traces import Traces
from rocketpy.client.message_index import FOREVER_MS, QueryResult
from rocketpy.client.topic_configs import Permission, TopicSettings
from rocketpy.message.message import TRACE_TOPIC, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult
from rocketpy.sync.blocking import BlockingPart
from rocketpy.sync.loop_thread import iterate


class Accounts(BlockingPart[accounts.Accounts]):
    """See `rocketpy.admin.accounts.Accounts`."""

    def list(self, cluster: str | None = None) -> dict[str, AccessRules]:
        """See `rocketpy.admin.accounts.Accounts.list`."""
        return self._loop_thread().run(self._inner.list(cluster))

    def versions(self, cluster: str | None = None) -> dict[str, RulesVersion]:
        """See `rocketpy.admin.accounts.Accounts.versions`."""
        return self._loop_thread().run(self._inner.versions(cluster))

    def put(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        white_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Mapping[str, str] | None = None,
        group_perms: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """See `rocketpy.admin.accounts.Accounts.put`."""
        self._loop_thread().run(
            self._inner.put(
                access_key,
                secret_key,
                admin=admin,
                white_address=white_address,
                default_topic_perm=default_topic_perm,
                default_group_perm=default_group_perm,
                topic_perms=topic_perms,
                group_perms=group_perms,
                cluster=cluster,
            )
        )

    def delete(self, access_key: str, *, cluster: str | None = None) -> None:
        """See `rocketpy.admin.accounts.Accounts.delete`."""
        self._loop_thread().run(self._inner.delete(access_key, cluster=cluster))

    def set_white_addresses(self, addresses: Iterable[str], *, cluster: str | None = None) -> None:
        """See `rocketpy.admin.accounts.Accounts.set_white_addresses`."""
        self._loop_thread().run(self._inner.set_white_addresses(addresses, cluster=cluster))


class Brokers(BlockingPart[brokers.Brokers]):
    """See `rocketpy.admin.brokers.Brokers`."""

    def list(self, cluster: str | None = None) -> tuple[BrokerSummary, ...]:
        """See `rocketpy.admin.brokers.Brokers.list`."""
        return self._loop_thread().run(self._inner.list(cluster))

    def runtime(self, address: str) -> dict[str, str]:
        """See `rocketpy.admin.brokers.Brokers.runtime`."""
        return self._loop_thread().run(self._inner.runtime(address))

    def config(self, address: str) -> dict[str, str]:
        """See `rocketpy.admin.brokers.Brokers.config`."""
        return self._loop_thread().run(self._inner.config(address))

    def set_config(self, address: str, changes: Mapping[str, str]) -> None:
        """See `rocketpy.admin.brokers.Brokers.set_config`."""
        self._loop_thread().run(self._inner.set_config(address, changes))

    def stats(self, address: str, name: str, key: str) -> BrokerStatistic:
        """See `rocketpy.admin.brokers.Brokers.stats`."""
        return self._loop_thread().run(self._inner.stats(address, name, key))

    def producers(self, group: str) -> tuple[ProducerMember, ...]:
        """See `rocketpy.admin.brokers.Brokers.producers`."""
        return self._loop_thread().run(self._inner.producers(group))

    def wipe_write_permission(self, broker: str) -> int:
        """See `rocketpy.admin.brokers.Brokers.wipe_write_permission`."""
        return self._loop_thread().run(self._inner.wipe_write_permission(broker))

    def add_write_permission(self, broker: str) -> int:
        """See `rocketpy.admin.brokers.Brokers.add_write_permission`."""
        return self._loop_thread().run(self._inner.add_write_permission(broker))

    def plan_drain(self, broker: str) -> DrainPlan:
        """See `rocketpy.admin.brokers.Brokers.plan_drain`."""
        return self._loop_thread().run(self._inner.plan_drain(broker))

    def drain(
        self,
        broker: str,
        *,
        wait_ms: float = 35000,
        quiet_ms: float = 5000,
        on_progress: Callable[[DrainProgress], object] | None = None,
    ) -> DrainPlan:
        """See `rocketpy.admin.brokers.Brokers.drain`."""
        return self._loop_thread().run(
            self._inner.drain(broker, wait_ms=wait_ms, quiet_ms=quiet_ms, on_progress=on_progress)
        )

    def clean_expired_queues(self, cluster: str | None = None) -> None:
        """See `rocketpy.admin.brokers.Brokers.clean_expired_queues`."""
        self._loop_thread().run(self._inner.clean_expired_queues(cluster))

    def clean_unused_topics(self, cluster: str | None = None) -> None:
        """See `rocketpy.admin.brokers.Brokers.clean_unused_topics`."""
        self._loop_thread().run(self._inner.clean_unused_topics(cluster))


class DeadLetterQueues(BlockingPart[dead_letters.DeadLetterQueues]):
    """See `rocketpy.admin.dead_letters.DeadLetterQueues`."""

    def groups(self) -> tuple[str, ...]:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.groups`."""
        return self._loop_thread().run(self._inner.groups())

    def count(self, group: str) -> int:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.count`."""
        return self._loop_thread().run(self._inner.count(group))

    def fetch(
        self,
        group: str,
        max_count: int = 1000,
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
        make_readable: bool = True,
    ) -> DeadLetters:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.fetch`."""
        return self._loop_thread().run(
            self._inner.fetch(group, max_count, offsets=offsets, make_readable=make_readable)
        )

    def read(self, group: str, *, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[MessageExt]:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.read`."""
        return iterate(self._loop_thread(), self._inner.read(group, begin_ms=begin_ms, end_ms=end_ms))

    def resend(self, message: MessageExt) -> SendResult:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.resend`."""
        return self._loop_thread().run(self._inner.resend(message))

    def resend_all(
        self,
        group: str,
        *,
        wanted: Callable[[MessageExt], bool] | None = None,
        offsets: Mapping[MessageQueue, int] | None = None,
        on_progress: Callable[[ResendProgress], object] | None = None,
    ) -> ResendProgress:
        """See `rocketpy.admin.dead_letters.DeadLetterQueues.resend_all`."""
        return self._loop_thread().run(
            self._inner.resend_all(group, wanted=wanted, offsets=offsets, on_progress=on_progress)
        )


class Groups(BlockingPart[groups.Groups]):
    """See `rocketpy.admin.groups.Groups`."""

    def list(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[GroupSummary, ...]:
        """See `rocketpy.admin.groups.Groups.list`."""
        return self._loop_thread().run(self._inner.list(cluster, include_system=include_system))

    def create(
        self, group: str, *, cluster: str | None = None, **settings: Unpack[GroupChanges]
    ) -> dict[str, GroupSettings]:
        """See `rocketpy.admin.groups.Groups.create`."""
        return self._loop_thread().run(self._inner.create(group, cluster=cluster, **settings))

    def alter(self, group: str, **changes: Unpack[GroupChanges]) -> None:
        """See `rocketpy.admin.groups.Groups.alter`."""
        self._loop_thread().run(self._inner.alter(group, **changes))

    def delete(self, group: str, *, cluster: str | None = None, keep_topics: bool = False) -> None:
        """See `rocketpy.admin.groups.Groups.delete`."""
        self._loop_thread().run(self._inner.delete(group, cluster=cluster, keep_topics=keep_topics))

    def members(self, group: str, *, cluster: str | None = None) -> tuple[Member, ...]:
        """See `rocketpy.admin.groups.Groups.members`."""
        return self._loop_thread().run(self._inner.members(group, cluster=cluster))

    def conflicts(self, group: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """See `rocketpy.admin.groups.Groups.conflicts`."""
        return self._loop_thread().run(self._inner.conflicts(group, cluster=cluster))

    def lag(
        self, group: str, topic: str | None = None, *, cluster: str | None = None, with_clients: bool = False
    ) -> GroupLag:
        """See `rocketpy.admin.groups.Groups.lag`."""
        return self._loop_thread().run(
            self._inner.lag(group, topic, cluster=cluster, with_clients=with_clients)
        )

    def reset(
        self, group: str, topic: str, to: ResetTo, *, dry_run: bool = False
    ) -> dict[MessageQueue, OffsetChange]:
        """See `rocketpy.admin.groups.Groups.reset`."""
        return self._loop_thread().run(self._inner.reset(group, topic, to, dry_run=dry_run))

    def clone(self, source: str, target: str, topic: str) -> None:
        """See `rocketpy.admin.groups.Groups.clone`."""
        self._loop_thread().run(self._inner.clone(source, target, topic))


class Messages(BlockingPart[messages.Messages]):
    """See `rocketpy.admin.messages.Messages`."""

    def by_id(self, message_id: str) -> MessageExt:
        """See `rocketpy.admin.messages.Messages.by_id`."""
        return self._loop_thread().run(self._inner.by_id(message_id))

    def by_unique_id(self, topic: str, unique_id: str) -> MessageExt:
        """See `rocketpy.admin.messages.Messages.by_unique_id`."""
        return self._loop_thread().run(self._inner.by_unique_id(topic, unique_id))

    def by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """See `rocketpy.admin.messages.Messages.by_key`."""
        return self._loop_thread().run(
            self._inner.by_key(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)
        )

    def by_offset(self, queue: MessageQueue, offset: int) -> MessageExt:
        """See `rocketpy.admin.messages.Messages.by_offset`."""
        return self._loop_thread().run(self._inner.by_offset(queue, offset))

    def by_time(self, topic: str, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[MessageExt]:
        """See `rocketpy.admin.messages.Messages.by_time`."""
        return iterate(self._loop_thread(), self._inner.by_time(topic, begin_ms, end_ms))

    def of_queue(self, queue: MessageQueue, begin: int = 0, end: int | None = None) -> Iterator[MessageExt]:
        """See `rocketpy.admin.messages.Messages.of_queue`."""
        return iterate(self._loop_thread(), self._inner.of_queue(queue, begin, end))

    def traces(self, key: str, *, topic: str = TRACE_TOPIC, max_count: int = 64) -> Traces:
        """See `rocketpy.admin.messages.Messages.traces`."""
        return self._loop_thread().run(self._inner.traces(key, topic=topic, max_count=max_count))

    def consumers_of(self, message: MessageExt) -> tuple[MessageTrack, ...]:
        """See `rocketpy.admin.messages.Messages.consumers_of`."""
        return self._loop_thread().run(self._inner.consumers_of(message))

    def deliver(self, message: MessageExt, group: str, client_id: str) -> Delivery:
        """See `rocketpy.admin.messages.Messages.deliver`."""
        return self._loop_thread().run(self._inner.deliver(message, group, client_id))

    def resend(
        self, message: MessageExt, *, topic: str | None = None, group: str | None = None
    ) -> SendResult:
        """See `rocketpy.admin.messages.Messages.resend`."""
        return self._loop_thread().run(self._inner.resend(message, topic=topic, group=group))


class NameServers(BlockingPart[name_servers.NameServers]):
    """See `rocketpy.admin.name_servers.NameServers`."""

    def get(self, namespace: str, key: str) -> str | None:
        """See `rocketpy.admin.name_servers.NameServers.get`."""
        return self._loop_thread().run(self._inner.get(namespace, key))

    def namespace(self, namespace: str) -> dict[str, str]:
        """See `rocketpy.admin.name_servers.NameServers.namespace`."""
        return self._loop_thread().run(self._inner.namespace(namespace))

    def put(self, namespace: str, key: str, value: str) -> None:
        """See `rocketpy.admin.name_servers.NameServers.put`."""
        self._loop_thread().run(self._inner.put(namespace, key, value))

    def delete(self, namespace: str, key: str) -> None:
        """See `rocketpy.admin.name_servers.NameServers.delete`."""
        self._loop_thread().run(self._inner.delete(namespace, key))

    def config(self) -> dict[str, dict[str, str]]:
        """See `rocketpy.admin.name_servers.NameServers.config`."""
        return self._loop_thread().run(self._inner.config())

    def set_config(self, changes: Mapping[str, str]) -> None:
        """See `rocketpy.admin.name_servers.NameServers.set_config`."""
        self._loop_thread().run(self._inner.set_config(changes))


class Topics(BlockingPart[topics.Topics]):
    """See `rocketpy.admin.topics.Topics`."""

    def list(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[str, ...]:
        """See `rocketpy.admin.topics.Topics.list`."""
        return self._loop_thread().run(self._inner.list(cluster, include_system=include_system))

    def describe(self, topic: str, *, cluster: str | None = None) -> TopicDescription:
        """See `rocketpy.admin.topics.Topics.describe`."""
        return self._loop_thread().run(self._inner.describe(topic, cluster=cluster))

    def create(
        self,
        topic: str,
        queues: int = 4,
        *,
        cluster: str | None = None,
        perm: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
    ) -> dict[str, TopicSettings]:
        """See `rocketpy.admin.topics.Topics.create`."""
        return self._loop_thread().run(
            self._inner.create(topic, queues, cluster=cluster, perm=perm, ordered=ordered)
        )

    def alter(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Permission | None = None,
        ordered: bool | None = None,
    ) -> None:
        """See `rocketpy.admin.topics.Topics.alter`."""
        self._loop_thread().run(
            self._inner.alter(
                topic, read_queues=read_queues, write_queues=write_queues, perm=perm, ordered=ordered
            )
        )

    def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """See `rocketpy.admin.topics.Topics.delete`."""
        self._loop_thread().run(self._inner.delete(topic, cluster=cluster))
