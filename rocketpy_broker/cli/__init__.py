"""The command `rocketpy-broker`.

`main` imports everything else, so that Ctrl-C ends the command with one line at any time.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command line.

    A stop that takes too long ends the process with exit status 3.

    Args:
        arguments: The words after the command; None for those of the process.

    Returns:
        The exit status: 0 after a requested stop, 1 after a failure, or the status that a command's help
        names. 130 after Ctrl-C before a server has started, or during another command.

    Raises:
        SystemExit: With 2 for wrong usage, and 0 after ``--help`` and ``--version``.
    """
    status = 0
    try:
        try:
            from rocketpy_broker.cli.app import run_command

            if arguments is None:
                import gc

                gc.freeze()  # collecting garbage in all modules would take a tenth of a short command's time
            status = run_command(arguments)
            sys.stdout.flush()
        finally:
            if arguments is None:
                import atexit
                import signal

                # Ctrl-C ends the interpreter's own clean-up without a traceback.
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        print("rocketpy-broker: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as head(1), has closed the pipe
        import os

        # The interpreter flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
