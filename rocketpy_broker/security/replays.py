"""Detects replayed requests with signature version 2: each nonce is accepted once.

A nonce is ``session-number``. A signer numbers its requests consecutively. For each session the server has an
anti-replay window, as IPsec does (RFC 4303): the highest number, and which of the 1,023 numbers below it were
received. So memory does not grow with requests: up to 4,096 sessions for each account, about 400 bytes each.

A session is removed when all its signatures are too old to be accepted. If an account has too many sessions,
the server removes the least recently used one. From then on, a new session of the account must be signed
later than that one. After a restart, the server accepts only signatures from after its start.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

LATE_MS_MAX: Final = 300_000
"""Limit of the clock difference between signer and server, plus the transfer time."""
SESSIONS_MAX: Final = 4096
"""Limit for one account."""
_WINDOW: Final = 1024
"""Numbers in the window, which ends at the highest one: requests may overtake fewer than so many others."""
_MASK: Final = (1 << _WINDOW) - 1
_NONCE_CHARACTERS_MAX: Final = 64


@dataclass(slots=True)
class _Session:
    """What one session of a client has signed."""

    highest: int
    seen: int
    """Bit n is set if number `highest - n` was received."""
    newest_ms: int
    """Time of the newest signature."""


@dataclass(slots=True)
class _Account:
    """Sessions, the least recently used one first."""

    floor_ms: int
    """A new session must not be signed earlier."""
    sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict)


class ReplayGuard:
    """The nonces that one server has accepted. start_ms: its start, in ms since 1970."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._accounts: dict[str, _Account] = {}

    def deny_reason(self, access_key: str, nonce: str, signed_ms: int, now_ms: int) -> str | None:
        """Return why a request with a valid signature is rejected; None for a new one, which is recorded."""
        if abs(now_ms - signed_ms) > LATE_MS_MAX:
            return (
                f"The request was signed {abs(now_ms - signed_ms) / 1000:.0f} s "
                f"{'before' if signed_ms < now_ms else 'after'} this server's time, "
                f"{LATE_MS_MAX // 1000} s are allowed; synchronize the clocks"
            )
        if signed_ms < self._start_ms:
            return (
                "The request was signed before this server started; sign it again, or synchronize the clocks"
            )
        session, _, digits = nonce.rpartition("-")
        try:
            number = int(digits, 16)
        except ValueError:
            number = -1
        if number < 0 or not session or len(nonce) > _NONCE_CHARACTERS_MAX:
            return "The nonce of the request is not of the form session-number"
        account = self._accounts.get(access_key)
        if account is None:
            account = self._accounts[access_key] = _Account(self._start_ms)
        known = account.sessions.get(session)
        if known is None:
            return _open_session(account, session, number, signed_ms, now_ms)
        account.sessions.move_to_end(session)
        return _accept(known, number, signed_ms)


def _open_session(account: _Account, session: str, number: int, signed_ms: int, now_ms: int) -> str | None:
    sessions = account.sessions
    while sessions:
        oldest = next(iter(sessions.values()))
        if oldest.newest_ms + LATE_MS_MAX >= now_ms:
            break
        sessions.popitem(last=False)
    if len(sessions) >= SESSIONS_MAX:
        _, oldest = sessions.popitem(last=False)
        account.floor_ms = max(account.floor_ms, oldest.newest_ms + 1)
    if signed_ms < account.floor_ms:
        return f"The request may be a replay: the account has more than {SESSIONS_MAX} signers; sign it again"
    sessions[session] = _Session(number, 1, signed_ms)
    return None


def _accept(known: _Session, number: int, signed_ms: int) -> str | None:
    ahead = number - known.highest
    if ahead > 0:
        known.seen = (known.seen << ahead if ahead < _WINDOW else 0) & _MASK | 1
        known.highest = number
    elif -ahead >= _WINDOW:
        return f"The number in the nonce is {-ahead} below the newest one; sign the request again"
    elif known.seen >> -ahead & 1:
        return "The nonce was used before: each signature is accepted once; sign the request again"
    else:
        known.seen |= 1 << -ahead
    known.newest_ms = max(known.newest_ms, signed_ms)
    return None
