"""Replayed nonces are rejected, and memory is limited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpy_broker.security.replays import LATE_MS_MAX, SESSIONS_MAX, ReplayGuard

NOW = 1_700_000_000_000


def guard() -> ReplayGuard:
    """A guard that started long ago."""
    return ReplayGuard(NOW - 10 * LATE_MS_MAX)


def test_a_nonce_is_taken_once() -> None:
    """An attacker who reads the traffic could replay a request."""
    replays = guard()
    assert replays.deny_reason("a", "s-0", NOW, NOW) is None
    assert "used before" in (replays.deny_reason("a", "s-0", NOW, NOW) or "")
    assert replays.deny_reason("b", "s-0", NOW, NOW) is None
    assert replays.deny_reason("a", "t-0", NOW, NOW) is None
    assert replays.deny_reason("a", "s-1", NOW, NOW) is None


@given(st.lists(st.integers(0, 1023), unique=True, max_size=60), st.data())
def test_requests_may_overtake_each_other(numbers: list[int], data: st.DataObject) -> None:
    """Requests of one client over two connections would be rejected, or accepted twice."""
    replays = guard()
    for number in numbers:
        assert replays.deny_reason("a", f"s-{number:x}", NOW, NOW) is None
    for number in data.draw(st.permutations(numbers)):
        assert replays.deny_reason("a", f"s-{number:x}", NOW, NOW) is not None


def test_a_number_below_the_window_is_rejected_with_its_distance() -> None:
    """Operators would look for a replay when requests of one signer overtook each other."""
    replays = guard()
    assert replays.deny_reason("a", "s-400", NOW, NOW) is None
    assert replays.deny_reason("a", "s-1", NOW, NOW) is None
    assert "1024 below the newest" in (replays.deny_reason("a", "s-0", NOW, NOW) or "")


@given(st.lists(st.integers(0, 5000), max_size=80))
def test_no_number_is_taken_twice(numbers: list[int]) -> None:
    """A gap in the numbers, which requests to other servers cause, could allow a replay."""
    replays, taken = guard(), set()
    for number in numbers:
        reason = replays.deny_reason("a", f"s-{number:x}", NOW, NOW)
        assert reason is not None or number not in taken
        if reason is None:
            taken.add(number)
        else:
            assert number in taken or number <= max(taken) - 1024


def test_times_are_bounded() -> None:
    """The server would have to remember nonces forever."""
    replays = guard()
    for signed_ms, says in (
        (NOW - LATE_MS_MAX - 1000, "signed 301 s before this server's time"),
        (NOW + LATE_MS_MAX + 1000, "signed 301 s after this server's time"),
    ):
        reason = replays.deny_reason("a", "s-1", signed_ms, NOW) or ""
        assert says in reason
        assert "300 s are allowed" in reason
    assert replays.deny_reason("a", "s-1", NOW - LATE_MS_MAX, NOW) is None
    assert replays.deny_reason("a", "s-2", NOW + LATE_MS_MAX, NOW) is None


def test_after_a_restart_only_later_signatures_are_accepted() -> None:
    """Requests of the last five minutes could be replayed after a restart."""
    replays = ReplayGuard(NOW)
    assert "before this server started" in (replays.deny_reason("a", "s-1", NOW - 1, NOW) or "")
    assert replays.deny_reason("a", "s-1", NOW, NOW) is None


def test_malformed_nonces_are_rejected() -> None:
    """A client could cause a traceback, or memory that grows with its requests."""
    replays = guard()
    for nonce in ("", "-", "s", "-1", "s-", "s-g", "s" * 80 + "-1"):
        assert "of the form" in (replays.deny_reason("a", nonce, NOW, NOW) or "")


def test_memory_is_bounded_and_forgets_nothing_that_counts() -> None:
    """An account with many clients could make the server forget nonces, or use all its memory."""
    replays = guard()
    for number in range(SESSIONS_MAX + 10):
        assert replays.deny_reason("a", f"s{number}-0", NOW + number, NOW + number) is None
    (account,) = replays._accounts.values()
    assert len(account.sessions) == SESSIONS_MAX
    later = NOW + SESSIONS_MAX + 10
    for number in range(SESSIONS_MAX + 10):
        assert replays.deny_reason("a", f"s{number}-0", NOW + number, later) is not None
    assert replays.deny_reason("a", "s0-1", later, later) is None
    assert replays.deny_reason("b", "s-0", NOW, later) is None, "another account does not suffer"


def test_sessions_that_cannot_be_used_any_more_are_forgotten() -> None:
    """New clients of an account would evict active ones, although most sessions are expired."""
    replays = guard()
    for number in range(SESSIONS_MAX):
        assert replays.deny_reason("a", f"s{number}-0", NOW, NOW) is None
    later = NOW + LATE_MS_MAX + 1
    assert replays.deny_reason("a", "new-0", later - LATE_MS_MAX, later) is None
    (account,) = replays._accounts.values()
    assert len(account.sessions) == 1
    assert replays.deny_reason("a", "s0-0", NOW, later) is not None
