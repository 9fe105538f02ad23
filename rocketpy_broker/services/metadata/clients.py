"""The online clients of a broker: the members of producer and consumer groups, by their heartbeats.

A client is removed when its channel closes, when it unregisters, or after 120 s without a heartbeat.

A client id belongs to the channel that registered it. A channel of the same owner takes it over, since a
client may reconnect before its old connection closes. The owner is the account of the channel or, without
access control, its remote host. Channels of other owners may send heartbeats with that id, but get no
replies.

Source: ProducerManager, ConsumerManager of RocketMQ 4.6.0; there, the last channel gets the replies.
No I/O or clock: `now_ms` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData

EXPIRED_MS: Final = 120_000
_ID_CHARACTERS_MAX: Final = 1024
"""A longer client id has no owner and gets no replies."""

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
    """One client on one channel. language, version: as in its requests."""

    client_id: str
    language: str
    version: int
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A group with at least one member. subscriptions: topic -> the newest subscription of all members."""

    name: str
    members: dict[Hashable, ClientChannelInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None

    @property
    def client_ids(self) -> list[str]:
        """The client ids of the members."""
        return [member.client_id for member in self.members.values()]

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the channel of one member; None if it is not online."""
        return next((channel for channel, info in self.members.items() if info.client_id == client_id), None)

    def update(self, data: ConsumerData) -> bool:
        """Update the group from a heartbeat. Subscriptions to topics that it does not name are removed.

        Returns whether a topic was added or removed.
        """
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
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
            if group.update(data) or is_new:
                changed.add(data.group_name)
        return changed

    def _claim(self, client_id: str, channel: Hashable, owner: str, now_ms: int) -> None:
        """Give a client id to a channel, unless a channel of another owner has it."""
        holder = self._holders.get(client_id)
        if holder is not None:
            if holder.owner != owner:
                return
            self._release_client_id(holder.channel)
        self._release_client_id(channel)
        self._holders[client_id] = _Holder(channel, owner, now_ms)
        self._held[channel] = client_id

    def _release_client_id(self, channel: Hashable) -> None:
        client_id = self._held.pop(channel, None)
        if client_id is not None:
            del self._holders[client_id]

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
        if group is None or group.members.pop(channel, None) is None:
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
