"""The benchmark's client process: rocketpy.Producer sends for a fixed time on request (loads.LoadProcess).

Input line: {"namesrv", "topic", "concurrency", "seconds", "bytes", "topics"?, "batch"?, "gathers"?,
"credentials"?}; output line: {"sent", "failed", "seconds", "cpu_seconds", "p50_us", "p99_us", "max_us"}.
`sent` counts messages; `failed` and the latencies are those of requests. `topics`: number of topics that
single sends use in turn; their names are `topic` and a number from 0 on. `credentials`: arguments of
`Credentials`. `namesrv` may be tls://.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rocketpy import ClientConfig, Message, Producer, ProducerConfig, SendStatus
from rocketpy.config import Credentials
from rocketpy.errors import RocketError

_ROUTE_REFRESH_MS: Final = 3_600_000
"""Not during a run: the routes of thousands of topics would take time from the sends."""


@dataclass
class Tally:
    """The results of one measurement, which begins when this is made."""

    sent: int = 0
    failed: int = 0
    nanoseconds: list[int] = field(default_factory=list)
    began_cpu_s: float = field(default_factory=time.process_time)

    def report(self, seconds: float) -> dict[str, Any]:
        """The result line."""
        cpu_s = time.process_time() - self.began_cpu_s  # without the sort, which takes 0.3 µs a message
        ordered = sorted(self.nanoseconds) or [0]
        at = {"p50_us": 0.5, "p99_us": 0.99, "max_us": 1.0}
        places = {
            name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000
            for name, share in at.items()
        }
        counts = {"sent": self.sent, "failed": self.failed}
        return {**counts, "seconds": seconds, "cpu_seconds": cpu_s, **places}


async def serve() -> None:
    """Respond to requests until the input ends. Each name server has two producers, one with batching."""
    producers: dict[tuple[str, bool, str], Producer] = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        what = json.loads(line)
        key = what["namesrv"], what.get("gathers", True), json.dumps(what.get("credentials"))
        if key not in producers:
            producers[key] = await start_producer(*key)
        print(json.dumps(await measure_load(producers[key], what)), flush=True)
    for producer in producers.values():
        await producer.close()


async def start_producer(namesrv: str, gathers: bool, credentials: str) -> Producer:
    """A started producer. gathers: whether it batches sends that are in flight at the same time.

    credentials: as JSON.
    """
    given = json.loads(credentials)
    client = ClientConfig(
        route_refresh_ms=_ROUTE_REFRESH_MS,
        credentials=None if given is None else Credentials(**given),
        ssl=any_certificate() if namesrv.startswith("tls://") else None,
    )
    producer = Producer("bench_producer", namesrv, config=ProducerConfig(batching=gathers), client=client)
    await producer.start()
    return producer


def any_certificate() -> ssl.SSLContext:
    """A context that trusts every server; the measurement begins after the handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def measure_load(producer: Producer, what: dict[str, Any]) -> dict[str, Any]:
    """Send as the request `what` describes; return the result line."""
    tally, start = Tally(), time.perf_counter()
    until_ns = int((start + what["seconds"]) * 1e9)
    topic, body, count = what["topic"], b"b" * what["bytes"], what.get("batch")
    topics = itertools.cycle([f"{topic}{number}" for number in range(what.get("topics", 0))] or [topic])
    async with asyncio.TaskGroup() as group:
        for _ in range(what["concurrency"]):
            if count:
                sending = keep_sending_batches(producer, topic, body, count, tally, until_ns)
            else:
                sending = keep_sending(producer, topics, body, tally, until_ns)
            group.create_task(sending)
    return tally.report(time.perf_counter() - start)


async def keep_sending(
    producer: Producer, topics: Iterator[str], body: bytes, tally: Tally, until_ns: int
) -> None:
    """Send single messages until the end, as one of the concurrent callers. It calls as little as it can."""
    clock, send, note = time.perf_counter_ns, producer.send, tally.nanoseconds.append
    stored, now = 0, clock()
    while now < until_ns:
        try:
            if (await send(Message(next(topics), body))).status is SendStatus.SEND_OK:
                stored += 1
            else:
                tally.failed += 1
        except RocketError:
            tally.failed += 1
        after = clock()
        note(after - now)
        now = after
    tally.sent += stored


async def keep_sending_batches(
    producer: Producer, topic: str, body: bytes, count: int, tally: Tally, until_ns: int
) -> None:
    """Send batches of `count` messages until the end, as one of the concurrent callers."""
    clock = time.perf_counter_ns
    now = clock()
    while now < until_ns:
        stored = 0
        try:
            results = await producer.send_batch([Message(topic, body) for _ in range(count)])
            stored = sum(result.status is SendStatus.SEND_OK for result in results)
        except RocketError:
            pass
        tally.sent += stored
        tally.failed += not stored
        after = clock()
        tally.nanoseconds.append(after - now)
        now = after


def main(serve: Callable[[], Coroutine[Any, Any, None]] = serve) -> None:
    """Pick the loop and serve; the functions of another program may be served."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    if parser.parse_args().loop == "uvloop":
        importlib.import_module("uvloop").run(serve())
    else:
        asyncio.run(serve())


if __name__ == "__main__":
    main()
