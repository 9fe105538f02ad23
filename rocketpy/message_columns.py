"""Alias of `rocketpy.message.columns`, the path that earlier versions documented."""

from rocketpy.message.columns import MessageColumns

__all__ = ["MessageColumns"]
