"""Makes the attempts of sends: chooses queues, waits for routes, retries, and ends each send once.

A send whose route is known goes to the sink of its broker by plain calls. A send that must wait is parked,
and also resumes with a plain call. `retry.decide` decides what follows a failed attempt.
"""

from __future__ import annotations

import asyncio
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
    InvariantError,
    NotDurable,
    Outcome,
    RemoteProtocolError,
    RocketError,
    RouteNotFound,
    SendForbidden,
    TransportError,
)
from rocketpy.hooks import FailedAttempt, SendCheck
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import GATHERED, PendingSend, SendHolder
from rocketpy.producer.send.publish_info import PublishInfoTable
from rocketpy.producer.send.response import LessDurable, are_ok
from rocketpy.producer.send.retry import (
    Attempt,
    AttemptEnd,
    Decision,
    GiveUp,
    RefreshRoute,
    SendTo,
    decide,
)
from rocketpy.producer.send.sink import BrokerSink, is_rejection
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import BatchResults, SendResult, SendStatus, Unfinished
from rocketpy.runtime.application import describe, ends_program

log: Final = logging.getLogger("rocketpy.producer")

_FOREVER_MS: Final = 10**9
_SWEEP_MS: Final = 10
"""Resolution of timeouts of parked sends."""
_BROKER_ERRORS: Final = (TransportError, BrokerError, RemoteProtocolError)
"""Errors that count as failures of the broker for `LatencyConfig`."""


