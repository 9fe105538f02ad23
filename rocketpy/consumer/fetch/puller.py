"""Puller: one task per queue, which pulls from a broker while the queue is assigned to this member.

A broker holds a pull that finds nothing until a message arrives. Pulls wait while too many messages of the
queue are cached, and while the consumer is paused. Otherwise the next pull is sent before the messages of the
last one are decoded, so that the broker processes it at the same time.

A failed pull or an inconsistent response is followed by a pause, which doubles each time. The pause after an
empty response that the broker did not hold begins at 1 ms.

Messages are decoded one by one. A message that cannot be decoded is delivered with its `decode_error`. A pull
that begins at a record with an invalid length fails.

Source: RocketMQ 4.6 DefaultMQPushConsumerImpl pullMessage, PullAPIWrapper.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.config import MemberConfig
from rocketpy.consumer.fetch.consumer_api import (
    UNKNOWN_SUBSCRIPTION,
    ConsumerApi,
    PullResponse,
    is_lasting,
    is_rejection,
    to_pull_response,
)
from rocketpy.consumer.fetch.process_queue import Limits, ProcessQueue
from rocketpy.consumer.fetch.subscription import restore_topics, wanted_messages
from rocketpy.errors import (
    BrokerError,
    ConnectionLost,
    InvariantError,
    ProtocolError,
    RemoteProtocolError,
    Retry,
    RocketError,
    StoreError,
)
from rocketpy.message.decode import decode_pull, undecodable
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MASTER_ID, MessageQueue, SubscriptionData
from rocketpy.protocol.headers import PullMessageRequestHeader
from rocketpy.protocol.message.compression import InflatesTooFar
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import PullStatus
from rocketpy.runtime.progress import Progress
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log: Final = logging.getLogger("rocketpy.consumer")

_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 3.0
"""After a failed pull, doubling. RocketMQ: 3000 ms, fixed."""
_RECENT_MOVE_MS: Final = 10_000
"""A queue whose offset is reset again within this time pauses. RocketMQ always waits 10 s."""
_EMPTY_PAUSE_MIN_S: Final = 0.001
_EMPTY_PAUSE_MAX_S: Final = 1.0
"""Pause after an immediate response without messages, doubling. RocketMQ: none; its brokers hold a pull for a
second where long polling is disabled."""
_LONG_POLL_MS: Final = 100
"""A pull that takes longer was held by the broker."""
_PULL_COUNT_MIN: Final = 32
"""A pull may exceed a lower limit of cached messages, as RocketMQ's pulls do."""
_MASTER_ONLY_MS: Final = 30_000
"""How long a queue is pulled from the master after a slave failed. RocketMQ: none."""


OnPull = Callable[[MessageQueue, int, Sequence[MessageExt] | RocketError], None]
"""Called with the queue of a pull, its start (ns since 1970), and its messages or error."""


@dataclass(slots=True, kw_only=True)
class PullContext:
    """The parts of a member that its pullers share."""

    client: ClientInstance
    tasks: Tasks
    api: ConsumerApi
    config: MemberConfig
    subscription: Callable[[str], SubscriptionData | None]
    """Returns the subscription of a topic; None if there is none."""
    limits: Callable[[], Limits]
    """Returns the limits of a queue."""
    deliver: Callable[[Puller, list[MessageExt], int], None]
    """Receives the messages of a pull, and how many of them cannot be decoded."""
    on_offset_illegal: Callable[[Puller, int], None]
    """Called when an offset is outside of its queue, with the offset to continue at."""
    commits: bool
    """Whether pulls carry the offset to commit."""
    carries_filter: bool
    """Whether they carry the subscription."""
    record_pull: Callable[[str, int, float], None]
    """Called with topic, number of messages and duration in ms of each pull that found some."""
    rejection_log: RateLimitedLog
    """For rejected requests, the same for all queues."""
    on_pull: OnPull | None = None
    """None without listeners."""
    paused: bool = False
    """No queue is pulled."""


