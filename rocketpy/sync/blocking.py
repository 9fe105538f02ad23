"""Base classes of the blocking clients and of their parts, such as `AdminClient.topics`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from rocketpy.errors import ClientClosed
from rocketpy.results import Health
from rocketpy.sync.loop_thread import LoopThread, as_coroutine


class _Client(Protocol):
    async def start(self, *, wait: bool = True) -> None: ...

    async def close(self) -> object: ...

    def health(self) -> Health: ...


C = TypeVar("C", bound=_Client)
P = TypeVar("P")


class BlockingPart(Generic[P]):
    """Base class of the parts of a blocking client. loop_thread: returns the thread of its event loop."""

    def __init__(self, inner: P, loop_thread: Callable[[], LoopThread]) -> None:
        self._inner = inner
        self._loop_thread = loop_thread


class Blocking(Generic[C]):
    """Base class of the blocking clients: runs an asyncio client in the event loop of a background thread."""

    def __init__(self, inner: C) -> None:
        self._inner: C = inner
        self._background: LoopThread | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start the client; see `start` of the class of the same name in `rocketpy`."""
        previous, self._background = self._background, LoopThread.get()
        try:
            self._background.run(self._inner.start(wait=wait))
        except BaseException:  # `start` can be called again, also after Ctrl-C
            self._background = previous
            raise

    def close(self) -> object:
        """Close the client. Does nothing in a forked child: the client belongs to the parent process."""
        background = self._own_loop_thread()
        return background.run(self._inner.close()) if background is not None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> Health:
        """Return the state of the client."""
        return self._loop_thread().run(as_coroutine(self._inner.health))

    def _loop_thread(self) -> LoopThread:
        """Return the thread that runs the client. Raises ClientClosed before the start, and after a fork."""
        if self._background is None:
            raise ClientClosed(f"this {type(self).__name__} was not started: use `with`, or its `start()`")
        self._background.check_process()
        return self._background

    def _own_loop_thread(self) -> LoopThread | None:
        """Return the thread that runs the client; None before the start and in a forked child."""
        if self._background is None or self._background.is_forked_copy:
            return None
        return self._background

    def _configure(self, change: Callable[[], None]) -> None:
        """Call `change` to change the inner client. After the start, it runs in the client's event loop."""
        if self._background is None:
            change()
        else:
            self._background.run(as_coroutine(change))
