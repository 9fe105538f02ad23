"""The load of a fault run: senders of each kind, and the acknowledgements with their times."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import rocketpy.sync
from rocketpy import ClientConfig, Message, Producer, ProducerConfig, SendEvent, SendResult
from rocketpy.errors import RocketError
from tests.interop.processes import BrokerProcess, NameServerProcess
from tools.soak.bodies import body_of, number_of
from tools.soak.ledger import Ledger

TOPIC = "Faults"
_BURST, _LIST = 40, 10
_PAUSE_S = 0.01


class Load:
    """Senders of each kind, which run until they are stopped. It listens to its producers."""

    def __init__(self, client: ClientConfig) -> None:
        self.ledger = Ledger()
        self._client = client
        self._failed_attempts: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._acks: list[tuple[float, str]] = []
        self._stop = threading.Event()

    # -- as seen from outside -------------------------------------------------------------------

    def rate(self, seconds: float, broker: str | None = None) -> float:
        """Acknowledged messages a second, by one broker or all, in the last seconds."""
        since = time.monotonic() - seconds
        recent = itertools.takewhile(lambda ack: ack[0] >= since, reversed(self._acks))
        return sum(broker in (None, name) for _, name in recent) / seconds

    def flows(self, server: NameServerProcess | BrokerProcess, rate: float, since: float) -> bool:
        """Whether at least `rate` messages a second are sent, and to this server too if it is a broker."""
        window = min(1.0, time.monotonic() - since)
        if window <= 0 or self.rate(window) < rate:
            return False
        return isinstance(server, NameServerProcess) or self.rate(window, server.name) > 0

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Let all senders send until the block ends."""
        singly = ProducerConfig(batching=False)
        async with (
            Producer("faults_gathered", client=self._client, listeners=[self]) as gathering,
            Producer("faults_single", client=self._client, config=singly, listeners=[self]) as single,
            asyncio.TaskGroup() as group,
        ):
            for producer in (gathering, single):
                for _ in range(4):
                    group.create_task(self._await_each(producer))
                group.create_task(self._send_bursts(producer))
            group.create_task(self._send_lists(single))
            group.create_task(asyncio.to_thread(self._block))
            try:
                yield
            finally:
                self._stop.set()

    # -- as a SendListener ----------------------------------------------------------------------

    def started(self, event: SendEvent) -> None:
        """Do nothing: the senders note what they send themselves."""

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """Note how many attempts failed before this one."""
        for message in event.messages:
            self._failed_attempts[_known_number(message.body)] = event.attempts

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """Do nothing: the caller of the send gets the error."""

    # -- senders --------------------------------------------------------------------------------

    def _new(self) -> tuple[int, Message]:
        number = next(self._numbers)
        self.ledger.started.add(number)
        return number, Message(TOPIC, body_of(number))

    def _note(self, number: int, end: SendResult | BaseException) -> None:
        if isinstance(end, SendResult):
            self.ledger.ack(number, end, self._failed_attempts.pop(number, 0))
            self._acks.append((time.monotonic(), end.queue.broker_name))
        elif isinstance(end, RocketError):
            self.ledger.failed[number] = end.outcome
        else:
            raise end

    async def _await_each(self, producer: Producer) -> None:
        while not self._stop.is_set():
            number, message = self._new()
            try:
                self._note(number, await producer.send(message))
            except RocketError as error:
                self._note(number, error)
            await asyncio.sleep(_PAUSE_S)

    async def _send_bursts(self, producer: Producer) -> None:
        while not self._stop.is_set():
            burst = [self._new() for _ in range(_BURST)]
            futures = [producer.send_nowait(message) for _, message in burst]
            ends = await asyncio.gather(*futures, return_exceptions=True)
            for (number, _), end in zip(burst, ends, strict=True):
                self._note(number, end)
            await asyncio.sleep(_PAUSE_S * 10)

    async def _send_lists(self, producer: Producer) -> None:
        """Lists that fit one request, so that an error is that of each message."""
        while not self._stop.is_set():
            batch = [self._new() for _ in range(_LIST)]
            ends: Iterable[SendResult | RocketError]
            try:
                ends = await producer.send_batch([message for _, message in batch])
            except RocketError as error:
                ends = itertools.repeat(error)
            for (number, _), end in zip(batch, ends, strict=False):
                self._note(number, end)
            await asyncio.sleep(_PAUSE_S * 5)

    def _block(self) -> None:
        """Send from a thread, with the blocking producer."""
        with rocketpy.sync.Producer("faults_blocking", client=self._client, listeners=[self]) as producer:
            while not self._stop.wait(_PAUSE_S):
                number, message = self._new()
                try:
                    self._note(number, producer.send(message))
                except RocketError as error:
                    self._note(number, error)


def _known_number(body: bytes) -> int:
    number = number_of(body)
    assert number is not None
    return number
