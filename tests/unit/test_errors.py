"""Errors as they travel: between processes, and from one who waits to another."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from rocketpy import errors
from rocketpy.errors import (
    BatchIncomplete,
    BrokerError,
    NotLeader,
    Outcome,
    RecordCorrupt,
    RequestTimeout,
    Retry,
    RocketError,
)
from rocketpy.message import MessageQueue
from rocketpy.results import SendResult, SendStatus

NAMED = [getattr(errors, name) for name in errors.__all__]
KINDS = [kind for kind in NAMED if isinstance(kind, type) and issubclass(kind, RocketError)]


def made(kind: type[RocketError]) -> RocketError:
    """One of a class, with all that it can carry."""
    error: RocketError
    if issubclass(kind, BrokerError):
        error = kind(13, "no permission", "broker-a", outcome=Outcome.STORED, retry=Retry.SAME_BROKER)
    elif issubclass(kind, BatchIncomplete):
        sent = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("T", "a", 1), 7)
        error = kind([sent], 2, RequestTimeout("too late"))
    elif issubclass(kind, RecordCorrupt):
        error = kind(20, "its checksum is wrong")
    elif issubclass(kind, NotLeader):
        error = kind("not here", leader_hint="n2")
    else:
        error = kind("what went wrong", outcome=Outcome.STORED, retry=Retry.SAME_BROKER)
    error.add_note("attempt 1 of 2")
    return error


def pickled(error: RocketError) -> object:
    """As it comes to another process."""
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("way", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_through_whole(
    kind: type[RocketError], way: Callable[[RocketError], RocketError]
) -> None:
    """A pool of processes would break, or wait for ever, instead of telling what went wrong."""
    error = made(kind)
    twin = way(error)
    assert type(twin) is kind
    assert (str(twin), twin.args) == (str(error), error.args)
    assert {name: repr(value) for name, value in vars(twin).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }
    assert twin.__notes__ == ["attempt 1 of 2"]


def test_a_cause_stays_behind_as_with_any_exception() -> None:
    """A cause that cannot travel, of a library or of the system, would keep the error itself from it."""
    error = BrokerError(1, "no", "a")
    error.__cause__ = OSError(lambda: None)
    twin = pickled(error)
    assert isinstance(twin, BrokerError)
    assert (twin.code, twin.__cause__) == (1, None)
