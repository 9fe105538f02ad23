"""The two ids of a message.

*Broker message id*, the ``msgId`` of a send response: hexadecimal of store host and physical offset::

    address 4 or 16 | port i32 | physical offset i64          32 or 56 digits

*Client unique id*, the property UNIQ_KEY, made before the message leaves its client (QUIRKS 25)::

    address 4 or 16 | process 2 | instance 4 | ms since the month began 4 | counter 2      32 or 56 digits

The month begins in the local time of the client, so its time zone is needed to read the time of an id.
Source: RocketMQ 4.6 MessageDecoder createMessageId, MessageClientIDSetter.
"""

from __future__ import annotations

import os
import re
import time
from struct import Struct
from typing import Final

from rocketpy.errors import LocalProtocolError, RemoteProtocolError

_OFFSET: Final = Struct(">q")
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_BYTE_DIGITS: Final = tuple(f"{number:02X}" for number in range(256))


def message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the broker message id. store_host: 8 or 20 bytes, as in the record."""
    return store_host.hex().upper() + _OFFSET.pack(physical_offset).hex().upper()


def decode_message_id(text: str) -> tuple[bytes, int]:
    """Return (store host, physical offset) of a broker message id.

    Raises RemoteProtocolError for a malformed id. A client unique id has the same form and is not detected.
    """
    try:
        data = bytes.fromhex(text)
    except (ValueError, TypeError):
        data = b""
    if len(data) not in {16, 28} or 2 * len(data) != len(text):
        raise RemoteProtocolError(
            f"{str(text)[:80]!r} is not a message id: it must have 32 or 56 hexadecimal digits"
        )
    return data[:-8], _OFFSET.unpack_from(data, len(data) - 8)[0]


def check_unique_id(text: object) -> None:
    """Raise RemoteProtocolError for a malformed client unique id."""
    if not isinstance(text, str) or len(text) not in {32, 56} or not _HEX.fullmatch(text):
        raise RemoteProtocolError(
            f"{str(text)[:80]!r} is not a unique id: it must have 32 or 56 hexadecimal digits"
        )


class UniqueIdGenerator:
    """Generates client unique ids in one process; not thread-safe.

    address: of the client, 4 or 16 bytes. process: the low half of the pid (RocketMQ writes the high half,
    mostly 0). instance: random (RocketMQ writes a hash of the class loader), so that two containers with
    equal address and pid differ. A forked child needs a new generator.
    """

    def __init__(self, address: bytes, *, process: int | None = None, instance: int | None = None) -> None:
        if len(address) not in {4, 16}:
            raise LocalProtocolError(f"an IP address has 4 or 16 bytes, not {len(address)}")
        process = os.getpid() if process is None else process
        instance = int.from_bytes(os.urandom(4), "big") if instance is None else instance
        self._prefix = f"{address.hex().upper()}{process & 0xFFFF:04X}{instance & 0xFFFFFFFF:08X}"
        self._counter = 0
        self._start_ms = 0
        self._end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return a new id. now_ms: ms since 1970. Up to 65,536 ids of one millisecond differ."""
        if not self._start_ms <= now_ms < self._end_ms:
            self._start_month(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return "%s%08X%04X" % (self._prefix, now_ms - self._start_ms, counter)  # noqa: UP031 - faster than an f-string

    def take(self, now_ms: int, count: int) -> list[str]:
        """Return `count` new ids of one millisecond."""
        if not self._start_ms <= now_ms < self._end_ms:
            self._start_month(now_ms)
        stem = f"{self._prefix}{now_ms - self._start_ms:08X}"
        counter = self._counter
        self._counter = (counter + count) & 0xFFFF
        ids: list[str] = []
        while len(ids) < count:  # the counters of a run have the same upper byte
            run = stem + _BYTE_DIGITS[counter >> 8 & 0xFF]
            low = counter & 0xFF
            ids += [run + digits for digits in _BYTE_DIGITS[low : low + count - len(ids)]]
            counter += 256 - low
        return ids

    def _start_month(self, now_ms: int) -> None:
        self._start_ms, self._end_ms = month_start_ms(now_ms), month_start_ms(now_ms, 1)


def month_start_ms(now_ms: int, later: int = 0) -> int:
    """Return the start of the month of `now_ms`, or of `later` months after it, in local time, in ms."""
    year, month, *_ = time.localtime(now_ms / 1000)
    return int(time.mktime((year, month + later, 1, 0, 0, 0, 0, 0, -1))) * 1000
