"""The probes of a server: /livez fails if only a restart helps, /readyz if clients are not served well.

A probe answers 200, or 503 when a check fails, with a line for each check, as those of Kubernetes' own
servers and of etcd do. They need no extra package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rocketpy_broker.metrics.http_server import HttpServer, Page
from rocketpy_broker.replication.dledger.peer import PeerHealth
from rocketpy_broker.replication.ha.client import HaClientState

_FLUSH_S_MAX: Final = 10.0
"""A flush that takes longer than this is a disk that hangs."""


class Check(NamedTuple):
    """One thing that must be in order. problem: what is not; None while it is."""

    name: str
    problem: str | None


def add_probes(
    server: HttpServer, *, live: Callable[[], Sequence[Check]], ready: Callable[[], Sequence[Check]]
) -> None:
    """Serve /livez and /readyz."""
    server.pages["/livez"] = lambda: _page(live())
    server.pages["/readyz"] = lambda: _page(ready())


def _page(checks: Sequence[Check]) -> Page:
    lines = [
        f"[+]{check.name} ok" if check.problem is None else f"[-]{check.name} failed: {check.problem}"
        for check in checks
    ]
    is_ok = all(check.problem is None for check in checks)
    text = "\n".join([*lines, "ok" if is_ok else "not ok", ""])
    return Page("200 OK" if is_ok else "503 Service Unavailable", text.encode())


def broker_checks(
    *,
    phase: str | None,
    failure: str | None,
    flushing_s: float,
    name_servers: Sequence[str],
    registered_at: Sequence[str],
    problems: Sequence[str],
    slave_state: HaClientState | None,
    peer: PeerHealth | None,
) -> list[Check]:
    """Return the checks of a broker's readiness.

    phase: what it does before or after it serves; None while it serves. failure: why it takes no messages.
    flushing_s: for how long the flush that runs has been running. name_servers: those that are configured.
    problems: why registrations failed.
    slave_state: its state as a slave. peer: of a DLedger group.
    """
    checks = [
        Check("serving", phase),
        Check("store", failure),
        Check(
            "disk", f"a flush has not ended after {flushing_s:.0f} s" if flushing_s > _FLUSH_S_MAX else None
        ),
        Check("registration", _unregistered(name_servers, registered_at, problems)),
    ]
    if slave_state is not None:
        refused = "its master refused it; see the log" if slave_state is HaClientState.REFUSED else None
        checks.append(Check("replication", refused))
    if peer is not None:
        leaderless = None if peer.leader_id is not None else f"no leader in term {peer.term}"
        checks.append(Check("dledger", peer.problem or leaderless))
    return checks


def _unregistered(
    name_servers: Sequence[str], registered_at: Sequence[str], problems: Sequence[str]
) -> str | None:
    if registered_at or not name_servers:
        return None
    return f"none of its name servers knows it: {'; '.join(problems) or ', '.join(name_servers)}"
