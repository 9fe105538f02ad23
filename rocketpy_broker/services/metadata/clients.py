"""The online clients of a broker: the members of producer and consumer groups, by their heartbeats.

A client is removed when its channel closes, when it unregisters, or after 120 s without a heartbeat.

A client id belongs to the channel that registered it. A channel of the same owner takes it over, since a
client may reconnect before its old connection closes. The owner is the account of the channel or, without
access control, its remote host. Channels of other owners may send heartbeats with that id, but get no
replies.

Two clients that share an id take it from each other with each heartbeat. `ClientRegistry.conflicts` reports
them, and members of a group with different settings.

Source: ProducerManager, ConsumerManager of RocketMQ 4.6.0; there, the last channel gets the replies.
No I/O or clock: `now_ms` is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketpy.client.group_conflicts import (
    CLIENT_ID,
    Conflict,
    MemberSettings,
    MemberView,
    find_conflicts,
    settings_of,
)
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData

EXPIRED_MS: Final = 120_000
_ID_CHARACTERS_MAX: Final = 1024
"""A longer client id has no owner and gets no replies."""
_SHARED_MAX: Final = 1024
"""Client ids in use by several clients that are remembered."""

_PRODUCER: Final = "producer"
_CONSUMER: Final = "consumer"
_MEMBER_BYTES: Final = 512
"""Memory of a member without its texts, including the entry of its group."""
_SUBSCRIPTION_BYTES: Final = 768
_TAG_BYTES: Final = 96
_CODE_BYTES: Final = 64
"""Memory of a tag and of its hash code, including their entries in a set."""


@dataclass(slots=True)
class ClientChannelInfo:
    """One client on one channel."""

    client_id: str
    language: str
    """As in its requests."""
    version: int
    """As in its requests."""
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A group with at least one member."""

    name: str
    members: dict[Hashable, ClientChannelInfo] = field(default_factory=dict)
    declared: dict[Hashable, ConsumerData] = field(default_factory=dict)
    """What each member has sent in its last heartbeat."""
    _settings: dict[Hashable, MemberSettings] = field(default_factory=dict)
    _variants: Counter[MemberSettings] = field(default_factory=Counter)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """Topic -> the newest subscription of all members."""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None

    @property
    def client_ids(self) -> list[str]:
        """The client ids of the members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    @property
    def variants(self) -> frozenset[MemberSettings]:
        """The different settings of the members; more than one is a conflict."""
        return frozenset(self._variants)

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the channel of one member; None if it is not online."""
        return next((channel for channel, info in self.members.items() if info.client_id == client_id), None)

    def views(self, address_of: Callable[[Any], str]) -> list[MemberView]:
        """Return the members for `find_conflicts`. address_of: returns the address of a channel."""
        return [
            MemberView(info.client_id, address_of(channel), self._settings.get(channel))
            for channel, info in self.members.items()
        ]

    def remove(self, channel: Hashable) -> bool:
        """Remove a member. Returns whether the channel was one."""
        if self.members.pop(channel, None) is None:
            return False
        self.declared.pop(channel, None)
        self._count(channel, None)
        return True

    def _count(self, channel: Hashable, settings: MemberSettings | None) -> None:
        before = self._settings.pop(channel, None)
        if before is not None:
            self._variants[before] -= 1
            if not self._variants[before]:
                del self._variants[before]
        if settings is not None:
            self._settings[channel] = settings
            self._variants[settings] += 1

    def update(self, channel: Hashable, data: ConsumerData, *, keeps_subscriptions: bool) -> bool:
        """Update the group from a heartbeat. Subscriptions to topics that it does not name are removed.

        keeps_subscriptions: whether the heartbeat names none, because its client takes them for known.
        Returns whether a topic was added or removed.
        """
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        if keeps_subscriptions:
            return False
        if self.declared.get(channel) != data:
            self.declared[channel] = data
            self._count(channel, settings_of(data))
        wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
        is_changed = False
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
                is_changed = is_changed or known is None
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
            is_changed = True
        return is_changed


@dataclass(slots=True)
class _Holder:
    """The channel that has a client id."""

    channel: Hashable
    owner: str
    updated_ms: int


