"""Saves the changes of a state file in a worker thread, those that come in a burst together.

A change is saved first and applied then, so a caller that waited for it may announce it: it survives a
crash. The event loop never waits for the disk, and a thousand changes at once cost one save, or two.
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

_PAUSES: Final = 3
"""The pause before the next save, in times of the last: a flood takes a quarter of a core at most."""
_PAUSE_MAX_S: Final = 1.0
"""A longer pause is only as long as the save: senders to a new topic wait for it."""

C = TypeVar("C")

SaveCallback = Callable[[RocketError | None], None]
"""Called in the event loop once a change is saved and used, or with the reason why it was not."""


@dataclass(slots=True, eq=False)
class PendingChange(Generic[C]):
    """A change that is not saved yet, and its callbacks."""

    change: C
    waiters: list[SaveCallback] = field(default_factory=list)


class ChangePending(Exception):
    """A request needs something that is being created. `wait` adds a callback for the end of the save."""

    def __init__(self, saving: PendingChange[Any]) -> None:
        super().__init__("waits for a save")
        self.wait = saving.waiters.append


@dataclass(eq=False)
class BatchSaver(Generic[C]):
    """Saves the changes of one state, in order.

    prepare: returns the work, for a thread, that saves the state with these changes; it raises StoreError.
    use: takes over changes that were saved. When a save fails, its changes are dropped and their waiters get
    the error.
    """

    tasks: Tasks
    name: str
    _: KW_ONLY
    prepare: Callable[[Sequence[C]], Callable[[], None]]
    use: Callable[[Sequence[C]], None]

    def __post_init__(self) -> None:
        self._pending: list[PendingChange[C]] = []
        self._task: asyncio.Task[None] | None = None
        self.saves = 0
        """How often the file was written."""

    def submit(self, change: C, callback: SaveCallback | None = None) -> PendingChange[C]:
        """Save a change soon. callback: called in the event loop when that is done."""
        saving = PendingChange(change, [] if callback is None else [callback])
        self._pending.append(saving)
        if self._task is None:
            self._task = self.tasks.spawn(self._run(), f"save of {self.name}")
        return saving

    async def save(self, change: C) -> None:
        """Save a change and use it. Raises StoreError; then nothing has changed.

        Cancelling ends the wait; the change is saved all the same.
        """
        await self.wait(self.submit(change))

    @staticmethod
    async def wait(saving: PendingChange[C]) -> None:
        """Wait until a submitted change is saved and used. Raises StoreError if it is not."""
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
        """Wait until no change waits to be saved."""
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
                    await asyncio.sleep(max(seconds, min(_PAUSES * seconds, _PAUSE_MAX_S)))
        finally:
            self._task = None

    async def _save(self, changes: list[C]) -> StoreError | None:
        self.saves += 1
        try:
            await save_in_thread(self.prepare(changes))
        except StoreError as error:
            log.error("%s: %d changes are not saved: %s", self.name, len(changes), error)
            return error
        self.use(changes)
        return None

    @staticmethod
    def _finish(batch: list[PendingChange[C]], error: StoreError | None) -> None:
        for saving in batch:
            for callback in saving.waiters:
                callback(error)
