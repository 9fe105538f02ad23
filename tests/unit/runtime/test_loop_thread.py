"""LoopThread: calls from several threads at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pytest

from rocketpy.sync.loop_thread import LoopThread, as_coroutine


class InterruptedQueue(deque[Callable[[], None]]):
    """A queue where another thread runs at a chosen moment: after an addition, or once it is found empty."""

    def __init__(self, moment: str, other: Callable[[], None]) -> None:
        super().__init__()
        self._moment: str | None = moment
        self._other = other

    def append(self, call: Callable[[], None]) -> None:
        super().append(call)
        self._reach("added")

    def __len__(self) -> int:
        length = super().__len__()
        if not length:
            self._reach("empty")
        return length

    def _reach(self, moment: str) -> None:
        if self._moment == moment:
            self._moment = None
            thread = threading.Thread(target=self._other)
            thread.start()
            thread.join()


@pytest.mark.parametrize("moment", ["added", "empty"])
def test_a_call_beside_another_thread_is_made(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread would rely on the other one to wake the loop, and all sends of the process would hang."""
    background, made = LoopThread.get(), set[str]()
    queue = InterruptedQueue(moment, lambda: background.call_soon(lambda: made.add("other")))
    monkeypatch.setattr(background, "_calls", queue)
    background.call_soon(lambda: made.add("first"))
    for _ in range(2):  # what the loop was woken for is done when this returns
        background.run(as_coroutine(lambda: None))
    assert made == {"first", "other"}


def test_a_call_after_an_interrupted_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a notebook, all later sends would hang."""
    background, made = LoopThread.get(), list[str]()

    def interrupt(_: Callable[[], None], **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(background._loop, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            background.call_soon(lambda: made.append("interrupted"))
    background.call_soon(lambda: made.append("next"))
    background.run(as_coroutine(lambda: None))
    assert made == ["interrupted", "next"]
