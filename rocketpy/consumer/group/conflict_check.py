"""ConflictCheck: whether the members of a group have the same subscriptions, and client ids of their own.

Brokers of rocketpy return what each member has sent, when members differ. Brokers of RocketMQ keep only the
last heartbeat of a group; if that differs from this member's, the other members are asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Final

from rocketpy.client.group_conflicts import Conflict, MemberView, find_conflicts, settings_of, texts_of
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import ConsumerConnection, ConsumerData, ConsumerRunningInfo, MessageQueue

log: Final = logging.getLogger("rocketpy.consumer")

_ASKED_MAX: Final = 16
"""Members of a large group that are asked for their settings."""


class ConflictCheck:
    """Asks one broker at each `run`.

    describe: returns this member's part of heartbeats. queues_of: queues by topic; pulled: other queues.
    """

    def __init__(
        self,
        api: ConsumerApi,
        describe: Callable[[], ConsumerData],
        queues_of: Mapping[str, Sequence[MessageQueue]],
        pulled: Collection[MessageQueue],
    ) -> None:
        self._api = api
        self._describe = describe
        self._queues_of = queues_of
        self._pulled = pulled
        self._turn = 0
        self._found: dict[str, list[Conflict]] = {}
        """Broker name -> the conflicts there."""

    @property
    def problems(self) -> list[str]:
        """The conflicts that were found, a text each."""
        return texts_of(chain.from_iterable(self._found.values()))

    async def run(self) -> None:
        """Ask the next broker for the members, and log new conflicts."""
        topics = {queue.broker_name: queue.topic for queue in chain(self._pulled, *self._queues_of.values())}
        self._found = {name: found for name, found in self._found.items() if name in topics}
        if not topics:
            return
        name = sorted(topics)[self._turn % len(topics)]
        self._turn += 1
        try:
            members = await self._members(topics[name], name)
        except RocketError as error:  # a rebalance reports brokers that cannot be reached
            log.debug("members of group %s at broker %s are not known: %s", self._api.group, name, error)
            return
        known = {(one.kind, one.client_id) for found in self._found.values() for one in found}
        self._found[name] = find_conflicts(self._api.group, members)
        for one in self._found[name]:
            if (one.kind, one.client_id) not in known:
                log.warning("%s", one.text)

    async def _members(self, topic: str, broker_name: str) -> list[MemberView]:
        found = await self._api.connections(topic, broker_name)
        members = members_of(found)
        if any(member.settings is not None for member in members):
            return members
        own = self._describe()
        is_last = settings_of(own) == settings_of(group_data(found, own.group_name))
        if len(members) < 2 or (is_last and not self._found.get(broker_name)):
            return members
        own_id = self._api.client.client_id
        others = [
            client_id for client_id in {member.client_id: None for member in members} if client_id != own_id
        ]
        infos = await asyncio.gather(
            *(self._running_info(topic, broker_name, client_id) for client_id in others[:_ASKED_MAX])
        )
        settings = {
            client_id: settings_of(running_data(info, own.group_name))
            for client_id, info in zip(others, infos, strict=False)
            if info is not None
        }
        if not settings and not is_last:
            another = MemberView(
                "another member", broker_name, settings_of(group_data(found, own.group_name))
            )
            members.append(another)
        settings[own_id] = settings_of(own)
        return [
            member._replace(settings=member.settings or settings.get(member.client_id)) for member in members
        ]

    async def _running_info(self, topic: str, broker_name: str, client_id: str) -> ConsumerRunningInfo | None:
        try:
            return await self._api.running_info(topic, broker_name, client_id)
        except RocketError as error:  # clients in some languages do not respond
            log.debug("member %s of group %s: %s", client_id, self._api.group, error)
            return None


def members_of(found: ConsumerConnection) -> list[MemberView]:
    """Return the members in a broker's response; with settings if it knows those of each member."""
    return [
        MemberView(
            one.client_id,
            one.client_addr,
            None if one.consumer_data is None else settings_of(one.consumer_data),
        )
        for one in found.connection_set
    ]


def group_data(found: ConsumerConnection, group: str) -> ConsumerData:
    """Return what a broker of RocketMQ knows of a group: the last heartbeat of any member."""
    return ConsumerData(
        group_name=group,
        consume_type=found.consume_type,
        message_model=found.message_model,
        consume_from_where=found.consume_from_where,
        subscription_data_set=list(found.subscription_table.values()),
    )


def running_data(info: ConsumerRunningInfo, group: str) -> ConsumerData:
    """Return what a member has told about itself."""
    properties = info.properties
    return ConsumerData(
        group_name=group,
        consume_type=properties.get("PROP_CONSUME_TYPE"),
        message_model=properties.get("messageModel"),
        consume_from_where=properties.get("consumeFromWhere"),
        subscription_data_set=info.subscription_set,
    )
