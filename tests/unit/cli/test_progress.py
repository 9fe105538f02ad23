"""Progress bars in terminals of several widths."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from rocketpy_cli.progress import bytes_bar, count_bar

WIDTHS = (200, 80, 70, 69, 40)


def console(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width)


def frames(shown: Console) -> list[str]:
    """The lines that the terminal has shown, without their colours."""
    assert isinstance(shown.file, io.StringIO)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_of_an_import_are_not_cut_off(width: int) -> None:
    """A user could not read the progress of a long import, or would see broken lines."""
    shown = console(width)
    with count_bar(10_000_000, 1_000_000, hidden=False, console=shown) as done:
        done(8_500_000)
    last = frames(shown)[-1]
    assert ("9,500,000 of 10,000,000" if width >= 70 else "9,500,000") in last
    assert " 95%" in last
    assert last.endswith("left" if width >= 70 else "-:--:--")
    assert "…" not in last
    assert "━━━━" in last
    assert len(last) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_of_a_file_are_not_cut_off(width: int, tmp_path: Path) -> None:
    """A user could not read how many messages are sent."""
    shown = console(width)
    file = tmp_path / "lines"
    file.write_bytes(bytes(1000))
    with file.open("rb") as opened, bytes_bar(opened.fileno(), console=shown) as done:
        done(500, 1_234_567)
    last = frames(shown)[-1]
    assert ("1,234,567 messages" if width >= 70 else "1,234,567") in last
    assert " 50%" in last
    assert "…" not in last
    assert len(last) <= width


def test_a_pipe_has_no_end_to_show() -> None:
    """A percentage of an unknown total would be shown."""
    shown = console(80)
    reading, writing = os.pipe()
    try:
        with bytes_bar(reading, console=shown) as done:
            done(500, 7)
    finally:
        os.close(reading)
        os.close(writing)
    assert "7 messages" in frames(shown)[-1]
    assert "%" not in frames(shown)[-1]
