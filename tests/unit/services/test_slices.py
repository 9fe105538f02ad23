"""Slices: long work of a server leaves time for other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketpy.errors import RocketError
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.services.slices import SLICE_MS, Slices
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
