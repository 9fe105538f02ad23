"""Sends every line of a JSON-lines file through a real broker and checks that it comes back unchanged.

    python -m examples.demo [FILE]

Starts a name server and a broker on free loopback ports, with a store in a temporary folder. Sends the lines
in four ways: sync, async, one-way and in batches. Reads everything back, restarts both servers on the same
store, and reads again. Exit status: 0 if every message came back as it was sent, 1 if not, 2 for a file that
cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from examples.demo_check import differences, duplicates, message_of
from examples.demo_lines import Line, Lines, read_lines
from examples.demo_report import COLUMNS, Progress, Step, store_table, table
from examples.generate_events import DEFAULT_FILE, write_events
from rocketpy import Message, MessageExt, MessageQueue, Producer, PullConsumer, PullStatus
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy_broker import EmbeddedCluster

TOPIC = "DemoEvents"
IN_FLIGHT = 256
BATCH = 64
STORED_WITHIN_SECONDS = 10
SHOWN = 10
"""Maximum number of listed lines or differences; others are only counted."""


class Demo:
    """One run of the demo. store: folder of the broker's store. problems: differences that were found."""

    def __init__(self, lines: Sequence[Line], store: Path, progress: Progress) -> None:
        self.lines = lines
        self.store = store
        self.progress = progress
        self.steps: list[Step] = []
        self.problems: list[str] = []

    async def run(self) -> None:
        """Send, read back, restart the broker, read back again. Raises RocketError, TimeoutError."""
        async with EmbeddedCluster(self.store) as cluster:
            broker = cluster.brokers[0].address
            say(f"name server at {cluster.namesrv_address} and broker at {broker}, both in this process")
            await self.send_everything(cluster.namesrv_address)
            await self.read_everything("read", cluster.namesrv_address)
        async with EmbeddedCluster(self.store) as restarted:
            say(f"broker stopped, and started again on the same store at {restarted.brokers[0].address}")
            await self.read_everything("read after a restart", restarted.namesrv_address)

    # -- sending ------------------------------------------------------------------------------

    async def send_everything(self, namesrv: str) -> None:
        """Send a quarter of the lines in each way."""
        ways = (self.send_sync, self.send_async, self.send_oneway, self.send_batch)
        async with Producer("demo_producers", namesrv) as producer:
            for at, send in enumerate(ways):
                if messages := [message_of(TOPIC, line) for line in self.lines[at :: len(ways)]]:
                    await send(producer, messages)

    async def send_sync(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Wait for the broker's response to each message before the next one is sent."""
        with self.step("send sync", len(messages), "one after the other") as step:
            for message in messages:
                started = perf_counter()
                await producer.send(message)
                self.done(step, [message], started)

    async def send_async(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Send many messages concurrently, then wait for their responses."""
        with self.step("send async", len(messages), f"{IN_FLIGHT} in flight") as step:

            async def send(message: Message) -> None:
                started = perf_counter()
                await producer.send_nowait(message)
                self.done(step, [message], started)

            for group in groups(messages, IN_FLIGHT):
                await asyncio.gather(*map(send, group))

    async def send_oneway(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Send without responses; only reading back shows whether the messages arrived."""
        with self.step("send oneway", len(messages), "no response") as step:
            for group in groups(messages, IN_FLIGHT):
                for message in group:
                    producer.send_oneway(message)
                await producer.drain()
                self.done(step, group)

    async def send_batch(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Send many messages in one request."""
        with self.step("send batch", len(messages), f"{BATCH} in a request") as step:
            for group in groups(messages, BATCH):
                started = perf_counter()
                await producer.send_batch(group)
                self.done(step, group, started)

    # -- reading ------------------------------------------------------------------------------

    async def read_everything(self, name: str, namesrv: str) -> None:
        """Pull every queue from its first message to its last, and compare with what was sent."""
        async with PullConsumer("demo_consumers", namesrv) as consumer:
            queues = await self.wait_until_stored(consumer)
            with self.step(name, len(self.lines), "32 in a pull") as step:
                parts = await asyncio.gather(*(self.read_queue(consumer, queue, step) for queue in queues))
        received = [message for part in parts for message in part]
        self.problems += [f"{name}: {problem}" for problem in differences(self.lines, received)]
        if repeated := duplicates(received):
            step.remark += f"; {repeated:,} came twice"

    async def wait_until_stored(self, consumer: PullConsumer) -> tuple[MessageQueue, ...]:
        """Return the queues to read, once they have all messages, or after ten seconds.

        A new topic is registered with the name server after a moment, and one-way messages are stored later.
        Raises RouteNotFound if the topic has no route after ten seconds.
        """
        give_up_at = perf_counter() + STORED_WITHIN_SECONDS
        while True:
            try:
                queues = await consumer.fetch_queues(TOPIC)
                ends = await asyncio.gather(*map(consumer.max_offset, queues))
                if sum(ends) >= len(self.lines) or perf_counter() > give_up_at:
                    return queues
            except RouteNotFound:
                if perf_counter() > give_up_at:
                    raise
            await asyncio.sleep(0.02)

    async def read_queue(self, consumer: PullConsumer, queue: MessageQueue, step: Step) -> list[MessageExt]:
        """Return all messages of one queue."""
        messages: list[MessageExt] = []
        offset = await consumer.min_offset(queue)
        while True:
            started = perf_counter()
            result = await consumer.pull(queue, offset)
            if result.status is not PullStatus.FOUND:
                return messages
            messages += result.messages
            offset = result.next_offset
            self.done(step, result.messages, started)

    # -- measuring ----------------------------------------------------------------------------

    @contextmanager
    def step(self, name: str, total: int, remark: str) -> Iterator[Step]:
        """Measure the block, and report it as a step."""
        step, started = Step(name, remark), perf_counter()
        self.steps.append(step)
        self.progress.begin(name, total)
        yield step
        step.seconds = perf_counter() - started
        self.progress.end(step.seconds)

    def done(
        self, step: Step, messages: Sequence[Message | MessageExt], started: float | None = None
    ) -> None:
        """Count messages that one call sent or read. started: its start, to record its latency."""
        step.messages += len(messages)
        step.bytes += sum(len(message.body) for message in messages)
        if started is not None:
            step.latencies.append(perf_counter() - started)
        self.progress.advance(len(messages))


def groups(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """Return the messages in groups of at most `size`."""
    return (messages[at : at + size] for at in range(0, len(messages), size))


# -- the command line ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="JSON lines (default: 10,000 generated events)")
    file = parser.parse_args(arguments).file
    try:
        lines = load(file)
        return run(lines) if lines.good else 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (RocketError, TimeoutError) as error:
        say(f"{type(error).__name__}: {error}")
        return 1
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 2


def load(file: Path | None) -> Lines:
    """Read the lines of a file, or of generated events without one. Raises OSError."""
    if file is None:
        say("no file given, sending generated events; to send yours: make demo FILE=events.jsonl")
        file = DEFAULT_FILE
        if not file.exists():
            write_events(file)
    lines = read_lines(file)
    here = Path.cwd()
    say(f"{len(lines.good):,} events from {file.relative_to(here) if file.is_relative_to(here) else file}")
    say_some([f"line {number} is not sent: {reason}" for number, reason in lines.refused])
    if not lines.good:
        say(f"{file} has nothing to send; put one JSON value on each line")
    return lines


def run(lines: Lines) -> int:
    """Run the demo on lines and print the results; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="rocketpy-demo-") as folder:
        demo = Demo(lines.good, Path(folder) / "store", Progress())
        asyncio.run(demo.run())
        print("\n" + table([COLUMNS, *(step.row() for step in demo.steps)]))
        print("\n" + store_table(demo.store) + "\n")
    say_some(demo.problems)
    skipped = f"; {len(lines.refused):,} lines were not sent" if lines.refused else ""
    if demo.problems:
        print(f"FAILED: {len(demo.problems):,} differences among {len(lines.good):,} messages{skipped}")
        return 1
    print(f"OK: {len(lines.good):,} messages came back as they were sent, also after the restart{skipped}")
    return 0


def say(text: str) -> None:
    """Print a line to stderr."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


def say_some(problems: Sequence[str]) -> None:
    """Print the first problems, and the number of others."""
    for problem in problems[:SHOWN]:
        say(problem)
    if len(problems) > SHOWN:
        say(f"... and {len(problems) - SHOWN:,} more")


if __name__ == "__main__":
    sys.exit(main())
