"""``rocketpy topic``: lists, shows, creates, changes and deletes topics."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Final

import typer

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.topics import TopicDescription
from rocketpy.client.topic_configs import Permission, TopicSettings
from rocketpy.errors import RocketError
from rocketpy.runtime.text import did_you_mean, printable
from rocketpy_cli.context import CommandGroup, DryRun, OfBroker, OfCluster, Options, Yes, parse_pairs
from rocketpy_cli.tables import Row, print_created, print_json, print_rows, print_table

topic_app: Final = CommandGroup(name="topic", help="List, show, create, change and delete topics.")

_Topic = Annotated[str, typer.Argument(help="The topic.")]


class Access(Enum):
    """What clients may do with a topic."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"
    NONE = "none"


_PERMISSIONS: Final = {
    Access.READ_WRITE: Permission.READ | Permission.WRITE,
    Access.READ: Permission.READ,
    Access.WRITE: Permission.WRITE,
    Access.NONE: Permission(0),
}


@topic_app.command("list", epilog="Example: rocketpy topic list --cluster DefaultCluster")
def list_topics(
    options: Options,
    cluster: OfCluster = None,
    system: Annotated[
        bool, typer.Option("--system", help="Also system topics, and those of retries and dead letters.")
    ] = False,
) -> None:
    """List the topics."""
    topics = options.run_admin(lambda admin: admin.topics.list(cluster, include_system=system))
    print_rows(options, ({"topic": topic} for topic in topics), none="no topics")


@topic_app.command(epilog="Example: rocketpy topic describe Orders")
def describe(options: Options, topic: _Topic, cluster: OfCluster = None) -> None:
    """Show the settings, queues, offsets and rate of a topic, and the groups that consume it."""
    _print_topic(options, options.run_admin(lambda admin: admin.topics.describe(topic, cluster=cluster)))


@topic_app.command(epilog="Example: rocketpy topic create Orders --queues 8")
def create(
    options: Options,
    topic: _Topic,
    queues: Annotated[
        int, typer.Option("--queues", "-q", min=1, metavar="N", help="Queues on each broker.")
    ] = 4,
    perm: Annotated[Access, typer.Option(help="Whether clients may read and write.")] = Access.READ_WRITE,
    ordered: Annotated[
        bool,
        typer.Option("--ordered", help="Ordered topic: its queues do not change while a broker is down."),
    ] = False,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Attribute of RocketMQ 5, such as message.type=FIFO."),
    ] = None,
    cluster: OfCluster = None,
    broker: OfBroker = None,
    yes: Yes = False,
) -> None:
    """Create a topic on every broker that lacks it. Where it exists, it stays unchanged."""
    where = (f"broker {broker}" if broker else "each broker") + (f" of cluster {cluster}" if cluster else "")
    text = f"topic {topic} with {queues} queues on {where}"
    attributes = parse_pairs(attribute or ())
    options.confirm(f"create {text}", yes=yes)
    existing = options.run_admin(
        lambda admin: admin.topics.create(
            topic,
            queues,
            cluster=cluster,
            broker=broker,
            perm=_PERMISSIONS[perm],
            ordered=ordered,
            attributes=attributes,
        )
    )
    unchanged = _settings(existing)
    print_created(options, text, {"topic": topic, "queues": queues}, unchanged, alter="rocketpy topic alter")


@topic_app.command(epilog="Example: rocketpy topic alter Orders --write-queues 4 --perm r")
def alter(
    options: Options,
    topic: _Topic,
    queues: Annotated[
        int | None,
        typer.Option("--queues", "-q", min=1, metavar="N", help="Queues to read and to write."),
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Queues that consumers read.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Queues that producers write to.")
    ] = None,
    perm: Annotated[Access | None, typer.Option(help="Whether clients may read and write.")] = None,
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--unordered", help="Whether it is an ordered topic."),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an attribute of RocketMQ 5; NAME= removes it."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Change settings of a topic on each of its brokers; other settings stay unchanged."""
    changes: dict[str, object] = {
        "read_queues": queues if read_queues is None else read_queues,
        "write_queues": queues if write_queues is None else write_queues,
        "perm": None if perm is None else perm.value,
        "ordered": ordered,
        "attributes": parse_pairs(attribute or ()) or None,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("give a setting to change, such as --queues 8")
    text = ", ".join(f"{name} {value}" for name, value in given.items())
    options.confirm(f"change topic {topic} ({text})", yes=yes)
    options.run_admin(
        lambda admin: admin.topics.alter(
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            perm=None if perm is None else _PERMISSIONS[perm],
            ordered=ordered,
            attributes={name: value or None for name, value in parse_pairs(attribute or ()).items()},
        )
    )
    options.print_done(f"changed topic {topic} ({text})", {"topic": topic, **given})


@topic_app.command(epilog="Example: rocketpy topic delete Orders --dry-run")
def delete(
    options: Options,
    topic: _Topic,
    cluster: OfCluster = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a topic with its messages. With --dry-run: show the topic, and keep it."""
    if dry_run:
        describe(options, topic, cluster)
        return
    where = f" from cluster {cluster}" if cluster else ""
    options.confirm(f"delete topic {topic} with its messages{where}", yes=yes)
    options.run_admin(lambda admin: _delete(admin, topic, cluster))
    options.print_done(f"deleted topic {topic}{where}", {"topic": topic})


async def _delete(admin: AdminClient, topic: str, cluster: str | None) -> None:
    """Delete a topic. Raises RocketError if there is none, which a misspelt name would hide."""
    known = await admin.topics.list(cluster, include_system=True)
    if topic not in known:
        where = f" in cluster {cluster}" if cluster else ""
        raise RocketError(f"there is no topic {topic}{where}{did_you_mean(topic, known)}")
    await admin.topics.delete(topic, cluster=cluster)


def _print_topic(options: Options, found: TopicDescription) -> None:
    brokers = _settings(found.brokers)
    queues: list[Row] = [
        {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": offsets.min_offset,
            "max_offset": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset,
            "last_stored_timestamp": offsets.last_stored_ms,
        }
        for queue, offsets in found.queues.items()
    ]
    if options.as_json:
        facts = {"topic": found.name, "messages_per_second": found.messages_per_second}
        print_json([{**facts, "groups": found.groups, "brokers": brokers, "queues": queues}])
        return
    print(f"topic {found.name}: {found.messages_per_second:.1f} messages/s; ", end="")
    print(f"groups: {printable(', '.join(found.groups)) or 'none'}\n")
    shown = [
        {**broker, "attributes": ", ".join(f"{name}={value}" for name, value in settings.attributes.items())}
        for broker, settings in zip(brokers, found.brokers.values(), strict=True)
    ]
    print_table(shown)
    if queues:
        print()
        print_table(queues)


def _settings(found: Mapping[str, TopicSettings]) -> list[Row]:
    """Return the settings on each broker. found: the settings by broker."""
    return [
        {
            "broker_name": broker,
            "read_queues": settings.read_queues,
            "write_queues": settings.write_queues,
            "perm": _perm(settings.perm),
            "ordered": settings.ordered,
            "attributes": dict(settings.attributes),
        }
        for broker, settings in found.items()
    ]


def _perm(perm: Permission) -> str:
    letters = "r" * bool(perm & Permission.READ) + "w" * bool(perm & Permission.WRITE)
    return letters or "none"
