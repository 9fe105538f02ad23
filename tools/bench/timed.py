"""Timed messages beside RocketMQ 5.5.0: `python -m tools.bench.timed [--messages N] [--rounds N]`.

Two of rocketpy's producers, each with 64 sends in flight, send messages that are all due at the same second:
first to one broker, then to the other. Every second round begins with the other broker; the first round
warms up and is not counted. Printed are medians of the rounds: sends a second, deliveries a second from the
due time until the last message is in its topic, the broker's CPU time for each message, and the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rocketpy import Message, Producer, PullConsumer
from tests.interop import probe
from tests.interop.cluster import PATIENT, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import JavaBroker, JavaNameServer, OurBroker, OurNameServer
from tools.bench.machine import usage
from tools.bench.results import align
from tools.bench.servers import BROKER_JVM, CONF, JAVA, Server

VERSION: Final = "5.5.0"
PRODUCERS: Final = 2
"""With one, broker and client take turns: one waits while the other works on all sends in flight."""
IN_FLIGHT: Final = 64
"""Of each producer."""
WARM_UP: Final = 2000
SETTINGS: Final = {**CONF, **PATIENT}
"""A Java broker that is not compiled yet rejects sends after 200 ms."""
BODY: Final = b"x" * 128


@dataclass(frozen=True)
class Sample:
    """One round with one broker."""

    sends: float
    """Messages a second."""
    send_cpu_us: float
    """CPU time of the broker for each message."""
    client_cpu_us: float
    """CPU time of the client for each send."""
    deliveries: float
    delivery_cpu_us: float
    first_ms: int
    """Between the due time and the first delivery; negative if that was early."""
    late_ms: int
    """Between the due time and the last delivery."""


async def send(producers: Sequence[Producer], topic: str, count: int, due: datetime) -> float:
    """Send messages that are due at one time; return the seconds that this took."""
    numbers = iter(range(count))

    async def some(producer: Producer) -> None:
        for _ in numbers:
            await producer.send(Message(topic, BODY, deliver_at=due))

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for producer in producers:
            for _ in range(IN_FLIGHT):
                tasks.create_task(some(producer))
    return time.perf_counter() - begin


async def store_times(namesrv: str, topic: str, after_ms: int) -> tuple[int, int]:
    """Return when the first message of a topic after a time was stored, and the last one."""
    times = []
    async with PullConsumer("bench_timed", namesrv=namesrv) as consumer:
        for queue in await consumer.fetch_queues(topic):
            ends = await consumer.search_offset(queue, after_ms), await consumer.max_offset(queue) - 1
            times += [(await consumer.pull(queue, offset)).messages[0].store_timestamp for offset in ends]
    return min(times), max(times)


async def measure(server: Server, topic: str, count: int, lead_s: float) -> Sample:
    """Measure one round. Raises RuntimeError if the messages were not sent within `lead_s`."""
    namesrv, pid = server.namesrv_address, server.broker_pid
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(Producer(f"bench_timed_{number}", namesrv=namesrv))
            for number in range(PRODUCERS)
        ]
        await send(producers, topic, WARM_UP, datetime.now(UTC))  # also creates the topic
        due_s = math.ceil(time.time() + lead_s)  # RocketMQ delivers in whole seconds
        before, client_before = usage(pid).cpu_s, time.process_time()
        seconds = await send(producers, topic, count, datetime.fromtimestamp(due_s, UTC))
        client_cpu_s = time.process_time() - client_before
    left_s = due_s - time.time()
    if left_s < 1:
        raise RuntimeError(f"the sends took {seconds:.1f} s; use a longer --lead than {lead_s:g}")
    await asyncio.sleep(left_s - 0.5)  # a broker puts timers into its wheel meanwhile
    waited = usage(pid).cpu_s
    await asyncio.to_thread(
        probe.wait_until,
        lambda: probe.message_count(namesrv, topic) >= WARM_UP + count,
        "deliveries",
        120,
        0.2,
    )
    delivered = usage(pid).cpu_s
    first_ms, last_ms = await store_times(namesrv, topic, due_s * 1000 - 1000)
    late_ms = max(last_ms - due_s * 1000, 1)
    return Sample(
        count / seconds,
        (waited - before) / count * 1e6,
        client_cpu_s / count * 1e6,
        count / late_ms * 1000,
        (delivered - waited) / count * 1e6,
        first_ms - due_s * 1000,
        late_ms,
    )


def report(samples: Mapping[str, list[Sample]]) -> str:
    """Return the table."""
    rows: list[tuple[str, ...]] = [
        (
            "broker",
            "sends/s",
            "ratio",
            "CPU us",
            "client's",
            "deliveries/s",
            "ratio",
            "CPU us",
            "late by ms: first",
            "last",
        )
    ]

    def median(name: str, field: str) -> float:
        return float(statistics.median(getattr(sample, field) for sample in samples[name]))

    for name in samples:
        cells = [name]
        for rate, *costs in (("sends", "send_cpu_us", "client_cpu_us"), ("deliveries", "delivery_cpu_us")):
            cells += [f"{median(name, rate):,.0f}", f"{median(name, rate) / median(JAVA, rate):.2f}"]
            cells += [f"{median(name, cost):.1f}" for cost in costs]
        rows.append((*cells, f"{median(name, 'first_ms'):.0f}", f"{median(name, 'late_ms'):.0f}"))
    return align(rows)


def main() -> None:
    """Start both brokers, and measure in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first one")
    parser.add_argument("--lead", type=float, default=6, help="seconds from the first send to the due time")
    options = parser.parse_args()
    peer = JavaPeer.prepare().of_version(VERSION)
    samples: dict[str, list[Sample]] = {JAVA: [], "rocketpy": []}
    with tempfile.TemporaryDirectory(prefix="rocketpy-timed-") as directory, ExitStack() as stack:
        run = Path(directory)
        names, our_names = JavaNameServer(peer, run), OurNameServer(run)
        stack.enter_context(stopping([names.start(), our_names.start()]))
        java = JavaBroker(peer, run, names.address, conf=SETTINGS, jvm=BROKER_JVM)
        ours = OurBroker(run, our_names.address, conf=SETTINGS)
        stack.enter_context(stopping([java.start(), ours.start()]))
        running = [Server(JAVA, names, java), Server("rocketpy", our_names, ours)]
        for number in range(options.rounds + 1):
            for server in running if number % 2 == 0 else running[::-1]:
                sample = asyncio.run(measure(server, f"Timed{number}", options.messages, options.lead))
                if number:
                    samples[server.name].append(sample)
                print(f"round {number}: {server.name}: {sample}", flush=True)
    print(report(samples))


if __name__ == "__main__":
    main()
