"""``rocketpy dlq``: lists, reads and resends dead letters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import typer

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.dead_letters import ResendProgress
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.message.message import MessageExt
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX
from rocketpy_cli.context import CommandGroup, Options, Yes, usage_errors
from rocketpy_cli.formats import Format, find_format
from rocketpy_cli.positions import parse_time
from rocketpy_cli.progress import count_bar
from rocketpy_cli.tables import print_json, print_rows

dlq_app: Final = CommandGroup(
    name="dlq", help="List, read and resend dead letters: messages that a consumer group failed to handle."
)

_LINE: Final = "{message_id} {broker_name} {queue_id} {queue_offset} {store_time} {tags} {body}"
_without_reason: Final = find_format(_LINE)
_with_reason: Final = find_format(_LINE + " [{dead_letter_reason}]")

_Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
_Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only later dead letters: an age (2h, 1d) or a time."),
]


class _DeadLetterCount(NamedTuple):
    """The number of a group's dead letters."""

    group: str
    messages: int
    last_stored_ms: int | None
    """Ms since 1970; None without dead letters."""


@dlq_app.command("list", epilog="Example: rocketpy dlq list --json")
def list_(options: Options) -> None:
    """List the groups that have a topic of dead letters, with the number of dead letters."""
    found = options.run_admin(_count_all)
    if options.as_json:
        print_json(count._asdict() for count in found)
        return
    rows = [
        {"group": count.group, "dead_letters": count.messages, "last_stored_timestamp": count.last_stored_ms}
        for count in found
    ]
    print_rows(options, rows, none="no group has dead letters")


async def _count_all(admin: AdminClient) -> list[_DeadLetterCount]:
    found: list[_DeadLetterCount] = []
    for group in await admin.dead_letters.groups():
        with contextlib.suppress(RouteNotFound):  # deleted meanwhile
            found.append(await _count(admin, group))
    return found


async def _count(admin: AdminClient, group: str) -> _DeadLetterCount:
    described = await admin.topics.describe(DLQ_TOPIC_PREFIX + group)
    queues = described.queues.values()
    times = [queue.last_stored_ms for queue in queues if queue.last_stored_ms is not None]
    return _DeadLetterCount(
        group, sum(queue.max_offset - queue.min_offset for queue in queues), max(times, default=None)
    )


@dlq_app.command(epilog="Example: rocketpy dlq read billing --since 1d --json")
def read(
    options: Options,
    group: _Group,
    since: _Since = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, metavar="N", help="Stop after N messages.")
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="line, text, json, or a template such as '{body}'."),
    ] = "line",
) -> None:
    """Print the dead letters of a group, oldest first in each queue.

    Brokers before RocketMQ 4.9 create the topic of dead letters for writing only. This command then makes it
    readable, permanently.
    """
    with usage_errors():
        chosen = _format_of(options) if format_ == "line" else find_format(format_)
        since_ms = _since_ms(since)
    options.run_admin(lambda admin: _read(admin, group, since_ms, count, chosen))


def _format_of(options: Options) -> Format:
    return find_format("json") if options.as_json else _as_lines


def _as_lines(messages: Sequence[MessageExt]) -> bytes:
    return b"".join(
        [(_with_reason if message.dead_letter_reason else _without_reason)([message]) for message in messages]
    )


async def _read(admin: AdminClient, group: str, since_ms: int, count: int | None, format_: Format) -> None:
    left = sys.maxsize if count is None else count
    async with contextlib.aclosing(admin.dead_letters.read(group, begin_ms=since_ms)) as messages:  # type: ignore[type-var]
        found = False
        async for message in messages:
            found = True
            sys.stdout.buffer.write(format_([message]))
            sys.stdout.flush()
            left -= 1
            if not left:
                return
    if not found:
        print(f"rocketpy: group {group} has no dead letters", file=sys.stderr)


@dlq_app.command(
    epilog="""[bold]Examples[/bold]

[cyan]rocketpy dlq resend billing --all --since 1d --dry-run[/cyan]

[cyan]rocketpy dlq resend billing --id 7F00000100002A9F0000000000000BB8[/cyan]"""
)
def resend(
    options: Options,
    group: _Group,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Resend this message; may be repeated.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Resend every dead letter that exists now.")] = False,
    since: _Since = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the dead letters that would be sent.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Send dead letters to their group again: some by their ids, or all.

    They stay in the topic of dead letters until they expire, so a second run sends them again. --since leaves
    out older dead letters. As with read, their topic is made readable first, even with --dry-run.
    """
    if bool(ids) == all_:
        raise typer.BadParameter("give --id or --all")
    with usage_errors():
        wanted = _DeadLetterFilter(frozenset(ids or ()), _since_ms(since))
    if not dry_run:
        what = "all dead letters" if all_ else f"{len(wanted.ids)} dead letters"
        options.confirm(f"resend {what} to group {group}", yes=yes)
    progress = options.run(_resend(options, group, wanted, dry_run=dry_run))
    fields = {"group": group, "resent": progress.resent, "damaged": len(progress.damaged), "dry_run": dry_run}
    if not dry_run:
        damaged = f"; {len(progress.damaged):,} are damaged and cannot be sent" if progress.damaged else ""
        options.print_result(f"resent {progress.resent:,} dead letters to group {group}{damaged}", fields)
    missing = sorted(wanted.ids - wanted.found)
    if missing:
        raise RocketError(f"group {group} has no dead letter with id {', '.join(missing)}")
    if progress.damaged:
        raise typer.Exit(1)


class _DeadLetterFilter:
    """Decides which dead letters are sent. ids: message ids; empty for all."""

    def __init__(self, ids: frozenset[str], since_ms: int) -> None:
        self.ids = ids
        self.found: set[str] = set()
        """The ids seen so far."""
        self._since_ms = since_ms

    def __call__(self, message: MessageExt) -> bool:
        if message.store_timestamp < self._since_ms:
            return False
        own = {message.message_id, message.offset_message_id} & self.ids
        is_new = not own <= self.found
        self.found |= own
        return is_new if self.ids else True


async def _resend(
    options: Options, group: str, wanted: _DeadLetterFilter, *, dry_run: bool
) -> ResendProgress:
    show = _format_of(options)

    def print_message(message: MessageExt) -> bool:
        if wanted(message):
            sys.stdout.buffer.write(show([message]))
        return False

    last = ResendProgress(0, 0, (), {})
    async with AdminClient(client=options.cluster.client) as admin:
        if dry_run:
            await admin.dead_letters.resend_all(group, wanted=print_message)
            sys.stdout.flush()
            return last
        try:
            total = (await _count(admin, group)).messages
        except RouteNotFound:
            total = 0
        with count_bar(total, 0, hidden=options.as_json) as progress:

            def note(now: ResendProgress) -> None:
                nonlocal last
                last = now
                progress(1)

            try:
                return await admin.dead_letters.resend_all(group, wanted=wanted, on_progress=note)
            except RocketError as error:
                raise RocketError(
                    f"{last.resent:,} dead letters were sent, then: {error}", outcome=error.outcome
                ) from error


def _since_ms(since: str | None) -> int:
    """Return ms since 1970 of an age or time; 0 without one. Raises ConfigInvalid."""
    return 0 if since is None else parse_time("--since", since)
