"""The rows of docs/reference/mqconsumer.md as cases, which run with rocketpy's servers and RocketMQ's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mqconsumer import lite_cases, push_cases

CASES: dict[str, Callable[..., Any]] = {
    name: case
    for module in (push_cases, lite_cases)
    for name, case in vars(module).items()
    if name.startswith("test_")
}
"""All of them by name; each takes a `place`, so it runs against any broker."""
