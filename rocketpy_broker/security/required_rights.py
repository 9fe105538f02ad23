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

A user of ACL 2.0 needs the action of the same name, and for a query the action Get is also enough. It needs
no right for its producer group, and to send a message back it need not be allowed to send to its topic.
Source: DefaultAuthorizationContextBuilder of RocketMQ 5.3.3. Differs: there, requests without a topic, a
group or an annotation need only a valid signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocketpy.message import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
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
from rocketpy_broker.security.lookups import BrokerLookups
from rocketpy_broker.security.rights import RequiredRight, Right, Subject
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC
from rocketpy_broker.services.pop.formats import normal_topic
from rocketpy_broker.services.timers.messages import TIMER_TOPIC

_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_ANY: Final = Right.PUB | Right.SUB
_READ: Final = Right.SUB | Right.GET
_QUERY: Final = Right.PUB | Right.SUB | Right.GET


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


def _topic(name: str | None, right: Right, actions: Right | None = None) -> _Required:
    """Return the right for a topic, or for the group of a retry topic; nothing for a missing field.

    actions: See `RequiredRight`. None: the same as `right`.
    """
    if name is None:
        return []
    group = name.removeprefix(RETRY_TOPIC_PREFIX)
    kind = Subject.TOPIC if group == name else Subject.GROUP
    return [RequiredRight(group, kind, right, right if actions is None else actions)]


def _group(name: str | None, right: Right = Right.SUB, actions: Right | None = None) -> _Required:
    wanted = right if actions is None else actions
    return [] if name is None else [RequiredRight(name, Subject.GROUP, right, wanted)]


def _producer_group(name: str | None) -> _Required:
    """Return the right to act as a producer group. ACL 2.0 has none: the right to the topic is enough."""
    return _group(name, _ANY, Right.DENY)


def _client(client_id: str | None) -> _Required:
    return [] if client_id is None else [RequiredRight(client_id, Subject.CLIENT, _ANY, _ANY)]


# -- records ----------------------------------------------------------------------------------


def rights_to_read(record: Record) -> list[RequiredRight]:
    """Return the rights that an account needs to read a stored record."""
    topic = record.topic
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        topic = _property(record, props.PROPERTY_REAL_TOPIC) or topic
    found = _topic(topic, Right.SUB, _READ)
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        found += _topic(_property(record, props.PROPERTY_RETRY_TOPIC), Right.SUB, _READ)
    return found


