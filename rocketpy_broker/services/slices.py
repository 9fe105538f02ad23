"""Runs long work of a server in slices, so that its event loop serves other clients in between.

Some work takes time in proportion to what clients have left in the server: held pulls, locks, offsets. As one
piece, it would delay every other client. Work is a generator that yields once the slice is over. All work of
a server shares one slice in each iteration of the loop. RocketMQ has threads for this.

Requests for large responses run one after the other, so that a flood of them takes the memory of one. Their
clients take turns. Other long requests do not wait for these: see `Turns`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from rocketpy.errors import ConnectionLost
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import Body
from rocketpy.runtime.tasks import Tasks

T = TypeVar("T")

SLICE_MS: Final = 2
"""Duration of the slice in each iteration of the loop. Work in a slice may exceed it by its last step."""

_PIECES: Final = 16
"""`encoding` reads the clock after so many pieces."""


class Client(Hashable, Protocol):
    """The client of a request, such as a `Channel`."""

    @property
    def is_closed(self) -> bool:
        """Whether it has disconnected."""

    @property
    def is_writable(self) -> bool:
        """Whether it reads its responses; False while too many bytes are unsent."""

    def when_writable(self, then: Callable[[], None], /) -> None:
        """Call `then` once, when it is writable again or has disconnected."""


class Slices:
    """The slices of one server. tasks: of the server. now_ms: a monotonic clock.

    Work should call `is_over` after each step, and yield if it returns True. An exception that leaves it
    fails the server, or is raised by `start`.
    """

    def __init__(self, tasks: Tasks, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self._tasks = tasks
        self._works: deque[Iterator[None]] = deque()
        self._large = Turns(self)
        self._is_closed = False
        self._end_ms: float | None = None
        """When the slice of this iteration of the loop is over; None before it has begun."""
        self._is_running = False

    def start(self, work: Iterator[None]) -> None:
        """Run work: now if the slice is not over, and the rest in the next iterations of the loop.

        Several works take turns. After `close`, nothing runs.
        """
        if self._is_closed:
            return
        self._works.append(work)
        if self._end_ms is None:
            self._begin()
        if not self._is_running and not self.is_over():
            self._run()

    def is_over(self) -> bool:
        """Whether the current slice is over."""
        return self._end_ms is None or self.now_ms() >= self._end_ms

    def run(self, work: Generator[None, None, T], client: Client) -> asyncio.Future[T]:
        """Run the work of a request for a large response, in the `Turns` of all these; see `Turns.run`."""
        return self._large.run(work, client)

    def run_upkeep(self, work: Generator[None, None, T]) -> asyncio.Future[T]:
        """Run work of the server itself, not after that of requests; return the future of its result."""
        request = _Request(work, SERVER)
        self.start(request.steps())
        return request.result

    def close(self) -> None:
        """End all work, whether it is done or not: the store that it reads will be closed.

        No client may be connected any more.
        """
        self._is_closed = True
        self._works.clear()

    def _begin(self) -> None:
        self._end_ms = self.now_ms() + SLICE_MS
        self._tasks.call_soon(self._next)

    def _next(self) -> None:
        self._end_ms = None
        if self._works:
            self._begin()
            self._run()

    def _run(self) -> None:
        self._is_running = True
        try:
            while self._works:
                work = self._works.popleft()
                if next(work, work) is None:  # it has yielded
                    self._works.append(work)
                if self.is_over():
                    return
        finally:
            self._is_running = False


class Turns:
    """The turns of clients whose requests are of one kind. A client has one request in each turn.

    Requests of one kind run one after the other. Several kinds share the slices, so that a small request does
    not wait until statistics of a million queues are complete. The next turn begins when the last response is
    written: to write a large one takes a millisecond. A client has none while it does not read its responses,
    which would fill the memory.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._requests: dict[Client, deque[_Request[Any]]] = {}
        """Requests that have not begun. A client without any stays until its last response is written."""
        self._ready: dict[Client, None] = {}
        """Clients that may have a turn; the first has the next one."""
        self._is_running = False

    def run(self, work: Generator[None, None, T], client: Client) -> asyncio.Future[T]:
        """Run the work of a request in its client's turn; return the future of its result.

        The caller awaits the future itself, and writes the response as soon as it has the result. When the
        client has disconnected, the work ends, and the future fails with ConnectionLost.
        """
        request = _Request(work, client)
        waiting = self._requests.get(client)
        if waiting is None:
            self._requests[client] = deque((request,))
            self._add(client)
        else:
            waiting.append(request)
        return request.result

    def _add(self, client: Client) -> None:
        """Give turns to a client as soon as it reads its responses."""
        if not client.is_writable:
            client.when_writable(partial(self._add, client))
            return
        self._ready[client] = None
        if not self._is_running:
            self._is_running = True
            self._slices.start(self._run())

    def _run(self) -> Iterator[None]:
        while self._ready:
            client = next(iter(self._ready))
            del self._ready[client]
            request = self._requests[client].popleft()
            yield from request.steps()
            if not client.is_closed:
                # After the callback of the caller, which writes the response.
                request.result.add_done_callback(partial(self._responded, client), context=Context())
                return
            self._end_turn(client)
            if self._slices.is_over():
                yield
        self._is_running = False

    def _responded(self, client: Client, _: object) -> None:
        self._end_turn(client)
        self._slices.start(self._run())

    def _end_turn(self, client: Client) -> None:
        if self._requests[client]:
            self._add(client)
        else:
            del self._requests[client]


