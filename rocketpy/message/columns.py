"""Messages as columns: for senders that have many small ones in columns already, such as data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, overload

from rocketpy.errors import MessageInvalid
from rocketpy.message.message import Message, check_properties, check_topic, check_value

Texts = Sequence[str | None]
_NONE: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class MessageColumns(Sequence[Message]):
    """Messages of one topic, kept in columns; `Producer.send_batch` encodes them in a third of the time.

        await producer.send_batch(MessageColumns("Orders", bodies, tags=tags, properties={"shop": shops}))

    A value, and a sequence: an element, or what iterates, is a `Message` made just then. bodies: not empty.
    tags, keys: one for each message, None where it has none; several keys have a space between them.
    properties: by name, a value for each message. They have no delay, and wait for the store.
    The columns must not be changed afterwards.

    Raises TopicInvalid, and MessageInvalid where one of them could be no `Message`, or lengths differ.
    """

    __slots__ = ("bodies", "keys", "properties", "tags", "topic")

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: Texts | None = None,
        keys: Texts | None = None,
        properties: Mapping[str, Sequence[str]] = _NONE,
    ) -> None:
        self.topic: Final = check_topic(topic)
        self.bodies: Final = bodies
        self.tags: Final = tags
        self.keys: Final = keys
        self.properties: Final = properties
        if bodies and (set(map(type, bodies)) != {bytes} or not all(bodies)):
            raise MessageInvalid("a body is empty, which RocketMQ brokers refuse, or is not of bytes")
        check_properties(properties)
        for name, column in {"tags": tags, "keys": keys, **properties}.items():
            if column is not None:
                _check_column(name, column, len(bodies), optional=name not in properties)

    def __getstate__(self) -> dict[str, object]:
        """For pickle and copy, which can take no view of a dict."""
        state = {name: getattr(self, name) for name in MessageColumns.__slots__}
        return state | {"properties": dict(self.properties)}

    def __setstate__(self, state: dict[str, object]) -> None:
        """The other way."""
        for name, value in state.items():
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
            }
            for name, value in columns.items():
                setattr(part, name, value)
            return part
        return Message(
            self.topic,
            self.bodies[index],
            tags=self.tags[index] if self.tags is not None else None,
            keys=(self.keys[index] if self.keys is not None else None) or (),
            properties={name: column[index] for name, column in self.properties.items()},
        )

    def property_texts(self, unique_ids: Sequence[str]) -> list[bytes]:
        """The properties of each as they travel, with its unique id: those that `Message`s would have."""
        template = "UNIQ_KEY\x01%s\x02WAIT\x01true\x02"
        columns: list[Sequence[str]] = [unique_ids]
        for name, texts in (("TAGS", self.tags), ("KEYS", self.keys)):
            if texts is None:
                continue
            if all(texts):
                template += f"{name}\x01%s\x02"
                columns.append(texts)  # type: ignore[arg-type] # there is no None
            else:
                template += "%s"
                columns.append([f"{name}\x01{text}\x02" if text else "" for text in texts])
        for name, values in self.properties.items():
            template += name.replace("%", "%%") + "\x01%s\x02"
            columns.append(values)
        return [(template % row).encode() for row in zip(*columns, strict=True)]


def _check_column(name: str, column: Texts, count: int, *, optional: bool) -> None:
    """Check all values at once; one by one where that finds something."""
    if len(column) != count:
        raise MessageInvalid(f"{name} has {len(column)} values, for {count} bodies")
    values = [value for value in column if value] if optional else column
    try:
        text = "".join(values)  # type: ignore[arg-type] # None is among what the except is for
        if text.isprintable() and all(values) and " " not in text:
            return
    except TypeError:
        pass
    for value in values:
        check_value(name, value)
