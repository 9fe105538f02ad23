"""Base class of JSON bodies, and the queue that many of them contain."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from rocketpy.protocol import fastjson
from rocketpy.protocol.headers.base import Int32

T = TypeVar("T")


def written(default: T) -> T:
    """Return the default of a field that is always written.

    (A field that is None by default is left out when it is None, as fastjson does with null.)
    """
    made: Any = msgspec.field(default_factory=_factory(default))
    return made  # type: ignore[no-any-return] # msgspec.field stands for the field's value


def _factory(default: Any) -> Any:
    # msgspec leaves out an empty container only when its factory is the plain class, so this is not.
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
