"""Sends every line of a JSON-lines file through a real broker and checks that it comes back unchanged.

    python -m examples.demo [FILE]

Starts a name server and a broker on free loopback ports, with a store in a temporary folder; sends the
lines in the four ways RocketMQ has; reads everything back; stops the broker, starts it again on the same
store and reads again. Exit status: 0 when every message came back as it was sent, 1 when not, 2 for a
file that cannot be used.
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
"""How many bad lines or differences are listed; the rest is counted."""


class Demo:
    """One run: the lines, where the store is, and what was measured."""

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
        """A quarter of the lines each way."""
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
        """Hand over many messages, then wait for their responses."""
        with self.step("send async", len(messages), f"{IN_FLIGHT} in flight") as step:

            async def send(message: Message) -> None:
                started = perf_counter()
                await producer.send_nowait(message)
                self.done(step, [message], started)

            for group in groups(messages, IN_FLIGHT):
                await asyncio.gather(*map(send, group))

    async def send_oneway(self, producer: Producer, messages: Sequence[Message]) -> None:
        """There are no responses, so only reading back shows whether they arrived."""
        with self.step("send oneway", len(messages), "no response") as step:
            for group in groups(messages, IN_FLIGHT):
                for message in group:
                    producer.send_oneway(message)
                await producer.drain()
                self.done(step, group)

    async def send_batch(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Many messages in one request."""
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
        """The queues to read, once all is in them. What is not there in ten seconds is missing.

        A new topic takes a moment to be known to the name server, and oneway messages to be stored.
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
        """All messages of one queue."""
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
        """Measure what is done inside."""
        step, started = Step(name, remark), perf_counter()
        self.steps.append(step)
        self.progress.begin(name, total)
        yield step
        step.seconds = perf_counter() - started
        self.progress.end(step.seconds)

    def done(
        self, step: Step, messages: Sequence[Message | MessageExt], started: float | None = None
    ) -> None:
        """Count one call that sent or read these messages. started: when, if its end is worth measuring."""
        step.messages += len(messages)
        step.bytes += sum(len(message.body) for message in messages)
        if started is not None:
            step.latencies.append(perf_counter() - started)
        self.progress.advance(len(messages))


def groups(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """The messages, so many at a time."""
    return (messages[at : at + size] for at in range(0, len(messages), size))


# -- the command line ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
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
    """The lines of a file, or of the events that a script of this repository makes up. Raises OSError."""
    if file is None:
        say("no file given, so made-up events; your own: make demo FILE=events.jsonl")
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
    """Run the demo on lines and show what came of it; 0 when all is well."""
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
    """Tell what is going on."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


def say_some(problems: Sequence[str]) -> None:
    """Show the first problems and say how many more there are."""
    for problem in problems[:SHOWN]:
        say(problem)
    if len(problems) > SHOWN:
        say(f"... and {len(problems) - SHOWN:,} more")


if __name__ == "__main__":
    sys.exit(main())
