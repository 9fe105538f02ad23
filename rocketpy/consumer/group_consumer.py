"""GroupConsumer: base class of `PushConsumer` and `LitePullConsumer`; joins a group and leaves it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap_queue, wrap
from rocketpy.client.queries import ConsumerQueries
from rocketpy.config import ClientConfig
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.consumer.fetch.subscription import ALL, Expression, subscription_data
from rocketpy.consumer.group.broker_callbacks import (
    ClientRemotingProcessor,
    DirectHandler,
    GroupRegistration,
    running_info,
)
from rocketpy.consumer.group.member import GroupMember
from rocketpy.consumer.handling.service import ConsumeService
from rocketpy.consumer.listeners import Observers
from rocketpy.errors import ClientClosed
from rocketpy.message.message import check_group, check_topic
from rocketpy.protocol.bodies import ConsumerRunningInfo, MessageQueue
from rocketpy.results import Health
from rocketpy.runtime.rate_limited_log import abbreviate
from rocketpy.runtime.tasks import close_all, subtask

log: Final = logging.getLogger("rocketpy.consumer")

_SUBSCRIBE_GRACE_S: Final = 1.0
"""Time for applications that start a consumer first and subscribe afterwards."""


class GroupConsumer(ConsumerQueries):
    """Base class of the consumers that join a group. Raises GroupInvalid for an invalid name of the group."""

    _closed = False  # a class attribute, for an object whose `__init__` has raised

    def __init__(
        self, group: str, namesrv: str | None, client: ClientConfig | None, observers: Observers
    ) -> None:
        self._observers = observers
        self.group: Final = check_group(group)
        self._client_config: Final = (client or ClientConfig()).at(namesrv)
        self._member: GroupMember | None = None
        self._subscriptions: dict[str, Expression] = {}
        self._closing: asyncio.Task[bool] | None = None
        self.calling_thread: Callable[[], threading.Thread | None] = lambda: None
        """The thread on whose behalf a method runs; `rocketpy.sync` sets it: several may use it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.group!r})"

    def _left_open(self) -> str | None:
        # No task refers to the consumer: once the application drops it, nothing can close it.
        if self._client is None or self._closed or self._client.is_forked_copy:
            return None
        return f"consumer {self.group}"

    def _make_member(self, client: ClientInstance) -> GroupMember:
        raise NotImplementedError

    def _make_consume_service(self, member: GroupMember) -> ConsumeService | None:
        raise NotImplementedError

    def _is_in_handler(self) -> bool:
        """Return whether a running handler of this consumer may be the caller."""
        return False

    def _make_direct_handler(self) -> DirectHandler:
        """Return the handler for messages that an operator sends to this member.

        It must not refer to `self`. Otherwise the client would keep a consumer that the application dropped
        without a `close`, and no warning would report it.
        """
        raise NotImplementedError

    def running_properties(self) -> dict[str, str]:
        """Return the settings that administration tools show."""
        raise NotImplementedError

    # -- start and close ----------------------------------------------------------------------

    async def start(self, *, wait: bool = True) -> None:
        """Join the group and begin to consume. A consumer starts once.

        Args:
            wait: Wait up to `ClientConfig.request_timeout_ms` for a name server, and then until the brokers
                know the member. If False, `start` returns immediately, the member joins in the background,
                and `health` shows the problems.

        Raises:
            TransportError: No name server responds; `start` can be called again.
            ConfigInvalid: A setting is not valid, or the client already has a consumer of this group.
            BrokerError: A broker rejects an SQL92 expression. Without `wait` the rejection is logged.
        """
        client = await self._connect(self._client_config, f"consumer {self.group}", wait=wait)
        try:
            self._member = member = self._make_member(client)
            registration = GroupRegistration(member, self._make_direct_handler(), self.running_properties())
            client.shared(ClientRemotingProcessor).add(registration)
        except BaseException:  # raised again: also a cancelled start cleans up
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
                _warn_without_subscription(member, self.group, self._subscriptions), "check subscriptions"
            )
        except BaseException:  # raised again: also a cancelled start cleans up
            await self.close()
            raise

    async def close(self) -> bool:
        """Stop handling, wait for running handlers, commit offsets, leave the group and disconnect.

        Waits up to `MemberConfig.close_timeout_ms` for handlers. Messages that are not handled by then are
        redelivered. Brokers that do not respond delay it by up to 10 s: 5 s for the commit, and a second for
        each other step. The close continues when its caller is cancelled, and a second call waits for it.

        A handler of this consumer may call it, also from a task or thread of its own. While handlers run, the
        call then returns immediately, and the close continues once the handler has returned.

        Returns:
            Whether every handler ended in time. False in a handler.

        Raises:
            ClientClosed: The consumer was started in another event loop.
        """
        if self._client is None or self._member is None or self._client.is_forked_copy:
            return True
        if self._closing is not None and self._closing.done():
            return self._closing.result()
        self._client.check_loop()
        if self._closing is None:
            if self._closed:
                return True  # its start failed, and has released the client
            self._closed = True
            self._closing = subtask(self._close(self._client, self._member), f"close consumer {self.group}")
        if self._is_in_handler():
            return False  # the close waits for this handler, so the handler must not wait for the close
        return await asyncio.shield(self._closing)

    async def _close(self, client: ClientInstance, member: GroupMember) -> bool:
        try:
            left = await member.close()
            if left:
                text = "consumer %s closed while handlers were running for %s; their messages are redelivered"
                log.warning(text, self.group, abbreviate(left))
        finally:
            leave = partial(client.shared(ClientRemotingProcessor).remove, member.group)
            await close_all(self._observers, leave, client.release)
        return not left

    def health(self) -> Health:
        """Return the state of the consumer and its connections.

        Raises:
            ClientClosed: The consumer does not run.
        """
        member = self.member
        health = member.client.health()
        problems = [*health.problems, *member.tasks.problems(), *self._problems(member)]
        problems += self._observers.problems(member.client.config.stalled_after_ms)
        states = member.queue_states()
        return replace(
            health,
            ok=not problems,
            problems=tuple(problems),
            undecodable=member.undecodable,
            queues={unwrap_queue(member.namespace, queue): states[queue] for queue in sorted(states)},
        )

    def _problems(self, member: GroupMember) -> list[str]:
        return member.problems()

    # -- subscriptions ------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Subscribe to a topic, before or after the start. A second call changes the expression.

        All members of a group must have the same subscriptions.

        Args:
            topic: Name of the topic.
            expression: Filter: ``*`` for all messages, tags such as ``a || b``, or `Sql`.

        Raises:
            TopicInvalid: The topic's name is not valid.
            ConfigInvalid: The expression is not valid.
        """
        subscription_data(check_topic(topic), expression, 0)
        self._subscriptions[topic] = expression
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.subscribe(name, expression)
            self._member.tasks.spawn(self._member.announce_subscription(name), "announce subscription")

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic. Its queues go to the members that still have it."""
        self._subscriptions.pop(topic, None)
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.unsubscribe(name)
            self._member.tasks.spawn(self._member.announce_subscription(name), "announce subscription")

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are assigned to this member; for a push consumer also those of the retry topic
        (``%RETRY%``).
        """
        namespace = self.member.namespace
        return tuple(unwrap_queue(namespace, queue) for queue in sorted(self.member.pullers))

    def _running_client(self) -> ClientInstance:
        client = self.member.client
        client.check_loop()
        return client

    def _broker_api(self) -> ConsumerApi:
        self._running_client()
        return self.member.api

    def _decoding(self) -> tuple[int, bool]:
        return self.member.config.max_body_bytes, self.member.config.verify_checksums

    def running_info(self) -> ConsumerRunningInfo:
        """Return what ``mqadmin consumerStatus`` shows for this member."""
        registration = GroupRegistration(self.member, self._make_direct_handler(), self.running_properties())
        return running_info(registration, self.member.client)

    @property
    def member(self) -> GroupMember:
        """The `GroupMember` of this consumer. Raises ClientClosed unless it runs in this process."""
        if self._client is not None:
            self._client.check_process()
        if self._member is None or self._closed:
            state = "is closed" if self._closed else "was not started: use `async with`, or `await start()`"
            raise ClientClosed(f"the consumer {state}")
        return self._member


async def _warn_without_subscription(member: GroupMember, group: str, subscriptions: Collection[str]) -> None:
    await asyncio.sleep(_SUBSCRIBE_GRACE_S)
    if not subscriptions and member.is_rebalanced:
        log.warning("consumer %s has no subscription and receives no messages; call subscribe()", group)
