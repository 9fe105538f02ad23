"""``rocketpy-broker ha status``: masters and their slaves, and the lag of the slaves.

It works with RocketMQ's brokers, too, which report only the end of their logs. Exit status 0: every broker
responds, every slave of rocketpy copies its master, and every SYNC_MASTER of rocketpy has a slave that keeps
up. 1: otherwise, or no broker is registered. 2: no name server responds, or its address is invalid. Brokers
with access control need ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY in the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from rocketpy.client.name_servers import split_addresses
from rocketpy.config import value_of
from rocketpy.environment import (
    ROCKETMQ_VARIABLES,
    VARIABLES,
    environment_sources,
    find_settings,
    no_name_server,
)
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import MASTER_ID
from rocketpy.runtime.text import escape_json, printable
from rocketpy.transport import Address
from rocketpy_broker.replication.ha.client import HaClientState
from rocketpy_broker.replication.ha_status import BrokerReport, find_brokers, query_broker

R = TypeVar("R")

NAMESRV_HELP = (
    "query the brokers that these know; "
    f"default: {VARIABLES['namesrv']}, then {ROCKETMQ_VARIABLES['namesrv']}"
)
EXIT_PROBLEMS = 1
EXIT_UNKNOWN = 2
_COLUMNS = ("BROKER", "ID", "ADDRESS", "ROLE", "EPOCH", "LOG ENDS", "LAG", "SLAVES", "STATE")


def add_ha_commands(commands: Any) -> None:
    """Add ``ha`` and its commands to the subparsers of ``rocketpy-broker``."""
    text = "inspect masters and slaves"
    ha = commands.add_parser("ha", help=text, description=__doc__)
    actions = ha.add_subparsers(required=True, metavar="status")
    text = "show roles, log ends, lag and states of brokers"
    status = actions.add_parser("status", help=text, description=text)
    targets = status.add_mutually_exclusive_group()
    targets.add_argument("--namesrv", metavar="ADDR", help=NAMESRV_HELP)
    targets.add_argument("--broker", metavar="ADDR", help="query only this broker")
    add_status_options(status)
    status.set_defaults(
        action=lambda options: print_status(options, _replicas, _empty_text, _table, _has_problems)
    )


def add_status_options(status: argparse.ArgumentParser) -> None:
    """Add the options of ``status`` commands, which `print_status` reads."""
    status.set_defaults(failed=EXIT_UNKNOWN)
    status.add_argument("--name", metavar="NAME", help="only brokers with this brokerName")
    status.add_argument("--json", action="store_true", help="print one JSON object for each broker")


def print_status(
    options: argparse.Namespace,
    query: Callable[[argparse.Namespace], Awaitable[Sequence[R]]],
    when_empty: Callable[[argparse.Namespace], str],
    table: Callable[[Sequence[R]], Sequence[Sequence[str]]],
    has_problems: Callable[[Sequence[R]], bool],
) -> int:
    """Print the reports of brokers; return the exit status. when_empty: the error text without any."""

    async def run() -> Sequence[R]:
        return await query(options)

    reports = asyncio.run(run())
    if not reports:
        print(f"rocketpy-broker {options.command}: {when_empty(options)}", file=sys.stderr)
        return EXIT_PROBLEMS
    if options.json:
        for report in reports:
            print(escape_json(msgspec.json.encode(report).decode()))
    else:
        rows = [[printable(text) for text in row] for row in table(reports)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return EXIT_PROBLEMS if has_problems(reports) else 0


def given_name_servers(options: argparse.Namespace) -> str:
    """Return the name servers in the options or the environment. Raises ConfigInvalid without any."""
    given = options.namesrv or value_of(find_settings(environment_sources()), "namesrv")
    if not given:
        raise ConfigInvalid(no_name_server("--namesrv host:9876"))
    return str(given)


def name_servers(options: argparse.Namespace) -> list[Address]:
    """Return the addresses of the name servers. Raises ConfigInvalid, also for none."""
    return [Address.parse(server) for server in split_addresses(given_name_servers(options))]


async def _replicas(options: argparse.Namespace) -> list[BrokerReport]:
    if options.broker:
        return [await query_broker(options.broker)]
    return await find_brokers(name_servers(options), options.name)


def _empty_text(options: argparse.Namespace) -> str:
    """Return the error text if no broker is registered."""
    named = f" named {options.name}" if options.name else ""
    return f"no broker{named} is registered at {given_name_servers(options)}"


def _has_problems(replicas: Sequence[BrokerReport]) -> bool:
    """Whether a broker does not respond, a slave does not copy its master, or a SYNC_MASTER has no slave."""
    return any(
        not replica.responds
        or replica.state not in ("", HaClientState.COPIES.name)
        or (not replica.state and replica.problem)
        for replica in replicas
    )


def _table(replicas: Sequence[BrokerReport]) -> list[tuple[str, ...]]:
    ends = {each.name: each.max_offset for each in replicas if each.broker_id == MASTER_ID and each.responds}
    return [_COLUMNS, *(_row(each, ends.get(each.name)) for each in replicas)]


def _row(replica: BrokerReport, master_end: int | None) -> tuple[str, ...]:
    """Return a row of the table. master_end: end of the master's log, if it is known."""
    identity = (replica.name or "?", str(replica.broker_id), replica.address)
    is_slave = replica.broker_id != MASTER_ID
    lag = max(0, master_end - replica.max_offset) if is_slave and master_end is not None else None
    if not replica.responds:
        return (*identity, "?", "-", "-", "-", "-", f"does not respond: {replica.problem}")
    state = HaClientState[replica.state].value if replica.state in HaClientState.__members__ else "serves"
    return (
        *identity,
        replica.role or "RocketMQ's",
        str(replica.epoch),
        str(replica.max_offset),
        "-" if lag is None else str(lag),
        str(sum(slave.received >= 0 for slave in replica.slaves)) if replica.role else "?",
        f"{state}: {replica.problem}" if replica.problem else state,
    )
