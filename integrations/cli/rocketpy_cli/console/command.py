"""``rocketpy console``: serves the web console."""

from __future__ import annotations

import os
import secrets
from typing import Annotated, Final

import typer

from rocketpy.errors import ConfigInvalid
from rocketpy_cli.context import Options

EXAMPLES: Final = "Example: rocketpy console -n mq-1:9876 --allow-changes"
_EXTRA: Final = frozenset({"jinja2", "starlette", "uvicorn"})
_TOKEN: Final = "ROCKETPY_CONSOLE_TOKEN"  # noqa: S105 - the name of a variable


def console(
    options: Options,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free port.")] = 8088,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDR", help="The address to listen on.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Allow an address that other machines can reach, without TLS."),
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="A name that browsers use; may be repeated."),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Allow changes: send messages, resend dead letters, reset offsets, hide brokers.",
        ),
    ] = False,
) -> None:
    """Serve a web console for the cluster, until Ctrl-C, and print the link to it.

    The link contains a token. ROCKETPY_CONSOLE_TOKEN sets it; without it, each start generates a new token.
    """
    try:
        from rocketpy_cli.console.server import serve  # noqa: PLC0415 - it needs an optional extra
        from rocketpy_cli.console.settings import ConsoleSettings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ConfigInvalid(
            f'the console needs the package {error.name}: pip install "rocketpy-mq[console]"'
        ) from None
    token = os.environ.get(_TOKEN) or secrets.token_urlsafe(32)
    settings = ConsoleSettings(
        client=options.cluster.client,
        cluster=str(options.cluster),
        host=host,
        port=port,
        allow_changes=allow_changes,
        allow_remote=allow_remote,
        host_names=tuple(host_name or ()),
        token=token,
    )

    def announce(link: str) -> None:
        options.print_result(f"The console is at {link}", {"url": link})

    options.run(serve(settings, announce))
