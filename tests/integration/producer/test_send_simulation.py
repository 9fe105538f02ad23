"""Sends to brokers that fail at random: each send ends once, with what has happened to its message."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from rocketpy import BatchConfig, Message, MessageQueue, Producer, ProducerConfig, RetryConfig, SendResult
from rocketpy.errors import Outcome, RocketError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, stored
from tests.simulated_loop import SimulatedLoop

COUNT = 150
TIMES = 3


@dataclass
class Chances:
    """How often a broker does what: probabilities for each request.

    rejects: batches, from the next connection on or for all of them (1).
    """

    rejects: float = 0.0
    fails: float = 0.0
    hangs: float = 0.0
    drops: float = 0.0


class WildBroker(Peer):
    """A broker that stores messages, fails, is silent, and drops connections, all by chance."""

    def __init__(self, name: str, rng: random.Random, chances: Chances) -> None:
        super().__init__(self.respond)
        self.name = name
        self.rng = rng
        self.chances = chances
        self.received: set[bytes] = set()
        self.stored: defaultdict[int, list[bytes]] = defaultdict(list)
        self.drops = 0
        self._rejecting: set[Channel] = set()

    def channel_opened(self, channel: Channel) -> None:
        super().channel_opened(channel)
        if self.rng.random() < self.chances.rejects:
            self._rejecting.add(channel)

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Handle one request."""
        if request.code not in SENDS:
            return stored(request)
        rng, chances = self.rng, self.chances
        bodies = [bytes(request.body)]
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            bodies = [bytes(element.body) for element in decode_batch(request.body)]
        self.received.update(bodies)
        response = stored(request)
        if request.code == RequestCode.SEND_BATCH_MESSAGE and channel in self._rejecting:
            response = request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="no batches")
        elif rng.random() < chances.fails:
            response = request.reply(ResponseCode.SYSTEM_ERROR, remark="by chance")
        else:
            self.stored[int(request.ext_fields()["e"])] += bodies
        if rng.random() < chances.drops:
            self.drops += 1
            channel.abort()
        elif not request.is_oneway and rng.random() >= chances.hangs:
            delay_s = rng.choice([0.0, 0.001, rng.uniform(0, 0.2)])
            asyncio.get_running_loop().call_later(delay_s, channel.reply, response)
        return None


class Callers:
    """Send numbered messages at random times, in all ways, and cancel some of the sends."""

    def __init__(self, producer: Producer, rng: random.Random, *, ordered: bool) -> None:
        """ordered: only in ways that accept a message in the call."""
        self._producer = producer
        self._rng = rng
        self._ordered = ordered
        self.ends: dict[bytes, asyncio.Future[object]] = {}
        self.oneway: set[bytes] = set()
        self.chosen: set[bytes] = set()
        """Messages for a queue that the caller chose; only they have an order."""

    async def run(self) -> None:
        """Send everything, and wait until all sends have ended."""
        number = 0
        while number < COUNT:
            for _ in range(self._rng.choice([1, 1, 2, 30])):
                self._send(number)
                number += 1
            await asyncio.sleep(self._rng.choice([0, 0, 0.001, 0.1, 1.0]))
        await asyncio.wait(self.ends.values())

    def _send(self, number: int) -> None:
        rng, producer = self._rng, self._producer
        body = b"%06d" % number + bytes(rng.choice([0, 0, 10, 3000]))
        message = Message("T", body, delay_level=rng.choice([0] * 9 + [1]), wait_store=rng.random() < 0.9)
        queue = rng.choice(
            [None, None, *(MessageQueue("T", name, index) for name in "ab" for index in (0, 1))]
        )
        if queue is not None:
            self.chosen.add(body)
        timeout_ms = rng.choice([None, 50, 500, 10_000])
        way = rng.random()
        if way < 0.1:
            producer.send_oneway(message, queue=queue)
            self.oneway.add(body)
            return
        end: asyncio.Future[object]
        if way < 0.2 and not self._ordered and not message.delay_level:
            end = asyncio.ensure_future(producer.send_batch([message], queue=queue, timeout_ms=timeout_ms))
        elif way < 0.4 and not self._ordered:
            end = asyncio.ensure_future(producer.send(message, queue=queue, timeout_ms=timeout_ms))
        else:
            end = asyncio.ensure_future(producer.send_nowait(message, queue=queue, timeout_ms=timeout_ms))
        self.ends[body] = end
        if rng.random() < 0.2:
            asyncio.get_running_loop().call_later(rng.choice([0, 0.001, 0.1]), end.cancel)


