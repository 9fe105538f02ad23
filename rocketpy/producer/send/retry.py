"""What to do next with a send: a pure decision, taken before its first attempt and after each failed one.

| What happened | Then |
|---|---|
| the time-out is over | give up |
| no route yet, or the given queue's broker is not in it | ask for the route, once; then give up |
| a route, but no broker in it has a master now, or not the given queue's | ask again after each pause |
| a transport error (no connection, connection lost) | another attempt |
| a response code in `RetryConfig.codes` | another attempt |
| any other response code | give up |
| stored with a status other than SEND_OK | another attempt if the configuration says so, else done |
| TOPIC_NOT_EXIST, or the only broker is unreachable | as above, after asking for the route |
| another attempt, but `RetryConfig.times` are used up, or the queue was given by the caller | give up |
| a later request of a long batch, which was not sent | the same queue, after a pause |

A topic without a master has one again soon where a group elects its leader, or a master is started again. So
sends wait for that until their time-out, which counts as no attempt.
Another attempt goes to another broker at once; where the topic has only one, to the same after a pause.
A send that gives up tells the truth about all its attempts: if one of them may have stored the
message, the outcome is UNKNOWN, whatever the last one said.

Source: RocketMQ 4.6 DefaultMQProducerImpl sendDefaultImpl. Differs: the pause, and that RocketMQ's async
sends are not repeated after a response; both kinds are treated alike here.
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
    """Ask a name server for the topic's route, not before this time, then decide again."""

    at_ms: float = float("-inf")


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The send ends: with this error, or with the results of an earlier attempt that did store it."""

    end: RocketError | Sequence[SendResult]


Decision = SendTo | WaitUntil | RefreshRoute | GiveUp


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that did not end in SEND_OK. end: the error, or what was stored all the same."""

    queue: MessageQueue
    end: RocketError | Sequence[SendResult]
    ended_ms: float


@dataclass(frozen=True, slots=True)
class RouteView:
    """What is known of the topic's route. asked_ms: time of the last answer. error: why it was none."""

    route: PublishRoute | None
    asked_ms: float = float("-inf")
    error: RocketError | None = None


@dataclass(frozen=True, slots=True)
class SendRules:
    """What holds for one send.

    queue: the one the caller gave. follows: it was not the caller who gave it, but earlier requests of the
    same batch went there.
    """

    accepted_ms: float
    deadline_ms: float
    retry: RetryConfig
    queue: MessageQueue | None = None
    follows: bool = False


_LEAST_PAUSE_MS = 10
"""Between two questions for a route, whatever `RetryConfig.pause_ms` is: name servers have many clients."""

Choose = Callable[[Sequence[MessageQueue], int, str | None], MessageQueue]
"""As `select_queue`: a queue for a turn, on another broker than one that has just failed if possible."""


def decide(
    known: RouteView,
    attempts: Sequence[Attempt],
    now_ms: float,
    rules: SendRules,
    turn: int = 0,
    choose: Choose = select_queue,
) -> Decision:
    """What to do with a send.

    attempts: those made, oldest first. turn: for round robin. choose: by which rule. All times are ms of one
    steady clock.
    """
    last = attempts[-1] if attempts else None
    if last is not None and not _may_repeat(attempts, rules):
        return GiveUp(_final(attempts))
    if now_ms >= rules.deadline_ms:
        return GiveUp(_final(attempts) if attempts else _never_sent(known, rules))
    asked_since = known.asked_ms >= (last.ended_ms if last is not None else rules.accepted_ms)
    queues = _choice(known.route, rules.queue)
    if not queues:
        return _no_writable_queue(known, attempts, rules) if asked_since else RefreshRoute()
    if last is None:
        return SendTo(choose(queues, turn, None))
    queue = choose(queues, turn, last.queue.broker_name)
    alone = queue.broker_name == last.queue.broker_name
    if not asked_since and _route_may_be_stale(last, alone):
        return RefreshRoute()
    pause_until_ms = last.ended_ms + rules.retry.pause_ms
    if alone and now_ms < pause_until_ms:
        return WaitUntil(pause_until_ms)
    return SendTo(queue)


