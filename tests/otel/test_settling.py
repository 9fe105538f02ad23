"""Spans and metrics of acknowledgements to brokers: ends of transactions, and returned messages."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from rocketpy import (
    ClientConfig,
    ConsumeResult,
    Later,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    SettleEvent,
)
from rocketpy.errors import TransportError
from rocketpy.hooks import SettleListener
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_otel import OpenTelemetry
from tests.integration.sdk_peers import Names, Peer
from tests.mqproducer.place import BROKER_SETTINGS
from tests.otel.recorder import Recorder, attributes, parent_id, span_id
from tests.waiting import until

S = LocalTransactionState


def expected(operation: str, address: Address, **more: Any) -> dict[str, Any]:
    """The attributes of every such span, without the client's id. address: the broker's."""
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": "settle",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "broker-a/0",
        "messaging.rocketmq.namespace": "",
        "server.address": address.host,
        "server.port": address.port,
        "network.peer.address": address.host,
        "network.peer.port": address.port,
        **more,
    }


@pytest.mark.parametrize("state", [S.COMMIT, S.ROLLBACK])
async def test_the_end_of_a_transaction_is_a_span(state: LocalTransactionState) -> None:
    """A trace would show a half message, but not whether it was committed."""
    recorder = Recorder()
    tracer = recorder.tracers.get_tracer("test")
    async with (
        EmbeddedCluster() as cluster,
        Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer,
    ):
        address = cluster.brokers[0].address
        await producer.create_topic("T", 1)
        with tracer.start_as_current_span("order"):
            result = await producer.send_in_transaction(
                Message("T", b"half"), local_transaction=lambda _: state, check=lambda _: S.UNKNOWN
            )
    order, half, end = (recorder.span(name) for name in ("order", "send T", "end_transaction T"))
    assert (end.kind, end.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert parent_id(end) == span_id(order)
    assert [link.context.span_id for link in end.links] == [span_id(half)]
    found = attributes(end)
    assert found.pop("messaging.client.id") == attributes(half)["messaging.client.id"]
    more = {"rocketpy.transaction.state": state.name, "rocketpy.transaction.asked": False}
    more["messaging.message.id"] = result.message_id
    assert found == expected("end_transaction", address, **more)
    counted = {
        point["messaging.operation.type"]: count
        for point, count in recorder.points("messaging.client.operation.duration")
    }
    assert counted == {"send": 1, "settle": 1}


async def test_a_brokers_check_gets_its_response_in_the_senders_trace() -> None:
    """A trace would not show how a transaction ended whose sender did not know its state."""
    recorder = Recorder()
    async with (
        EmbeddedCluster(settings=BROKER_SETTINGS) as cluster,
        Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer,
    ):
        address = cluster.brokers[0].address
        await producer.create_topic("T", 1)
        result = await producer.send_in_transaction(
            Message("T", b"half"), local_transaction=lambda _: S.UNKNOWN, check=lambda _: S.COMMIT
        )
        await until(lambda: len(recorder.spans("end_transaction T")) == 2)
    half = recorder.span("send T")
    first, asked = recorder.spans("end_transaction T")
    assert attributes(first)["rocketpy.transaction.state"] == "UNKNOWN"
    found = attributes(asked)
    assert found.pop("messaging.client.id")
    more = {"rocketpy.transaction.state": "COMMIT", "rocketpy.transaction.asked": True}
    more["messaging.message.id"] = result.message_id
    assert found == expected("end_transaction", address, **more)
    assert parent_id(asked) == span_id(half)
    assert [link.context.span_id for link in asked.links] == [span_id(half)]


async def test_an_end_that_does_not_reach_the_broker_is_shown() -> None:
    """A message that was not committed would look like a committed one."""
    recorder = Recorder()
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, telemetry=recorder.telemetry()) as producer:

            async def lose_broker(_: Message) -> LocalTransactionState:
                await broker.close()
                return S.COMMIT

            await producer.send_in_transaction(
                Message("T", b"half"),
                local_transaction=lose_broker,
                check=lambda _: S.UNKNOWN,
                timeout_ms=1000,
            )
    end = recorder.span("end_transaction T")
    assert end.status.status_code is StatusCode.ERROR
    assert attributes(end)["error.type"] == "ConnectFailed"


async def consume(
    cluster: EmbeddedCluster,
    recorder: Recorder,
    said: Any,
    *,
    client: ClientConfig | None = None,
    config: PushConfig | None = None,
    wanted: str = "nack T",
    **settings: Any,
) -> None:
    """Let a consumer acknowledge one message; wait until the span `wanted` has ended."""
    telemetry = recorder.telemetry(**settings)
    async with Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer:
        await producer.create_topic("T", 1)
        await producer.send(Message("T", b"x"))

    async def handle(_: MessageExt) -> Any:
        return said

    consumer = PushConsumer(
        "billing", cluster.namesrv_address, handle, config=config, client=client, telemetry=telemetry
    )
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: recorder.spans(wanted))


@pytest.mark.parametrize("child", [False, True])
async def test_a_message_sent_back_is_a_span(child: bool) -> None:
    """A trace would not show why a message is retried repeatedly."""
    recorder = Recorder()
    async with EmbeddedCluster() as cluster:
        address = cluster.brokers[0].address
        await consume(cluster, recorder, Later(delay_level=17), process_as_child=child)
    send, nack = recorder.span("send T"), recorder.span("nack T")
    assert (nack.kind, nack.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert [link.context.span_id for link in nack.links] == [span_id(send)]
    assert parent_id(nack) == (span_id(send) if child else None)
    found = attributes(nack)
    assert found.pop("messaging.client.id")
    assert found == expected(
        "nack",
        address,
        **{
            "messaging.message.id": attributes(send)["messaging.message.id"],
            "messaging.consumer.group.name": "billing",
            "messaging.rocketmq.message.delay_time_level": 17,
        },
    )
    settled = [
        point
        for point, _ in recorder.points("messaging.client.operation.duration")
        if point["messaging.operation.type"] == "settle"
    ]
    assert [point["messaging.consumer.group.name"] for point in settled] == ["billing"]


class Refuses:
    """An RPC hook that fails requests with some codes."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes

    def before_request(self, address: str, request: Command) -> None:
        """Fail the request."""
        if request.code in self.codes:
            raise TransportError(f"{address} is cut off")

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """Do nothing."""


