"""The three `sysFlag` words: of a message, of a pull request, of a topic.

Message bits::

    0x001  body is compressed        0x010  born host is IPv6
    0x002  several tags              0x020  store host is IPv6
    0x00c  transaction: 0 none, 4 prepared, 8 commit, 12 rollback
    0x700  compression type: 0 zlib, 0x100 LZ4, 0x200 zstd, 0x300 zlib (RocketMQ 5.0 and later)
"""

from __future__ import annotations

from typing import Final


class MessageSysFlag:
    """Bits of a message's sysFlag. Source: RocketMQ MessageSysFlag (compression types: 5.0)."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_NOT: Final = 0
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    COMPRESSION_TYPE_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300

    @staticmethod
    def transaction(sys_flag: int) -> int:
        """Return the transaction bits: one of the TRANSACTION values."""
        return sys_flag & MessageSysFlag.TRANSACTION_MASK

    @staticmethod
    def with_transaction(sys_flag: int, transaction: int) -> int:
        """Replace the transaction bits."""
        return (sys_flag & ~MessageSysFlag.TRANSACTION_MASK) | transaction


class PullSysFlag:
    """Bits of a pull request's sysFlag. Source: RocketMQ PullSysFlag."""

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION: Final = 0x4
    CLASS_FILTER: Final = 0x8


class TopicSysFlag:
    """Bits of a topic's topicSysFlag. Source: RocketMQ TopicSysFlag."""

    UNIT: Final = 0x1
    UNIT_SUB: Final = 0x2
