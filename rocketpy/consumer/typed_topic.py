"""TypedTopic: converts values to message bodies and back, with two functions of the application.

Functions fit every format: JSON, Avro, Protobuf. None of their packages becomes a requirement.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Generic, TypedDict, TypeVar, Unpack

from rocketpy.consumer.handling.handler import is_async
from rocketpy.consumer.outcomes import Handler, HandlerResult, Later, to_handling_result
from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import Message, MessageExt
from rocketpy.runtime.application import check_callable, describe, ends_program, shown
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.consumer")

T = TypeVar("T")

_LOG_INTERVAL_S: Final = 1.0
_DEAD_LETTER: Final = Later(delay_level=-1)


class MessageOptions(TypedDict, total=False):
    """Keyword arguments of `rocketpy.Message`."""

    tags: str | None
    keys: str | Iterable[str]
    deliver_at: datetime | None
    delay: timedelta | None
    delay_level: int
    wait_store: bool
    flag: int
    properties: Mapping[str, str] | None
    buyer_id: str | None
    instance_id: str | None
    transaction_id: str | None
    unique_id: str | None


@dataclass(frozen=True)  # with slots, TypedTopic[Order](...) fails in Python 3.11
class TypedTopic(Generic[T]):
    """A topic whose bodies are values of one type.

    For example:

        ORDERS = TypedTopic[Order]("Orders", msgspec.json.encode, msgspec.json.Decoder(Order).decode)

        @ORDERS.handler
        async def bill(order: Order, message: MessageExt) -> None:
            ...

        await producer.send(ORDERS.message(Order(number=7), keys="7"))
    """

    name: str
    """The name of the topic."""
    encode: Callable[[T], bytes]
    """Returns the body for a value, at least one byte."""
    decode: Callable[[bytes], T]
    """Returns the value of a body, or raises any exception."""
    undecodable: HandlerResult = _DEAD_LETTER
    """The result of a handler for a body that `decode` rejects. By default such a message becomes a dead
    letter immediately, because a redelivery has the same bytes. An orderly consumer does not support that and
    handles the message again; None skips it."""

    def __post_init__(self) -> None:
        check_callable(f"encode of topic {self.name}", self.encode, "value")
        check_callable(f"decode of topic {self.name}", self.decode, "body")
        if to_handling_result(self.undecodable).is_foreign:
            raise ConfigInvalid(
                f"undecodable of topic {self.name} is {shown(self.undecodable)}; "
                f"it must be None, a ConsumeResult or a Later"
            )

    def message(self, value: T, **options: Unpack[MessageOptions]) -> Message:
        """Return a message with this value.

        Args:
            value: The value.
            **options: Keyword arguments of `Message`.

        Returns:
            The message.

        Raises:
            MessageInvalid: An option is not valid, or the body is empty.
            TopicInvalid: The name of the topic is not valid.
        """
        return Message(self.name, self.encode(value), **options)

    def value(self, message: MessageExt) -> T:
        """Return the value of a message, for consumers that poll.

        Raises:
            RocketError: The message has a `MessageExt.decode_error`. Other errors are those of `decode`.
        """
        if message.decode_error is not None:
            raise message.decode_error
        return self.decode(message.body)

    def handler(self, handle: Callable[[T, MessageExt], HandlerResult | Awaitable[HandlerResult]]) -> Handler:
        """Return a handler for `PushConsumer` that decodes each body. It can be used as a decorator.

        Args:
            handle: Called with the value and its message; an ``async def`` or a plain function.

        Returns:
            The handler. For a body that `decode` rejects it logs an error and returns `undecodable`.
        """
        check_callable(f"the handler of topic {self.name}", handle, "value", "message")
        limited_log = RateLimitedLog(log, _LOG_INTERVAL_S)

        @functools.wraps(handle)
        def decode_and_handle(message: MessageExt) -> HandlerResult | Awaitable[HandlerResult]:
            try:
                value = self.decode(message.body)
            except BaseException as error:  # the application's function may raise anything
                if ends_program(error):
                    raise
                return self._rejected(message, describe(error), limited_log)
            return handle(value, message)

        if not is_async(handle):
            return decode_and_handle

        @functools.wraps(handle)
        async def decode_and_await(message: MessageExt) -> HandlerResult:
            result = decode_and_handle(message)
            return await result if inspect.isawaitable(result) else result

        return decode_and_await

    def _rejected(self, message: MessageExt, problem: str, limited_log: RateLimitedLog) -> HandlerResult:
        text = "the body of message %s in %s at offset %d cannot be decoded: %s"
        values = message.message_id, message.queue, message.queue_offset, problem
        limited_log.error(f"topic {self.name}: a body cannot be decoded", text, *values)
        if isinstance(self.undecodable, Later) and self.undecodable.reason is None:
            return replace(self.undecodable, reason=f"the body cannot be decoded: {problem}")
        return self.undecodable