class ClientRegistry:
    """The online clients by group. A channel is any object that represents a connection.

    add_memory: called with a channel and the change of its memory in bytes; returns False if the channel
    then exceeds a limit.
    """

    def __init__(self, add_memory: Callable[[Any, int], bool] = lambda *_: True) -> None:
        self._producers: dict[str, dict[Hashable, ClientChannelInfo]] = {}
        self._consumers: dict[str, ConsumerGroupInfo] = {}
        self._holders: dict[str, _Holder] = {}
        """By client id."""
        self._held: dict[Hashable, str] = {}
        """Channel -> its client id. A channel has only one, so that a client cannot occupy many ids."""
        self._taken: dict[Hashable, str] = {}
        """Channel -> the client id that another channel took from it."""
        self._shared: dict[str, int] = {}
        """Client id that several clients use -> when one last took it back from another."""
        self._add_memory = add_memory
        self._memberships: dict[Hashable, dict[tuple[str, str], int]] = {}
        """Channel -> kind and name of its groups -> their memory in bytes."""

    def reserve(self, channel: Hashable, beat: HeartbeatData, *, language: str) -> bool:
        """Count the memory that a heartbeat takes; False if it exceeds a limit, so it must be rejected."""
        known = self._memberships.get(channel, {})
        fixed = _MEMBER_BYTES + len(beat.client_id) + len(language)
        sizes = {
            (_PRODUCER, data.group_name): fixed + len(data.group_name) for data in beat.producer_data_set
        }
        for data in beat.consumer_data_set:
            sizes[_CONSUMER, data.group_name] = fixed + _size(data)
        if not self._add_memory(channel, sum(sizes.values()) - sum(known.get(key, 0) for key in sizes)):
            return False
        self._memberships.setdefault(channel, {}).update(sizes)
        return True

    def _release_memory(self, channel: Hashable, kind: str, group: str) -> None:
        """Release the memory of a member of a group."""
        sizes = self._memberships.get(channel, {})
        size = sizes.pop((kind, group), 0)
        if not sizes:
            self._memberships.pop(channel, None)
        if size:
            self._add_memory(channel, -size)

    def heartbeat(
        self,
        channel: Hashable,
        beat: HeartbeatData,
        *,
        language: str,
        version: int,
        now_ms: int,
        owner: str = "",
    ) -> set[str]:
        """Register a client, or renew its registration. owner: the account or host of the channel.

        Returns the consumer groups that have a new member or other topics than before.
        """
        info = ClientChannelInfo(beat.client_id, language, version, now_ms)
        if len(beat.client_id) <= _ID_CHARACTERS_MAX:
            self._claim(beat.client_id, channel, owner, now_ms)
        memberships = self._memberships.setdefault(channel, {})
        for producer in beat.producer_data_set:
            self._producers.setdefault(producer.group_name, {})[channel] = info
            memberships.setdefault((_PRODUCER, producer.group_name), 0)
        changed = set()
        for data in beat.consumer_data_set:
            group = self._consumers.setdefault(data.group_name, ConsumerGroupInfo(data.group_name))
            is_new = channel not in group.members
            group.members[channel] = info
            memberships.setdefault((_CONSUMER, data.group_name), 0)
            if group.update(channel, data, keeps_subscriptions=beat.without_sub) or is_new:
                changed.add(data.group_name)
        return changed

    def _claim(self, client_id: str, channel: Hashable, owner: str, now_ms: int) -> None:
        """Give a client id to a channel, unless a channel of another owner has it."""
        holder = self._holders.get(client_id)
        if holder is not None:
            if holder.owner != owner:
                self._mark_shared(client_id, now_ms)
                return
            if holder.channel != channel:
                self._taken[holder.channel] = client_id
            self._release_client_id(holder.channel)
        self._release_client_id(channel)
        if self._taken.pop(channel, None) == client_id:
            # A client that has only reconnected sends no heartbeats over its former connection.
            self._mark_shared(client_id, now_ms)
        self._holders[client_id] = _Holder(channel, owner, now_ms)
        self._held[channel] = client_id

    def _mark_shared(self, client_id: str, now_ms: int) -> None:
        self._shared.pop(client_id, None)
        self._shared[client_id] = now_ms
        if len(self._shared) > _SHARED_MAX:
            del self._shared[next(iter(self._shared))]

    def _release_client_id(self, channel: Hashable) -> None:
        client_id = self._held.pop(channel, None)
        if client_id is not None:
            del self._holders[client_id]

    def is_shared(self, client_id: str) -> bool:
        """Return whether several clients use an id."""
        return client_id in self._shared

    def conflicts(self, name: str, address_of: Callable[[Any], str]) -> list[Conflict]:
        """Return how members of a group differ, and which client ids several of them use.

        address_of: returns the address of a channel.
        """
        group = self._consumers.get(name)
        if group is None or not self.conflict_state(name):
            return []
        found = find_conflicts(name, group.views(address_of))
        return [one for one in found if one.kind != CLIENT_ID or self._shared_in(group)]

    def conflict_state(self, name: str) -> frozenset[object]:
        """Return a value that is empty without a conflict, and that changes when the conflicts do."""
        group = self._consumers.get(name)
        if group is None:
            return frozenset()
        variants = group.variants
        return (variants if len(variants) > 1 else frozenset()) | self._shared_in(group)

    def _shared_in(self, group: ConsumerGroupInfo) -> frozenset[str]:
        return frozenset(self._shared.keys() & group.client_ids) if self._shared else frozenset()

    def owner_of(self, client_id: str) -> str | None:
        """Return the owner of a client id; None if no channel has it."""
        holder = self._holders.get(client_id)
        return None if holder is None else holder.owner

    def unregister(
        self, channel: Hashable, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> set[str]:
        """Remove a client from groups, if it is a member (QUIRKS 10).

        Returns the consumer groups that lost a member.
        """
        if producer_group:
            self._drop_producer(producer_group, channel)
        if consumer_group and self._drop_consumer(consumer_group, channel):
            return {consumer_group}
        return set()

    def drop_channel(self, channel: Hashable) -> set[str]:
        """Remove a channel from its groups; return the consumer groups that lost a member."""
        for client_id in (self._held.get(channel), self._taken.pop(channel, None)):
            if client_id is not None:
                self._shared.pop(client_id, None)  # a third client with it takes it back with its heartbeat
        self._release_client_id(channel)
        changed = set()
        for kind, name in list(self._memberships.get(channel, ())):
            if kind == _PRODUCER:
                self._drop_producer(name, channel)
            elif self._drop_consumer(name, channel):
                changed.add(name)
        self._memberships.pop(channel, None)
        return changed

    def drop_inactive(self, now_ms: int) -> set[str]:
        """Remove clients without a heartbeat for 120 s; return the consumer groups that lost a member."""
        changed = set()
        expired = [
            holder.channel for holder in self._holders.values() if _is_expired(holder.updated_ms, now_ms)
        ]
        for channel in expired:
            self._release_client_id(channel)
        for client_id in [one for one, taken_ms in self._shared.items() if _is_expired(taken_ms, now_ms)]:
            del self._shared[client_id]
        for name, members in list(self._producers.items()):
            for channel in _expired(members.items(), now_ms):
                self._drop_producer(name, channel)
        for name, group in list(self._consumers.items()):
            for channel in _expired(group.members.items(), now_ms):
                self._drop_consumer(name, channel)
                changed.add(name)
        return changed

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of an online group to a topic."""
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def lacks_subscription(self, group: str, topic: str) -> bool:
        """Return whether a group is online and subscribes to other topics, but not to this one."""
        found = self._consumers.get(group)
        return found is not None and bool(found.subscriptions) and topic not in found.subscriptions

    def groups_of(self, topic: str) -> list[str]:
        """Return the online groups that subscribe to a topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producers(self, group: str) -> Mapping[Hashable, ClientChannelInfo]:
        """Return the members of a producer group by channel."""
        return self._producers.get(group, {})

    def consumer_group(self, name: str) -> ConsumerGroupInfo | None:
        """Return a group; None if it has no members."""
        return self._consumers.get(name)

    def producer_channel(self, client_id: str) -> Hashable | None:
        """Return the channel of a producer, for replies to its requests; None if it is not online."""
        holder = self._holders.get(client_id)
        if holder is None or not self._is_producer(holder.channel):
            return None
        return holder.channel

    def _is_producer(self, channel: Hashable) -> bool:
        return any(kind == _PRODUCER for kind, _ in self._memberships.get(channel, ()))

    def producer_channels(self, group: str) -> list[Hashable]:
        """Return the channels of a producer group, for checks of its transactions."""
        return list(self._producers.get(group, ()))

    @property
    def producer_groups(self) -> list[str]:
        """All producer groups that have members."""
        return list(self._producers)

    @property
    def consumer_groups(self) -> list[str]:
        """All consumer groups that have members."""
        return list(self._consumers)

    def _drop_producer(self, group: str, channel: Hashable) -> None:
        members = self._producers.get(group, {})
        if members.pop(channel, None) is None:
            return
        self._release_memory(channel, _PRODUCER, group)
        if not members:
            del self._producers[group]

    def _drop_consumer(self, name: str, channel: Hashable) -> bool:
        group = self._consumers.get(name)
        if group is None or not group.remove(channel):
            return False
        self._release_memory(channel, _CONSUMER, name)
        if not group.members:
            del self._consumers[name]
        return True


def _size(data: ConsumerData) -> int:
    """Estimate the memory of a consumer group: its name and its subscriptions."""
    size = len(data.group_name)
    for wanted in data.subscription_data_set:
        size += _SUBSCRIPTION_BYTES + len(wanted.topic) + len(wanted.sub_string or "")
        size += len(wanted.expression_type) + sum(map(len, wanted.tags_set))
        size += _TAG_BYTES * len(wanted.tags_set) + _CODE_BYTES * len(wanted.code_set)
    return size


def _expired(members: Iterable[tuple[Hashable, ClientChannelInfo]], now_ms: int) -> list[Hashable]:
    return [channel for channel, info in members if _is_expired(info.updated_ms, now_ms)]


def _is_expired(updated_ms: int, now_ms: int) -> bool:
    return updated_ms + EXPIRED_MS < now_ms
