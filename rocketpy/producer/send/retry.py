"""Decides the next step of a send, before its first attempt and after each failed one. Pure functions.

| What happened | Next step |
|---|---|
| the timeout has passed | give up |
| no route yet, or the given queue's broker is not in it | request the route once, then give up |
| no broker in the route, or not the given queue's broker, has a master now | request it after each pause |
| a transport error (no connection, connection lost) | another attempt |
| a response code in `RetryConfig.codes` | another attempt |
| any other response code | give up |
| stored with a status other than SEND_OK | another attempt if the configuration says so, else done |
| TOPIC_NOT_EXIST, or the only broker is unreachable | another attempt, after a request for the route |
| another attempt, but `RetryConfig.times` are used up, or the queue was given by the caller | give up |
| a later request of a long batch, which was not sent | another attempt to the same queue, after a pause |

A topic without a master usually gets one soon, by an election or a restart. So sends wait for a master until
their timeout, without counting an attempt. Another attempt goes to another broker immediately. If the topic
has only one broker, the attempt goes to the same one after a pause. The error of a send that gives up covers
all its attempts. If any attempt may have stored the message, the outcome is UNKNOWN.

Source: RocketMQ 4.6 DefaultMQProducerImpl sendDefaultImpl. Differs: the pause, and that RocketMQ does not
repeat an asynchronous send after a response; both kinds are treated alike here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocketpy.client.routing.routes import PublishRoute, select_queue
from rocketpy.config import RetryConfig
from rocketpy.errors import (
    BrokerError,
    Outcome,
    RequestTimeout,
    Retry,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult, SendStatus
from rocketpy.runtime.text import blocked_text

AttemptEnd = RocketError | Sequence[SendResult]
"""How an attempt ended: an error, or what the broker stored."""


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send to this queue now."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Decide again at this time."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class RefreshRoute:
    """Request the topic's route from a name server, not before this time, then decide again."""

    at_ms: float = float("-inf")


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the send with this error, or with the results of an earlier attempt that stored the message."""

    end: AttemptEnd


Decision = SendTo | WaitUntil | RefreshRoute | GiveUp


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that did not end in SEND_OK: with an error, or stored with another status."""

    queue: MessageQueue
    end: AttemptEnd
    ended_ms: float


@dataclass(frozen=True, slots=True)
class RouteView:
    """A snapshot of a topic's route."""

    route: PublishRoute | None
    refreshed_ms: float = float("-inf")
    """When the last request for the route ended, also with an error."""
    error: RocketError | None = None
    """Its error, or None."""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class SendRules:
    """The limits of one send."""

    accepted_ms: float
    """When the send was accepted, by the clock of `decide`."""
    deadline_ms: float
    """When the send fails, by the clock of `decide`."""
    retry: RetryConfig
    queue: MessageQueue | None = None
    """The only queue that it may go to, or None."""
    follows: bool = False
    """The queue was not chosen by the caller, but earlier requests of the same batch went there."""
    waits_for: str = ""
    """What the send waits for besides the route, for the error of a timeout; or empty."""


_ROUTE_PAUSE_MIN_MS = 10
"""Minimum time between two route requests, even if `RetryConfig.pause_ms` is shorter, to protect name
servers."""

ChooseQueue = Callable[[Sequence[MessageQueue], int, str | None], MessageQueue]
"""Same as `select_queue`: returns the next queue, if possible not on the broker that has just failed."""


def decide(
    view: RouteView,
    attempts: Sequence[Attempt],
    now_ms: float,
    rules: SendRules,
    index: int = 0,
    choose: ChooseQueue = select_queue,
) -> Decision:
    """Decide the next step of a send.

    attempts: the failed attempts, oldest first. index: number of the send, for round robin. choose: selects
    the queue. All times are in ms of one monotonic clock.
    """
    last = attempts[-1] if attempts else None
    if last is not None and not _may_retry(attempts, rules):
        return GiveUp(_final(attempts))
    if now_ms >= rules.deadline_ms:
        return GiveUp(_final(attempts) if attempts else _never_sent(view, rules, now_ms))
    is_fresh = view.refreshed_ms >= (last.ended_ms if last is not None else rules.accepted_ms)
    queues = _candidates(view.route, rules.queue)
    if not queues:
        return _no_writable_queue(view, attempts, rules) if is_fresh else RefreshRoute()
    if last is None:
        return SendTo(choose(queues, index, None))
    queue = choose(queues, index, last.queue.broker_name)
    same_broker = queue.broker_name == last.queue.broker_name
    if not is_fresh and _route_may_be_stale(last, same_broker):
        return RefreshRoute()
    pause_until_ms = last.ended_ms + rules.retry.pause_ms
    if same_broker and now_ms < pause_until_ms:
        return WaitUntil(pause_until_ms)
    return SendTo(queue)


