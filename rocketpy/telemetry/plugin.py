"""Telemetry plugins: how a package observes producers, consumers and brokers.

A plugin registers under the entry point group ``rocketpy.telemetry`` (`rocketpy_otel` does, for
OpenTelemetry). It is looked up once in a process. While it is inactive, because nothing exports its data,
clients only call `Telemetry.is_active` from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol, cast

from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.hooks import ProcessListener, ReceiveListener, SendListener, SettleListener
from rocketpy.runtime.application import ends_program

log: Final = logging.getLogger("rocketpy.telemetry")

ENTRY_POINT_GROUP: Final = "rocketpy.telemetry"
"""An entry point is a callable without arguments that returns a `Telemetry`."""


class Metric(NamedTuple):
    """A metric of a server."""

    name: str
    """The name."""
    kind: Literal["counter", "gauge"]
    """A counter only grows while the server runs."""
    unit: str
    """A UCUM unit (``s``, ``By``, ``{message}``, ``1``)."""
    description: str
    """One sentence."""
    labels: tuple[str, ...] = ()
    """The names of the labels of its values."""


class Measured(NamedTuple):
    """The current values of a metric."""

    metric: Metric
    values: Sequence[tuple[tuple[str, ...], float]]
    """Pairs of the label values and the number."""


class Stage(NamedTuple):
    """A stage of a send in the broker."""

    name: str
    start_ns: int
    """In ns since 1970."""
    end_ns: int
    """In ns since 1970."""


class BrokerSend(NamedTuple):
    """A send that a broker has responded to."""

    topic: str
    """The topic."""
    partition: str
    """``broker/queue id``."""
    carriers: Sequence[Mapping[str, str]]
    """The properties of the messages."""
    stages: Sequence[Stage]
    """The stages in the broker."""
    code: int
    """The response code; 0 is SUCCESS."""


class Telemetry(Protocol):
    """A telemetry plugin."""

    def is_active(self) -> bool:
        """Whether its data is exported. Once true it stays true."""

    def send_listener(self, namespace: str) -> SendListener:
        """Return a listener for the sends of producers of a namespace."""

    def receive_listener(self, namespace: str) -> ReceiveListener:
        """Return a listener for the pulls of consumers of a namespace."""

    def process_listener(self, namespace: str) -> ProcessListener:
        """Return a listener for the handler calls of push consumers of a namespace."""

    def settle_listener(self, namespace: str) -> SettleListener:
        """Return a listener for ends of transactions, and for messages that consumers send back."""

    def client_failed(self, client: str, error: BaseException) -> None:
        """Count a failed background task. client: ``producer`` or ``consumer`` and its group."""

    def continued(self, carrier: Mapping[str, str]) -> AbstractContextManager[None]:
        """Return a context manager: sends inside it belong to the trace in the carrier."""

    def broker_sent(self, send: BrokerSend) -> None:
        """Report a send in a broker, in its event loop. Must not block."""

    def observe_broker(self, collect: Callable[[], Sequence[Measured]]) -> Callable[[], None]:
        """Export the metrics of a broker. Returns a function that stops it.

        collect: returns the current values; may be called in any thread.
        """


TelemetryChoice = Telemetry | bool | None
"""None: the installed plugin, if any. True: the installed plugin, which is required. False: no telemetry. A
`Telemetry`: this plugin."""


def find_telemetry(choice: TelemetryChoice) -> Telemetry | None:
    """Return the plugin for a choice. Raises ConfigInvalid when the required plugin is not installed."""
    if choice is False:
        return None
    if choice is not None and choice is not True:
        return choice
    found = _load_installed()
    if found is None and choice:
        raise ConfigInvalid(
            "telemetry=True, but no telemetry package is installed: pip install rocketpy-mq[otel]"
        )
    return found


def continued(carrier: Mapping[str, str]) -> AbstractContextManager[None]:
    """Continue the trace of another process: sends inside the context manager belong to it.

    Does nothing without an installed plugin.

    Args:
        carrier: The context of the trace (``traceparent``, …).
    """
    telemetry = find_telemetry(None) if carrier else None
    return telemetry.continued(carrier) if telemetry is not None else nullcontext()


def failure_counter(telemetry: Telemetry | None, client: str) -> Callable[[RocketError], None]:
    """Return a callback that counts failed background tasks of a client; see `Telemetry.client_failed`."""

    def count(failure: RocketError) -> None:
        try:
            if telemetry is not None and telemetry.is_active():
                telemetry.client_failed(client, failure.__cause__ or failure)
        except BaseException as error:  # an observer must not hide the failure from other callbacks
            if ends_program(error):
                raise
            log.exception("telemetry failed to count a failure of %s", client)

    return count


@lru_cache(maxsize=1)
def _load_installed() -> Telemetry | None:
    """Return the first installed plugin that can be imported and started; None without one."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - it loads 40 modules

    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            create = cast("Callable[[], Telemetry]", point.load())
            return create()
        except ImportError as error:
            log.debug("telemetry plugin %s cannot be imported: %s", point.name, error)
        except BaseException as error:  # a broken plugin must not stop a client
            if ends_program(error):
                raise
            log.exception("telemetry plugin %s failed to start", point.name)
    return None
