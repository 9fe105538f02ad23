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
from typing import Any, Final, Generic, Protocol, TypeVar

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
    not wait until statistics of a million queues are complete. A client has no turn while it does not read
    its responses, which would fill the memory.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._waiting: dict[Client, deque[_Request[Any]]] = {}
        """Requests that have not begun. The first client has the next turn."""
        self._unwritable: dict[Client, deque[_Request[Any]]] = {}
        """Requests of clients that do not read."""
        self._is_running = False

    def run(self, work: Generator[None, None, T], client: Client) -> asyncio.Future[T]:
        """Run the work of a request in a turn of its client; return the future of its result.

        When the client has disconnected, the work ends, and the future fails with ConnectionLost.
        """
        request = _Request(work, client)
        waiting = self._unwritable.get(client)
        if waiting is None:
            waiting = self._waiting.setdefault(client, deque())
        waiting.append(request)
        self._start()
        return request.result

    def _start(self) -> None:
        if self._waiting and not self._is_running:
            self._is_running = True
            self._slices.start(self._run())

    def _run(self) -> Iterator[None]:
        while (client := self._next()) is not None:
            waiting = self._waiting.pop(client)
            request = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting
            yield from request.steps()
        self._is_running = False

    def _next(self) -> Client | None:
        """Return the client that has the next turn; None if there is none."""
        while self._waiting:
            client = next(iter(self._waiting))
            if client.is_writable:
                return client
            self._unwritable[client] = self._waiting.pop(client)
            client.when_writable(partial(self._go_on, client))
        return None

    def _go_on(self, client: Client) -> None:
        """Give turns again to a client that has read its responses, or has disconnected."""
        self._waiting[client] = self._unwritable.pop(client)
        self._start()


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

    A request that arrives later gets the result of the next run, so that it sees all earlier changes.
    """

    def __init__(self, slices: Slices, begin: Callable[[], Generator[None, None, T]]) -> None:
        """begin: returns the work; called for each run."""
        self._slices = slices
        self._begin = begin
        self._waiting: _Clients | None = None
        """The clients that wait for a run that has not begun."""
        self._result: asyncio.Future[T]

    async def result(self, client: Client) -> T:
        """Return the result of a run that begins after this call; see `Slices.run`."""
        if self._waiting is not None and not self._result.done():
            self._waiting.clients.append(client)
            return await asyncio.shield(self._result)
        self._waiting = _Clients([client])
        result = self._slices.run(self._run(), self._waiting)
        self._result = result
        return await asyncio.shield(result)

    def _run(self) -> Generator[None, None, T]:
        self._waiting = None
        return (yield from self._begin())


class _AlwaysWritable:
    """A client that has one request at a time, so that its responses need no limit."""

    is_writable = True

    def when_writable(self, then: Callable[[], None], /) -> None:
        """Call `then`."""
        then()


@dataclass(eq=False)
class _Clients(_AlwaysWritable):
    """Several clients that wait for the same result."""

    clients: list[Client]

    @property
    def is_closed(self) -> bool:
        """Whether all of them have disconnected."""
        return all(client.is_closed for client in self.clients)


@dataclass(frozen=True)
class _Server(_AlwaysWritable):
    """The client of work that has none."""

    is_closed: bool = False


SERVER: Final = _Server()
