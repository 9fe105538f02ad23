"""Measures how late delayed messages are: `python -m tools.bench.delay_accuracy [messages] [seconds]`.

A rocketpy client sends messages of delay level 1 (1 s) evenly for some seconds to a rocketpy broker process.
The lateness of a message is its store timestamp in its topic minus its born timestamp and the delay. It
includes the time of the send.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from rocketpy import Message, Producer, PullConsumer
from tests.interop.processes import OurBroker, OurNameServer

LEVEL_MS = 1000
TOPIC = "DelayAccuracy"


async def send(namesrv: str, count: int, seconds: float) -> None:
    """Send `count` messages, evenly."""
    async with Producer("delay_accuracy", namesrv=namesrv) as producer:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(count):
            await asyncio.sleep(begin + seconds * number / count - loop.time())
            await producer.send(Message(TOPIC, b"x" * 128, delay_level=1))


async def lateness(namesrv: str, count: int) -> list[int]:
    """The sorted latenesses of all messages, in ms."""
    found: list[int] = []
    async with PullConsumer("delay_accuracy", namesrv=namesrv) as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            offset = 0
            while messages := (await consumer.pull(queue, offset)).messages:
                found += [one.store_timestamp - one.born_timestamp - LEVEL_MS for one in messages]
                offset += len(messages)
    if len(found) != count:
        raise RuntimeError(f"{len(found)} of {count} messages were delivered")
    return sorted(found)


def main(count: int = 5000, seconds: float = 10) -> None:
    """Print the median, the 99th percentile and the maximum."""
    with tempfile.TemporaryDirectory(prefix="rocketpy-delay-") as directory:
        run = Path(directory)
        with OurNameServer(run) as names, OurBroker(run, names.address):
            asyncio.run(send(names.address, count, seconds))
            asyncio.run(asyncio.sleep(2))
            late = asyncio.run(lateness(names.address, count))
    p50, p99 = late[count // 2], late[count * 99 // 100]
    print(
        f"{count} messages in {seconds:g} s: late by {p50} ms (median), {p99} ms (p99), {late[-1]} ms (most)"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:3]))
