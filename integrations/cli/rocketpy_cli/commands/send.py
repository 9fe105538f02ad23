"""``rocketpy send``: sends arguments, or the lines of a file or of standard input."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from rocketpy import CompressionConfig, Message, Producer, ProducerConfig, SendResult, SendStatus
from rocketpy.errors import BatchIncomplete, FlowControlled, MessageInvalid, Outcome, RocketError
from rocketpy.message.columns import MessageColumns
from rocketpy.runtime.tasks import subtask
from rocketpy_cli.context import Options, parse_pairs, usage_errors
from rocketpy_cli.formats import PrintedMessage
from rocketpy_cli.positions import parse_delay, parse_zoned_time
from rocketpy_cli.progress import OnBytes, bytes_bar
from rocketpy_cli.streams import read_all, read_lines

_IN_FLIGHT_MAX: Final = 10_000
"""Few enough that a broker that stores 1,000 messages per second responds within `_TIMEOUT_MS`."""
_TIMEOUT_MS: Final = 15_000
_GROUP: Final = "rocketpy-cli"
_BATCH_LINES: Final = 1000
_BATCHES_MAX: Final = 8
"""Maximum number of batches in flight."""
_BATCH_LINES_MIN: Final = 100
"""Fewer lines in one read, as from `tail -f`, are sent individually, which spreads them over the queues."""
_SHORT_BYTES: Final = CompressionConfig().above_bytes

Parse = Callable[[bytes], Message]
"""Makes a message from a body or line."""
MakeColumns = Callable[[Sequence[bytes]], MessageColumns]
"""Makes messages from several bodies."""
EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy send Orders hello world[/cyan]  (two messages)

[cyan]rocketpy send Orders --tags paid --key 42 hello[/cyan]

[cyan]rocketpy send Reminders --deliver-at 2026-01-31T12:00+01:00 lunch[/cyan]

[cyan]tail -f app.log | rocketpy send Logs[/cyan]  (a message for each line)

[cyan]rocketpy send Orders --file orders.jsonl --json-lines --rate 500[/cyan]"""


def send(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="BODY", help="Bodies; without any, lines are read.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read lines of FILE instead of stdin.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="All of FILE or stdin is one body.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help='Each line is an object: {"body":…,"tags":…,"keys":[…],"properties":{…},"flag":…,'
            '"deliver_at":"2026-01-31T12:00Z","delay":"90s","delay_level":…}',
        ),
    ] = False,
    tags: Annotated[str | None, typer.Option("--tags", "-t", metavar="TAG", help="The tag.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="KEY", help="A key; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", metavar="TIME", help="When consumers get it, such as 2026-01-31T12:00+01:00."
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="How long it waits, such as 90s, 15m, 2h or 1d."),
    ] = None,
    delay_level: Annotated[
        int,
        typer.Option("--delay-level", min=0, metavar="LEVEL", help="Delay level, such as 3 for 10 seconds."),
    ] = 0,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most N messages per second.")
    ] = None,
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The producer group.")] = _GROUP,
) -> None:
    """Send messages: arguments, or lines of a file or of standard input.

    Empty lines are skipped, because brokers reject empty bodies. The first failure ends the command, and its
    line number is printed. The summary says how many messages are stored.
    """
    named = parse_pairs(properties or ())
    is_timed = delay_level > 0 or delay is not None or deliver_at is not None
    with usage_errors():
        fixed = partial(
            Message,
            topic,
            tags=tags,
            keys=tuple(keys or ()),
            properties=named,
            deliver_at=None if deliver_at is None else parse_zoned_time(deliver_at),
            delay=None if delay is None else parse_delay(delay),
            delay_level=delay_level,
        )
    if bodies and (file or whole or json_lines):
        raise typer.BadParameter("give bodies as arguments or read them, not both")
    if whole and json_lines:
        raise typer.BadParameter("--whole and --json-lines exclude each other")
    if json_lines and (tags or keys or named or is_timed):
        raise typer.BadParameter("with --json-lines, tags, keys, properties and delays are in the lines")
    config = ProducerConfig(max_in_flight=_IN_FLIGHT_MAX, send_timeout_ms=_TIMEOUT_MS)
    producer = Producer(group, client=options.cluster.client, config=config)
    columns: MakeColumns | None = None
    if not (json_lines or is_timed or rate or any(" " in key for key in keys or ())):
        columns = partial(_columns, topic, tags, " ".join(keys or ()), named)
    if bodies:
        messages = [fixed(body.encode()) for body in bodies]
        options.run(_send_arguments(producer, messages, options))
        return
    parse: Parse = partial(_from_json, topic) if json_lines else fixed
    with file.open("rb") if file is not None else contextlib.nullcontext(sys.stdin) as opened:
        source = Input(opened.fileno(), whole)
        sender = LineSender(producer, parse, rate, columns)
        options.has_summary = True
        options.run(_send_input(producer, source, sender, as_json=options.as_json))


