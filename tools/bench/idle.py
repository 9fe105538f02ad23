"""`python -m tools.bench.idle`: the cost of idle consumers, at RocketMQ's broker and rocketpy's.

Starts push consumers of rocketpy, each with its own group and connection and all queues of an empty topic.
Each has a held pull per queue, renewed every 15 s, a heartbeat every 30 s, and commits offsets every 5 s. For
each broker, the CPU usage of the broker and of the process with all consumers is printed, in percent of a
core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rocketpy import ClientConfig, PushConsumer
from rocketpy.message import MessageExt
from tests.interop.java_peer import DEFAULT_VERSION
from tests.mqproducer.place import eventually
from tools.bench.comparison import EXIT_NOT_RUN, prepare, words
from tools.bench.machine import usage
from tools.bench.servers import QUEUES, Server, servers


async def handle(message: MessageExt) -> None:
    """No messages arrive."""
    raise RuntimeError(f"{message} in a topic to which nobody sends")


async def connect(stack: AsyncExitStack, server: Server, count: int) -> None:
    """Start consumers, and wait until each has all queues and a pull of each is held."""
    consumers = []
    for number in range(count):
        client = ClientConfig(namesrv=server.namesrv_address, instance_name=f"idle{number}")
        consumer = PushConsumer(f"bench_idle_{number}", handler=handle, client=client)
        consumer.subscribe(server.topic)
        consumers.append(await stack.enter_async_context(consumer))

    async def all_taken() -> bool | None:
        taken = (sum(queue.topic == server.topic for queue in one.assignment) for one in consumers)
        return all(count == QUEUES for count in taken) or None

    await eventually(all_taken, 120)
    await asyncio.sleep(5)


async def measure(server: Server, count: int, seconds: float) -> tuple[float, float]:
    """The CPU usage of the broker and of all consumers together, in percent of a core."""
    async with AsyncExitStack() as stack:
        await connect(stack, server, count)
        before = usage(server.broker_pid).cpu_s, time.process_time()
        await asyncio.sleep(seconds)
        after = usage(server.broker_pid).cpu_s, time.process_time()
    broker, ours = ((b - a) / seconds * 100 for a, b in zip(before, after, strict=True))
    return broker, ours


def main(arguments: list[str]) -> int:
    """Measure and print. 0 when done, 3 where Java tools are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.idle", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of each broker; two heartbeats by default"
    )
    parser.add_argument("--loops", type=words, default=["asyncio", "uvloop"], help="loops of our broker")
    options = parser.parse_args(arguments)
    peer = prepare(DEFAULT_VERSION)
    if peer is None:
        return EXIT_NOT_RUN
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-bench-") as run,
        servers(peer, Path(run), options.loops) as running,
    ):
        for server in running:
            broker, ours = asyncio.run(measure(server, options.consumers, options.seconds))
            print(
                f"{options.consumers} idle consumers  {server.name:16}  broker {broker:5.2f} %"
                f"  consumers {ours:5.2f} %  of a core",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
