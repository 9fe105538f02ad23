"""Sends a stored message again: to the retry topic of one group, or to any topic.

Source: RocketMQ 4.6 mqadmin's queryMsgById -s, and SendMessageProcessor handleRetryAndDLQ for retry topics.
Differs: drops the properties of the original send; otherwise the message would be delayed again.
"""

from __future__ import annotations

import logging
from typing import Final

from rocketpy.client.broker_api import require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import MessageInvalid, Outcome, RecordCorrupt, RocketError
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt
from rocketpy.producer.send.response import LessDurable, parse_response
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import VERSION_5_1_1, RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2, ViewMessageRequestHeader
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.compression import compress_if_worth
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX
from rocketpy.protocol.message.record import decode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult, SendStatus

log: Final = logging.getLogger("rocketpy.admin")

_TIMEOUT_MS: Final = 6000
_RETRIES_MAX: Final = 16
"""The maxReconsumeTimes of the request. With 0, the broker would store the copy as a dead letter.

Consumers send their own limit when they send the message back.
"""
_SEND_PROPERTIES: Final = (
    names.PROPERTY_DELAY_TIME_LEVEL,
    names.PROPERTY_REAL_TOPIC,
    names.PROPERTY_REAL_QUEUE_ID,
    names.PROPERTY_TRANSACTION_PREPARED,
    names.PROPERTY_WAIT_STORE_MSG_OK,
    names.DEAD_LETTER_REASON,
    *names.TIMER_PROPERTIES,
)
"""Properties of the original send: with them, the copy would be delayed, become a half message, not wait for
a flush, be rejected, or show an old reason."""
_CONSUMER_PROPERTIES: Final = (*names.RETRY_PROPERTIES, names.PROPERTY_CONSUME_START_TIMESTAMP)
"""Properties that only dead letters and messages that were sent back have."""


async def send_to_retries(
    client: ClientInstance, message: MessageExt, address: str, queue: MessageQueue, group: str, topic: str
) -> SendResult:
    """Send a copy of a message to a group's retry topic. Only this group gets it, with 0 retries counted.

    Args:
        client: The client instance that sends it.
        message: The message.
        address: The address of the queue's master.
        queue: A queue of the retry topic.
        group: The group, with its namespace.
        topic: The topic under which the group gets it, with its namespace.

    Raises:
        MessageInvalid: The message is damaged.
        RocketError: The message was not stored, or this is unknown; see `outcome`. With STORED, the broker
            has made it a dead letter of the group.
    """
    properties = _properties(message, _SEND_PROPERTIES)
    properties[names.PROPERTY_RETRY_TOPIC] = topic
    properties.setdefault(names.PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
    header = _header(message, queue, group, properties)
    header.max_reconsume_times = _RETRIES_MAX
    result, version = await _send(client, message, address, queue, header)
    if version >= VERSION_5_1_1:
        await _check_stored_for_retry(client, result, address, group)
    return result


async def _check_stored_for_retry(
    client: ClientInstance, result: SendResult, address: str, group: str
) -> None:
    """Raise RocketError if the broker has stored a copy as a dead letter.

    RocketMQ's brokers do so from 5.1.1 while a member of the group has locked a queue: they take the message
    for a failed one of an orderly group. The response does not tell.
    """
    _, offset = decode_message_id(result.offset_message_id)
    command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    try:
        response = require_success(await client.request(address, command, _TIMEOUT_MS), address)
        topic = decode(response.body, check_crc=False).topic
    except RocketError as error:
        log.info("where broker %s stored the copy for group %s is not known: %s", address, group, error)
        return
    if topic == DLQ_TOPIC_PREFIX + group:
        raise RocketError(
            f"broker {address} stored the copy of the message as a dead letter of group {group} again: "
            "brokers of RocketMQ 5.1.1 and later do so while a member has locked a queue, as orderly "
            "consumers do. Close the group's consumers, send the message again, then start them; the locks "
            "of a killed one last a minute",
            outcome=Outcome.STORED,
        )


async def send_to_topic(
    client: ClientInstance, message: MessageExt, address: str, queue: MessageQueue, group: str
) -> SendResult:
    """Send a copy of a message to a queue; every group of its topic gets it.

    Args:
        client: The client instance that sends it.
        message: The message.
        address: The address of the queue's master.
        queue: The queue; its topic has its namespace.
        group: The producer group, with its namespace.

    Raises:
        MessageInvalid: The message is damaged.
        RocketError: The message was not stored, or this is unknown; see `outcome`.
    """
    header = _header(message, queue, group, _properties(message, _SEND_PROPERTIES + _CONSUMER_PROPERTIES))
    result, _ = await _send(client, message, address, queue, header)
    return result


async def _send(
    client: ClientInstance,
    message: MessageExt,
    address: str,
    queue: MessageQueue,
    header: SendMessageRequestHeaderV2,
) -> tuple[SendResult, int]:
    """Return the result, and RocketMQ's number of the broker's version."""
    body, header.sys_flag = _body(message)
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body)
    # Sent once: a repeated request might store it twice.
    response = await client.connections.get(address).request(command, _TIMEOUT_MS)
    result = parse_response(response, queue, message.message_id)
    if result.status is not SendStatus.SEND_OK:
        client.shared(_less_durable).record((result,))
    return result, response.version


def _less_durable(_client: ClientInstance) -> LessDurable:
    return LessDurable()


def _header(
    message: MessageExt, queue: MessageQueue, group: str, properties: dict[str, str | None]
) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=names.encode(properties),
        reconsume_times=0,
    )


def _body(message: MessageExt) -> tuple[bytes, int]:
    """Return the body to send for a message, and the compression bits of its sysFlag."""
    if isinstance(message.decode_error, RecordCorrupt):
        raise MessageInvalid(f"{message} is damaged and cannot be sent again: {message.decode_error}")
    compression = message.sys_flag & MessageSysFlag.COMPRESSION_TYPE_MASK
    compressed = message.sys_flag & MessageSysFlag.COMPRESSED
    if compressed and message.decode_error is None:
        return compress_if_worth(message.body, compression)
    return message.body, compressed | compression


def _properties(message: MessageExt, dropped: tuple[str, ...]) -> dict[str, str | None]:
    properties: dict[str, str | None] = dict(message.properties)
    for name in dropped:
        properties.pop(name, None)
    return properties
