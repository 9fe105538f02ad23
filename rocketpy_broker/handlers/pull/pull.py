"""PULL_MESSAGE and LITE_PULL_MESSAGE: messages of one queue from an offset on.

The DefaultLitePullConsumer of RocketMQ 5.x sends LITE_PULL_MESSAGE, so that its brokers can serve such pulls
in threads of their own. Here both are the same request.

Long polling: a pull that finds nothing may be held. `arrived` responds to it when there are messages, `sweep`
when it times out; if its channel closes, it is dropped. All three run in slices, since any number of pulls
may be held.

A filter by properties runs for at most `_FILTER_MS` in one pull. The response then moves the consumer past
the filtered messages (PULL_RETRY_IMMEDIATELY), and the broker serves other clients in between. The filter of
held pulls runs in slices until it has seen all new messages.

A slave never moves a consumer's offset, since its master may have the messages that it lacks. The response to
such a pull is PULL_RETRY_IMMEDIATELY with the requested offset.
Source: PullMessageProcessor, PullRequestHoldService of RocketMQ 4.6.0. Differs: there a slave responds to
such pulls immediately, so a consumer without a master pulls in a busy loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from sys import intern
from typing import Final, NamedTuple, cast

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.bodies import MASTER_ID, Body, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import Int64, PullMessageRequestHeader, PullMessageResponseHeader
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.filter import MessageFilter
from rocketpy_broker.handlers.base import error_response, handles
from rocketpy_broker.handlers.pull.long_polling import HeldGroup, HeldRequest, HoldTable
from rocketpy_broker.handlers.pull.pull_checks import PullChecks
from rocketpy_broker.handlers.slave import is_slave
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.services.stats import BrokerStats
from rocketpy_broker.store import GetMessageResult, GetMessageStatus, MessageInner, MessageStore
from rocketpy_broker.store.queue.dispatch import Arrivals

log = logging.getLogger("rocketpy.broker.pull")

Queue = tuple[str, int]
"""Topic and queue id."""

OffsetMoved = Callable[[PullMessageRequestHeader, int], None]
"""Called for a pull from an offset outside the queue, with the offset that the consumer is moved to."""

StillAllowed = Callable[[Channel, Command], Command | None]
"""Returns the rejection of a request that was admitted before, or None if its account is still permitted."""

_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
"""Response code for each status of a read (QUIRKS 34)."""

_OFFSET_IN_QUEUE: Final = frozenset(
    {GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING}
)
"""Statuses of reads whose offset is in the queue."""

_FILTER_MS: Final = 2
"""Time limit of the filter in one pull; no other client is served meanwhile. An ordinary filter takes less
for all messages of a pull. Not in RocketMQ."""
SUSPEND_MS_MAX: Final = 120_000
"""Longest hold of a pull, even if the consumer requests a longer one. Not in RocketMQ."""


class _Pull(NamedTuple):
    """One admitted pull."""

    command: Command
    header: PullMessageRequestHeader
    wanted: MessageFilter


@dataclass(eq=False)
class PullHandler:
    """Serves pulls from the store."""

    store: MessageStore
    checks: PullChecks
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsets
    config: ConsumeConfig
    _: KW_ONLY
    holds: HoldTable[Queue]
    """The pulls that wait; the owner of this handler calls `arrived`, `sweep` and `channel_closed`."""
    stats: BrokerStats
    slices: Slices
    now_ms: Callable[[], float]
    """A monotonic clock."""
    owner: Callable[[Channel], str]
    """Returns the account or host of a connection."""
    on_offset_moved: OffsetMoved
    still_allowed: StillAllowed | None = None
    """None without access control."""

    def __post_init__(self) -> None:
        self._arrivals: dict[tuple[str, int], int] = {}
        """Queues whose held pulls are being answered -> the queue offset after new messages; -1 without."""

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: Command) -> Command | None:
        """Handle PULL_MESSAGE and LITE_PULL_MESSAGE."""
        header = request.header_as(PullMessageRequestHeader)
        self.checks.check(channel, header)
        wanted = self.checks.filter(channel, header)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET and not self._is_slave:
            self.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        pull = _Pull(request, header, wanted)
        result = self._read(pull, header.queue_offset)
        code = _code(result.status, header.queue_offset)
        if self._may_come(code) and self._hold(channel, pull, code):
            return None
        return self._response(pull, code, result)

    @property
    def _is_slave(self) -> bool:
        return is_slave(self.store)

    def _may_come(self, code: int) -> bool:
        """Whether messages may arrive soon. On a slave also if the requested offset is outside the queue."""
        return code == ResponseCode.PULL_NOT_FOUND or (
            code == ResponseCode.PULL_OFFSET_MOVED and self._is_slave
        )

    def _time_limit(self) -> Callable[[], bool]:
        """Return a function that returns whether `_FILTER_MS` have passed since this call."""
        now_ms, end_ms = self.now_ms, self.now_ms() + _FILTER_MS
        return lambda: now_ms() >= end_ms

    def _read(self, pull: _Pull, offset: int, is_over: Callable[[], bool] | None = None) -> GetMessageResult:
        header, wanted = pull.header, pull.wanted
        if wanted.accepts is not None and is_over is None:
            is_over = self._time_limit()
        result = self.store.get_message(
            header.topic,
            header.queue_id,
            offset,
            header.max_msg_nums,
            tag_codes=wanted.tag_codes,
            accepts=wanted.accepts,
            is_over=is_over,
        )
        if result.status not in _OFFSET_IN_QUEUE and self._is_slave:
            result.next_begin_offset = offset
        return result

    def _response(self, pull: _Pull, code: int, result: GetMessageResult) -> Command:
        header = pull.header
        body = b""
        broker_id = self._broker_for(header.consumer_group, result)
        if code == ResponseCode.SUCCESS:
            body = result.body
            self.stats.count_pulled(header.topic, header.consumer_group, result.count, len(body))
        elif code == ResponseCode.PULL_OFFSET_MOVED and self._is_slave:
            code, broker_id = ResponseCode.PULL_RETRY_IMMEDIATELY, self._preferred(header.consumer_group)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self.on_offset_moved(header, result.next_begin_offset)
        response_header = PullMessageResponseHeader(
            suggest_which_broker_id=broker_id,
            next_begin_offset=result.next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
        return pull.command.reply(code, remark=result.status.name, header=response_header, body=body)

    def _broker_for(self, group: str, result: GetMessageResult) -> int:
        """Return the id of the broker to pull from next: a slave if the consumer is far behind."""
        if not self.config.slave_read:
            return MASTER_ID
        settings = self.groups.find(group)
        if settings is None:
            return MASTER_ID
        return settings.which_broker_when_consume_slowly if result.suggest_slave else settings.broker_id

    def _preferred(self, group: str) -> int:
        """Return the id of the broker that a group is configured to read from."""
        settings = self.groups.find(group)
        return settings.broker_id if settings is not None else MASTER_ID

    # -- long polling -------------------------------------------------------------------------

    def _hold(self, channel: Channel, pull: _Pull, code: int) -> bool:
        """Hold a pull until messages arrive; return False if its request forbids that, or at a limit.

        On a slave, a pull from an offset outside the queue is held for shortPollingTimeMills: the master
        may be back by then.
        """
        header = pull.header
        if not header.sys_flag & PullSysFlag.SUSPEND or pull.command.is_oneway:
            return False
        wait_ms = self.config.short_polling_ms
        if self.config.long_polling and code == ResponseCode.PULL_NOT_FOUND:
            wait_ms = min(header.suspend_timeout_millis, SUSPEND_MS_MAX)
        queue = header.topic, header.queue_id
        held: HeldRequest[Queue] = HeldRequest(
            channel,
            self.owner(channel),
            self.now_ms() + wait_ms,
            _bare(pull),
            count_max=header.max_msg_nums,
            filtered_by=pull.wanted,
            filter_bytes=pull.wanted.kept_bytes,
        )
        if wait_ms <= 0 or not self.holds.hold(held, queue, header.queue_offset):
            return False
        channel.exclude_from_unanswered()
        return True

    def arrived(self, arrivals: Arrivals) -> None:
        """Respond to held pulls of queues that have new messages; an ArrivalListener of the store."""
        held = self.holds.queues
        for queue, next_offset in arrivals.items() if held else ():
            if queue not in held:
                continue
            is_running = queue in self._arrivals
            self._arrivals[queue] = next_offset
            if not is_running:
                self.slices.start(self._wake_queue(queue))

    def _wake_queue(self, queue: tuple[str, int]) -> Iterator[None]:
        """Respond to the held pulls of a queue. Messages that arrive meanwhile are read in another pass."""
        try:
            while (next_offset := self._arrivals[queue]) >= 0:
                self._arrivals[queue] = -1
                for group in self.holds.groups(queue):
                    if group.offset < next_offset:
                        yield from self._wake(group)
                    if self.slices.is_over():
                        yield
        finally:
            del self._arrivals[queue]

    def _wake(self, group: HeldGroup[Queue]) -> Iterator[None]:
        """Respond to the pulls of a group, unless their filter drops all new messages."""
        while group.requests:
            pull: _Pull = next(iter(group.requests)).request
            try:
                result = self._read(pull, group.offset, self.slices.is_over)
            except RocketError as error:
                log.error("a held pull of %s failed: %s", group.queue[0], error)
                yield from self._respond(group, error)
                continue
            except InvariantError:
                raise
            except Exception:  # a bug; other pulls, and the dispatch that woke them, go on
                log.exception("a held pull of %s failed", group.queue[0])
                yield from self._respond(group, RocketError("internal error; see the server's log"))
                continue
            if self._may_come(_code(result.status, group.offset)):
                return
            reached = result.next_begin_offset
            if result.status is GetMessageStatus.NO_MATCHED_MESSAGE and reached > group.offset:
                group = self.holds.advance(group, reached)
                if reached >= result.max_offset:
                    return
                if self.slices.is_over():
                    yield
            else:
                yield from self._respond(group, result)

    def _respond(self, group: HeldGroup[Queue], result: GetMessageResult | RocketError) -> Iterator[None]:
        """Respond to the pulls of a group. result: of their read, or its error, which all have in common."""
        checked: set[tuple[Channel, str]] = set()
        for held in list(group.requests):
            if held.group is None:
                continue  # it has timed out, or its connection is closed
            self._release(held, partial(self._answer, group.offset, result, checked))
            if self.slices.is_over():
                yield
                checked.clear()

    def _answer(
        self,
        offset: int,
        result: GetMessageResult | RocketError,
        checked: set[tuple[Channel, str]],
        channel: Channel,
        pull: _Pull,
    ) -> Command:
        """Return the response to a pull of a group. checked: connections and groups that may still pull."""
        if isinstance(result, RocketError):
            return error_response(pull.command, result)
        key = channel, pull.header.consumer_group
        rejection = None if key in checked else self._check_held(channel, pull)
        if rejection is not None:
            return rejection
        checked.add(key)
        return self._response(pull, _code(result.status, offset), result)

    def _release(self, held: HeldRequest[Queue], answer: Callable[[Channel, _Pull], Command]) -> None:
        """Respond to a held pull. An error becomes its response, also that of a bug: others go on."""
        channel, pull = cast(Channel, held.channel), cast(_Pull, held.request)

        def respond(channel: Channel, request: Command) -> Command:
            try:
                return answer(channel, pull)
            except RocketError as error:
                return error_response(request, error)

        response = channel.run_handler(pull.command, respond)
        self.holds.release(held)
        if response is not None:
            channel.reply_held(response)

    def _check_held(self, channel: Channel, pull: _Pull) -> Command | None:
        """Return the response of access control if a held pull is no longer permitted. Raises Rejected."""
        rejection = None if self.still_allowed is None else self.still_allowed(channel, pull.command)
        if rejection is None:
            self.checks.check(channel, pull.header)
        return rejection

    def sweep(self) -> Awaitable[None]:
        """Respond to the pulls that have timed out; to be called a few times a second."""
        return self.slices.run_upkeep(self._expire(self.now_ms()))

    def _expire(self, now_ms: float) -> Generator[None, None, None]:
        for held in self.holds.expired(now_ms):
            self._release(held, partial(self._expired, held))
            if self.slices.is_over():
                yield

    def _expired(self, held: HeldRequest[Queue], channel: Channel, pull: _Pull) -> Command:
        offset = pull.header.queue_offset if held.group is None else held.group.offset
        rejection = self._check_held(channel, pull)
        if rejection is not None:
            return rejection
        result = self._read(pull, offset, self.slices.is_over)
        code = _code(result.status, offset)
        if code == ResponseCode.PULL_NOT_FOUND and offset > pull.header.queue_offset:
            # Its filter has dropped messages: move the consumer past them.
            result.status, code = GetMessageStatus.NO_MATCHED_MESSAGE, ResponseCode.PULL_RETRY_IMMEDIATELY
        return self._response(pull, code, result)

    def channel_closed(self, channel: Channel) -> None:
        """Drop the held pulls of a closed channel."""
        if pulls := self.holds.requests_of(channel):
            self.slices.start(self._drop(pulls))

    def _drop(self, pulls: list[HeldRequest[Queue]]) -> Iterator[None]:
        for held in pulls:
            self.holds.release(held)
            if self.slices.is_over():
                yield


def _bare(pull: _Pull) -> _Pull:
    """Return the pull without the fields of its frame and the text of its subscription, to save memory.

    Pulls share their names.

    The command keeps the header, which is needed to check its permissions again.
    """
    request, header = pull.command, pull.header
    header.subscription = header.expression_type = None
    header.topic, header.consumer_group = intern(header.topic), intern(header.consumer_group)
    command = Command(request.code, request.opaque, request.flag, header=header, codec=request.codec)
    return _Pull(command, header, pull.wanted)


def _code(status: GetMessageStatus, queue_offset: int) -> int:
    if status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
        # An empty queue has only offset 0; a consumer at another offset is moved there.
        return ResponseCode.PULL_NOT_FOUND if queue_offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


class OffsetMovedEvent(Body, kw_only=True):
    """Body of an event message. Source: OffsetMovedEvent of RocketMQ."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: Int64
    offset_request: Int64


def offset_moved_message(event: OffsetMovedEvent, host: bytes, now_ms: int) -> MessageInner:
    """Return the message about a moved offset (QUIRKS 50). host: of the broker, as in records."""
    group = event.consumer_group
    return MessageInner(
        "OFFSET_MOVED_EVENT",
        0,
        event.encode(),
        f"KEYS\x01{group}\x02DELAY\x010\x02TAGS\x01{group}\x02".encode(),
        born_timestamp=now_ms,
        born_host=host,
    )
