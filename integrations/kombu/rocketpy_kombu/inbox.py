"""Messages on their way from the event loop of the clients to the thread that calls kombu."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue between threads. Its file descriptor is readable while items wait, for event loops."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._pipe: tuple[int, int] | None = None

    def put(self, item: T) -> None:
        """Append an item, and wake the reader."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()
            self._wake()

    def get(self, timeout_s: float | None) -> T | None:
        """Return the next item; None if there is none until the timeout. None waits without limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._items, timeout_s)
            item = self._items.popleft() if self._items else None
            if not self._items and self._pipe is not None:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._pipe[0], 4096):
                        pass
            return item

    def is_empty(self) -> bool:
        """Return whether no item waits."""
        return not self._items

    def take(self, wanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the items that match."""
        with self._changed:
            taken = [item for item in self._items if wanted(item)]
            kept = [item for item in self._items if not wanted(item)]
            self._items = deque(kept)
            return taken

    def fileno(self) -> int:
        """Return the file descriptor; it is created by the first call."""
        with self._changed:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                self._wake()
            return self._pipe[0]

    def close(self) -> None:
        """Close the file descriptor."""
        with self._changed:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)

    def _wake(self) -> None:
        if self._pipe is not None and self._items:
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], b"\0")
