"""Finds the messages that a test sent in the broker's store, and lists them if an expected one is missing.

A consumer would first have to join a group and get its queues. The store shows a message as soon as it is
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from rocketpy import MessageExt, MessageQueue
from rocketpy.client.namespace import unwrap
from rocketpy.message.decode import decode_messages
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import PROPERTY_REAL_TOPIC, TIMER_DEL_UNIQKEY
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.store import MessageStore

_WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, "rmq_sys_wheel_timer"})
_BODY_BYTES_MAX: Final = 64 << 20
_READ_COUNT: Final = 32
_LISTED_MAX: Final = 20
_SHOWN_CHARACTERS: Final = 200
TIMEOUT_S: Final = 5.0


class StoredMessages:
    """Reads each message of a namespace from the store once. Used only on the thread of the servers."""

    def __init__(self, cluster: EmbeddedCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._offsets: dict[tuple[str, int], int] = {}
        self._messages: list[MessageExt] = []
        self._waiting: list[MessageExt] = []
        """The messages of all namespaces that wait, or have waited, for their time."""

    def read(self) -> list[MessageExt]:
        """Return all messages so far, in the order of the commit log.

        While the broker is stopped, only messages that were read before are returned.
        """
        found: list[MessageExt] = []
        for broker in self._cluster.brokers:
            broker.store.dispatch()  # creates the consume queues of new topics
            for topic, queue_id in list(broker.store.queues.queues):
                own = unwrap(self._namespace, topic)
                if own != topic:
                    queue = MessageQueue(topic, broker.config.name, queue_id)
                    while messages := self._read_queue(broker.store, queue):
                        found += (message.with_topic(own) for message in messages)
        self._messages += sorted(found, key=lambda message: message.physical_offset)
        return self._messages

    def read_delayed(self) -> list[MessageExt]:
        """Return the messages that wait for their time, in the order of the commit log.

        A message that was taken back is left out.
        """
        arrived = {message.message_id for message in self.read()}
        waiting: dict[str, MessageExt] = {}
        for broker in self._cluster.brokers:
            for topic, queue_id in list(broker.store.queues.queues):
                if topic in _WAITING_TOPICS:
                    queue = MessageQueue(topic, broker.config.name, queue_id)
                    while messages := self._read_queue(broker.store, queue):
                        self._waiting += messages
        for message in sorted(self._waiting, key=lambda message: message.physical_offset):
            topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
            own = unwrap(self._namespace, topic)
            if own == topic or message.message_id in arrived:
                continue
            if TIMER_DEL_UNIQKEY in message.properties:
                waiting.pop(message.message_id, None)
            else:
                waiting[message.message_id] = message.with_topic(own)
        return list(waiting.values())

    def _read_queue(self, store: MessageStore, queue: MessageQueue) -> list[MessageExt]:
        key = queue.topic, queue.queue_id
        result = store.get_message(*key, self._offsets.get(key, 0), _READ_COUNT)
        if not result.body:
            return []
        self._offsets[key] = result.next_begin_offset
        return decode_messages(result.body, queue, _BODY_BYTES_MAX, _BODY_BYTES_MAX, verify=False).messages


@dataclass(frozen=True, slots=True)
class Expected:
    """The fields that a message must have; None accepts any value."""

    topic: str
    body: bytes | None
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    matching: Callable[[MessageExt], bool] | None

    def is_met_by(self, message: MessageExt) -> bool:
        """Whether a message has all expected fields."""
        return (
            message.topic == self.topic
            and self.body in (None, message.body)
            and self.tags in (None, message.tags)
            and (self.keys is None or self.keys in message.keys)
            and all(message.properties.get(name) == value for name, value in self.properties.items())
            and (self.matching is None or self.matching(message))
        )

    def __str__(self) -> str:
        wanted: list[tuple[str, object]] = [
            ("body", self.body), ("tags", self.tags), ("keys", self.keys),
            *self.properties.items(), ("matching", self.matching),
        ]  # fmt: skip
        fields = ", ".join(f"{name}={_short(value)}" for name, value in wanted if value is not None)
        return f"to {self.topic!r}" + (f" with {fields}" if fields else "")


class AssertSent:
    """Waits until a matching message is stored in the namespace of the test; see `__call__`.

    wait: see `RocketMQ.wait_stored`. sent: returns all messages of the test.
    """

    def __init__(
        self,
        wait: Callable[[Callable[[MessageExt], bool], float], Future[MessageExt | None]],
        sent: Callable[[], list[MessageExt]],
    ) -> None:
        self._wait = wait
        self._sent = sent

    async def __call__(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        matching: Callable[[MessageExt], bool] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> MessageExt:
        """Return the first message that matches all arguments. It may be stored before or after the call.

        Args:
            topic: The topic, without a namespace.
            body: The body; a str is encoded as UTF-8.
            tags: The tag.
            keys: One of the keys.
            properties: Properties that the message must have; it may have others, too.
            matching: Returns whether a message matches. It is called on the servers' thread, with messages
                that match the other arguments, and must not block.
            timeout_s: How long to wait, in seconds.

        Raises:
            AssertionError: No such message is stored within `timeout_s`. The text lists the test's last
                messages.
        """
        __tracebackhide__ = True
        expected = _expected(topic, body, tags, keys, properties, matching)
        found = await asyncio.wrap_future(self._wait(expected.is_met_by, timeout_s))
        if found is None:
            raise AssertionError(_failure(expected, timeout_s, self._sent()))
        return found

    def blocking(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        matching: Callable[[MessageExt], bool] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> MessageExt:
        """As `__call__`, for tests that are not async. Raises AssertionError."""
        __tracebackhide__ = True
        expected = _expected(topic, body, tags, keys, properties, matching)
        found = self._wait(expected.is_met_by, timeout_s).result()
        if found is None:
            raise AssertionError(_failure(expected, timeout_s, self._sent()))
        return found


def _expected(
    topic: str,
    body: bytes | str | None,
    tags: str | None,
    keys: str | None,
    properties: Mapping[str, str] | None,
    matching: Callable[[MessageExt], bool] | None,
) -> Expected:
    data = body.encode() if isinstance(body, str) else body
    return Expected(topic, data, tags, keys, dict(properties or {}), matching)


def _failure(expected: Expected, timeout_s: float, messages: list[MessageExt]) -> str:
    """Return the text of a failed assertion."""
    text = f"no message {expected} was stored within {timeout_s:g} s"
    if not messages:
        return f"{text}; this test sent no message. Give client=rocketmq.client to its producers"
    lines = [_line(message) for message in messages[-_LISTED_MAX:]]
    if left_out := len(messages) - len(lines):
        lines.insert(0, f"  ({left_out} earlier ones)")
    return "\n".join([f"{text}. The messages of this test:", *lines])


def _line(message: MessageExt) -> str:
    fields = [f"  {message.topic!r}"]
    if message.tags:
        fields.append(f"tags={message.tags!r}")
    if message.keys:
        fields.append(f"keys={' '.join(message.keys)!r}")
    return " ".join([*fields, f"body={_short(message.body)}"])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
