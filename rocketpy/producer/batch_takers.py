"""Which brokers take batches. RocketMQ 4.6.0 refuses every batch in DLedger mode, and nothing announces that.

So the first batch to a broker is a question. Until it is answered, everything else for that broker waits: had
it been sent, and were the question answered with no, the messages of that first batch, sent again singly,
would come behind those that were handed over after them. It is one round trip in the life of a producer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rocketpy.errors import BrokerError, RocketError
from rocketpy.producer.gathered import GatheredSend
from rocketpy.producer.pending import Pending
from rocketpy.protocol.codes import ResponseCode

__all__ = ["BatchTakers"]

_REFUSALS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""What a broker answers that cannot take a batch; it has stored nothing then."""


class BatchTakers:
    """Brokers by name, as far as known. asked: those whose answer is awaited, with the batch that asks."""

    def __init__(self) -> None:
        self.asked: dict[str, GatheredSend] = {}
        self.refusing: set[str] = set()
        self._taking: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._ready: list[Callable[[], None]] = []

    def ask(self, broker_name: str, batch: GatheredSend) -> None:
        """This batch is about to be sent: should nobody know yet whether the broker takes it, it asks."""
        if broker_name not in self._taking:
            self.asked[broker_name] = batch

    def take_back(self, broker_name: str, send: Pending[Any]) -> None:
        """This was not sent after all, so it asks nothing: it would wait for its own answer."""
        if self.asked.get(broker_name) is send:
            del self.asked[broker_name]

    def wait(self, broker_name: str, then: Callable[[], None]) -> None:
        """Call `then` when the answer has come; in order, with nothing in between."""
        self._waiting.setdefault(broker_name, []).append(then)

    def learn(self, batch: GatheredSend, error: RocketError | None = None) -> bool:
        """Take the end of an attempt; return whether it was refused for being a batch.

        Follow it by `go_on`, when the batch has been taken care of.
        """
        name = batch.queue.broker_name if batch.queue is not None else ""
        if self.asked.get(name) is batch:
            del self.asked[name]
            self._ready += self._waiting.pop(name, ())
        if error is None:
            self._taking.add(name)
            return False
        refused = isinstance(error, BrokerError) and error.code in _REFUSALS
        if refused:
            self._taking.discard(name)
            self.refusing.add(name)
        return refused

    def go_on(self) -> None:
        """Let those go on who waited for an answer that has come."""
        while self._ready:
            ready, self._ready = self._ready, []
            for then in ready:
                then()
