"""MessageSharing: how a push consumer gets, keeps and ends single messages instead of queues.

A `Popper` replaces the puller of a queue: it pops from all queues of a topic on one broker. It pops only what
handlers can begin with now, so that no message waits behind a long job while another member is idle. While it
waits for a message, it takes no handler's place from other topics and brokers.

The broker's queues have the id `ANY_QUEUE` in this member. Messages that are popped in order go to the
handlers by their own queues.

Source: RocketMQ 5.3.3 DefaultMQPushConsumerImpl popMessage, ConsumeMessagePopConcurrentlyService,
ConsumeMessagePopOrderlyService. Differs: RocketMQ does not extend messages, and holds pops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.config import PushConfig
from rocketpy.consumer.fetch.consumer_api import is_lasting
from rocketpy.consumer.fetch.process_queue import Limits, ProcessQueue
from rocketpy.consumer.fetch.puller import PullContext, Puller
from rocketpy.consumer.handling.send_back import SendBack
from rocketpy.consumer.handling.service import ConsumeService
from rocketpy.consumer.pop.api import PopApi, PopSettings
from rocketpy.consumer.pop.extender import Extender
from rocketpy.errors import BrokerError, RocketError
from rocketpy.hooks import SettleListener
from rocketpy.message.decode import undecodable
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.headers import POP_MAX_MESSAGES
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.runtime.progress import Progress
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.telemetry.listeners import ListenerFanout

log: Final = logging.getLogger("rocketpy.consumer")

_REQUEST_TIMEOUT_MS: Final = 5000
_WAIT_MS: Final = 15_000
"""How long a broker may hold a request until a message arrives."""
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
"""Pause after a broker announced a message and had none; it doubles."""
_ITERATIONS: Final = 4
"""Iterations of the event loop from the delivery of a message until its place is free, at least."""
_TRIAL_PAUSE: Final = 5
"""Pause after a failed pop from a broker on trial, in times of its duration."""
_ACK_AGAIN_S: Final = 1.0
_ACK_AGAIN_MAX_S: Final = 10.0
"""Pause before a failed acknowledgement is repeated; it doubles."""
_FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first redelivery, as in RocketMQ; each further one has the next level."""


class Trial:
    """Pops from a broker that may not answer: one at a time, for one message, after it answered a request.

    It may answer other requests and no pops, so pauses keep it from holding its place most of the time.
    """

    __slots__ = ("next_s", "turn")

    def __init__(self) -> None:
        self.turn: Final = asyncio.Lock()
        """Held by the popper whose turn it is."""
        self.next_s: float = 0.0
        """When the next pop may begin, on the monotonic clock."""

    def failed(self, held_s: float) -> None:
        """Record a pop that failed after it had held a place for a time."""
        self.next_s = time.monotonic() + _TRIAL_PAUSE * held_s


