"""GroupConsumer: what `PushConsumer` and `LitePullConsumer` share: joining a group, and leaving it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.lifecycle import Lifecycle
from rocketpy.client.namespace import unwrap_queue, wrap, wrap_queue
from rocketpy.config import ClientConfig
from rocketpy.consumer.dispatch.concurrent import ConsumeService
from rocketpy.consumer.dispatch.send_back import retry_topic
from rocketpy.consumer.fetch.subscription import ALL, Expression, subscription_data
from rocketpy.consumer.group.broker_callbacks import (
    ClientRemotingProcessor,
    DirectHandler,
    GroupRegistration,
    running_info,
)
from rocketpy.consumer.group.member import GroupMember, abbreviate
from rocketpy.consumer.listeners import Observers
from rocketpy.consumer.outcomes import HandlingResult
from rocketpy.errors import ClientClosed
from rocketpy.message.message import MessageExt, check_group, check_topic
from rocketpy.protocol.bodies import ConsumerRunningInfo, MessageQueue
from rocketpy.results import Health
from rocketpy.runtime.tasks import joined

log = logging.getLogger("rocketpy.consumer")

_SUBSCRIBE_GRACE_S: Final = 1.0
"""An application that starts a consumer first and subscribes then has done so by now."""


class GroupConsumer(Lifecycle):
    """A member of a consumer group, as applications see it. Raises GroupInvalid."""

    _closed = False  # of the class, for one whose `__init__` has raised

    def __init__(
        self, group: str, namesrv: str | None, client: ClientConfig | None, observers: Observers
    ) -> None:
        self._observers = observers
        self.group: Final = check_group(group)
        self._client_config: Final = (client or ClientConfig()).at(namesrv)
        self._member: GroupMember | None = None
        self._subscriptions: dict[str, Expression] = {}
        self._closing: asyncio.Task[bool] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.group!r})"

    def _left_open(self) -> str | None:
        # Nothing that runs holds the consumer itself, so this is when nobody can close it any more.
        if self._client is None or self._closed or self._client.is_forked_copy:
            return None
        return f"consumer {self.group}"

    def _make_member(self, client: ClientInstance) -> GroupMember:
        raise NotImplementedError

    def _make_consume_service(self, member: GroupMember) -> ConsumeService:
        raise NotImplementedError

    def _make_direct_handler(self) -> DirectHandler:
        """What handles a message that an operator chose. It must not hold the consumer."""
        raise NotImplementedError

    async def consume_directly(self, message: MessageExt) -> HandlingResult:
        """Handle a message that an operator chose, outside of its queue; nothing is committed by it."""
        return await self._make_direct_handler()(message)

    def running_properties(self) -> dict[str, str]:
        """Its settings, for operators."""
        raise NotImplementedError

    # -- life ---------------------------------------------------------------------------------

    async def start(self, *, wait: bool = True) -> None:
        """Join the group, once. Messages come from now on.

        wait: until a name server answers, at most `ClientConfig.request_timeout_ms`, and until brokers know
        the member. Without it `start` returns at once, the member joins in the background, and `health`
        tells what is missing.

        Raises TransportError when no name server answers (`start` can be called again), ConfigInvalid, and
        BrokerError when a broker refuses an SQL92 expression; without `wait` that is logged.
        """
        client = await self._connect(self._client_config, f"consumer {self.group}", wait=wait)
        try:
            self._member = member = self._make_member(client)
            registration = GroupRegistration(member, self._make_direct_handler(), self.running_properties())
            client.shared(ClientRemotingProcessor).add(registration)
        except BaseException:
            self._closed = True
            await client.release()
            raise
        try:
            await self._observers.start(client, self._client_config, wait=wait)
            member.context.on_pull = self._observers.on_pull
            member.tasks.on_failure.append(self._observers.on_failure)
            for topic, expression in self._subscriptions.items():
                member.subscribe(wrap(member.namespace, topic), expression)
            await member.start(self._make_consume_service(member), wait=wait)
            member.tasks.spawn(
                _warn_without_subscription(member, self.group, self._subscriptions), "look for work"
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> bool:
        """Begin no more, wait for handlers, store offsets, leave the group, disconnect.

        Waits for handlers for `MemberConfig.close_timeout_ms`; what is not handled by then comes to another
        member, or to the next start. Returns whether every handler ended in time. Goes on when its caller is
        cancelled. Safe to call again: the second call waits for the first. Raises ClientClosed in another
        event loop than the one that started it.
        """
        if self._client is None or self._member is None or self._client.is_forked_copy:
            return True
        if self._closing is not None and self._closing.done():
            return self._closing.result()
        self._client.check_loop()
        if self._closing is None:
            if self._closed:
                return True  # it was never started
            self._closed = True
            self._closing = joined(self._close(self._client, self._member), f"close consumer {self.group}")
        return await asyncio.shield(self._closing)

    async def _close(self, client: ClientInstance, member: GroupMember) -> bool:
        try:
            left = await member.close()
            if left:
                text = "consumer %s closed while handlers were running, which are at %s; that comes again"
                log.warning(text, self.group, abbreviate(left))
            await self._observers.close()
            await client.shared(ClientRemotingProcessor).remove(member.group)
        finally:
            await client.release()
        return not left

    def health(self) -> Health:
        """How the consumer and its connections are doing. Raises ClientClosed when it does not run."""
        member = self.member
        health = member.client.health()
        problems = list(health.problems)
        if member.tasks.failure is not None:
            problems.append(str(member.tasks.failure))
        problems += [
            f"topic {topic} has no route"
            for topic in member.subscriptions
            if topic not in member.queues_of and topic != retry_topic(member.group)
        ]
        problems += member.problems()
        return replace(health, ok=not problems, problems=tuple(problems), undecodable=member.undecodable)

    # -- what to consume ----------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Want a topic's messages: all of them, those with one of some tags (``a || b``), or by `Sql`.

        Before the start, or later: brokers hear of it soon. Again for a topic: the new expression counts.
        All members of a group must subscribe to the same. Raises TopicInvalid, ConfigInvalid.
        """
        subscription_data(check_topic(topic), expression, 0)
        self._subscriptions[topic] = expression
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.subscribe(name, expression)
            self._member.tasks.spawn(self._member.announce_subscription(name), "introduction")

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer. Its queues go to other members, if those still want it."""
        self._subscriptions.pop(topic, None)
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.unsubscribe(name)
            self._member.tasks.spawn(self._member.announce_subscription(name), "introduction")

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member has now; of a push consumer also those of
        messages that come again (``%RETRY%``).
        """
        namespace = self.member.namespace
        return tuple(unwrap_queue(namespace, queue) for queue in sorted(self.member.pullers))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time, in ms since 1970."""
        return await self.member.api.search_offset(wrap_queue(self.member.namespace, queue), timestamp_ms)

    def running_info(self) -> ConsumerRunningInfo:
        """What ``mqadmin consumerStatus`` shows of this member."""
        registration = GroupRegistration(self.member, self._make_direct_handler(), self.running_properties())
        return running_info(registration, self.member.client)

    @property
    def member(self) -> GroupMember:
        """Its place in the group. Raises ClientClosed when it does not run."""
        if self._member is None or self._closed:
            state = "is closed" if self._closed else "was not started: use `async with`, or `await start()`"
            raise ClientClosed(f"the consumer {state}")
        return self._member


async def _warn_without_subscription(member: GroupMember, group: str, subscriptions: Collection[str]) -> None:
    await asyncio.sleep(_SUBSCRIBE_GRACE_S)
    if not subscriptions and member.rebalances:
        log.warning("consumer %s gets no messages before it subscribes to a topic", group)
