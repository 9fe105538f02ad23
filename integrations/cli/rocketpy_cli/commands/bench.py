"""``rocketpy bench``: sends messages to a cluster, reads them, and prints throughput and latencies."""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Annotated, Final

import typer

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.reader import ToolsConsumer
from rocketpy.config import ClientConfig, ProducerConfig
from rocketpy.consumer import PullConsumer
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.message.message import Message, check_topic
from rocketpy.producer import Producer
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.tasks import subtask
from rocketpy_cli.archives.transfer import run_all
from rocketpy_cli.context import Options, Yes
from rocketpy_cli.progress import OnProgress, count_bar
from rocketpy_cli.tables import print_table

_GROUP: Final = "rocketpy-bench"
_HEAD: Final = Struct(">8sqq")
"""The start of each body: the id of the run, the number of the message, and when it was due, in ns."""
_PULL_MAX: Final = 1024
_SILENCE_S: Final = 30.0
"""How long the consumer waits for the next message."""
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
_QUEUES: Final = 4

EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy bench Bench[/cyan]  (100,000 messages of 1,024 bytes, as fast as 64 tasks can)

[cyan]rocketpy bench Bench --rate 2000 --messages 20000 --size 200 --yes --json[/cyan]"""


def bench(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic to use; it is created if it does not exist.")],
    messages: Annotated[
        int, typer.Option("--messages", "-m", min=1, metavar="N", help="How many messages.")
    ] = 100_000,
    size: Annotated[
        int, typer.Option("--size", "-s", min=_HEAD.size, metavar="BYTES", help="The length of a body.")
    ] = 1024,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, metavar="N", help="Concurrent sends.")
    ] = 64,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most N messages per second.")
    ] = None,
    consumes: Annotated[bool, typer.Option("--consume/--no-consume", help="Read the messages, too.")] = True,
    yes: Yes = False,
) -> None:
    """Measure how fast messages are sent and read, in one process with one event loop.

    Latencies are in milliseconds, from the start of a send to its response, and to the arrival at a consumer.
    With --rate they begin at the time at which a message was due. The messages stay in the topic.
    """
    client = options.cluster.client
    check_topic(topic)
    exists = options.run(_exists(client, topic))
    create = "" if exists else f"create topic {topic} with {_QUEUES} queues on each broker, and "
    options.confirm(f"{create}send {messages:,} messages of {size:,} bytes to topic {topic}", yes=yes)
    run = Bench(topic, messages, size, concurrency, rate)
    with count_bar(messages, 0, hidden=options.as_json) as progress:
        options.run(run.run(client, progress, creates=not exists, consumes=consumes))
    results = {"send": run.sent.result(size)}
    if consumes:
        results["consume"] = run.received.result(size)
    fields = {"topic": topic, "messages": messages, "size": size, "concurrency": concurrency, "rate": rate}
    if options.as_json:
        print(json.dumps({**fields, "failed": run.failed, **results}))
    else:
        rows = [{"": name, **figures} for name, figures in results.items()]
        print_table(rows, decimals=2)
    if run.first_error is not None:
        raise RocketError(
            f"{run.failed:,} of {messages:,} sends failed, the first one with: {run.first_error}"
        )
    if consumes and len(run.received.latencies_ms) < messages:
        lost = messages - len(run.received.latencies_ms)
        raise RocketError(
            f"{lost:,} of {messages:,} messages are missing: none arrived for {_SILENCE_S:.0f} s"
        )


async def _exists(client: ClientConfig, topic: str) -> bool:
    async with ToolsConsumer(client=client) as consumer:
        try:
            return bool(await consumer.fetch_queues(topic))
        except RouteNotFound:
            return False


@dataclass(eq=False)
class Measured:
    """The latencies of sends or of arrivals."""

    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    started_s: float = 0.0
    """Monotonic time, in seconds."""
    ended_s: float = 0.0
    """Monotonic time, in seconds."""

    def add(self, due_ns: int) -> None:
        """Count a message that was due at `due_ns` (monotonic) and was confirmed or arrived now."""
        now_ns = time.monotonic_ns()
        self.latencies_ms.append((now_ns - due_ns) / 1e6)
        self.ended_s = now_ns / 1e9

    def result(self, size: int) -> dict[str, float]:
        """Return messages and MB per second, and quantiles of the latencies in ms."""
        count, seconds = len(self.latencies_ms), max(self.ended_s - self.started_s, 1e-9)
        speed = {
            "messages": count,
            "per_second": round(count / seconds, 1),
            "MB_per_second": round(count * size / seconds / 1e6, 2),
        }
        return speed | quantiles(self.latencies_ms)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the quantiles to print. Each is one of the values; without values, each is 0."""
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(share * len(ordered)))], 3) for name, share in _QUANTILES.items()
    }