async def _send_arguments(producer: Producer, messages: Sequence[Message], options: Options) -> None:
    async with producer:
        for message in messages:
            options.print_sent(await producer.send(message))


def _columns(
    topic: str, tags: str | None, keys: str, properties: Mapping[str, str], bodies: Sequence[bytes]
) -> MessageColumns:
    """Make messages that differ only in their bodies."""
    count = len(bodies)
    return MessageColumns(
        topic,
        bodies,
        tags=[tags] * count if tags else None,
        keys=[keys] * count if keys else None,
        properties={name: [value] * count for name, value in properties.items()},
    )


async def _send_input(producer: Producer, source: Input, sender: LineSender, *, as_json: bool) -> None:
    is_terminal = os.isatty(source.descriptor)
    if is_terminal:
        print("rocketpy: one message per line; Ctrl-D ends", file=sys.stderr)
    shows = sys.stderr.isatty() and not is_terminal and not as_json
    async with producer:
        try:
            with bytes_bar(source.descriptor) if shows else contextlib.nullcontext() as progress:
                await sender.send(source.batches(), progress)
        finally:  # also after Ctrl-C
            await sender.finish()
            sender.print_summary(as_json=as_json)
    sender.check()


class Input(NamedTuple):
    """The input of the command."""

    descriptor: int
    whole: bool
    """It is a single body, instead of one body in each line."""

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield lists of lines, or a list with the single body. Raises MessageTooLarge and OSError."""
        if self.whole:
            yield [await read_all(self.descriptor)]
            return
        async for lines in read_lines(self.descriptor):
            yield lines


@dataclass(eq=False)
class LineSender:
    """Sends many messages, with many of them in flight."""

    producer: Producer
    parse: Parse
    rate: float | None
    columns: MakeColumns | None = None
    """Makes the messages of batches; None sends each message individually."""

    def __post_init__(self) -> None:
        self._batches: set[asyncio.Task[None]] = set()
        self._started = time.monotonic()
        self._accepted = 0
        self._empty = 0
        self._stored = 0
        self._less_durable = 0
        self._failed = 0
        self._error: tuple[int, RocketError] | None = None

    async def send(self, batches: AsyncIterator[list[bytes]], progress: OnBytes | None) -> None:
        """Send all lines, or stop at the first failure.

        Args:
            batches: The lines.
            progress: Called after each batch, if given.
        """
        number = 1
        async for lines in batches:
            if self.columns is not None and len(lines) >= _BATCH_LINES_MIN and _all_short(lines):
                await self._send_together(number, lines, self.columns)
            else:
                await self._wait_for_batches()  # keeps the order of the lines
                await self._send_each(number, lines)
            number += len(lines)
            if self._error is not None:
                return
            await self.producer.drain()
            if progress is not None:
                progress(sum(map(len, lines)) + len(lines), self._stored)

    async def _send_each(self, number: int, lines: Sequence[bytes]) -> None:
        """Send lines individually. number: the number of the first line."""
        for index, line in enumerate(lines, number):
            if not line:
                self._empty += 1
            elif self._error is None:
                await self._send_one(index, line)

    async def _send_together(self, number: int, lines: Sequence[bytes], columns: MakeColumns) -> None:
        """Begin to send lines in batches. number: the number of the first line."""
        for start in range(0, len(lines), _BATCH_LINES):
            while len(self._batches) >= _BATCHES_MAX:
                await asyncio.wait(self._batches, return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                return
            part = lines[start : start + _BATCH_LINES]
            task = subtask(self._send_batch(number + start, part, columns), "lines")
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _send_batch(self, number: int, lines: Sequence[bytes], columns: MakeColumns) -> None:
        bodies = [line for line in lines if line]
        try:
            results = await self.producer.send_batch(columns(bodies)) if bodies else []
        except BatchIncomplete as error:
            self._count(error.results)
            first = [index for index, line in enumerate(lines, number) if line][len(error.results)]
            self._fail(first, error.cause)
        except RocketError as error:
            if error.outcome is Outcome.NOT_SENT:
                # Either a message cannot be sent, or the broker rejects batches. Individual sends find out.
                self.columns = None
                await self._send_each(number, lines)
            else:
                self._fail(number, error)
        else:
            self._empty += len(lines) - len(bodies)
            self._accepted += len(bodies)
            self._count(results)

    def _count(self, results: Sequence[SendResult]) -> None:
        self._stored += len(results)
        self._less_durable += sum(result.status is not SendStatus.SEND_OK for result in results)

    async def _wait_for_batches(self) -> None:
        if self._batches:
            await asyncio.wait(self._batches)

    async def _send_one(self, number: int, line: bytes) -> None:
        if self.rate is not None:
            due = self._started + self._accepted / self.rate
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
        try:
            message = self.parse(line)
            while True:
                try:
                    future = self.producer.send_nowait(message)
                except FlowControlled:
                    await self.producer.drain()
                else:
                    break
        except RocketError as error:
            self._fail(number, error)
        else:
            self._accepted += 1
            future.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, future: asyncio.Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self._count([future.result()])
        elif isinstance(error, RocketError):
            self._fail(number, error)
        else:
            raise error

    def _fail(self, number: int, error: RocketError) -> None:
        self._failed += 1
        if self._error is None or number < self._error[0]:
            self._error = (number, error)

    async def finish(self) -> None:
        """Wait until every message that was accepted is stored or has failed."""
        await self._wait_for_batches()
        await self.producer.flush()
        await asyncio.sleep(0)  # the callbacks of the last futures run in the loop's next iteration

    def print_summary(self, *, as_json: bool) -> None:
        """Print how many messages were stored, and how fast."""
        seconds = max(time.monotonic() - self._started, 1e-6)
        if as_json:
            summary = {
                "stored": self._stored,
                "failed": self._failed,
                "empty_lines": self._empty,
                "not_send_ok": self._less_durable,
                "seconds": round(seconds, 3),
            }
            print(json.dumps(summary), flush=True)
            return
        speed = f"{self._stored / seconds:,.0f} per second"
        notes = [f"{self._stored:,} messages stored in {seconds:.1f} s, {speed}"]
        if self._empty:
            notes.append(f"{self._empty:,} empty lines skipped")
        if self._less_durable:
            notes.append(f"{self._less_durable:,} not flushed or replicated in time")
        if self._failed:
            notes.append(f"{self._failed:,} failed")
        print(f"rocketpy: {', '.join(notes)}", file=sys.stderr)

    def check(self) -> None:
        """Raise the first failure, with the number of its line."""
        if self._error is not None:
            number, error = self._error
            raise RocketError(f"line {number}: {error}", outcome=error.outcome) from error


def _all_short(lines: Sequence[bytes]) -> bool:
    """Return whether no line would be compressed."""
    return max(map(len, lines)) <= _SHORT_BYTES


_decoder: Final = msgspec.json.Decoder(PrintedMessage)


def _from_json(topic: str, line: bytes) -> Message:
    """Make a message from a JSON object. Raises MessageInvalid."""
    try:
        given = _decoder.decode(line)
        if given.decode_error is not None:
            raise MessageInvalid(f"the body was not decoded when it was read: {given.decode_error}")
        if given.body_base64 is not None:
            body = base64.b64decode(given.body_base64, validate=True)
        elif given.body is None:
            raise MessageInvalid('the object has no "body"')
        else:
            body = given.body.encode() if isinstance(given.body, str) else msgspec.json.encode(given.body)
    except (msgspec.DecodeError, ValueError) as error:
        raise MessageInvalid(f"not a message: {error}") from None
    return Message(
        topic,
        body,
        tags=given.tags,
        keys=given.keys,
        properties=given.properties,
        deliver_at=None if given.deliver_at is None else parse_zoned_time(given.deliver_at),
        delay=None if given.delay is None else parse_delay(given.delay),
        delay_level=given.delay_level,
        flag=given.flag,
    )
