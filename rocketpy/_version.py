"""The version, and a warning when another package shares this directory.

This module imports nothing of rocketpy, so every other module can import it without a cycle. It
loads no module that the interpreter has not loaded at its start.
"""

import os

__version__ = "0.1.0"


def warn_of_namesake() -> None:
    """Warn when PyPI's `rocketpy`, a flight simulator, is installed into the same directory.

    pip installs both without a warning, and each installation replaces files of the other.
    """
    directory = os.path.dirname(__file__)
    if os.path.exists(os.path.join(directory, "simulation", "flight.py")):
        import warnings

        warnings.warn(
            f"two packages share {directory}: rocketpy-mq, and the flight simulator rocketpy. Each has "
            "replaced files of the other. Give each an environment of its own, and repair this one: "
            "pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq",
            RuntimeWarning,
            stacklevel=3,
        )
