"""POP_MESSAGE, NOTIFICATION and POLLING_INFO: pops that wait until messages arrive, or until they time out.

A pop that finds nothing is held. When messages arrive, in its topic or in a retry topic of its group, the
held pops of the group are served in the order in which they came, until there are no messages for the next
one. A notification waits in the same way, but takes no messages. All of this runs in slices, so that any
number of waiting consumers does not delay other clients.

Source: PopLongPollingService, NotificationProcessor, PollingInfoProcessor of RocketMQ 5.3.3. Differs: the
wait begins when the request arrives, whatever the consumer's clock says. There, a new message wakes one pop
of each group, which may be one whose filter drops it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, KeysView
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from sys import intern
from typing import Final, NamedTuple, cast

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ANY_QUEUE,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from rocketpy.protocol.message.receipt import TopicKind
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.model import PopConfig
from rocketpy_broker.handlers.base import error_response, handles
from rocketpy_broker.handlers.pop.pop import Pop, PopHandler, Taken
from rocketpy_broker.handlers.pull.long_polling import HeldRequest, HoldTable
from rocketpy_broker.handlers.pull.pull import SUSPEND_MS_MAX, StillAllowed
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.store.queue.dispatch import Arrivals

log = logging.getLogger("rocketpy.broker.pop")

_NO_OWNER: Final = ""
"""The limit of held requests of a group applies to all of its members together."""


class PopQueue(NamedTuple):
    """What a held request waits for."""

    topic: str
    group: str
    queue_id: int
    """`ANY_QUEUE`, or one queue."""
    takes: bool = True
    """Whether it is a pop. False for a notification."""


class _Notification(NamedTuple):
    """One admitted notification."""

    command: Command
    header: NotificationRequestHeader


class _Outcome(Enum):
    """What became of an attempt to serve a held request."""

    SERVED = "it has its response"
    UNFINISHED = "its filter has not seen all messages yet"
    NOTHING = "there are no messages for it"


Held = HeldRequest[PopQueue]


@dataclass(eq=False)
class PollingHandler:
    """Serves pops and notifications, and holds those that find nothing."""

    pops: PopHandler
    config: PopConfig
    _: KW_ONLY
    holds: HoldTable[PopQueue]
    """The requests that wait; the owner of this handler calls `arrived`, `sweep` and `channel_closed`."""
    tasks: Tasks
    slices: Slices
    now_ms: Callable[[], float]
    """A monotonic clock."""
    write: Callable[[], None]
    """See `SendHandler.end_of_buffer`."""
    still_allowed: StillAllowed | None = None
    """None without access control."""

    _queues: dict[str, dict[PopQueue, None]] = field(default_factory=dict, init=False)
    """Topic -> what requests wait for that its messages are for; retry topics are topics, too."""
    _woken: dict[PopQueue, None] = field(default_factory=dict, init=False)
    """Queues whose held requests are to be served."""
    _free_ms: dict[PopQueue, int] = field(default_factory=dict, init=False)
    """What requests wait for that a queue in order blocks -> when it is free, in ms since 1970."""
    _is_serving: bool = field(default=False, init=False)

    @handles(RequestCode.POP_MESSAGE)
    def pop(self, channel: Channel, request: Command) -> Command | None:
        """Handle POP_MESSAGE."""
        pop = self.pops.admit(channel, request)
        self.pops.run.later(channel, request, partial(self._take_or_hold, channel, pop))
        return None

    def _take_or_hold(self, channel: Channel, pop: Pop) -> Command | bytes | None:
        if channel.is_closed:
            return None  # nobody would get the messages
        self.pops.check_in_flight()  # here, since many pops may have come in this turn
        taken = self.pops.take(pop)
        if taken.count:
            self.pops.deliver(channel, pop, taken)
            return None
        header = pop.header
        queue = PopQueue(intern(header.topic), intern(header.consumer_group), header.queue_id)
        code = self._hold(channel, queue, _bare(pop), header.poll_time, pop.wanted.kept_bytes)
        if code != ResponseCode.SUCCESS:
            return self.pops.response(pop, taken, code)
        self._wake_at(queue, taken.free_ms)
        if taken.is_unfinished:
            self._wake(queue)
        return None

    @handles(RequestCode.NOTIFICATION)
    def notify(self, channel: Channel, request: Command) -> Command | None:
        """Handle NOTIFICATION: respond once there are messages, without taking them."""
        header = request.header_as(NotificationRequestHeader)
        self.pops.check(channel, header)
        rest, free_ms = self.pops.rest(header)
        if rest:
            return request.reply(header=NotificationResponseHeader(has_msg=True))
        queue = PopQueue(intern(header.topic), intern(header.consumer_group), header.queue_id, takes=False)
        command = Command(request.code, request.opaque, request.flag, header=header, codec=request.codec)
        code = self._hold(channel, queue, _Notification(command, header), header.poll_time, 0)
        if code == ResponseCode.SUCCESS:
            self._wake_at(queue, free_ms)
            return None
        is_full = code == ResponseCode.POLLING_FULL
        return request.reply(header=NotificationResponseHeader(has_msg=False, polling_full=is_full))

    @handles(RequestCode.POLLING_INFO)
    def polling_info(self, channel: Channel, request: Command) -> Command:
        """Handle POLLING_INFO: the number of held pops."""
        header = request.header_as(PollingInfoRequestHeader)
        self.pops.check(channel, header)
        queue = PopQueue(header.topic, header.consumer_group, header.queue_id)
        count = self.holds.count_of(_NO_OWNER, queue)
        return request.reply(header=PollingInfoResponseHeader(polling_num=count))

    # -- holding ------------------------------------------------------------------------------

    @property
    def topics(self) -> KeysView[str]:
        """The topics whose messages held requests wait for: a live view."""
        return self._queues.keys()

    def _hold(
        self, channel: Channel, queue: PopQueue, request: Pop | _Notification, poll_ms: int, filter_bytes: int
    ) -> int:
        """Hold a request; return SUCCESS, or the code of the response: POLLING_TIMEOUT or POLLING_FULL."""
        if poll_ms <= 0 or request.command.is_oneway:
            return ResponseCode.POLLING_TIMEOUT
        if len(self.holds) >= self.config.held_max:
            return ResponseCode.POLLING_FULL
        pop = request if isinstance(request, Pop) else None
        held: Held = HeldRequest(
            channel,
            _NO_OWNER,
            self.now_ms() + min(poll_ms, SUSPEND_MS_MAX),
            request,
            count_max=0 if pop is None else pop.header.max_msg_nums,
            filtered_by=None if pop is None else pop.wanted,
            filter_bytes=filter_bytes,
        )
        if not self.holds.hold(held, queue):
            return ResponseCode.POLLING_FULL
        for name in _names(queue):
            self._queues.setdefault(name, {})[queue] = None
        channel.exclude_from_unanswered()
        return ResponseCode.SUCCESS

    def _release(self, held: Held) -> None:
        """Count a request as one that is being handled again; its response is sent with `Channel.reply`."""
        self._forget(held)
        cast(Channel, held.channel).include_in_unanswered()

    def _forget(self, held: Held) -> None:
        group = held.group
        self.holds.release(held)
        if group is None or group.queue in self.holds.queues:
            return
        queue = group.queue
        self._free_ms.pop(queue, None)
        for name in _names(queue):
            waiting = self._queues.get(name, {})
            waiting.pop(queue, None)
            if not waiting:
                self._queues.pop(name, None)

    # -- waking -------------------------------------------------------------------------------

    def arrived(self, arrivals: Arrivals) -> None:
        """Serve the requests that wait for messages of these queues; part of an ArrivalListener."""
        for topic, queue_id in arrivals if self._queues else ():
            for queue in self._queues.get(topic, ()):
                if queue.topic != topic or queue.queue_id in (ANY_QUEUE, queue_id):
                    self._wake(queue)

    def changed(self, topic: str, group: str, queue_id: int) -> None:
        """Serve a group's requests, after its offset has changed or a queue in order was acknowledged."""
        for takes in (True, False):
            for number in (queue_id, ANY_QUEUE):
                self._wake(PopQueue(topic, group, number, takes))

    def _wake(self, queue: PopQueue) -> None:
        """Serve requests soon, but not now: a pop appends to the store, which may be dispatching."""
        if queue not in self.holds.queues:
            return
        self._woken[queue] = None
        if not self._is_serving:
            self._is_serving = True
            self.tasks.call_soon(self._start)

    def _start(self) -> None:
        self.slices.start(self._serve_all())

    def _serve_all(self) -> Iterator[None]:
        try:
            while self._woken:
                queue = next(iter(self._woken))
                del self._woken[queue]
                yield from self._serve_pops(queue) if queue.takes else self._serve_notifications(queue)
                if self.slices.is_over():
                    self.write()
                    yield
        finally:
            self._is_serving = False
            self.write()

    def _serve_pops(self, queue: PopQueue) -> Iterator[None]:
        """Serve held pops in order, one of each filter in turn. One without messages ends those like it."""
        groups = deque(self.holds.groups(queue))
        while groups:
            group = groups.popleft()
            held = next(iter(group.requests), None)
            if held is None:
                continue
            if self._serve(held) is not _Outcome.NOTHING:
                groups.append(group)
            if self.slices.is_over():
                self.write()
                yield

    def _serve(self, held: Held) -> _Outcome:
        """Try to serve a held pop. An error becomes its response, also that of a bug: others go on."""
        channel, pop = cast(Channel, held.channel), cast(Pop, held.request)
        try:
            rejection = None if self.still_allowed is None else self.still_allowed(channel, pop.command)
            if rejection is None:
                self.pops.check(channel, pop.header)
                return self._take(held, channel, pop)
        except RocketError as error:
            rejection = error_response(pop.command, error)
        except InvariantError:
            raise
        except Exception:  # a bug in one pop must not stop those behind it
            log.exception("a held pop of %s failed", pop.header.topic)
            rejection = error_response(pop.command, RocketError("internal error; see the server's log"))
        self._release(held)
        channel.reply(rejection)
        return _Outcome.SERVED

    def _take(self, held: Held, channel: Channel, pop: Pop) -> _Outcome:
        taken = self.pops.take(pop)
        if taken.count:
            self._release(held)
            self.pops.deliver(channel, pop, taken)
            return _Outcome.SERVED
        if held.group is not None:
            self._wake_at(held.group.queue, taken.free_ms)
        return _Outcome.UNFINISHED if taken.is_unfinished else _Outcome.NOTHING

    def _serve_notifications(self, queue: PopQueue) -> Iterator[None]:
        """Respond to as many notifications as there are messages."""
        for group in self.holds.groups(queue):
            first = next(iter(group.requests), None)
            rest, free_ms = (0, 0) if first is None else self.pops.rest(first.request.header)
            self._wake_at(queue, free_ms)
            for held in list(group.requests)[:rest]:
                self._respond(held, NotificationResponseHeader(has_msg=True))
                if self.slices.is_over():
                    self.write()  # what pops of other queues have taken in this slice
                    yield

    def _respond(self, held: Held, header: NotificationResponseHeader) -> None:
        channel, request = cast(Channel, held.channel), cast(_Notification, held.request)
        if held.group is None:
            return  # it has timed out, or its connection is closed
        rejection = None if self.still_allowed is None else self.still_allowed(channel, request.command)
        self._release(held)
        channel.reply(rejection or request.command.reply(header=header))

    # -- time ---------------------------------------------------------------------------------

    def _wake_at(self, queue: PopQueue, free_ms: int) -> None:
        """Serve requests at a time, when a queue in order is free; never for 0."""
        if free_ms:
            self._free_ms[queue] = min(free_ms, self._free_ms.get(queue, free_ms))

    def sweep(self) -> Awaitable[None]:
        """Respond to the requests that have timed out; to be called a few times a second."""
        wall_ms = self.pops.clock()
        for queue in [queue for queue, free_ms in self._free_ms.items() if free_ms <= wall_ms]:
            del self._free_ms[queue]
            self._wake(queue)
        return self.slices.run_upkeep(self._expire(self.now_ms()))

    def _expire(self, now_ms: float) -> Generator[None, None, None]:
        for held in self.holds.expired(now_ms):
            request: Pop | _Notification = held.request
            if isinstance(request, Pop):
                channel = cast(Channel, held.channel)
                self._release(held)
                taken = Taken(self.pops.clock(), 0)
                channel.reply(self.pops.response(request, taken, ResponseCode.POLLING_TIMEOUT))
            else:
                has_messages = self.pops.rest(request.header)[0] > 0
                self._respond(held, NotificationResponseHeader(has_msg=has_messages))
            if self.slices.is_over():
                yield

    def channel_closed(self, channel: Channel) -> None:
        """Drop the held requests of a closed channel."""
        if held := self.holds.requests_of(channel):
            self.slices.start(self._drop(held))

    def _drop(self, requests: list[Held]) -> Iterator[None]:
        for held in requests:
            self._forget(held)
            if self.slices.is_over():
                yield


def _names(queue: PopQueue) -> Iterator[str]:
    """Yield the topics whose messages a request is for."""
    return (kind.topic(queue.topic, queue.group) for kind in TopicKind)


def _bare(pop: Pop) -> Pop:
    """Return a pop without the fields of its frame and the text of its filter, to save memory."""
    request, header = pop.command, pop.header
    header.exp = header.exp_type = None
    header.topic, header.consumer_group = intern(header.topic), intern(header.consumer_group)
    command = Command(request.code, request.opaque, request.flag, header=header, codec=request.codec)
    return Pop(command, header, pop.wanted)
