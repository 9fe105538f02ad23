"""Rows as a table for people, or with ``--json`` as one object per line for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocketpy.runtime.text import printable
from rocketpy_cli.context import Options, json_line

Row = Mapping[str, object]
"""Stable field names -> values that JSON can represent. Fields named ``…_timestamp`` are ms since 1970."""

_TIMESTAMP: Final = "_timestamp"
_HEADINGS: Final = {"broker_name": "broker", "queue_id": "queue", "broker_id": "id"}
_WIDTH_OF_PIPES: Final = 2000
"""Lines of a pipe are not folded: grep(1) and awk(1) read them."""


def print_rows(options: Options, rows: Iterable[Row], *, none: str = "") -> None:
    """Print rows with the same names.

    Args:
        options: The options of the command.
        rows: The rows.
        none: The text to print when there are no rows.
    """
    if options.as_json:
        print_json(rows)
        return
    found = list(rows)
    if found:
        print_table(found)
    elif none:
        print(none, flush=True)


def print_fields(options: Options, fields: Mapping[str, object]) -> None:
    """Print one object: a row with name and value for each field, or with --json the object."""
    if options.as_json:
        print_json([fields])
    else:
        print_table([{"name": name, "value": value} for name, value in fields.items()])


def print_json(rows: Iterable[Row]) -> None:
    """Print each row as a JSON object on its own line."""
    for row in rows:
        print(json_line(row))
    sys.stdout.flush()


def print_created(
    options: Options, what: str, fields: Mapping[str, object], unchanged: Sequence[Row], *, alter: str
) -> None:
    """Print what a command created, and the settings where it existed and was left unchanged.

    Args:
        options: The options of the command.
        what: The name, and the settings that were given.
        fields: The same for programs.
        unchanged: The settings on the brokers that had it.
        alter: The command that changes an existing one.
    """
    text = f"created {what}"
    if unchanged:
        brokers = ", ".join(str(row["broker_name"]) for row in unchanged)
        text = f"{what}: created only where it was missing, left unchanged on {brokers}"
    options.print_done(text, {**fields, "unchanged": unchanged})
    if unchanged and not options.as_json:
        print(f"\nleft unchanged ({alter} changes it):\n")
        print_table(unchanged)


def print_table(rows: Sequence[Row], *, decimals: int = 1) -> None:
    """Print rows as a table; the columns are the names of the first row. Nothing is cut off.

    Args:
        rows: The rows.
        decimals: The digits of fractions.
    """
    table = Table(box=None, pad_edge=False)
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        right = is_number and not name.endswith(_TIMESTAMP)
        table.add_column(_heading(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(name, value, decimals)) for name, value in row.items()))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(width=_WIDTH_OF_PIPES, highlight=False)
    with console.capture() as printed:
        console.print(table)
    print("\n".join(map(str.rstrip, printed.get().splitlines())), flush=True)


def _heading(name: str) -> str:
    """Return the heading of a column, short enough for 80 columns."""
    short = name.removesuffix(_TIMESTAMP).replace("_per_second", "/s")
    return _HEADINGS.get(name, short.replace("_", " "))


def _cell(name: str, value: object, decimals: int) -> str:
    """Return a value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{decimals}f}"
    if isinstance(value, int) and name.endswith(_TIMESTAMP):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Mapping):
        return printable(" ".join(f"{key}={one}" for key, one in value.items())) or "-"
    if isinstance(value, list | tuple):
        return printable(" ".join(map(str, value))) or "-"
    return printable(str(value))
