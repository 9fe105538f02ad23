"""Sends requests to brokers: attempts, waiting for routes and connections, retries, and the end of each send.

A send whose route and connection are known is written immediately, by plain calls. A send that must wait is
parked in the order of arrival, and also resumes with a plain call. `retry.decide` decides what follows a
failed attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

import msgspec

from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.client.routing.latency import BrokerLatencies
from rocketpy.client.routing.routes import select_queue
from rocketpy.config import ProducerConfig
from rocketpy.errors import (
    BrokerError,
    ClientClosed,
    ConnectionLost,
    InvariantError,
    MessageInvalid,
    NotDurable,
    Outcome,
    RemoteProtocolError,
    RocketError,
    RouteNotFound,
    SendForbidden,
    TransportError,
)
from rocketpy.hooks import FailedAttempt, SendCheck
from rocketpy.message.message import timer_property
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.send.batch_builder import BatchBuilder
from rocketpy.producer.send.batch_support import BatchSupport
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import BatchSend, PendingSend, ProducerBatch, fail_all
from rocketpy.producer.send.publish_info import PublishInfoTable
from rocketpy.producer.send.request_template import ONEWAY_OPAQUE
from rocketpy.producer.send.response import LessDurable, are_ok
from rocketpy.producer.send.retry import (
    Attempt,
    AttemptEnd,
    GiveUp,
    RefreshRoute,
    SendTo,
    copy_of,
    decide,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import VERSION_5_0_0, version_name
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.results import SendResult, SendStatus, Unfinished
from rocketpy.runtime.application import describe, ends_program
from rocketpy.transport import Channel

log: Final = logging.getLogger("rocketpy.producer")

Send = PendingSend[Any]

_FOREVER_MS: Final = 10**9
_SWEEP_MS: Final = 10
"""Resolution of timeouts of parked sends."""
_FLUSH_EVERY: Final = 64
"""Number of blocked sends between two flushes, once their broker reads again."""
_BROKER_ERRORS: Final = (TransportError, BrokerError, RemoteProtocolError)
"""Errors that count as failures of the broker for `LatencyConfig`."""


class Sender:
    """Makes the attempts of one producer's pending sends, and ends each send once."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        config: ProducerConfig,
        limiter: InFlightLimiter,
        publish_infos: PublishInfoTable,
        listeners: Listeners,
        checks: Sequence[SendCheck],
    ) -> None:
        self._client = client
        self._group = group
        self._retry = config.retry
        self._require_send_ok = config.require_send_ok
        self.less_durable: LessDurable = LessDurable()
        self._attempt_timeout_ms = config.attempt_timeout_ms
        self._limiter = limiter
        self._publish_infos = publish_infos
        self._listeners = listeners
        self._checks = tuple(checks)
        self._loop = asyncio.get_running_loop()
        self._tasks = client.tasks
        pool = client.connections
        self._writes_frames = pool.options.codec == CODEC_JSON and not pool.hooks
        """Whether requests are written as frames from templates, instead of as commands."""
        self._batch_support = BatchSupport(client.now_ms)
        latency = config.latency
        self._latencies = (
            BrokerLatencies(latency.latency_ms, latency.not_available_ms, latency.failed_ms)
            if latency.enabled
            else None
        )
        self._live: dict[Send, None] = {}
        """Accepted sends that have not ended."""
        self._parked: dict[Send, None] = {}
        """Live sends that wait for a route, a connection, a probe, a broker or the end of a pause."""
        self._blocked: dict[Channel, dict[Send, tuple[MessageQueue, PeerConnection]]] = {}
        """Parked sends that wait until their broker reads again, by its channel."""
        self._written_oneway: list[Send] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        client.on_fork.append(self._forked)

    @property
    def rejecting_batches(self) -> tuple[str, ...]:
        """Names of brokers that rejected the last batch."""
        return self._batch_support.rejecting

    # -- new sends ----------------------------------------------------------------------------

    def accept(self, send: Send) -> None:
        """Count a send as in flight; from now on its futures will be resolved. Call `begin` next."""
        self._live[send] = None
        self._limiter.count += 1
        self._limiter.bytes += send.size

    def begin(self, send: Send) -> None:
        """Make the first attempt of an accepted send."""
        publish_info = send.publish_info
        queue_connections = publish_info.queue_connections
        if queue_connections and send.chosen_queue is None and self._latencies is None:
            index = publish_info.next_index
            publish_info.next_index = index + 1
            queue, connection = queue_connections[index % len(queue_connections)]
            self._transmit(send, queue, connection, send.accepted_ms)
            return
        if send.chosen_queue is not None:
            chosen_connection = publish_info.connection(send.chosen_queue)
            if chosen_connection is not None:
                self._transmit(send, send.chosen_queue, chosen_connection, send.accepted_ms)
                return
        self._continue(send)

    def begin_if_live(self, send: Send) -> None:
        """Make the first attempt of an accepted send, unless it has ended or was cancelled meanwhile."""
        if send in self._live and self._drop_cancelled(send):
            self.begin(send)

    def begin_batch(self, send: Send) -> None:
        """Make the first attempt of a batch whose messages the accumulator has counted as in flight."""
        self._live[send] = None
        self.begin_if_live(send)

    def fail_unsent(self, batch: BatchBuilder, error: Exception) -> None:
        """End the messages of a batch that cannot be encoded because of a bug."""
        log.error("a batch for topic %s cannot be encoded", batch.publish_info.topic, exc_info=error)
        self._report_bug(error)
        self._limiter.release(batch.size, len(batch.messages))
        for event in batch.events:
            self._listeners.ended(event, error)
        fail_all(batch.futures, error)

    # -- attempts -----------------------------------------------------------------------------

    def _transmit(self, send: Send, queue: MessageQueue, connection: PeerConnection, now_ms: float) -> None:
        """Write a send's request, or park it until the connection can take it."""
        channel = connection.channel
        if channel is None:
            self._park(send)
            connection.when_open(partial(self._connected, send, queue, connection))
            return
        is_free = channel.is_writable and not self._batch_support.probes
        if (not is_free or send.may_be_deferred) and self._defer(send, queue, connection, channel):
            return
        send.queue = queue
        send.sent_ms = now_ms
        if self._checks and not self._passes_checks(send, queue):
            return
        try:
            if not self._writes_frames:
                self._write_command(send, queue, connection)
            elif send.is_oneway:
                channel.write(send.frame(queue.queue_id, ONEWAY_OPAQUE))
                self._release_later(send)
            else:
                send.on_wire = True
                opaque = channel.expect(send, self._attempt_deadline_ms(send))
                frame = send.frame(queue.queue_id, opaque)
                if self._limiter.count == 1:
                    channel.write_now(frame)
                else:
                    channel.write(frame)
        except ConnectionLost:
            # The connection is just ending and nothing was written, so this does not count as an attempt.
            send.on_wire = False
            self._batch_support.cancel(queue.broker_name, send)
            if connection.channel is channel:
                connection.channel = None
            self._transmit(send, queue, connection, now_ms)
        except Exception as error:  # noqa: BLE001 - a bug or an unchecked value; other sends continue
            self._not_written(send, queue, error)

    def _attempt_deadline_ms(self, send: Send) -> float:
        """Return the deadline for the response to a request that is written now."""
        if self._attempt_timeout_ms is None:
            return send.deadline_ms
        return min(send.deadline_ms, self._client.now_ms() + self._attempt_timeout_ms)

    def _not_written(self, send: Send, queue: MessageQueue, error: Exception) -> None:
        send.on_wire = False
        if isinstance(error, RocketError):
            self.attempt_ended(send, error)
            return
        log.error("a send to %s cannot be written", queue, exc_info=error)
        self._report_bug(error)
        self._batch_support.cancel(queue.broker_name, send)
        self._end(send, error)

    def _defer(self, send: Send, queue: MessageQueue, connection: PeerConnection, channel: Channel) -> bool:
        """Park a send that must wait, or split a batch that its broker rejects; return whether it did so.

        Otherwise the caller writes the send; a batch may then be a probe of its broker, see `BatchSupport`.
        """
        if not channel.is_writable:
            blocked = self._blocked.get(channel)
            if blocked is None:
                blocked = self._blocked[channel] = {}
                channel.when_writable(partial(self._flush_blocked, channel))
            blocked[send] = queue, connection
            self._park(send)
            return True
        name = queue.broker_name
        if name in self._batch_support.probes:
            self._park(send)
            self._batch_support.wait(name, partial(self._connected, send, queue, connection, None))
            return True
        if type(send) is ProducerBatch:
            if self._batch_support.rejects(name):
                self._split(send)
                return True
            self._batch_support.probe(name, send)
        elif send.may_be_deferred:
            return self._defer_timer(send, queue, connection)
        return False

    def _defer_timer(self, send: Send, queue: MessageQueue, connection: PeerConnection) -> bool:
        """Park a timer message until the version of its broker is known; fail it for a broker of 4.x."""
        version = connection.version
        if version is None:
            self._park(send)
            self._client.when_version_known(connection, partial(self._version_known, send, queue, connection))
            return True
        if version >= VERSION_5_0_0:
            return False
        send.queue = queue
        error = MessageInvalid(
            f"property {timer_property(send.messages[0])} makes a timer message, but broker "
            f"{queue.broker_name} ({version_name(version)}) has none, and consumers would get the message at "
            "once: use delay_level, or a broker of RocketMQ 5"
        )
        self.attempt_ended(send, error)
        return True

    def _version_known(
        self, send: Send, queue: MessageQueue, connection: PeerConnection, error: RocketError | None
    ) -> None:
        if error is not None:  # of the heartbeat; the message itself was not sent
            error = copy_of(error)
            error.outcome = Outcome.NOT_SENT
        self._connected(send, queue, connection, error)

    def _write_command(self, send: Send, queue: MessageQueue, connection: PeerConnection) -> None:
        """Write a request as a command, for another header codec than JSON or for RPC hooks."""
        command = send.command(queue.queue_id)
        if send.is_oneway:
            connection.put_oneway(command)
            self._release_later(send)
            return
        response = connection.put(command, self._attempt_deadline_ms(send) - self._client.now_ms())
        send.on_wire = True
        response.add_done_callback(partial(_pass_response, send))

    def _passes_checks(self, send: Send, queue: MessageQueue) -> bool:
        """Call the application's checks for each message; fail the send if one of them forbids it."""
        for check in self._checks:
            for message in send.messages:
                try:
                    check(message, queue, self._group)
                except BaseException as reason:  # how the application forbids a message
                    if ends_program(reason):
                        raise
                    self.attempt_ended(send, _forbidden(reason))
                    return False
        return True

    def _flush_blocked(self, channel: Channel) -> None:
        """Write the blocked sends of a broker that reads again, or whose connection has ended."""
        blocked = self._blocked.get(channel, {})
        for number, send in enumerate(list(blocked)):
            if number % _FLUSH_EVERY == 0:
                channel.flush()
            if not channel.is_writable:
                break
            target = blocked.pop(send, None)
            if target is not None and self._unpark(send):
                self._transmit(send, *target, self._client.now_ms())
        if not blocked:
            self._blocked.pop(channel, None)
        elif channel.is_writable:  # more were blocked meanwhile, such as the parts of a batch
            self._loop.call_soon(self._tasks.run, self._flush_blocked, channel, context=Context())
        else:
            channel.when_writable(partial(self._flush_blocked, channel))

    def _connected(
        self, send: Send, queue: MessageQueue, connection: PeerConnection, error: RocketError | None
    ) -> None:
        if not self._unpark(send):
            return
        if error is None:
            self._transmit(send, queue, connection, self._client.now_ms())
        else:
            send.queue = queue
            self.attempt_ended(send, copy_of(error))  # each send that waited for the connection gets its own

    def _continue(self, send: Send) -> None:
        """Make the next attempt, wait, or end the send, as `retry.decide` decides."""
        publish_info = send.publish_info
        now_ms = self._client.now_ms()
        choose = send.choose
        if choose is None:
            choose = select_queue if self._latencies is None else self._latencies.chooser(now_ms)
        rules = send.rules(self._retry)
        try:
            decision = decide(
                publish_info.view, send.attempts, now_ms, rules, publish_info.next_index, choose
            )
        except Exception as error:  # noqa: BLE001 - of the application's selector; the caller gets it
            if isinstance(error, RocketError):
                error.outcome = Outcome.NOT_SENT
            self._end(send, error)
            return
        if send.choose is not None and isinstance(decision, SendTo):
            # The caller's selector is called once: later attempts go to the same queue.
            send.choose, send.chosen_queue = None, decision.queue
            self.begin(send)
        elif isinstance(decision, GiveUp):
            self._end(send, decision.end)
        elif isinstance(decision, SendTo):
            publish_info.next_index += 1
            connection = publish_info.connection(decision.queue)
            if connection is not None:
                self._transmit(send, decision.queue, connection, now_ms)
            else:  # an order configuration that names a broker the route lacks
                send.queue = decision.queue
                text = (
                    f"the route of topic {publish_info.topic} has no master of broker "
                    f"{decision.queue.broker_name}; start it, or correct the order configuration of the topic"
                )
                self.attempt_ended(send, RouteNotFound(text))
        elif isinstance(decision, RefreshRoute):
            self._park(send)
            publish_info.request_route(partial(self._resume, send), decision.at_ms)
        else:
            self._park(send)
            self._loop.call_later(
                (decision.at_ms - now_ms) / 1000, self._tasks.run, self._resume, send, context=Context()
            )

    def attempt_ended(self, send: Send, end: AttemptEnd) -> None:
        """Handle the results or the error of an attempt; every send calls this."""
        if self._latencies is not None and send.queue is not None and not isinstance(end, RocketError):
            now_ms = self._client.now_ms()
            self._latencies.update(send.queue.broker_name, now_ms - send.sent_ms, now_ms)
        batch = send if type(send) is ProducerBatch else None
        if batch is not None and self._batch_support.record(batch, end) and batch in self._live:
            self._split(batch)
        elif isinstance(end, RocketError):
            self._attempt_failed(send, end)
        elif end[0].status is SendStatus.SEND_OK or self._accepts(end):
            self._end(send, _with_attempts(end, len(send.attempts) + 1) if send.attempts else end)
        else:
            self._attempt_failed(send, end)
        if batch is not None:
            self._batch_support.release()

    def _accepts(self, results: Sequence[SendResult]) -> bool:
        """Record results other than SEND_OK; return whether the send ends with them."""
        self.less_durable.record(results)
        return not self._retry.another_broker_when_not_ok

    def _attempt_failed(self, send: Send, end: AttemptEnd) -> None:
        """Repeat or end a send after an error, or after a status other than SEND_OK."""
        if send.queue is None:
            return
        if isinstance(end, RocketError) and type(send) is not BatchSend and type(send) is not ProducerBatch:
            self._batch_support.record_single(send.queue.broker_name, end)
        if send not in self._live:
            return
        now_ms = self._client.now_ms()
        if self._latencies is not None and isinstance(end, _BROKER_ERRORS):
            self._latencies.update(send.queue.broker_name, 0, now_ms, failed=True)
        send.attempts += (Attempt(send.queue, end, now_ms),)
        for event in send.events:
            event.attempts = len(send.attempts)
            event.failures += (FailedAttempt(send.queue, end, time.time_ns()),)
        if send.is_oneway:
            self._end(send, end)
        elif self._drop_cancelled(send):
            self._continue(send)

    # -- batches ------------------------------------------------------------------------------

    def _drop_cancelled(self, send: Send) -> bool:
        """Remove the cancelled messages of a batch, and end a cancelled send; return whether it continues."""
        if type(send) is ProducerBatch:
            dropped = send.drop_cancelled()
            if dropped is not None:
                self._limiter.release(dropped.size, dropped.messages)
                for event in dropped.events:
                    self._listeners.ended(event, asyncio.CancelledError())
        if send.is_cancelled:
            self._end(send, ClientClosed("the send was cancelled"))
            return False
        return True

    def _split(self, batch: ProducerBatch) -> None:
        """Send the messages of a batch individually."""
        del self._live[batch]
        parts = batch.split()
        self._live.update(dict.fromkeys(parts))
        for part in parts:
            if not self._drop_cancelled(part):
                continue
            if part.attempts:
                self._continue(part)
            else:
                self.begin(part)

    # -- ends ---------------------------------------------------------------------------------

    def _end(self, send: Send, end: Exception | Sequence[SendResult]) -> None:
        """Stop counting a send as in flight, and pass its results or error to its callers and listeners."""
        if send not in self._live:
            return
        del self._live[send]
        self._limiter.release(send.size, send.count)
        if isinstance(end, Exception) or not self._require_send_ok or are_ok(end) or not send.must_be_ok:
            if send.events:
                for event, own_end in send.event_outcomes(end):
                    event.queue = send.queue
                    self._listeners.ended(event, own_end)
            if isinstance(end, Exception):
                send.fail(end)
            else:
                send.resolve(end)
        else:
            self._fail_not_durable(send, end)
        if self._idle is not None and not self._live and not self._idle.done():
            self._idle.set_result(None)

    def _fail_not_durable(self, send: Send, results: Sequence[SendResult]) -> None:
        """Fail each message of a send with its own result."""
        for event, own_end in send.event_outcomes(results) if send.events else ():
            event.queue = send.queue
            error = own_end if isinstance(own_end, BaseException) else NotDurable(own_end)
            self._listeners.ended(event, error)
        for future, result in zip(send.futures, results, strict=True):
            if not future.done():
                future.set_exception(NotDurable((result,)))

    def _release_later(self, send: Send) -> None:
        """Keep a oneway send in flight until the end of the event loop iteration, when it is written."""
        self._written_oneway.append(send)
        if len(self._written_oneway) == 1:
            self._loop.call_soon(self._tasks.run, self._release_oneway, context=Context())

    def _release_oneway(self) -> None:
        written, self._written_oneway = self._written_oneway, []
        for send in written:
            self._end(send, ())

    def _report_bug(self, error: Exception) -> None:
        """Fail the whole client after a broken invariant, not only this send."""
        if isinstance(error, InvariantError):
            self._tasks.fail("send", error)

    # -- parked sends -------------------------------------------------------------------------

    def _park(self, send: Send) -> None:
        """Let a send wait until `_unpark`, at most until its deadline."""
        self._parked[send] = None
        if self._sweeper is None or self._sweeper.when() * 1000 > send.deadline_ms + _SWEEP_MS:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self._loop.call_at(
                (send.deadline_ms + _SWEEP_MS) / 1000, self._tasks.run, self._sweep, context=Context()
            )

    def _unpark(self, send: Send) -> bool:
        """Unpark a send; return False if it has ended meanwhile or was cancelled."""
        if send not in self._parked:
            return False
        del self._parked[send]
        for blocked in self._blocked.values():
            blocked.pop(send, None)
        return self._drop_cancelled(send)

    def _resume(self, send: Send) -> None:
        if self._unpark(send):
            self._continue(send)

    def _sweep(self) -> None:
        """End parked sends that have timed out or were cancelled."""
        self._sweeper = None
        now_ms = self._client.now_ms()
        for send in [send for send in self._parked if send.deadline_ms <= now_ms or send.is_cancelled]:
            self._resume(send)
        if self._parked:
            self._park(min(self._parked, key=lambda send: send.deadline_ms))

    # -- drain, flush, close ------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until a send would be accepted, and the connections have taken what was written."""
        if self._limiter.would_block(1):
            await self._limiter.wait(1, _FOREVER_MS)
        for publish_info in list(self._publish_infos.values()):
            for connection in publish_info.connections.copy():
                if connection.channel is not None and not connection.channel.is_writable:
                    # A lost connection takes nothing more; each send on it gets its own error.
                    with contextlib.suppress(ConnectionLost):
                        await connection.channel.drain()

    async def flush(self) -> None:
        """Wait until every send accepted so far has ended."""
        if ending := [future for send in self._live for future in send.futures]:
            await asyncio.wait(ending)

    def _forked(self, reason: RocketError) -> None:
        """Reject sends in a forked child. No waiter is woken: tasks of the parent do not run there."""
        self._limiter.closed = reason

    async def close(self, timeout_ms: float) -> list[Unfinished]:
        """Wait for the accepted sends; after `timeout_ms` fail the rest, and return their messages."""
        if self._live and timeout_ms > 0:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout_ms / 1000)
        unfinished = []
        for send in list(self._live):
            unsure = send.on_wire or any(_may_be_stored(attempt) for attempt in send.attempts)
            outcome = Outcome.UNKNOWN if unsure else Outcome.NOT_SENT
            unfinished += [Unfinished(message, outcome) for message in send.messages]
            self._parked.pop(send, None)
            self._end(send, ClientClosed("the producer was closed before a response came", outcome=outcome))
        self._blocked.clear()
        for publish_info in self._publish_infos.values():
            publish_info.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._client.on_fork.remove(self._forked)
        return unfinished


def _with_attempts(results: Sequence[SendResult], attempts: int) -> list[SendResult]:
    return [msgspec.structs.replace(result, attempts=attempts) for result in results]


def _may_be_stored(attempt: Attempt) -> bool:
    return not isinstance(attempt.end, RocketError) or attempt.end.outcome is not Outcome.NOT_SENT


def _forbidden(reason: BaseException) -> RocketError:
    """Return the error of a send that a check of the application forbids for this reason."""
    if isinstance(reason, RocketError):
        return reason
    error = SendForbidden(f"a check forbids the message: {describe(reason)}")
    error.__cause__ = reason
    return error


def _pass_response(send: Send, response: asyncio.Future[Command]) -> None:
    error = response.exception()
    if error is None:
        send.set_result(response.result())
    elif isinstance(error, RocketError):
        send.set_exception(error)
    else:
        raise error
