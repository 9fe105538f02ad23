"""The clock of delayed messages and transactions, which tests move instead of waiting."""

from __future__ import annotations

from rocketpy_broker import Broker
from rocketpy_broker.store.files.disk import system_clock


def jump_ahead(broker: Broker) -> None:
    """Set the clocks of the delayed messages and transactions of a broker two hours ahead."""
    delay, checker = broker.delivery.delay, broker.delivery._checker
    assert checker is not None
    delay.clock = checker.clock = lambda: system_clock() + 7_200_000
    delay._calls.wake_at(delay.clock())
