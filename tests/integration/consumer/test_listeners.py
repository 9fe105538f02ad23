"""Listeners of consumers are notified of pulls, handler calls and messages that are sent back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketpy import (
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    ProcessEvent,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    ReceiveEvent,
    SettleEvent,
)
from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.telemetry import listeners as listening
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, Seen, of_topic, send
from tests.waiting import until


class Notes:
    """Telemetry, and its listeners, that record events. is_on: whether they are exported."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self.received_events: list[ReceiveEvent] = []
        self.settled_events: list[SettleEvent] = []
        self.outcomes: list[tuple[bool, ConsumeOutcome]] = []

    def is_active(self) -> bool:
        return self.is_on

    def listener(self, _namespace: str) -> Any:
        return self

    send_listener = receive_listener = process_listener = settle_listener = listener

    def client_failed(self, client: str, error: BaseException) -> None: ...

    def received(self, event: ReceiveEvent) -> None:
        self.received_events.append(event)

    def settled(self, event: SettleEvent) -> None:
        self.settled_events.append(event)

    def process_started(self, event: ProcessEvent) -> None: ...

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        self.outcomes.append((event.succeeded, outcome))


async def test_pulls_of_records_are_reported(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Readers of many records would be missing in traces, and a pull that fails would look like none."""
    notes = Notes()
    queue = MessageQueue("T", "broker-a", 0)
    for text in ("one", "two", "three"):
        await producer.send(Message("T", text.encode()), queue=queue)
    unknown = MessageQueue("T", "broker-a", 99)
    async with PullConsumer("readers", cluster.namesrv_address, listeners=[notes]) as consumer:
        await consumer.pull_records(queue, [(0, 2), (2, 1), (3, 1)])
        await consumer.pull_records(unknown, [(0, 1)])
        client_id = notes.received_events[0].client_id
    *found, failed = notes.received_events
    ends = [event.end for event in found]
    assert all(isinstance(end, list) for end in ends)
    assert [[message.body for message in end] for end in ends if isinstance(end, list)] == [
        [b"one", b"two"],
        [b"three"],
        [],
    ]
    assert {(event.queue, event.group) for event in found} == {(queue, "readers")}
    assert client_id
    assert (failed.queue, type(failed.end)) == (unknown, BrokerError)


@pytest.mark.parametrize("records", [False, True], ids=["pull", "pull_records"])
async def test_telemetry_that_is_switched_on_later_gets_pulls(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, records: bool
) -> None:
    """A reader that started before its exporter would never be seen in traces."""
    monkeypatch.setattr(listening, "_CHECK_INTERVAL_S", 0)
    telemetry: Any = Notes(is_on=False)
    await send(producer, "x")
    queue = MessageQueue("T", "broker-a", 0)
    async with PullConsumer("readers", cluster.namesrv_address, telemetry=telemetry) as consumer:

        async def pull() -> None:
            await (consumer.pull_records(queue, [(0, 1)]) if records else consumer.pull(queue, 0))

        await pull()
        assert not telemetry.received_events
        telemetry.is_on = True
        await pull()
        assert len(telemetry.received_events) == 1


async def test_a_message_that_cannot_be_sent_back_is_reported(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A trace would not show why a failed message is not redelivered."""
    telemetry: Any = Notes()
    handlers = cluster.brokers[0]._endpoint._handlers
    del handlers[RequestCode.CONSUMER_SEND_MSG_BACK]

    def fails(_: MessageExt) -> ConsumeResult:
        handlers.pop(RequestCode.SEND_MESSAGE_V2, None)  # which the copy is sent by
        return ConsumeResult.LATER

    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        Seen(fails),
        config=PushConfig(consume_from=FIRST),
        telemetry=telemetry,
    )
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: of_topic(consumer, "%RETRY%g"))
        await send(producer, "x")
        await until(lambda: telemetry.settled_events)
    event = telemetry.settled_events[0]
    assert (event.message.body, event.address) == (b"x", None)
    assert [type(error) for error in (event.first_error, event.error)] == [BrokerError, BrokerError]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_handler_that_takes_longer_than_its_timeout_is_reported(
    cluster: EmbeddedCluster, producer: Producer, is_late: bool
) -> None:
    """A message that is handled twice because its handler was late would look like a success."""
    notes = Notes()
    timeout_ms = 50 if is_late else 600_000
    await send(producer, "x")

    async def handle(message: MessageExt) -> None:
        if is_late and not message.reconsume_times:
            await asyncio.sleep(2 * timeout_ms / 1000)

    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        handle,
        config=PushConfig(consume_from=FIRST, consume_timeout_ms=timeout_ms),
        listeners=[notes],
    )
    consumer.subscribe("T")
    outcome = ConsumeOutcome.TIME_OUT if is_late else ConsumeOutcome.SUCCESS
    async with consumer:
        await until(lambda: (True, outcome) in notes.outcomes)