def check_end(end: asyncio.Future[object], copies: int, *, received: bool, drops: bool) -> None:
    """Check that a send ended with what has happened to its message. copies: how often it is stored."""
    if end.cancelled():
        assert copies <= 1 + TIMES
        return
    error = end.exception()
    if error is None:
        result = end.result()
        last = result[0] if isinstance(result, list) else result
        assert isinstance(last, SendResult)
        assert 1 <= copies <= last.attempts
        return
    assert isinstance(error, RocketError), error
    assert copies <= error.attempts, error
    if error.outcome is Outcome.UNKNOWN:
        assert received or drops, "not sent at all"
    else:
        assert not copies, error


async def run(seed: int, chances: Chances, config: ProducerConfig, *, ordered: bool) -> None:
    """Run one simulation, and check its ends."""
    rng = random.Random(seed)
    a, b = WildBroker("a", rng, chances), WildBroker("b", rng, chances)
    async with a, b, Names() as names:
        names.routes["T"] = {"a": a.address, "b": b.address}
        async with Producer("g", names.address, config=config) as producer:
            callers = Callers(producer, rng, ordered=ordered)
            async with asyncio.timeout(3600):
                await callers.run()
            await asyncio.sleep(60)  # of the simulated clock: the last attempts of cancelled sends end
            health = producer.health()
            assert health.in_flight == health.in_flight_bytes == 0
            sender = producer._sender
            assert sender is not None
            assert [sink._window.in_flight for sink in sender._sinks.values()] == [0, 0]
            assert not any(sink._window.timed for sink in sender._sinks.values())
            assert not any(
                sink._waiting or sink._preceding or sink._batches for sink in sender._sinks.values()
            )
            assert not sender._live
            assert not sender._parked
            assert health.ok or chances.drops, health.problems
    brokers = (a, b)
    copies = Counter(body for broker in brokers for bodies in broker.stored.values() for body in bodies)
    received = a.received | b.received
    for body, end in callers.ends.items():
        check_end(end, copies[body], received=body in received, drops=bool(a.drops or b.drops))
    assert all(copies[body] <= 1 for body in callers.oneway)
    assert copies.keys() <= callers.ends.keys() | callers.oneway
    if ordered:
        for broker in brokers:
            for queue_id, found in broker.stored.items():
                bodies = [body for body in found if body in callers.chosen]
                assert bodies == sorted(bodies), f"order of queue {queue_id} of {broker.name}"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("batching", [True, False])
def test_each_send_ends_with_what_has_happened(seed: int, *, batching: bool) -> None:
    """A send would hang, be counted forever, or say that it was stored when it was not."""
    chances = Chances(rejects=0.3, fails=0.05, hangs=0.02, drops=0.02)
    retry = RetryConfig(times=TIMES, pause_ms=20)
    config = ProducerConfig(
        batching=batching, retry=retry, attempt_timeout_ms=2000, batch=BatchConfig(linger_ms=seed % 2)
    )
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(run(seed, chances, config, ordered=False))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rejects", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("drops", [0.0, 0.02])
def test_each_queue_keeps_its_order(seed: int, rejects: float, drops: float) -> None:
    """Without retries, no message of a queue may overtake another one, whatever the broker does."""
    chances = Chances(rejects=rejects, hangs=0.02, drops=drops)
    config = ProducerConfig(retry=RetryConfig(times=0))
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(run(seed, chances, config, ordered=True))
