"""`decide`, row by row of the table in its module."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rocketpy.client.routing.routes import PublishRoute
from rocketpy.config import RetryConfig
from rocketpy.errors import (
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    Outcome,
    RemoteProtocolError,
    RequestTimeout,
    Retry,
    RocketError,
    RouteNotFound,
)
from rocketpy.message import MessageQueue
from rocketpy.producer.send.retry import (
    Attempt,
    Decision,
    GiveUp,
    RefreshRoute,
    RouteView,
    SendRules,
    SendTo,
    WaitUntil,
    decide,
)
from rocketpy.protocol.codes import ResponseCode
from rocketpy.results import SendResult, SendStatus

A0, A1, B0 = (MessageQueue("T", name, number) for name, number in (("a", 0), ("a", 1), ("b", 0)))
ONE_BROKER = PublishRoute("T", (A0, A1), {"a": "a:1"})
TWO_BROKERS = PublishRoute("T", (A0, A1, B0), {"a": "a:1", "b": "b:1"})
LOST = ConnectionLost("lost")
FIXED = SendRules(0, 3000, RetryConfig(), A0)


def refused(code: int, outcome: Outcome = Outcome.NOT_SENT, retry: Retry = Retry.OTHER_BROKER) -> BrokerError:
    """A broker's refusal."""
    return BrokerError(code, None, "a", outcome=outcome, retry=retry)


def stored(status: SendStatus) -> Sequence[SendResult]:
    """The results of a message that a broker stored with this status."""
    return [SendResult(status, "id", "offset id", A0, 7)]


def after(
    *ends: RocketError | Sequence[SendResult],
    route: PublishRoute | None = TWO_BROKERS,
    now_ms: float = 10,
    refreshed_ms: float = float("-inf"),
    rules: SendRules | None = None,
    retry: RetryConfig | None = None,
    error: RocketError | None = None,
) -> Decision:
    """The decision after attempts at queue a/0 that ended so, at 1, 2, … ms."""
    attempts = [Attempt(A0, end, index + 1) for index, end in enumerate(ends)]
    rules = rules or SendRules(0, 3000, retry or RetryConfig())
    return decide(RouteView(route, refreshed_ms, error), attempts, now_ms, rules, index=0)


def same(end: RocketError, error: RocketError) -> bool:
    """Whether the error of a send is its own copy of `error`, with notes."""
    assert end is not error
    assert not hasattr(error, "__notes__")
    return type(end) is type(error) and str(end) == str(error)


def ended(decision: Decision) -> RocketError:
    """The error of a send that is not retried."""
    assert isinstance(decision, GiveUp)
    assert isinstance(decision.end, RocketError)
    return decision.end


def test_the_first_attempt_goes_to_the_next_queue_in_turn() -> None:
    """No message would be sent."""
    assert after() == SendTo(A0)
    assert decide(RouteView(TWO_BROKERS), (), 0, SendRules(0, 3000, RetryConfig()), 2) == SendTo(B0)


def test_without_a_route_a_name_server_is_asked_once() -> None:
    """The first send to a topic would fail, or request the route forever."""
    assert after(route=None) == RefreshRoute()
    no_response = ConnectFailed("no name server")
    error = ended(after(route=None, refreshed_ms=5, error=no_response))
    assert isinstance(error, ConnectFailed)
    assert error is not no_response, "the view's error belongs to all sends of the topic"
    assert error.outcome is Outcome.NOT_SENT
    assert isinstance(ended(after(route=PublishRoute("T", (), {}), refreshed_ms=5)), RouteNotFound)


def test_a_given_queue_is_used_and_tried_once() -> None:
    """Messages that must keep their order would be sent to another queue, or twice."""
    assert after(rules=FIXED) == SendTo(A0)
    assert ended(after(LOST, rules=FIXED)) is LOST


def test_the_last_attempt_decides_whether_there_is_another() -> None:
    """A message that a broker rejected for good would be sent to others after an earlier attempt was lost."""
    busy, illegal = refused(ResponseCode.SYSTEM_ERROR), refused(ResponseCode.MESSAGE_ILLEGAL)
    assert isinstance(after(busy, LOST), SendTo)
    assert same(ended(after(busy, illegal)), illegal)


