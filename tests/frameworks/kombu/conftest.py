"""Connections of kombu to a broker with sockets and to an embedded one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

import rocketpy_kombu

_NUMBERS = itertools.count(1)
assert rocketpy_kombu.Transport.driver_type == "rocketmq"


@pytest.fixture
def prefix() -> str:
    """The first part of the names of this test's topics: the embedded servers live as long as the process."""
    return f"t{next(_NUMBERS)}-"


@pytest.fixture(params=["sockets", "embedded"])
def connect(request: pytest.FixtureRequest, prefix: str) -> Iterator[Callable[..., kombu.Connection]]:
    """Opens connections to the same brokers, with transport options."""
    if request.param == "embedded":
        url = "rocketmq+embedded://"
    else:
        url = f"rocketmq://{request.getfixturevalue('namesrv')}"
    opened: list[kombu.Connection] = []

    def connect(**options: Any) -> kombu.Connection:
        defaults = {"queue_name_prefix": prefix, "wait_time_seconds": 1}
        opened.append(kombu.Connection(url, transport_options=defaults | options))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.release()
