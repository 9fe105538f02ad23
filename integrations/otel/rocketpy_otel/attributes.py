"""Span attributes of messages, queues, brokers and errors, by the conventions."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from rocketpy.errors import BrokerError, Outcome, RocketError
from rocketpy.message import Message, MessageExt, MessageQueue
from rocketpy.message.timers import deliver_at_of
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message import properties as reserved
from rocketpy.transport import Address
from rocketpy_otel import names

Value = str | int | float | bool | Sequence[str]
Attributes = dict[str, Value]

_GROUP_PROPERTY: Final = "__SHARDINGKEY"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def operation(name: str, kind: str, topic: str) -> Attributes:
    """Return the common attributes of spans and metrics. kind: the operation type, such as `send`."""
    return {
        names.SYSTEM: names.SYSTEM_ROCKETMQ,
        names.OPERATION_NAME: name,
        names.OPERATION_TYPE: kind,
        names.DESTINATION: topic,
    }


def message_attributes(message: Message | MessageExt) -> Attributes:
    """Return attributes of a message, without its body."""
    properties = message.properties
    found: Attributes = {
        names.BODY_BYTES: len(message.body),
        names.MESSAGE_TYPE: _type_of(message, properties),
    }
    if message.tags:
        found[names.TAG] = message.tags
    if message.keys:
        found[names.KEYS] = list(message.keys)
    if message.delay_level:
        found[names.DELAY_LEVEL] = message.delay_level
    if group := properties.get(_GROUP_PROPERTY):
        found[names.MESSAGE_GROUP] = group
    if not reserved.TIMER_PROPERTIES.isdisjoint(properties):
        born_ms = message.born_timestamp if isinstance(message, MessageExt) else time.time_ns() // 1_000_000
        if (deliver_at := deliver_at_of(properties, born_ms)) is not None:
            found[names.DELIVERY_TIME] = (deliver_at - _EPOCH) // timedelta(milliseconds=1)
    return found


def _type_of(message: Message | MessageExt, properties: Mapping[str, str]) -> str:
    if reserved.PROPERTY_TRANSACTION_PREPARED in properties:
        return "transaction"
    if message.delay_level or not reserved.TIMER_PROPERTIES.isdisjoint(properties):
        return "delay"
    return "fifo" if _GROUP_PROPERTY in properties else "normal"


def queue_attributes(queue: MessageQueue) -> Attributes:
    """Return attributes of a queue."""
    return {names.PARTITION: f"{queue.broker_name}/{queue.queue_id}"}


@lru_cache(maxsize=1024)
def server_attributes(address: str | None) -> Mapping[str, Value]:
    """Return attributes of a broker for metrics; none if its address is not known."""
    if address is None:
        return MappingProxyType({})
    parsed = Address.parse(address)
    server: Attributes = {names.SERVER_ADDRESS: parsed.host}
    if parsed.scheme != "memory":
        server[names.SERVER_PORT] = parsed.port
    return MappingProxyType(server)


@lru_cache(maxsize=1024)
def peer_attributes(address: str | None) -> Mapping[str, Value]:
    """Return attributes of a broker for spans: those of `server_attributes`, and its IP address and port."""
    server = server_attributes(address)
    if address is None:
        return server
    parsed = Address.parse(address)
    try:
        ipaddress.ip_address(parsed.host)
    except ValueError:  # a host name, or memory://
        return server
    return MappingProxyType({**server, names.PEER_ADDRESS: parsed.host, names.PEER_PORT: parsed.port})


def error_type(error: BaseException) -> str:
    """Return a low-cardinality error type: the name of the broker's response code, or the error's class."""
    if isinstance(error, BrokerError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return str(error.code)
    return type(error).__name__


def outcome_attributes(error: BaseException) -> Attributes:
    """Return attributes of a failed send: the error type, and whether the message may be stored."""
    outcome = error.outcome if isinstance(error, RocketError) else Outcome.UNKNOWN
    return {names.ERROR_TYPE: error_type(error), names.OUTCOME: outcome.name}