def rights_to_end_transaction(half: Record) -> list[RequiredRight]:
    """Return the rights that an account needs to check, commit or roll back a half message."""
    return _topic(_property(half, props.PROPERTY_REAL_TOPIC) or HALF_TOPIC, Right.PUB) + _producer_group(
        _property(half, props.PROPERTY_PRODUCER_GROUP)
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


def _about_topic(field: str = "topic", right: Right = _ANY, action: Right = Right.GET) -> Rule:
    """Return the rule of requests about a topic. action: is also enough, in ACL 2.0."""
    return lambda request: _topic(request.field(field), right, right | action)


def _about_group(field: str, right: Right = Right.SUB, action: Right = Right.GET) -> Rule:
    return lambda request: _group(request.field(field), right, right | action)


def _consume(
    topic: str = "topic",
    group: str = "consumerGroup",
    right: Right = Right.SUB,
    action: Right = Right.GET,
) -> Rule:
    return lambda request: (
        _topic(request.field(topic), right, right | action)
        + _group(request.field(group), Right.SUB, Right.SUB | action)
    )


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
            found += _producer_group(props.decode(text).get(props.PROPERTY_PRODUCER_GROUP))
        return found

    return rule


def _reply(topic: str, properties: str) -> Rule:
    """Return the rule of replies. No account needs a right for the topic of stored replies."""

    def rule(request: _Request) -> _Required:
        name = request.field(topic)
        is_reply_topic = request.lookups is not None and name == request.lookups.reply_topic
        text = props.decode(request.field(properties) or "")
        client_id = text.get(props.PROPERTY_MESSAGE_REPLY_TO_CLIENT, "")
        required = RequiredRight(client_id, Subject.REQUESTER, Right.SUB, Right.SUB)
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
    # A consumer of 4.6.0 needs the right to send to the topic. In ACL 2.0 it needs only the right to read it.
    named = _topic(request.fields.get("originTopic", ""), Right.PUB, Right.PUB | Right.SUB)
    named += _group(request.field("group"))
    return named + _stored(request, request.command.header_as(ConsumerSendMsgBackRequestHeader).offset)


def _view(request: _Request) -> _Required:
    return _stored(request, request.command.header_as(ViewMessageRequestHeader).offset)


def _end(request: _Request) -> _Required:
    """Return the rights to end a transaction.

    If the record is not a half message, only the producer group counts: the handler rejects the request.
    """
    found = _producer_group(request.field("producerGroup"))
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
    return _topic(topic, _ANY, _QUERY)


def _kv_config(request: _Request) -> _Required:
    is_order = request.field("namespace") == _ORDER_NAMESPACE
    return _topic(request.field("key"), _ANY, _QUERY) if is_order else []


# -- requests of administrators ---------------------------------------------------------------


def _on_cluster(action: Right) -> Rule:
    return lambda _: [RequiredRight("", Subject.CLUSTER, action, action)]


def _on_topic(action: Right, field: str = "topic") -> Rule:
    return lambda request: _topic(request.fields.get(field, ""), action)


def _on_both(action: Right, group: str, topic: str = "topic") -> Rule:
    return lambda request: (
        _topic(request.field(topic), action) + _group(request.fields.get(group, ""), action)
    )


def _create_topics(request: _Request) -> _Required:
    found = CreateTopicListRequestBody.decode(request.command.body).topic_config_list
    return [right for config in found for right in _topic(config.topic_name, Right.CREATE)]


def _create_group(request: _Request) -> _Required:
    return _group(SubscriptionGroupConfig.decode(request.command.body).group_name, Right.CREATE)


def _create_groups(request: _Request) -> _Required:
    found = SubscriptionGroupList.decode(request.command.body).group_config_list
    return [right for config in found for right in _group(config.group_name, Right.CREATE)]


_ADMINISTRATIVE: Final[dict[int, Rule]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _on_topic(Right.CREATE),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _create_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: _on_topic(Right.DELETE),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _create_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _create_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: lambda request: _group(
        request.fields.get("groupName", ""), Right.DELETE
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _on_both(Right.UPDATE, "group"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _on_both(Right.UPDATE, "group"),
    RequestCode.CLONE_GROUP_OFFSET: lambda request: (
        _on_both(Right.UPDATE, "destGroup")(request) + _group(request.field("srcGroup"), Right.GET)
    ),
    RequestCode.QUERY_CONSUME_QUEUE: lambda request: (
        _topic(request.fields.get("topic", ""), Right.GET) + _group(request.field("consumerGroup"), Right.GET)
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda request: _group(
        request.fields.get("consumerGroup", ""), Right.SUB
    ),
    **dict.fromkeys(
        (
            RequestCode.RESUME_CHECK_HALF_MESSAGE, RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.UPDATE_BROKER_CONFIG, RequestCode.SET_MESSAGE_REQUEST_MODE,
            RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER,
            RequestCode.AUTH_DELETE_USER, RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL,
            RequestCode.AUTH_DELETE_ACL, RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER,
            RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.UPDATE_NAMESRV_CONFIG,
        ),
        _on_cluster(Right.UPDATE),
    ),
    **dict.fromkeys(
        (
            RequestCode.GET_BROKER_CONSUME_STATS, RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_ALL_PRODUCER_INFO, RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER,
            RequestCode.AUTH_GET_ACL, RequestCode.AUTH_LIST_ACL, RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS, RequestCode.GET_KVLIST_BY_NAMESPACE,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER,
            RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, RequestCode.GET_NAMESRV_CONFIG,
            RequestCode.QUERY_DATA_VERSION, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        ),
        _on_cluster(Right.GET),
    ),
}  # fmt: skip
"""What a user of ACL 2.0 needs who is not of the type Super.

Source: the annotations of RocketMQ 5.3.3's headers. Differs: there, a request code without an annotation
needs no right. Here, one that is not in this table needs a user of the type Super: the registration of a
broker.
"""


def administrative_rights(request: Command, fields: Mapping[str, str]) -> list[RequiredRight] | None:
    """Return the rights that a user needs for a request of administrators.

    None: the user must be of the type Super.
    Raises RemoteProtocolError for a body that cannot be decoded.
    """
    rule = _ADMINISTRATIVE.get(request.code)
    return None if rule is None else rule(_Request(request, fields, None))


_RULES: Final[dict[int, Rule]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic", "properties"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b", "i"),
    RequestCode.RECALL_MESSAGE: _about_topic("topic", Right.PUB, Right.PUB),
    RequestCode.END_TRANSACTION: _end,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resume,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _consume(action=Right.SUB),
    RequestCode.LITE_PULL_MESSAGE: _consume(action=Right.SUB),
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
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume(action=Right.UPDATE),
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
