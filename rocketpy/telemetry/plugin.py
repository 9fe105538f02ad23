"""Telemetry: finds what observes producers and consumers, and switches it on when there is somebody to tell.

A package announces itself under the entry point group ``rocketpy.telemetry`` (ours is `rocketpy_otel`, for
OpenTelemetry). It is looked up once a process. While it has nobody to report to, clients make no call to it
but an occasional look whether that has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Final, Literal, NamedTuple, Protocol, cast

from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.hooks import ProcessListener, ReceiveListener, SendListener, SettleListener

log = logging.getLogger("rocketpy.telemetry")

ENTRY_POINT_GROUP: Final = "rocketpy.telemetry"
"""An entry point is a callable without arguments that returns a `Telemetry`."""


class Metric(NamedTuple):
    """Something a server measures. kind: a counter only grows while the server runs. unit: as UCUM has it
    (``s``, ``By``, ``{message}``, ``1``). labels: names of what tells its values apart.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()


class Measured(NamedTuple):
    """A metric now. values: each with a text for each label."""

    metric: Metric
    values: Sequence[tuple[tuple[str, ...], float]]


class Stage(NamedTuple):
    """A part of what a broker does with a send. start_ns, end_ns: ns since 1970."""

    name: str
    start_ns: int
    end_ns: int


class BrokerSend(NamedTuple):
    """A send that a broker has answered. partition: ``broker/queue id``. carriers: the properties of its
    messages. code: of the answer; 0 is SUCCESS.
    """

    topic: str
    partition: str
    carriers: Sequence[Mapping[str, str]]
    stages: Sequence[Stage]
    code: int


class Telemetry(Protocol):
    """What observes clients."""

    def is_active(self) -> bool:
        """Whether there is somebody to report to now. Once true it stays so."""

    def send_listener(self, namespace: str) -> SendListener:
        """Follows the sends of producers of a namespace."""

    def receive_listener(self, namespace: str) -> ReceiveListener:
        """Follows the pulls of consumers of a namespace."""

    def process_listener(self, namespace: str) -> ProcessListener:
        """Follows the handlers of push consumers of a namespace."""

    def settle_listener(self, namespace: str) -> SettleListener:
        """Follows transactions' ends, and messages that consumers of a namespace send back."""

    def client_failed(self, client: str, error: BaseException) -> None:
        """Count a bug that ended background work. client: ``producer`` or ``consumer`` and its group."""

    def continued(self, carrier: Mapping[str, str]) -> AbstractContextManager[None]:
        """While entered, what this thread or task sends belongs to the trace of a carrier's context."""

    def broker_sent(self, send: BrokerSend) -> None:
        """Tell of a send on a broker's side, in its event loop. Must not block."""

    def observe_broker(self, collect: Callable[[], Sequence[Measured]]) -> Callable[[], None]:
        """Report what a broker measures; `collect` may be called in any thread. Returns what ends that."""


TelemetryChoice = Telemetry | bool | None
"""None: the installed one, if any. True: it has to be there. False: none. Or one of your own."""


def find_telemetry(choice: TelemetryChoice) -> Telemetry | None:
    """What observes a client that was made with this choice.

    Raises ConfigInvalid when it has to be there, and is not.
    """
    if choice is False:
        return None
    if choice is not None and choice is not True:
        return choice
    found = _installed()
    if found is None and choice:
        raise ConfigInvalid(
            "telemetry=True, but no telemetry package is installed: pip install rocketpy-mq[otel]"
        )
    return found


def continued(carrier: Mapping[str, str]) -> AbstractContextManager[None]:
    """While entered, what is sent belongs to the trace whose context is in `carrier` (``traceparent``, …).

    For work that another process began: a task of a job, say. Does nothing without installed telemetry.
    """
    telemetry = find_telemetry(None) if carrier else None
    return telemetry.continued(carrier) if telemetry is not None else nullcontext()


def failure_counter(telemetry: Telemetry | None, client: str) -> Callable[[RocketError], None]:
    """What to call when background work of a client fails; see `Telemetry.client_failed`."""

    def count(failure: RocketError) -> None:
        if telemetry is None or not telemetry.is_active():
            return
        try:
            telemetry.client_failed(client, failure.__cause__ or failure)
        except Exception:
            # What only observes must not hide the failure from others.
            log.exception("telemetry failed to count a failure of %s", client)

    return count


@lru_cache(maxsize=1)
def _installed() -> Telemetry | None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            make = cast("Callable[[], Telemetry]", point.load())
            return make()
        except ImportError as error:
            log.debug("telemetry %s is not installed: %s", point.name, error)
        except Exception:
            # What only observes must not keep a client from its work.
            log.exception("telemetry %s failed to start", point.name)
    return None
