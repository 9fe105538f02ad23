"""PushConsumer: messages come to your handler, and the group's members share the work.

Source: RocketMQ 4.6 DefaultMQPushConsumer.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from rocketpy.client import ClientInstance, Health
from rocketpy.config import ClientConfig
from rocketpy.consumer.consuming import Callee, ConcurrentConsumption, Consumption
from rocketpy.consumer.groups import ConsumerGroups, running_info, settings_text
from rocketpy.consumer.member import GroupMember
from rocketpy.consumer.orderly import OrderlyConsumption
from rocketpy.consumer.outcomes import BatchHandler, Handler, Verdict
from rocketpy.consumer.sending_back import SendBack, retry_topic
from rocketpy.consumer.settings import PushConfig
from rocketpy.consumer.subscription import ALL, Expression, subscription_data
from rocketpy.errors import ClientClosed, ConfigInvalid
from rocketpy.message import MessageExt, MessageQueue, check_group
from rocketpy.namespace import unwrap_queue, wrap, wrap_queue
from rocketpy.protocol.bodies import ConsumerRunningInfo

__all__ = ["PushConsumer"]

log = logging.getLogger("rocketpy.consumer")


class PushConsumer:
    """Calls a handler for each message of the topics that its group subscribes to.

        async def handle(message: MessageExt) -> None:
            ...

        consumer = PushConsumer("billing", "127.0.0.1:9876", handle)
        consumer.subscribe("Orders", "paid || refunded")
        async with consumer:
            await asyncio.Event().wait()

    Each message goes to one member of the group (or to every one, `MessageModel.BROADCASTING`), at least
    once: a handler that raises, or says `ConsumeResult.LATER` or `Later`, gets it again, after a delay that
    grows; after 16 times it goes to the group's dead letters, the topic ``%DLQ%group``.

    group: the members' common name; all must subscribe to the same. handler: called with a message.
    batch_handler: instead of it, called with up to `PushConfig.batch_size` messages of a queue. An
    ``async def`` runs in the event loop, a plain function on a thread. namesrv, client: as for
    `Producer`. Two members of one group in a process need clients of their own, by `instance_name`.
    Raises GroupInvalid, ConfigInvalid.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        config: PushConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        self.group: Final = check_group(group)
        self.config: Final = config or PushConfig()
        if (handler is None) == (batch_handler is None):
            raise ConfigInvalid(f"consumer {group} needs a handler or a batch_handler, one of them")
        if handler is not None and self.config.batch_size != 1:
            raise ConfigInvalid(
                f"batch_size is {self.config.batch_size}: batches of several messages need a batch_handler"
            )
        self._callee = Callee(handler, batch_handler)
        client = client or ClientConfig()
        self._client_config = replace(client, namesrv=namesrv) if namesrv is not None else client
        self._client: ClientInstance | None = None
        self._member: GroupMember | None = None
        self._concurrent: ConcurrentConsumption | None = None
        self._subscriptions: dict[str, Expression] = {}
        self._closed = False

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, once. Messages come from now on.

        A name server or broker that does not answer yet is no error; see `health`. Raises ConfigInvalid, and
        BrokerError when a broker refuses an SQL92 expression.
        """
        if self._client is not None:
            raise ConfigInvalid(f"consumer {self.group} was started before; make a new one")
        self._client = client = await ClientInstance.acquire(self._client_config)
        config = self.config
        try:
            self._member = member = GroupMember(
                client,
                self.group,
                config,
                consume_type="CONSUME_PASSIVELY",
                orderly=config.orderly,
                span_max=None if config.orderly else config.span_max,
                carries_filter=config.post_subscription,
            )
            client.part(ConsumerGroups).add(self)
        except BaseException:
            self._closed = True
            await client.release()
            raise
        try:
            for topic, expression in self._subscriptions.items():
                member.subscribe(wrap(member.namespace, topic), expression)
            await member.start(self._consumption(client, member))
        except BaseException:
            await self.close()
            raise

    def _consumption(self, client: ClientInstance, member: GroupMember) -> Consumption:
        config = self.config
        send_back = SendBack(client, member.group, unit_mode=config.unit_mode)
        if config.orderly:
            lock = member.lock_one if member.locks else None
            return OrderlyConsumption(
                self._callee, config, send_back, member.stats, member.tasks, client.now_ms, lock
            )
        self._concurrent = ConcurrentConsumption(
            self._callee, config, send_back, member.stats, member.tasks, client.now_ms
        )
        member.every(config.consume_timeout_ms, self._expire, "handlers that take too long")
        return self._concurrent

    async def _expire(self) -> None:
        if self._concurrent is not None:
            self._concurrent.expire()

    async def close(self) -> bool:
        """Begin no more, wait for handlers, store offsets, leave the group, disconnect. Safe to call again.

        Waits for handlers for `PushConfig.close_timeout_ms`; what is not handled by then comes to another
        member, or to the next start. Returns whether every handler ended in time.
        """
        if self._client is None or self._member is None or self._closed or self._client.is_foreign:
            return True
        self._closed = True
        ended = False
        try:
            ended = await self._member.close()
            if not ended:
                log.warning("consumer %s closed while handlers were running", self.group)
            await self._client.part(ConsumerGroups).remove(self._member.group)
        finally:
            await self._client.release()
        return ended

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def health(self) -> Health:
        """How the consumer and its connections are doing. Raises ClientClosed when it does not run."""
        member = self.member
        health = member.client.health()
        problems = list(health.problems)
        if member.tasks.failure is not None:
            problems.append(f"background work failed: {member.tasks.failure!r}")
        problems += [
            f"topic {topic} has no route"
            for topic in member.subscriptions
            if topic not in member.queues_of and topic != retry_topic(member.group)
        ]
        return replace(health, ok=not problems, problems=tuple(problems))

    # -- what to consume ----------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Want a topic's messages: all of them, those with one of some tags (``a || b``), or by `Sql`.

        Before the start, or later: brokers hear of it soon. Again for a topic: the new expression counts.
        All members of a group must subscribe to the same. Raises ConfigInvalid.
        """
        subscription_data(topic, expression, 0)
        self._subscriptions[topic] = expression
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.subscribe(name, expression)
            self._member.tasks.spawn(self._member.introduce(name), "introduction")

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer. Its queues go to other members, if those still want it."""
        self._subscriptions.pop(topic, None)
        if self._member is not None and not self._closed:
            name = wrap(self._member.namespace, topic)
            self._member.unsubscribe(name)
            self._member.tasks.spawn(self._member.introduce(name), "introduction")

    def pause(self) -> None:
        """Pull no more. What was pulled is still handled. RocketMQ: suspend."""
        self.member.context.paused = True

    def resume(self) -> None:
        """Go on."""
        self.member.context.paused = False
        for puller in self.member.pullers.values():
            puller.wake()
        self.member.rebalance_soon()

    # -- what it is doing ---------------------------------------------------------------------

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member has now, those of messages that come again (``%RETRY%``) among them."""
        namespace = self.member.namespace
        return tuple(unwrap_queue(namespace, queue) for queue in sorted(self.member.pullers))

    def progress(self) -> dict[MessageQueue, int]:
        """For each queue of this member the offset of the next message that is not done with."""
        namespace = self.member.namespace
        return {unwrap_queue(namespace, queue): offset for queue, offset in self.member.progress().items()}

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on elsewhere in a queue of this member. RocketMQ: updateConsumeOffset, resetOffsetByTimeStamp.

        Handlers that run meanwhile go on; what they did is done again if it lies behind the offset.
        """
        name = wrap_queue(self.member.namespace, queue)
        await self.member.reset(name.topic, {name: offset})

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time, in ms since 1970."""
        return await self.member.asking.search_offset(wrap_queue(self.member.namespace, queue), timestamp_ms)

    def running_info(self) -> ConsumerRunningInfo:
        """What ``mqadmin consumerStatus`` shows of this member."""
        return running_info(self, self.member.client)

    # -- for the group ------------------------------------------------------------------------

    @property
    def member(self) -> GroupMember:
        """Its place in the group. Raises ClientClosed when it does not run."""
        if self._member is None or self._closed:
            state = "is closed" if self._closed else "was not started: use `async with`, or `await start()`"
            raise ClientClosed(f"the consumer {state}")
        return self._member

    async def consume_directly(self, message: MessageExt) -> Verdict:
        """Call the handler for one message, outside of its queue; nothing is committed by it."""
        return await self._callee.verdict([message], threads=self.config.threads)

    def running_properties(self) -> dict[str, str]:
        """Its settings, for operators."""
        return settings_text(self.config) | {"PROP_THREADPOOL_CORE_SIZE": str(self.config.concurrency)}
