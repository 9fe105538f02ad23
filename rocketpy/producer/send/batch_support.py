"""Remembers which brokers accept batches. RocketMQ 4.6.0 rejects every batch in DLedger mode without notice.

The first batch to a broker is a probe. All other sends to that broker wait for the response to it. If the
broker rejects the batch, its messages are sent again one by one, before later ones. That costs one round
trip. A broker that rejected a batch is probed again every `PROBE_AGAIN_MS`. It may have been upgraded, or
have rejected the batch because of one message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from rocketpy.errors import BrokerError, RocketError
from rocketpy.producer.send.pending import PendingSend, ProducerBatch
from rocketpy.producer.send.retry import AttemptEnd
from rocketpy.protocol.codes import ResponseCode

log: Final = logging.getLogger("rocketpy.producer")

PROBE_AGAIN_MS: Final = 60_000
"""Time from a rejection to the next probe. A rejected batch costs a round trip and a log line."""
_REJECTIONS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes of a broker that does not support batches. It has stored nothing of the batch."""


class BatchSupport:
    """Which brokers accept batches, as far as the producer knows.

    now_ms: a monotonic clock. probes: the batch that each broker is probed with, by broker name.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self.probes: dict[str, ProducerBatch] = {}
        self._supported: set[str] = set()
        self._rejected_at: dict[str, float] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._ready: list[Callable[[], None]] = []

    @property
    def rejecting(self) -> tuple[str, ...]:
        """Brokers that rejected the last batch, sorted."""
        return tuple(sorted(self._rejected_at))

    def rejects(self, broker_name: str) -> bool:
        """Return whether messages for a broker are to be sent individually for now."""
        rejected_at = self._rejected_at.get(broker_name)
        return rejected_at is not None and self.now_ms() - rejected_at < PROBE_AGAIN_MS

    def probe(self, broker_name: str, batch: ProducerBatch) -> None:
        """Note that a batch is about to be sent: a probe unless the broker is known to accept batches."""
        if broker_name not in self._supported:
            self.probes[broker_name] = batch

    def cancel(self, broker_name: str, send: PendingSend[Any]) -> None:
        """Stop probing with a send that was not written: no response would end the probe."""
        if self.probes.get(broker_name) is send:
            del self.probes[broker_name]

    def wait(self, broker_name: str, then: Callable[[], None]) -> None:
        """Call `then` after the response to the probe. Callbacks run in order, without a gap."""
        self._waiting.setdefault(broker_name, []).append(then)

    def record(self, batch: ProducerBatch, end: AttemptEnd) -> bool:
        """Record the end of an attempt; return whether the broker rejected the batch as a whole.

        Call `release` after the batch was split or its next step was taken.
        """
        name = batch.queue.broker_name if batch.queue is not None else ""
        if self.probes.get(name) is batch:
            del self.probes[name]
            self._ready += self._waiting.pop(name, ())
        if not isinstance(end, RocketError):
            self._supported.add(name)
            if self._rejected_at.pop(name, None) is not None:
                log.info("broker %s accepts batches again", name)
            return False
        if not _is_rejection(end):
            return False
        self._supported.discard(name)
        self._rejected_at[name] = self.now_ms()
        log.info(
            "broker %s rejected a batch; sending messages individually, and the next batch in %d s: %s",
            name,
            PROBE_AGAIN_MS // 1000,
            end,
        )
        return True

    def record_single(self, broker_name: str, error: RocketError) -> None:
        """Record the failure of a message that was sent individually.

        If the broker rejects it too, it may have rejected the batch because of this message: the next batch
        is a probe immediately.
        """
        if broker_name in self._rejected_at and _is_rejection(error):
            del self._rejected_at[broker_name]

    def release(self) -> None:
        """Resume the sends that waited for a probe whose response has come."""
        while self._ready:
            ready, self._ready = self._ready, []
            for then in ready:
                then()


def _is_rejection(error: RocketError) -> bool:
    return isinstance(error, BrokerError) and error.code in _REJECTIONS
