"""The `rocketpy.telemetry.Telemetry` that reports to OpenTelemetry providers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Span, Tracer, TracerProvider

from rocketpy import MessageExt, ProcessListener, ReceiveListener, SendListener, SettleListener, __version__
from rocketpy.telemetry import BrokerSend, Measured
from rocketpy_otel.attributes import error_type
from rocketpy_otel.brokers import BrokerInstruments, BrokerSpans
from rocketpy_otel.instruments import SCOPE, Instruments
from rocketpy_otel.receive_spans import Processing, ReceiveSpans
from rocketpy_otel.send_spans import SendSpans
from rocketpy_otel.settle_spans import SettleSpans
from rocketpy_otel.tracing import Contexts, Tracing


class OpenTelemetry:
    """Reports to OpenTelemetry.

        Producer("orders", telemetry=OpenTelemetry(tracer_provider=provider))

    tracer_provider, meter_provider, propagator: None for the global ones. With the API's no-op providers, a
    client creates no spans; it detects a real provider that is set later.
    batch_create_spans: create a span for each message of a `send_batch`, linked from the batch's span.
    Otherwise all messages share its context.
    process_as_child: whether the spans of handlers, and of messages that are sent back, are children of the
    sender's span, which shows one connected trace. Default: each begins a trace that is linked to that span,
    as the conventions recommend. A batch of several messages is always linked.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        batch_create_spans: bool = True,
        process_as_child: bool = False,
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._propagator = propagator
        self._batch_create_spans = batch_create_spans
        self._process_as_child = process_as_child
        self._processing: dict[tuple[str, bool], Processing] = {}
        self._brokers: BrokerInstruments | None = None
        self._broker_spans: BrokerSpans | None = None

    def is_active(self) -> bool:
        """Whether a real provider is set."""
        return _is_real(self._tracers()) or _is_real(self._meters())

    def send_listener(self, namespace: str) -> SendListener:
        """Return a listener that reports spans and metrics of producers."""
        return SendSpans(self._tracing(namespace), batch_create_spans=self._batch_create_spans)

    def receive_listener(self, namespace: str) -> ReceiveListener:
        """Return a listener that reports spans and metrics of pulls."""
        return ReceiveSpans(self._tracing(namespace))

    def process_listener(self, namespace: str) -> ProcessListener:
        """Return a listener that reports spans and metrics of push consumers' handlers."""
        return Processing(self._tracing(namespace), as_child=self._process_as_child)

    def settle_listener(self, namespace: str) -> SettleListener:
        """Return a listener that reports spans and metrics of ended transactions and returned messages."""
        return SettleSpans(self._tracing(namespace), as_child=self._process_as_child)

    def client_failed(self, client: str, error: BaseException) -> None:
        """Count a bug that ended background work of a client."""
        Instruments(self._meters()).client_failed(client, error_type(error))

    @contextmanager
    def continued(self, carrier: Mapping[str, str]) -> Iterator[None]:
        """Run the block in the carrier's trace."""
        token = context.attach(self._propagation().extract(carrier))
        try:
            yield
        finally:
            context.detach(token)

    def broker_sent(self, send: BrokerSend) -> None:
        """Create the broker's spans of a send."""
        if self._broker_spans is None:
            self._broker_spans = BrokerSpans(self._tracer(), Contexts(self._propagation()))
        self._broker_spans.sent(send)

    def observe_broker(self, collect: Callable[[], Sequence[Measured]]) -> Callable[[], None]:
        """Report a broker's metrics as observable instruments, until the returned function is called."""
        if self._brokers is None:
            self._brokers = BrokerInstruments(self._meters())
        return self._brokers.add(collect)

    def process(
        self,
        messages: MessageExt | Sequence[MessageExt],
        *,
        group: str | None = None,
        namespace: str = "",
        consumption_model: str | None = None,
        as_child: bool | None = None,
    ) -> AbstractContextManager[Span]:
        """Run the block in a span for the processing of messages of one topic, linked to their senders.

            with telemetry.process(message, group="billing"):
                bill(message)

        For pulled messages; push consumers create these spans automatically. as_child: `process_as_child`
        for this span; None for the constructor's value. consumption_model: clustering or broadcasting. An
        exception in the block marks the span as failed. Without messages, nothing is reported.
        """
        child = self._process_as_child if as_child is None else as_child
        processing = self._processing.get((namespace, child))
        if processing is None:
            processing = Processing(self._tracing(namespace), as_child=child)
            self._processing[namespace, child] = processing
        found = [messages] if isinstance(messages, MessageExt) else list(messages)
        return processing.span(found, group, consumption_model)

    def _tracing(self, namespace: str) -> Tracing:
        contexts = Contexts(self._propagation())
        return Tracing(self._tracer(), Instruments(self._meters()), contexts, namespace)

    def _tracers(self) -> TracerProvider:
        return self._tracer_provider or trace.get_tracer_provider()

    def _meters(self) -> MeterProvider:
        return self._meter_provider or metrics.get_meter_provider()

    def _propagation(self) -> TextMapPropagator:
        return self._propagator or propagate.get_global_textmap()

    def _tracer(self) -> Tracer:
        return self._tracers().get_tracer(SCOPE, __version__)


def _is_real(provider: object) -> bool:
    """Whether a provider is not one of the API's no-op providers."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
