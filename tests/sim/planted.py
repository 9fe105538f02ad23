"""Defects that are planted into a simulation: patches by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Defect = Callable[[], contextlib.AbstractContextManager[Any]]


class Defects(dict[str, Defect]):
    """Name -> a context in which the defect is planted. Calls register functions, as decorators."""

    def __call__(self, function: Callable[[], Iterator[None]]) -> Defect:
        """Register a patch under its function's name."""
        manager = contextlib.contextmanager(function)
        self[function.__name__] = manager
        return manager
