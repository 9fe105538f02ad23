"""The threads of handlers: started on demand, up to a limit."""

from __future__ import annotations

import sys
import threading

import pytest

from rocketpy.consumer.handling.handler_threads import HandlerThreadPool
from tests.waiting import LIMIT_S


def test_as_many_as_are_needed() -> None:
    """Handlers would wait for each other, or each cost a thread of its own."""
    threads = HandlerThreadPool(3)
    names = {threads.submit(lambda: threading.current_thread().name).result(10) for _ in range(20)}
    barrier = threading.Barrier(3, timeout=LIMIT_S)
    waiting = [threads.submit(barrier.wait) for _ in range(6)]  # three side by side, twice
    assert sorted(future.result(10) for future in waiting) == [0, 0, 1, 1, 2, 2]
    assert names < {f"rocketpy-handler_{number}" for number in (1, 2, 3)}
    threads.shutdown()


def test_a_close_starts_no_waiting_call() -> None:
    """A closed consumer would still start calls that were waiting."""
    threads = HandlerThreadPool(1)
    began, go = threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go.wait(10)

    first, second = threads.submit(work), threads.submit(work)
    assert began.wait(10)
    threads.shutdown()
    assert second.cancelled()
    go.set()
    assert first.result(10)
    with pytest.raises(RuntimeError, match="is shut down"):
        threads.submit(work)


def test_an_exception_reaches_only_its_own_caller() -> None:
    """A thread would end, and no other would replace it."""
    threads = HandlerThreadPool(1)
    with pytest.raises(SystemExit):
        threads.submit(sys.exit, 3).result(10)
    assert threads.submit(lambda: 7).result(10) == 7
    threads.shutdown()
