"""Saves changes of a state file in a worker thread. Changes that arrive during a save are saved together.

A change is saved before it is applied. So once a caller has waited for it, the change survives a crash and
may be announced. The event loop never waits for the disk, and a burst of a thousand changes needs one or two
saves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, TypeVar

from rocketpy.errors import RocketError, StoreError
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.store.files.state_file import save_in_thread

log = logging.getLogger("rocketpy.broker.saving")

_PAUSE_FACTOR: Final = 3
"""The pause after a save is this multiple of its duration, so continuous saves use a quarter of a core."""
_PAUSE_MAX_S: Final = 1.0
"""Maximum pause, since senders to a new topic wait for it. A longer save is followed by a pause as long."""

C = TypeVar("C")

SaveCallback = Callable[[RocketError | None], None]
"""Called in the event loop with None once a change is saved and applied, or with the error."""


@dataclass(slots=True, eq=False)
class PendingChange(Generic[C]):
    """A change that is not saved yet, and its callbacks."""

    change: C
    waiters: list[SaveCallback] = field(default_factory=list)


class ChangePending(Exception):
    """A request waits for a topic or group that is being saved, or for other work, and then runs again.

    `wait` adds a callback for the end.
    """

    def __init__(self, saving: PendingChange[Any]) -> None:
        super().__init__("waits for a save")
        self.wait = saving.waiters.append


@dataclass(eq=False)
class BatchSaver(Generic[C]):
    """Saves the changes of one state file, in order."""

    tasks: Tasks
    name: str
    _: KW_ONLY
    prepare: Callable[[Sequence[C]], Callable[[], None]]
    """Returns a function that saves the state with these changes; it runs in a thread and raises
    StoreError."""
    use: Callable[[Sequence[C]], None]
    """Applies changes that were saved. When a save fails, its changes are dropped and their waiters get the
    error."""

    def __post_init__(self) -> None:
        self._pending: list[PendingChange[C]] = []
        self._task: asyncio.Task[None] | None = None
        self.saves = 0
        """Number of saves."""

    def submit(self, change: C, callback: SaveCallback | None = None) -> PendingChange[C]:
        """Start to save a change, after earlier ones. callback: called when it is saved or has failed."""
        saving = PendingChange(change, [] if callback is None else [callback])
        self._pending.append(saving)
        if self._task is None:
            self._task = self.tasks.spawn(self._run(), f"save of {self.name}")
        return saving

    async def save(self, change: C) -> None:
        """Save and apply a change. Raises StoreError; then nothing has changed.

        Cancelling ends only the wait, not the save.
        """
        await self.wait(self.submit(change))

    @staticmethod
    async def wait(saving: PendingChange[C]) -> None:
        """Wait until a submitted change is saved and applied. Raises StoreError if the save failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finished(error: RocketError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        saving.waiters.append(finished)
        await done

    async def drain(self) -> None:
        """Wait until all submitted changes are saved or have failed."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                started = loop.time()
                self._finish(batch, await self._save([saving.change for saving in batch]))
                if self._pending:
                    seconds = loop.time() - started
                    await asyncio.sleep(max(seconds, min(_PAUSE_FACTOR * seconds, _PAUSE_MAX_S)))
        finally:
            self._task = None

    async def _save(self, changes: list[C]) -> StoreError | None:
        self.saves += 1
        try:
            await save_in_thread(self.prepare(changes))
        except StoreError as error:
            log.error("%s: cannot save %d changes, dropping them: %s", self.name, len(changes), error)
            return error
        self.use(changes)
        return None

    @staticmethod
    def _finish(batch: list[PendingChange[C]], error: StoreError | None) -> None:
        for saving in batch:
            for callback in saving.waiters:
                callback(error)
