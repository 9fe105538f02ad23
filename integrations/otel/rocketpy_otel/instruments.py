"""Client metrics: four of OpenTelemetry's messaging metrics, and a counter of failures.

Attributes contain no ids, because each id would create a time series.
"""

from __future__ import annotations

from opentelemetry.metrics import MeterProvider

from rocketpy import __version__
from rocketpy_otel import names
from rocketpy_otel.attributes import Value, operation, server_attributes

SCOPE = "rocketpy_otel"


class Instruments:
    """The counters and histograms of clients."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__)
        boundaries = list(names.DURATION_BOUNDARIES)
        self._operation = meter.create_histogram(
            names.OPERATION_DURATION,
            unit="s",
            description="Duration of a messaging operation of a producer or consumer",
            explicit_bucket_boundaries_advisory=boundaries,
        )
        self._process = meter.create_histogram(
            names.PROCESS_DURATION,
            unit="s",
            description="Duration of processing messages",
            explicit_bucket_boundaries_advisory=boundaries,
        )
        self._sent = meter.create_counter(
            names.SENT_MESSAGES, unit="{message}", description="Messages that producers tried to send"
        )
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, unit="{message}", description="Messages that consumers received"
        )
        self._failures = meter.create_counter(
            names.CLIENT_FAILURES, unit="{failure}", description="Bugs that ended background work of clients"
        )

    def sent(
        self,
        topic: str,
        address: str | None,
        count: int,
        seconds: float,
        error: str | None,
        status: str | None = None,
    ) -> None:
        """Record a completed send. seconds: its duration. error: the error type; None if it succeeded.

        status: of messages that are stored with less than SEND_OK; else None.
        """
        attributes = _attributes("send", "send", topic, address, None, error)
        self._operation.record(seconds, attributes)
        self._sent.add(count, attributes if status is None else {**attributes, names.SEND_STATUS: status})

    def received(
        self, topic: str, address: str | None, group: str, count: int, seconds: float, error: str | None
    ) -> None:
        """Record a completed pull. count: the number of decoded messages. error: as for `sent`."""
        attributes = _attributes("receive", "receive", topic, address, group, error)
        self._operation.record(seconds, attributes)
        if count:
            self._consumed.add(count, attributes)

    def undecodable(self, topic: str, address: str | None, group: str, count: int, error: str) -> None:
        """Count messages of a pull that cannot be decoded. error: the error type."""
        self._consumed.add(count, _attributes("receive", "receive", topic, address, group, error))

    def processed(self, topic: str, group: str | None, seconds: float, error: str | None) -> None:
        """Record the processing of messages of one topic. error: as for `sent`."""
        self._process.record(seconds, _attributes("process", "process", topic, None, group, error))

    def client_failed(self, client: str, error: str) -> None:
        """Count a bug that ended background work of a client. error: the error type."""
        attributes = {names.SYSTEM: names.SYSTEM_ROCKETMQ, names.CLIENT: client, names.ERROR_TYPE: error}
        self._failures.add(1, attributes)

    def settled(
        self, name: str, topic: str, address: str | None, group: str | None, seconds: float, error: str | None
    ) -> None:
        """Record the end of a transaction, or the return of a message to its broker.

        name: `end_transaction` or `nack`. error: as for `sent`.
        """
        self._operation.record(seconds, _attributes(name, "settle", topic, address, group, error))


def _attributes(
    name: str, kind: str, topic: str, address: str | None, group: str | None, error: str | None
) -> dict[str, Value]:
    attributes = operation(name, kind, topic)
    attributes.update(server_attributes(address))
    if group is not None:
        attributes[names.CONSUMER_GROUP] = group
    if error is not None:
        attributes[names.ERROR_TYPE] = error
    return attributes