def test_the_rest_of_a_batch_stays_in_its_queue() -> None:
    """One busy moment of a broker would leave a long batch half sent, or put its rest into another queue."""
    rules = SendRules(0, 3000, RetryConfig(), A0, follows=True)
    busy = refused(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert after(busy, rules=rules, refreshed_ms=5) == WaitUntil(101)
    assert after(busy, rules=rules, now_ms=101, refreshed_ms=5) == SendTo(A0)
    assert ended(after(busy, rules=FIXED)) is busy
    assert ended(after(LOST, rules=rules)) is LOST, "it may be stored"
    assert same(ended(after(busy, busy, busy, rules=rules)), busy)


def test_a_given_queue_of_an_unknown_broker() -> None:
    """The user would wait for the timeout without a reason."""
    rules = SendRules(0, 3000, RetryConfig(), MessageQueue("T", "gone", 0))
    assert after(rules=rules) == RefreshRoute()
    error = ended(after(rules=rules, refreshed_ms=5))
    assert isinstance(error, RouteNotFound)
    assert "gone" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        ConnectFailed("refused"),
        RequestTimeout("slow"),
        RemoteProtocolError("not RocketMQ"),
        *(refused(code) for code in (17, 14, 1, 16, 204, 205)),
    ],
    ids=str,
)
def test_failures_that_are_retried(error: RocketError) -> None:
    """One broken broker would fail a third of all sends."""
    assert after(error) == SendTo(B0)


@pytest.mark.parametrize(
    "error",
    [
        refused(ResponseCode.SYSTEM_BUSY, retry=Retry.SAME_BROKER),
        refused(ResponseCode.MESSAGE_ILLEGAL, retry=Retry.NONE),
        refused(9999),
        ClientClosed("closed"),
    ],
    ids=str,
)
def test_failures_that_are_not_retried(error: RocketError) -> None:
    """A message that no broker takes would be sent three times; a busy broker would be made busier."""
    assert ended(after(error)) is error


def test_retried_codes_can_be_chosen() -> None:
    """Newer brokers respond with codes that 4.6.0 does not know."""
    assert after(refused(9999), retry=RetryConfig(codes=frozenset({9999}))) == SendTo(B0)
    assert isinstance(after(refused(1), retry=RetryConfig(codes=frozenset())), GiveUp)


def test_attempts_are_counted() -> None:
    """A send would continue until its timeout, and store one more copy with each attempt."""
    assert after(LOST, LOST) == SendTo(B0)
    error = ended(after(LOST, LOST, ConnectFailed("refused")))
    assert isinstance(error, ConnectFailed)
    assert isinstance(after(LOST, retry=RetryConfig(times=0)), GiveUp)


def test_all_attempts_share_the_time() -> None:
    """A send with a timeout of 3 s would take 9."""
    assert isinstance(ended(after(LOST, now_ms=3000)), ConnectionLost)
    rules = SendRules(500, 3500, RetryConfig())
    error = ended(after(now_ms=3500, error=ConnectFailed("no name server"), rules=rules))
    assert isinstance(error, RequestTimeout)
    assert "timed out after 3000 ms" in str(error)
    assert error.outcome is Outcome.NOT_SENT
    assert "no name server" in str(error)


def test_the_outcome_covers_all_attempts() -> None:
    """A user who resends after NOT_SENT would store the message twice: the first attempt may be stored."""
    error = ended(after(RequestTimeout("slow"), refused(14), refused(14)))
    assert error.outcome is Outcome.UNKNOWN
    assert len(error.__notes__) == 3
    assert "attempt 1 of 3, to a: slow" in error.__notes__[0]
    assert ended(after(refused(14), refused(14), refused(14))).outcome is Outcome.NOT_SENT


def test_a_status_that_is_not_ok_ends_the_send_by_default() -> None:
    """The message would be stored twice although the user did not allow a retry."""
    results = stored(SendStatus.FLUSH_DISK_TIMEOUT)
    assert after(results) == GiveUp(results)


