"""PULL_MESSAGE and LITE_PULL_MESSAGE: messages of one queue from an offset on.

The DefaultLitePullConsumer of RocketMQ 5.x sends LITE_PULL_MESSAGE, so that its brokers can serve such pulls
in threads of their own. Here both are the same request.

Long polling: a pull that finds nothing may be held. `arrived` responds to it when there are messages, `sweep`
when it times out; if its channel closes, it is dropped.

A filter by properties runs for at most `_FILTER_MS` in one pull. The response then moves the consumer past
the filtered messages (PULL_RETRY_IMMEDIATELY), and the broker serves other clients in between.

A slave never moves a consumer's offset, since its master may have the messages that it lacks. The response to
such a pull is PULL_RETRY_IMMEDIATELY with the requested offset.
Source: PullMessageProcessor, PullRequestHoldService of RocketMQ 4.6.0. Differs: there a slave responds to
such pulls immediately, so a consumer without a master pulls in a busy loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple, cast

from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MASTER_ID, Body, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import Int64, PullMessageRequestHeader, PullMessageResponseHeader
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.filter import MessageFilter
from rocketpy_broker.handlers.base import Rejected, error_response, handles
from rocketpy_broker.handlers.pull.long_polling import HeldPull, PullRequestHoldTable
from rocketpy_broker.handlers.pull.pull_checks import PullChecks
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.stats.stats import BrokerStats
from rocketpy_broker.store import GetMessageResult, GetMessageStatus, MessageInner, MessageStore
from rocketpy_broker.store.busy import Reason

log = logging.getLogger("rocketpy.broker.pull")

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
_SUSPEND_MS_MAX: Final = 120_000
"""Longest hold of a pull, even if the consumer requests a longer one. Not in RocketMQ."""


class _Pull(NamedTuple):
    """One admitted pull."""

    command: Command
    header: PullMessageRequestHeader
    wanted: MessageFilter


@dataclass(eq=False)
class PullHandler:
    """Serves pulls from the store.

    holds: the pulls that wait; the owner of this handler calls `arrived`, `sweep` and `channel_closed`.
    now_ms: a monotonic clock. still_allowed: None without access control.
    """

    store: MessageStore
    checks: PullChecks
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsets
    config: ConsumeConfig
    _: KW_ONLY
    holds: PullRequestHoldTable
    stats: BrokerStats
    now_ms: Callable[[], float]
    on_offset_moved: OffsetMoved
    still_allowed: StillAllowed | None = None

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: Command) -> Command | None:
        """Handle PULL_MESSAGE and LITE_PULL_MESSAGE."""
        header = request.header_as(PullMessageRequestHeader)
        self.checks.check(channel, header)
        wanted = self.checks.filter(header)
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
        return self.store.rejection(Reason.SLAVE) is not None

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
            body = b"".join(result.chunks)
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
            wait_ms = min(header.suspend_timeout_millis, _SUSPEND_MS_MAX)
        deadline_ms = self.now_ms() + wait_ms
        wanted, bare = pull.wanted, _bare(pull)
        held = HeldPull(
            channel,
            header.topic,
            header.queue_id,
            header.queue_offset,
            deadline_ms,
            bare,
            wanted,
            wanted.kept_bytes,
        )
        if wait_ms <= 0 or not self.holds.hold(held):
            return False
        channel.exclude_from_unanswered()
        return True

    def arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Respond to held pulls of a queue that has new messages; an ArrivalListener of the store."""
        waiting = self.holds.waiting_below(topic, queue_id, next_offset)
        if not waiting:
            return  # at the stop, the store calls this in the flush thread, when no pull is held
        is_over = self._time_limit()
        for held in waiting:
            self._wake(held, is_over)

    def _wake(self, held: HeldPull, is_over: Callable[[], bool]) -> None:
        """Respond to a held pull, unless its filter drops all new messages.

        is_over: returns whether the filters of all held pulls have used up their time. If a filter has not
        seen all new messages, the pull gets a response, so that its consumer pulls again.
        """
        pull: _Pull = held.request
        channel = cast(Channel, held.channel)
        try:
            response = self._check_held(channel, pull)
            if response is None:
                must_skip = pull.wanted.accepts is not None and is_over()
                result = self._unread(held) if must_skip else self._read(pull, held.offset, is_over)
                code = _code(result.status, held.offset)
                if self._may_come(code):
                    return
                is_behind = result.next_begin_offset < result.max_offset
                if result.status is GetMessageStatus.NO_MATCHED_MESSAGE and not is_behind:
                    held.offset = result.next_begin_offset
                    return
                response = self._response(pull, code, result)
        except Rejected as rejected:
            response = error_response(pull.command, rejected)
        except RocketError as error:
            log.error("a held pull of %s failed: %s", held.topic, error)
            response = error_response(pull.command, error)
        self.holds.release(held)
        channel.reply_held(response)

    def _check_held(self, channel: Channel, pull: _Pull) -> Command | None:
        """Return the response of access control if a held pull is no longer permitted. Raises Rejected."""
        rejection = None if self.still_allowed is None else self.still_allowed(channel, pull.command)
        if rejection is None:
            self.checks.check(channel, pull.header)
        return rejection

    def _unread(self, held: HeldPull) -> GetMessageResult:
        """Return a result that makes the consumer pull again from the offset that its pull has reached."""
        store, queue = self.store, (held.topic, held.queue_id)
        return GetMessageResult(
            GetMessageStatus.NO_MATCHED_MESSAGE,
            held.offset,
            store.min_offset_in_queue(*queue),
            store.max_offset_in_queue(*queue),
        )

    def sweep(self) -> None:
        """Respond to the pulls that have timed out; to be called a few times a second."""
        for held in self.holds.expire(self.now_ms()):
            pull: _Pull = held.request
            cast(Channel, held.channel).reply_held(self._expired(held, pull))

    def _expired(self, held: HeldPull, pull: _Pull) -> Command:
        try:
            rejection = self._check_held(cast(Channel, held.channel), pull)
            if rejection is not None:
                return rejection
            result = self._read(pull, held.offset)
            code = _code(result.status, held.offset)
            if code == ResponseCode.PULL_NOT_FOUND and held.offset > pull.header.queue_offset:
                # Its filter has dropped messages: move the consumer past them.
                result.status, code = GetMessageStatus.NO_MATCHED_MESSAGE, ResponseCode.PULL_RETRY_IMMEDIATELY
            return self._response(pull, code, result)
        except RocketError as error:
            return error_response(pull.command, error)

    def channel_closed(self, channel: Channel) -> None:
        """Drop the held pulls of a closed channel."""
        self.holds.drop(channel)


def _bare(pull: _Pull) -> _Pull:
    """Return the pull without the fields of its frame and the text of its subscription, to save memory.

    The command keeps the header, which is needed to check its permissions again.
    """
    request, header = pull.command, pull.header
    header.subscription = header.expression_type = None
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