class _PullFields:
    """The encoded header of a queue's pulls for one subscription; three fields differ between pulls.

    A new header for each pull costs 3 % of a drain (tools.bench.push). header: of any pull; `fields` replaces
    the three fields.
    """

    __slots__ = ("_committing", "_fields", "_plain", "subscription")

    def __init__(self, subscription: SubscriptionData, header: PullMessageRequestHeader) -> None:
        self.subscription: Final = subscription
        self._fields = header.ext_fields()
        plain = header.sys_flag & ~PullSysFlag.COMMIT_OFFSET
        self._plain, self._committing = str(plain), str(plain | PullSysFlag.COMMIT_OFFSET)

    def fields(self, queue_offset: int, commit_offset: int) -> dict[str, str]:
        """Return the fields of a pull. commit_offset: the offset that the broker commits; 0 for none."""
        fields = self._fields.copy()
        fields["queueOffset"] = str(queue_offset)
        fields["commitOffset"] = str(commit_offset)
        fields["sysFlag"] = self._committing if commit_offset > 0 else self._plain
        return fields


class Puller:
    """Pulls one queue.

    progress: of its pulls; an empty response counts as a success.
    """

    __slots__ = (
        "_broker_id",
        "_context",
        "_empty_pause_s",
        "_limited_log",
        "_master_only_until_ms",
        "_pause_s",
        "_prefetched",
        "_pulls",
        "_task",
        "_wakeup",
        "paused",
        "process_queue",
        "progress",
    )  # fmt: skip

    def __init__(self, context: PullContext, process_queue: ProcessQueue, progress: Progress) -> None:
        self._context = context
        self._broker_id = MASTER_ID
        self._master_only_until_ms = 0.0
        self._pause_s = _PAUSE_MIN_S
        self._empty_pause_s = _EMPTY_PAUSE_MIN_S
        self._limited_log = RateLimitedLog(log)
        self._task: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._prefetched: asyncio.Future[Command] | None = None
        self._pulls: _PullFields | None = None
        self.process_queue: Final = process_queue
        self.paused: bool = False
        self.progress: Final = progress

    def start(self) -> None:
        """Start pulling."""
        self._task = self._context.tasks.spawn(self._run(), f"pull {self.process_queue.queue}")

    def stop(self) -> None:
        """Stop pulling; a pending response is ignored."""
        self._context.tasks.cancel_soon(self._task)
        self._cancel_prefetch()

    def wake(self) -> None:
        """Check again whether to pull: handlers have finished messages, or a pause has ended."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    @property
    def is_paused(self) -> bool:
        """Whether the application has paused the queue, or the consumer."""
        return self.paused or self._context.paused

    @property
    def is_waiting(self) -> bool:
        """Whether pulls wait for the end of a pause, or for handlers."""
        return self._wakeup is not None

    async def _wait_for_wake(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None
        self.progress.restart(self._context.client.now_ms())

    async def _run(self) -> None:
        process_queue, context = self.process_queue, self._context
        while not process_queue.dropped:
            if self.is_paused or process_queue.is_full(context.limits()):
                await self._wait_for_wake()
                continue
            try:
                await self._pull()
                self._pause_s = _PAUSE_MIN_S
            except RocketError as error:
                await self._recover(error)
            except (InvariantError, asyncio.CancelledError):
                raise
            except Exception as error:  # a bug must not stop the queue: no other member would pull it
                log.exception("pull of %s failed", process_queue.queue)
                self.progress.failed(repr(error))
                self._cancel_prefetch()
                await self._wait()
            if context.config.pull_interval_ms:
                await asyncio.sleep(context.config.pull_interval_ms / 1000)

    async def _pull(self) -> None:
        on_pull = self._context.on_pull
        if on_pull is None:
            await self._pull_once()
            return
        started_ns = time.time_ns()
        try:
            messages = await self._pull_once()
        except RocketError as error:
            on_pull(self.process_queue.queue, started_ns, error)
            raise
        on_pull(self.process_queue.queue, started_ns, messages)

    async def _pull_once(self) -> Sequence[MessageExt]:
        """Pull once; return the messages."""
        process_queue, context, config = self.process_queue, self._context, self._context.config
        subscription = context.subscription(process_queue.queue.topic)
        if subscription is None:
            await self._wait()
            return ()
        now = context.client.now_ms()
        process_queue.pulled_ms = int(now)
        response = await self._next_response(subscription)
        if process_queue.dropped:
            return ()
        self._broker_id = (
            response.header.suggest_which_broker_id if now >= self._master_only_until_ms else MASTER_ID
        )
        if response.status is PullStatus.FOUND:
            self._empty_pause_s = _EMPTY_PAUSE_MIN_S
            if self._prefetch(subscription, response):
                await asyncio.sleep(0)  # sends it, together with those of other queues
            found = decode_pull(
                response.body,
                process_queue.queue,
                process_queue.next_offset,
                response.header.next_begin_offset,
                offset_delta=response.header.offset_delta,
                max_body_bytes=config.max_body_bytes,
                max_total_bytes=context.limits().size - process_queue.size,
                verify=config.verify_checksums,
            )
            if found.next_offset != response.header.next_begin_offset:
                self._cancel_prefetch()  # it would skip messages that were not decoded
            wanted = wanted_messages(found.messages, subscription.tags_set)
            messages = restore_topics(wanted, context.api.group, context.client.config.namespace)
            ended = context.client.now_ms()
            context.record_pull(process_queue.queue.topic, len(messages), ended - now)
            self.progress.succeeded(ended)
            process_queue.add(messages, found.next_offset)
            if messages:
                context.deliver(self, messages, len(undecodable(messages)) if found.undecodable else 0)
            return messages
        if response.status is PullStatus.OFFSET_ILLEGAL:
            self._handle_illegal_offset(response)
            await asyncio.sleep(0)  # the call above cancelled this task, which ends here without another pull
            return ()
        ended = context.client.now_ms()
        self.progress.succeeded(ended)
        if response.header.next_begin_offset > process_queue.next_offset or ended - now >= _LONG_POLL_MS:
            self._empty_pause_s = _EMPTY_PAUSE_MIN_S
        else:
            await self._wait_for_messages(response.status)
        process_queue.next_offset = response.header.next_begin_offset
        return ()

    async def _wait_for_messages(self, status: PullStatus) -> None:
        """Pause, longer each time, because the broker did not hold the pull.

        RocketMQ's slave responds NO_MATCHED_MSG if it has less than this consumer has read from the master.
        """
        if status is PullStatus.NO_MATCHED_MSG:
            self._empty_pause_s = max(self._empty_pause_s, _PAUSE_MIN_S)
        await asyncio.sleep(self._empty_pause_s)
        self._empty_pause_s = min(2 * self._empty_pause_s, _EMPTY_PAUSE_MAX_S)

    async def _next_response(self, subscription: SubscriptionData) -> PullResponse:
        """Return the response to the prefetched pull, or to a new one."""
        process_queue, context, prefetched = self.process_queue, self._context, self._prefetched
        self._prefetched = None
        if prefetched is not None:
            try:
                return to_pull_response(await prefetched, process_queue.queue, process_queue.next_offset)
            except ConnectionLost:
                log.debug("pulling %s again: the connection was lost", process_queue.queue)
        header = self._header(subscription, process_queue.next_offset)
        return await context.api.pull(
            process_queue.queue, header, context.config.pull_timeout_ms, self._broker_id
        )

    def _prefetch(self, subscription: SubscriptionData, last: PullResponse) -> bool:
        """Send the next pull unless it has to wait. Returns whether it was sent."""
        process_queue, context, offset = self.process_queue, self._context, last.header.next_begin_offset
        if self.is_paused or context.config.pull_interval_ms:
            return False
        if process_queue.will_be_full(context.limits(), offset, len(last.body)):
            return False
        self._prefetched = context.api.begin_pull(
            process_queue.queue,
            self._fields(subscription, offset),
            context.config.pull_timeout_ms,
            self._broker_id,
        )
        return self._prefetched is not None

    def _cancel_prefetch(self) -> None:
        if self._prefetched is not None:
            self._prefetched.cancel()
            self._prefetched = None

    def _header(self, subscription: SubscriptionData, queue_offset: int) -> PullMessageRequestHeader:
        process_queue, context, config = self.process_queue, self._context, self._context.config
        offset = process_queue.commit_offset if context.commits else 0
        return PullMessageRequestHeader(
            consumer_group=context.api.group,
            topic=process_queue.queue.topic,
            queue_id=process_queue.queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=min(config.pull_batch_size, max(_PULL_COUNT_MIN, context.limits().count)),
            sys_flag=PullSysFlag.SUSPEND
            | (offset > 0) * PullSysFlag.COMMIT_OFFSET
            | context.carries_filter * PullSysFlag.SUBSCRIPTION,
            commit_offset=offset,
            suspend_timeout_millis=config.suspend_timeout_ms,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string if context.carries_filter else None,
            expression_type=subscription.expression_type,
        )

    def _fields(self, subscription: SubscriptionData, queue_offset: int) -> dict[str, str]:
        """Return the encoded header of a pull: encoded once, except for the offsets."""
        if self._pulls is None or self._pulls.subscription is not subscription:
            self._pulls = _PullFields(subscription, self._header(subscription, 0))
        commits = self._context.commits and self._broker_id == MASTER_ID
        return self._pulls.fields(queue_offset, self.process_queue.commit_offset if commits else 0)

    def _handle_illegal_offset(self, response: PullResponse) -> None:
        process_queue, header = self.process_queue, response.header
        offset = next_offset_after_illegal(
            process_queue.next_offset, header.next_begin_offset, header.min_offset, header.max_offset
        )
        log.warning(
            "offset %d of %s is outside of the queue, which has %d to %d; continuing at %d",
            process_queue.next_offset,
            process_queue.queue,
            header.min_offset,
            header.max_offset,
            offset,
        )
        self.progress.failed(
            f"its offset {process_queue.next_offset} is outside of the queue, "
            f"which has {header.min_offset} to {header.max_offset}"
        )
        self._context.on_offset_illegal(self, offset)

    async def _recover(self, error: RocketError) -> None:
        """Log a failed pull and pause, longer each time.

        Then send a heartbeat if the broker does not know the subscription, or refresh the route if no broker
        responded or it does not know the topic. After a failure of a slave, the master is pulled at once.
        """
        queue, client = self.process_queue.queue, self._context.client
        problem, is_from_slave = str(error), self._broker_id != MASTER_ID
        if is_from_slave:  # such as one that is younger than the topic, and does not know it yet
            self._master_only_until_ms = client.now_ms() + _MASTER_ONLY_MS
            text = "a slave of broker %s failed; pulling %s from the master: %s"
            self._limited_log.warning(type(error).__name__, text, queue.broker_name, queue, error)
        elif is_rejection(error):
            problem = f"rejected: {error}"
            self._context.rejection_log.warning(str(error), "pull of %s failed: %s", queue, error)
        elif isinstance(error, RemoteProtocolError) and not isinstance(error, InflatesTooFar):
            text = "%s is pulled again from offset %d: %s"
            self._limited_log.error(type(error).__name__, text, queue, self.process_queue.next_offset, error)
        elif isinstance(error, ProtocolError | StoreError):
            offset = self.process_queue.next_offset
            problem = f"{queue} cannot be read from offset {offset}: {error}"
            text = "%s cannot be read from offset %d and is pulled again; seek past it to skip it: %s"
            self._limited_log.error(f"{type(error).__name__} {offset}", text, queue, offset, error)
        else:
            self._limited_log.info(type(error).__name__, "pull of %s failed: %s", queue, error)
        self.progress.failed(problem, is_lasting=is_lasting(error) and not is_from_slave)
        self._cancel_prefetch()  # it would skip messages that could not be read
        self._broker_id = MASTER_ID
        if not is_from_slave:
            await self._wait()
        try:
            if isinstance(error, BrokerError) and error.code in UNKNOWN_SUBSCRIPTION:
                await client.heartbeat()
            elif not isinstance(error, BrokerError) or error.retry is Retry.REFRESH_ROUTE:
                await client.routes.get(queue.topic, fresh=True)
        except RocketError as again:
            self._limited_log.info(
                type(again).__name__,
                "after a failed pull of %s, the heartbeat or the route lookup failed, too: %s",
                queue,
                again,
            )

    async def _wait(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


class _Move(NamedTuple):
    """A reset of a queue's offset."""

    at_ms: float
    """Its time."""
    pause_s: float
    """The pause after it."""


class OffsetMoveBackoff:
    """Computes the pause before a queue continues at its broker's offset: longer after a recent reset."""

    def __init__(self) -> None:
        self._last: dict[MessageQueue, _Move] = {}

    def pause_s(self, queue: MessageQueue, now_ms: float) -> float:
        """Return the pause in seconds for a reset at `now_ms`: 0 unless the queue was reset recently."""
        recent = {known: move for known, move in self._last.items() if now_ms - move.at_ms < _RECENT_MOVE_MS}
        pause_s = 0.0
        if queue in recent:
            pause_s = min(max(2 * recent[queue].pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S)
        self._last = recent | {queue: _Move(now_ms, pause_s)}
        return pause_s


def next_offset_after_illegal(requested_offset: int, suggested: int, min_offset: int, max_offset: int) -> int:
    """Return where to continue when an offset is outside of its queue.

    This is the broker's suggestion, except for an offset beyond the end, which leads to the end. A broker
    whose queue begins at 0 suggests 0 (QUIRKS 34), and all messages would be handled again.
    """
    return max_offset if requested_offset > max_offset and suggested <= min_offset else suggested
