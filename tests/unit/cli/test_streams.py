"""Standard output of the command rocketpy: whole, in order, and without blocking the event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
from pathlib import Path

import pytest

from rocketpy_cli.streams import Output
from tests.waiting import LIMIT_S, until


async def test_what_a_cancelled_task_gave_is_written() -> None:
    """`consume --count` would print less than it counted, when several queues end at the same time."""
    end, pipe = os.pipe()
    output = Output(pipe)
    large = b"x" * (1 << 20)  # more than a pipe holds, so the thread waits
    try:
        tasks = [asyncio.ensure_future(output.write(data)) for data in (large, b"second", b"third")]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        flushed = asyncio.ensure_future(output.write(b""))
        async with asyncio.timeout(LIMIT_S):
            found = b""
            while not found.endswith(b"third"):
                found += await asyncio.to_thread(os.read, end, 1 << 16)
            await flushed
    finally:
        os.close(pipe)
        os.close(end)
    assert found == large + b"secondthird"


async def test_a_flush_waits_for_a_cancelled_write() -> None:
    """`consume --group` would commit messages that the reader of a full pipe has not got."""
    end, pipe = os.pipe()
    output = Output(pipe)
    large = b"x" * (1 << 20)
    try:
        writing = asyncio.ensure_future(output.write(large))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        flushed = asyncio.ensure_future(output.write(b""))
        after = asyncio.ensure_future(output.write(b"after"))
        found = await asyncio.to_thread(os.read, end, 1)
        assert not flushed.done()
        async with asyncio.timeout(LIMIT_S):
            while len(found) < len(large) + 5:
                found += await asyncio.to_thread(os.read, end, 1 << 16)
            await asyncio.gather(flushed, after)
    finally:
        os.close(pipe)
        os.close(end)
    assert found == large + b"after"


async def test_a_failed_write_that_was_cancelled_is_not_logged() -> None:
    """`consume T --follow | head` would sometimes print "Task exception was never retrieved"."""
    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    end, pipe = os.pipe()
    try:
        await _fail_cancelled_write(end, pipe)
        gc.collect()
        assert logged == []
    finally:
        os.close(pipe)


async def _fail_cancelled_write(end: int, pipe: int) -> None:
    output = Output(pipe)
    writing = asyncio.ensure_future(output.write(b"x" * (1 << 20)))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    os.close(end)
    await until(lambda: output._running is not None and output._running.done())


async def test_a_pipe_with_room_is_written_at_once() -> None:
    """Each pull would cost a thread switch, or a full pipe would block the event loop."""
    end, pipe = os.pipe()
    output = Output(pipe)
    try:
        for data in (b"first\n", b"second\n"):
            await output.write(data)
            assert os.read(end, 100) == data
        large = os.urandom(1 << 20)
        writing = asyncio.ensure_future(output.write(large))
        after = asyncio.ensure_future(output.write(b"after"))
        await asyncio.sleep(0)
        assert not writing.done()
        found = b""
        async with asyncio.timeout(LIMIT_S):
            while len(found) < len(large) + 5:
                found += await asyncio.to_thread(os.read, end, 1 << 16)
            await asyncio.gather(writing, after)
        assert found == large + b"after"
        os.close(end)
        end = -1
        with pytest.raises(BrokenPipeError):
            await output.write(b"nobody reads")
    finally:
        os.close(pipe)
        if end >= 0:
            os.close(end)


async def test_files_and_terminals_are_written(tmp_path: Path) -> None:
    """Output to a file or a terminal would be lost or out of order."""
    parts = [b"%d\n" % number * 1000 for number in range(10)]
    with (tmp_path / "file").open("wb") as file:
        output = Output(file.fileno())
        await asyncio.gather(*map(output.write, parts))
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    terminal, side = pty.openpty()
    try:
        await Output(side).write(b"shown\n")
        assert os.read(terminal, 100) == b"shown\r\n"
    finally:
        os.close(terminal)
        os.close(side)
