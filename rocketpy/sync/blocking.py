"""Base classes of the blocking clients and of their parts, such as `AdminClient.topics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from rocketpy.client.lifecycle import Client
from rocketpy.errors import ClientClosed
from rocketpy.results import Health
from rocketpy.sync.loop_thread import LoopThread, as_coroutine, iterate, run_without_waiting

_BLOCKED_AFTER_S: Final = 3.0
_BLOCKED: Final = (
    f"the event loop of the blocking clients has not run for {_BLOCKED_AFTER_S:.0f} s: a callback, or a "
    "handler with threads=False, blocks it"
)

C = TypeVar("C", bound=Client)
P = TypeVar("P")
T = TypeVar("T")


class _Delegating(Generic[P]):
    """Runs methods of an asyncio object in the event loop of a background thread, and waits for them."""

    def __init__(self, inner: P) -> None:
        self._inner: P = inner

    def _loop_thread(self) -> LoopThread:
        """Return the thread that runs the client. Raises ClientClosed before the start, and after a fork."""
        raise NotImplementedError

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            background = self._loop_thread()
        except ClientClosed:
            work.close()
            raise
        return background.run(work)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        return iterate(self._loop_thread(), items)


class BlockingPart(_Delegating[P]):
    """Base class of the parts of a blocking client."""

    def __init__(self, inner: P, loop_thread: Callable[[], LoopThread]) -> None:
        super().__init__(inner)
        self._loop_thread_of_client = loop_thread

    def _loop_thread(self) -> LoopThread:
        return self._loop_thread_of_client()


class Blocking(_Delegating[C]):
    """Base class of the blocking clients."""

    _background: LoopThread | None = None

    def __init__(self, inner: C) -> None:
        super().__init__(inner)
        self._prepare()

    def _prepare(self) -> None:
        """Set up what a client has besides the asyncio client."""

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
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> Health:
        """Return the state of the client.

        If something blocks the thread that all blocking clients share, the result has only that problem,
        after 3 s.
        """
        try:
            return self._loop_thread().run(as_coroutine(self._inner.health), _BLOCKED_AFTER_S)
        except TimeoutError:
            return Health(ok=False, problems=(_BLOCKED,), client_id="", namesrv="", brokers={})

    def _loop_thread(self) -> LoopThread:
        if self._background is None:
            raise ClientClosed(f"this {type(self).__name__} was not started: use `with`, or its `start()`")
        self._background.check_process()
        return self._background

    def _configure(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a change of the client, which waits for nothing before the start."""
        return run_without_waiting(work) if self._background is None else self._run(work)

    def _close(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the client's close. Before the start and in a forked child, it waits for nothing."""
        if self._background is None or self._background.is_forked_copy:
            return run_without_waiting(work)
        return self._background.run(work)
