"""Traces: the reports of clients, joined by message."""

from __future__ import annotations

from rocketpy.admin import TracedDelivery
from rocketpy.admin.traces import collect_traces
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.record import Record, host_bytes
from rocketpy.protocol.message.trace import (
    Consumed,
    ConsumeOutcome,
    Consuming,
    MessageKind,
    Sent,
    TraceRecord,
    encode,
)

QUEUE = MessageQueue("RMQ_SYS_TRACE_TOPIC", "broker-a", 0)


def trace_message(*records: TraceRecord, client: str = "10.0.0.1", body: bytes | None = None) -> MessageExt:
    """A message of the trace topic."""
    body = encode(records).encode() if body is None else body
    record = Record(
        topic=QUEUE.topic, queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0,
        born_timestamp=0, born_host=host_bytes(client, 5000), store_timestamp=0, store_host=b"",
        reconsume_times=0, prepared_transaction_offset=0, body=body, properties=b"",
    )  # fmt: skip
    return MessageExt(record, QUEUE, body)


def sent(message_id: str, timestamp: int, keys: str | None = None) -> Sent:
    return Sent(
        timestamp, "r", "shop", "T", message_id, None, keys, "10.0.0.9:10911", 5, 3, MessageKind.NORMAL, "B"
    )


def test_reports_are_put_together_by_message_and_call() -> None:
    """An operator would see the calls of another message, or an end without its start."""
    messages = [
        trace_message(
            Consuming(120, "r", "billing", "R2", "A", 1, "k1"),
            Consumed("R2", "A", 7, True, "k1", ConsumeOutcome.SUCCESS),
            client="10.0.0.2",
        ),
        trace_message(Consuming(110, "r", "billing", "R1", "A", 0, "k1"), client="10.0.0.2"),
        trace_message(Consumed("R1", "A", 5, False, "k1", ConsumeOutcome.EXCEPTION), client="10.0.0.2"),
        trace_message(Consuming(130, "r", "search", "R3", "A", 0, "k1"), client="10.0.0.3"),
        trace_message(sent("C", 90, "k3"), sent("B", 101, "k2 k1"), sent("A", 100, "k1")),
    ]
    found = collect_traces(messages, "k1")
    assert found.unreadable == 0
    assert [message.message_id for message in found.messages] == ["A", "B"]
    first, second = found.messages
    assert [(send.report.timestamp, send.client) for send in first.sends] == [(100, "10.0.0.1")]
    assert first.deliveries == (
        TracedDelivery("billing", "10.0.0.2", 110, 1, 5, False, ConsumeOutcome.EXCEPTION),
        TracedDelivery("billing", "10.0.0.2", 120, 2, 7, True, ConsumeOutcome.SUCCESS),
        TracedDelivery("search", "10.0.0.3", 130, 1, None, None, None),
    )
    assert second.deliveries == ()
    assert [message.message_id for message in collect_traces(messages, "C").messages] == ["C"]


def test_what_cannot_be_read_is_counted() -> None:
    """One broken report would hide all others, or be lost silently."""
    broken = [trace_message(body=b"Pub\x01x\x02"), trace_message(body=b"\xff")]
    late = trace_message(Consumed("R1", "A", 5, True, None, ConsumeOutcome.SUCCESS), client="10.0.0.2")
    found = collect_traces([*broken, late], "A")
    assert found.unreadable == 2
    (message,) = found.messages
    assert message.deliveries == (
        TracedDelivery(None, "10.0.0.2", None, None, 5, True, ConsumeOutcome.SUCCESS),
    )
