"""Base class of JSON bodies, and the queue that many of them contain."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from rocketpy.protocol import fastjson
from rocketpy.protocol.headers.base import Int32

T = TypeVar("T")


def always_encoded(default: T) -> T:
    """Return a field with this default that is encoded even if it has its default value.

    Other fields are left out of the JSON when they have their default, usually None, as fastjson leaves out
    null.
    """
    field: Any = msgspec.field(default_factory=_factory(default))
    return field  # type: ignore[no-any-return] # msgspec.field stands for the field's value


def _factory(default: Any) -> Any:
    # msgspec leaves out an empty container only if its factory is the class itself, such as `list`.
    return default.copy if isinstance(default, list | dict | set) else lambda: default


class Body(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of the JSON bodies: a plain value with the Python names of RocketMQ's fields."""

    def encode(self) -> bytes:
        """Encode the body as JSON for Java peers."""
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body. Raises RemoteProtocolError, which names the invalid field."""
        return fastjson.decode(data, cls)


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker. Source: RocketMQ MessageQueue."""

    topic: str
    broker_name: str
    queue_id: Int32