def _no_writable_queue(known: RouteView, attempts: Sequence[Attempt], rules: SendRules) -> Decision:
    """What to do when the route was asked for, and has no place to send to."""
    if is_waiting_for_master(known.route, rules.queue):
        return RefreshRoute(known.asked_ms + route_pause_ms(rules.retry))
    return GiveUp(_final(attempts) if attempts else _no_route(known, rules))


def route_pause_ms(retry: RetryConfig) -> int:
    """How long to wait between two questions for the route of a topic that has no master."""
    return max(retry.pause_ms, _LEAST_PAUSE_MS)


def is_waiting_for_master(route: PublishRoute | None, given: MessageQueue | None = None) -> bool:
    """Whether there is nowhere to send to only because a broker has no master at the moment."""
    if route is None or _choice(route, given):
        return False
    return (
        given.broker_name in route.brokers_without_master
        if given is not None
        else bool(route.brokers_without_master)
    )


def no_master(route: PublishRoute, time_ms: float) -> RouteNotFound:
    """The end of a send that has waited in vain."""
    return RouteNotFound(
        f"no broker of topic {route.topic} had a master within {time_ms:.0f} ms: "
        f"{', '.join(sorted(route.brokers_without_master))}"
    )


def _may_repeat(attempts: Sequence[Attempt], rules: SendRules) -> bool:
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


def _was_not_sent(end: RocketError | Sequence[SendResult]) -> bool:
    return isinstance(end, RocketError) and end.outcome is Outcome.NOT_SENT


def _choice(route: PublishRoute | None, given: MessageQueue | None) -> Sequence[MessageQueue]:
    """The queues to choose from; none when there is nowhere to send to."""
    if route is None:
        return ()
    if given is None:
        return route.queues
    return (given,) if given.broker_name in route.masters else ()


def _route_may_be_stale(last: Attempt, alone: bool) -> bool:
    """Whether to ask for the route again. alone: no other broker has the topic, as far as is known."""
    if not isinstance(last.end, RocketError):
        return False
    # The only broker may be gone, or a slave since its group has another leader.
    is_out = isinstance(last.end, TransportError) or last.end.retry is Retry.OTHER_BROKER
    return last.end.retry is Retry.REFRESH_ROUTE or (alone and is_out)


def _final(attempts: Sequence[Attempt]) -> RocketError | Sequence[SendResult]:
    """How a send with attempts ends: stored if one stored it, else the last error with the worst outcome."""
    for attempt in reversed(attempts):
        if not isinstance(attempt.end, RocketError):
            return attempt.end
    errors = [attempt.end for attempt in attempts if isinstance(attempt.end, RocketError)]
    error = errors[-1]
    if any(earlier.outcome is Outcome.UNKNOWN for earlier in errors):
        error.outcome = Outcome.UNKNOWN
    if len(attempts) > 1:
        for number, attempt in enumerate(attempts, 1):
            error.add_note(
                f"attempt {number} of {len(attempts)}, to {attempt.queue.broker_name}: {attempt.end}"
            )
    return error


def _never_sent(known: RouteView, rules: SendRules) -> RocketError:
    time_ms = rules.deadline_ms - rules.accepted_ms
    if known.route is not None and is_waiting_for_master(known.route, rules.queue):
        return no_master(known.route, time_ms)
    reason = f" ({known.error})" if known.error is not None else ""
    wanted = "a connection, or a broker that reads" if known.route is not None else "the topic's route"
    return RequestTimeout(
        f"nothing was sent within {time_ms:.0f} ms, for want of {wanted}{reason}",
        outcome=Outcome.NOT_SENT,
    )


def _no_route(known: RouteView, rules: SendRules) -> RocketError:
    if rules.queue is not None and known.route is not None and known.route.queues:
        return RouteNotFound(
            f"the route has no master of broker {rules.queue.broker_name}, wanted by {rules.queue}"
        )
    if known.error is not None:
        known.error.outcome = Outcome.NOT_SENT
        return known.error
    return RouteNotFound("the topic has no queue that may be written on a broker with a master")


def copy_of(error: RocketError) -> RocketError:
    """The same error for one send alone: its end writes into it, and so does raising it."""
    own = copy.copy(error)
    if notes := getattr(error, "__notes__", None):
        own.__notes__ = list(notes)
    own.__cause__ = error.__cause__
    return own
