"""``rocketpy-broker dledger``: the leader of a DLedger group, and the progress of its peers.

``status`` queries the brokers that a name server knows, or the peers of a group at their own ports. The
latter works with RocketMQ's peers, too, which report only the leader. Peers that set dLegerSecret respond
only if -c names a broker.conf with the same secret. Exit status 0: every group has a leader, all its peers
respond, and none has a problem. 1: otherwise, or no group was found. 2: the configuration is invalid, or no
name server responds. Brokers with access control need ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY in the
environment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.cli.ha import (
    EXIT_UNKNOWN,
    NAMESRV_HELP,
    add_status_options,
    given_name_servers,
    name_servers,
    print_status,
)
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.readers import read_peers
from rocketpy_broker.replication.dledger_status import PeerReport, find_peers, query_peers

_COLUMNS = ("GROUP", "PEER", "ADDRESS", "ID", "ROLE", "TERM", "LEADER", "LAST", "COMMITTED", "LAG", "STATE")


def add_dledger_commands(commands: Any) -> None:
    """Add ``dledger`` and its commands to the subparsers of ``rocketpy-broker``."""
    text = "inspect DLedger groups"
    dledger = commands.add_parser("dledger", help=text, description=__doc__)
    actions = dledger.add_subparsers(required=True, metavar="status|transfer")
    text = "show leaders, terms, and the progress of peers"
    status = actions.add_parser("status", help=text, description=text)
    target = status.add_mutually_exclusive_group()
    target.add_argument("--namesrv", metavar="ADDR", help=NAMESRV_HELP)
    target.add_argument("-c", "--config", metavar="FILE", help="query the peers in a broker.conf")
    target.add_argument("--peers", metavar="PEERS", help="query these peers: n0-host:port;n1-host:port;…")
    status.add_argument("--group", metavar="NAME", help="dLegerGroup of --peers")
    add_status_options(status)
    status.set_defaults(
        action=lambda options: print_status(options, _reports, _empty_text, _table, _has_problems)
    )
    text = "not supported: DLedger 0.1 cannot transfer leadership"
    transfer = actions.add_parser("transfer", help=text, description=text)
    transfer.set_defaults(action=_transfer)


def _transfer(_: argparse.Namespace) -> int:
    print(
        "rocketpy-broker dledger: DLedger 0.1, which RocketMQ 4.6.0 has, cannot transfer leadership; "
        "stop the leader's broker, and the others elect one of them",
        file=sys.stderr,
    )
    return EXIT_UNKNOWN


async def _reports(options: argparse.Namespace) -> list[PeerReport]:
    if options.config:
        config = load_broker_config(options.config)
        dledger, tls = config.dledger, ChannelOptions(ssl=config.registration.ssl)
        if not dledger.enabled:
            raise ConfigInvalid(f"{options.config} does not set enableDLegerCommitLog=true")
        return await query_peers(
            dledger.group, dledger.peers, tls, secret=dledger.secret, self_id=dledger.self_id
        )
    if options.peers:
        if not options.group:
            raise ConfigInvalid("--peers needs --group")
        return await query_peers(options.group, _peers(options.peers))
    found = await find_peers(name_servers(options), options.name)
    return [report for report in found if report.group or not report.responds]


def _empty_text(options: argparse.Namespace) -> str:
    """Return the error text if no broker reports a group."""
    named = f" named {options.name}" if options.name else ""
    return (
        f"no broker{named} at {given_name_servers(options)} reports a DLedger group; "
        "query RocketMQ's own peers with --peers and --group, or -c"
    )


def _peers(text: str) -> dict[str, Address]:
    try:
        return read_peers(text)
    except ValueError as error:
        raise ConfigInvalid(f"--peers {text}: {error}") from None


def _has_problems(reports: Sequence[PeerReport]) -> bool:
    """Whether a group has no leader, or a peer does not respond or has a problem."""
    groups = {report.group for report in reports if report.group}
    led = {report.group for report in reports if report.role == "leader"}
    return bool(groups - led) or any(not report.responds or report.problem for report in reports)


def _table(reports: Sequence[PeerReport]) -> list[tuple[str, ...]]:
    lags: dict[tuple[str, str], str] = {}
    for report in reports:
        lags |= {
            (report.group, peer): _lag(lag, report.lags_ms.get(peer, 0)) for peer, lag in report.lags.items()
        }
    return [_COLUMNS, *(_row(report, lags.get((report.group, report.peer), "-")) for report in reports)]


def _lag(entries: int, ms: int) -> str:
    """Return the text of a lag, with seconds from one second on: a busy leader is always a little ahead."""
    return f"{entries}, {ms // 1000} s" if ms >= 1000 else str(entries)


def _row(report: PeerReport, lag: str) -> tuple[str, ...]:
    """Return a row of the table. lag: what the peer lacks, according to its leader."""
    group, peer = report.group or report.broker_name or "?", report.peer or "?"
    identity = (group, peer, report.address, _known(report.broker_id))
    if not report.responds:
        return (*identity, "?", "-", "-", "-", "-", "-", f"no usable response: {report.problem}")
    return (
        *identity,
        report.role or "?",
        _known(report.term),
        report.leader or "-",
        _known(report.end_index),
        _known(report.committed_index),
        lag,
        report.problem or "ok",
    )


def _known(number: int) -> str:
    return "-" if number < 0 else str(number)
