"""The entry with which a broker begins its term: a record that no consumer sees.

It is a record of a system topic, marked as rolled back: neither RocketMQ 4.6.0 nor ours puts such a record
into a consume queue or the index, so it may be in a group of Java's brokers too.
"""

from __future__ import annotations

from typing import Final

from rocketpy.protocol.message.record import encode_record
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.files.disk import Clock

NO_OP_TOPIC: Final = "SELF_TEST_TOPIC"


class NoOp:
    """Makes them. host: of this broker, as in records: 8 or 20 bytes."""

    def __init__(self, clock: Clock, host: bytes = bytes(8)) -> None:
        self._clock = clock
        self.host = host

    def body(self, physical_offset: int) -> bytes:
        """Return the record for that place; all have the same size."""
        now_ms = self._clock()
        flag = MessageSysFlag.TRANSACTION_ROLLBACK
        if len(self.host) != 8:
            flag |= MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.BORN_HOST_V6
        return encode_record(
            NO_OP_TOPIC.encode(),
            0,
            0,
            0,
            physical_offset,
            flag,
            now_ms,
            self.host,
            now_ms,
            self.host,
            0,
            0,
            b"",
            b"",
        )
