"""The fault run would pass with wrong results of sends."""

from __future__ import annotations

import pytest

from rocketpy import MessageQueue, Outcome, SendResult, SendStatus
from tools.soak.ledger import Ledger

A, B = ("broker-a", 0, 0), ("broker-b", 1, 5)


def result(place: tuple[str, int, int], status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    broker, queue_id, offset = place
    return SendResult(status, "id", "offset id", MessageQueue("Faults", broker, queue_id), offset)


def ledger_of(*ends: SendResult | Outcome | None, failed_attempts: int = 0) -> Ledger:
    """Messages 1, 2, ... with these ends; None has none."""
    ledger = Ledger(set(range(1, len(ends) + 1)))
    for number, end in enumerate(ends, 1):
        if isinstance(end, SendResult):
            ledger.ack(number, end, failed_attempts)
        elif end is not None:
            ledger.failed[number] = end
    return ledger


@pytest.mark.parametrize(
    ("ledger", "found", "complaint"),
    [
        (ledger_of(result(A), result(B)), {1: [A], 2: [B]}, None),
        (ledger_of(result(A)), {}, "no place"),
        (ledger_of(result(A)), {1: [B]}, "and it is at"),
        (ledger_of(result(A)), {1: [A, B]}, "2 times after 1 attempts"),
        (ledger_of(result(A), failed_attempts=1), {1: [B, A]}, None),
        (ledger_of(result(A), failed_attempts=1), {1: [B]}, "and it is at"),
        (ledger_of(Outcome.NOT_SENT, Outcome.STORED, Outcome.UNKNOWN), {2: [A]}, None),
        (ledger_of(Outcome.UNKNOWN), {1: [A, B]}, None),
        (ledger_of(Outcome.NOT_SENT), {1: [A]}, "NOT_SENT was reported"),
        (ledger_of(Outcome.STORED), {}, "STORED was reported"),
        (ledger_of(result(A, SendStatus.FLUSH_DISK_TIMEOUT)), {}, None),
        (ledger_of(), {7: [A]}, "never sent"),
        (ledger_of(None), {}, "never ended"),
    ],
)
def test_a_wrong_result_is_reported(
    ledger: Ledger, found: dict[int, list[tuple[str, int, int]]], complaint: str | None
) -> None:
    """A checker that does not detect a loss, an extra copy or a wrong outcome would prove nothing."""
    problems = list(ledger.problems(found))
    assert [complaint in problem for problem in problems if complaint] == ([True] if complaint else [])
    assert len(problems) == (complaint is not None)
