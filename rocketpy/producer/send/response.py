"""From a broker's answer to results, or to an error that says what became of the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rocketpy.errors import BrokerError, Outcome, RemoteProtocolError, Retry
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult, SendStatus

STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Response codes that mean stored. Source: RocketMQ MQClientAPIImpl processSendResponse."""

REFUSALS: Final[dict[int, tuple[Outcome, Retry]]] = {
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
_ACL_REMARK: Final = "org.apache.rocketmq.acl."
"""How RocketMQ begins when its ACL refuses a request (QUIRKS 31): a SYSTEM_ERROR before anything is done."""
_decode_header: Final = msgspec.json.Decoder(SendMessageResponseHeader, strict=False).decode
_UNKNOWN_REFUSAL: Final = (Outcome.UNKNOWN, Retry.NONE)
_DEFAULT_REGION: Final = "DefaultRegion"
_SEND_OK: Final = SendStatus.SEND_OK


def parse_response(answer: Command, queue: MessageQueue, message_id: str) -> SendResult:
    """The result of one message. Raises BrokerError, RemoteProtocolError."""
    status = _SEND_OK if answer.code == 0 else STATUSES.get(answer.code)
    if status is None:
        raise refusal(answer, queue.broker_name)
    header = _read_header(answer)
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
    )


def _read_header(answer: Command) -> SendMessageResponseHeader:
    """`Command.header_as`, without its steps on the way of every JSON answer."""
    ext = answer.ext
    if type(ext) is bytes and answer.header is None:
        try:
            return _decode_header(ext)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            pass  # said in full below
    return answer.header_as(SendMessageResponseHeader)


def parse_batch_response(
    answer: Command, queue: MessageQueue, message_ids: Sequence[str]
) -> list[SendResult]:
    """The results of a batch, one a message: the answer has all broker ids and the first queue offset.

    Raises BrokerError, RemoteProtocolError.
    """
    first = parse_response(answer, queue, message_ids[0])
    broker_ids = first.offset_message_id.split(",")
    if len(broker_ids) != len(message_ids):
        raise RemoteProtocolError(
            f"{queue.broker_name} answered a batch of {len(message_ids)} with {len(broker_ids)} ids"
        )
    return [
        SendResult(
            first.status,
            message_id,
            broker_id,
            first.queue,
            first.queue_offset + index,
            first.transaction_id,
            first.region,
            first.trace_on,
        )
        for index, (message_id, broker_id) in enumerate(zip(message_ids, broker_ids, strict=True))
    ]


def refusal(answer: Command, broker: str) -> BrokerError:
    """The error that an answer to a send means."""
    outcome, retry = REFUSALS.get(answer.code, _UNKNOWN_REFUSAL)
    if answer.remark is not None and answer.remark.startswith(_ACL_REMARK):
        outcome = Outcome.NOT_SENT
    return BrokerError(answer.code, answer.remark, broker, outcome=outcome, retry=retry)
