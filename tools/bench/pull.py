"""`python -m tools.bench.pull`: full pulls of 32 through PULL_MESSAGE, at both brokers in turn.

One connection has a pull for each queue in flight and reads all messages, like consumers that are far behind.
The client only splits frames, so that the broker is the bottleneck. Each round prints messages per second,
and the broker's CPU microseconds per message.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rocketpy import Message, Producer
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Address
from tests.interop.java_peer import DEFAULT_VERSION
from tools.bench.comparison import EXIT_NOT_RUN, in_turn, prepare, words
from tools.bench.machine import usage
from tools.bench.servers import QUEUES, Server, servers

_BATCH = 500


async def fill(server: Server, count: int) -> None:
    """Send this many messages of 128 bytes with a tag and a key, to all queues in turn."""
    async with Producer("bench_pull", server.namesrv_address) as producer:
        for start in range(0, count, _BATCH):
            batch = [
                Message(server.topic, b"x" * 128, tags="TagA", keys=[f"key{n}"])
                for n in range(start, start + _BATCH)
            ]
            await producer.send_batch(batch)


def pull(server: Server, queue_id: int, offset: int) -> Command:
    """A pull request for 32 messages from this offset."""
    header = PullMessageRequestHeader(
        consumer_group="bench_pull",
        topic=server.topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)


async def read_all(server: Server) -> int:
    """Pull every queue to its end; return the number of messages."""
    address = Address.parse(server.broker.address)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    decoder = FrameDecoder()
    waiting = 0
    offsets = dict.fromkeys(range(QUEUES), 0)

    def ask(queue_id: int) -> None:
        nonlocal waiting
        waiting += 1
        request = pull(server, queue_id, offsets[queue_id])
        request.opaque = queue_id
        writer.write(encode_command(request))

    for queue_id in offsets:
        ask(queue_id)
    while waiting:
        data = await reader.read(1 << 20)
        if not data:
            raise ConnectionError(f"{server.name} closed the connection")
        for frame in decoder.feed(data):
            response = decode_command(frame)
            waiting -= 1
            if response.code == ResponseCode.SUCCESS:
                offsets[response.opaque] = response.header_as(PullMessageResponseHeader).next_begin_offset
                ask(response.opaque)
    writer.close()
    return sum(offsets.values())


def measure(server: Server) -> tuple[float, float]:
    """Messages per second, and the broker's CPU microseconds per message."""
    begin, before = time.perf_counter(), usage(server.broker_pid).cpu_s
    count = asyncio.run(read_all(server))
    spent = time.perf_counter() - begin
    return count / spent, (usage(server.broker_pid).cpu_s - before) / count * 1e6


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.pull", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--loops", type=words, default=["asyncio", "uvloop"], help="event loops of our broker"
    )
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    options = parser.parse_args(arguments)
    peer = prepare(DEFAULT_VERSION)
    if peer is None:
        return EXIT_NOT_RUN
    figures: dict[str, list[tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as run,
        servers(peer, Path(run), options.loops) as running,
    ):
        for server in running:
            asyncio.run(fill(server, options.messages))
        for number in range(options.rounds + 1):
            for server in in_turn(running, number):
                rate, cpu_us = measure(server)
                if number:  # the first round warms up
                    figures.setdefault(server.name, []).append((rate, cpu_us))
                print(f"round {number}  {server.name:16}  {rate:10,.0f} msgs/s  {cpu_us:6.2f} us", flush=True)
    for name, rounds in figures.items():
        rate, cpu_us = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"median   {name:16}  {rate:10,.0f} msgs/s  {cpu_us:6.2f} us of the broker's CPU a message")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
