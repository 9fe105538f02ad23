"""What goes into the commit log, what comes back from an append, what is dispatched."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.log.queue_table import QueueCursor

NOT_IN_QUEUE: Final = MessageSysFlag.TRANSACTION_PREPARED
"""Prepared (4) and rolled-back (12) messages have this bit and enter no queue."""


class MessageInner(msgspec.Struct, gc=False):
    """One message on its way into the store: RocketMQ's MessageExtBrokerInner.

    properties: their text in UTF-8, as stored. born_host: address and port, 8 or 20 bytes. The IPv6 bits
    of sys_flag are the store's to set; its transaction bits decide whether the message enters its queue.
    is_copy: of a message that was taken before, so that maxMessageSize is not asked again.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\x00" * 8
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_copy: bool = False


class AppendReceipt(NamedTuple):
    """Where a message went; final only once `write_out` has returned.

    physical_offset, size: its record in the commit log, bytes. queue_offset: its number in its queue, 0
    for a prepared or rolled-back transactional message. store_timestamp: ms.
    """

    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


DispatchRequest = tuple[QueueCursor, int, int, int, int, int, bytes]
"""(queue, physical offset, size, store timestamp, queue offset, sys flag, properties) of one record.

A plain tuple, since one is made for every message.
"""
