"""SimpleConsumer: receives messages one by one; the members of a group share messages, not queues.

Source: RocketMQ 5's SimpleConsumer; here over the remoting protocol (POP).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap, wrap_queue
from rocketpy.client.routing.routes import subscribe_queues
from rocketpy.config import ClientConfig
from rocketpy.consumer.config import INVISIBLE_MAX_MS, SimpleConfig, check_integer
from rocketpy.consumer.fetch.consumer_api import is_lasting
from rocketpy.consumer.group.broker_callbacks import DirectHandler, config_properties
from rocketpy.consumer.group.member import GroupMember
from rocketpy.consumer.group.progress_watch import no_route
from rocketpy.consumer.group_consumer import GroupConsumer
from rocketpy.consumer.handling.send_back import SendBack
from rocketpy.consumer.handling.service import ConsumeService
from rocketpy.consumer.listeners import Observers
from rocketpy.consumer.outcomes import HandlingResult
from rocketpy.consumer.pop.api import PopApi, PopSettings
from rocketpy.consumer.pop.extender import CLOSE_S, Extender
from rocketpy.errors import AcksFailed, BrokerError, ClientClosed, ReceiptExpired, RocketError, UsageError
from rocketpy.hooks import ReceiveListener
from rocketpy.message.decode import log_undecodable
from rocketpy.message.message import MessageExt, check_received
from rocketpy.protocol.bodies import MessageQueue, TopicRouteData
from rocketpy.protocol.headers import ANY_QUEUE, POP_MAX_MESSAGES
from rocketpy.runtime.application import describe
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import subtask
from rocketpy.telemetry.plugin import TelemetryChoice

log: Final = logging.getLogger("rocketpy.consumer")

DEFAULT_INVISIBLE: Final = timedelta(seconds=60)
DEFAULT_WAIT: Final = timedelta(seconds=20)
_POLL_MAX_MS: Final = 5000
"""Longest time for which a broker is asked to hold a request. The route is looked up again afterwards."""
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
"""Pause after all brokers failed, or had nothing after they announced a message; it doubles."""
_RETRY_MAX_MS: Final = 60_000
"""How long the group's limit of deliveries is cached."""
_NO_LIMIT: Final = 2**31
"""Instead of a limit that is not known yet: no message is given up by a guess."""


class _Source(NamedTuple):
    """A topic on a broker; its name has the namespace."""

    topic: str
    broker_name: str


