"""What rights a request needs, by what is in it: the topics and groups that it names, or that the records
have which it points at.

| request                              | needs                                                               |
|--------------------------------------|---------------------------------------------------------------------|
| names a topic                        | PUB to send to it, SUB to read it, either to ask about it           |
| names ``%RETRY%g``                   | the same as the group g                                             |
| names a consumer group               | SUB for the group                                                   |
| sends a half message, or ends one    | PUB for its real topic, and any right for its producer group        |
| gives an offset or a message id      | SUB for the real topic of the record there, and SUB for the group   |
|                                      | of a record that was sent back                                      |
| names a client id as the sender's    | that no connection of another account has it                        |
| replies to a client                  | SUB for a topic that the asker may send to                          |

Source: PlainAccessValidator of RocketMQ 4.6.0. Differs: there any valid signature does for request codes that
name neither topic nor group, and for batches, offset queries and queue locks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from rocketpy.protocol.bodies import CheckClientRequestBody, HeartbeatData, LockBatchRequestBody
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.security.accounts import DLQ_PREFIX, RETRY_PREFIX, Right
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC

_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_MODEL_TOPIC: Final = "TBW102"
"""Producers ask for its route before they send to a topic that is not there."""
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
_ANY: Final = Right.PUB | Right.SUB

Fields = Mapping[str, str]


class Subject(Enum):
    """What a demand is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLIENT = "client id"
    """The id that a client gives itself."""
    REQUESTER = "replies to client"
    """The id of the client that a reply goes to."""


class RequiredPermission(NamedTuple):
    """One thing that an account must be allowed. right: any bit of it does; means nothing for client ids."""

    name: str
    kind: Subject
    right: Right

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


class Records(Protocol):
    """What a server knows of the things that requests point at."""

    reply_topic: str
    """Where replies are kept; every account may send them there."""

    def find(self, offset: int) -> Record | None:
        """The record at a physical offset; None when no readable queue has a record there."""


class _NoRecords:
    """A name server's."""

    reply_topic = ""

    def find(self, offset: int) -> Record | None:
        """None."""
        return None


NO_RECORDS: Final[Records] = _NoRecords()

Rule = Callable[[Command, Fields, Records], list[RequiredPermission]]


def has_rule(code: int) -> bool:
    """Whether it is known what a request code needs; without a rule only administrators may use it."""
    return code in _RULES


def required_permissions(
    request: Command, fields: Fields, records: Records = NO_RECORDS
) -> list[RequiredPermission]:
    """Every right that a request needs beside a valid signature. fields: its ext fields.

    Raises RemoteProtocolError for a header or body that cannot be read, StoreError.
    """
    read = _RULES.get(request.code)
    return [] if read is None else read(request, fields, records)


# -- names ------------------------------------------------------------------------------------


def _topic(name: str | None, right: Right) -> list[RequiredPermission]:
    """Of a topic; the retry topic of a group counts as the group. Nothing for a field that is not there."""
    if name is None:
        return []
    group = name.removeprefix(RETRY_PREFIX)
    return [RequiredPermission(group, Subject.TOPIC if group == name else Subject.GROUP, right)]


def _group(name: str | None, right: Right = Right.SUB) -> list[RequiredPermission]:
    return [] if name is None else [RequiredPermission(name, Subject.GROUP, right)]


def _client(client_id: str | None) -> list[RequiredPermission]:
    return [] if client_id is None else [RequiredPermission(client_id, Subject.CLIENT, _ANY)]


# -- records ----------------------------------------------------------------------------------


def permissions_to_read(record: Record) -> list[RequiredPermission]:
    """What an account must be allowed to see a stored record, or to have it delivered to it."""
    topic = record.topic
    if topic == SCHEDULE_TOPIC:
        topic = _property(record, props.PROPERTY_REAL_TOPIC) or topic
    found = _topic(topic, Right.SUB)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        found += _topic(_property(record, props.PROPERTY_RETRY_TOPIC), Right.SUB)
    return found


def permissions_to_end_transaction(half: Record) -> list[RequiredPermission]:
    """What an account must be allowed to be asked about a half message and to commit it or roll it back."""
    return _topic(_property(half, props.PROPERTY_REAL_TOPIC) or HALF_TOPIC, Right.PUB) + _group(
        _property(half, props.PROPERTY_PRODUCER_GROUP), _ANY
    )


def _property(record: Record, name: str) -> str | None:
    value = props.find(record.properties, name.encode())
    return None if value is None else value.decode(errors="replace")


def _stored(offset: int, records: Records) -> list[RequiredPermission]:
    """Nothing for an offset without a record: the handler says that there is none."""
    record = records.find(offset)
    return [] if record is None else permissions_to_read(record)


# -- requests ---------------------------------------------------------------------------------


def _nothing(*_: object) -> list[RequiredPermission]:
    return []


def _about_topic(field: str = "topic", right: Right = _ANY) -> Rule:
    return lambda _request, fields, _records: _topic(fields.get(field), right)


def _about_group(field: str, right: Right = Right.SUB) -> Rule:
    return lambda _request, fields, _records: _group(fields.get(field), right)


def _consume(topic: str = "topic", group: str = "consumerGroup", right: Right = Right.SUB) -> Rule:
    return lambda _request, fields, _records: _topic(fields.get(topic), right) + _group(fields.get(group))


