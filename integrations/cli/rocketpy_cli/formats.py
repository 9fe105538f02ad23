r"""How messages are printed: bodies, JSON lines, or a template such as ``{queue_offset}\t{tags}\t{body}``."""

from __future__ import annotations

import base64
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import RESERVED_PROPERTIES, MessageExt
from rocketpy.protocol.message.properties import TIMER_PROPERTIES
from rocketpy.runtime.text import printable

Format = Callable[[Sequence[MessageExt]], bytes]
"""Returns the bytes to print for messages."""
_Part = Callable[[MessageExt], bytes]


class PrintedMessage(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A message as a JSON object: `rocketpy consume` prints it, `rocketpy send --json-lines` reads it."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None
    born_timestamp: int | None = None
    store_timestamp: int | None = None
    tags: str | None = None
    keys: str | list[str] = msgspec.field(default_factory=list)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    deliver_at: str | None = None
    """In ISO 8601. This and the other delays are for `send` only: a copy would be delayed again."""
    delay: str | None = None
    """Such as 90s."""
    delay_level: int = 0
    flag: int = 0
    body: object = None
    """The body as text; `send` also accepts any other JSON value."""
    body_base64: str | None = None
    """The body in base64, if it is not UTF-8."""
    decode_error: str | None = None
    dead_letter_reason: str | None = None


def printed(message: MessageExt) -> PrintedMessage:
    """Return the printed fields of a message."""
    line = PrintedMessage(
        topic=message.topic,
        broker_name=message.queue.broker_name,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        born_timestamp=message.born_timestamp,
        store_timestamp=message.store_timestamp,
        tags=message.tags,
        keys=list(message.keys),
        properties=_user_properties(message),
        flag=message.flag,
        decode_error=None if message.decode_error is None else str(message.decode_error),
        dead_letter_reason=message.dead_letter_reason,
    )
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = base64.b64encode(message.body).decode()
    return line


def find_format(text: str) -> Format:
    """Return the format that a user chose.

    On a terminal, its output has no control characters other than newlines and tabs: a message could
    otherwise control the terminal of the person who reads it.

    Args:
        text: ``text``, ``json``, or a template with ``{field}`` in it.

    Raises:
        ConfigInvalid: It is none of these, or the template names an unknown field.
    """
    format_ = _find(text)

    def printed_here(messages: Sequence[MessageExt]) -> bytes:
        data = format_(messages)
        return _escaped(data) if sys.stdout.isatty() else data

    return printed_here


def _find(text: str) -> Format:
    if text == "text":
        return _as_text
    if text == "json":
        return _as_json
    if "{" not in text:
        raise ConfigInvalid(f"format {text!r} is unknown; choose text, json, or a template with {{body}}")
    parts = list(_parts(text))

    def fill(messages: Sequence[MessageExt]) -> bytes:
        return b"".join([part(message) for message in messages for part in parts])

    return fill


def _escaped(data: bytes) -> bytes:
    lines = data.decode(errors="replace").split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines).encode()


def _as_text(messages: Sequence[MessageExt]) -> bytes:
    return b"".join([message.body + b"\n" for message in messages])


_encoder: Final = msgspec.json.Encoder()


def _as_json(messages: Sequence[MessageExt]) -> bytes:
    return _encoder.encode_lines(map(printed, messages)) if messages else b""


def _user_properties(message: MessageExt) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name not in _HIDDEN}


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # producers may set any time
        return f"{timestamp_ms} ms"


_HIDDEN: Final = RESERVED_PROPERTIES | TIMER_PROPERTIES
"""With a timer property, a message that is printed and sent again would be delayed again."""
_FIELDS: Final[dict[str, Callable[[MessageExt], object]]] = {
    "topic": lambda message: message.topic,
    "broker_name": lambda message: message.queue.broker_name,
    "queue_id": lambda message: message.queue.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "message_id": lambda message: message.message_id,
    "offset_message_id": lambda message: message.offset_message_id,
    "tags": lambda message: message.tags or "",
    "dead_letter_reason": lambda message: message.dead_letter_reason or "",
    "keys": lambda message: " ".join(message.keys),
    "properties": lambda message: " ".join(f"{k}={v}" for k, v in _user_properties(message).items()),
    "born_timestamp": lambda message: message.born_timestamp,
    "born_time": lambda message: _time(message.born_timestamp),
    "store_timestamp": lambda message: message.store_timestamp,
    "store_time": lambda message: _time(message.store_timestamp),
    "deliver_at": lambda message: (
        message.deliver_at.isoformat(timespec="milliseconds") if message.deliver_at else ""
    ),
    "reconsume_times": lambda message: message.reconsume_times,
    "flag": lambda message: message.flag,
}
"""Fields of a template besides ``body`` and ``properties[NAME]``."""


def _parts(template: str) -> Iterator[_Part]:
    """Yield a function for each piece of a line: literal text, or a field of the message."""
    try:
        pieces = list(string.Formatter().parse(template.replace("\\t", "\t").replace("\\n", "\n")))
    except ValueError as error:
        raise ConfigInvalid(f"format {template!r}: {error}; write {{{{ for a brace") from None
    for literal, name, spec, conversion in pieces:
        if literal:
            yield _constant(literal.encode())
        if name is None:
            continue
        if spec or conversion:
            raise ConfigInvalid(f"format {template!r}: write {{{name}}} without : or !")
        yield _field(template, name)
    yield _constant(b"\n")


def _constant(data: bytes) -> _Part:
    return lambda _: data


def _field(template: str, name: str) -> _Part:
    if name == "body":
        return lambda message: message.body
    if name.startswith("properties[") and name.endswith("]"):
        wanted = name.removeprefix("properties[").removesuffix("]")
        return lambda message: message.properties.get(wanted, "").encode()
    value = _FIELDS.get(name)
    if value is None:
        known = ", ".join(["body", *_FIELDS, "properties[NAME]"])
        raise ConfigInvalid(f"format {template!r} has no field {{{name}}}; known are {known}")
    return lambda message: str(value(message)).encode()
