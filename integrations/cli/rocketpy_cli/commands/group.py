"""``rocketpy group``: lists, shows, creates, changes, resets and deletes consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Unpack, cast, get_type_hints

import typer

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.group_settings import GroupChanges, GroupSettings
from rocketpy.admin.groups import GroupLag, GroupSummary, Member
from rocketpy.admin.reset import OffsetChange, ResetTo
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.text import did_you_mean, printable
from rocketpy_cli.context import CommandGroup, DryRun, OfBroker, OfCluster, Options, Yes, usage_errors
from rocketpy_cli.positions import Kind, Position, parse_position
from rocketpy_cli.tables import Row, print_created, print_json, print_rows, print_table

group_app: Final = CommandGroup(
    name="group", help="List, show, create, change, reset and delete consumer groups."
)

_Group = Annotated[str, typer.Argument(help="The consumer group.")]
_SETTINGS: Final = {
    "enabled": typer.Option("--enabled/--disabled", help="Whether the group may consume."),
    "broadcast": typer.Option("--broadcast/--no-broadcast", help="Whether the group may broadcast."),
    "max_retries": typer.Option(min=0, metavar="N", help="Redeliveries before a message is a dead letter."),
    "retry_queues": typer.Option(min=0, metavar="N", help="Queues of the group's retry topic."),
    "broker_id": typer.Option(min=0, metavar="ID", help="The broker to read from; 0 is the master."),
    "broker_id_when_slow": typer.Option(min=0, metavar="ID", help="The broker to read from when far behind."),
    "notify_changes": typer.Option(
        "--notify-changes/--no-notify-changes",
        help="Whether brokers notify members when a member joins or leaves.",
    ),
}
"""The option of each field of `GroupSettings`."""

F = TypeVar("F", bound=Callable[..., None])


def _takes_settings(function: F) -> F:
    """Give a command with ``**settings`` an option for each; it gets those that are on the command line."""

    @wraps(function)
    def run(*arguments: Any, **given: Any) -> None:
        function(*arguments, **{name: value for name, value in given.items() if value is not None})

    *parameters, _ = signature(function, eval_str=True).parameters.values()
    kinds, annotated = get_type_hints(GroupSettings), cast("Any", Annotated)
    options = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=annotated[kinds[name] | None, option]
        )
        for name, option in _SETTINGS.items()
    ]
    place = sum(parameter.kind is not Parameter.KEYWORD_ONLY for parameter in parameters)
    cast("Any", run).__signature__ = Signature([*parameters[:place], *options, *parameters[place:]])
    return cast("F", run)


@group_app.command("list", epilog="Example: rocketpy group list --json")
def list_groups(
    options: Options,
    cluster: OfCluster = None,
    system: Annotated[bool, typer.Option("--system", help="Also the system groups of brokers.")] = False,
) -> None:
    """List the consumer groups, with their settings on each broker."""
    found = options.run_admin(lambda admin: admin.groups.list(cluster, include_system=system))
    rows = [row for group in found for row in _settings(options, group)]
    print_rows(options, rows, none="no groups")


@group_app.command(epilog="Example: rocketpy group describe billing")
def describe(options: Options, group: _Group, cluster: OfCluster = None) -> None:
    """Show settings, members, subscriptions, lag and dead letters of a group, and how its members differ."""
    _print_group(options, options.run_admin(lambda admin: _describe(admin, group, cluster)))


@group_app.command(epilog="Example: rocketpy group members billing")
def members(options: Options, group: _Group) -> None:
    """List the members of a group that are online."""
    found = options.run_admin(lambda admin: _members(admin, group))
    print_rows(options, map(_member, found), none=f"group {group} has no members online")


@group_app.command(epilog="Example: rocketpy group lag billing --topic Orders")
def lag(
    options: Options,
    group: _Group,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only queues of this topic.")
    ] = None,
    total: Annotated[bool, typer.Option("--total", help="Only the sum of all queues.")] = False,
    clients: Annotated[bool, typer.Option("--clients", help="Also ask each member for its queues.")] = False,
) -> None:
    """Show how many messages a group has not consumed, in each queue and in total."""
    found = options.run_admin(lambda admin: admin.groups.lag(group, topic, with_clients=clients))
    if not found.queues:
        where = f" in topic {topic}" if topic else ""
        raise RocketError(f"group {group} has no offsets{where}: it has consumed nothing yet")
    if not options.as_json:
        if not total:
            print_table(_lags(found, clients=clients))
            print()
        print(f"lag of group {group}: {found.total}; it consumes {found.messages_per_second:.1f} messages/s")
    elif total:
        rate = found.messages_per_second
        print_json([{"group": group, "lag": found.total, "messages_per_second": rate}])
    else:
        print_json(_lags(found, clients=clients))


@group_app.command(epilog="Example: rocketpy group create billing --max-retries 3")
@_takes_settings
def create(
    options: Options,
    group: _Group,
    *,
    cluster: OfCluster = None,
    broker: OfBroker = None,
    yes: Yes = False,
    **settings: Unpack[GroupChanges],
) -> None:
    """Create a group on every broker that lacks it. Where it exists, it stays unchanged."""
    text = f"group {group} ({_text(settings) or 'default settings'})"
    options.confirm(f"create {text}", yes=yes)
    existing = options.run_admin(
        lambda admin: admin.groups.create(group, cluster=cluster, broker=broker, **settings)
    )
    unchanged = _settings(options, GroupSummary(group, existing))
    print_created(options, text, {"group": group, **settings}, unchanged, alter="rocketpy group alter")


@group_app.command(epilog="Example: rocketpy group alter billing --disabled")
@_takes_settings
def alter(options: Options, group: _Group, *, yes: Yes = False, **changes: Unpack[GroupChanges]) -> None:
    """Change settings of a group on each broker that has it; other settings stay unchanged."""
    if not changes:
        raise typer.BadParameter("give a setting to change, such as --max-retries 3")
    text = f"group {group} ({_text(changes)})"
    options.confirm(f"change {text}", yes=yes)
    options.run_admin(lambda admin: admin.groups.alter(group, **changes))
    options.print_done(f"changed {text}", {"group": group, **changes})


@group_app.command(epilog="Example: rocketpy group delete billing --dry-run")
def delete(
    options: Options,
    group: _Group,
    cluster: OfCluster = None,
    keep_topics: Annotated[
        bool, typer.Option("--keep-topics", help="Keep its retry topic and its dead letters.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a group, its retry topic and dead letters. With --dry-run: show the group, and keep it."""
    if dry_run:
        describe(options, group, cluster)
        return
    what = f"group {group}" + ("" if keep_topics else " with its retry topic and dead letters")
    where = f" from cluster {cluster}" if cluster else ""
    options.confirm(f"delete {what}{where}", yes=yes)
    options.run_admin(lambda admin: _delete(admin, group, cluster, keep_topics=keep_topics))
    options.print_done(f"deleted {what}{where}", {"group": group})


