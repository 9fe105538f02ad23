"""The probes of a server: /livez fails if a restart is needed, /readyz if it is not ready for clients.

The response is 200, or 503 if a check fails, with a line for each check, as in Kubernetes' own servers and
etcd. Probes need no extra package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import MetricsConfig
from rocketpy_broker.metrics.http_server import HttpServer, Page


class Check(NamedTuple):
    """Result of a check."""

    name: str
    problem: str | None
    """None if it passed."""


def probe_server(
    config: MetricsConfig, tasks: Tasks, ready: Callable[[], Sequence[Check]]
) -> HttpServer | None:
    """Return a server of /livez and /readyz, not started yet; None without a port."""
    if config.port is None:
        return None
    server = HttpServer(config.host, config.port, tasks)
    server.pages["/livez"] = lambda: _page([task_check(tasks)])
    server.pages["/readyz"] = lambda: _page(ready())
    return server


def task_check(tasks: Tasks) -> Check:
    """Return the check for failures that need a restart, so not a full disk or a lost name server."""
    return Check("tasks", None if tasks.failure is None else str(tasks.failure))


def failing_calls(*components: Tasks) -> list[str]:
    """Return a text for each periodic call that failed last time, for example because of a bug."""
    return [text for tasks in components for text in tasks.failing.values()]


def upkeep_check(failing: Sequence[str]) -> Check:
    """Return the check for `failing_calls`."""
    return Check("upkeep", "; ".join(failing) or None)


def _page(checks: Sequence[Check]) -> Page:
    lines = [
        f"[+]{check.name} ok" if check.problem is None else f"[-]{check.name} failed: {check.problem}"
        for check in checks
    ]
    is_ok = all(check.problem is None for check in checks)
    text = "\n".join([*lines, "ok" if is_ok else "not ok", ""])
    return Page("200 OK" if is_ok else "503 Service Unavailable", text.encode())
