"""The rights that a request needs, which depend on the topics, groups and records that it names.

| request                              | needs                                                               |
|--------------------------------------|---------------------------------------------------------------------|
| names a topic                        | PUB to send to it, SUB to read it, either one to query it           |
| names ``%RETRY%g``                   | the same as the group g                                             |
| sends a copy to ``%RETRY%g``         | SUB for the group g, and for the topic in its RETRY_TOPIC           |
| names a consumer group               | SUB for the group                                                   |
| sends or ends a half message         | PUB for its real topic, and any right for its producer group        |
| names a record by offset or id       | SUB for the real topic of that record, and SUB for the group of a   |
|                                      | record that a consumer sent back                                    |
| has the client id of the sender      | that no connection of another account has the same client id        |
| replies to a client                  | SUB for a topic that the requesting account may send to             |

Source: PlainAccessValidator of RocketMQ 4.6.0. Differs: there, request codes without a topic or a group need
only a valid signature, and so do batches, offset queries and queue locks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from rocketpy.message import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
)
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
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.security.accounts import Right
from rocketpy_broker.security.lookups import BrokerLookups
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC
from rocketpy_broker.services.pop.formats import normal_topic
from rocketpy_broker.services.timers.messages import TIMER_TOPIC

_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_ANY: Final = Right.PUB | Right.SUB


class Subject(Enum):
    """Kind of the name in a required right."""

    TOPIC = "topic"
    GROUP = "group"
    CLIENT = "client id"
    """Client id of the sender."""
    REQUESTER = "replies to client"
    """Client id of the requester, which receives the reply."""


class RequiredRight(NamedTuple):
    """One right that an account needs."""

    name: str
    kind: Subject
    right: Right
    """One of its bits is enough; ignored for CLIENT and REQUESTER."""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


_Required = list[RequiredRight]


class _Request(NamedTuple):
    """A request to check."""

    command: Command
    fields: Mapping[str, str]
    lookups: BrokerLookups | None
    """None on a name server."""

    def field(self, name: str) -> str | None:
        return self.fields.get(name)

    def record_at(self, offset: int) -> Record | None:
        return None if self.lookups is None else self.lookups.find(offset)


Rule = Callable[[_Request], _Required]


def has_rule(code: int) -> bool:
    """Whether there is a rule for a request code. Without one, only administrators may use the code."""
    return code in _RULES


def required_rights(
    request: Command, fields: Mapping[str, str], lookups: BrokerLookups | None
) -> list[RequiredRight]:
    """Return every right that a request needs besides a valid signature. fields: its ext fields.

    Raises RemoteProtocolError for a header or body that cannot be decoded, StoreError.
    """
    rule = _RULES.get(request.code)
    return [] if rule is None else rule(_Request(request, fields, lookups))


# -- names ------------------------------------------------------------------------------------


def _topic(name: str | None, right: Right) -> _Required:
    """Return the right for a topic, or for the group of a retry topic; nothing for a missing field."""
    if name is None:
        return []
    group = name.removeprefix(RETRY_TOPIC_PREFIX)
    return [RequiredRight(group, Subject.TOPIC if group == name else Subject.GROUP, right)]


def _group(name: str | None, right: Right = Right.SUB) -> _Required:
    return [] if name is None else [RequiredRight(name, Subject.GROUP, right)]


def _client(client_id: str | None) -> _Required:
    return [] if client_id is None else [RequiredRight(client_id, Subject.CLIENT, _ANY)]


# -- records ----------------------------------------------------------------------------------


def rights_to_read(record: Record) -> list[RequiredRight]:
    """Return the rights that an account needs to read a stored record."""
    topic = record.topic
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        topic = _property(record, props.PROPERTY_REAL_TOPIC) or topic
    found = _topic(topic, Right.SUB)
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        found += _topic(_property(record, props.PROPERTY_RETRY_TOPIC), Right.SUB)
    return found


def rights_to_end_transaction(half: Record) -> list[RequiredRight]:
    """Return the rights that an account needs to check, commit or roll back a half message."""
    return _topic(_property(half, props.PROPERTY_REAL_TOPIC) or HALF_TOPIC, Right.PUB) + _group(
        _property(half, props.PROPERTY_PRODUCER_GROUP), _ANY
    )


def _property(record: Record, name: str) -> str | None:
    value = props.find(record.properties, name.encode())
    return None if value is None else value.decode(errors="replace")


def _stored(request: _Request, offset: int) -> _Required:
    """Return the rights to read the record at an offset.

    The list is empty if there is no record: the handler then rejects the request.
    """
    record = request.record_at(offset)
    return [] if record is None else rights_to_read(record)


# -- requests ---------------------------------------------------------------------------------


def _nothing(_: _Request) -> _Required:
    return []


def _about_topic(field: str = "topic", right: Right = _ANY) -> Rule:
    return lambda request: _topic(request.field(field), right)


def _about_group(field: str, right: Right = Right.SUB) -> Rule:
    return lambda request: _group(request.field(field), right)


def _consume(topic: str = "topic", group: str = "consumerGroup", right: Right = Right.SUB) -> Rule:
    return lambda request: _topic(request.field(topic), right) + _group(request.field(group))


def _send(topic: str, properties: str) -> Rule:
    def rule(request: _Request) -> _Required:
        name = request.field(topic)
        found = _topic(name, Right.PUB)
        text = request.field(properties) or ""
        if name is not None and name.startswith(RETRY_TOPIC_PREFIX):
            sent = props.decode(text)
            if not props.RETRY_PROPERTIES.isdisjoint(sent):
                # A consumer sends a copy of a message that it has read. Its group gets it as RETRY_TOPIC.
                found = _topic(name, Right.SUB) + _topic(sent.get(props.PROPERTY_RETRY_TOPIC), Right.SUB)
        if props.PROPERTY_TRANSACTION_PREPARED in text:
            # The broker checks the transaction with any producer of that group, and trusts the result.
            found += _group(props.decode(text).get(props.PROPERTY_PRODUCER_GROUP), _ANY)
        return found

    return rule


def _reply(topic: str, properties: str) -> Rule:
    """Return the rule of replies. No account needs a right for the topic of stored replies."""

    def rule(request: _Request) -> _Required:
        name = request.field(topic)
        is_reply_topic = request.lookups is not None and name == request.lookups.reply_topic
        text = props.decode(request.field(properties) or "")
        client_id = text.get(props.PROPERTY_MESSAGE_REPLY_TO_CLIENT, "")
        required = RequiredRight(client_id, Subject.REQUESTER, Right.SUB)
        return [*([] if is_reply_topic else _topic(name, Right.PUB)), required]

    return rule


def _popped(name: str | None, group: str | None) -> _Required:
    """Return the rights for messages that a group pops; `name` may be one of its retry topics."""
    return _topic(normal_topic(name, group) if name and group else name, Right.SUB) + _group(group)


def _pop(request: _Request) -> _Required:
    return _popped(request.field("topic"), request.field("consumerGroup"))


def _batch_ack(request: _Request) -> _Required:
    found: _Required = []
    for ack in BatchAckMessageRequestBody.decode(request.command.body).acks:
        found += _popped(ack.topic, ack.consumer_group)
    return found


def _send_back(request: _Request) -> _Required:
    named = _topic(request.fields.get("originTopic", ""), Right.PUB) + _group(request.field("group"))
    return named + _stored(request, request.command.header_as(ConsumerSendMsgBackRequestHeader).offset)


def _view(request: _Request) -> _Required:
    return _stored(request, request.command.header_as(ViewMessageRequestHeader).offset)


def _end(request: _Request) -> _Required:
    """Return the rights to end a transaction.

    If the record is not a half message, only the producer group counts: the handler rejects the request.
    """
    found = _group(request.field("producerGroup"), _ANY)
    record = request.record_at(request.command.header_as(EndTransactionRequestHeader).commit_log_offset)
    is_half = record is not None and record.topic == HALF_TOPIC
    return found + (rights_to_end_transaction(record) if record and is_half else [])


def _resume(request: _Request) -> _Required:
    msg_id = request.command.header_as(ResumeCheckHalfMessageRequestHeader).msg_id
    record = request.record_at(decode_message_id(msg_id or "")[1])
    is_half = record is not None and record.topic == CHECK_MAX_TOPIC
    return rights_to_end_transaction(record) if record and is_half else []


def _consume_directly(request: _Request) -> _Required:
    msg_id = request.command.header_as(ConsumeMessageDirectlyResultRequestHeader).msg_id
    return _group(request.field("consumerGroup")) + _stored(request, decode_message_id(msg_id or "")[1])


def _heartbeat(request: _Request) -> _Required:
    """Return the rights of the consumers. Rights of producer groups are checked with their transactions."""
    heartbeat = HeartbeatData.decode(request.command.body)
    found = _client(heartbeat.client_id)
    for consumer in heartbeat.consumer_data_set:
        found += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            found += _topic(subscription.topic, Right.SUB)
    return found


def _unregister(request: _Request) -> _Required:
    return _client(request.field("clientID")) + _group(request.field("consumerGroup"))


def _check_client(request: _Request) -> _Required:
    body = CheckClientRequestBody.decode(request.command.body)
    return _group(body.group) + _topic(body.subscription_data.topic, Right.SUB)


def _lock(request: _Request) -> _Required:
    body = LockBatchRequestBody.decode(request.command.body)
    # Concurrent members lock for the group's retry topic: see rocketpy.consumer.group.queue_locks.
    found = _client(body.client_id) + _group(body.consumer_group.removeprefix(RETRY_TOPIC_PREFIX))
    for topic in dict.fromkeys(queue.topic for queue in body.mq_set):
        found += _topic(topic, Right.SUB)
    return found


def _assignment(request: _Request) -> _Required:
    body = QueryAssignmentRequestBody.decode(request.command.body)
    return _topic(body.topic, Right.SUB) + _group(body.consumer_group)


def _route(request: _Request) -> _Required:
    topic = request.field("topic")
    # Producers query the route of DEFAULT_TOPIC before they send to a topic that does not exist.
    if topic is None or topic == DEFAULT_TOPIC or topic.endswith(REPLY_TOPIC_SUFFIX):
        return []
    return _topic(topic, _ANY)


def _kv_config(request: _Request) -> _Required:
    is_order = request.field("namespace") == _ORDER_NAMESPACE
    return _topic(request.field("key"), _ANY) if is_order else []


_RULES: Final[dict[int, Rule]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic", "properties"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b", "i"),
    RequestCode.RECALL_MESSAGE: _about_topic("topic", Right.PUB),
    RequestCode.END_TRANSACTION: _end,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resume,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _consume(),
    RequestCode.LITE_PULL_MESSAGE: _consume(),
    RequestCode.POP_MESSAGE: _pop,
    RequestCode.NOTIFICATION: _pop,
    RequestCode.PEEK_MESSAGE: _pop,
    RequestCode.POLLING_INFO: _pop,
    RequestCode.ACK_MESSAGE: _pop,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _pop,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
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
    RequestCode.QUERY_ASSIGNMENT: _assignment,
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
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _about_group("group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _consume(group="group", right=_ANY),
    RequestCode.GET_TOPIC_CONFIG: _about_topic(),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _about_group("group"),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _nothing,
    RequestCode.GET_ROUTEINTO_BY_TOPIC: _route,
    RequestCode.GET_KV_CONFIG: _kv_config,
    RequestCode.GET_BROKER_CLUSTER_INFO: _nothing,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _nothing,
}