def _send(topic: str, properties: str) -> Rule:
    def read(_: Command, fields: Fields, __: Records) -> list[RequiredPermission]:
        found = _topic(fields.get(topic), Right.PUB)
        text = fields.get(properties) or ""
        if props.PROPERTY_TRANSACTION_PREPARED in text:
            # Whoever is in that group is asked about it, and believed.
            found += _group(props.decode(text).get(props.PROPERTY_PRODUCER_GROUP), _ANY)
        return found

    return read


def _reply(topic: str, properties: str) -> Rule:
    """No account has a right of its own to the topic that replies are kept in."""

    def read(_: Command, fields: Fields, records: Records) -> list[RequiredPermission]:
        name = fields.get(topic)
        found = [] if name == records.reply_topic else _topic(name, Right.PUB)
        client_id = props.decode(fields.get(properties) or "").get(props.PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        return [*found, RequiredPermission(client_id or "", Subject.REQUESTER, Right.SUB)]

    return read


def _send_back(request: Command, fields: Fields, records: Records) -> list[RequiredPermission]:
    named = _topic(fields.get("originTopic", ""), Right.PUB) + _group(fields.get("group"))
    return named + _stored(request.header_as(ConsumerSendMsgBackRequestHeader).offset, records)


def _view(request: Command, _: Fields, records: Records) -> list[RequiredPermission]:
    return _stored(request.header_as(ViewMessageRequestHeader).offset, records)


def _end(request: Command, fields: Fields, records: Records) -> list[RequiredPermission]:
    """Of a record that is no half message nothing: the handler refuses it."""
    record = records.find(request.header_as(EndTransactionRequestHeader).commit_log_offset)
    is_half = record is not None and record.topic == HALF_TOPIC
    return _group(fields.get("producerGroup"), _ANY) + (
        permissions_to_end_transaction(record) if record and is_half else []
    )


def _resume(request: Command, _: Fields, records: Records) -> list[RequiredPermission]:
    msg_id = request.header_as(ResumeCheckHalfMessageRequestHeader).msg_id
    record = records.find(decode_message_id(msg_id or "")[1])
    return (
        permissions_to_end_transaction(record)
        if record is not None and record.topic == CHECK_MAX_TOPIC
        else []
    )


def _directly(request: Command, fields: Fields, records: Records) -> list[RequiredPermission]:
    msg_id = request.header_as(ConsumeMessageDirectlyResultRequestHeader).msg_id
    return _group(fields.get("consumerGroup")) + _stored(decode_message_id(msg_id or "")[1], records)


def _heartbeat(request: Command, *_: object) -> list[RequiredPermission]:
    """Producer groups need no right here: who may be asked about a half message is looked at then."""
    beat = HeartbeatData.decode(request.body)
    found = _client(beat.client_id)
    for consumer in beat.consumer_data_set:
        found += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            found += _topic(subscription.topic, Right.SUB)
    return found


def _unregister(_: Command, fields: Fields, __: Records) -> list[RequiredPermission]:
    return _client(fields.get("clientID")) + _group(fields.get("consumerGroup"))


def _check_client(request: Command, *_: object) -> list[RequiredPermission]:
    body = CheckClientRequestBody.decode(request.body)
    return _group(body.group) + _topic(body.subscription_data.topic, Right.SUB)


def _lock(request: Command, *_: object) -> list[RequiredPermission]:
    body = LockBatchRequestBody.decode(request.body)
    found = _client(body.client_id) + _group(body.consumer_group)
    for topic in dict.fromkeys(queue.topic for queue in body.mq_set):
        found += _topic(topic, Right.SUB)
    return found


def _route(_: Command, fields: Fields, __: Records) -> list[RequiredPermission]:
    topic = fields.get("topic")
    if topic is None or topic == _MODEL_TOPIC or topic.endswith(_REPLY_SUFFIX):
        return []
    return _topic(topic, _ANY)


def _kv_config(_: Command, fields: Fields, __: Records) -> list[RequiredPermission]:
    return _topic(fields.get("key"), _ANY) if fields.get("namespace") == _ORDER_NAMESPACE else []


_RULES: Final[dict[int, Rule]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic", "properties"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b", "i"),
    RequestCode.END_TRANSACTION: _end,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resume,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _consume(),
    RequestCode.QUERY_MESSAGE: _about_topic(right=Right.SUB),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.GET_MAX_OFFSET: _about_topic(),
    RequestCode.GET_MIN_OFFSET: _about_topic(),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _about_topic(),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _about_topic(),
    RequestCode.QUERY_CONSUMER_OFFSET: _consume(),
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume(),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _about_group("consumerGroup"),
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.GET_TOPIC_STATS_INFO: _about_topic(),
    RequestCode.GET_CONSUME_STATS: _consume(right=_ANY),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _about_topic(),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _consume(group="group", right=_ANY),
    RequestCode.QUERY_CORRECTION_OFFSET: _consume(group="compareGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _about_group("consumerGroup"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _about_group("producerGroup", _ANY),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _consume(group="group", right=_ANY),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _about_group("consumerGroup"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _directly,
    RequestCode.GET_TOPIC_CONFIG: _about_topic(),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _about_group("group"),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _nothing,
    RequestCode.GET_ROUTEINTO_BY_TOPIC: _route,
    RequestCode.GET_KV_CONFIG: _kv_config,
    RequestCode.GET_BROKER_CLUSTER_INFO: _nothing,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _nothing,
}