def _no_writable_queue(view: RouteView, attempts: Sequence[Attempt], rules: SendRules) -> Decision:
    """Decide the next step when a fresh route has no queue for the send."""
    if _needs_master(view.route, rules.queue):
        return RefreshRoute(view.refreshed_ms + _route_pause_ms(rules.retry))
    return GiveUp(_final(attempts) if attempts else _no_route(view, rules))


def _route_pause_ms(retry: RetryConfig) -> int:
    """Return the time between two requests for the route of a topic without a master."""
    return max(retry.pause_ms, _ROUTE_PAUSE_MIN_MS)


def _needs_master(route: PublishRoute | None, chosen: MessageQueue | None = None) -> bool:
    """Return whether there is no queue only because a broker has no master at the moment."""
    if route is None or _candidates(route, chosen):
        return False
    waiting = route.brokers_without_master
    return chosen.broker_name in waiting if chosen is not None else bool(waiting)


def _may_retry(attempts: Sequence[Attempt], rules: SendRules) -> bool:
    if len(attempts) > rules.retry.times:
        return False
    end = attempts[-1].end
    if rules.queue is not None and not (rules.follows and _was_not_sent(end)):
        return False
    if isinstance(end, BrokerError):
        return end.code in rules.retry.codes
    if isinstance(end, RocketError):
        return isinstance(end, TransportError) or end.retry is not Retry.NONE
    return rules.retry.another_broker_when_not_ok and end[0].status is not SendStatus.SEND_OK


def _was_not_sent(end: AttemptEnd) -> bool:
    return isinstance(end, RocketError) and end.outcome is Outcome.NOT_SENT


def _candidates(route: PublishRoute | None, chosen: MessageQueue | None) -> Sequence[MessageQueue]:
    """Return the queues to choose from; empty when the route has no suitable queue."""
    if route is None:
        return ()
    if chosen is None:
        return route.queues
    return (chosen,) if chosen.broker_name in route.masters else ()


def _route_may_be_stale(last: Attempt, same_broker: bool) -> bool:
    """Return whether to request the route again. same_broker: the route has no other broker to choose."""
    if not isinstance(last.end, RocketError):
        return False
    # The only broker may be down, or a slave since its group elected another leader.
    is_out = isinstance(last.end, TransportError) or last.end.retry is Retry.OTHER_BROKER
    return last.end.retry is Retry.REFRESH_ROUTE or (same_broker and is_out)


def _final(attempts: Sequence[Attempt]) -> AttemptEnd:
    """Return the end of a send with attempts: the results if one stored the message, else the last error.

    After several errors, it is a copy with a note for each attempt. Its outcome is UNKNOWN if one has it.
    """
    for attempt in reversed(attempts):
        if not isinstance(attempt.end, RocketError):
            return attempt.end
    errors = [attempt.end for attempt in attempts if isinstance(attempt.end, RocketError)]
    if len(errors) == 1:
        return errors[0]
    error = copy_of(errors[-1])
    error.attempts = len(attempts)
    if any(earlier.outcome is Outcome.UNKNOWN for earlier in errors):
        error.outcome = Outcome.UNKNOWN
    for number, attempt in enumerate(attempts, 1):
        error.add_note(f"attempt {number} of {len(attempts)}, to {attempt.queue.broker_name}: {attempt.end}")
    return error


def _never_sent(view: RouteView, rules: SendRules, now_ms: float) -> RocketError:
    """Return the error of a send that had no attempt before its deadline.

    A send that waits is ended at its deadline. If that is late, the event loop was blocked.
    """
    time_ms = rules.deadline_ms - rules.accepted_ms
    if view.route is not None and _needs_master(view.route, rules.queue):
        return RouteNotFound(
            f"no broker of topic {view.route.topic} had a master within {time_ms:.0f} ms: "
            f"{', '.join(sorted(view.route.brokers_without_master))}"
        )
    reason = f" ({view.error})" if view.error is not None else ""
    missing = f"the route of topic {view.topic!r}" if view.route is None else rules.waits_for or "its turn"
    blocked = blocked_text((now_ms - rules.deadline_ms) / 1000)
    return RequestTimeout(
        f"timed out after {time_ms:.0f} ms waiting for {missing}{blocked}; the message was not sent{reason}",
        outcome=Outcome.NOT_SENT,
    )


def _no_route(view: RouteView, rules: SendRules) -> RocketError:
    if rules.queue is not None and view.route is not None and view.route.queues:
        return RouteNotFound(
            f"the route has no master of broker {rules.queue.broker_name}, which {rules.queue} needs"
        )
    if view.error is not None:
        error = copy_of(view.error)
        error.outcome = Outcome.NOT_SENT
        return error
    return RouteNotFound("the topic has no writable queue on a broker with a master")


def copy_of(error: RocketError) -> RocketError:
    """Return the same error for one send alone, since ending a send and raising an error change it."""
    own = copy.copy(error)
    if notes := getattr(error, "__notes__", None):
        own.__notes__ = list(notes)
    own.__cause__ = error.__cause__
    return own
