"""Headers of transactions: END_TRANSACTION and CHECK_TRANSACTION_STATE are oneway (QUIRKS 27)."""

from __future__ import annotations

from rocketpy.protocol.headers.base import Header, Int32, Int64


class EndTransactionRequestHeader(Header, kw_only=True):
    """END_TRANSACTION (37). Source: RocketMQ EndTransactionRequestHeader."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    """Its physical offset."""
    commit_or_rollback: Int32
    """8 commit, 12 rollback, 0 unknown (`sysflag.MessageSysFlag`)."""
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), broker to producer. Source: RocketMQ CheckTransactionStateRequestHeader.

    The offsets name the newest copy of the half message and must be echoed by END_TRANSACTION.
    """

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323). Source: RocketMQ ResumeCheckHalfMessageRequestHeader."""

    msg_id: str | None = None