class MessageSharing:
    """What the poppers of one member share: requests, extensions, places, and acknowledgements."""

    def __init__(self, client: ClientInstance, group: str, config: PushConfig, tasks: Tasks) -> None:
        self.api: Final = PopApi(client, group, _REQUEST_TIMEOUT_MS, config)
        self.extender: Final = Extender(self.api, client.config, tasks, config.invisible_ms)
        self._config = config
        self._tasks = tasks
        self.answering: Final[set[str]] = set()
        """The brokers that have answered their last pop. The others are on trial, since all brokers share the
        places, and a pop without an answer holds its places until its timeout."""
        self._trials: dict[str, Trial] = {}
        self._all: Final = config.concurrency * config.batch_size
        self._free = self._all
        self._wakeup = asyncio.Event()
        self._finished: list[MessageExt] = []
        self._ending: set[int] = set()
        """The ids of the messages that are being acknowledged."""
        self._acks: set[asyncio.Task[None]] = set()
        self._limited_log = RateLimitedLog(log)

    def trial(self, broker_name: str) -> Trial:
        """Return the trial of a broker that is not known to answer pops."""
        return self._trials.setdefault(broker_name, Trial())

    async def take_places(self, most: int) -> int:
        """Wait for free places of handlers, and take them, at most `most`.

        Handlers that return at once end first: their places make one large pop instead of two.
        """
        wanted = min(most, self._all)
        for _ in range(_ITERATIONS):
            if self._free >= wanted:
                break
            await asyncio.sleep(0)
        while self._free <= 0:
            self._wakeup.clear()
            await self._wakeup.wait()
        taken = min(self._free, most)
        self._free -= taken
        return taken

    def free_places(self, count: int) -> None:
        """Give places back."""
        if count > 0:
            self._free += count
            self._wakeup.set()

    def settings(self, context: PullContext, topic: str) -> PopSettings | None:
        """Return how to pop a topic; None without a subscription."""
        subscription = context.subscription(topic)
        if subscription is None:
            return None
        return PopSettings(subscription, self._config.invisible_ms, order=self._config.orderly)

    def finished(self, messages: Sequence[MessageExt]) -> None:
        """Acknowledge messages soon, together with others of this iteration of the event loop."""
        if not self._finished:
            self._tasks.call_soon(self._acknowledge_finished)
        self._finished += messages
        self._ending.update(map(id, messages))

    def _acknowledge_finished(self) -> None:
        finished, self._finished = self._finished, []
        by_broker: dict[str, list[MessageExt]] = {}  # one may not respond
        for message in finished:
            by_broker.setdefault(message.queue.broker_name, []).append(message)
        for messages in by_broker.values():
            task = self._tasks.spawn(self._acknowledge(messages), "acknowledge messages")
            self._acks.add(task)
            task.add_done_callback(self._acks.discard)

    async def _acknowledge(self, messages: Sequence[MessageExt]) -> None:
        """Acknowledge messages, unless they were released. Failures are repeated while that can help."""
        try:
            await self._acknowledge_until_done(messages)
        finally:
            self._ending.difference_update(map(id, messages))

    async def _acknowledge_until_done(self, messages: Sequence[MessageExt]) -> None:
        await self.extender.let_go(messages)
        left = [message for message in messages if message.receipt is not None]
        pause_s = _ACK_AGAIN_S
        while left:
            errors = await self.api.ack_many(left)
            for error in errors.values():
                text = "a message was handled, and may come again: %s"
                self._limited_log.warning(type(error).__name__, text, error)
            left = [
                left[index]
                for index, error in errors.items()
                if not is_lasting(error) and left[index].receipt is not None
            ]
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ACK_AGAIN_MAX_S)

    async def release(self, messages: Collection[MessageExt], delay_ms: int = 0) -> None:
        """Give messages back to the group, as well as that is possible."""
        await asyncio.gather(*(self._release_one(message, delay_ms) for message in messages))

    async def _release_one(self, message: MessageExt, delay_ms: int) -> None:
        await self.extender.let_go([message])
        if message.receipt is None:
            return
        await self.api.try_to_release(message, delay_ms)
        message.receipt = None

    async def release_unstarted(self, service: ConsumeService) -> None:
        """Give back the messages that no handler has begun with."""
        await self.release(_unstarted(service, self._held))

    async def release_revoked(self, service: ConsumeService, popper: Popper) -> None:
        """Give back the messages of a revoked queue: at once what waits, the rest if handlers leave it."""
        poppers = [popper, *popper.popped.parts.values()]
        unstarted = _unstarted(
            service, lambda: [message for each in poppers for message in each.popped.unfinished()]
        )
        await self.release(unstarted)
        for each in poppers:
            each.popped.finish(unstarted, each.popped.consumed_ms)
        await asyncio.gather(*(self._release_rest(service, each) for each in poppers))

    async def _release_rest(self, service: ConsumeService, popper: Popper) -> None:
        await service.wait_released(popper)
        queue = popper.popped
        rest = queue.unfinished()
        await self.release(rest)
        queue.finish(rest, queue.consumed_ms)

    def _held(self) -> list[MessageExt]:
        return [message for message in self.extender.held() if id(message) not in self._ending]

    async def close(self, timeout_s: float) -> None:
        """Send the last acknowledgements, and end the extensions. Other messages come again in time."""
        self._acknowledge_finished()
        if self._acks:
            await asyncio.wait(set(self._acks), timeout=timeout_s)
        held = self._held()
        await self.extender.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.release(held)


def _unstarted(service: ConsumeService, messages: Callable[[], list[MessageExt]]) -> list[MessageExt]:
    """Return those of the unfinished messages that no handler has begun with."""
    started = service.started()  # first: it reports the calls that have ended, whose messages are finished
    busy = {id(each) for each in started if isinstance(each, MessageExt)}
    queues = {each for each in started if isinstance(each, MessageQueue)}
    return [each for each in messages() if id(each) not in busy and each.queue not in queues]


