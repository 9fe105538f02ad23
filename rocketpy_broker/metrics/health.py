"""The probes of a server: /livez fails if a restart is needed, /readyz if clients are not served well.

The response is 200, or 503 if a check fails, with a line for each check, as of Kubernetes' own servers and
etcd. Probes need no extra package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rocketpy_broker.metrics.http_server import HttpServer, Page
from rocketpy_broker.replication.dledger.peer import PeerHealth
from rocketpy_broker.replication.ha.client import HaClientState

_FLUSH_S_MAX: Final = 10.0
"""A longer flush means that the disk hangs."""


class Check(NamedTuple):
    """Result of a check. problem: None if it passed."""

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
    """Return the checks of /readyz for a broker.

    phase: current step of start or stop. failure: why it accepts no messages. flushing_s: duration of the
    current flush. name_servers: the configured ones. problems: why registrations failed. peer: health of the
    DLedger peer.
    """
    checks = [
        Check("serving", phase),
        Check("store", failure),
        Check(
            "disk",
            f"a flush has not finished after {flushing_s:.0f} s" if flushing_s > _FLUSH_S_MAX else None,
        ),
        Check("registration", _unregistered(name_servers, registered_at, problems)),
    ]
    if slave_state is not None:
        refused = "the master rejected it; see the log" if slave_state is HaClientState.REFUSED else None
        checks.append(Check("replication", refused))
    if peer is not None:
        no_leader = None if peer.leader_id is not None else f"no leader in term {peer.term}"
        checks.append(Check("dledger", peer.problem or no_leader))
    return checks


def _unregistered(
    name_servers: Sequence[str], registered_at: Sequence[str], problems: Sequence[str]
) -> str | None:
    if registered_at or not name_servers:
        return None
    return f"not registered at any name server: {'; '.join(problems) or ', '.join(name_servers)}"
