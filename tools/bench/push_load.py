"""The consumer process of the push benchmark: rocketpy.PushConsumer on request (loads.LoadProcess).

Input line: {"do": "drain" or "latency", "namesrv", "topic", "group", "messages"}; the output line is that of
java/PushLoad.java. The handler is an ``async def``, or a plain function in threads or in the event loop. With
"lite", a `LitePullConsumer` drains the topic.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketpy import ConsumeFrom, LitePullConfig, LitePullConsumer, MessageExt, PushConfig, PushConsumer

HANDLERS = ("async", "threads", "loop")
LITE = "lite"  # in place of a handler: a lite-pull consumer


class Measurement:
    """Counts messages, and records the age of each when its handler begins."""

    def __init__(self, wanted: int, timed: bool, done: Callable[[], object]) -> None:
        self.wanted = wanted
        self.timed = timed
        self.count = 0
        self.first = 0.0
        self.last = 0.0
        self.since_ns = 0
        self.micros: list[float] = []
        self._done = done

    def handle(self, message: MessageExt) -> None:
        """Count one message. With `timed`, those sent in the first two seconds are not counted."""
        if not self.first:
            self.first = time.perf_counter()
            self.since_ns = time.time_ns() + 2_000_000_000
        if self.timed:
            sent_ns = int(message.body)
            if sent_ns < self.since_ns:
                return
            self.micros.append((time.time_ns() - sent_ns) / 1000)
        self.count += 1
        if self.count == self.wanted:
            self.last = time.perf_counter()
            self._done()

    async def handle_async(self, message: MessageExt) -> None:
        """Like `handle`, as a coroutine."""
        self.handle(message)

    def report(self) -> dict[str, Any]:
        """The result line."""
        ordered = sorted(self.micros[: self.wanted])
        places = {
            name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0
            for name, share in {"p50_us": 0.5, "p99_us": 0.99, "max_us": 1.0}.items()
        }
        return {"sent": self.wanted, "failed": 0, "seconds": self.last - self.first, **places}


async def serve(handler: str) -> None:
    """Respond to requests until the input ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await measure_load(json.loads(line), handler)), flush=True)


async def measure_load(what: dict[str, Any], handler: str) -> dict[str, Any]:
    """Consume as the request `what` describes; return the result line."""
    done = asyncio.Event()
    timed = what["do"] == "latency"
    counted = Measurement(
        what["messages"], timed, partial(asyncio.get_running_loop().call_soon_threadsafe, done.set)
    )
    if handler == LITE:
        return await poll(what, counted)
    consumer = PushConsumer(
        what["group"],
        what["namesrv"],
        counted.handle_async if handler == "async" else counted.handle,
        config=PushConfig(
            consume_from=ConsumeFrom.LAST_OFFSET if timed else ConsumeFrom.FIRST_OFFSET,
            threads=handler == "threads",
        ),
    )
    consumer.subscribe(what["topic"])
    async with consumer:
        await done.wait()
    return counted.report()


async def poll(what: dict[str, Any], counted: Measurement) -> dict[str, Any]:
    """Drain the topic with a lite-pull consumer."""
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer(what["group"], what["namesrv"], config=config)
    consumer.subscribe(what["topic"])
    async with consumer:
        while counted.count < counted.wanted:
            for message in await consumer.poll():
                counted.handle(message)
    return counted.report()


def main() -> None:
    """Pick the loop and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--handler", choices=[*HANDLERS, LITE], default="async")
    options = parser.parse_args()
    if options.loop == "uvloop":
        importlib.import_module("uvloop").run(serve(options.handler))
    else:
        asyncio.run(serve(options.handler))


if __name__ == "__main__":
    main()
