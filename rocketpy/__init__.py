"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else."""

from rocketpy._version import __version__

__all__ = ["__version__"]
