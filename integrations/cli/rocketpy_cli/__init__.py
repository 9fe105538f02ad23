"""The command `rocketpy`: sends, reads and looks up messages, and administers clusters, from a shell.

It needs the extra `cli`. No other package imports this one; `python -m rocketpy` finds it by its entry point.
"""

import sys

# `main` imports everything else, so that Ctrl-C ends the command with one line at any time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = frozenset({"click", "rich", "typer"})
_FAILED = 1
_INTERRUPTED = 130


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the command's name. None: those of the process.

    Returns:
        The exit status: 0 for success, 1 after a failure, 2 for wrong usage, 130 after Ctrl-C.
    """
    try:
        try:
            return _main(arguments)
        finally:
            if arguments is None:
                import atexit
                import signal

                # Ctrl-C ends the interpreter's own clean-up without a traceback.
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # while modules are imported, before the command begins, or after its end
        print("rocketpy: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _main(arguments: "Sequence[str] | None") -> int:
    if not _prepare_streams():
        print("rocketpy: standard output is closed; redirect it to /dev/null", file=sys.stderr)
        return _FAILED
    try:
        from rocketpy_cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        text = f'rocketpy: the command needs the package {error.name}: pip install "rocketpy-mq[cli]"'
        print(text, file=sys.stderr)
        return 2
    if arguments is None:
        import gc

        arguments = sys.argv[1:]
        gc.freeze()  # searching all modules for garbage would take a tenth of a short command
    return run(arguments)


def _prepare_streams() -> bool:
    """Make the standard streams usable. Return False if standard output is closed: results would be lost.

    Characters that the encoding of a terminal lacks are escaped, since a name, or an arrow, must not end a
    command with a traceback.
    """
    import io
    import os

    is_open = sys.stdout is not None
    # In this order, each gets its usual descriptor back; otherwise a connection could get it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return is_open