@group_app.command(epilog="Example: rocketpy group reset billing Orders --to 2h --dry-run")
def reset(
    options: Options,
    group: _Group,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="begin, end, an offset, an age (30s, 10m, 2h, 1d) or a time (2026-01-31T12:00).",
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Reset the offsets of a group in a topic; print the old and new offset of each queue.

    If POSITION is an offset, all members must be stopped; otherwise they may be online.
    """
    with usage_errors():
        position = _reset_to(parse_position(to))
    if not dry_run:
        options.confirm(f"reset group {group} in topic {topic} to {to}", yes=yes)
    changes = options.run_admin(lambda admin: admin.groups.reset(group, topic, position, dry_run=dry_run))
    print_rows(options, _changes(changes), none=f"topic {topic} has no queues")
    if dry_run and not options.as_json:
        print("\nnothing was changed (--dry-run)")


@group_app.command(epilog="Example: rocketpy group clone billing billing-test --topic Orders")
def clone(
    options: Options,
    source: Annotated[str, typer.Argument(help="The group with the offsets.")],
    target: Annotated[str, typer.Argument(help="The group that gets them; its members must be stopped.")],
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")],
    yes: Yes = False,
) -> None:
    """Give a group the offsets of another group in a topic."""
    options.confirm(f"replace the offsets of group {target} in topic {topic} by those of {source}", yes=yes)
    options.run_admin(lambda admin: admin.groups.clone(source, target, topic))
    text = f"gave group {target} the offsets of {source} in topic {topic}"
    options.print_done(text, {"group": target, "source": source, "topic": topic})


# -- internals --------------------------------------------------------------------------------


def _text(settings: GroupChanges) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


class _Described(NamedTuple):
    """What ``describe`` shows."""

    group: str
    summary: GroupSummary | None
    """None if no broker has the group."""
    members: tuple[Member, ...]
    conflicts: tuple[str, ...]
    lag: GroupLag
    dead_letters: int


async def _find(
    admin: AdminClient, group: str, cluster: str | None
) -> tuple[GroupSummary | None, tuple[Member, ...]]:
    """Return the settings of a group, and its members. Raises RocketError if it has neither."""
    known = {summary.name: summary for summary in await admin.groups.list(cluster, include_system=True)}
    online = await admin.groups.members(group, cluster=cluster)
    if group not in known and not online:
        where = f" in cluster {cluster}" if cluster else ""
        hint = did_you_mean(group, known) or "; rocketpy group list shows the groups"
        raise RocketError(f"there is no group {group}{where}{hint}")
    return known.get(group), online


async def _members(admin: AdminClient, group: str) -> tuple[Member, ...]:
    members = await admin.groups.members(group)
    return members or (await _find(admin, group, None))[1]


async def _delete(admin: AdminClient, group: str, cluster: str | None, *, keep_topics: bool) -> None:
    await _find(admin, group, cluster)  # a misspelt name would delete nothing
    await admin.groups.delete(group, cluster=cluster, keep_topics=keep_topics)


async def _describe(admin: AdminClient, group: str, cluster: str | None) -> _Described:
    found, online = await _find(admin, group, cluster)
    conflicts = await admin.groups.conflicts(group, cluster=cluster)
    lag = await admin.groups.lag(group, cluster=cluster)
    return _Described(group, found, online, conflicts, lag, await admin.dead_letters.count(group))


def _print_group(options: Options, found: _Described) -> None:
    lag, settings = found.lag, [] if found.summary is None else _settings(options, found.summary)
    if options.as_json:
        facts = {
            "group": found.group,
            "lag": lag.total,
            "in_flight": lag.in_flight,
            "messages_per_second": lag.messages_per_second,
            "dead_letters": found.dead_letters,
        }
        rows = [_member(member) | {"subscriptions": dict(member.subscriptions)} for member in found.members]
        subscriptions = rows[0]["subscriptions"] if rows else {}
        parts = {"brokers": settings, "members": rows, "subscriptions": subscriptions}
        print_json([{**facts, **parts, "conflicts": found.conflicts}])
        return
    rate, count = lag.messages_per_second, len(found.members)
    dead = f", {found.dead_letters} dead letters (rocketpy dlq read)" if found.dead_letters else ""
    in_flight = f", {lag.in_flight} in flight" if lag.in_flight else ""
    print(f"group {found.group}: lag {lag.total}{in_flight}, {rate:.1f} messages/s, {count} members{dead}")
    for text in found.conflicts:
        print(f"problem: {printable(text)}")
    for table in (settings, _subscriptions(found.members), list(map(_member, found.members))):
        if table:
            print()
            print_table(table)


def _subscriptions(members: Sequence[Member]) -> list[Row]:
    """Return the subscriptions of the group, or of each member if they differ."""
    differ = any(member.subscriptions != members[0].subscriptions for member in members)
    return [
        {**({"client_id": member.client_id} if differ else {}), "topic": topic, "filter": text}
        for member in (members if differ else members[:1])
        for topic, text in member.subscriptions.items()
    ]


def _settings(options: Options, group: GroupSummary) -> list[Row]:
    """Return the settings on each broker; for a table, without those that make it too wide."""
    rows: list[Row] = []
    for broker, settings in group.brokers.items():
        fields: dict[str, object] = asdict(settings)
        if not options.as_json:
            for name in ("broker_id", "broker_id_when_slow", "notify_changes"):
                del fields[name]
        rows.append({"group": group.name, "broker_name": broker, **fields})
    return rows


def _member(member: Member) -> dict[str, object]:
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "broadcasting": member.broadcasting,
        "brokers": member.brokers,
    }


def _lags(found: GroupLag, *, clients: bool) -> list[Row]:
    return [
        {
            **_queue(queue),
            "end_offset": one.end_offset,
            "group_offset": one.group_offset,
            "lag": one.lag,
            "in_flight": one.in_flight,
            "last_consumed_timestamp": one.last_consumed_ms,
            **({"client_id": one.client_id} if clients else {}),
        }
        for queue, one in found.queues.items()
    ]


def _changes(changes: Mapping[MessageQueue, OffsetChange]) -> list[Row]:
    return [
        {**_queue(queue), "old_offset": change.old, "new_offset": change.new}
        for queue, change in changes.items()
    ]


def _queue(queue: MessageQueue) -> Row:
    return {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}


def _reset_to(position: Position) -> ResetTo:
    """Return the target of a reset. Raises ConfigInvalid for a negative number."""
    if position.kind is Kind.BEGIN:
        return ResetTo.beginning()
    if position.kind is Kind.END:
        return ResetTo.end()
    if position.kind is Kind.TIME:
        return ResetTo.time(position.number)
    if position.number < 0:
        raise ConfigInvalid(f"a group cannot be reset to {position.number}; give an offset, an age or a time")
    return ResetTo.offset(position.number)
