"""Telling of what was started and never closed, as files and sockets do."""

from __future__ import annotations

import warnings

from rocketpy.client import ClientInstance

__all__ = ["warn_of_unclosed"]


def warn_of_unclosed(thing: object, client: ClientInstance | None, *, is_closed: bool) -> None:
    """For its `__del__`: a ResourceWarning, unless it was closed, never started, or copied by a fork."""
    if client is not None and not is_closed and not client.is_foreign:
        warnings.warn(f"unclosed {thing!r}", ResourceWarning, source=thing, stacklevel=3)
