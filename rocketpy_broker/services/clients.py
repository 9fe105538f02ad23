"""The clients of a broker, as their heartbeats tell: which groups produce and consume, on which channel.

A client is gone when its channel closes, when it says so, or after 120 s without a heartbeat.
Source: ProducerManager, ConsumerManager of RocketMQ 4.6.0. Pure: `now_ms` is passed in.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData

__all__ = ["EXPIRED_MS", "ClientInfo", "ClientRegistry", "ConsumerGroup"]

EXPIRED_MS: Final = 120_000


@dataclass(slots=True)
class ClientInfo:
    """One client on one channel. language, version: as its requests say."""

    client_id: str
    language: str
    version: int
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group with at least one member. subscriptions: by topic, the newest of any member."""

    name: str
    members: dict[Hashable, ClientInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None

    @property
    def client_ids(self) -> list[str]:
        """The ids of its members."""
        return [member.client_id for member in self.members.values()]

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the channel of one member; None when it is not here."""
        return next((channel for channel, info in self.members.items() if info.client_id == client_id), None)

    def take(self, data: ConsumerData) -> bool:
        """Take over how the group consumes; a topic that is no longer there is no longer subscribed.

        Returns whether a topic came or went.
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


class ClientRegistry:
    """Who is connected. A channel is whatever object stands for a connection."""

    def __init__(self) -> None:
        self._producers: dict[str, dict[Hashable, ClientInfo]] = {}
        self._producer_channels: dict[str, Hashable] = {}
        """By client id."""
        self._consumers: dict[str, ConsumerGroup] = {}

    def heartbeat(
        self, channel: Hashable, beat: HeartbeatData, *, language: str, version: int, now_ms: int
    ) -> set[str]:
        """Note that a client lives.

        Returns the consumer groups that have a new member or other topics by it.
        """
        info = ClientInfo(beat.client_id, language, version, now_ms)
        for producer in beat.producer_data_set:
            self._producers.setdefault(producer.group_name, {})[channel] = info
            self._producer_channels[beat.client_id] = channel
        changed = set()
        for data in beat.consumer_data_set:
            group = self._consumers.setdefault(data.group_name, ConsumerGroup(data.group_name))
            is_new = channel not in group.members
            group.members[channel] = info
            if group.take(data) or is_new:
                changed.add(data.group_name)
        return changed

    def unregister(
        self, channel: Hashable, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> set[str]:
        """Take a client out of groups; one that is not in them is no error (QUIRKS 10).

        Returns the consumer groups that lost a member.
        """
        if producer_group:
            self._drop_producer(producer_group, channel)
        if consumer_group and self._drop_consumer(consumer_group, channel):
            return {consumer_group}
        return set()

    def drop_channel(self, channel: Hashable) -> set[str]:
        """Forget all clients on a channel; return the consumer groups that lost a member."""
        for group in [name for name, members in self._producers.items() if channel in members]:
            self._drop_producer(group, channel)
        return {name for name in list(self._consumers) if self._drop_consumer(name, channel)}

    def drop_silent(self, now_ms: int) -> set[str]:
        """Forget clients without a heartbeat for 120 s; return the consumer groups that lost a member."""
        changed = set()
        for name, members in list(self._producers.items()):
            for channel in _late(members.items(), now_ms):
                self._drop_producer(name, channel)
        for name, group in list(self._consumers.items()):
            for channel in _late(group.members.items(), now_ms):
                self._drop_consumer(name, channel)
                changed.add(name)
        return changed

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what a group that has members wants of a topic."""
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def is_strange_to(self, group: str, topic: str) -> bool:
        """Whether a group has members that subscribe to other topics, and not to this one."""
        found = self._consumers.get(group)
        return found is not None and bool(found.subscriptions) and topic not in found.subscriptions

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with members that subscribe to a topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producers(self, group: str) -> Mapping[Hashable, ClientInfo]:
        """Return the members of a producer group by channel."""
        return self._producers.get(group, {})

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a group that has members."""
        return self._consumers.get(name)

    def producer_channel(self, client_id: str) -> Hashable | None:
        """Return the channel of a client that produces, for replies to its requests; None when it is gone."""
        return self._producer_channels.get(client_id)

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
        info = members.pop(channel, None)
        if info is None:
            return
        if not members:
            del self._producers[group]
        is_last = not any(channel in others for others in self._producers.values())
        if is_last and self._producer_channels.get(info.client_id) is channel:
            del self._producer_channels[info.client_id]

    def _drop_consumer(self, name: str, channel: Hashable) -> bool:
        group = self._consumers.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return False
        if not group.members:
            del self._consumers[name]
        return True


def _late(members: Iterable[tuple[Hashable, ClientInfo]], now_ms: int) -> list[Hashable]:
    return [channel for channel, info in members if info.updated_ms + EXPIRED_MS < now_ms]
