"""``rocketpy message``: looks up messages, and sends one again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Final

import typer

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.messages import Delivery, MessageTrack
from rocketpy.admin.traces import TracedMessage
from rocketpy.errors import BrokerError, RemoteProtocolError, RocketError, RouteNotFound
from rocketpy.message.message import TRACE_TOPIC, MessageExt
from rocketpy.producer import Producer
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.results import SendResult
from rocketpy_cli.context import CommandGroup, Options, Yes, usage_errors
from rocketpy_cli.formats import find_format
from rocketpy_cli.positions import parse_time
from rocketpy_cli.tables import print_rows

message_app: Final = CommandGroup(
    name="message", help="Look up messages by id, key, offset or time; see who consumed one; send one again."
)

_DETAILS: Final = (
    "message id:  {message_id}\n"
    "broker's id: {offset_message_id}\n"
    "queue:       {topic}, {broker_name}, queue {queue_id}, offset {queue_offset}\n"
    "stored:      {store_time}\n"
    "tags:        {tags}\n"
    "keys:        {keys}\n"
    "properties:  {properties}\n"
    "\n{body}\n"
)
_FormatOption = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help="details, text, json, or a template such as '{body}'."),
]

_GROUP: Final = "rocketpy-cli"
_TOPICS_MAX: Final = 2000
"""With more topics, looking up a unique id in all of them takes too long."""
_TOPICS_AT_ONCE: Final = 16
_TopicOfId = Annotated[
    str | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", help="The message's topic. Default: all, for a unique id."
    ),
]


@message_app.command(epilog="Example: rocketpy message get 7F00000100002A9F0000000000000BB8")
def get(
    options: Options,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    topic: _TopicOfId = None,
    format_: _FormatOption = "details",
) -> None:
    """Print the message with an id: the broker's id, or the producer's unique id."""
    _print(options, format_, lambda admin: _get(admin, message_id, topic), topic)


@message_app.command(epilog="Example: rocketpy message find Orders --key 42 --json")
def find(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    key: Annotated[str, typer.Option("--key", "-k", metavar="KEY", help="One of the keys of the messages.")],
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, metavar="N", help="At most N messages of each broker.")
    ] = 32,
    format_: _FormatOption = "details",
) -> None:
    """Print the messages with a key, oldest first."""
    found = _print(options, format_, lambda admin: _find(admin, topic, key, count), topic)
    by_broker = Counter(message.queue.broker_name for message in found)
    _note_limit(count, max(by_broker.values(), default=0))


@message_app.command(epilog="Example: rocketpy message at Orders broker-a 0 118 --count 10 --format text")
def at(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="The name of the broker.")],
    queue: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The id of the queue.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The offset of the message.")],
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, metavar="N", help="At most N messages, from OFFSET on.")
    ] = 1,
    format_: _FormatOption = "details",
) -> None:
    """Print the message at an offset of a queue; with --count, also the messages that follow."""
    message_queue = MessageQueue(topic, broker, queue)
    _print(options, format_, lambda admin: _at(admin, message_queue, offset, count), topic)


@message_app.command(epilog="Example: rocketpy message between Orders --from 2h --to 1h --json")
def between(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic; may be a retry or dead-letter topic.")],
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="An age (30s, 2h, 1d) or a time (2026-01-31T12:00).")
    ],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The latest store time. Default: now.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, metavar="N", help="At most N messages.")
    ] = 1000,
    format_: _FormatOption = "details",
) -> None:
    """Print the messages of a topic that were stored between two times, queue after queue."""
    with usage_errors():
        begin_ms = parse_time("--from", begin)
        end_ms = time.time_ns() // 1_000_000 if end is None else parse_time("--to", end)
    found = _print(options, format_, lambda admin: _between(admin, topic, begin_ms, end_ms, count), topic)
    _note_limit(count, len(found))


@message_app.command(epilog="Example: rocketpy message consumers 7F00000100002A9F0000000000000BB8")
def consumers(
    options: Options,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    topic: _TopicOfId = None,
) -> None:
    """Show which groups have consumed a message."""

    async def read(admin: AdminClient) -> tuple[MessageTrack, ...]:
        return await admin.messages.consumers_of(await _view(admin, message_id, topic))

    rows = (
        {"group": track.group, "state": track.state.value, "online": track.is_online}
        for track in options.run_admin(read)
    )
    print_rows(options, rows, none="no group consumes the topic of this message")


@message_app.command(
    epilog="""[bold]Examples[/bold]

