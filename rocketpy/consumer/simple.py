"""SimpleConsumer: receives messages one by one; the members of a group share messages, not queues.

Source: RocketMQ 5's SimpleConsumer; here over the remoting protocol (POP).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
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
from rocketpy.errors import (
    AcksFailed,
    BrokerError,
    ClientClosed,
    ReceiptExpired,
    RocketError,
    TransportError,
    UsageError,
)
from rocketpy.hooks import ReceiveListener
from rocketpy.message.decode import log_undecodable
from rocketpy.message.message import MessageExt, check_received
from rocketpy.protocol.bodies import MessageQueue, TopicRouteData
from rocketpy.protocol.headers import ANY_QUEUE, POP_MAX_MESSAGES
from rocketpy.runtime.application import describe
from rocketpy.runtime.rate_limited_log import RateLimitedLog, abbreviate
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
_SILENCE_MAX_S: Final = 10.0
"""Longest pause after a pop without a response, before its broker is asked again: it may answer the rest."""
_RETRY_MAX_WAIT_S: Final = 1.0
"""How long a call waits for the group's limit of deliveries: the invisible time of its messages runs."""
_RETRY_MAX_AGAIN_MS: Final = 5000
"""Pause after the group's limit of deliveries could not be read."""
_RETRY_MAX_MS: Final = 60_000
"""How long the group's limit of deliveries is cached."""
_NO_LIMIT: Final = 2**31
"""Instead of a limit that is not known yet: no message is given up by a guess."""


class _Source(NamedTuple):
    """A topic on a broker; its name has the namespace."""

    topic: str
    broker_name: str


class _Body:
    """The body of a loop over a consumer, while it works on a message."""

    __slots__ = ("is_left", "is_over", "message", "outer", "task", "thread")

    def __init__(self, message: MessageExt, thread: threading.Thread | None) -> None:
        self.message: Final = message
        self.thread: Final = thread
        """The thread that runs a blocking loop; None for a task."""
        self.task: Final = asyncio.current_task() if thread is None else None
        """The task that got the message: of the loop, or only of its `anext`."""
        outer = _current_body.get(None)
        self.outer: Final = None if outer is None or outer.is_over else outer
        """The body around this loop."""
        self.is_left: bool = False
        """Whether it has called `close`, which must not wait for it."""
        self.is_over: bool = False

    def is_working(self) -> bool:
        """Return whether `close` has to wait for it: its message is not acknowledged or released yet."""
        if self.thread is not None:
            is_gone = not self.thread.is_alive()
        else:
            is_gone = self.task is None or self.task.done()
        return self.message.receipt is not None and not self.is_left and not is_gone


