"""What the commands that ask running brokers have in common: target they ask, and how they print."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rocketpy.client.name_servers import split_addresses
from rocketpy.transport import Address


def namesrv_of(options: argparse.Namespace) -> str:
    """Return the name servers that were given, or the environment's; empty for none."""
    return options.namesrv or os.environ.get("NAMESRV_ADDR", "")


def name_servers(options: argparse.Namespace) -> list[Address]:
    """Return their addresses. Raises ConfigInvalid, also for none."""
    return [Address.parse(server) for server in split_addresses(namesrv_of(options))]


def print_line(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of as many texts each, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_line("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
