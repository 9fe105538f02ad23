"""The command ``rocketpy doctor``."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from rocketpy.admin.admin_client import AdminClient
from rocketpy.client.instance import ClientInstance
from rocketpy.config import ClientConfig
from rocketpy.errors import ConfigInvalid
from rocketpy.runtime.text import printable
from rocketpy_cli.context import Options
from rocketpy_cli.doctor.brokers import check_brokers
from rocketpy_cli.doctor.findings import Finding, Findings, Level
from rocketpy_cli.doctor.groups import check_groups
from rocketpy_cli.doctor.machine import check_machine
from rocketpy_cli.doctor.name_servers import check_name_servers
from rocketpy_cli.tables import print_json

EXAMPLES: Final = "Example: rocketpy doctor --namesrv mq-1:9876;mq-2:9876"
_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    options: Options,
    lag: Annotated[
        int,
        typer.Option("--lag", min=0, metavar="N", help="Warn about groups with a larger lag, in messages."),
    ] = 10_000,
    disk: Annotated[
        float,
        typer.Option(
            "--disk", min=0, max=100, metavar="PERCENT", help="Report disks that are at least this full."
        ),
    ] = 80,
) -> None:
    """Check this machine and a cluster, and name a remedy for each problem. It changes nothing.

    The exit status is 1 if there is a problem. Warnings do not change it.
    """
    findings = Findings()
    check_machine(findings, os.environ)
    try:
        client = options.cluster.client
    except ConfigInvalid as error:
        findings.problem(
            "profile", "the cluster to check", str(error), "Correct the option, variable or file"
        )
    else:
        with contextlib.nullcontext() if options.verbose else _without_warnings():
            options.run(_check_cluster(findings, client, lag, disk))
    _print(findings, as_json=options.as_json)
    if findings.count(Level.PROBLEM):
        raise typer.Exit(1)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Log errors only: the findings replace the warnings of clients."""
    logger = logging.getLogger("rocketpy")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _check_cluster(findings: Findings, config: ClientConfig, lag: int, disk: float) -> None:
    try:
        client = await ClientInstance.acquire(config, wait=False)
    except ConfigInvalid as error:
        findings.problem(
            "name server", config.namesrv, str(error), "Write host:port, separated by semicolons"
        )
        return
    try:
        known = await check_name_servers(findings, client)
        if any(view.cluster.broker_addr_table for view in known.values()):
            await check_brokers(findings, client, known, disk)
            admin = AdminClient(client=config)
            await admin.start(wait=False)
            try:
                await check_groups(findings, admin, lag)
            finally:
                await admin.close()
    finally:
        await client.release()


def _print(findings: Findings, *, as_json: bool) -> None:
    if as_json:
        print_json(finding._asdict() for finding in findings)
        return
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(_line(finding))
    problems, warnings = findings.count(Level.PROBLEM), findings.count(Level.WARNING)
    console.print(f"problems: {problems}, warnings: {warnings}, passed: {findings.count(Level.OK)}")


def _line(finding: Finding) -> Text:
    line = Text.assemble(
        (f"{finding.level:<8} ", _STYLES[finding.level]),
        (printable(finding.subject), "bold"),
        f": {printable(finding.text)}",
    )
    return line.append(f"\n         → {printable(finding.remedy)}") if finding.remedy else line
