"""The long run: ``python -m tools.soak --minutes 30``; a second run continues a stopped one."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from tools.soak.crowd import run_crowd
from tools.soak.piece import PieceReport, run_piece

_HOME = Path(__file__).parents[2] / "build" / "soak"
_COLUMNS = "{:>5} {:>8} {:>9} {:>9} {:>8} {:>6} {:>8} {:>8} {:>12} {:>12}  {}"
_TITLES = ("piece", "seconds", "acked", "received", "unknown", "kills", "p50 ms", "p99 ms")
_FLAT_SHARE, _FLAT_BYTES = 1.15, 16 << 20
"""Memory counts as flat while late in a piece it is at most 15 % and 16 MiB above its early value."""


def main() -> int:
    """Run the pieces that are still to be run; 0 when nothing was wrong in any."""
    options = _options()
    if options.fresh:
        shutil.rmtree(options.home, ignore_errors=True)
    options.home.mkdir(parents=True, exist_ok=True)
    file = options.home / ("crowd.jsonl" if options.crowd else "pieces.jsonl")
    pieces = (
        [PieceReport(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    )
    print(_COLUMNS.format(*_TITLES, "server MiB", "client MiB", "problems"))
    for index, piece in enumerate(pieces):
        print(_row(index, piece))
    while sum(piece.seconds for piece in pieces) < options.minutes * 60:
        index = len(pieces)
        piece = asyncio.run(_piece(index, options))
        pieces.append(piece)
        with file.open("a") as results:
            results.write(json.dumps(asdict(piece)) + "\n")
        print(_row(index, piece), flush=True)
    return _exit_status(pieces)


async def _piece(index: int, options: argparse.Namespace) -> PieceReport:
    if options.crowd:
        return await run_crowd(index, options.piece_seconds, options.rate, options.home / "crowd-store")
    store = options.home / "store"
    return await run_piece(index, options.piece_seconds, options.rate, store, kill=index % 2 == 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of all pieces (default: %(default)s)")
    parser.add_argument("--piece-seconds", type=float, default=60, help="default: %(default)s")
    parser.add_argument("--rate", type=int, default=400, help="messages a second (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=_HOME, help="store and results (default: %(default)s)")
    parser.add_argument(
        "--crowd",
        action="store_true",
        help="processes of both languages that share groups, come and are killed",
    )
    parser.add_argument("--fresh", action="store_true", help="forget the pieces of earlier runs")
    return parser.parse_args()


def _row(index: int, piece: PieceReport) -> str:
    return _COLUMNS.format(
        index,
        f"{piece.seconds:.1f}",
        f"{piece.acked:,}",
        f"{piece.received:,}",
        f"{piece.unknown:,}",
        piece.kills,
        f"{piece.p50_ms:.2f}",
        f"{piece.p99_ms:.2f}",
        _mebibytes(piece.server_early_bytes, piece.server_late_bytes),
        _mebibytes(piece.client_early_bytes, piece.client_late_bytes),
        len(piece.problems),
    )


def _mebibytes(early: int, late: int) -> str:
    return f"{early / 2**20:.0f} -> {late / 2**20:.0f}"


def _exit_status(pieces: list[PieceReport]) -> int:
    problems = [problem for piece in pieces for problem in piece.problems]
    for index, piece in enumerate(pieces):
        problems += _growth(f"client in piece {index}", piece.client_early_bytes, piece.client_late_bytes)
        if not piece.kills:
            problems += _growth(
                f"servers in piece {index}", piece.server_early_bytes, piece.server_late_bytes
            )
    for problem in problems[:20]:
        print(problem)
    acked, kills = sum(piece.acked for piece in pieces), sum(piece.kills for piece in pieces)
    outcome = f"{len(problems)} PROBLEMS" if problems else "OK"
    if any(piece.members_killed for piece in pieces):
        members, twice = (sum(getattr(p, name) for p in pieces) for name in ("members_killed", "duplicates"))
        print(f"soak: {members} members of the crowd killed, {twice:,} deliveries were repetitions")
    print(f"soak: {acked:,} acknowledged messages, {kills} kills: {outcome}")
    return 1 if problems else 0


def _growth(whose: str, early: int, late: int) -> list[str]:
    if late <= early * _FLAT_SHARE + _FLAT_BYTES:
        return []
    return [f"memory of the {whose} grew from {early:,} to {late:,} bytes"]


if __name__ == "__main__":
    sys.exit(main())
