"""One piece of the soak: servers, producers and consumers run, sometimes with a kill, until all settles."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from rocketpy import ClientConfig, Message, MessageQueue, Producer, PullConsumer, PullStatus
from rocketpy.errors import RocketError, RouteNotFound
from tests.fuzz.engine import memory_of
from tools.soak.bodies import body_of, number_of
from tools.soak.places import Places
from tools.soak.servers import Servers

TOPIC = "Soak"
PRODUCERS = 4
_START_SECONDS = 60
_SETTLE_SECONDS = 60
_SAMPLE_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class PieceReport:
    """The results of one piece.

    unknown: sends without a response, which may be stored or not. early and late: median memory in the second
    and in the last quarter of the piece; with a kill the servers' are of two processes. members_killed and
    duplicates: of a crowd.
    """

    seconds: float = 0.0
    acked: int = 0
    unknown: int = 0
    received: int = 0
    kills: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    server_early_bytes: int = 0
    server_late_bytes: int = 0
    client_early_bytes: int = 0
    client_late_bytes: int = 0
    members_killed: int = 0
    duplicates: int = 0
    problems: list[str] = field(default_factory=list)


async def run_piece(index: int, seconds: float, rate: int, store: Path, *, kill: bool) -> PieceReport:
    """Run piece `index`. rate: messages a second of all producers together. kill: SIGKILL half-way."""
    piece = _Piece(index, rate, store)
    started = time.monotonic()
    try:
        await piece.run(seconds, kill=kill)
    finally:
        await piece.servers.stop()
    piece.report.seconds = time.monotonic() - started
    return piece.report


class _Piece:
    def __init__(self, index: int, rate: int, store: Path) -> None:
        self.report = PieceReport()
        self.places = Places()
        self.pause = PRODUCERS / rate
        self.numbers = itertools.count(index * 10**9)
        self.first = index * 10**9
        self.latencies: list[float] = []
        self.memory: list[tuple[int, int]] = []
        self.sending = True
        self.servers = Servers(store)
        self.client = ClientConfig(namesrv=self.servers.namesrv, route_refresh_ms=500)

    async def run(self, seconds: float, *, kill: bool) -> None:
        await self.servers.start()
        async with (
            Producer("soak_producers", client=self.client) as producer,
            PullConsumer("soak_consumers", client=self.client) as consumer,
        ):
            while not self.report.acked:
                await self._send_one(producer)  # makes the topic
            queues = await self._queues(consumer)
            producers = [asyncio.create_task(self._keep_sending(producer)) for _ in range(PRODUCERS)]
            consumers = [asyncio.create_task(self._keep_reading(consumer, queue)) for queue in queues]
            await self._watch_memory(seconds / 2)
            if kill:
                await self._kill_and_restart()
            await self._watch_memory(seconds / 2)
            self.sending = False
            await asyncio.wait_for(asyncio.gather(*producers, *consumers), _SETTLE_SECONDS)
        self._finish()

    def _finish(self) -> None:
        self.places.settle()
        report = self.report
        report.received, report.problems = self.places.received, self.places.problems
        report.p50_ms, report.p99_ms = _at(self.latencies, 0.5), _at(self.latencies, 0.99)
        quarter = max(1, len(self.memory) // 4)
        for samples, when in (
            (self.memory[quarter : 2 * quarter], "early"),
            (self.memory[-quarter:], "late"),
        ):
            for side, sizes in zip(("server", "client"), zip(*samples, strict=True), strict=False):
                setattr(report, f"{side}_{when}_bytes", int(statistics.median(sizes)))

    async def _watch_memory(self, seconds: float) -> None:
        """Let `seconds` pass and note the memory of both sides now and then."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _SAMPLE_SECONDS))
            self.memory.append((memory_of(self.servers.pid)[0], memory_of()[0]))

    # -- clients ------------------------------------------------------------------------------

    async def _keep_sending(self, producer: Producer) -> None:
        while self.sending:
            next_at = time.monotonic() + self.pause
            await self._send_one(producer)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def _send_one(self, producer: Producer) -> None:
        number, started = next(self.numbers), time.monotonic()
        try:
            result = await producer.send(Message(TOPIC, body_of(number), keys=[f"{number}"]))
        except RocketError:
            self.report.unknown += 1
            await asyncio.sleep(0.1)
            return
        self.report.acked += 1
        self.latencies.append((time.monotonic() - started) * 1000)
        self.places.note_ack(number, result)

    async def _queues(self, consumer: PullConsumer) -> tuple[MessageQueue, ...]:
        """The queues of the topic; the name server knows a new one after a moment."""
        async with asyncio.timeout(_START_SECONDS):
            while True:
                with contextlib.suppress(RouteNotFound):
                    return await consumer.fetch_queues(TOPIC)
                await asyncio.sleep(0.05)

    async def _keep_reading(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        """From the queue's first message, through earlier pieces, to its end when sending ended."""
        offset = 0
        while True:
            sending = self.sending
            try:
                result = await consumer.pull(queue, offset)
            except RocketError:
                await asyncio.sleep(0.1)
                continue
            for message in result.messages:
                number = number_of(message.body)
                if number is None:
                    self.places.problems.append(f"{message} is not what any producer sent")
                elif number >= self.first:
                    self.places.note_read(message, number)
            offset = result.next_offset
            if result.status is not PullStatus.FOUND:
                if not sending:
                    return
                await asyncio.sleep(0.05)

    # -- servers ------------------------------------------------------------------------------

    async def _kill_and_restart(self) -> None:
        await self.servers.stop(signal.SIGKILL)
        self.report.kills += 1
        await self.servers.start()


def _at(latencies: list[float], share: float) -> float:
    return sorted(latencies)[int(share * (len(latencies) - 1))] if latencies else 0.0
