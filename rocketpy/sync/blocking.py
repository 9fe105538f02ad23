"""The base class of the blocking clients."""

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
    """A part of a blocking client. loop: returns the thread in which the client runs."""

    def __init__(self, inner: P, loop: Callable[[], LoopThread]) -> None:
        self._inner = inner
        self._loop = loop


class Blocking(Generic[C]):
    """Runs an asyncio client in the event loop of the background thread."""

    def __init__(self, inner: C) -> None:
        self._inner: C = inner
        self._background: LoopThread | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start the client; see the class of the same name in `rocketpy`."""
        before, self._background = self._background, LoopThread.get()
        try:
            self._background.run(self._inner.start(wait=wait))
        except BaseException:  # `start` can be called again, also after Ctrl-C
            self._background = before
            raise

    def close(self) -> object:
        """Close the client. In a forked child it does nothing: the client is that of the parent."""
        background = self._own_loop()
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
        return self._loop().run(as_coroutine(self._inner.health))

    def _loop(self) -> LoopThread:
        """Return the thread in which it runs. Raises ClientClosed."""
        if self._background is None:
            raise ClientClosed(f"this {type(self).__name__} was not started: use `with`, or its `start()`")
        self._background.check_process()
        return self._background

    def _own_loop(self) -> LoopThread | None:
        """Return the thread in which it runs; None before the start, and in a forked child."""
        if self._background is None or self._background.is_forked_copy:
            return None
        return self._background

    def _configure(self, setting: Callable[[], None]) -> None:
        """Change a setting of the inner client: at once before the start, in its loop after it."""
        if self._background is None:
            setting()
        else:
            self._background.run(as_coroutine(setting))