[cyan]rocketpy message resend 7F00000100002A9F0000000000000BB8[/cyan]  (to its topic)

[cyan]rocketpy message resend 7F00000100002A9F0000000000000BB8 --group billing[/cyan]  (to one group)"""
)
def resend(
    options: Options,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Another topic. Default: the message's own.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Only this group gets it.")
    ] = None,
    topic: _TopicOfId = None,
    yes: Yes = False,
) -> None:
    """Send a copy of a message: to its topic, to another one, or to one group.

    It keeps body, tags, keys, properties and the unique id. A group gets it as soon as it has members; to
    have one member handle it now, use deliver.
    """
    if to and group:
        raise typer.BadParameter("--to and --group exclude each other")
    where = f"group {group}" if group else f"topic {to}" if to else "its topic"
    options.confirm(f"send message {message_id} again to {where}", yes=yes)

    async def work(admin: AdminClient) -> SendResult:
        return await admin.messages.resend(await _view(admin, message_id, topic), topic=to, group=group)

    options.print_sent(options.run_admin(work))


@message_app.command(epilog="Example: rocketpy message recall Reminders djEgUmVtaW5kZXJz…")
def recall(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic of the message.")],
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="The recall handle that rocketpy send has printed.")
    ],
    yes: Yes = False,
) -> None:
    """Take back a message that is not due yet, so that consumers never get it."""
    options.confirm(f"take back a message of topic {topic}", yes=yes)

    async def work() -> str:
        async with Producer(_GROUP, client=options.cluster.client) as producer:
            return await producer.recall(topic, handle)

    message_id = options.run(work(), topic=topic)
    options.print_done(f"took back message {message_id}", {"message_id": message_id})


@message_app.command(epilog="Example: rocketpy message deliver 7F00…0BB8 --group billing --client 10.0.0.1@7")
def deliver(
    options: Options,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    group: Annotated[str, typer.Option("--group", "-g", metavar="NAME", help="The consumer group.")],
    client_id: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="ID", help="The consumer: see rocketpy group members. Default: any."
        ),
    ] = None,
    topic: _TopicOfId = None,
    yes: Yes = False,
) -> None:
    """Have one consumer handle a message now. Offsets and retries do not change.

    The exit status is 1 unless the consumer reports success.
    """
    who = f"{client_id or 'one consumer'} of group {group}"
    options.confirm(f"deliver message {message_id} to {who}", yes=yes)

    async def work(admin: AdminClient) -> tuple[str, Delivery]:
        message = await _view(admin, message_id, topic)
        chosen = client_id or await _any_member(admin, group)
        return chosen, await admin.messages.deliver(message, group, chosen)

    chosen, done = options.run_admin(work)
    print_rows(options, [{"client_id": chosen, **done._asdict()}])
    if done.status != "CR_SUCCESS":
        raise RocketError(f"consumer {chosen} did not handle the message: {done.status}; see its log")


async def _any_member(admin: AdminClient, group: str) -> str:
    """Return the client id of one member. Raises RocketError."""
    members = await admin.groups.members(group)
    if not members:
        raise RocketError(
            f"group {group} has no members online; to store a copy for them, use rocketpy message resend "
            "with --group"
        )
    return members[0].client_id


@message_app.command(epilog="Example: rocketpy message trace order-42")
def trace(
    options: Options,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The unique id, or a key, of the message.")],
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic that clients report to.")
    ] = TRACE_TOPIC,
) -> None:
    """Show who sent a message, and who consumed it, as clients with message trace have reported."""
    try:
        found = options.run_admin(lambda admin: admin.messages.traces(key, topic=topic))
    except RouteNotFound as error:
        raise RouteNotFound(
            f"{error}, so no client has reported to it; clients report with MessageTraceConfig"
        ) from None
    none = "no client has reported this message"
    print_rows(options, (row for message in found.messages for row in _trace_rows(message)), none=none)
    if found.unreadable:
        raise RocketError(f"{found.unreadable} messages of topic {topic} could not be read")


def _trace_rows(message: TracedMessage) -> Iterator[dict[str, object]]:
    for send in message.sends:
        yield {
            "message_id": message.message_id,
            "step": "sent",
            "start_timestamp": send.report.timestamp,
            "group": send.report.group,
            "client": send.client,
            "attempt": 1,
            "duration_ms": send.report.cost_ms,
            "success": send.report.success,
            "outcome": None,
        }
    for call in message.deliveries:
        yield {
            "message_id": message.message_id,
            "step": "consumed",
            "start_timestamp": call.started_ms,
            "group": call.group,
            "client": call.client,
            "attempt": call.attempt,
            "duration_ms": call.duration_ms,
            "success": call.success,
            "outcome": None if call.outcome is None else call.outcome.name.lower(),
        }


def _print(
    options: Options,
    format_: str,
    look_up: Callable[[AdminClient], Awaitable[list[MessageExt]]],
    topic: str | None,
) -> list[MessageExt]:
    """Print the messages that a look-up finds in a topic, and return them."""
    if format_ == "details":
        format_ = "json" if options.as_json else _DETAILS
    with usage_errors():
        chosen = find_format(format_)
    messages = options.run_admin(look_up, topic=topic)
    sys.stdout.buffer.write(chosen(messages))
    sys.stdout.flush()
    return messages


def _note_limit(count: int, found: int) -> None:
    """Say that messages may have been left out."""
    if found >= count:
        print(f"rocketpy: {count} messages are the limit; there may be more: --count", file=sys.stderr)


async def _view(admin: AdminClient, message_id: str, topic: str | None) -> MessageExt:
    """Return the message with an id. A unique id without a topic is looked up in all topics.

    Raises RocketError.
    """
    if topic is not None or not _is_unique_id(message_id):
        return await admin.view_message(message_id, topic)
    topics = await admin.topics.list()
    if len(topics) > _TOPICS_MAX:
        raise RocketError(
            f"{message_id} is a producer's unique id, and there are {len(topics)} topics: give --topic"
        )

    async def look_up(name: str) -> MessageExt | None:
        with contextlib.suppress(BrokerError, RouteNotFound):  # not there, or deleted meanwhile
            return await admin.messages.by_unique_id(name, message_id)
        return None

    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        for found in await asyncio.gather(*map(look_up, topics[start : start + _TOPICS_AT_ONCE])):
            if found is not None:
                return found
    raise RocketError(
        f"no topic has a message with the unique id {message_id}; --topic looks in one topic, also of "
        "retries or dead letters"
    )


def _is_unique_id(message_id: str) -> bool:
    """Return whether an id cannot be a broker's, because its part for the port is none."""
    try:
        host, _ = decode_message_id(message_id)
    except RemoteProtocolError:
        return False  # the look-up says what is wrong
    return not 0 < int.from_bytes(host[-4:]) < 1 << 16


async def _get(admin: AdminClient, message_id: str, topic: str | None) -> list[MessageExt]:
    return [await _view(admin, message_id, topic)]


async def _find(admin: AdminClient, topic: str, key: str, count: int) -> list[MessageExt]:
    found = await admin.query_message(topic, key, count)
    if not found.messages:
        raise RocketError(f"no message of topic {topic} has key {key}")
    return sorted(found.messages, key=lambda message: message.store_timestamp)


async def _at(admin: AdminClient, queue: MessageQueue, offset: int, count: int) -> list[MessageExt]:
    first = await admin.messages.by_offset(queue, offset)
    later = admin.messages.of_queue(queue, offset + 1, offset + count)
    return [first, *([message async for message in later] if count > 1 else ())]


async def _between(
    admin: AdminClient, topic: str, begin_ms: int, end_ms: int, count: int
) -> list[MessageExt]:
    found: list[MessageExt] = []
    async for message in admin.messages.by_time(topic, begin_ms, end_ms):
        found.append(message)
        if len(found) == count:
            break
    return found