_current_body: Final = ContextVar[_Body | None]("rocketpy loop body")
"""The body that the current code belongs to: a task that a body starts has it, too."""


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
    ``break`` has finished, acknowledge it before. `close` waits up to `MemberConfig.close_timeout_ms` for the
    bodies of loops in other tasks, and then releases their messages; a body that calls it leaves its loop.

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
        self._unrouted: dict[str, str] = {}
        """Topics whose last look-up has failed, and why."""
        self._failed: dict[_Source, RocketError] = {}
        self._silent: dict[str, asyncio.Task[None]] = {}
        """The brokers that did not respond; no call waits for them. The task ends when its broker answers."""
        self._silences_s: dict[str, float] = {}
        """By broker name: the last pause before it was asked again. It doubles until a pop succeeds."""
        self._sources_of: dict[str, tuple[TopicRouteData, tuple[_Source, ...]]] = {}
        self._bodies: set[_Body] = set()
        self._body_ended = asyncio.Event()
        self._settles = True
        """Whether messages can be acknowledged and released: also while `close` waits for bodies."""
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

    def _is_in_handler(self) -> bool:
        """Let `close` not wait for the bodies that call it; they wait for it."""
        bodies: Iterable[_Body] = self._bodies
        if (thread := self.calling_thread()) is not None:
            bodies = [body for body in bodies if body.thread is thread]
        else:
            own, body = set[_Body](), _current_body.get(None)
            while body is not None:
                own.add(body)
                body = body.outer
            bodies = own & self._bodies
        for body in bodies:
            body.is_left = True
        self._body_ended.set()
        return False

    async def _wait_for_bodies(self) -> bool:
        """Wait for the bodies of loops, which keep their messages meanwhile; return whether all ended."""
        await asyncio.sleep(0)  # for loops that were left right before
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.close_timeout_ms / 1000):
                while any(body.is_working() for body in self._bodies):
                    self._body_ended.clear()
                    await self._body_ended.wait()
        left = [body.message for body in self._bodies if body.is_working()]
        if left:
            text = "consumer %s closed while loops worked on %s; these messages are redelivered"
            log.warning(text, self.group, abbreviate(left))
        return not left

    async def _close(self, client: ClientInstance, member: GroupMember) -> bool:
        is_in_time = await self._wait_for_bodies()
        self._settles = False
        held = self._extender.held()
        await self._extender.close()
        with contextlib.suppress(TimeoutError):  # otherwise they come again after their invisible time
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(self._release_quietly(message) for message in held))
        return await super()._close(client, member) and is_in_time

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
            f"no messages of {unwrap(member.namespace, topic)} from broker {name}: {error}"
            for (topic, name), error in self._failed.items()
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
            wait: How long to wait for a message if there is none. A call that finds a broker silent takes up
                to `MemberConfig.request_timeout_ms` longer. Later calls leave the broker out until it
                responds.

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

        def left_ms() -> int:
            return int(min(max(0, end_ms - client.now_ms()), _POLL_MAX_MS))

        pause_s = _PAUSE_MIN_S
        while True:
            sources, error = await self._all_sources()
            is_only, answers, began_ms = len(sources) == 1, 0, client.now_ms()
            for source in self._in_turn(sources):
                if source.broker_name in self._silent:
                    error = self._error_of(source.broker_name) or error
                    continue
                poll_ms = left_ms() if is_only else 0
                try:
                    messages = await self._pop(source, max_messages, invisible_ms, poll_ms)
                except RocketError as raised:
                    error = self._record_failure(source, raised)
                    continue
                answers += 1
                if messages:
                    if self._closed:  # meanwhile
                        self._api.release_soon(messages)
                    self._running_client()
                    self._last = source
                    return messages
            if left_ms() <= 0:
                if error is not None and not answers:
                    raise error
                return []
            if not answers:
                await self._wait_for_any((), min(int(pause_s * 1000), left_ms()))
            elif not is_only:  # else its broker has held the pop
                asked = [source for source in sources if source.broker_name not in self._silent]
                began_ms = client.now_ms()
                await self._wait_for_any(asked, left_ms())
            if answers and client.now_ms() - began_ms >= pause_s * 1000:
                pause_s = _PAUSE_MIN_S
            else:
                if answers:
                    await asyncio.sleep(min(pause_s, left_ms() / 1000))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

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
        for name in self._silent.keys() - {source.broker_name for source in found}:
            self.member.tasks.cancel_soon(self._silent.pop(name))
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
        """Pop from a broker. A pop that is given up counts as a delivery, so it has its whole timeout."""
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
        self._silences_s.pop(source.broker_name, None)
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
            valid_ms = _RETRY_MAX_MS
            try:
                async with asyncio.timeout(_RETRY_MAX_WAIT_S):
                    limit = await self._api.retry_max(*source)
            except BrokerError as error:  # such as a lack of rights: asking again soon does not help
                log.debug("the limit of deliveries of group %s is not known: %s", self.group, error)
            except (RocketError, TimeoutError):
                valid_ms = _RETRY_MAX_AGAIN_MS
            self._retry_max[source.broker_name] = limit, now_ms + valid_ms
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
        self._failed[source] = error
        if is_lasting(error):
            raise error
        name = source.broker_name
        if isinstance(error, TransportError) and name not in self._silent:
            pause_s = self._silences_s.get(name, _PAUSE_MIN_S)
            self._silences_s[name] = min(2 * pause_s, _SILENCE_MAX_S)
            spawn = self.member.tasks.spawn  # raises ClientClosed
            self._silent[name] = spawn(self._ask_again(source, pause_s), f"ask broker {name} again")
        text = "consumer %s received nothing from broker %s: %s"
        self._limited_log.info(str(source), text, self.group, name, error)
        return error

    def _error_of(self, broker_name: str) -> RocketError | None:
        return next(
            (error for source, error in self._failed.items() if source.broker_name == broker_name), None
        )

    async def _ask_again(self, source: _Source, pause_s: float) -> None:
        """Ask a broker that did not respond until it answers, so that no call waits for it meanwhile."""
        try:
            while True:
                await asyncio.sleep(pause_s)
                try:
                    await self._api.wait_for_message(*source, 0)
                except TransportError as error:
                    self._failed[source] = error
                except RocketError:
                    break  # the next call raises it
                else:
                    break
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            if self._silent.get(source.broker_name) is asyncio.current_task():  # else it is cancelled
                del self._silent[source.broker_name]

    async def _wait_for_any(self, sources: Sequence[_Source], poll_ms: int) -> None:
        """Wait until one of the brokers has a message, a silent one answers, or the time is over."""
        waits = [subtask(self._wait_for(source, poll_ms), f"wait for {source}") for source in sources]
        waits.append(subtask(asyncio.sleep(poll_ms / 1000), "end of the wait"))
        try:
            await asyncio.wait([*waits, *self._silent.values()], return_when=asyncio.FIRST_COMPLETED)
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
                body = _Body(message, self.calling_thread())
                self._bodies.add(body)
                _current_body.set(body)
                try:
                    yield message
                    await self._acknowledge_quietly(message)
                except GeneratorExit:  # the loop was left
                    await self._extender.let_go([message])
                    await self._release_quietly(message)
                    raise
                finally:
                    body.is_over = True
                    self._bodies.discard(body)
                    self._body_ended.set()
                    _current_body.set(body.outer)

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

    async def _let_go(self, messages: Sequence[MessageExt]) -> None:
        """Extend messages no longer, since the application ends or extends them. Raises ClientClosed."""
        if self._client is not None and self._closing is not None and self._settles:
            self._client.check_loop()
        else:
            self._running_client()
        await self._extender.let_go(messages)

    async def ack(self, message: MessageExt) -> None:
        """Acknowledge a message: no member gets it again.

        Args:
            message: A received message; its `receipt` is None afterwards.

        Raises:
            ReceiptExpired: Its invisible time is over, so another member may get it; or it was
                acknowledged or released before.
            TransportError, BrokerError: The broker did not respond, or rejected it. Repeat the call.
        """
        await self._let_go([check_received(message)])
        await self._api.ack(message)
        self._body_ended.set()

    async def ack_many(self, messages: Iterable[MessageExt]) -> None:
        """Acknowledge messages together, with one request for each broker.

        Raises:
            AcksFailed: Some are not acknowledged; `failed` has the error of each, as for `ack`.
        """
        chosen = [check_received(message) for message in messages]
        await self._let_go(chosen)
        errors = await self._api.ack_many(chosen)
        self._body_ended.set()
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
        await self._let_go([check_received(message)])
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
        await self._let_go([check_received(message)])
        await self._api.change_invisible(message, _milliseconds("delay", delay, 0))
        message.receipt = None
        self._body_ended.set()


def _milliseconds(name: str, value: object, least: int) -> int:
    if not isinstance(value, timedelta):
        raise UsageError(f"{name} is {value!r}; it must be a timedelta, such as timedelta(seconds=30)")
    milliseconds = math.ceil(value / timedelta(milliseconds=1))
    if not least <= milliseconds <= INVISIBLE_MAX_MS:
        raise UsageError(f"{name} is {value}; it must be from {least} ms to 3 days")
    return milliseconds
