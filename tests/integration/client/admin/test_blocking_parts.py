"""The parts of the blocking admin client."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from rocketpy.admin import ResetTo
from rocketpy.errors import ClientClosed, RouteNotFound
from rocketpy.sync import AdminClient
from rocketpy.sync.loop_thread import LoopThread, iterate


def test_blocking_code_administers() -> None:
    """A script without an event loop could not use the parts."""
    admin = AdminClient("embedded:")
    with pytest.raises(ClientClosed, match="was not started"):
        admin.topics.list()
    with admin:
        assert admin.topics.create("Blocking", 2) == {}
        for again in (admin.topics.create, admin.create_topic):
            assert [one.write_queues for one in again("Blocking", 1).values()] == [2]
        assert "Blocking" in admin.topics.list()
        assert len(admin.topics.describe("Blocking").queues) == 2
        assert admin.groups.create("blocking", max_retries=1) == {}
        assert [one.max_retries for one in admin.groups.create("blocking").values()] == [1]
        assert [group.name for group in admin.groups.list()] == ["blocking"]
        assert list(admin.groups.reset("blocking", "Blocking", ResetTo.end())) == list(
            admin.groups.lag("blocking", "Blocking").queues
        )
        admin.topics.delete("Blocking")
        with pytest.raises(RouteNotFound):
            admin.topics.describe("Blocking")


def test_blocking_code_iterates() -> None:
    """An iterator would read ahead, run in the wrong thread, or stay open after a loop that ends early."""
    seen: list[str] = []

    async def items() -> AsyncIterator[int]:
        try:
            for number in range(3):
                seen.append(f"{number} {threading.current_thread().name}")
                yield number
        finally:
            seen.append("closed")

    assert list(iterate(LoopThread.get(), items())) == [0, 1, 2]
    assert seen == ["0 rocketpy", "1 rocketpy", "2 rocketpy", "closed"]
    seen.clear()
    with closing(iterate(LoopThread.get(), items())) as found:
        assert next(found) == 0
        assert seen == ["0 rocketpy"]
    assert seen[1:] == ["closed"]
