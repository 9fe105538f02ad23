"""PushConsumer: calls a handler with each message; the members of a group share the queues.

Source: RocketMQ 4.6 DefaultMQPushConsumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap_queue, wrap_queue
from rocketpy.config import ClientConfig
from rocketpy.consumer.config import MessageModel, PushConfig, Sharing, check_integer
from rocketpy.consumer.group.broker_callbacks import DirectHandler, config_properties
from rocketpy.consumer.group.member import GroupMember
from rocketpy.consumer.group_consumer import GroupConsumer
from rocketpy.consumer.handling.concurrent import ConcurrentConsumeService
from rocketpy.consumer.handling.handler import HandlerAdapter
from rocketpy.consumer.handling.orderly import OrderlyConsumeService
from rocketpy.consumer.handling.send_back import SendBack
from rocketpy.consumer.handling.service import ConsumeService, HandlerService
from rocketpy.consumer.listeners import Observers
from rocketpy.consumer.outcomes import BatchHandler, Handler
from rocketpy.consumer.pop.sharing import PopSendBack
from rocketpy.errors import ConfigInvalid
from rocketpy.hooks import ProcessListener
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.application import check_callable
from rocketpy.telemetry.plugin import TelemetryChoice


class PushConsumer(GroupConsumer):
    """Calls a handler for each message of the topics that its group subscribes to.

        async def handle(message: MessageExt) -> None:
            ...

        consumer = PushConsumer("billing", "127.0.0.1:9876", handle)
        consumer.subscribe("Orders", "paid || refunded")
        async with consumer:
            await asyncio.Event().wait()

    Each message goes to one member of the group (or to every member, `MessageModel.BROADCASTING`), at least
    once. If the handler raises, or returns `ConsumeResult.LATER` or `Later`, the message is redelivered after
    a delay that grows. After 16 redeliveries it goes to the group's dead-letter topic, ``%DLQ%group``. A
    message that cannot be decoded never reaches a handler: it is logged and sent back in the same way.

    Each call of the handler gets a copy of the context (`contextvars`) in which the consumer was started.

    Two members of one group in a process need different `ClientConfig.instance_name` values.

    Args:
        group: The common name of the members; all of them must have the same subscriptions.
        namesrv: Address of the name servers, as for `Producer`.
        handler: Called with a message. An ``async def`` runs in the event loop, a plain function on a thread.
        batch_handler: Called with up to `PushConfig.batch_size` messages of a queue, instead of `handler`.
        config: Settings of the consumer.
        client: Settings of the client.
        listeners: Notified of each handler call, see `rocketpy.hooks`.
        telemetry: As for `Producer`.

    Raises:
        GroupInvalid: The group's name is not valid.
        ConfigInvalid: Settings contradict each other, there is not exactly one handler, or it does not take
            one argument.
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
        listeners: Iterable[ProcessListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        self.config: Final = config or PushConfig()
        observers = Observers(group, telemetry, listeners, self.config)
        super().__init__(group, namesrv, client, observers)
        if (handler is None) == (batch_handler is None):
            raise ConfigInvalid(f"consumer {group} needs exactly one of handler and batch_handler")
        chosen: object = handler if handler is not None else batch_handler
        check_callable(
            f"the handler of consumer {group}", chosen, "message" if handler is not None else "messages"
        )
        if handler is not None and self.config.batch_size != 1:
            raise ConfigInvalid(
                f"batch_size is {self.config.batch_size}; batches of several messages need a batch_handler"
            )
        self._adapter = HandlerAdapter(handler, batch_handler, observers.process)
        self._service: HandlerService | None = None

    def _make_member(self, client: ClientInstance) -> GroupMember:
        config = self.config
        return GroupMember(
            client,
            self.group,
            config,
            consume_type="CONSUME_PASSIVELY",
            orderly=config.orderly,
            span_max=None if config.orderly else config.span_max,
            carries_filter=config.post_subscription,
            stores_offsets=config.sharing is Sharing.QUEUES,
            push=None if config.model is MessageModel.BROADCASTING else config,
        )

    def _make_consume_service(self, member: GroupMember) -> ConsumeService:
        config, client = self.config, member.client
        self._adapter.use_context()
        settle, unit_mode, sharing = self._observers.settle, config.unit_mode, member.sharing
        send_back = (
            SendBack(client, member.group, settle, unit_mode=unit_mode)
            if sharing is None
            else PopSendBack(client, member.group, settle, sharing, unit_mode=unit_mode)
        )
        if config.orderly:
            lock = member.locks.renew if member.locks_queues else None
            self._service = OrderlyConsumeService(
                self._adapter, config, send_back, member.stats, member.tasks, client.now_ms, lock
            )
            return self._service
        concurrent = self._service = ConcurrentConsumeService(
            self._adapter, config, send_back, member.stats, member.tasks, client.now_ms
        )
        member.tasks.every(config.consume_timeout_ms / 1000, concurrent.expire, "expiry of handler calls")
        return concurrent

    def _is_in_handler(self) -> bool:
        service = self._member.consume_service if self._member is not None else None
        return self._adapter.is_calling() and service is not None and bool(service.in_progress())

    def pause(self) -> None:
        """Stop pulling. Messages that were pulled are still handled, and queues still move between members.

        RocketMQ: suspend, which stops rebalancing as well.
        """
        self.member.pause()

    def resume(self) -> None:
        """Continue to pull after `pause`."""
        self.member.resume()

    def progress(self) -> dict[MessageQueue, int]:
        """Return the offset to commit for each queue of this member."""
        namespace = self.member.namespace
        return {unwrap_queue(namespace, queue): offset for queue, offset in self.member.progress().items()}

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue of this member from another offset. Does nothing for other queues.

        Running handlers finish, but their results are ignored: messages at the offset or after it are handled
        again. An orderly consumer waits for the queue's handler. In a handler, the call returns immediately,
        and the queue continues from the offset soon after.

        RocketMQ: updateConsumeOffset, resetOffsetByTimeStamp.

        Raises:
            UsageError: The offset is not an integer, or the queue is not a `MessageQueue`.
            ClientClosed: The consumer does not run.
        """
        check_integer("offset", offset)
        name = wrap_queue(self.member.namespace, queue)
        resetting = self.member.reset(name.topic, {name: offset})
        if self._is_in_handler():  # the reset may wait for this handler
            self.member.tasks.spawn(resetting, f"seek {name}")
        else:
            await resetting

    def _make_direct_handler(self) -> DirectHandler:
        adapter, threads = self._adapter, self.config.threads
        return lambda message: adapter.handle([message], threads=threads)

    def _problems(self, member: GroupMember) -> list[str]:
        overdue = self._service.problems() if self._service is not None else []
        return member.problems() + self._adapter.problems() + overdue

    def running_properties(self) -> dict[str, str]:
        """Return the settings that administration tools show."""
        return config_properties(self.config) | {"PROP_THREADPOOL_CORE_SIZE": str(self.config.concurrency)}