def encoding(body: Body, is_over: Callable[[], bool]) -> Generator[None, None, bytes]:
    """Encode a large body that contains maps with objects as keys, as a part of other work."""
    encoded: list[bytes] = []
    for number, piece in enumerate(fastjson.pieces(body)):
        encoded.append(piece)
        if not number % _PIECES and is_over():
            yield
    return b"".join(encoded)


@dataclass(eq=False)
class _Request(Generic[T]):
    """Work of a request."""

    work: Generator[None, None, T]
    client: Client
    result: asyncio.Future[T] = field(init=False)

    def __post_init__(self) -> None:
        self.result = asyncio.get_running_loop().create_future()
        self.result.add_done_callback(_retrieve, context=Context())

    def steps(self) -> Iterator[None]:
        """Do the work while it is needed. Its result or error is that of the future."""
        try:
            while not self.result.done():
                if self.client.is_closed:
                    self.result.set_exception(ConnectionLost("the client has disconnected"))
                    return
                next(self.work)
                yield
        except StopIteration as end:
            self.result.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - the caller of `run` gets it
            self.result.set_exception(error)
        finally:
            self.work.close()


def _retrieve(result: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an error for which nobody waits any more: its client has gone."""
    if not result.cancelled():
        result.exception()


class SharedWork(Generic[T]):
    """Work with the same result for all requests that arrive before it begins.

    A request that arrives later gets the result of a later run, so that it sees all earlier changes. Only the
    last result is kept, and only while requests wait: clients that do not read do not keep older ones.
    """

    def __init__(self, slices: Slices, begin: Callable[[], Generator[None, None, T]]) -> None:
        """begin: returns the work; called for each run."""
        self._slices = slices
        self._begin = begin
        self._waiting = 0
        """Number of requests that wait."""
        self._runs = 0
        """Number of runs that have begun."""
        self._work: Generator[None, None, T] | None = None
        """The last run, if it has not ended. Another request continues it when a client disconnects."""
        self._result: tuple[T] | None = None
        """Of the last run, if it has ended without an error."""

    async def result(self, client: Client) -> T:
        """Return the result of a run that begins after this call; see `Slices.run`."""
        self._waiting += 1
        try:
            return await self._slices.run(self._share(self._runs), client)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._drop()

    def _share(self, earlier_runs: int) -> Generator[None, None, T]:
        if self._runs == earlier_runs or (self._work is None and self._result is None):
            self._drop()
            self._runs += 1
            self._work = self._begin()
        while self._work is not None:
            try:
                next(self._work)
            except StopIteration as end:
                self._work, self._result = None, (end.value,)
            except Exception:  # the next request tries again
                self._work = None
                raise
            else:
                yield
        if self._result is None:
            raise AssertionError("the last run has neither work nor a result")
        return self._result[0]

    def _drop(self) -> None:
        if self._work is not None:
            self._work.close()
        self._work = self._result = None


@dataclass(frozen=True)
class Lasting:
    """A client whose work is done even if it disconnects."""

    owner: Hashable
    """Whose turns it has; None for the server."""
    is_closed: ClassVar = False
    is_writable: ClassVar = True

    def when_writable(self, then: Callable[[], None], /) -> None:
        """Call `then`."""
        then()


SERVER: Final = Lasting(None)