class Sender:
    """Makes the attempts of one producer's pending sends, and ends each send once.

    limiter: counts the messages in flight; a send that ends is released there.
    """

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
        self._config = config
        self._limiter = limiter
        self._publish_infos = publish_infos
        self._listeners = listeners
        self._checks = tuple(checks)
        self._require_send_ok = config.require_send_ok
        self.less_durable: LessDurable = LessDurable()
        """Counts messages stored with another status than SEND_OK."""
        self._loop = asyncio.get_running_loop()
        self._tasks = client.tasks
        latency = config.latency
        self._latencies = (
            BrokerLatencies(latency.latency_ms, latency.not_available_ms, latency.failed_ms)
            if latency.enabled
            else None
        )
        self._sinks: dict[PeerConnection, BrokerSink] = {}
        self._live: dict[PendingSend, None] = {}
        """Accepted sends that have not ended."""
        self._parked: dict[PendingSend, SendHolder | None] = {}
        """Live sends that wait for a sink, which is the value, or for a route or the end of a pause."""
        self._written_oneway: list[PendingSend] = []
        """Sends that end with this iteration of the event loop, since no response will end them."""
        self._sweeper: asyncio.TimerHandle | None = None
        """Ends parked sends at their deadline."""
        self._idle: asyncio.Future[None] | None = None
        """Done when no send is live; exists once the producer closes."""
        client.on_fork.append(self._forked)
        client.connections.dropped.append(self._connection_dropped)

    @property
    def rejecting_batches(self) -> tuple[str, ...]:
        """Names of brokers that rejected the last batch, sorted."""
        return tuple(sorted({sink.broker_name for sink in self._sinks.values() if sink.rejects_batches}))

    # -- attempts -----------------------------------------------------------------------------

    def start(self, send: PendingSend, ready: asyncio.Future[Any] | None = None) -> None:
        """Accept a send that the limiter counts; from now on its futures will be resolved.

        ready: the first attempt begins when it is done, also with an error.
        """
        self._live[send] = None
        if ready is not None:
            ready.add_done_callback(partial(self._prepared, send), context=Context())
            return
        if (send.kind is GATHERED or send.futures[0].done()) and not self._drop_cancelled(send):
            return
        publish_info, queue = send.publish_info, send.chosen_queue
        if self._latencies is None and send.choose is None:
            # What `decide` says of a first attempt, in a third of the time (`tools.bench.send_path`).
            connection: PeerConnection | None = None
            if queue is not None:
                connection = publish_info.connection(queue)
            elif publish_info.queue_connections:
                index, queues = publish_info.next_index, publish_info.queue_connections
                publish_info.next_index = index + 1
                queue, connection = queues[index % len(queues)]
            if queue is not None and connection is not None:
                self._attempt(send, queue, connection, send.accepted_ms)
                return
        self.advance(send)

    def fail(self, send: PendingSend, error: Exception) -> None:
        """End a send that the limiter counts, and that cannot be prepared because of a bug."""
        self._live[send] = None
        self.attempt_ended(send, error)

    def _prepared(self, send: PendingSend, ready: asyncio.Future[Any]) -> None:
        if not ready.cancelled() and (error := ready.exception()) is not None:
            self._tasks.fail("the preparation of a send", error)
        self._tasks.run(self.advance, send)

    def advance(self, send: PendingSend) -> None:
        """Make the next attempt of a send, let it wait, or end it, as `retry.decide` decides."""
        if send not in self._live or not self._drop_cancelled(send):
            return
        publish_info, now_ms = send.publish_info, self._client.now_ms()
        try:
            decision = self._decide(send, now_ms)
        except Exception as error:  # noqa: BLE001 - of the application's selector; the caller gets it
            if isinstance(error, RocketError):
                error.outcome = Outcome.NOT_SENT
            self._end(send, error)
            return
        if isinstance(decision, GiveUp):
            self._end(send, decision.end)
        elif isinstance(decision, SendTo):
            if send.choose is not None:  # it is called once: later attempts go to the same queue
                send.choose, send.chosen_queue = None, decision.queue
            publish_info.next_index += 1
            connection = publish_info.connection(decision.queue)
            if connection is not None:
                self._attempt(send, decision.queue, connection, now_ms)
            else:  # an order configuration that names a broker the route lacks
                send.queue = decision.queue
                text = (
                    f"the route of topic {publish_info.topic} has no master of broker "
                    f"{decision.queue.broker_name}; start it, or correct the order configuration of the topic"
                )
                self.attempt_ended(send, RouteNotFound(text))
        elif isinstance(decision, RefreshRoute):
            self.park(send)
            publish_info.request_route(partial(self._resume, send), decision.at_ms)
        else:
            self.park(send)
            self._tasks.call_later((decision.at_ms - now_ms) / 1000, self._resume, send)

    def _decide(self, send: PendingSend, now_ms: float) -> Decision:
        choose = send.choose
        if choose is None:
            choose = select_queue if self._latencies is None else self._latencies.chooser(now_ms)
        publish_info = send.publish_info
        rules = send.rules(self._config.retry)
        return decide(publish_info.view, send.attempts, now_ms, rules, publish_info.next_index, choose)

    def _attempt(
        self, send: PendingSend, queue: MessageQueue, connection: PeerConnection, now_ms: float
    ) -> None:
        """Pass a send to the sink of its queue's broker, if the application's checks allow it."""
        send.queue = queue
        if self._checks and not self._passes_checks(send, queue):
            return
        sink = self._sinks.get(connection)
        if sink is None:
            sink = BrokerSink(queue.broker_name, connection, self._client, self._config, self)
            self._sinks[connection] = sink
        sink.send(send, now_ms)

    def _passes_checks(self, send: PendingSend, queue: MessageQueue) -> bool:
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

    # -- ends of attempts ---------------------------------------------------------------------

    def attempt_ended(self, send: PendingSend, end: AttemptEnd | Exception) -> None:
        """End a send after an attempt, or go on with it."""
        if not isinstance(end, Exception):
            if self._latencies is not None and send.queue is not None:
                now_ms = self._client.now_ms()
                self._latencies.update(send.queue.broker_name, now_ms - send.sent_ms, now_ms)
            if end[0].status is SendStatus.SEND_OK or self._accepts(end):
                self._end(send, _with_attempts(end, len(send.attempts) + 1) if send.attempts else end)
            else:
                self._attempt_failed(send, end)
        elif not isinstance(end, RocketError):
            log.error("a send to topic %s cannot be encoded", send.publish_info.topic, exc_info=end)
            self._report_bug(end)
            self._end(send, end)
        elif send not in self._live:
            return
        elif send.kind is GATHERED and is_rejection(end):
            self._split(send)
        else:
            self._attempt_failed(send, end)

    def _accepts(self, results: Sequence[SendResult]) -> bool:
        """Record results other than SEND_OK; return whether the send ends with them."""
        self.less_durable.record(results)
        return not self._config.retry.another_broker_when_not_ok

    def _attempt_failed(self, send: PendingSend, end: AttemptEnd) -> None:
        """Repeat or end a send after an error, or after a status other than SEND_OK."""
        if send.queue is None or send not in self._live:
            return
        now_ms = self._client.now_ms()
        if self._latencies is not None and isinstance(end, _BROKER_ERRORS):
            self._latencies.update(send.queue.broker_name, 0, now_ms, failed=True)
        send.attempts += (Attempt(send.queue, end, now_ms),)
        for event in send.events:
            event.attempts = len(send.attempts)
            event.failures += (FailedAttempt(send.queue, end, time.time_ns()),)
        if send.kind.is_oneway:
            self._end(send, end)
        else:
            self.advance(send)

    def _split(self, batch: PendingSend) -> None:
        """Send the messages of a rejected batch individually."""
        if not self._drop_cancelled(batch):
            return
        del self._live[batch]
        parts = batch.split()
        self._live.update(dict.fromkeys(parts))
        for part in parts:
            self.advance(part)

    def _drop_cancelled(self, send: PendingSend) -> bool:
        """Remove the cancelled messages of a batch, and end a cancelled send; return whether it continues."""
        if send.kind is GATHERED:
            dropped = send.drop_cancelled()
            if dropped is not None:
                self._limiter.release(dropped.size, dropped.messages)
                for event in dropped.events:
                    self._listeners.ended(event, asyncio.CancelledError())
            if send.futures:
                return True
        elif not send.futures[0].done():
            return True
        self._end(send, ClientClosed("the send was cancelled"))
        return False

    # -- ends ---------------------------------------------------------------------------------

    def _end(self, send: PendingSend, end: Exception | Sequence[SendResult]) -> None:
        """Stop counting a send as in flight, and pass its results or error to its callers and listeners."""
        if send not in self._live:
            return
        del self._live[send]
        self._limiter.release(send.size, send.count)
        if (
            self._require_send_ok
            and send.kind.must_be_ok
            and not isinstance(end, Exception)
            and not are_ok(end)
        ):
            self._fail_not_durable(send, end)
        else:
            if send.events:
                for event, own_end in send.event_outcomes(end):
                    event.queue = send.queue
                    self._listeners.ended(event, own_end)
            if isinstance(end, Exception):
                send.fail(end)
            else:
                send.resolve(end)
        if self._idle is not None and not self._live and not self._idle.done():
            self._idle.set_result(None)

    def _fail_not_durable(self, send: PendingSend, results: Sequence[SendResult]) -> None:
        """Fail each message of a send with its own result."""
        for event, own_end in send.event_outcomes(results) if send.events else ():
            event.queue = send.queue
            error = own_end if isinstance(own_end, BaseException) else NotDurable(own_end)
            self._listeners.ended(event, error)
        for future, result in zip(send.futures, results, strict=True):
            if not future.done():
                future.set_exception(NotDurable((result,)))

    def oneway_written(self, send: PendingSend) -> None:
        """Keep a oneway send in flight until the end of the event loop iteration, when it is written."""
        self._written_oneway.append(send)
        if len(self._written_oneway) == 1:
            self._tasks.call_soon(self._release_oneway)

    def _release_oneway(self) -> None:
        written, self._written_oneway = self._written_oneway, []
        for send in written:
            self._end(send, ())

    def _report_bug(self, error: Exception) -> None:
        """Fail the whole client after a broken invariant, not only this send."""
        if isinstance(error, InvariantError):
            self._tasks.fail("send", error)

    # -- parked sends -------------------------------------------------------------------------

    def park(self, send: PendingSend, holder: SendHolder | None = None) -> None:
        """Let a send wait until `claim`, at most until its deadline; then `holder` forgets it."""
        self._parked[send] = holder
        if self._sweeper is None or self._sweeper.when() * 1000 > send.deadline_ms + _SWEEP_MS:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self._tasks.call_at((send.deadline_ms + _SWEEP_MS) / 1000, self._sweep)

    def claim(self, send: PendingSend) -> bool:
        """End the wait of a send; return False if it has ended meanwhile or was cancelled."""
        if send not in self._parked:
            return False
        del self._parked[send]
        return self._drop_cancelled(send)

    def _resume(self, send: PendingSend) -> None:
        if self.claim(send):
            self.advance(send)

    def _sweep(self) -> None:
        """End parked sends that have timed out or were cancelled."""
        now_ms = self._client.now_ms()
        self._sweeper = None
        for send in [send for send in self._parked if send.deadline_ms <= now_ms or send.is_cancelled]:
            holder = self._parked.get(send)
            send.waits_for = "" if holder is None else holder.forget(send)
            self._resume(send)
        if self._parked:
            first = min(self._parked, key=lambda send: send.deadline_ms)
            self.park(first, self._parked[first])

    def _connection_dropped(self, connection: PeerConnection) -> None:
        """Forget the sink of a broker that left; what waited there goes elsewhere."""
        sink = self._sinks.pop(connection, None)
        for send in sink.take_waiting() if sink is not None else ():
            self._resume(send)

    # -- drain, flush, close ------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until a send would be accepted, and the connections have taken what was written."""
        if self._limiter.would_block(1):
            await self._limiter.wait(1, _FOREVER_MS)
        for sink in list(self._sinks.values()):
            await sink.drain()

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
            unsure = send.on_response is not None or any(_may_be_stored(attempt) for attempt in send.attempts)
            outcome = Outcome.UNKNOWN if unsure else Outcome.NOT_SENT
            unfinished += [Unfinished(message, outcome) for message in send.messages]
            self._parked.pop(send, None)
            self._end(send, ClientClosed("the producer was closed before a response came", outcome=outcome))
        for sink in self._sinks.values():
            sink.take_waiting()
        self._sinks.clear()
        self._client.connections.dropped.remove(self._connection_dropped)
        for publish_info in self._publish_infos.values():
            publish_info.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._client.on_fork.remove(self._forked)
        return unfinished


def _with_attempts(results: Sequence[SendResult], attempts: int) -> Sequence[SendResult]:
    if isinstance(results, BatchResults):
        return results.after(attempts)
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
