"""Slices: long work of a server leaves time for other clients."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator, Iterator

import pytest

from rocketpy.errors import ConnectionLost, RocketError
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.services.slices import SLICE_MS, Lasting, SharedWork, Slices
from tests.turns import Turns
from tests.waiting import until

STEP_MS = 0.25


class Clock:
    """A clock whose every reading takes a quarter of a millisecond."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        self.ms += STEP_MS
        return self.ms


def work(slices: Slices, name: str, count: int, done: list[str]) -> Iterator[None]:
    for _ in range(count):
        done.append(name)
        if slices.is_over():
            yield


async def test_short_work_is_done_at_once() -> None:
    """A consumer would get its message one iteration of the loop later."""
    slices, done = Slices(Tasks("the test"), Clock()), list[str]()
    slices.start(work(slices, "a", 3, done))
    assert done == ["a"] * 3


async def test_works_take_turns_and_share_the_slice() -> None:
    """The queue with the most held pulls would stop all others."""
    slices, done = Slices(Tasks("the test"), Clock()), list[str]()
    steps = Turns(done.append)

    def counted(name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            steps(name)
            if slices.is_over():
                yield

    slices.start(counted("long", 100))
    for _ in range(3):
        slices.start(counted("short", 2))
    assert "short" not in done
    await until(lambda: len(done) == 106)
    steps.stop()
    assert steps.longest <= SLICE_MS / STEP_MS
    assert len(done) - done[::-1].index("short") < 50


async def test_a_slice_makes_progress_with_a_slow_clock() -> None:
    """Work would never end if reading the clock took longer than a slice."""
    slices, done = Slices(Tasks("the test"), Clock()), list[str]()
    slices.start(work(slices, "a", 1, done))
    times = iter(range(0, 10**6, 10))
    slices.now_ms = lambda: next(times)
    slices.start(work(slices, "b", 5, done))
    await until(lambda: len(done) == 6)


async def test_an_error_in_later_slices_fails_the_server() -> None:
    """A consumer would wait forever, and nobody would notice."""
    tasks = Tasks("the test")
    slices = Slices(tasks, Clock())

    def broken(count: int) -> Iterator[None]:
        for _ in range(count):
            while not slices.is_over():
                pass
            yield
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        slices.start(broken(0))
    slices.start(broken(1))
    failure: RocketError = await asyncio.wait_for(tasks.wait_failed(), 60)
    assert "a bug" in str(failure)


class Counting:
    """Work of requests. running, most: how many have begun and not ended, and the most of these."""

    def __init__(self) -> None:
        self.begun = self.running = self.most = 0

    def work(self, steps: int = 3, error: Exception | None = None) -> Generator[None, None, int]:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(steps):
                yield
            if error is not None:
                raise error
            return steps
        finally:
            self.running -= 1


class Connection:
    """A client that may disconnect, or stop reading its responses."""

    is_closed = False
    is_writable = True

    def __init__(self) -> None:
        self._then: list[Callable[[], None]] = []

    def when_writable(self, then: Callable[[], None], /) -> None:
        """Note what to call."""
        self._then.append(then)

    def read(self) -> None:
        """Read its responses again."""
        self.is_writable = True
        waiting, self._then = self._then, []
        for then in waiting:
            then()


async def test_requests_run_one_after_the_other() -> None:
    """A flood of requests for statistics would take memory for each at the same time."""
    slices, count = Slices(Tasks("the test"), Clock()), Counting()
    results = await asyncio.gather(*(slices.run(count.work(steps), Connection()) for steps in range(50)))
    assert results == list(range(50))
    assert (count.begun, count.most, count.running) == (50, 1, 0)


@pytest.mark.parametrize("lasts", [False, True])
async def test_clients_take_turns(lasts: bool) -> None:
    """A client with a thousand requests would keep a consumer from renewing its locks, or releasing them."""
    slices, done = Slices(Tasks("the test"), Clock()), list[str]()

    def work(name: str) -> Generator[None, None, None]:
        for _ in range(9):
            yield
        done.append(name)

    greedy, good = (Lasting(Connection()) if lasts else Connection() for _ in range(2))
    requests = [slices.run(work("greedy"), greedy) for _ in range(50)]
    requests += [slices.run(work("good"), good) for _ in range(2)]
    await asyncio.gather(*requests)
    assert len(done) == 52
    assert done[:6].count("good") == 2


async def test_a_request_without_a_client_ends() -> None:
    """The broker would go on to work for clients that have disconnected."""
    slices, count, client = Slices(Tasks("the test"), Clock()), Counting(), Connection()
    first = asyncio.ensure_future(slices.run(count.work(10**9), client))
    second = asyncio.ensure_future(slices.run(count.work(10**9), client))
    third = asyncio.ensure_future(slices.run(count.work(1), Connection()))
    cancelled = asyncio.ensure_future(slices.run(count.work(10**9), Connection()))
    await until(lambda: count.running)
    cancelled.cancel()
    client.is_closed = True
    for gone in (first, second):
        with pytest.raises(ConnectionLost):
            await gone
    assert await third == 1
    assert (count.begun, count.running) == (2, 0)


async def test_a_client_that_does_not_read_has_no_turn() -> None:
    """Large responses that nobody reads would fill the memory."""
    slices, count = Slices(Tasks("the test"), Clock()), Counting()
    slow, other = Connection(), Connection()
    slow.is_writable = False
    waiting = [asyncio.ensure_future(slices.run(count.work(steps), slow)) for steps in (1, 2)]
    assert await slices.run(count.work(3), other) == 3
    waiting.append(asyncio.ensure_future(slices.run(count.work(4), slow)))
    assert await slices.run(count.work(5), other) == 5
    assert count.begun == 2
    slow.read()
    assert await asyncio.gather(*waiting) == [1, 2, 4]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_client_has_its_next_turn_when_its_response_is_written(is_shared: bool) -> None:
    """Hundreds of responses would be made, or found, before the first shows that the client does not read."""
    slices, count, slow = Slices(Tasks("the test"), Clock()), Counting(), Connection()
    shared = SharedWork(slices, lambda: count.work(2))
    received: list[int] = []

    async def request() -> None:
        received.append(await (shared.result(slow) if is_shared else slices.run(count.work(2), slow)))
        slow.is_writable = False

    async with asyncio.TaskGroup() as waiting:
        for _ in range(20):
            waiting.create_task(request())
        for number in range(1, 21):
            while slow.is_writable:  # noqa: ASYNC110 - a few iterations
                await asyncio.sleep(0)
            assert await slices.run(count.work(3), Connection()) == 3
            assert received == [2] * number
            slow.read()
    # The first request begins a run at once; those after it share the second run.
    assert count.begun == 20 + (2 if is_shared else 20)


async def test_responses_are_written_in_different_iterations() -> None:
    """A hundred clients wait for the same table; to write a hundred large responses takes 0.3 s."""
    slices, count = Slices(Tasks("the test"), Clock()), Counting()
    shared = SharedWork(slices, lambda: count.work(2))
    write = Turns(lambda: None)

    async def request(client: Connection) -> None:
        await shared.result(client)
        write()

    async with asyncio.TaskGroup() as waiting:
        for _ in range(100):
            waiting.create_task(request(Connection()))
    write.stop()
    assert (write.total, write.longest) == (100, 1)
    assert count.begun == 2


async def test_requests_of_clients_that_have_gone_do_not_delay_others() -> None:
    """A flood of them takes a few iterations of the loop, not one for each request."""
    slices, count, gone = Slices(Tasks("the test"), lambda: 0), Counting(), Connection()
    running = slices.run(count.work(3), Connection())
    waiting = [slices.run(count.work(3), gone) for _ in range(1000)]
    gone.is_closed = True
    last = slices.run(count.work(3), Connection())
    for _ in range(10):
        await asyncio.sleep(0)
    assert all(isinstance(one.exception(), ConnectionLost) for one in waiting)
    assert (await running, await last, count.begun) == (3, 3, 2)


async def test_an_error_is_that_of_its_request() -> None:
    """One bad request would stop those after it."""
    slices, count = Slices(Tasks("the test"), Clock()), Counting()
    wrong = asyncio.ensure_future(slices.run(count.work(2, ValueError("a bug")), Connection()))
    right = asyncio.ensure_future(slices.run(count.work(2), Connection()))
    with pytest.raises(ValueError, match="a bug"):
        await wrong
    assert await right == 2


async def until_running(count: Counting) -> None:
    """Wait until work has begun."""
    while not count.running:  # noqa: ASYNC110 - it may end after a few iterations
        await asyncio.sleep(0)


async def test_requests_share_a_run_that_begins_after_them() -> None:
    """Each of 800 slaves would get a table of its own; or a client would not see its own change."""
    slices, count, value = Slices(Tasks("the test"), Clock()), Counting(), ["old"]

    def table() -> Generator[None, None, str]:
        seen = value[0]
        yield from count.work(100)
        return seen

    shared = SharedWork(slices, table)
    early = [asyncio.ensure_future(shared.result(Connection())) for _ in range(100)]
    await until_running(count)
    value[0] = "new"
    late = [asyncio.ensure_future(shared.result(Connection())) for _ in range(100)]
    await asyncio.sleep(0)
    early[-1].cancel()
    late[0].cancel()
    assert set(await asyncio.gather(*early[:-1])) <= {"old", "new"}
    assert set(await asyncio.gather(*late[1:])) == {"new"}
    assert count.begun <= 3


async def test_a_shared_run_ends_with_the_last_client() -> None:
    """A table would be built for nobody, and the next request would never get it."""
    slices, count, clients = Slices(Tasks("the test"), Clock()), Counting(), [Connection(), Connection()]
    before = slices.run(Counting().work(100), Connection())
    lengths = iter([10**9, 2])
    shared = SharedWork(slices, lambda: count.work(next(lengths)))
    gone = [asyncio.ensure_future(shared.result(client)) for client in clients]
    await before
    await until_running(count)
    clients[0].is_closed = True
    for _ in range(5):
        await asyncio.sleep(0)
        assert count.running
    clients[1].is_closed = True
    for one in gone:
        with pytest.raises(ConnectionLost):
            await one
    assert await shared.result(Connection()) == 2
    assert count.begun == 2


async def test_another_request_begins_a_shared_run_that_failed() -> None:
    """All later requests would get nothing, or an error that is over."""
    slices, count = Slices(Tasks("the test"), Clock()), Counting()
    errors = iter([RocketError("broken"), None])
    shared = SharedWork(slices, lambda: count.work(100, next(errors)))
    first = asyncio.ensure_future(shared.result(Connection()))
    await until_running(count)
    later = [asyncio.ensure_future(shared.result(Connection())) for _ in range(3)]
    with pytest.raises(RocketError, match="broken"):
        await first
    assert await asyncio.gather(*later) == [100] * 3
    assert count.begun == 2


async def test_a_shared_result_is_dropped_with_its_last_request() -> None:
    """A table of many MB would stay in memory."""
    slices = Slices(Tasks("the test"), Clock())

    class Table:
        """A result."""

    def table() -> Generator[None, None, Table]:
        yield
        return Table()

    shared = SharedWork(slices, table)
    made = weakref.ref(await shared.result(Connection()))
    await until(lambda: made() is None)


async def test_no_work_runs_after_close() -> None:
    """Held pulls would be read while another thread closes the store."""
    slices, done = Slices(Tasks("the test"), Clock()), list[str]()
    slices.start(work(slices, "before", 100, done))
    slices.close()
    count = len(done)
    slices.start(work(slices, "after", 3, done))
    for _ in range(20):
        await asyncio.sleep(0)
    assert 0 < len(done) == count


async def test_no_error_is_logged_for_clients_that_have_gone(caplog: pytest.LogCaptureFixture) -> None:
    """At each stop with a requested table, asyncio logged an exception that was never retrieved."""
    slices, count, client = Slices(Tasks("the test"), Clock()), Counting(), Connection()
    shared = SharedWork(slices, lambda: count.work(10**9))
    waiting = asyncio.ensure_future(shared.result(client))
    await until_running(count)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    client.is_closed = True
    await until(lambda: not count.running)
    del shared, waiting
    gc.collect()
    assert caplog.messages == []
