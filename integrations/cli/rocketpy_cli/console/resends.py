"""Resends: re-sends all dead letters of groups in the background, while the console runs.

Sending thousands of dead letters takes longer than a browser waits for a page.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rocketpy.admin import AdminClient, ResendProgress
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.runtime.tasks import Tasks


class _StopRequestedError(Exception):
    """Ends a resend between two dead letters."""


@dataclass
class Resend:
    """The resend of one group's dead letters."""

    total: int
    """The number of dead letters when it began."""
    progress: ResendProgress = field(default_factory=lambda: ResendProgress(0, 0, (), {}))
    """Its progress, including the resends that it continues."""
    error: RocketError | None = None
    """The error that ended it early; None without one."""
    is_stopping: bool = False
    """Whether a request asked it to stop."""
    task: asyncio.Task[None] | None = None
    """The task that runs it."""

    @property
    def state(self) -> str:
        """``running``, ``done``, ``failed`` or ``stopped``."""
        if self.task is not None and not self.task.done():
            return "running"
        if self.error is not None:
            return "failed"
        return "stopped" if self.is_stopping else "done"


class Resends:
    """The resends of a console: at most one runs per group. `last` keeps the last resend of each group.

    Args:
        admin: Sends the dead letters.
        tasks: Owns the tasks of resends.
    """

    def __init__(self, admin: AdminClient, tasks: Tasks) -> None:
        self.last: Final[dict[str, Resend]] = {}
        self._admin = admin
        self._tasks = tasks

    async def start(self, group: str, *, resume: bool = False) -> None:
        """Begin to send the dead letters of a group.

        Args:
            group: The consumer group.
            resume: Begin after the dead letters that the last resend has processed.

        Raises:
            ConfigInvalid: A resend of this group is running.
        """
        before = self._last_unless_running(group)
        total = await self._admin.dead_letters.count(group)
        if self._last_unless_running(group) is not before:
            raise ConfigInvalid(
                f"another request began to resend the dead letters of group {group}; wait until it is done"
            )
        resend = Resend(total)
        if resume and before is not None:
            resend = Resend(before.total, before.progress)
        self.last[group] = resend
        resend.task = self._tasks.spawn(self._run(group, resend), f"resend-{group}")

    async def stop(self, group: str) -> None:
        """Stop the resend of a group once the outcome of the current dead letter is known."""
        resend = self.last.get(group)
        if resend is not None and resend.task is not None and not resend.task.done():
            resend.is_stopping = True
            await asyncio.wait([resend.task])

    def _last_unless_running(self, group: str) -> Resend | None:
        """Return the last resend of a group, if any. Raises ConfigInvalid while it is running."""
        resend = self.last.get(group)
        if resend is not None and resend.state == "running":
            raise ConfigInvalid(
                f"the dead letters of group {group} are being sent; wait until this is done, or stop it"
            )
        return resend

    async def _run(self, group: str, resend: Resend) -> None:
        begun = resend.progress

        def note(now: ResendProgress) -> None:
            resend.progress = ResendProgress(
                begun.resent + now.resent,
                begun.skipped + now.skipped,
                begun.damaged + now.damaged,
                {**begun.next_offsets, **now.next_offsets},
            )

        def sent(now: ResendProgress) -> None:
            note(now)
            if resend.is_stopping:
                raise _StopRequestedError

        try:
            note(
                await self._admin.dead_letters.resend_all(group, offsets=begun.next_offsets, on_progress=sent)
            )
            resend.is_stopping = False  # all were sent before the stop
        except _StopRequestedError:
            pass
        except RocketError as error:
            resend.error = error
