"""``rocketpy-broker dledger``: who leads a DLedger group, and how far its peers are.

``status`` asks the brokers that a name server knows, or the peers of a group over their own ports; the latter
works on RocketMQ's peers, which tell who leads and nothing more. Peers with dLegerSecret answer only with -c
and a file that has it. Exit status 0 means that every group has a leader and every peer answers, 1 that it is
not so, 2 that nothing could be asked. Brokers with access control want keys: ROCKETMQ_ACCESS_KEY and
ROCKETMQ_SECRET_KEY of the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.cli.common import name_servers, namesrv_of, print_line, print_table
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.readers import read_peers
from rocketpy_broker.replication.dledger_status import PeerReport, ask_peers, find_peers

_EXIT_PROBLEMS = 1
_EXIT_UNKNOWN = 2
_COLUMNS = ("GROUP", "PEER", "ADDRESS", "ID", "ROLE", "TERM", "LEADER", "ENDS", "COMMITTED", "LAG", "STATE")


def add_dledger_commands(commands: Any) -> None:
    """Add ``dledger`` and its commands to the subparsers of ``rocketpy-broker``."""
    text = "look at DLedger groups"
    dledger = commands.add_parser("dledger", help=text, description=__doc__)
    actions = dledger.add_subparsers(required=True, metavar="status|transfer")
    text = "show leaders, terms, and how far peers are"
    status = actions.add_parser("status", help=text, description=text)
    target = status.add_mutually_exclusive_group()
    target.add_argument("--namesrv", metavar="ADDR", help="ask all its brokers; else NAMESRV_ADDR")
    target.add_argument("-c", "--config", metavar="FILE", help="ask the peers that a broker.conf names")
    target.add_argument("--peers", metavar="PEERS", help="ask these: n0-host:port;n1-host:port;…")
    status.add_argument("--group", metavar="NAME", help="of --peers (dLegerGroup)")
    status.add_argument("--name", metavar="NAME", help="only brokers of this brokerName")
    status.add_argument("--json", action="store_true", help="print a JSON object a peer")
    status.set_defaults(action=lambda options: asyncio.run(_status(options)))
    text = "hand leadership to another peer: not in DLedger 0.1"
    transfer = actions.add_parser("transfer", help=text, description=text)
    transfer.set_defaults(action=_transfer)


def _transfer(_: argparse.Namespace) -> int:
    sys.stderr.write(
        "rocketpy-broker dledger: DLedger 0.1, which RocketMQ 4.6.0 has, cannot transfer leadership; "
        "stop the leader's broker, and the others elect one of them\n"
    )
    return _EXIT_UNKNOWN


async def _status(options: argparse.Namespace) -> int:
    try:
        reports = await _reports(options)
    except (RocketError, OSError) as error:
        sys.stderr.write(f"rocketpy-broker dledger: {error}\n")
        return _EXIT_UNKNOWN
    if not reports:
        sys.stderr.write(f"rocketpy-broker dledger: {_nobody(options)}\n")
        return _EXIT_PROBLEMS
    if options.json:
        for report in reports:
            print_line(msgspec.json.encode(report).decode())
    else:
        _print_table(reports)
    groups = {report.group for report in reports if report.group}
    led = {report.group for report in reports if report.role == "leader"}
    bad = [report for report in reports if not report.answers or report.problem]
    return _EXIT_PROBLEMS if bad or groups - led else 0


async def _reports(options: argparse.Namespace) -> list[PeerReport]:
    if options.config:
        config = load_broker_config(options.config)
        dledger, tls = config.dledger, ChannelOptions(ssl=config.registration.ssl)
        if not dledger.enabled:
            raise ConfigInvalid(f"{options.config} does not print_line enableDLegerCommitLog=true")
        return await ask_peers(
            dledger.group, dledger.peers, tls, secret=dledger.secret, self_id=dledger.self_id
        )
    if options.peers:
        if not options.group:
            raise ConfigInvalid("--peers needs --group")
        return await ask_peers(options.group, _peers(options.peers))
    found = await find_peers(name_servers(options), options.name)
    return [report for report in found if report.group or not report.answers]


def _nobody(options: argparse.Namespace) -> str:
    """What is said when a name server knows no broker that tells of a group."""
    named = f" of the name {options.name}" if options.name else ""
    return (
        f"no broker{named} at {namesrv_of(options)} tells of a DLedger group; "
        "RocketMQ's own peers are asked by --peers and --group, or -c"
    )


def _peers(text: str) -> dict[str, Address]:
    try:
        return read_peers(text)
    except ValueError as error:
        raise ConfigInvalid(f"--peers {text}: {error}") from None


def _print_table(reports: Sequence[PeerReport]) -> None:
    lags: dict[tuple[str, str], int] = {}
    for report in reports:
        lags |= {(report.group, peer): lag for peer, lag in report.lags.items()}
    print_table([_COLUMNS, *(_row(report, lags.get((report.group, report.peer))) for report in reports)])


def _row(report: PeerReport, lag: int | None) -> tuple[str, ...]:
    """lag: how many entries it lacks, as its leader says."""
    group, peer = report.group or report.broker_name or "?", report.peer or "?"
    if not report.answers:
        rest = ("?", "-", "-", "-", "-", "-", f"does not answer: {report.problem}")
        return (group, peer, report.address, _known(report.broker_id), *rest)
    return (
        group,
        peer,
        report.address,
        _known(report.broker_id),
        report.role or "?",
        _known(report.term),
        report.leader or "-",
        _known(report.end_index),
        _known(report.committed_index),
        "-" if lag is None else str(lag),
        report.problem or "takes part",
    )


def _known(number: int) -> str:
    return "-" if number < 0 else str(number)