class SimpleConsumer(GroupConsumer):
    """Receives messages, which the application acknowledges one by one, in any order.

        async with SimpleConsumer("resizers", "127.0.0.1:9876") as consumer:
            consumer.subscribe("Images")
            for message in await consumer.receive(max_messages=8, invisible=timedelta(minutes=5)):
                ...
                await consumer.ack(message)

    The members of a group share messages, so a topic with one queue serves any number of members. A received
    message is invisible to the other members for a time. If it is not acknowledged by then, any member
    receives it again, with a higher `MessageExt.delivery_attempt`. After 16 further deliveries, or as many as
    the group's configuration says, it goes to the group's dead-letter topic, ``%DLQ%group``.

    Iteration extends the invisible time while the body of the loop runs, and acknowledges the
    message after it::

        async for message in consumer:
            ...

    If the loop is left by an exception or by ``break``, its current message is released. To keep what a
    ``break`` has finished, acknowledge it before.

    Messages may be received twice: handlers should be idempotent. A message that cannot be decoded has its
    raw body and `MessageExt.decode_error`; iteration sends it to the dead-letter topic.

    Needs brokers of RocketMQ 5.x or of rocketpy. All members of a group must share messages: a `PushConsumer`
    needs `Sharing.MESSAGES`.

    Args:
        group: The common name of the members; all of them must have the same subscriptions.
        namesrv: Address of the name servers, as for `Producer`.
        config: Settings of the consumer.
        client: Settings of the client.
        listeners: Notified of each request for messages, see `rocketpy.hooks`.
        telemetry: As for `Producer`.

    Raises:
        GroupInvalid: The group's name is not valid.
        ConfigInvalid: Settings contradict each other.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: SimpleConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ReceiveListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        observers = Observers(group, telemetry)
        for listener in listeners:
            observers.receive.add(listener)
        super().__init__(group, namesrv, client, observers)
        self.config: Final = config or SimpleConfig()
        self._limited_log = RateLimitedLog(log)
        self._last: _Source | None = None
        """Where the last messages came from; the next call begins with the next source."""
        self._failed: dict[_Source, str] = {}
        self._unrouted: dict[str, str] = {}
        """Topics whose last look-up has failed, and why."""
        self._sources_of: dict[str, tuple[TopicRouteData, tuple[_Source, ...]]] = {}
        self._retry_max: dict[str, tuple[int, float]] = {}
        """By broker name: the group's limit, and until when it is valid."""

    def _make_member(self, client: ClientInstance) -> GroupMember:
        member = GroupMember(
            client,
            self.group,
            self.config,
            consume_type="CONSUME_ACTIVELY",
            handles_retries=False,
            stores_offsets=False,
        )
        member.is_rebalanced = False
        self._api = PopApi(client, member.group, self.config.request_timeout_ms, self.config)
        self._send_back = SendBack(
            client, member.group, self._observers.settle, unit_mode=self.config.unit_mode
        )
        self._extender = Extender(self._api, client.config, member.tasks, self.config.extend_ms)
        return member

    async def _close(self, client: ClientInstance, member: GroupMember) -> bool:
        held = self._extender.held()
        await self._extender.close()
        with contextlib.suppress(TimeoutError):  # otherwise they come again after their invisible time
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(self._release_quietly(message) for message in held))
        return await super()._close(client, member)

    def _make_consume_service(self, member: GroupMember) -> ConsumeService | None:
        return None

    def _make_direct_handler(self) -> DirectHandler:
        group = self.group

        async def reject(_: MessageExt) -> HandlingResult:
            raise UsageError(f"consumer {group} has no handler: it receives messages")

        return reject

    def running_properties(self) -> dict[str, str]:
        """Return the settings that administration tools show."""
        return config_properties(self.config)

    async def start(self, *, wait: bool = True) -> None:
        """Join the group, see `PushConsumer.start`.

        Raises:
            ConfigInvalid: A broker of a subscribed topic has no POP: it is RocketMQ 4.x. Also as for
                `PushConsumer.start`.
            BrokerError: A broker rejects the member, for example without a right to its group.
        """
        await super().start(wait=wait)
        try:
            if wait:
                await self._api.check_brokers(self.member.queues_of)
        except BaseException:  # raised again: also a cancelled start cleans up
            await self.close()
            raise

    def _problems(self, member: GroupMember) -> list[str]:
        unrouted = [text for topic, text in self._unrouted.items() if topic in member.subscriptions]
        failed = [
            f"no messages of {unwrap(member.namespace, topic)} from broker {name}: {problem}"
            for (topic, name), problem in self._failed.items()
            if topic in member.subscriptions
        ]
        return [*member.problems(), *unrouted, *failed]

    # -- receive ------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = 1,
        invisible: timedelta = DEFAULT_INVISIBLE,
        wait: timedelta = DEFAULT_WAIT,
    ) -> list[MessageExt]:
        """Receive messages, and hide them from the other members of the group for a while.

        Several tasks may call it at the same time. It returns as soon as one broker has messages; the next
        call begins with another topic or broker. If the call is cancelled, messages that arrive later are
        released.

        Args:
            max_messages: Maximum number of messages, 1 to 32.
            invisible: How long other members do not get them, from now on. At most 3 days.
            wait: How long to wait for a message if there is none.

        Returns:
            The messages, each with a `MessageExt.receipt`; an empty list if none came in time.

        Raises:
            UsageError: An argument is not valid, or there is no subscription.
            ConfigInvalid: A broker is RocketMQ 4.x, which cannot share messages.
            RouteNotFound, TransportError, BrokerError: No broker could be asked during the whole time, or one
                has rejected the request.
        """
        check_integer("max_messages", max_messages)
        if not 1 <= max_messages <= POP_MAX_MESSAGES:
            raise UsageError(f"max_messages is {max_messages}; it must be from 1 to {POP_MAX_MESSAGES}")
        invisible_ms = _milliseconds("invisible", invisible, 1)
        client = self._running_client()
        end_ms = client.now_ms() + _milliseconds("wait", wait, 0)
        pause_s = _PAUSE_MIN_S
        while True:
            sources, error = await self._all_sources()
            is_only = len(sources) == 1
            left_ms = int(min(max(0, end_ms - client.now_ms()), _POLL_MAX_MS))
            failed = 0
            for source in self._in_turn(sources):
                try:
                    messages = await self._pop(source, max_messages, invisible_ms, left_ms if is_only else 0)
                except RocketError as raised:
                    failed, error = failed + 1, self._record_failure(source, raised)
                    continue
                if messages:
                    self._last = source
                    return messages
            left_ms = int(min(max(0, end_ms - client.now_ms()), _POLL_MAX_MS))
            if left_ms <= 0:
                if error is not None and failed == len(sources):
                    raise error
                return []
            if failed == len(sources):
                await asyncio.sleep(min(pause_s, left_ms / 1000))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            elif not is_only:
                began_ms = client.now_ms()
                await self._wait_for_any(sources, left_ms)
                if client.now_ms() - began_ms < pause_s * 1000:
                    await asyncio.sleep(min(pause_s, left_ms / 1000))
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                else:
                    pause_s = _PAUSE_MIN_S

    async def _all_sources(self) -> tuple[list[_Source], RocketError | None]:
        """Return all brokers of all topics, and the last error of a look-up."""
        topics = list(self.member.subscriptions)
        if not topics:
            raise UsageError(f"consumer {self.group} has no subscription; call subscribe()")
        found: list[_Source] = []
        error: RocketError | None = None
        for topic in topics:
            try:
                found += await self._find_sources(topic)
                self._unrouted.pop(topic, None)
            except RocketError as raised:
                error = raised
                self._unrouted[topic] = no_route(unwrap(self.member.namespace, topic), raised)
        for source in self._failed.keys() - set(found):
            del self._failed[source]
        return found, error

    async def _find_sources(self, topic: str) -> tuple[_Source, ...]:
        route = await self._running_client().routes.get(topic)
        known = self._sources_of.get(topic)
        if known is None or known[0] is not route:
            names = dict.fromkeys(queue.broker_name for queue in subscribe_queues(topic, route))
            known = self._sources_of[topic] = route, tuple(_Source(topic, name) for name in names)
        return known[1]

    def _in_turn(self, sources: Sequence[_Source]) -> Sequence[_Source]:
        """Return the sources, beginning after the one that gave messages last."""
        if self._last not in sources:
            return sources
        at = sources.index(self._last) + 1
        return [*sources[at:], *sources[:at]]

    async def _pop(
        self, source: _Source, max_messages: int, invisible_ms: int, poll_ms: int
    ) -> list[MessageExt]:
        subscription = self.member.subscriptions.get(source.topic)
        if subscription is None:
            return []
        settings = PopSettings(subscription, invisible_ms)
        queue = MessageQueue(source.topic, source.broker_name, ANY_QUEUE)
        on_pull, started_ns = self._observers.on_pull, time.time_ns()
        try:
            messages = await self._api.pop(*source, settings, max_messages, poll_ms)
        except RocketError as error:
            on_pull(queue, started_ns, error)
            raise
        on_pull(queue, started_ns, messages)
        self._failed.pop(source, None)
        if not messages:
            return messages
        self.member.undecodable += log_undecodable(messages, log)
        try:
            limit = await self._limit(source)
            if all(message.reconsume_times <= limit for message in messages):
                return messages
            return [message for message in messages if not await self._is_given_up(message, limit)]
        except asyncio.CancelledError:
            self._api.release_soon(messages)
            raise

    async def _limit(self, source: _Source) -> int:
        """Return how often a message is delivered again."""
        if self.config.max_reconsume_times >= 0:
            return self.config.max_reconsume_times
        limit, until_ms = self._retry_max.get(source.broker_name, (_NO_LIMIT, 0.0))
        now_ms = self._api.client.now_ms()
        if now_ms >= until_ms:
            try:
                limit = await self._api.retry_max(*source)
            except BrokerError as error:  # such as a lack of rights: asking again soon does not help
                log.debug("the limit of deliveries of group %s is not known: %s", self.group, error)
            except RocketError:
                return limit
            self._retry_max[source.broker_name] = limit, now_ms + _RETRY_MAX_MS
        return limit

    async def _is_given_up(self, message: MessageExt, limit: int) -> bool:
        """Send a message to the dead-letter topic if it was delivered too often; return whether it was."""
        if message.reconsume_times <= limit:
            return False
        reason = f"delivered {message.reconsume_times} times without an acknowledgement"
        return await self._send_to_dead_letters(message, limit, reason)

    async def _send_to_dead_letters(self, message: MessageExt, limit: int, reason: str) -> bool:
        try:
            if message.decode_error is None:
                await self._send_back.send_to_dead_letters(message, limit, reason)
            else:  # its broker makes the copy
                queue = wrap_queue(self._api.client.config.namespace, message.queue)
                await self._send_back.send_back(message, queue, -1, limit, reason)
            await self._api.ack(message)
        except ReceiptExpired:
            return True
        except RocketError as error:
            text = "%s could not be sent to the dead-letter topic: %s"
            self._limited_log.error(type(error).__name__, text, message, error)
            return False
        return True

    def _record_failure(self, source: _Source, error: RocketError) -> RocketError:
        """Log an error of a broker; raise it again if no repetition can help."""
        self._failed[source] = str(error)
        if is_lasting(error):
            raise error
        text = "consumer %s received nothing from broker %s: %s"
        self._limited_log.info(str(source), text, self.group, source.broker_name, error)
        return error

    async def _wait_for_any(self, sources: Sequence[_Source], poll_ms: int) -> None:
        """Wait until one of the brokers has a message, or the time is over."""
        waits = [subtask(self._wait_for(source, poll_ms), f"wait for {source}") for source in sources]
        try:
            await asyncio.wait(waits, timeout=poll_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _wait_for(self, source: _Source, poll_ms: int) -> None:
        """Wait until a broker has a message; without an end if it fails, or has none in time."""
        with contextlib.suppress(RocketError):
            if await self._api.wait_for_message(*source, poll_ms):
                return
        await asyncio.sleep(poll_ms / 1000)

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Yield messages until the consumer is closed; see the class for how each is acknowledged."""
        invisible = timedelta(milliseconds=self.config.extend_ms)
        while True:
            try:
                messages = await self.receive(1, invisible)
            except ClientClosed:
                if not self._closed:
                    raise
                return
            except RocketError as error:
                if is_lasting(error):
                    raise
                continue  # logged, and shown by `health`
            for message in messages:
                if message.decode_error is not None:
                    await self._send_to_dead_letters(message, 0, describe(message.decode_error))
                    continue
                self._extender.hold([message])
                try:
                    yield message
                except GeneratorExit:  # the loop was left
                    await self._extender.let_go([message])
                    await self._release_quietly(message)
                    raise
                await self._acknowledge_quietly(message)

    async def _acknowledge_quietly(self, message: MessageExt) -> None:
        """Acknowledge a message that was worked on, unless the application did; log an error."""
        await self._extender.let_go([message])
        if message.receipt is None:
            return
        try:
            await self._api.ack(message)
        except RocketError as error:
            text = "%s was worked on, and may come again: %s"
            self._limited_log.warning(type(error).__name__, text, message, error)

    async def _release_quietly(self, message: MessageExt) -> None:
        if message.receipt is None or self._api.client.is_forked_copy:
            return
        await self._api.try_to_release(message)

    # -- ends of a delivery -------------------------------------------------------------------

    async def ack(self, message: MessageExt) -> None:
        """Acknowledge a message: no member gets it again.

        Args:
            message: A received message; its `receipt` is None afterwards.

        Raises:
            ReceiptExpired: Its invisible time is over, so another member may get it; or it was
                acknowledged or released before.
            TransportError, BrokerError: The broker did not respond, or rejected it. Repeat the call.
        """
        self._running_client()
        await self._extender.let_go([check_received(message)])
        await self._api.ack(message)

    async def ack_many(self, messages: Iterable[MessageExt]) -> None:
        """Acknowledge messages together, with one request for each broker.

        Raises:
            AcksFailed: Some are not acknowledged; `failed` has the error of each, as for `ack`.
        """
        self._running_client()
        chosen = [check_received(message) for message in messages]
        await self._extender.let_go(chosen)
        errors = await self._api.ack_many(chosen)
        if errors:
            raise AcksFailed([(chosen[index], errors[index]) for index in sorted(errors)], len(chosen))

    async def extend(self, message: MessageExt, invisible: timedelta) -> None:
        """Hide a message from other members for a time from now on, whether longer or shorter than before.

        Args:
            message: A received message; it gets a new `receipt`.
            invisible: For how long, at most 3 days.

        Raises:
            ReceiptExpired: As for `ack`.
            TransportError, BrokerError: The broker did not respond, or rejected it.
        """
        self._running_client()
        await self._extender.let_go([check_received(message)])
        await self._api.change_invisible(message, _milliseconds("invisible", invisible, 1))

    async def release(self, message: MessageExt, delay: timedelta = timedelta(0)) -> None:
        """Give a message back, so that any member can receive it. It counts as a delivery.

        Args:
            message: A received message; its `receipt` is None afterwards.
            delay: When it becomes visible. Brokers need about a second longer.

        Raises:
            ReceiptExpired: As for `ack`.
            TransportError, BrokerError: The broker did not respond, or rejected it.
        """
        self._running_client()
        await self._extender.let_go([check_received(message)])
        await self._api.change_invisible(message, _milliseconds("delay", delay, 0))
        message.receipt = None


def _milliseconds(name: str, value: object, least: int) -> int:
    if not isinstance(value, timedelta):
        raise UsageError(f"{name} is {value!r}; it must be a timedelta, such as timedelta(seconds=30)")
    milliseconds = math.ceil(value / timedelta(milliseconds=1))
    if not least <= milliseconds <= INVISIBLE_MAX_MS:
        raise UsageError(f"{name} is {value}; it must be from {least} ms to 3 days")
    return milliseconds
