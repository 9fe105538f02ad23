"""``rocketpy-broker ha status``: masters and their slaves, and how far the slaves are.

Works on RocketMQ's brokers too, which tell only where their logs end. Exit status 0 means that every broker
answers and every slave copies a master, 1 that one does not, 2 that nothing could be asked. Brokers with
access control want keys: ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY of the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MASTER_ID
from rocketpy_broker.cli.common import name_servers, namesrv_of, print_line, print_table
from rocketpy_broker.replication.ha.client import HaClientState
from rocketpy_broker.replication.ha_status import BrokerReport, ask_broker, find_brokers

_EXIT_PROBLEMS = 1
_EXIT_UNKNOWN = 2
_COLUMNS = ("BROKER", "ID", "ADDRESS", "ROLE", "EPOCH", "LOG ENDS", "LAG", "SLAVES", "STATE")


def add_ha_commands(commands: Any) -> None:
    """Add ``ha`` and its commands to the subparsers of ``rocketpy-broker``."""
    text = "look at masters and slaves"
    ha = commands.add_parser("ha", help=text, description=__doc__)
    actions = ha.add_subparsers(required=True, metavar="status")
    text = "show roles, log ends, lag and states of brokers"
    status = actions.add_parser("status", help=text, description=text)
    target = status.add_mutually_exclusive_group()
    target.add_argument("--namesrv", metavar="ADDR", help="ask all its brokers; else NAMESRV_ADDR")
    target.add_argument("--broker", metavar="ADDR", help="ask this broker only")
    status.add_argument("--name", metavar="NAME", help="only brokers of this brokerName")
    status.add_argument("--json", action="store_true", help="print a JSON object a broker")
    status.set_defaults(action=lambda options: asyncio.run(_status(options)))


async def _status(options: argparse.Namespace) -> int:
    try:
        replicas = await _replicas(options)
    except RocketError as error:
        sys.stderr.write(f"rocketpy-broker ha: {error}" + "\n")
        return _EXIT_UNKNOWN
    if not replicas:
        sys.stderr.write(f"rocketpy-broker ha: {_nobody(options)}\n")
        return _EXIT_PROBLEMS
    if options.json:
        for replica in replicas:
            print_line(msgspec.json.encode(replica).decode())
    else:
        _print_table(replicas)
    bad = [replica for replica in replicas if not replica.answers or _waits(replica)]
    return _EXIT_PROBLEMS if bad else 0


async def _replicas(options: argparse.Namespace) -> list[BrokerReport]:
    if options.broker:
        return [await ask_broker(options.broker)]
    return await find_brokers(name_servers(options), options.name)


def _nobody(options: argparse.Namespace) -> str:
    """What is said when a name server knows nobody to ask."""
    named = f" of the name {options.name}" if options.name else ""
    return f"no broker{named} is registered at {namesrv_of(options)}"


def _waits(replica: BrokerReport) -> bool:
    """Whether a slave of ours does not copy."""
    return replica.state not in ("", HaClientState.COPIES.name)


def _print_table(replicas: Sequence[BrokerReport]) -> None:
    ends = {each.name: each.max_offset for each in replicas if each.broker_id == MASTER_ID and each.answers}
    print_table([_COLUMNS, *(_row(each, ends.get(each.name)) for each in replicas)])


def _row(replica: BrokerReport, master_end: int | None) -> tuple[str, ...]:
    """master_end: where the master's log ends, if it told; a slave's lag is counted from there."""
    is_slave = replica.broker_id != MASTER_ID
    lag = max(0, master_end - replica.max_offset) if is_slave and master_end is not None else None
    if not replica.answers:
        return (*_who(replica), "?", "-", "-", "-", "-", f"does not answer: {replica.problem}")
    state = HaClientState[replica.state].value if replica.state in HaClientState.__members__ else "serves"
    return (
        *_who(replica),
        replica.role or "RocketMQ's",
        str(replica.epoch),
        str(replica.max_offset),
        "-" if lag is None else str(lag),
        str(sum(slave.received >= 0 for slave in replica.slaves)) if replica.role else "?",
        f"{state}: {replica.problem}" if replica.problem else state,
    )


def _who(replica: BrokerReport) -> tuple[str, str, str]:
    return replica.name or "?", str(replica.broker_id), replica.address