class PopQueue(ProcessQueue):
    """Unfinished messages that were popped from one topic on one broker, or in order from one queue."""

    __slots__ = ("_kept", "_sharing", "parts")

    def __init__(self, sharing: MessageSharing, queue: MessageQueue, now_ms: int) -> None:
        super().__init__(queue, 0, now_ms)
        self._sharing = sharing
        self._kept: dict[int, MessageExt] = {}
        self.parts: dict[MessageQueue, Popper] = {}
        """The queues whose messages were popped in order."""

    @property
    def commit_offset(self) -> int:
        """Always 0: the broker knows what is acknowledged."""
        return 0

    def is_locked(self, now_ms: int) -> bool:
        """Return True: the broker gives no other messages of the queue before these are acknowledged."""
        return True

    def is_full(self, limits: Limits) -> bool:
        # `MessageSharing.take_places` limits the messages.
        return False

    def add(self, messages: Sequence[MessageExt], next_offset: int = 0) -> None:
        """Add popped messages, and keep them invisible to others."""
        self._kept.update((id(message), message) for message in messages)
        self._grow(messages, 1)
        self._sharing.extender.hold(messages)

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Put messages back to the front; copies of them replace them."""
        for message in messages:
            if id(message) not in self._kept:
                before = next(
                    kept for kept in self._kept.values() if kept.queue_offset == message.queue_offset
                )
                del self._kept[id(before)]
                self._kept[id(message)] = message
                self._sharing.extender.replace(before, message)
        super().put_back(messages)

    def finish(self, messages: Sequence[MessageExt], now_ms: int) -> None:
        """Remove messages, and acknowledge those that were not released."""
        ended = [kept for kept in (self._kept.pop(id(each), None) for each in messages) if kept is not None]
        self._grow(ended, -1)
        super().finish((), now_ms)
        self._sharing.finished(ended)
        self._sharing.free_places(len(ended))

    def unfinished(self) -> list[MessageExt]:
        """Return the messages, without those of its parts."""
        return list(self._kept.values())

    def drop(self) -> None:
        """Mark as revoked. `MessageSharing.release_revoked` gives back what is not done."""
        super().drop()
        for part in self.parts.values():
            part.process_queue.drop()


class Popper(Puller):
    """Pops from one topic on one broker, with the failure handling of a puller."""

    __slots__ = ("_announced_pause_s", "_is_taking", "_sharing", "popped")

    def __init__(
        self, context: PullContext, sharing: MessageSharing, queue: MessageQueue, progress: Progress
    ) -> None:
        self.popped: Final = PopQueue(sharing, queue, int(context.client.now_ms()))
        super().__init__(context, self.popped, progress)
        self._sharing = sharing
        self._announced_pause_s = 0.0
        self._is_taking = False

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the end of a pause, or for places of handlers."""
        return self._is_taking or super().is_waiting

    async def _take_places(self, most: int) -> int:
        """Take places of handlers, see `MessageSharing.take_places`. The wait is no lack of progress."""
        began_ms = self._context.client.now_ms()
        self._is_taking = True
        try:
            return await self._sharing.take_places(most)
        finally:
            self._is_taking = False
            self.progress.since_ms += self._context.client.now_ms() - began_ms

    async def _pull_once(self) -> Sequence[MessageExt]:
        """Pop once; wait for a message if there is none."""
        try:
            return await self._pop_once()
        except BrokerError:
            raise
        except RocketError:
            self._sharing.answering.discard(self.process_queue.queue.broker_name)
            raise

    async def _pop_once(self) -> Sequence[MessageExt]:
        queue, sharing = self.process_queue.queue, self._sharing
        settings = sharing.settings(self._context, queue.topic)
        if settings is None:
            await self._wait()
            return ()
        is_answering = queue.broker_name in sharing.answering
        messages = await (self._pop(settings) if is_answering else self._try_to_pop(settings))
        if messages is None:
            return ()
        if messages:
            self._announced_pause_s = 0.0
            self._deliver(messages, in_order=settings.order)
        elif not self.is_paused:
            await self._wait_for_message(queue)
        return messages

    async def _try_to_pop(self, settings: PopSettings) -> list[MessageExt] | None:
        """Pop one message from a broker on trial; None if another topic has ended the trial."""
        queue, sharing = self.process_queue.queue, self._sharing
        trial = sharing.trial(queue.broker_name)
        async with trial.turn:
            if queue.broker_name in sharing.answering:
                return None
            await asyncio.sleep(trial.next_s - time.monotonic())
            await sharing.api.wait_for_message(queue.topic, queue.broker_name, 0)
            return await self._pop(settings, trial)

    async def _pop(self, settings: PopSettings, trial: Trial | None = None) -> list[MessageExt] | None:
        """Pop as many messages as handlers can begin with; None if the queue is not to be popped now."""
        queue, context, sharing = self.process_queue.queue, self._context, self._sharing
        places = await self._take_places(1 if trial is not None else POP_MAX_MESSAGES)
        messages: list[MessageExt] = []
        began_ms = context.client.now_ms()
        try:
            is_silent = trial is None and queue.broker_name not in sharing.answering  # another topic knows
            if self.is_paused or self.process_queue.dropped or is_silent:
                return None
            messages = await sharing.api.pop(queue.topic, queue.broker_name, settings, places, 0)
        except RocketError:
            if trial is not None:
                trial.failed((context.client.now_ms() - began_ms) / 1000)
            raise
        finally:
            sharing.free_places(places - len(messages))
        sharing.answering.add(queue.broker_name)
        ended_ms = context.client.now_ms()
        self.process_queue.pulled_ms = int(began_ms)
        self.progress.succeeded(ended_ms)
        if messages:
            context.record_pull(queue.topic, len(messages), ended_ms - began_ms)
        return messages

    async def _wait_for_message(self, queue: MessageQueue) -> None:
        if self._announced_pause_s:
            await asyncio.sleep(self._announced_pause_s)
        began_s = time.monotonic()
        is_announced = await self._sharing.api.wait_for_message(queue.topic, queue.broker_name, _WAIT_MS)
        was_quick = time.monotonic() - began_s < _PAUSE_MIN_S
        if is_announced and was_quick:  # others were faster, or its messages wait for their order
            self._announced_pause_s = min(max(_PAUSE_MIN_S, 2 * self._announced_pause_s), _PAUSE_MAX_S)
        else:
            self._announced_pause_s = 0.0 if is_announced or not was_quick else _PAUSE_MAX_S

    def _deliver(self, messages: list[MessageExt], *, in_order: bool) -> None:
        deliver, popped = self._context.deliver, self.popped
        if not in_order:
            popped.add(messages)
            deliver(self, messages, len(undecodable(messages)))
            return
        by_queue: dict[MessageQueue, list[MessageExt]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        for queue, part in by_queue.items():
            puller = popped.parts.get(queue)
            if puller is None or puller.process_queue.dropped:
                puller = popped.parts[queue] = Popper(self._context, self._sharing, queue, self.progress)
            puller.process_queue.add(part, 0)
            deliver(puller, part, len(undecodable(part)))


class PopSendBack(SendBack):
    """Makes a failed message visible again after its delay, instead of sending it back.

    Never raises: a message that cannot be released comes again after its invisible time.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        settle_listeners: ListenerFanout[SettleListener],
        sharing: MessageSharing,
        *,
        unit_mode: bool,
    ) -> None:
        super().__init__(client, group, settle_listeners, unit_mode=unit_mode)
        self._sharing = sharing
        self._levels = DelayLevels()

    async def send_back(
        self,
        message: MessageExt,
        queue: MessageQueue,
        delay_level: int,
        max_reconsume_times: int,
        reason: str | None = None,
    ) -> None:
        """Release a message after a delay, or make it a dead letter; see `SendBack.send_back`."""
        if message.receipt is None:
            await super().send_back(message, queue, delay_level, max_reconsume_times, reason)
            return
        sharing, started_ns = self._sharing, time.time_ns()
        await sharing.extender.let_go([message])
        if delay_level < 0 or message.reconsume_times >= max_reconsume_times:
            try:
                if message.decode_error is None:
                    await self.send_to_dead_letters(message, max_reconsume_times, reason)
                else:  # its broker makes the copy
                    await super().send_back(message, queue, -1, max_reconsume_times, reason)
            except RocketError as error:
                self._limited_log.error(
                    type(error).__name__, "%s could not be sent to the dead-letter topic: %s", message, error
                )
                await sharing.release([message], self._delay_ms(delay_level, message))
            return  # `finish` acknowledges it
        address = self._client.routes.cached_address(queue.topic, queue.broker_name)
        await sharing.release([message], self._delay_ms(delay_level, message))
        self._notify(message, started_ns, delay_level, address)

    async def send_to_dead_letters(
        self, message: MessageExt, max_reconsume_times: int, reason: str | None = None
    ) -> None:
        """Send a copy to the dead-letter topic, see `SendBack.send_to_dead_letters`."""
        times = message.reconsume_times
        if message.receipt is not None:  # brokers of 5.x store it there only above the maximum
            max_reconsume_times = times - 1
        await super().send_to_dead_letters(message, max_reconsume_times, reason)

    def _delay_ms(self, level: int, message: MessageExt) -> int:
        level = level if level > 0 else _FIRST_RETRY_LEVEL + message.reconsume_times
        delays_ms = self._levels.delays_ms
        return int(delays_ms[min(level, len(delays_ms)) - 1])
