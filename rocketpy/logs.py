"""Formatters for log lines: as one JSON object with structured fields, or as plain text.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler])

Names, client ids and errors in a line may come from another program. Both formatters escape control
characters, so that such a text cannot look like further lines, or control a terminal.

The fields come from the arguments of a log call. A queue adds topic, broker and queueId. A message also adds
msgId and offset. An error adds its class and the response code of the broker. Other fields come from `extra`.
Bodies, properties and secrets are never written.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from rocketpy.errors import BrokerError
from rocketpy.message.message import Message, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.text import escape_json, printable

__all__ = ["JsonFormatter", "LineFormatter", "fields_of"]

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every log record; all others come from `extra`."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the fields of `fields_of`.

    `exception` is added if the record has one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, ensure_ascii=False, default=str))


class LineFormatter(logging.Formatter):
    """Formats a record as one line of text, with control characters escaped.

    Takes the arguments of `logging.Formatter`. The lines of a traceback follow, indented by four spaces.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        """Return the line without the traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as in logging
        """Return the traceback, with each line indented."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {printable(line)}" for line in lines)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a log record: `extra`, then those of its arguments and its exception.

    When two of them have a field of one name, the first counts.
    """
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
    arguments = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    for argument in (*arguments, error):
        for name, value in _fields_of(argument).items():
            fields.setdefault(name, value)
    return fields


def _fields_of(argument: object) -> dict[str, Any]:
    if isinstance(argument, list | tuple) and argument and isinstance(argument[0], MessageExt):
        argument = argument[0]
    if isinstance(argument, MessageQueue):
        return {"topic": argument.topic, "broker": argument.broker_name, "queueId": argument.queue_id}
    if isinstance(argument, MessageExt):
        queue = {"topic": argument.topic, "broker": argument.queue.broker_name, "queueId": argument.queue_id}
        return queue | {"offset": argument.queue_offset, "msgId": argument.message_id}
    if isinstance(argument, Message):
        return {"topic": argument.topic}
    if isinstance(argument, BrokerError):
        return {"error": "BrokerError", "code": argument.code, "broker": argument.broker}
    if isinstance(argument, BaseException):
        return {"error": type(argument).__name__}
    return {}
