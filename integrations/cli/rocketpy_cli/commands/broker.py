"""``rocketpy broker``: brokers, their state, settings and write permission."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Final, TypeVar

import typer
from rich.console import Console

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.brokers import Brokers
from rocketpy.admin.drain import DrainPlan, DrainProgress
from rocketpy.errors import RocketError
from rocketpy_cli.context import CommandGroup, DryRun, OfCluster, Options, Yes, parse_pairs
from rocketpy_cli.tables import print_fields, print_json, print_rows

T = TypeVar("T")

broker_app: Final = CommandGroup(
    name="broker", help="List brokers, show their state, change settings and write permission."
)
config_app: Final = CommandGroup(name="config", help="Show and change settings of a running broker.")
broker_app.add_typer(config_app)

_NAMED_MAX: Final = 5
"""Maximum number of topic names in text output."""

_Broker = Annotated[
    str, typer.Argument(metavar="BROKER", help="Name of the broker, NAME/ID of a slave, or address.")
]
_Name = Annotated[str, typer.Argument(metavar="BROKER", help="The name of the broker.")]


@broker_app.command("list", epilog="Example: rocketpy broker list")
def list_brokers(options: Options, cluster: OfCluster = None) -> None:
    """List the brokers with their versions and rates (messages per second, over the last 10 s).

    The exit status is 1 if one of them does not respond.
    """
    found = options.run_admin(lambda admin: admin.brokers.list(cluster))
    rows = (
        {
            "cluster": broker.cluster,
            "broker_name": broker.name,
            "broker_id": broker.broker_id,
            "address": broker.address,
            "version": broker.version,
            "in_per_second": broker.in_per_second,
            "out_per_second": broker.out_per_second,
            **({"error": None if broker.error is None else str(broker.error)} if options.as_json else {}),
        }
        for broker in found
    )
    print_rows(options, rows, none="no brokers")
    silent = [broker for broker in found if broker.error is not None]
    if silent:
        texts = "; ".join(f"broker {broker.name}: {broker.error}" for broker in silent)
        raise RocketError(f"{len(silent)} of {len(found)} brokers did not respond: {texts}")


@broker_app.command(epilog="Example: rocketpy broker runtime broker-a")
def runtime(options: Options, broker: _Broker) -> None:
    """Show the runtime info of a broker, with RocketMQ's names."""
    found = options.run_admin(lambda admin: _call_broker(admin, broker, admin.brokers.runtime))
    print_fields(options, dict(sorted(found.items())))


@broker_app.command(epilog="Example: rocketpy broker stats broker-a TOPIC_PUT_NUMS Orders")
def stats(
    options: Options,
    broker: _Broker,
    name: Annotated[str, typer.Argument(help="Such as TOPIC_PUT_NUMS, GROUP_GET_NUMS, BROKER_PUT_NUMS.")],
    key: Annotated[str, typer.Argument(help="A topic, topic@group, or for BROKER_… the cluster.")],
) -> None:
    """Show a counter of a broker over its last minute, hour and day."""
    found = options.run_admin(
        lambda admin: _call_broker(admin, broker, lambda address: admin.brokers.stats(address, name, key))
    )
    print_rows(
        options, ({"period": period, **values._asdict()} for period, values in found._asdict().items())
    )


@broker_app.command(epilog="Example: rocketpy broker producers shop")
def producers(options: Options, group: Annotated[str, typer.Argument(help="The producer group.")]) -> None:
    """List the producers of a group that are online."""
    found = options.run_admin(lambda admin: admin.brokers.producers(group))
    print_rows(
        options, (producer._asdict() for producer in found), none=f"group {group} has no producers online"
    )


@broker_app.command("wipe-writes", epilog="Example: rocketpy broker wipe-writes broker-a")
def wipe_writes(options: Options, broker: _Name, yes: Yes = False) -> None:
    """Hide a broker from producers; consumers continue to read. To also wait for producers, use drain."""
    options.confirm(f"hide broker {broker} from producers", yes=yes)
    topics = options.run_admin(lambda admin: admin.brokers.wipe_write_permission(broker))
    _print_permission(options, f"hid broker {broker} from producers", broker, topics)


