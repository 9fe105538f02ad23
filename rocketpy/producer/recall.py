"""Recall: takes a timer message back before it is due (RECALL_MESSAGE).

Source: RocketMQ 5.3.3 DefaultMQProducerImpl recallMessage, RecallMessageProcessor. Differs: a handle of
another topic is refused before the request, and errors say what helps.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from rocketpy.client.broker_api import BrokerApi, broker_error, require_success
from rocketpy.client.namespace import unwrap, wrap
from rocketpy.errors import MessageInvalid
from rocketpy.message.message import check_topic
from rocketpy.protocol.codes import RequestCode, ResponseCode, version_name
from rocketpy.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.remoting.command import Command

_ADVICE: Final[dict[int, str]] = {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (
        "it cannot recall messages; brokers of rocketpy can, and those of RocketMQ from 5.3.2 on"
    ),
    ResponseCode.NO_PERMISSION: (
        "the account needs the right to publish to the topic, and the broker recallMessageEnable=true"
    ),
}
"""What helps, by response code."""


async def recall(api: BrokerApi, group: str, topic: str, text: str) -> str:
    """Recall a message; see `Producer.recall`. group: the producer group, with its namespace."""
    namespace = api.client.config.namespace
    name, handle = wrap(namespace, check_topic(topic)), RecallHandle.decode(text)
    if handle.topic != name:
        raise MessageInvalid(
            f"the recall handle is of a message of topic {unwrap(namespace, handle.topic)}, not of {topic}"
        )
    broker = handle.broker_name
    address, _ = await api.client.routes.find_broker(name, broker)
    connection = api.client.connections.get(address)
    await api.client.know(connection)
    if not connection.has_timers:  # one of 4.6.0 would not respond
        if connection.rejection is not None:
            raise broker_error(connection.rejection, broker)
        raise MessageInvalid(
            f"broker {broker} ({version_name(connection.version or 0)}) has no timers, so no message can be "
            "taken back from it"
        )
    header = RecallMessageRequestHeader(
        producer_group=group, topic=name, recall_handle=text, broker_name=broker
    )
    response = await api.client.request(
        address, Command.request(RequestCode.RECALL_MESSAGE, header), api.timeout_ms
    )
    advice = _ADVICE.get(response.code, "")
    if response.code == ResponseCode.ILLEGAL_OPERATION and 0 <= handle.deliver_ms <= time.time() * 1000:
        due = datetime.fromtimestamp(handle.deliver_ms / 1000, UTC).isoformat(" ", "seconds")
        advice = f"the message was due at {due} and cannot be taken back any more"
    return require_success(response, broker, advice).header_as(RecallMessageResponseHeader).msg_id
