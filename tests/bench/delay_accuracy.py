"""How late delayed messages are: `python -m tests.bench.delay_accuracy [messages] [seconds]`.

A broker process of ours, messages of delay level 1 (1 s) sent evenly for some seconds by our SDK. Late is the
time between when a message was due, counted from its birth in the producer, and when it was stored in its
topic; so the time of the send is in it.
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
    """How late each was, ms, sorted."""
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
    """Print the median, the 99th percentile and the worst."""
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
