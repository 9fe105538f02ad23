"""Mistakes that mypy must find: each line's `type: ignore` is needed, or mypy reports it as unused."""

from __future__ import annotations

from collections.abc import Sequence

from rocketpy import CompressionConfig, LocalTransactionState, Message, MessageQueue, Producer


def returns_a_number(_queues: Sequence[MessageQueue], _message: Message, _arg: object) -> int:
    """No selector."""
    return 1


async def commit(_half: Message) -> bool:
    """No local transaction: it returns True where a state is expected."""
    return True


async def mistakes(producer: Producer, message: Message) -> None:
    """Each would fail at run time, and mostly late."""
    await producer.send(message, selector=returns_a_number)  # type: ignore[arg-type]
    await producer.send_in_transaction(message)  # type: ignore[call-arg]
    await producer.send_in_transaction(message, local_transaction=commit)  # type: ignore[arg-type]
    await producer.send_in_transaction(message, local_transaction=LocalTransactionState.COMMIT)  # type: ignore[arg-type]
    await producer.request(message, timeout_ms="3")  # type: ignore[arg-type]
    await producer.create_topic(message)  # type: ignore[arg-type]
    producer.check_transactions(lambda: LocalTransactionState.COMMIT)  # type: ignore[misc, arg-type]
    CompressionConfig(type="gzip")  # type: ignore[arg-type]
