"""More sends at once than the broker handles within their timeout."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from rocketpy import Message, Producer, ProducerConfig, RetryConfig, SendResult
from rocketpy.errors import Outcome, RocketError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, stored
from tests.simulated_loop import SimulatedLoop


class BusyBroker(Peer):
    """A broker on a busy machine: it runs for 5 ms at a time, and pauses in between."""

    def __init__(self, us_per_message: int, pauses_ms: tuple[int, int], seed: int) -> None:
        super().__init__(self.queue)
        self.bodies: set[bytes] = set()
        self._cost_s = us_per_message / 1e6
        self._pauses_ms = pauses_ms
        self._rng = random.Random(seed)
        self._waiting: deque[tuple[Channel, Command]] = deque()

    def queue(self, channel: Channel, request: Command) -> Command | None:
        """Handle a request later."""
        if request.code not in SENDS:
            return stored(request)
        if not self._waiting:
            self._pause()
        self._waiting.append((channel, request))
        return None

    def _pause(self) -> None:
        asyncio.get_running_loop().call_later(self._rng.uniform(*self._pauses_ms) / 1000, self._run)

    def _run(self) -> None:
        loop, left_s = asyncio.get_running_loop(), 0.005
        while self._waiting and left_s > 0:
            channel, request = self._waiting.popleft()
            bodies = [bytes(request.body)]
            if request.code == RequestCode.SEND_BATCH_MESSAGE:
                bodies = [element.body for element in decode_batch(request.body)]
            self.bodies.update(bodies)
            left_s -= len(bodies) * self._cost_s
            channel.reply(stored(request))
        if self._waiting:
            loop.call_later(max(0.0, -left_s), self._pause)


async def burst(
    broker: BusyBroker, config: ProducerConfig, count: int
) -> dict[bytes, SendResult | BaseException]:
    """Send everything at once; return the ends by body."""
    async with broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"first"))
            messages = [Message("T", b"%06d" % number) for number in range(count)]
            sends = [producer.send_nowait(message) for message in messages]
            ends = await asyncio.gather(*sends, return_exceptions=True)
            assert producer.health().in_flight == 0
    return {message.body: end for message, end in zip(messages, ends, strict=True)}


@pytest.mark.parametrize(("batching", "count"), [(True, 60_000), (False, 6000)])
@pytest.mark.parametrize(("us_per_message", "pauses_ms"), [(5, (0, 1)), (5, (50, 150)), (50, (5, 400))])
def test_each_send_of_a_burst_is_stored_or_not_sent(
    us_per_message: int, pauses_ms: tuple[int, int], count: int, *, batching: bool
) -> None:
    """On a busy machine 48,719 of 50,000 sends ended with outcome UNKNOWN, and were stored all the same."""
    broker = BusyBroker(us_per_message, pauses_ms, seed=us_per_message)
    config = ProducerConfig(max_in_flight=count, batching=batching)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        ends = runner.run(burst(broker, config, count))
    succeeded = {body for body, end in ends.items() if isinstance(end, SendResult)}
    errors = [end for end in ends.values() if isinstance(end, RocketError)]
    assert len(succeeded) + len(errors) == count
    assert {error.outcome for error in errors} <= {Outcome.NOT_SENT}
    assert succeeded | {b"first"} == broker.bodies
    if pauses_ms == (0, 1):
        assert not errors


class DistantBroker(Peer):
    """A broker that responds after 250 ms, but cuts its first connection at the first burst."""

    def __init__(self) -> None:
        super().__init__(self.respond)

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Respond later, or cut the connection."""
        if request.body == b"lost" and channel is self.channels[0]:
            channel.abort()
        elif request.code in SENDS:
            asyncio.get_running_loop().call_later(0.25, channel.reply, stored(request))
        else:
            return stored(request)
        return None


async def burst_after_a_cut() -> list[SendResult]:
    """Send a burst that ends with the connection, then one that the broker handles in time."""
    async with DistantBroker() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(batching=False, retry=RetryConfig(times=0))
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"first"))
            await asyncio.wait([producer.send_nowait(Message("T", b"lost")) for _ in range(180)])
            sends = [producer.send_nowait(Message("T", b"x" * 100), timeout_ms=15_000) for _ in range(15_000)]
            return await asyncio.gather(*sends)


def test_a_lost_connection_is_no_round_trip() -> None:
    """The limit of a distant broker would no longer grow after its connection was lost in an instant."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert len(runner.run(burst_after_a_cut())) == 15_000


async def drain_beside(broker: BusyBroker) -> None:
    """Drain a producer while other tasks always have sends that wait for the broker."""
    async with broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(batching=False)
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"first"))

            async def send_always() -> None:
                while True:
                    await producer.send(Message("T", b"x"), timeout_ms=3_600_000)

            others = [asyncio.create_task(send_always()) for _ in range(2000)]
            await broker.until(lambda: len(broker.bodies) == 2)
            await producer.drain()
            for other in others:
                other.cancel()
            await asyncio.wait(others)


def test_draining_ends_although_others_go_on() -> None:
    """A loop of send_nowait and drain would stand still while other tasks send."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(asyncio.wait_for(drain_beside(BusyBroker(20, (5, 20), seed=1)), 600))
