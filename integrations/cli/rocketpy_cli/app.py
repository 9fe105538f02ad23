"""The command ``rocketpy``: global options, and the command that starts servers for development."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from rocketpy._version import __version__
from rocketpy.errors import ConfigInvalid
from rocketpy_cli.archives import export, import_
from rocketpy_cli.commands import (
    acl,
    bench,
    broker,
    consume,
    dlq,
    group,
    message,
    namesrv,
    send,
    topic,
    users,
)
from rocketpy_cli.console import command as console
from rocketpy_cli.context import CommandGroup, Commands, Options, global_options_first
from rocketpy_cli.doctor import command as doctor

_SERVERS: Final = "rocketpy-broker"
"""The command that runs the servers. The entry points of the group "rocketpy.embedded" cannot replace it:
their servers can be reached within one process only."""

app: typer.Typer = CommandGroup(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Global options may stand anywhere on the line. Exit status: 0 done, 1 failed, 2 wrong usage.",
)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    try:
        _command()(global_options_first(arguments), prog_name="rocketpy")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:  # the output of --help and --version; see `Commands` for that of commands
        print(f"rocketpy: {error}", file=sys.stderr)
        return 1
    return 0


@cache
def _command() -> Callable[..., object]:
    """Return the command. It is cached, because typer takes 40 ms to build it from the functions."""
    command = typer.main.get_command(app)
    _improve_help(command)
    return command


def _improve_help(command: Any) -> None:
    """Join the lines of each paragraph; otherwise rich breaks them where the source does.

    Flags show no type: `<bool>`, which typer 0.29 adds, suggests that `--json true` is valid.
    """
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or ""))
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument" and parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
    for subcommand in command.commands.values() if isinstance(command, TyperGroup) else ():
        _improve_help(subcommand)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rocketpy {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    namesrv: Annotated[
        str | None,
        typer.Option("--namesrv", "-n", metavar="ADDR", help="Name servers, separated by semicolons."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="A profile of ~/.config/rocketpy.toml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log what happens, and print tracebacks of errors.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Send, read and look up messages of Apache RocketMQ, and administer its clusters."""
    context.obj = Options(namesrv=namesrv, profile=profile, as_json=as_json, verbose=verbose)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def dev(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Options of rocketpy-broker dev.")
    ] = None,
) -> None:
    """Run a name server (127.0.0.1:9876) and a broker for development, until Ctrl-C.

    Other commands use these servers unless an option, variable or profile names a cluster. The options
    are those of ``rocketpy-broker dev``, such as ``--store DIR``, which keeps the messages.

    Raises:
        ConfigInvalid: The command ``rocketpy-broker`` is not installed.
    """
    # The client never imports rocketpy_broker.
    found = list(entry_points(group="console_scripts", name=_SERVERS))
    if not found:
        raise ConfigInvalid(f"the command {_SERVERS} is not installed: pip install rocketpy-mq")
    raise typer.Exit(found[0].load()(["dev", *(arguments or ())]))


app.command(epilog=console.EXAMPLES)(console.console)
app.command(epilog=send.EXAMPLES)(send.send)
app.command(epilog=consume.EXAMPLES)(consume.consume)
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command("import", epilog=import_.EXAMPLES)(import_.import_)
app.add_typer(dlq.dlq_app)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(message.message_app)
app.add_typer(topic.topic_app)
app.add_typer(group.group_app)
app.add_typer(broker.broker_app)
app.add_typer(acl.acl_app)
app.add_typer(users.user_app)
app.add_typer(users.policy_app)
app.add_typer(namesrv.namesrv_app)
