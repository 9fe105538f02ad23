"""Errors that are pickled between processes, or raised in another waiter."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from rocketpy import errors
from rocketpy.errors import (
    AcksFailed,
    BatchIncomplete,
    BrokerError,
    BrokersFailed,
    NotDurable,
    NotLeader,
    Outcome,
    RecordCorrupt,
    RequestTimeout,
    Retry,
    RocketError,
)
from rocketpy.message import MessageQueue
from rocketpy.results import SendResult, SendStatus

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RocketError)]


def made(kind: type[RocketError]) -> RocketError:
    """An error of this class, with all its optional fields."""
    error: RocketError
    if issubclass(kind, BrokerError):
        error = kind(13, "no permission", "broker-a", outcome=Outcome.STORED, retry=Retry.SAME_BROKER)
    elif issubclass(kind, BatchIncomplete):
        sent = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("T", "a", 1), 7)
        error = kind([sent], 2, RequestTimeout("too late"))
    elif issubclass(kind, NotDurable):
        stored = SendResult(SendStatus.SLAVE_NOT_AVAILABLE, "id", "offset id", MessageQueue("T", "a", 1), 7)
        error = kind([stored])
    elif issubclass(kind, BrokersFailed):
        error = kind({"broker-a": RequestTimeout("too late")}, {"broker-b": None})
    elif issubclass(kind, AcksFailed):
        error = kind([("message", RequestTimeout("too late"))], 2)
    elif issubclass(kind, RecordCorrupt):
        error = kind(20, "its checksum is wrong")
    elif issubclass(kind, NotLeader):
        error = kind("not here", leader_hint="n2")
    else:
        error = kind("what went wrong", outcome=Outcome.STORED, retry=Retry.SAME_BROKER)
    error.add_note("attempt 1 of 2")
    return error


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, BatchIncomplete)])
def test_an_error_has_the_outcome_and_retry_that_its_class_documents(kind: type[RocketError]) -> None:
    """The troubleshooting guide shows these defaults, and would be wrong about them."""
    arguments: dict[type[RocketError], tuple[object, ...]] = {
        BrokerError: (13, "no permission", "broker-a"),
        BrokersFailed: ({"broker-a": RequestTimeout("too late")}, {}),
        AcksFailed: ([("message", RequestTimeout("too late"))], 2),
        NotDurable: (
            [SendResult(SendStatus.SLAVE_NOT_AVAILABLE, "id", "offset id", MessageQueue("T", "a", 1), 7)],
        ),
    }
    corrupt = (20, "its checksum is wrong") if issubclass(kind, RecordCorrupt) else ("what went wrong",)
    error = kind(*arguments.get(kind, corrupt))  # type: ignore[arg-type]
    assert (error.outcome, error.retry) == (kind.default_outcome, kind.default_retry)


def pickled(error: RocketError) -> object:
    """Return the error as another process gets it."""
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("way", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_pickled_with_all_fields(
    kind: type[RocketError], way: Callable[[RocketError], RocketError]
) -> None:
    """A process pool would break or hang instead of reporting the error."""
    error = made(kind)
    copied = way(error)
    assert type(copied) is kind
    assert (str(copied), copied.args) == (str(error), error.args)
    assert {name: repr(value) for name, value in vars(copied).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }
    assert copied.__notes__ == ["attempt 1 of 2"]


def test_a_cause_stays_behind_as_with_any_exception() -> None:
    """An error whose cause cannot be pickled could not be pickled itself."""
    error = BrokerError(1, "no", "a")
    error.__cause__ = OSError(lambda: None)
    copied = pickled(error)
    assert isinstance(copied, BrokerError)
    assert (copied.code, copied.__cause__) == (1, None)


@pytest.mark.parametrize(
    ("remark", "says"),
    [
        ("No accessKey is configured", "give the keys of an account: ClientConfig.credentials"),
        ("org.apache.X: No acl config for somebody", "no account with this access key"),
        ("Check signature failed for accessKey=somebody", "the secret key is wrong"),
    ],
)
def test_errors_of_access_control_say_how_to_give_keys(remark: str, says: str) -> None:
    """A user would search the documentation for the names of the settings."""
    error = BrokerError(1, remark, "broker-a")
    assert says in str(error)
    assert "ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY" in str(error)
    assert error.remark == remark