def test_a_status_that_is_not_ok_can_be_retried() -> None:
    """RetryAnotherBrokerWhenNotStoreOK would do nothing."""
    retry = RetryConfig(another_broker_when_not_ok=True)
    results = stored(SendStatus.SLAVE_NOT_AVAILABLE)
    assert after(results, retry=retry) == SendTo(B0)
    assert after(results, LOST, LOST, retry=retry) == GiveUp(results)


def test_the_only_broker_gets_a_pause_and_a_fresh_route() -> None:
    """Three attempts within a millisecond would all fail while a broker restarts or moves."""
    assert after(LOST, route=ONE_BROKER) == RefreshRoute()
    assert after(LOST, route=ONE_BROKER, refreshed_ms=5) == WaitUntil(101)
    assert after(LOST, route=ONE_BROKER, refreshed_ms=5, now_ms=101) == SendTo(A0)


def test_the_route_is_refreshed_when_its_only_broker_takes_no_messages() -> None:
    """Sends would go to the former leader of a group for half a minute, until all routes are refreshed."""
    deposed = refused(14, retry=Retry.OTHER_BROKER)
    assert after(deposed, route=ONE_BROKER) == RefreshRoute()
    assert after(deposed, route=ONE_BROKER, refreshed_ms=5, now_ms=101) == SendTo(A0)
    assert after(deposed) == SendTo(B0)


def test_the_route_of_a_topic_that_a_broker_lacks_is_refreshed() -> None:
    """The retry would follow the same old route."""
    lacking = refused(17, retry=Retry.REFRESH_ROUTE)
    assert after(lacking) == RefreshRoute()
    assert after(lacking, refreshed_ms=5) == SendTo(B0)


def test_a_route_that_was_removed_meanwhile() -> None:
    """The error about a deleted topic would not contain the failure of the attempt."""
    assert after(LOST, route=None) == RefreshRoute()
    assert ended(after(LOST, route=None, refreshed_ms=5)) is LOST


LEADERLESS = PublishRoute("T", (), {}, brokers_without_master=frozenset({"a"}))


def test_a_topic_without_a_master_is_waited_for() -> None:
    """Every send would fail while a group elects its leader, which takes two seconds."""
    assert after(route=LEADERLESS) == RefreshRoute()
    assert after(route=LEADERLESS, refreshed_ms=5) == RefreshRoute(105)
    assert after(route=LEADERLESS, refreshed_ms=5, retry=RetryConfig(pause_ms=0)) == RefreshRoute(15)
    assert after(LOST, LOST, route=LEADERLESS, refreshed_ms=5) == RefreshRoute(105)
    away = ConnectFailed("no name server")
    assert after(route=LEADERLESS, refreshed_ms=5, error=away) == RefreshRoute(105)


def test_waiting_for_a_master_ends_at_the_timeout() -> None:
    """A send to a topic whose only broker was removed would never end."""
    error = ended(after(route=LEADERLESS, refreshed_ms=2950, now_ms=3000))
    assert isinstance(error, RouteNotFound)
    assert "had a master within 3000 ms: a" in str(error)
    assert error.outcome is Outcome.NOT_SENT
    assert ended(after(LOST, route=LEADERLESS, refreshed_ms=2950, now_ms=3000)) is LOST


def test_attempts_are_counted_without_a_master_too() -> None:
    """A send would be repeated more often than its settings allow."""
    last = ConnectFailed("refused")
    assert same(ended(after(LOST, LOST, last, route=LEADERLESS)), last)


def test_a_given_queue_waits_for_its_own_brokers_master() -> None:
    """Ordered sends would fail while others wait, or wait for a broker that does not exist."""
    route = PublishRoute("T", (B0,), {"b": "b:1"}, brokers_without_master=frozenset({"a"}))
    assert after(route=route, refreshed_ms=5, rules=FIXED) == RefreshRoute(105)
    assert after(route=route) == SendTo(B0)
    gone = SendRules(0, 3000, RetryConfig(), MessageQueue("T", "gone", 0))
    assert isinstance(ended(after(route=route, refreshed_ms=5, rules=gone)), RouteNotFound)
    assert isinstance(ended(after(route=PublishRoute("T", (), {}), refreshed_ms=5)), RouteNotFound)
