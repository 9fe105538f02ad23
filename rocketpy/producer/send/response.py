"""Turns a broker's response to a send into results, or into an error with the outcome of the message."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from rocketpy.errors import BrokerError, Outcome, RemoteProtocolError, Retry
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import BatchResults, SendResult, SendStatus
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.producer")

STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Response codes of stored messages. Source: RocketMQ MQClientAPIImpl processSendResponse."""

_ERRORS: Final[dict[int, tuple[Outcome, Retry]]] = {
    # An exception inside a Java broker ends as SYSTEM_ERROR too, and it may come after storing.
    ResponseCode.SYSTEM_ERROR: (Outcome.UNKNOWN, Retry.OTHER_BROKER),
    ResponseCode.SYSTEM_BUSY: (Outcome.NOT_SENT, Retry.SAME_BROKER),
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (Outcome.NOT_SENT, Retry.NONE),
    ResponseCode.MESSAGE_ILLEGAL: (Outcome.NOT_SENT, Retry.NONE),
    ResponseCode.SERVICE_NOT_AVAILABLE: (Outcome.NOT_SENT, Retry.OTHER_BROKER),
    ResponseCode.NO_PERMISSION: (Outcome.NOT_SENT, Retry.OTHER_BROKER),
    ResponseCode.TOPIC_NOT_EXIST: (Outcome.NOT_SENT, Retry.REFRESH_ROUTE),
    ResponseCode.NO_BUYER_ID: (Outcome.NOT_SENT, Retry.OTHER_BROKER),
    ResponseCode.NOT_IN_CURRENT_UNIT: (Outcome.NOT_SENT, Retry.OTHER_BROKER),
}
_TIMER_REMARKS: Final = {
    "timer message illegal": (Retry.NONE, "choose an earlier time, or raise timerMaxDelaySec of the broker"),
    "timer message is under flow control": (Retry.OTHER_BROKER, "send it later, or choose another time"),
    "accurate timer message is not enabled": (
        Retry.OTHER_BROKER,
        "set timerWheelEnable=true in its broker.conf, or use delay_level",
    ),
}
"""Starts of the remarks of brokers of 5.x that refuse a timer message, and what helps. Nothing is stored."""
_FINAL_REMARKS: Final = (
    "org.apache.rocketmq.acl.",  # RocketMQ's ACL rejects the request (QUIRKS 31)
    "request queueId[",  # the topic has no such queue
    "the topic[",  # its name is reserved
)
"""Starts of the remarks of a SYSTEM_ERROR that the same request always gets. Nothing is stored then."""
_decode_header: Final = msgspec.json.Decoder(SendMessageResponseHeader, strict=False).decode
_UNKNOWN_ERROR: Final = (Outcome.UNKNOWN, Retry.NONE)
_DEFAULT_REGION: Final = "DefaultRegion"
_SEND_OK: Final = SendStatus.SEND_OK
_MEANINGS: Final = {
    SendStatus.FLUSH_DISK_TIMEOUT: "its disk is too slow; a power failure may lose the message",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "no slave copied it in time; a failure of the master may lose it",
    SendStatus.SLAVE_NOT_AVAILABLE: "no slave keeps up; a failure of the master may lose the message",
}


def are_ok(results: Sequence[SendResult]) -> bool:
    """Return whether all messages are stored as durably as their brokers are configured to."""
    return all(result.status is _SEND_OK for result in results)


class LessDurable:
    """Counts and logs the messages that brokers store with another status than SEND_OK."""

    def __init__(self) -> None:
        self.messages: int = 0
        """Number of these messages."""
        self._log = RateLimitedLog(log)

    def record(self, results: Sequence[SendResult]) -> None:
        """Record the results of one request, whose status is not SEND_OK."""
        self.record_status(results[0].status, results[0].queue, len(results))

    def record_status(self, status: SendStatus, queue: MessageQueue, count: int = 1) -> None:
        """Record messages with a status other than SEND_OK."""
        self.messages += count
        text = "broker %s stored a message of topic %s with %s instead of SEND_OK: %s"
        key = f"{queue.broker_name} {status.name}"
        self._log.warning(key, text, queue.broker_name, queue.topic, status.name, _MEANINGS[status])


def parse_response(response: Command, queue: MessageQueue, message_id: str) -> SendResult:
    """Return the result of one message. Raises BrokerError, RemoteProtocolError."""
    status = _SEND_OK if response.code == 0 else STATUSES.get(response.code)
    if status is None:
        raise broker_error(response, queue.broker_name)
    header = _read_header(response)
    if header.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    return SendResult(
        status,
        message_id,
        header.msg_id,
        queue,
        header.queue_offset,
        header.transaction_id,
        header.msg_region or _DEFAULT_REGION,
        header.trace_on is not False,
        1,
        header.recall_handle,
    )


def _read_header(response: Command) -> SendMessageResponseHeader:
    """Do what `Command.header_as` does, faster for JSON headers (`tools.bench.send_path` measures both)."""
    ext = response.ext
    if type(ext) is bytes and response.header is None:
        try:
            return _decode_header(ext)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            pass  # `header_as` raises with details
    return response.header_as(SendMessageResponseHeader)


def parse_batch_response(response: Command, queue: MessageQueue, message_ids: Sequence[str]) -> BatchResults:
    """Return the results of a batch, one for each message.

    The response has all offset message ids, and the queue offset of the first message.

    Raises BrokerError, RemoteProtocolError.
    """
    whole = parse_response(response, queue, message_ids[0])
    count = whole.offset_message_id.count(",") + 1
    if count != len(message_ids):
        raise RemoteProtocolError(
            f"{queue.broker_name} returned {count} ids for a batch of {len(message_ids)} messages"
        )
    return BatchResults(whole, message_ids)


def broker_error(response: Command, broker: str) -> BrokerError:
    """Return the error for an error response to a send."""
    outcome, retry = _ERRORS.get(response.code, _UNKNOWN_ERROR)
    if response.remark is not None and response.remark.startswith(_FINAL_REMARKS):
        outcome, retry = Outcome.NOT_SENT, Retry.NONE
    advice = ""
    for start, (timer_retry, help_) in _TIMER_REMARKS.items():
        if response.remark is not None and response.remark.startswith(start):
            outcome, retry, advice = Outcome.NOT_SENT, timer_retry, help_
    return BrokerError(response.code, response.remark, broker, outcome=outcome, retry=retry, advice=advice)
