"""Blocking: what the clients of `rocketpy.sync` have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from rocketpy.errors import ClientClosed
from rocketpy.results import Health
from rocketpy.sync.loop_thread import Background, later


class _Client(Protocol):
    async def start(self, *, wait: bool = True) -> None: ...

    async def close(self) -> object: ...

    def health(self) -> Health: ...


C = TypeVar("C", bound=_Client)


class Blocking(Generic[C]):
    """An asyncio client in the background loop, and its life."""

    def __init__(self, inner: C) -> None:
        self._inner: C = inner
        self._background: Background | None = None

    def start(self, *, wait: bool = True) -> None:
        """See `start` of the class of the same name in `rocketpy`."""
        before, self._background = self._background, Background.get()
        try:
            self._background.run(self._inner.start(wait=wait))
        except BaseException:
            self._background = before
            raise

    def close(self) -> object:
        """See `close` there."""
        return self._background.run(self._inner.close()) if self._background is not None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> Health:
        """See `health` there."""
        return self._loop().run(later(self._inner.health))

    def _loop(self) -> Background:
        """Where it runs. Raises ClientClosed."""
        if self._background is None:
            raise ClientClosed(f"this {type(self).__name__} was not started: use `with`, or its `start()`")
        return self._background

    def _arrange(self, setting: Callable[[], None]) -> None:
        """Change what the inner client does: at once before the start, in the loop from then on."""
        if self._background is None:
            setting()
        else:
            self._background.run(later(setting))
