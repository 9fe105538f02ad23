"""Nine good clients: four producers, four consumers of groups of their own, and a user of the web console.

`python -m tools.attack.clients NAMESRV CONSOLE` prints "ready", and for each line of its input the figures
since the line before. At the end of its input it prints how many acknowledged messages each consumer lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from rocketpy.errors import RocketError
from tools.attack.console import TOKEN

TOPIC = "AttackControl"
_PAUSE_S = 0.02
_PAGE_PAUSE_S = 0.25
_PAGE_S = 10.0
_READ_S = 60
_CLIENTS = 4


@dataclass(slots=True)
class _Work:
    """The counters of the clients. sends_ms, deliveries_ms, pages_ms: since the last figures."""

    sends_ms: list[float] = field(default_factory=list)
    deliveries_ms: list[float] = field(default_factory=list)
    pages_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    page_failures: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    received: list[set[str]] = field(default_factory=lambda: [set() for _ in range(_CLIENTS)])

    def figures(self) -> dict[str, object]:
        """The figures since the last call."""
        sends, self.sends_ms = self.sends_ms, []
        deliveries, self.deliveries_ms = self.deliveries_ms, []
        pages, self.pages_ms = self.pages_ms, []
        failures, self.failures = self.failures, []
        page_failures, self.page_failures = self.page_failures, []
        return {
            "sends": len(sends),
            "failures": failures[:5],
            "failed": len(failures),
            "send_ms": quantiles(sends),
            "deliveries": len(deliveries),
            "delivery_ms": quantiles(deliveries),
            "pages": len(pages),
            "page_failures": page_failures,
            "page_ms": quantiles(pages),
        }

    async def produce(self, namesrv: str, number: int, stop: asyncio.Event) -> None:
        """Send a message every 20 ms."""
        patient = ProducerConfig(send_timeout_ms=10_000, batching=False)
        client = ClientConfig(namesrv=namesrv)
        count = 0
        async with Producer(f"attack-producers-{number}", client=client, config=patient) as producer:
            while not stop.is_set():
                count += 1
                name, begun = f"{number}-{count}", time.perf_counter()
                try:
                    await producer.send(Message(TOPIC, f"{name} {begun}".encode()))
                except RocketError as error:
                    self.failures.append(f"{type(error).__name__}: {error}"[:300])
                else:
                    self.acknowledged.add(name)
                    self.sends_ms.append((time.perf_counter() - begun) * 1000)
                await asyncio.sleep(_PAUSE_S)

    async def browse(self, console: str, stop: asyncio.Event) -> None:
        """Request the first page of the console four times a second, each time with a new connection."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

        def request(target: str) -> None:
            with browser.open(f"http://{console}/{target}", timeout=_PAGE_S) as response:
                response.read()

        await asyncio.to_thread(request, f"?token={TOKEN}")  # sets the cookie
        while not stop.is_set():
            begun = time.perf_counter()
            try:
                await asyncio.to_thread(request, "")
            except (OSError, HTTPException) as error:  # also another status than 200
                self.page_failures.append(f"{type(error).__name__}: {error}"[:300])
            else:
                self.pages_ms.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(_PAGE_PAUSE_S)

    def consumer(self, namesrv: str, number: int) -> PushConsumer:
        """A client that records its messages."""

        async def handle(message: MessageExt) -> None:
            name, begun = message.body.decode().split()
            self.received[number].add(name)
            self.deliveries_ms.append((time.perf_counter() - float(begun)) * 1000)

        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer(
            f"attack-readers-{number}", client=ClientConfig(namesrv=namesrv), handler=handle, config=config
        )
        consumer.subscribe(TOPIC)
        return consumer

    async def read_all(self) -> list[int]:
        """Wait until each consumer has the acknowledged messages; return how many each lacks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                await _until(lambda: all(self.acknowledged <= got for got in self.received))
        return [len(self.acknowledged - got) for got in self.received]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum; zeros of nothing."""
    ordered = sorted(values) or [0.0]
    return {
        "p50": round(ordered[len(ordered) // 2], 2),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
        "max": round(ordered[-1], 2),
    }


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(_PAUSE_S)


async def _run(namesrv: str, console: str) -> None:
    work, stop = _Work(), asyncio.Event()
    consumers = [work.consumer(namesrv, number) for number in range(_CLIENTS)]
    async with asyncio.TaskGroup() as clients:
        for number in range(_CLIENTS):
            clients.create_task(work.produce(namesrv, number, stop))
        await _until(lambda: len(work.acknowledged) >= _CLIENTS)
        for consumer in consumers:
            await consumer.start()
        await _until(lambda: all(work.received))
        clients.create_task(work.browse(console, stop))
        await _until(lambda: bool(work.pages_ms))
        _print_json("ready")
        while await asyncio.to_thread(sys.stdin.readline):
            _print_json(work.figures())
        stop.set()
    lacking = await work.read_all()
    _print_json({"acknowledged": len(work.acknowledged), "lost": lacking})
    for consumer in consumers:
        await consumer.close()


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