@broker_app.command("restore-writes", epilog="Example: rocketpy broker restore-writes broker-a")
def restore_writes(options: Options, broker: _Name, yes: Yes = False) -> None:
    """Undo wipe-writes: producers use the broker again. Name servers of RocketMQ support it from 4.9."""
    options.confirm(f"let producers use broker {broker}", yes=yes)
    topics = options.run_admin(lambda admin: admin.brokers.add_write_permission(broker))
    _print_permission(options, f"let producers use broker {broker}", broker, topics)


@broker_app.command(
    epilog="""[bold]Examples[/bold]

[cyan]rocketpy broker drain broker-a --dry-run[/cyan]

[cyan]rocketpy broker drain broker-a && ssh broker-a systemctl restart rocketmq-broker[/cyan]"""
)
def drain(
    options: Options,
    broker: _Name,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            metavar="SECONDS",
            help="Minimum wait; longer than the interval at which producers refresh routes (30 s).",
        ),
    ] = 35.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=1, metavar="SECONDS", help="After this time, give up with exit status 1."
        ),
    ] = 180.0,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move producers to other brokers, and say when the broker can be stopped.

    It wipes the write permission, and waits until producers have fresh routes, the broker stores no more
    messages, and its slaves have all messages. Producers return after the broker's next start, or after
    restore-writes.
    """
    plan = options.run_admin(lambda admin: admin.brokers.plan_drain(broker))
    if dry_run:
        if options.as_json:
            print_json([_plan(plan)])
            return
        names = ("topics", "unmovable_topics")
        print_fields(options, {**_plan(plan), **{name: _shortened(getattr(plan, name)) for name in names}})
        print("\nnothing was changed (--dry-run)")
        return
    where = f"broker {broker} of cluster {plan.cluster}"
    action = f"move producers of {len(plan.topics)} topics from {where} to other brokers"
    if plan.unmovable_topics:
        action += f" (no other broker has {_shortened(plan.unmovable_topics)}: their producers will fail)"
    options.confirm(action, yes=yes)
    started = time.monotonic()
    options.run(_drain(options, broker, wait, timeout))
    seconds = time.monotonic() - started
    notes = [f"broker {broker} can be stopped now, after {seconds:.0f} s: producers have left it"]
    if plan.is_elected:
        notes.append(
            "it leads a DLedger group, and DLedger 0.1 cannot transfer leadership: the other peers elect a "
            "leader after the stop, to which producers return"
        )
    else:
        notes.append(
            "producers return at its next start; to let them return without a restart: "
            f"rocketpy broker restore-writes {broker}"
        )
    options.print_result("\n".join(notes), {**_plan(plan), "seconds": round(seconds, 3)})


async def _drain(options: Options, broker: str, wait_s: float, timeout_s: float) -> None:
    """Drain a broker, and show its progress on a terminal."""
    last: DrainProgress | None = None
    shows_progress = sys.stderr.isatty() and not options.as_json
    with (
        Console(stderr=True).status("waiting for fresh routes") if shows_progress else nullcontext() as status
    ):

        def note(progress: DrainProgress) -> None:
            nonlocal last
            last = progress
            if status is not None:
                status.update(_progress_text(progress))

        try:
            async with asyncio.timeout(timeout_s), AdminClient(client=options.cluster.client) as admin:
                await admin.brokers.drain(broker, wait_ms=wait_s * 1000, on_progress=note)
        except TimeoutError:
            hidden, state = ("may be", "no response") if last is None else ("is", _progress_text(last))
            raise RocketError(
                f"broker {broker} {hidden} hidden, but not drained after {timeout_s:g} s ({state}). Sends "
                "with an old route, retries and delayed messages also delay the drain. Repeat the command, "
                f"or undo it: rocketpy broker restore-writes {broker}"
            ) from None


def _progress_text(progress: DrainProgress) -> str:
    if progress.lag_bytes:
        return f"a slave is {progress.lag_bytes:,} bytes behind"
    return f"it stores {progress.per_second:,.0f} messages/s, {progress.stored:,} since it was hidden"


def _shortened(topics: Sequence[str]) -> str:
    """Return the number of topics, and the first of their names."""
    names = ", ".join(topics[:_NAMED_MAX]) + ", …" * (len(topics) > _NAMED_MAX)
    return f"{len(topics)} topics" + f" ({names})" * bool(topics)


def _plan(plan: DrainPlan) -> dict[str, object]:
    fields = plan._asdict()
    return {"broker_name": fields.pop("broker"), **fields}


@broker_app.command("clean-queues", epilog="Example: rocketpy broker clean-queues --cluster DefaultCluster")
def clean_queues(options: Options, cluster: OfCluster = None, yes: Yes = False) -> None:
    """Have every master delete the files of queues whose messages have all expired."""
    _clean(options, "queues without messages", cluster, Brokers.clean_expired_queues, yes=yes)


@broker_app.command("clean-topics", epilog="Example: rocketpy broker clean-topics")
def clean_topics(options: Options, cluster: OfCluster = None, yes: Yes = False) -> None:
    """Have every master delete the queues of topics that do not exist any more."""
    _clean(options, "the queues of deleted topics", cluster, Brokers.clean_unused_topics, yes=yes)


@config_app.command("get", epilog="Example: rocketpy broker config get broker-a fileReservedTime")
def get_config(
    options: Options,
    broker: _Broker,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these settings.")
    ] = None,
) -> None:
    """Show the settings of a broker, by their names in broker.conf."""
    found = options.run_admin(lambda admin: _call_broker(admin, broker, admin.brokers.config))
    for name in names or ():
        if name not in found:
            raise RocketError(f"broker {broker} has no setting {name}; leave the name out to see all")
    print_fields(options, {name: found[name] for name in names or sorted(found)})


@config_app.command("set", epilog="Example: rocketpy broker config set broker-a fileReservedTime=48")
def set_config(
    options: Options,
    broker: _Broker,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="The new values.")],
    yes: Yes = False,
) -> None:
    """Change settings of a running broker. rocketpy brokers need remoteConfigUpdateEnable=true."""
    changes = parse_pairs(settings)
    options.confirm(f"set {' '.join(settings)} on broker {broker}", yes=yes)
    options.run_admin(
        lambda admin: _call_broker(admin, broker, lambda address: admin.brokers.set_config(address, changes))
    )
    options.print_done(
        f"set {' '.join(settings)} on broker {broker}", {"broker_name": broker, "settings": changes}
    )


def _print_permission(options: Options, text: str, broker: str, topics: int) -> None:
    """Print what changed. Raises RocketError if nothing did: name servers accept any name."""
    if not topics:
        raise RocketError(f"the name servers know no topics of broker {broker}; see rocketpy broker list")
    options.print_done(f"{text}: {topics} topics", {"broker_name": broker, "topics": topics})


def _clean(
    options: Options,
    what: str,
    cluster: str | None,
    clean: Callable[[Brokers, str | None], Awaitable[None]],
    *,
    yes: bool,
) -> None:
    where = f"every master{f' of cluster {cluster}' if cluster else ''}"
    options.confirm(f"delete {what} on {where}", yes=yes)
    options.run_admin(lambda admin: clean(admin.brokers, cluster))
    options.print_done(f"deleted {what} on {where}", {"deleted": what})


async def _call_broker(admin: AdminClient, broker: str, call: Callable[[str], Awaitable[T]]) -> T:
    """Call `call` with the address of a broker. Raises RocketError for an unknown name.

    broker: ``name``, ``name/id`` of a slave, or an address.
    """
    if ":" in broker:
        return await call(broker)
    known = {
        known_broker.name
        if known_broker.broker_id == 0
        else f"{known_broker.name}/{known_broker.broker_id}": known_broker.address
        for known_broker in await admin.brokers.list()
    }
    if broker not in known:
        raise RocketError(f"there is no broker {broker}; the name server knows: {', '.join(known) or 'none'}")
    return await call(known[broker])
