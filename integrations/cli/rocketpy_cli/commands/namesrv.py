"""``rocketpy namesrv``: key-value settings at name servers, and the settings of name servers."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rocketpy.errors import RocketError
from rocketpy_cli.context import CommandGroup, DryRun, Options, Yes, parse_pairs
from rocketpy_cli.tables import print_rows

namesrv_app: Final = CommandGroup(
    name="namesrv", help="Show and change key-value settings and the settings of name servers."
)
config_app: Final = CommandGroup(name="config", help="Show and change settings of running name servers.")
namesrv_app.add_typer(config_app)

_Namespace = Annotated[str, typer.Argument(help="The namespace of the keys, such as ORDER_TOPIC_CONFIG.")]
_Key = Annotated[str, typer.Argument(help="The key.")]


@namesrv_app.command(epilog="Example: rocketpy namesrv get ORDER_TOPIC_CONFIG Orders")
def get(
    options: Options,
    namespace: _Namespace,
    key: Annotated[str | None, typer.Argument(help="Only this key.")] = None,
) -> None:
    """Show the key-value settings of a namespace."""
    if key is None:
        found = options.run_admin(lambda admin: admin.name_servers.namespace(namespace))
        rows = ({"key": name, "value": value} for name, value in sorted(found.items()))
        print_rows(options, rows, none=f"namespace {namespace} has no keys")
        return
    value = options.run_admin(lambda admin: admin.name_servers.get(namespace, key))
    if value is None:
        raise RocketError(
            f"namespace {namespace} has no key {key}; rocketpy namesrv get {namespace} shows all"
        )
    print_rows(options, [{"key": key, "value": value}])


@namesrv_app.command(epilog="Example: rocketpy namesrv put shop region north")
def put(
    options: Options,
    namespace: _Namespace,
    key: _Key,
    value: Annotated[str, typer.Argument(help="The new value.")],
    yes: Yes = False,
) -> None:
    """Set a key at every name server."""
    options.confirm(f"set {key}={value} in namespace {namespace}", yes=yes)
    options.run_admin(lambda admin: admin.name_servers.put(namespace, key, value))
    fields = {"namespace": namespace, "key": key, "value": value}
    options.print_done(f"set {key}={value} in namespace {namespace}", fields)


@namesrv_app.command(epilog="Example: rocketpy namesrv delete shop region --dry-run")
def delete(
    options: Options, namespace: _Namespace, key: _Key, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Delete a key at every name server. With --dry-run: show it, and keep it."""
    if dry_run:
        get(options, namespace, key)
        return
    options.confirm(f"delete {key} from namespace {namespace}", yes=yes)
    options.run_admin(lambda admin: admin.name_servers.delete(namespace, key))
    options.print_done(f"deleted {key} from namespace {namespace}", {"namespace": namespace, "key": key})


@config_app.command("get", epilog="Example: rocketpy namesrv config get")
def get_config(options: Options) -> None:
    """Show the settings of each name server, by their names in namesrv.conf."""
    found = options.run_admin(lambda admin: admin.name_servers.config())
    rows = (
        {"address": address, "name": name, "value": value}
        for address, settings in sorted(found.items())
        for name, value in sorted(settings.items())
    )
    print_rows(options, rows)


@config_app.command("set", epilog="Example: rocketpy namesrv config set serverWorkerThreads=8")
def set_config(
    options: Options,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="The new values.")],
    yes: Yes = False,
) -> None:
    """Change settings of every name server. rocketpy name servers need remoteConfigUpdateEnable=true."""
    changes = parse_pairs(settings)
    options.confirm(f"set {' '.join(settings)} on every name server", yes=yes)
    options.run_admin(lambda admin: admin.name_servers.set_config(changes))
    options.print_done(f"set {' '.join(settings)} on every name server", {"settings": changes})
