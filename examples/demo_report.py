"""The output of the demo: progress while it runs, and tables at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TextIO

__all__ = ["Progress", "Step", "store_table", "table"]

Row = Sequence[str]


@dataclass(slots=True)
class Step:
    """The measurements of a step. latencies: of each call, in seconds. remark: how the calls were made."""

    name: str
    remark: str = ""
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def row(self) -> Row:
        """Return the step's row of the table, as in `COLUMNS`."""
        rate = self.messages / self.seconds if self.seconds else 0
        return (
            self.name,
            f"{self.messages:,}",
            f"{self.bytes:,}",
            f"{self.seconds:.2f}",
            f"{rate:,.0f}",
            _milliseconds(self.latencies, 0.50),
            _milliseconds(self.latencies, 0.99),
            self.remark,
        )


COLUMNS = ("what was done", "messages", "bytes", "seconds", "msgs/s", "p50 ms", "p99 ms", "")


def _milliseconds(latencies: Sequence[float], share: float) -> str:
    if not latencies:
        return "-"
    return f"{1000 * sorted(latencies)[int(share * (len(latencies) - 1))]:.2f}"


def table(rows: Iterable[Row]) -> str:
    """Return rows as aligned columns: the first and the last to the left, the others to the right."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in {0, last} else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def store_table(store: Path) -> str:
    """Return a table of a store's files by folder: their number, their bytes, and their space on disk."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(store.rglob("*")):
        if path.is_file():
            folders.setdefault(path.relative_to(store).parts[0], []).append(path)
    rows: list[Row] = [("in the store", "files", "bytes", "on disk", "")]
    for folder, files in folders.items():
        sizes = [path.stat() for path in files]
        length, taken = sum(size.st_size for size in sizes), sum(size.st_blocks for size in sizes) * 512
        names = dict.fromkeys(path.name for path in files if path.parent != store)
        rows.append((folder, f"{len(files):,}", f"{length:,}", f"{taken:,}", ", ".join([*names][:3])))
    return table(rows)


class Progress:
    """Prints one line per step to stderr; on a terminal, with a progress bar."""

    BAR = 30
    PAUSE_SECONDS = 0.05

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._name = ""
        self._done = self._total = 0
        self._shown_at = 0.0

    def begin(self, name: str, total: int) -> None:
        """Start a step of `total` messages."""
        self._name, self._done, self._total, self._shown_at = name, 0, total, 0.0

    def advance(self, messages: int = 1) -> None:
        """Count more messages of the step."""
        self._done += messages
        if self._is_terminal and perf_counter() - self._shown_at > self.PAUSE_SECONDS:
            self._shown_at = perf_counter()
            filled = self.BAR * self._done // max(self._total, 1)
            self._write(f"\r  {self._name:<24} [{'#' * filled:<{self.BAR}}] {self._done:,}/{self._total:,} ")

    def end(self, seconds: float) -> None:
        """End the step. seconds: its duration."""
        start, bar = ("\r", f"[{'#' * self.BAR}] ") if self._is_terminal else ("", "")
        self._write(f"{start}  {self._name:<24} {bar}{self._done:,}/{self._total:,} in {seconds:.2f} s\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
