"""The command `rocketpy-broker`."""

from rocketpy_broker.cli.app import main

__all__ = ["main"]
