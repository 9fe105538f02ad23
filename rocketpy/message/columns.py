"""MessageColumns: many small messages in columns, as from a data frame.

A data frame has millions of short messages. An object for each would take more time than its encoding
(`tools.bench.codecs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, overload

from rocketpy.errors import MessageInvalid
from rocketpy.message.message import (
    Message,
    check_flag,
    check_properties,
    check_tag,
    check_topic,
    check_value,
)
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, body_checksum

Texts = Sequence[str | None]
_NONE: Final[Mapping[str, Texts]] = MappingProxyType({})


class MessageColumns(Sequence[Message]):
    """Messages of one topic in columns, which `Producer.send_batch` encodes faster than single messages.

        await producer.send_batch(MessageColumns("Orders", bodies, tags=tags, properties={"shop": shops}))

    Immutable, and a sequence whose elements are `Message` objects that are created on access. The messages
    have no delay and `wait_store`. The columns must not be changed afterwards. For the speed see
    `tools/bench/codecs.py`.

    Args:
        topic: The topic of all messages.
        bodies: The bodies; none is empty.
        tags: A tag for each message, or None.
        keys: The keys for each message, separated by spaces, or None.
        properties: For each name, a value for each message, or None where it has no such property.
        flags: A signed 32-bit number for each message; None for zeros.

    Raises:
        TopicInvalid: The topic is invalid.
        MessageInvalid: A message would be invalid, or the columns differ in length.
    """

    __slots__ = ("bodies", "flags", "keys", "properties", "tags", "topic")

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: Texts | None = None,
        keys: Texts | None = None,
        properties: Mapping[str, Texts] = _NONE,
        flags: Sequence[int] | None = None,
    ) -> None:
        self.topic: Final = check_topic(topic)
        self.bodies: Final = bodies
        self.tags: Final = tags
        self.keys: Final = keys
        self.properties: Final = properties
        self.flags: Final = flags
        if bodies and (set(map(type, bodies)) != {bytes} or not all(bodies)):
            raise MessageInvalid("a body is empty, which RocketMQ brokers reject, or is not bytes")
        check_properties(properties)
        for name, column in {"tags": tags, "keys": keys, **properties}.items():
            if column is not None:
                _check_column(name, column, len(bodies), skips_empty=name not in properties)
        if flags is not None:
            _check_length("flags", flags, len(bodies))
            for flag in set(flags):
                check_flag(flag)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickle and copy, which do not support a MappingProxyType."""
        state = {name: getattr(self, name) for name in MessageColumns.__slots__}
        return state | {"properties": dict(self.properties)}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore pickled state. Older pickles have no `flags`."""
        for name, value in {"flags": None, **state}.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> MessageColumns: ...

    def __getitem__(self, index: int | slice) -> Message | MessageColumns:
        if isinstance(index, slice):
            part = MessageColumns.__new__(MessageColumns)
            columns = {
                "topic": self.topic,
                "bodies": self.bodies[index],
                "tags": self.tags[index] if self.tags is not None else None,
                "keys": self.keys[index] if self.keys is not None else None,
                "properties": {name: column[index] for name, column in self.properties.items()},
                "flags": self.flags[index] if self.flags is not None else None,
            }
            for name, value in columns.items():
                setattr(part, name, value)
            return part
        return Message(
            self.topic,
            self.bodies[index],
            tags=self.tags[index] if self.tags is not None else None,
            keys=(self.keys[index] if self.keys is not None else None) or (),
            flag=self.flags[index] if self.flags is not None else 0,
            properties={
                name: value
                for name, column in self.properties.items()
                if (value := column[index]) is not None
            },
        )

    def property_texts(self, unique_ids: Sequence[str], checksum: str = "") -> list[bytes]:
        """Encode the properties of each message with its unique id, as for a `Message` of a batch.

        checksum: name of the end-to-end body checksum to add; empty for none.
        """
        template = "UNIQ_KEY\x01%s\x02"
        columns: list[Sequence[str]] = [unique_ids]
        named = {"TAGS": self.tags, "KEYS": self.keys}
        if checksum:
            named[PROPERTY_BODY_CHECKSUM] = [body_checksum(checksum, body) for body in self.bodies]
        for name, texts in (*named.items(), *self.properties.items()):
            if texts is None:
                continue
            if all(texts):
                template += name.replace("%", "%%") + "\x01%s\x02"
                columns.append(texts)  # type: ignore[arg-type] # no value is None
            else:
                template += "%s"
                columns.append([f"{name}\x01{text}\x02" if text else "" for text in texts])
        return [(template % row).encode() for row in zip(*columns, strict=True)]


def _check_length(name: str, column: Sequence[object], count: int) -> None:
    if len(column) != count:
        raise MessageInvalid(f"{name} has {len(column)} values for {count} bodies")


def _check_column(name: str, column: Texts, count: int, *, skips_empty: bool) -> None:
    """Check all values together, and one by one if that finds a problem.

    skips_empty: an empty value means the same as None.
    """
    _check_length(name, column, count)
    values = [value for value in column if value or (value is not None and not skips_empty)]
    is_tags = name == "tags"
    has_bad_spaces = _has_space_at_ends if is_tags else str.isspace
    try:
        text = "".join(values)
        has_separator = is_tags and "||" in text  # perhaps of two tags
        spaces_are_fine = " " not in text or not any(map(has_bad_spaces, values))
        if text.isprintable() and all(values) and spaces_are_fine and not has_separator:
            return
    except TypeError:
        pass
    check = check_tag if is_tags else partial(check_value, name)
    for value in values:
        check(value)


def _has_space_at_ends(text: str) -> bool:
    return text.startswith(" ") or text.endswith(" ")
