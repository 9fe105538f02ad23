"""Checks open transactions: requests their state from the producers with CHECK_TRANSACTION_STATE.

A round runs every transactionCheckInterval; `half_messages.check_action` decides on each open half message.
Source: TransactionalMessageCheckService, DefaultTransactionalMessageCheckListener of RocketMQ 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import RocketError, StoreError, UsageError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import CheckTransactionStateRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.record import Record, encode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.model import TransactionConfig
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC, copy_to, real_queue
from rocketpy_broker.services.transactions.half_messages import CheckAction, check_action, check_count
from rocketpy_broker.services.transactions.transactions import OpenHalfMessage, TransactionService
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore
from rocketpy_broker.store.files.disk import Clock, system_clock
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.transactions")

_CHECK: Final = "check of transactions"
_SAVE: Final = "save of the progress of transactions"
_BATCH_MESSAGES: Final = 64
"""Half messages checked in one iteration of the event loop."""


class _HalfCopy(NamedTuple):
    """A copy of an open half message, in the half queue or in TRANS_CHECK_MAX_TIME_TOPIC."""

    half: OpenHalfMessage
    action: CheckAction
    properties: dict[str, str]
    receipt: AppendReceipt


class _BatchResult(NamedTuple):
    """Result of a batch of checks."""

    continues: bool
    """Later messages may be due."""
    copies: list[_HalfCopy]
    unread: StoreError | None
    """Why half messages could not be read. The others are checked."""
    failure: StoreError | None
    """Why it ended early."""


@dataclass(eq=False)
class TransactionChecker:
    """Checks open transactions."""

    store: MessageStore
    driver: StoreDriver
    transactions: TransactionService
    config: TransactionConfig
    tasks: Tasks
    _: KW_ONLY
    channels: Callable[[str, Record], Sequence[Channel]]
    """Returns the members of a producer group that may end a half message."""
    make_topic: Callable[[str], object]
    """Creates a topic of the broker itself, unless it exists."""
    on_written: Callable[[], None]
    """Called when copies are written, to dispatch them."""
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        self._turn = 0
        self._unsent: Counter[str] = Counter()
        """Number of checks in this round for which no producer was online, by group."""
        self._checking: PeriodicCall | None = None

    def start(self) -> None:
        """Start the periodic checks; nothing if they were started."""
        if self._checking is not None:
            return
        interval_s = self.config.check_interval_ms / 1000
        self._checking = self.tasks.every(interval_s, self._check_periodically, _CHECK)

    async def close(self, *, saves: bool = True) -> None:
        """Stop checking, and save the progress; see `DelayService.close`. The store must still be open."""
        if self._checking is None:
            return
        await self.tasks.cancel(self._checking.task)
        self._checking = None
        self.driver.jobs.ended(_CHECK)
        self.driver.jobs.ended(_SAVE)
        if saves:
            await self._save_progress()

    async def _check_periodically(self) -> None:
        try:
            await self.check()
            self.driver.jobs.ended(_CHECK)
        except StoreError as error:
            self.driver.jobs.ended(_CHECK, error)
            log.error("cannot check transactions: %s", error)

    async def check(self) -> None:
        """Check every open transaction, the oldest first. Raises StoreError.

        A half message that cannot be read does not keep the others from their checks.
        """
        transactions, unread = self.transactions, None
        self.make_topic(HALF_TOPIC)  # before the first transaction, as in RocketMQ: tools list it
        transactions.catch_up()
        offsets = sorted(transactions.table.open)
        for start in range(0, len(offsets), _BATCH_MESSAGES):
            result = self._check_batch(offsets[start : start + _BATCH_MESSAGES])
            await self._send_checks(result.copies)
            if result.failure is not None:
                raise result.failure
            unread = unread or result.unread
            if not result.continues:
                break
            await asyncio.sleep(0)
        for group, count in self._unsent.items():
            log.warning("no producer of group %s is online to check %d transactions", group, count)
        self._unsent.clear()
        await self._save_progress()
        if unread is not None:
            raise unread

    async def _save_progress(self) -> None:
        """Save the progress when the messages before it are flushed, so a power loss cannot lose a copy."""
        progress = self.transactions.table.progress()
        try:
            await self.driver.flush()
        except StoreError as error:
            self.driver.jobs.ended(_SAVE, error)
            log.error("cannot save the progress of transactions: %s", error)
            return
        self.driver.jobs.ended(_SAVE)
        await self.transactions.save_progress(progress)

    def _check_batch(self, offsets: list[int]) -> _BatchResult:
        """Check some half messages, and write the copies of those that are not too young."""
        now_ms = self.clock()
        copies: list[_HalfCopy] = []
        unread = failure = action = None
        try:
            for offset in offsets:
                try:
                    half = self.transactions.read(offset)
                except StoreError as error:
                    unread = error
                    continue
                if half is None:
                    continue  # it has ended meanwhile, or is lost
                action = self._check_one(half, now_ms, copies)
                if action is CheckAction.WAIT:
                    break
        except StoreError as error:
            failure = error  # copies appended before the error are still written
        self.store.write_out()
        self.on_written()
        for copy in copies:
            self._written(copy)
        return _BatchResult(action is not CheckAction.WAIT, copies, unread, failure)

    async def _send_checks(self, copies: Sequence[_HalfCopy]) -> None:
        """Send the requests to the producers once the copies are committed. Raises StoreError."""
        checked = [copy for copy in copies if copy.action is CheckAction.CHECK]
        if checked and self.driver.wait_for_commit is not None:
            await self.driver.wait_for_commit()
        for copy in checked:
            try:
                self._send_check(copy)
            except RocketError as error:
                log.warning("cannot check half message %d: %s", copy.receipt.queue_offset, error)

    def _check_one(self, half: OpenHalfMessage, now_ms: int, copies: list[_HalfCopy]) -> CheckAction:
        """Check one half message, and add its copy to `copies`. Raises StoreError."""
        properties = props.decode(half.record.properties)
        action = check_action(
            properties,
            half.record.born_timestamp,
            now_ms,
            self.config,
            self.store.config.retention.reserved_ms,
        )
        if action is not CheckAction.WAIT:
            message = self._copy(half, action, properties)
            try:
                copies.append(_HalfCopy(half, action, properties, self.store.append(message)))
            except UsageError as error:
                log.error("half message %d cannot be copied and is not checked: %s", half.offset, error)
        return action

    def _copy(self, half: OpenHalfMessage, action: CheckAction, properties: dict[str, str]) -> MessageInner:
        """Return the copy that replaces a half message."""
        topic = HALF_TOPIC
        if action is CheckAction.DISCARD:
            topic = CHECK_MAX_TOPIC
            self.make_topic(topic)
        elif action is CheckAction.CHECK:
            times = check_count(properties) + 1
            _set_if_room(properties, props.PROPERTY_TRANSACTION_CHECK_TIMES, str(times))
        elif props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET not in properties:
            _set_if_room(properties, props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.offset))
        message = copy_to(half.record, topic, 0)
        message.properties = props.encode(properties).encode()
        return message

    def _written(self, copy: _HalfCopy) -> None:
        half = copy.half
        if copy.action is CheckAction.DISCARD:
            log.error(
                "transaction of group %s, message %s, is discarded after %d checks; the message is now in %s",
                copy.properties.get(props.PROPERTY_PRODUCER_GROUP),
                copy.properties.get(props.PROPERTY_UNIQ_KEY),
                check_count(copy.properties),
                CHECK_MAX_TOPIC,
            )
            self.transactions.table.discard(half.offset)
            return
        self.transactions.replaced(half.offset, copy.receipt)

    # -- requests to producers ----------------------------------------------------------------

    def _send_check(self, copy: _HalfCopy) -> None:
        """Send a check to a producer. Raises RocketError."""
        group = copy.properties.get(props.PROPERTY_PRODUCER_GROUP, "")
        channel = self._channel(group, copy.half.record)
        if channel is None:
            self._unsent[group] += 1
            return
        record, receipt = copy.half.record, copy.receipt
        unique_id = copy.properties.get(props.PROPERTY_UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=receipt.physical_offset,
            msg_id=unique_id,
            transaction_id=unique_id,
            offset_msg_id=message_id(record.store_host, receipt.physical_offset),
        )
        body = encode(_for_producer(record, receipt, copy.properties))
        channel.oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, body))

    def _channel(self, group: str, half: Record) -> Channel | None:
        """Return a producer of the group, in round-robin order."""
        channels = [
            channel for channel in self.channels(group, half) if not channel.is_closed and channel.is_writable
        ]
        self._turn += 1
        return channels[self._turn % len(channels)] if channels else None


def _for_producer(record: Record, receipt: AppendReceipt, properties: dict[str, str]) -> Record:
    """Return the message for its producer: with its real topic and the offsets of the copy (QUIRKS 27)."""
    topic, queue_id = real_queue(record.properties)
    shown = properties.copy()
    _set_if_room(shown, props.PROPERTY_WAIT_STORE_MSG_OK, "false")
    text = props.encode(shown)
    return msgspec.structs.replace(
        record,
        topic=topic,
        queue_id=queue_id,
        queue_offset=receipt.queue_offset,
        physical_offset=receipt.physical_offset,
        properties=text.encode(),
    )


def _set_if_room(properties: dict[str, str], name: str, value: str) -> None:
    """Set a property if the record has room for it.

    If not, checks of the message are not counted, and only its age ends them.
    """
    text = props.encode({**properties, name: value})
    if len(text.encode()) <= props.MAX_PROPERTIES_BYTES:
        properties[name] = value
