"""What makes a message fit for a record, whatever log takes it; what a record's first bytes tell."""

from __future__ import annotations

from typing import Final

from rocketpy.errors import MessageInvalid, MessageTooLarge, RecordCorrupt, TornTail
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    MESSAGE_MAGIC,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_AT_V6,
    RecordView,
    peek,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag

NUL_IN_PROPERTIES: Final = (
    "a property holds U+0000; recovery could not tell it from a sector that never reached the disk"
)
TIMESTAMP_BYTES: Final = 88
"""So much of a record's start tells when it was stored."""
_V6_EXTRA: Final = 12


def store_host_flag(host: bytes) -> int:
    """Return the bit of sysFlag that says of what kind this broker's address is."""
    return MessageSysFlag.STORE_HOST_V6 if len(host) == 20 else 0


def with_hosts(sys_flag: int, size: int, born_host: bytes, store_flag: int) -> tuple[int, int]:
    """Return sysFlag and size of a record with these hosts. Raises MessageInvalid."""
    if len(born_host) == 20:
        sys_flag |= MessageSysFlag.BORN_HOST_V6
        size += _V6_EXTRA
    elif len(born_host) != 8:
        raise MessageInvalid(f"born host of {len(born_host)} bytes; 8 for IPv4, 20 for IPv6")
    if store_flag:
        sys_flag |= store_flag
        size += _V6_EXTRA
    return sys_flag, size


def too_large(size: int, size_max: int, properties_bytes: int) -> MessageTooLarge:
    """Return the error for a record, or for properties, above a limit."""
    if properties_bytes > MAX_PROPERTIES_BYTES:
        return MessageTooLarge(f"properties of {properties_bytes} bytes, the limit is {MAX_PROPERTIES_BYTES}")
    return MessageTooLarge(f"record of {size} bytes, the limit is {size_max} (maxMessageSize)")


def peek_message(data: bytes) -> RecordView | None:
    """Return the message's record with which these bytes begin; None when they do not."""
    try:
        view = peek(data)
    except (RecordCorrupt, TornTail):
        return None
    return view if view.magic == MESSAGE_MAGIC else None


def timestamp_in(start: bytes | None) -> int:
    """Return when the record with these first bytes was stored, ms; -1 for no bytes."""
    if start is None:
        return -1
    born_v6 = int.from_bytes(start[36:40], "big") & MessageSysFlag.BORN_HOST_V6
    at = STORE_TIMESTAMP_AT_V6 if born_v6 else STORE_TIMESTAMP_AT
    return int.from_bytes(start[at : at + 8], "big", signed=True)