async def test_the_fallback_of_a_send_back_is_shown() -> None:
    """A broker that rejects send-backs would go unnoticed, whether the fallback succeeds or not."""
    recorder = Recorder()
    async with EmbeddedCluster() as cluster:
        port = cluster.brokers[0].address.port
        client = ClientConfig(rpc_hooks=(Refuses(RequestCode.CONSUMER_SEND_MSG_BACK),))
        await consume(cluster, recorder, ConsumeResult.LATER, client=client)
    nack = recorder.span("nack T")
    assert nack.status.status_code is StatusCode.UNSET
    assert [(event.name, dict(event.attributes or {})) for event in nack.events] == [
        ("retry", {"error.type": "LocalProtocolError"})
    ]
    assert attributes(nack)["server.port"] == port
    failing = Recorder()
    async with EmbeddedCluster() as cluster:
        codes = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
        await consume(
            cluster, failing, ConsumeResult.LATER, client=ClientConfig(rpc_hooks=(Refuses(*codes),))
        )
    nack = failing.spans("nack T")[0]
    assert nack.status.status_code is StatusCode.ERROR
    assert attributes(nack)["error.type"] == "LocalProtocolError"


async def test_orderly_dead_letters_are_spans_too() -> None:
    """A message that an orderly consumer gave up would vanish from its trace."""
    recorder = Recorder()
    config = PushConfig(orderly=True, max_reconsume_times=0)
    async with EmbeddedCluster() as cluster:
        await consume(cluster, recorder, ConsumeResult.LATER, config=config)
    nack = recorder.span("nack T")
    assert attributes(nack)["messaging.consumer.group.name"] == "billing"
    assert [link.context.span_id for link in nack.links] == [span_id(recorder.span("send T"))]


async def test_a_listener_that_fails_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in telemetry would leave transactions open, or messages unreturned."""

    class Breaks:
        def settled(self, event: SettleEvent) -> None:
            raise ZeroDivisionError

    class Telemetry(OpenTelemetry):
        def settle_listener(self, namespace: str) -> SettleListener:
            return Breaks()

    recorder = Recorder()
    telemetry = Telemetry(tracer_provider=recorder.tracers)
    async with (
        EmbeddedCluster() as cluster,
        Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer,
    ):
        result = await producer.send_in_transaction(
            Message("T", b"half"), local_transaction=lambda _: S.COMMIT, check=lambda _: S.UNKNOWN
        )
    assert result.state is S.COMMIT
    assert "a settle listener failed" in caplog.text
