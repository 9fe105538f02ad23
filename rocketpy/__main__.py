"""``python -m rocketpy`` runs the command ``rocketpy``, also when its script is not on the PATH.

The client never imports the command; it finds it by its entry point, as it finds the embedded servers.
"""

import sys

_COMMAND = "rocketpy"
_FIX = 'pip install "rocketpy-mq[cli]"'
_WRONG_USAGE = 2
_INTERRUPTED = 130


def main() -> int:
    """Run the command with the process's arguments.

    Returns:
        The command's exit status; 2 if it is not installed, 130 after Ctrl-C.
    """
    try:
        from importlib.metadata import entry_points  # Ctrl-C while it loads 40 modules

        found = list(entry_points(group="console_scripts", name=_COMMAND))
        if not found:
            print(f"rocketpy: the command is not installed: {_FIX}", file=sys.stderr)
            return _WRONG_USAGE
        command = found[0].load()
    except ModuleNotFoundError as error:
        if error.name not in (found[0].module, found[0].module.partition(".")[0]):
            raise  # the command's own modules lack something
        print(f"rocketpy: the command cannot be loaded: {error}: {_FIX}", file=sys.stderr)
        return _WRONG_USAGE
    except KeyboardInterrupt:
        print("rocketpy: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return command()  # type: ignore[no-any-return] # the entry point's contract


if __name__ == "__main__":
    sys.exit(main())
