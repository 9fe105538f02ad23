"""Progress bars on stderr that fit the width of the terminal."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

OnProgress = Callable[[int], None]
"""Called with the number of messages since the last call."""
OnBytes = Callable[[int, int], None]
"""Called with the bytes that were read since the last call, and the messages stored so far."""

_WIDE: Final = 70
"""Columns of a terminal that has room for the total and for words."""
_BAR_MAX: Final = 30
_TEXT_COLUMNS: Final = {True: 48, False: 32}
"""Columns of all but the bar, by whether the terminal is wide."""


@contextlib.contextmanager
def count_bar(total: int, done: int, *, hidden: bool, console: Console | None = None) -> Iterator[OnProgress]:
    """Show on a terminal how many messages are done.

    Args:
        total: All messages.
        done: Those of earlier runs.
        hidden: Whether to show nothing.
        console: Where to show it; stderr by default.
    """
    if hidden or not (console or sys.stderr.isatty()):
        yield lambda _: None
        return
    console = console or Console(stderr=True)
    text = "{task.completed:,.0f} of {task.total:,.0f}" if _is_wide(console) else "{task.completed:,.0f}"
    with _bar(console, text, has_total=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda count: bar.update(task, advance=count)


@contextlib.contextmanager
def bytes_bar(descriptor: int, *, console: Console | None = None) -> Iterator[OnBytes]:
    """Show how much of an input was read, and how many messages of it are stored."""
    console = console or Console(stderr=True)
    status = os.fstat(descriptor)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    text = "{task.fields[stored]:,}" + " messages" * _is_wide(console)
    with _bar(console, text, has_total=total is not None) as bar:
        task = bar.add_task("", total=total, stored=0)
        yield lambda size, stored: bar.update(task, advance=size, stored=stored)


def _is_wide(console: Console) -> bool:
    return console.width >= _WIDE


def _bar(console: Console, text: str, *, has_total: bool) -> Progress:
    """Make a bar that fits: rich would cut off the number of a narrow one."""
    is_wide = _is_wide(console)
    room = console.width - _TEXT_COLUMNS[is_wide]
    columns = [SpinnerColumn(), TextColumn(text), BarColumn(max(4, min(_BAR_MAX, room)))]
    if has_total:
        columns += [TaskProgressColumn(), TimeRemainingColumn(), *([TextColumn("left")] if is_wide else ())]
    else:
        columns.append(TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