@dataclass(eq=False)
class Bench:
    """One run."""

    topic: str
    messages: int
    size: int
    concurrency: int
    rate: float | None
    sent: Measured = field(default_factory=Measured)
    received: Measured = field(default_factory=Measured)
    failed: int = 0
    """The number of failed sends."""
    first_error: RocketError | None = None
    """The error of the first of them."""
    _run_id: bytes = field(default_factory=lambda: os.urandom(8))
    _all_sent: bool = False
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, client: ClientConfig, progress: OnProgress, *, creates: bool, consumes: bool) -> None:
        """Send and read the messages. creates: whether to create the topic first. Raises RocketError."""
        if creates:
            async with AdminClient(client=client) as admin:
                await admin.create_topic(self.topic, _QUEUES)
        config = ProducerConfig(max_in_flight=max(self.concurrency, 1))
        async with (
            ToolsConsumer(client=client) as consumer,
            Producer(_GROUP, client=client, config=config) as producer,
        ):
            queues = await consumer.fetch_queues(self.topic) if consumes else ()
            begins = {queue: await consumer.max_offset(queue) for queue in queues}
            self.sent.started_s = self.received.started_s = time.monotonic()
            works = [self._send_all(producer, progress)]
            if consumes:
                works.append(self._read_all(consumer, begins))
            await run_all(works)

    async def _send_all(self, producer: Producer, progress: OnProgress) -> None:
        numbers = iter(range(self.messages))
        filler = b"x" * (self.size - _HEAD.size)

        async def send() -> None:
            for number in numbers:
                due_ns = time.monotonic_ns()
                if self.rate is not None:
                    due_ns = int((self.sent.started_s + number / self.rate) * 1e9)
                    await asyncio.sleep(max(0.0, due_ns / 1e9 - time.monotonic()))
                head = _HEAD.pack(self._run_id, number, due_ns)
                try:
                    await producer.send(Message(self.topic, head + filler))
                except RocketError as error:
                    self.failed += 1
                    self.first_error = self.first_error or error
                else:
                    self.sent.add(due_ns)
                progress(1)

        await run_all([send() for _ in range(min(self.concurrency, self.messages))])
        self._all_sent = True
        self._check_complete()

    async def _read_all(self, consumer: PullConsumer, begins: Mapping[MessageQueue, int]) -> None:
        """Read until every message has arrived, or none has arrived for `_SILENCE_S`."""
        complete = subtask(self._complete.wait(), "complete")
        reading = {subtask(self._read(consumer, queue, begin), str(queue)) for queue, begin in begins.items()}
        seen = -1
        try:
            while seen < len(self.received.latencies_ms) or not self._all_sent:
                seen = len(self.received.latencies_ms)
                done, _ = await asyncio.wait(
                    {complete, *reading}, timeout=_SILENCE_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    await task
                if complete in done:
                    break
        finally:
            for task in (complete, *reading):
                task.cancel()
            await asyncio.gather(complete, *reading, return_exceptions=True)

    async def _read(self, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        while True:
            pulled = await consumer.pull(queue, offset, _PULL_MAX)
            offset = pulled.next_offset
            for message in pulled.messages:
                if message.body.startswith(self._run_id):
                    self.received.add(_HEAD.unpack_from(message.body)[2])
            self._check_complete()

    def _check_complete(self) -> None:
        if self._all_sent and len(self.received.latencies_ms) >= self.messages - self.failed:
            self._complete.set()
