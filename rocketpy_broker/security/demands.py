"""What rights a request needs, by what is in it: the topics and groups that it names.

Source: PlainAccessValidator of RocketMQ 4.6.0. Differs: batches, offset queries and queue locks are looked at
too, which 4.6.0 admits with any valid signature; a client that may pull needs no more rights for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocketpy.protocol.bodies import HeartbeatData, LockBatchRequestBody
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.command import Command
from rocketpy_broker.security.accounts import Right

__all__ = ["Demand", "demands"]

RETRY_PREFIX: Final = "%RETRY%"
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"

Fields = Mapping[str, str]


class Demand(NamedTuple):
    """A right that is needed. is_group: `name` is a consumer group and not a topic."""

    name: str
    is_group: bool
    right: Right

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


def demands(request: Command, fields: Fields) -> list[Demand]:
    """Every right that a request needs beside a valid signature. fields: its ext fields.

    Raises RemoteProtocolError for a body that cannot be read.
    """
    read = _READERS.get(request.code)
    return [] if read is None else read(request, fields)


def _topic(name: str | None, right: Right) -> list[Demand]:
    """Of a topic; the retry topic of a group counts as the group. Nothing for a field that is not there."""
    if name is None:
        return []
    group = name.removeprefix(RETRY_PREFIX)
    return [Demand(group, group != name, right)]


def _group(name: str | None) -> list[Demand]:
    return [] if name is None else [Demand(name, is_group=True, right=Right.SUB)]


def _send(field: str) -> Callable[[Command, Fields], list[Demand]]:
    return lambda _, fields: _topic(fields.get(field), Right.PUB)


def _reply(field: str) -> Callable[[Command, Fields], list[Demand]]:
    """A reply goes to a topic of the system, for which no account has a right of its own."""

    def read(_: Command, fields: Fields) -> list[Demand]:
        name = fields.get(field)
        return [] if name is None or name.endswith(_REPLY_SUFFIX) else _topic(name, Right.PUB)

    return read


def _consume(_: Command, fields: Fields) -> list[Demand]:
    return _topic(fields.get("topic"), Right.SUB) + _group(fields.get("consumerGroup"))


def _send_back(_: Command, fields: Fields) -> list[Demand]:
    return _topic(fields.get("originTopic", ""), Right.PUB) + _group(fields.get("group"))


def _query(_: Command, fields: Fields) -> list[Demand]:
    return _topic(fields.get("topic"), Right.SUB)


def _member(_: Command, fields: Fields) -> list[Demand]:
    return _group(fields.get("consumerGroup"))


def _heartbeat(request: Command, _: Fields) -> list[Demand]:
    found: list[Demand] = []
    for consumer in HeartbeatData.decode(request.body).consumer_data_set:
        found += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            found += _topic(subscription.topic, Right.SUB)
    return found


def _lock(request: Command, _: Fields) -> list[Demand]:
    return _group(LockBatchRequestBody.decode(request.body).consumer_group)


_READERS: Final[dict[int, Callable[[Command, Fields], list[Demand]]]] = {
    RequestCode.SEND_MESSAGE: _send("topic"),
    RequestCode.SEND_MESSAGE_V2: _send("b"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _consume,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.QUERY_CONSUMER_OFFSET: _consume,
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _member,
    RequestCode.UNREGISTER_CLIENT: _member,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
}
