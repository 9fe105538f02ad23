"""Shared parts of exports and imports."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy_cli.archives import transfer
from rocketpy_cli.archives.transfer import saved_regularly


async def test_one_save_runs_at_a_time_and_the_last_one_saves_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A save in a thread goes on after its cancellation: two would write the same file."""
    monkeypatch.setattr(transfer, "_SAVE_EVERY_S", 0)
    begun, go_on = asyncio.Event(), asyncio.Event()
    running, saved, state = 0, 0, 1

    async def work() -> None:
        nonlocal running, saved
        running += 1
        assert running == 1
        seen = state
        begun.set()
        await go_on.wait()
        saved, running = seen, running - 1

    async def save() -> None:
        await asyncio.shield(work())  # as work in a thread, which cannot be cancelled

    async def run() -> None:
        nonlocal state
        async with saved_regularly(save):
            await begun.wait()
            state = 2

    task = asyncio.ensure_future(run())
    await begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await task
    assert (running, saved) == (0, 2)
