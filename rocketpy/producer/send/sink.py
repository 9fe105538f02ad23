"""The way to one broker: writes the requests of sends, and keeps those that cannot be written yet.

A send waits here, in its place, until the connection is open and the broker reads, and while the window of
the broker is full. RocketMQ 4.6.0 rejects every batch in DLedger mode, so a sink remembers whether its
broker accepts batches; the messages of a rejected batch are sent individually. Until the broker has accepted
a batch on the connection, later sends wait for its response, so that these messages go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextvars import Context
from functools import partial
from typing import Final

from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.config import ProducerConfig
from rocketpy.errors import BrokerError, ConnectionLost, MessageInvalid, Outcome, RocketError
from rocketpy.producer.send.flow_control import SendWindow
from rocketpy.producer.send.pending import GATHERED, PendingSend, SendOwner
from rocketpy.producer.send.request_template import ONEWAY_OPAQUE
from rocketpy.producer.send.retry import AttemptEnd, copy_of
from rocketpy.producer.send.timers import BrokerTimers
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.transport import Channel

log: Final = logging.getLogger("rocketpy.producer")

PROBE_AGAIN_MS: Final = 60_000
"""Time from a rejection to the next batch. A rejected batch costs a round trip and a log line."""
_REJECTIONS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes of a broker that does not support batches. It has stored nothing of the batch."""
_MESSAGE_BYTES: Final = 256
"""Estimate of what a message takes in a request besides its body."""
_TIMED_BYTES: Final = 1 << 15
"""With less in flight, round trips are not measured."""
_FLUSH_EVERY: Final = 64
"""Number of waiting sends that are written between two flushes, which tell whether the broker still reads."""


