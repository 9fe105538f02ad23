"""Which brokers take batches. RocketMQ 4.6.0 refuses every batch in DLedger mode, and nothing announces that.

The first batch to a broker is a probe. Until it is answered, all other sends for that broker wait: if the
broker refuses the batch, its messages are sent again one by one, and must not come behind later ones. That
costs one round trip. A broker that refused is probed again every `ASK_AGAIN_MS`, since it may have been
upgraded, or may have refused the batch for one of its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from rocketpy.errors import BrokerError, RocketError
from rocketpy.producer.send.batch_builder import ProducerBatch
from rocketpy.producer.send.pending import PendingSend
from rocketpy.protocol.codes import ResponseCode

log = logging.getLogger("rocketpy.producer")

ASK_AGAIN_MS: Final = 60_000
"""How long after a refusal the next batch is tried. A refused one costs a round trip and a log line."""
_REFUSALS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Answers of a broker that cannot take a batch. It has stored nothing of it."""


class BatchSupport:
    """What a producer knows of its brokers, by their names.

    now_ms: a steady clock. asked: brokers whose answer is awaited, with the batch that is the probe.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self.asked: dict[str, ProducerBatch] = {}
        self._taking: set[str] = set()
        self._rejected_at: dict[str, float] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._ready: list[Callable[[], None]] = []

    @property
    def rejecting(self) -> tuple[str, ...]:
        """Brokers that refused the last batch they got, sorted."""
        return tuple(sorted(self._rejected_at))

    def refuses(self, broker_name: str) -> bool:
        """Whether messages for a broker are to be sent one by one for now."""
        refused_at = self._rejected_at.get(broker_name)
        return refused_at is not None and self.now_ms() - refused_at < ASK_AGAIN_MS

    def ask(self, broker_name: str, batch: ProducerBatch) -> None:
        """Note that a batch is about to be sent: it is a probe unless the broker is known to take batches."""
        if broker_name not in self._taking:
            self.asked[broker_name] = batch

    def take_back(self, broker_name: str, send: PendingSend[Any]) -> None:
        """Note that a send was not written after all: as a probe it would wait for its own answer."""
        if self.asked.get(broker_name) is send:
            del self.asked[broker_name]

    def wait(self, broker_name: str, then: Callable[[], None]) -> None:
        """Call `then` when the answer has come; in order, with nothing in between."""
        self._waiting.setdefault(broker_name, []).append(then)

    def learn(self, batch: ProducerBatch, error: RocketError | None = None) -> bool:
        """Take the end of an attempt; return whether the broker refused the batch as a whole.

        Call `go_on` after the batch has been dealt with.
        """
        name = batch.queue.broker_name if batch.queue is not None else ""
        if self.asked.get(name) is batch:
            del self.asked[name]
            self._ready += self._waiting.pop(name, ())
        if error is None:
            self._taking.add(name)
            if self._rejected_at.pop(name, None) is not None:
                log.info("broker %s takes batches again", name)
            return False
        refused = _is_refusal(error)
        if refused:
            self._taking.discard(name)
            self._rejected_at[name] = self.now_ms()
            log.info(
                "broker %s rejected a batch; sending messages individually, and the next batch in %d s: %s",
                name,
                ASK_AGAIN_MS // 1000,
                error,
            )
        return refused

    def single_failed(self, broker_name: str, error: RocketError) -> None:
        """Take the failure of a message that was sent alone.

        If the broker refuses it too, it may have refused the batch for this message: the next batch is a
        probe, without a pause.
        """
        if broker_name in self._rejected_at and _is_refusal(error):
            del self._rejected_at[broker_name]

    def go_on(self) -> None:
        """Let those go on who waited for an answer that has come."""
        while self._ready:
            ready, self._ready = self._ready, []
            for then in ready:
                then()


def _is_refusal(error: RocketError) -> bool:
    return isinstance(error, BrokerError) and error.code in _REFUSALS
