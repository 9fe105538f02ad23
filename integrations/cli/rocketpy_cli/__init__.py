"""The command `rocketpy`: sends, reads and looks up messages, and administers clusters, from a shell.

It needs the extra `cli`. No other package imports this one; `python -m rocketpy` finds it by its entry point.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["main"]

_EXTRA: Final = frozenset({"click", "rich", "typer"})
_FAILED: Final = 1
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the command's name. None: those of the process.

    Returns:
        The exit status: 0 for success, 1 after a failure, 2 for wrong usage, 130 after Ctrl-C.
    """
    if not _prepare_streams():
        print("rocketpy: standard output is closed; redirect it to /dev/null", file=sys.stderr)
        return _FAILED
    try:
        from rocketpy_cli.app import run  # noqa: PLC0415 - it needs an optional extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        text = f'rocketpy: the command needs the package {error.name}: pip install "rocketpy-mq[cli]"'
        print(text, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while modules are imported
        return _interrupted()
    if arguments is None:
        arguments = sys.argv[1:]
        gc.freeze()  # searching all modules for garbage would take a tenth of a short command
    try:
        return run(arguments)
    except KeyboardInterrupt:  # before the command begins, or after its end
        return _interrupted()


def _interrupted() -> int:
    print("rocketpy: interrupted", file=sys.stderr)
    return _INTERRUPTED


def _prepare_streams() -> bool:
    """Make the standard streams usable. Return False if standard output is closed: results would be lost.

    Characters that the encoding of a terminal lacks are escaped, since a name, or an arrow, must not end a
    command with a traceback.
    """
    is_open = sys.stdout is not None
    # In this order, each gets its usual descriptor back; otherwise a connection could get it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return is_open