class BrokerSink:
    """Writes the requests of one producer to one broker, in the order in which they were accepted."""

    def __init__(
        self,
        broker_name: str,
        connection: PeerConnection,
        client: ClientInstance,
        config: ProducerConfig,
        owner: SendOwner,
    ) -> None:
        """owner: decides over the sends, and gets the ends of their attempts."""
        self.broker_name: Final = broker_name
        self.connection: Final = connection
        self._owner = owner
        self._now_ms = client.now_ms
        self._attempt_timeout_ms = config.attempt_timeout_ms
        pool = client.connections
        self._writes_frames = pool.options.codec == CODEC_JSON and not pool.hooks
        """Whether requests are written as frames from templates, instead of as commands."""
        self._window = SendWindow(config.send_timeout_ms)
        self._timers = BrokerTimers(broker_name, connection, client)
        self._waiting: dict[PendingSend, None] = {}
        """Parked sends in their order."""
        self._preceding: dict[PendingSend, None] = {}
        """Parked sends that go before the others: messages of rejected batches."""
        self._batches = 0
        """Number of batches in flight."""
        self._accepting_ms = float("nan")
        """When the connection was opened on which the broker accepted the last batch.

        After a restart the broker may reject batches.
        """
        self._holds = False
        """Whether other sends wait for the responses to batches that the broker may reject.

        So the messages of a rejected batch are sent before later ones.
        """
        self._rejection: RocketError | None = None
        """Why the broker rejected a batch, until it accepts one."""
        self._rejected_ms = 0.0
        self._will_wake = False
        """Whether the connection will call back when it is open or writable."""
        self._on_response = self._respond  # bound once
        self._is_draining = False
        self._progress: asyncio.Future[None] | None = None
        """Done when sends have ended their wait; exists while a caller of `drain` waits."""

    @property
    def _accepts_batches(self) -> bool:
        """Whether the broker has accepted the last batch on this connection."""
        return self._accepting_ms == self.connection.opened_ms

    @property
    def rejects_batches(self) -> bool:
        """Whether the broker rejected the last batch."""
        return self._rejection is not None

    def send(self, send: PendingSend, now_ms: float) -> None:
        """Write the request of a send, or park the send until the broker can take it."""
        channel, window = self.connection.channel, self._window
        if (
            channel is None
            or not channel.is_writable
            or self._preceding
            or ((self._waiting or self._holds) and not send.precedes)
            or (
                window.in_flight and window.in_flight + send.size + send.count * _MESSAGE_BYTES > window.limit
            )
        ):
            self._wait(send)
        else:
            self._write(send, channel, now_ms)

    def forget(self, send: PendingSend) -> str:
        """Remove a send that has ended while it waited; return what it has waited for, in words."""
        self._waiting.pop(send, None)
        self._preceding.pop(send, None)
        self._wake_drains()
        channel, broker = self.connection.channel, f"broker {self.broker_name}"
        if channel is None:
            return f"a connection to {broker}"
        if send.kind.is_timer and not self._timers.are_known:
            return f"the version or the delay levels of {broker}"
        if in_flight := self._window.in_flight:
            return f"responses of {broker} ({in_flight} bytes are in flight)"
        return f"{broker} to read what was sent before"

    def take_waiting(self) -> list[PendingSend]:
        """Remove and return all waiting sends, in their order."""
        waiting = [*self._preceding, *self._waiting]
        self._preceding.clear()
        self._waiting.clear()
        self._wake_drains()
        return waiting

    async def drain(self) -> None:
        """Wait until the open connection has taken the sends that wait now; a lost one takes no more."""
        last = next(reversed(self._waiting or self._preceding), None)
        while (channel := self.connection.channel) is not None and last is not None:
            if last not in self._waiting and last not in self._preceding:
                break
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._progress)
        if channel is not None:
            with contextlib.suppress(ConnectionLost):
                await channel.drain()

    def _wake_drains(self) -> None:
        """Let the callers of `drain` look again."""
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None

    # -- writing ------------------------------------------------------------------------------

    def _write(self, send: PendingSend, channel: Channel, now_ms: float) -> None:
        """Write the request of a send; keep the send if the connection is just ending."""
        kind = send.kind
        if kind is GATHERED and self._rejection is not None and not self._probes(now_ms):
            self._owner.attempt_ended(send, copy_of(self._rejection))
            return
        if kind.is_timer and not self._prepare_timer(send):
            return
        try:
            if kind.is_oneway:
                self._write_oneway(send, channel)
                return
            send.on_response, send.sent_ms = self._on_response, now_ms
            timeout_ms, window = self._attempt_timeout_ms, self._window
            deadline_ms = send.deadline_ms
            if timeout_ms is not None:
                deadline_ms = min(deadline_ms, now_ms + timeout_ms)
            if self._writes_frames:
                opaque = channel.expect(send, deadline_ms)
                try:
                    frame = send.frame(opaque)
                except BaseException:  # nothing will be sent that the waiter could wait for
                    channel.forget(opaque)
                    raise
                if window.in_flight:
                    channel.write(frame)
                else:
                    channel.write_now(frame)
            else:  # for another header codec than JSON, or for RPC hooks
                response = self.connection.put(send.command(), deadline_ms - now_ms)
                response.add_done_callback(partial(_pass_response, send), context=Context())
        except ConnectionLost:
            # Nothing was written, so this does not count as an attempt.
            send.on_response = None
            if self.connection.channel is channel:
                self.connection.channel = None
            self._wait(send, first=True)
            return
        except Exception as error:  # noqa: BLE001 - a bug or an unchecked value; other sends continue
            send.on_response = None
            self._owner.attempt_ended(send, error)
            return
        window.in_flight = in_flight = window.in_flight + send.size + send.count * _MESSAGE_BYTES
        if in_flight > _TIMED_BYTES and not window.timed:
            window.timed, send.load = True, in_flight
        if kind is GATHERED:
            self._batches += 1
            self._holds = not self._accepts_batches

    def _write_oneway(self, send: PendingSend, channel: Channel) -> None:
        if self._writes_frames:
            channel.write(send.frame(ONEWAY_OPAQUE))
        else:
            self.connection.put_oneway(send.command())
        self._owner.oneway_written(send)

    def _respond(self, send: PendingSend, end: AttemptEnd) -> None:
        """Handle the end of a request: measure it, pass it on to the sender, and write what waits."""
        window = self._window
        if send.load:
            if not isinstance(end, ConnectionLost):  # that says nothing of the broker's speed
                window.measure(self._now_ms() - send.sent_ms, send.load)
            window.timed, send.load = False, 0
        window.in_flight -= send.size + send.count * _MESSAGE_BYTES
        if send.kind is GATHERED:
            self._batches -= 1
            self._record_batch(end)
            self._holds = self._batches > 0 and not self._accepts_batches
        elif self._rejection is not None and not send.kind.is_batch and is_rejection(end):
            # The broker may have rejected the batch because of this message: the next batch is tried.
            self._rejection = None
        self._owner.attempt_ended(send, end)
        if self._waiting or self._preceding:
            self._drain()

    # -- timer messages -----------------------------------------------------------------------

    def _prepare_timer(self, send: PendingSend) -> bool:
        """Return whether a timer message may be written; otherwise it waits for that, or has failed."""
        if not self._timers.are_known:
            self._owner.park(send, self)
            self._timers.when_known(partial(self._timers_known, send))
            return False
        try:
            self._timers.prepare(send)
        except MessageInvalid as error:
            self._owner.attempt_ended(send, error)
            return False
        return True

    def _timers_known(self, send: PendingSend, error: RocketError | None) -> None:
        if not self._owner.claim(send):
            return
        if error is None:
            self.send(send, self._now_ms())
            return
        error = copy_of(error)  # of another request; the message itself was not sent
        error.outcome = Outcome.NOT_SENT
        self._owner.attempt_ended(send, error)

    # -- batches ------------------------------------------------------------------------------

    def _probes(self, now_ms: float) -> bool:
        """Return whether the next batch finds out if the broker accepts batches meanwhile."""
        return not self._batches and now_ms - self._rejected_ms >= PROBE_AGAIN_MS

    def _record_batch(self, end: AttemptEnd) -> None:
        if not isinstance(end, RocketError):
            self._accepting_ms = self.connection.opened_ms
            if self._rejection is not None:
                self._rejection = None
                log.info("broker %s accepts batches again", self.broker_name)
        elif is_rejection(end):
            now_ms = self._now_ms()
            if self._rejection is None or now_ms - self._rejected_ms >= PROBE_AGAIN_MS:
                log.info(
                    "broker %s rejected a batch; sending messages individually, the next batch in %d s: %s",
                    self.broker_name,
                    PROBE_AGAIN_MS // 1000,
                    end,
                )
            self._accepting_ms, self._rejection, self._rejected_ms = float("nan"), end, now_ms

    # -- waiting ------------------------------------------------------------------------------

    def _wait(self, send: PendingSend, *, first: bool = False) -> None:
        """Park a send behind those that wait already, or before them."""
        self._owner.park(send, self)
        waiting = self._preceding if send.precedes else self._waiting
        later = dict(waiting) if first else {}
        if later:
            waiting.clear()
        waiting[send] = None
        waiting.update(later)
        self._wake_later()

    def _wake_later(self) -> None:
        """Let the connection call back. With requests in flight, a response continues the waiting sends."""
        channel = self.connection.channel
        if self._will_wake or (channel is not None and channel.is_writable):
            return
        self._will_wake = True
        if channel is None:
            self.connection.when_open(self._opened)
        else:
            channel.when_writable(self._writable)

    def _opened(self, error: RocketError | None) -> None:
        self._will_wake = False
        if error is None:
            self._drain()
            return
        for send in self.take_waiting():
            if self._owner.claim(send):
                self._owner.attempt_ended(send, copy_of(error))  # each send gets its own error

    def _writable(self) -> None:
        self._will_wake = False
        self._drain()

    def _drain(self) -> None:
        """Write the waiting sends in order, as far as the broker takes them."""
        if self._is_draining:
            return
        self._is_draining = True
        window, now_ms, count = self._window, self._now_ms(), 0
        try:
            while waiting := self._preceding or (not self._holds and self._waiting):
                channel, send = self.connection.channel, next(iter(waiting))
                if channel is None or not channel.is_writable:
                    break
                size = send.size + send.count * _MESSAGE_BYTES
                if window.in_flight and window.in_flight + size > window.limit:
                    window.was_full = True
                    break
                is_late = window.is_late(send.deadline_ms - send.accepted_ms, send.deadline_ms - now_ms)
                if is_late and window.in_flight:
                    break  # a response may show that the broker is faster
                del waiting[send]
                if is_late:
                    continue  # it stays parked until its timeout, and ends as not sent
                if self._owner.claim(send):
                    self._write(send, channel, now_ms)
                    count += 1
                    if count % _FLUSH_EVERY == 0:
                        channel.flush()
        finally:
            self._is_draining = False
        if self._preceding or self._waiting:
            self._wake_later()
        self._wake_drains()


def is_rejection(end: AttemptEnd | Exception) -> bool:
    """Return whether a response means that the broker supports no batches, if it was one."""
    return isinstance(end, BrokerError) and end.code in _REJECTIONS


def _pass_response(send: PendingSend, response: asyncio.Future[Command]) -> None:
    error = response.exception()
    if error is None:
        send.set_result(response.result())
    elif isinstance(error, RocketError):
        send.set_exception(error)
    else:
        raise error
