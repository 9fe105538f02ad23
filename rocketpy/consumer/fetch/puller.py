"""Pulling: one task a queue asks its broker for messages, as long as the member has the queue.

A pull that finds nothing is held by the broker until a message comes. Pulls wait while too much of the queue
is held here, and while the consumer is paused. Where neither is so, the next pull leaves before the messages
of the last one are looked at, so that the broker works on it meanwhile.

An answer that no broker gives is refused, and the queue pulled again after a growing pause. So it is where a
broker answers at once instead of holding the pull; that pause begins with a millisecond.

Messages are decoded one by one. One that cannot be decoded is delivered with its `decode_error`. At a record
whose length cannot be trusted the queue is pulled again, with a growing pause.

Source: RocketMQ 4.6 DefaultMQPushConsumerImpl pullMessage, PullAPIWrapper.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.config import MemberConfig
from rocketpy.consumer.fetch.broker_api import (
    UNKNOWN_SUBSCRIPTION,
    ConsumerApi,
    PullResponse,
    is_refusal,
    to_pull_response,
)
from rocketpy.consumer.fetch.process_queue import Limits, ProcessQueue
from rocketpy.consumer.fetch.subscription import wanted_messages
from rocketpy.errors import (
    BrokerError,
    ConnectionLost,
    InvariantError,
    ProtocolError,
    RemoteProtocolError,
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
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.consumer")

_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 3.0
"""After a failed pull, doubling. RocketMQ: 3000 ms, fixed."""
_MOVES_APART_MS: Final = 10_000
"""A queue that its broker moves again within this time waits before. RocketMQ waits 10 s, always."""
_EMPTY_PAUSE_MIN_S: Final = 0.001
_EMPTY_PAUSE_MAX_S: Final = 1.0
"""After an answer without messages that came at once, doubling. RocketMQ: none; its brokers hold a pull for a
second where they do not know long polling."""
_LONG_POLL_MS: Final = 100
"""A pull that took longer was held."""


Observed = Callable[[MessageQueue, int, Sequence[MessageExt] | RocketError], None] | None
"""Told the queue of a pull, when it began (ns since 1970), and the messages or the error."""


@dataclass(slots=True, kw_only=True)
class PullContext:
    """What the pullers of a member share.

    subscription: of a topic on the wire; None when it is not subscribed to any more. limits: of one queue,
    now. deliver: takes messages as the application is to see them, and how many of them cannot be decoded.
    illegal: told that a queue's offset is outside of it, and where to go on. commits: whether pulls carry
    the offset to commit. carries_filter: whether they carry the subscription. trouble: for refusals, which
    are the same for all queues. observed: told of each pull, if anybody listens. paused: whether nothing is
    pulled at all.
    """

    client: ClientInstance
    tasks: Tasks
    api: ConsumerApi
    config: MemberConfig
    subscription: Callable[[str], SubscriptionData | None]
    limits: Callable[[], Limits]
    restore_topics: Callable[[list[MessageExt]], list[MessageExt]]
    deliver: Callable[[Puller, list[MessageExt], int], None]
    on_offset_illegal: Callable[[Puller, int], None]
    commits: bool
    carries_filter: bool
    record_pull: Callable[[str, int, float], None]
    refusal_log: RateLimitedLog
    on_pull: Observed = None
    paused: bool = False


class _PullFields:
    """The encoded header of a queue's pulls for one subscription; three fields differ between pulls.

    A new header for each pull costs 3 % of a drain (tests.bench.push). header: of any of them.
    """

    __slots__ = ("_committing", "_fields", "_plain", "subscription")

    def __init__(self, subscription: SubscriptionData, header: PullMessageRequestHeader) -> None:
        self.subscription: Final = subscription
        self._fields = header.ext_fields()
        plain = header.sys_flag & ~PullSysFlag.COMMIT_OFFSET
        self._plain, self._committing = str(plain), str(plain | PullSysFlag.COMMIT_OFFSET)

    def fields(self, queue_offset: int, commit_offset: int) -> dict[str, str]:
        """Those of a pull from an offset on. commit_offset: to be stored by the broker; 0 for none."""
        fields = self._fields.copy()
        fields["queueOffset"] = str(queue_offset)
        fields["commitOffset"] = str(commit_offset)
        fields["sysFlag"] = self._committing if commit_offset > 0 else self._plain
        return fields


class Puller:
    """Pulls one queue. `start` begins, `stop` ends, `wake` says that there may be room again.

    problem: why the queue makes no progress until somebody does something; None when it does.
    """

    __slots__ = (
        "_broker_id",
        "_context",
        "_empty_pause_s",
        "_limited_log",
        "_pause_s",
        "_prefetched",
        "_pulls",
        "_task",
        "_wakeup",
        "paused",
        "problem",
        "process_queue",
    )  # fmt: skip

    def __init__(self, context: PullContext, process_queue: ProcessQueue) -> None:
        self._context = context
        self._broker_id = MASTER_ID
        self._pause_s = _PAUSE_MIN_S
        self._empty_pause_s = _EMPTY_PAUSE_MIN_S
        self._limited_log = RateLimitedLog(log)
        self._task: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._prefetched: asyncio.Future[Command] | None = None
        self._pulls: _PullFields | None = None
        self.process_queue: Final = process_queue
        self.paused = False
        self.problem: str | None = None

    def start(self) -> None:
        """Begin."""
        self._task = self._context.tasks.spawn(self._run(), f"pull {self.process_queue.queue}")

    def stop(self) -> None:
        """End; an answer that is on its way is not looked at."""
        if self._task is not None:
            self._task.cancel()
        self._cancel_prefetch()

    def wake(self) -> None:
        """Look again whether to pull."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _run(self) -> None:
        process_queue, context = self.process_queue, self._context
        while not process_queue.dropped:
            if context.paused or self.paused or process_queue.is_full(context.limits()):
                self._wakeup = asyncio.get_running_loop().create_future()
                await self._wakeup
                continue
            try:
                await self._pull()
                self._pause_s = _PAUSE_MIN_S
                self.problem = None
            except RocketError as error:
                await self._recover(error)
            except (InvariantError, asyncio.CancelledError):
                raise
            except Exception:
                # Whatever it is must not end the work on a queue in silence (and nobody else takes it).
                log.exception("pulling %s failed", process_queue.queue)
                self._cancel_prefetch()
                await self._wait()
            if context.config.pull_interval_ms:
                await asyncio.sleep(context.config.pull_interval_ms / 1000)

    async def _pull(self) -> None:
        set_telemetry = self._context.on_pull
        if set_telemetry is None:
            await self._pull_once()
            return
        started_ns = time.time_ns()
        try:
            messages = await self._pull_once()
        except RocketError as error:
            set_telemetry(self.process_queue.queue, started_ns, error)
            raise
        set_telemetry(self.process_queue.queue, started_ns, messages)

    async def _pull_once(self) -> Sequence[MessageExt]:
        """Returns the messages that were found."""
        process_queue, context, config = self.process_queue, self._context, self._context.config
        subscription = context.subscription(process_queue.queue.topic)
        if subscription is None:
            await self._wait()
            return ()
        now = context.client.now_ms()
        response = await self._next_response(subscription)
        if process_queue.dropped:
            return ()
        self._broker_id = response.header.suggest_which_broker_id
        if response.status is PullStatus.FOUND:
            self._empty_pause_s = _EMPTY_PAUSE_MIN_S
            if self._prefetch(subscription, response):
                await asyncio.sleep(0)  # it leaves, with those of the other queues
            found = decode_pull(
                response.body,
                process_queue.queue,
                process_queue.next_offset,
                response.header.next_begin_offset,
                max_body_bytes=config.max_body_bytes,
                max_total_bytes=context.limits().size - process_queue.size,
                verify=config.verify_checksums,
            )
            if found.next_offset != response.header.next_begin_offset:
                self._cancel_prefetch()  # it would leave out what was not decoded
            messages = context.restore_topics(wanted_messages(found.messages, subscription.tags_set))
            context.record_pull(process_queue.queue.topic, len(messages), context.client.now_ms() - now)
            process_queue.add(messages, found.next_offset)
            if messages:
                context.deliver(self, messages, len(undecodable(messages)) if found.undecodable else 0)
            return messages
        if response.status is PullStatus.OFFSET_ILLEGAL:
            self._handle_illegal_offset(response)
            await asyncio.sleep(0)  # which has stopped this: no pull must leave meanwhile
            return ()
        if (
            response.header.next_begin_offset > process_queue.next_offset
            or context.client.now_ms() - now >= _LONG_POLL_MS
        ):
            self._empty_pause_s = _EMPTY_PAUSE_MIN_S
        else:
            await self._wait_for_messages(response.status)
        process_queue.next_offset = response.header.next_begin_offset
        return ()

    async def _wait_for_messages(self, status: PullStatus) -> None:
        """Wait a little in place of a broker that does not: longer each time, until there is something.

        NO_MATCHED_MSG comes from RocketMQ's slave that has less than this consumer read from its master.
        """
        if status is PullStatus.NO_MATCHED_MSG:
            self._empty_pause_s = max(self._empty_pause_s, _PAUSE_MIN_S)
        await asyncio.sleep(self._empty_pause_s)
        self._empty_pause_s = min(2 * self._empty_pause_s, _EMPTY_PAUSE_MAX_S)

    async def _next_response(self, subscription: SubscriptionData) -> PullResponse:
        """The answer to the pull that left ahead, or to one made now."""
        process_queue, context, prefetched = self.process_queue, self._context, self._prefetched
        self._prefetched = None
        if prefetched is not None:
            try:
                return to_pull_response(await prefetched, process_queue.queue, process_queue.next_offset)
            except ConnectionLost:
                log.debug("pulling %s again: its connection ended", process_queue.queue)
        header = self._header(subscription, process_queue.next_offset)
        return await context.api.pull(
            process_queue.queue, header, context.config.pull_timeout_ms, self._broker_id
        )

    def _prefetch(self, subscription: SubscriptionData, last: PullResponse) -> bool:
        """Send the pull that follows, if it would not have to wait. Returns whether it did."""
        process_queue, context, offset = self.process_queue, self._context, last.header.next_begin_offset
        if context.paused or self.paused or context.config.pull_interval_ms:
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
            max_msg_nums=config.pull_batch_size,
            sys_flag=PullSysFlag.build(
                commit_offset=offset > 0, suspend=True, subscription=context.carries_filter
            ),
            commit_offset=offset,
            suspend_timeout_millis=config.suspend_timeout_ms,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string if context.carries_filter else None,
            expression_type=subscription.expression_type,
        )

    def _fields(self, subscription: SubscriptionData, queue_offset: int) -> dict[str, str]:
        """What `_header` says, as it travels: made once, but for where the queue is at."""
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
            "offset %d of %s is outside of the queue, which has %d to %d; going on at %d",
            process_queue.next_offset,
            process_queue.queue,
            header.min_offset,
            header.max_offset,
            offset,
        )
        self._context.on_offset_illegal(self, offset)

    async def _recover(self, error: RocketError) -> None:
        """Wait a little, longer each time; learn where the queue is now, and introduce ourselves again."""
        queue, client = self.process_queue.queue, self._context.client
        if is_refusal(error):
            self.problem = f"refused: {error}"
            self._context.refusal_log.warning(str(error), "pulling %s: %s", queue, error)
        elif isinstance(error, RemoteProtocolError) and not isinstance(error, InflatesTooFar):
            self.problem = str(error)
            text = "%s is pulled again from offset %d: %s"
            self._limited_log.error(type(error).__name__, text, queue, self.process_queue.next_offset, error)
        elif isinstance(error, ProtocolError | StoreError):
            offset = self.process_queue.next_offset
            self.problem = f"{queue} cannot be read from offset {offset}: {error}"
            text = "%s cannot be read from offset %d, and is pulled again; seek further to leave this out: %s"
            self._limited_log.error(f"{type(error).__name__} {offset}", text, queue, offset, error)
        else:
            self._limited_log.info(type(error).__name__, "pulling %s: %s", queue, error)
        self._cancel_prefetch()  # it would leave out messages that could not be read
        self._broker_id = MASTER_ID
        await self._wait()
        try:
            if isinstance(error, BrokerError):
                if error.code in UNKNOWN_SUBSCRIPTION:
                    await client.heartbeat()
            else:
                await client.route(queue.topic, fresh=True)
        except RocketError as again:
            self._limited_log.info(type(again).__name__, "pulling %s: %s", queue, again)

    async def _wait(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


class OffsetMoveBackoff:
    """How long to wait before a queue goes on where its broker sends it: longer when it did so just now."""

    def __init__(self) -> None:
        self._last: dict[MessageQueue, tuple[float, float]] = {}

    def pause_s(self, queue: MessageQueue, now_ms: float) -> float:
        """Return the pause for a move at `now_ms`; 0 for the first one in a while."""
        recent = {known: move for known, move in self._last.items() if now_ms - move[0] < _MOVES_APART_MS}
        pause_s = 0.0
        if queue in recent:
            pause_s = min(max(2 * recent[queue][1], _PAUSE_MIN_S), _PAUSE_MAX_S)
        self._last = recent | {queue: (now_ms, pause_s)}
        return pause_s


def next_offset_after_illegal(requested_offset: int, suggested: int, min_offset: int, max_offset: int) -> int:
    """Where to go on when a broker says that an offset is outside of its queue.

    As it suggests; but one beyond the end leads to the end, never back to the start, which is what a broker
    whose queue begins at 0 suggests (QUIRKS 34): all of it was handled before.
    """
    return max_offset if requested_offset > max_offset and suggested <= min_offset else suggested
