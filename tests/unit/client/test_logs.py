"""Log lines as JSON, and errors that repeat themselves."""

from __future__ import annotations

import json
import logging
import sys
import tracemalloc
from typing import Any

import pytest

from rocketpy import Message, MessageQueue, Outcome
from rocketpy.errors import BrokerError, Retry
from rocketpy.logs import JsonFormatter, LineFormatter
from rocketpy.runtime.rate_limited_log import RateLimitedLog

QUEUE = MessageQueue("Orders", "broker-a", 3)


def line(text: str, *arguments: object, **more: Any) -> dict[str, Any]:
    """One line as it would be written."""
    record = logging.getLogger("rocketpy.test").makeRecord(
        "rocketpy.test", logging.WARNING, __file__, 1, text, arguments, more.pop("exc_info", None), extra=more
    )
    found = JsonFormatter().format(record)
    assert "\n" not in found
    return dict(json.loads(found))


def test_log_fields_name_queue_and_broker() -> None:
    """Operators could not search the logs for a queue or a broker."""
    error = BrokerError(2, "busy", "broker-a", outcome=Outcome.NOT_SENT, retry=Retry.SAME_BROKER)
    found = line("pull of %s failed: %s", QUEUE, error)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "WARNING",
        "logger": "rocketpy.test",
        "message": f"pull of {QUEUE} failed: {error}",
        "topic": "Orders",
        "broker": "broker-a",
        "queueId": 3,
        "error": "BrokerError",
        "code": 2,
    }


def test_extra_fields_and_exceptions_are_kept() -> None:
    """The fields of a line would be lost, or a traceback would break the line."""
    found = line("failed", offset=7, topic="T", exc_info=(ValueError, ValueError("oops"), None))
    assert (found["offset"], found["topic"], found["error"]) == (7, "T", "ValueError")
    assert "ValueError: oops" in found["exception"]


def test_no_body_is_written() -> None:
    """Customers' data would be in the logs."""
    found = json.dumps(line("cannot send %s", Message("T", b"my secret", properties={"p": "my secret too"})))
    assert "secret" not in found


@pytest.mark.parametrize(
    "form", [LineFormatter("%(levelname)s %(message)s"), JsonFormatter()], ids=["text", "json"]
)
def test_a_name_cannot_look_like_another_line(form: logging.Formatter) -> None:
    """A client whose id has a newline could forge lines, and one with an escape sequence clear a terminal."""
    forged = "a\nERROR all data is lost\r\x1b[2J\x9b31m\u202e\u2028b"
    try:
        {}[type("Forged", (), {"__repr__": lambda _: forged})()]
    except KeyError:
        failure = sys.exc_info()
    record = logging.makeLogRecord(
        {"msg": "client %s", "args": (forged,), "exc_info": failure, "levelname": "INFO"}
    )
    found = form.format(record)
    assert all(char.isprintable() for char in found.replace("\n", ""))
    assert not any(line.startswith("ERROR") for line in found.splitlines())
    assert "all data is lost" in found


def test_a_repeated_error_is_one_line_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is offline would fill the disk with one line."""
    now = 1000.0
    monkeypatch.setattr("rocketpy.runtime.rate_limited_log.time.monotonic", lambda: now)
    repeated = RateLimitedLog(logging.getLogger("rocketpy.test"), interval_s=10)
    for _ in range(5):
        repeated.warning("away", "broker %s is away", "a")
    repeated.warning("other", "something else")
    now += 10
    repeated.warning("away", "broker %s is away", "a")
    assert [record.getMessage() for record in caplog.records] == [
        "broker a is away",
        "something else",
        "broker a is away (and 4 more like it)",
    ]


def test_the_memory_for_repeated_errors_is_bounded() -> None:
    """Errors whose texts always differ would use more and more memory."""
    quiet = logging.getLogger("rocketpy.quiet")
    quiet.disabled = True
    repeated = RateLimitedLog(quiet, interval_s=0)
    tracemalloc.start()
    for number in range(20_000):
        repeated.warning(f"{number} {'long' * 50}", "error")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000


def test_keys_of_peers_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that names another group in each heartbeat could fill the disk with warnings."""
    now = 1000.0
    monkeypatch.setattr("rocketpy.runtime.rate_limited_log.time.monotonic", lambda: now)
    repeated = RateLimitedLog(logging.getLogger("rocketpy.test"), interval_s=10)
    for number in range(1000):
        repeated.warning(f"group {number}", "group %s is wrong", "long" * 1_000_000)
    assert len(caplog.records) == 64
    assert max(len(record.getMessage()) for record in caplog.records) < 3000
    caplog.clear()
    now += 10
    repeated.warning("other", "something else")
    assert [record.getMessage() for record in caplog.records] == [
        "936 lines were suppressed: more than 64 in a short time",
        "something else",
    ]


def test_long_texts_of_peers_are_not_remembered(caplog: pytest.LogCaptureFixture) -> None:
    """256 heartbeats with client ids of 15 MB would have kept 4 GB after their connections closed."""
    repeated = RateLimitedLog(logging.getLogger("rocketpy.test"))
    names = [f"{number} is {'long' * 1_000_000}" for number in range(3)]
    tracemalloc.start()
    for name in names:
        repeated.warning(f"key {name}", "once")
        repeated.warning(f"key {name}", "never")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert [record.getMessage() for record in caplog.records] == ["once"] * 3
