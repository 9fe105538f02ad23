"""``rocketpy acl``: accounts of brokers with ACL 1.0 (plain_acl.yml)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rocketpy.admin.accounts import AccessRules
from rocketpy.errors import RocketError
from rocketpy_cli.context import CommandGroup, DryRun, OfCluster, Options, Yes, parse_pairs, read_first_line
from rocketpy_cli.tables import Row, print_rows

acl_app: Final = CommandGroup(
    name="acl", help="List, add, change and delete accounts of brokers with ACL 1.0 (plain_acl.yml)."
)

_AccessKey = Annotated[str, typer.Argument(metavar="ACCESS_KEY", help="The name of the account.")]
_Right = "DENY, PUB, SUB or PUB|SUB"


@acl_app.command("list", epilog="Example: rocketpy acl list --profile production")
def list_accounts(options: Options, cluster: OfCluster = None) -> None:
    """List the accounts of each broker, without their secrets."""
    print_rows(
        options, _accounts(options.run_admin(lambda admin: admin.accounts.list(cluster))), none="no accounts"
    )


@acl_app.command(epilog="Example: rocketpy acl put billing --secret-file secret --topic Orders=SUB")
def put(
    options: Options,
    access_key: _AccessKey,
    secret_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A file whose first line is the secret; - reads stdin."),
    ] = None,
    admin: Annotated[
        bool | None,
        typer.Option("--admin/--no-admin", help="Whether it is an administrator. Default: unchanged."),
    ] = None,
    white_address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Addresses that need no signature: 192.168.0.*")
    ] = None,
    default_topic: Annotated[
        str | None,
        typer.Option(metavar="RIGHT", help=f"The right to topics that have no right of their own: {_Right}."),
    ] = None,
    default_group: Annotated[
        str | None, typer.Option(metavar="RIGHT", help="The right to groups that have no right of their own.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC=RIGHT", help="A right to a topic; replaces all earlier ones."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP=RIGHT", help="A right to a group; replaces all earlier ones."),
    ] = None,
    cluster: OfCluster = None,
    yes: Yes = False,
) -> None:
    """Add an account, or change the given fields of an existing one."""
    topic_perms, group_perms = parse_pairs(topics or ()), parse_pairs(groups or ())
    secret = None if secret_file is None else read_first_line(secret_file)
    options.confirm(f"add or change account {access_key}", yes=yes)

    options.run_admin(
        lambda client: client.accounts.put(
            access_key,
            secret,
            admin=admin,
            white_address=white_address,
            default_topic_perm=default_topic,
            default_group_perm=default_group,
            topic_perms=topic_perms or None,
            group_perms=group_perms or None,
            cluster=cluster,
        )
    )
    options.print_done(f"added or changed account {access_key}", {"access_key": access_key})


@acl_app.command(epilog="Example: rocketpy acl delete billing --dry-run")
def delete(
    options: Options,
    access_key: _AccessKey,
    cluster: OfCluster = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete an account. With --dry-run: show it, and keep it."""
    if dry_run:
        found = _accounts(options.run_admin(lambda admin: admin.accounts.list(cluster)))
        rows = [row for row in found if row["access_key"] == access_key]
        if not rows:
            raise RocketError(f"there is no account {access_key}; rocketpy acl list shows the accounts")
        print_rows(options, rows)
        return
    options.confirm(f"delete account {access_key}", yes=yes)
    options.run_admin(lambda admin: admin.accounts.delete(access_key, cluster=cluster))
    options.print_done(f"deleted account {access_key}", {"access_key": access_key})


@acl_app.command(epilog="Example: rocketpy acl version")
def version(options: Options, cluster: OfCluster = None) -> None:
    """Show the version of each broker's rules, which rises with each change."""
    found = options.run_admin(lambda admin: admin.accounts.versions(cluster))
    rows = (
        {
            "broker_name": broker,
            "version": rules_version.counter,
            "changed_timestamp": rules_version.changed_ms,
        }
        for broker, rules_version in found.items()
    )
    print_rows(options, rows)


@acl_app.command("white-addresses", epilog="Example: rocketpy acl white-addresses")
def white_addresses(options: Options, cluster: OfCluster = None) -> None:
    """List the addresses from which no request needs a signature."""
    found = options.run_admin(lambda admin: admin.accounts.list(cluster))
    rows = (
        {"broker_name": broker, "address": address}
        for broker, rules in found.items()
        for address in rules.white_addresses
    )
    print_rows(options, rows, none="no white addresses")


@acl_app.command("set-white-addresses", epilog="Example: rocketpy acl set-white-addresses '10.0.0.*'")
def set_white_addresses(
    options: Options,
    addresses: Annotated[
        list[str], typer.Argument(metavar="ADDR...", help="All addresses; they replace the earlier ones.")
    ],
    cluster: OfCluster = None,
    yes: Yes = False,
) -> None:
    """Replace the addresses from which no request needs a signature."""
    options.confirm(f"accept every request from {' '.join(addresses)} without a signature", yes=yes)
    options.run_admin(lambda admin: admin.accounts.set_white_addresses(addresses, cluster=cluster))
    options.print_done(f"set white addresses {' '.join(addresses)}", {"addresses": addresses})


def _accounts(found: dict[str, AccessRules]) -> list[Row]:
    return [
        {
            "broker_name": broker,
            "access_key": account.access_key,
            "admin": account.admin,
            "default_topic": account.default_topic_perm,
            "default_group": account.default_group_perm,
            "topics": account.topic_perms,
            "groups": account.group_perms,
            "white_address": account.white_address,
        }
        for broker, rules in found.items()
        for account in rules.accounts.values()
    ]
