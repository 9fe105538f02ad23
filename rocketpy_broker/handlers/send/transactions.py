"""END_TRANSACTION: a producer's decision about a half message. RESUME_CHECK_HALF_MESSAGE: an operator's.

Source: EndTransactionProcessor of RocketMQ 4.6.0. Differs: only the first decision counts (there, a
commit delivers again, even after a rollback), and only records of the half topic can be committed.
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass
from functools import partial

from rocketpy.errors import RocketError, StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.handlers.send.send import SendHandler, respond_when_stored
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC, copy_to, real_queue
from rocketpy_broker.services.transactions.half_messages import HalfMessage
from rocketpy_broker.services.transactions.transactions import TransactionService
from rocketpy_broker.store.files.disk import Clock, system_clock

log = logging.getLogger("rocketpy.broker.transactions")

_COMMIT = MessageSysFlag.TRANSACTION_COMMIT
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK


@dataclass(eq=False)
class TransactionHandler:
    """Ends transactions. Its records are written together with the sends of the same socket buffer."""

    transactions: TransactionService
    send: SendHandler
    _: KW_ONLY
    clock: Clock = system_clock

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume_check(self, channel: Channel, request: Command) -> Command | None:
        """Handle RESUME_CHECK_HALF_MESSAGE: check a discarded transaction again.

        Differs: only messages of TRANS_CHECK_MAX_TIME_TOPIC are accepted; 4.6.0 accepts any.
        """
        header = request.header_as(ResumeCheckHalfMessageRequestHeader)
        _, offset = decode_message_id(header.msg_id or "")
        record = self.send.stored_record(offset)
        if record is None or record.topic != CHECK_MAX_TOPIC:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"there is no message of {CHECK_MAX_TOPIC} at {offset}")
        properties = props.decode(record.properties)
        # The property is missing if the record had no room for it.
        if props.PROPERTY_TRANSACTION_CHECK_TIMES in properties:
            properties[props.PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
        # The producer no longer knows this offset.
        properties.pop(props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        message = copy_to(record, HALF_TOPIC, 0)
        message.properties = props.encode(properties).encode()

        self.send.append(message, respond_when_stored(channel, request))
        log.info("%s: transaction %s is checked again", channel.remote_address, record.physical_offset)
        return None

    @handles(RequestCode.END_TRANSACTION)
    def end(self, channel: Channel, request: Command) -> Command | None:
        """Handle END_TRANSACTION, a oneway request as clients send it (QUIRKS 27)."""
        header = request.header_as(EndTransactionRequestHeader)
        decision = header.commit_or_rollback
        if decision not in (_COMMIT, _ROLLBACK):  # the producer has not decided yet
            return request.reply()
        try:
            half = self._half(header)
            if isinstance(half, str):
                log.warning("END_TRANSACTION from %s: %s", channel.remote_address, half)
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=half)
            self._end(channel, request, header, half)
        except RocketError as error:
            log.error(
                "the transaction of half message %d is not ended: %s", header.tran_state_table_offset, error
            )
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return None

    def _half(self, header: EndTransactionRequestHeader) -> Record | str:
        """Return the half message of a request, or the reason why it is invalid. Raises StoreError."""
        record = self.send.stored_record(header.commit_log_offset)
        if record is None or record.topic != HALF_TOPIC:
            return "Find prepared transaction message failed"
        group = props.find(record.properties, props.PROPERTY_PRODUCER_GROUP.encode())
        if group != header.producer_group.encode():
            return "The producer group wrong"
        if record.queue_offset != header.tran_state_table_offset:
            return "The transaction state table offset wrong"
        if record.physical_offset != header.commit_log_offset:
            return "The commit log offset wrong"
        if not self.transactions.table.is_open(record.queue_offset):
            return f"the transaction of half message {record.queue_offset} has already ended"
        return record

    def _end(
        self, channel: Channel, request: Command, header: EndTransactionRequestHeader, half: Record
    ) -> None:
        """Append the committed message, then the op record: after a torn write, the transaction stays open.

        Raises RocketError; then the transaction is still open.
        """
        table = self.transactions.table
        newest, entry = table.end(half.queue_offset)
        try:
            if header.commit_or_rollback == _COMMIT:
                topic, queue_id = real_queue(half.properties)
                topics = self.send.topics
                queue_id = topics.queue_to_deliver(topic, queue_id, header.commit_log_offset)
                message = copy_to(half, topic, queue_id)
                message.sys_flag = MessageSysFlag.with_transaction(message.sys_flag, _COMMIT)
                message.prepared_transaction_offset = header.commit_log_offset
                self.send.append(message, _ignore)
            op = self.transactions.op_message(newest, self.clock())
            written = partial(self._written, channel, request, newest, entry)
            receipt = self.send.append(op, written)
        except RocketError:
            table.reopen(newest, entry)
            raise
        table.record_end(receipt.queue_offset, newest)

    def _written(
        self,
        channel: Channel,
        request: Command,
        newest: int,
        entry: HalfMessage | None,
        error: StoreError | None,
    ) -> None:
        if error is not None:
            log.error("the end of half message %d is not stored: %s", newest, error)
            self.transactions.table.reopen(newest, entry)
        else:
            self.transactions.catch_up_if_many()
        respond_when_stored(channel, request)(error)


def _ignore(error: StoreError | None) -> None:
    """Do nothing: the op record after the message has its own callback."""
