"""``rocketpy user`` and ``rocketpy policy``: users and policies of brokers with ACL 2.0 (RocketMQ 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from rocketpy.admin import AdminClient, Policy, User
from rocketpy.errors import RocketError
from rocketpy_cli.context import CommandGroup, DryRun, OfCluster, Options, Yes, read_first_line
from rocketpy_cli.tables import Row, print_rows
from rocketpy_cli.users import from_each, require_policy

user_app: Final = CommandGroup(
    name="user", help="List, add, change, delete and copy users of brokers with ACL 2.0."
)
policy_app: Final = CommandGroup(
    name="policy", help="List, add, change and delete policies of users, on brokers with ACL 2.0."
)

_Name = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
_Resource = "Topic:NAME, Group:PREFIX*, Cluster:* or *"
_Default = Annotated[
    bool, typer.Option("--default", help="A policy that applies only where no other one of the user does.")
]


@user_app.command("list", epilog="Example: rocketpy user list --profile production")
def list_users(options: Options, cluster: OfCluster = None) -> None:
    """List the users of each broker, without their passwords."""
    found = options.run_admin(lambda admin: admin.accounts.users(cluster))
    print_rows(options, _rows(found), none="no users")


@user_app.command("put", epilog="Example: rocketpy user put billing --password-file secret")
def put_user(
    options: Options,
    name: _Name,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A file whose first line is the password; - reads stdin. For a new user."
        ),
    ] = None,
    is_super: Annotated[
        bool | None,
        typer.Option("--super/--normal", help="Whether it may do everything. Default: unchanged, or not."),
    ] = None,
    is_enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether its requests are accepted. Default: unchanged."),
    ] = None,
    cluster: OfCluster = None,
    yes: Yes = False,
) -> None:
    """Add a user, or change the given fields of an existing one."""
    password = None if password_file is None else read_first_line(password_file)
    options.confirm(f"add or change user {name}", yes=yes)
    options.run_admin(
        lambda admin: admin.accounts.put_user(
            name, password, is_super=is_super, is_enabled=is_enabled, cluster=cluster
        )
    )
    options.print_done(f"added or changed user {name}", {"user": name})


@user_app.command("delete", epilog="Example: rocketpy user delete billing --dry-run")
def delete_user(
    options: Options, name: _Name, cluster: OfCluster = None, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Delete a user and its policies. With --dry-run: show it, and keep it."""
    if not dry_run:
        options.confirm(f"delete user {name} and its policies", yes=yes)
    users, problem = options.run_admin(lambda admin: from_each(admin.accounts.users(cluster)))
    found = [row for row in _rows(users) if row["user"] == name]
    if not found:  # a broker would report success
        raise RocketError(problem or f"there is no user {name}; rocketpy user list shows the users")
    if dry_run:
        print_rows(options, found)
        if problem:
            raise RocketError(problem)
        return
    options.run_admin(lambda admin: admin.accounts.delete_user(name, cluster=cluster))
    options.print_done(f"deleted user {name}", {"user": name})


@user_app.command("copy", epilog="Example: rocketpy user copy broker-a broker-a/1")
def copy_users(
    options: Options,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A broker: its name, or name/id of a slave.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Another broker, such as a new slave.")],
    yes: Yes = False,
) -> None:
    """Copy all users with their policies from one broker to another; nothing is deleted there."""
    options.confirm(f"copy the users of {source} to {target}", yes=yes)
    names = options.run_admin(lambda admin: admin.accounts.copy_users(source, target))
    options.print_done(
        f"copied {len(names)} users to {target}", {"users": list(names), "broker_name": target}
    )


@policy_app.command("list", epilog="Example: rocketpy policy list --user billing")
def list_policies(
    options: Options,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Only the policies of this user.")] = None,
    cluster: OfCluster = None,
) -> None:
    """List the policies of each broker."""
    found = options.run_admin(lambda admin: admin.accounts.policies(user, cluster=cluster))
    rows: list[Row] = [
        {
            "broker_name": broker,
            "user": policy.user,
            "resource": policy.resource,
            "actions": list(policy.actions),
            "decision": "Allow" if policy.allows else "Deny",
            "from": list(policy.source_ips),
            "default": policy.is_default,
        }
        for broker, policies in found.items()
        for policy in policies
    ]
    print_rows(options, rows, none="no policies")


@policy_app.command("put", epilog="Example: rocketpy policy put billing 'Topic:Orders*' --action Sub")
def put_policy(
    options: Options,
    user: _Name,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help=f"What it is about: {_Resource}.")],
    actions: Annotated[
        list[str],
        typer.Option(
            "--action",
            metavar="ACTION",
            help="Pub, Sub, Create, Update, Delete, Get, List or All; may be repeated.",
        ),
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Deny the actions.")] = False,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="ADDR", help="An address or a network, such as 10.0.0.0/8."),
    ] = None,
    default: _Default = False,
    cluster: OfCluster = None,
    yes: Yes = False,
) -> None:
    """Add a policy. It replaces the one of the same user and resource."""
    policy = Policy(user, resource, tuple(actions), not deny, tuple(sources or ()), default)
    text = f"{'deny' if deny else 'allow'} {user} {', '.join(actions)} on {resource}"
    options.confirm(text, yes=yes)
    options.run_admin(lambda admin: admin.accounts.put_policy(policy, cluster=cluster))
    options.print_done(f"added policy: {text}", {"user": user, "resource": resource})


@policy_app.command("delete", epilog="Example: rocketpy policy delete billing Topic:Orders")
def delete_policy(
    options: Options,
    user: _Name,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help=f"Of the policy: {_Resource}.")],
    default: _Default = False,
    cluster: OfCluster = None,
    yes: Yes = False,
) -> None:
    """Delete the policy of a user for a resource."""
    options.confirm(f"delete the policy of {user} for {resource}", yes=yes)

    async def delete(admin: AdminClient) -> None:
        await require_policy(admin, user, resource, is_default=default, cluster=cluster)
        await admin.accounts.delete_policies(user, resource, is_default=default, cluster=cluster)

    options.run_admin(delete)
    options.print_done(f"deleted the policy of {user} for {resource}", {"user": user, "resource": resource})


def _rows(found: Mapping[str, Mapping[str, User]]) -> list[Row]:
    return [
        {
            "broker_name": broker,
            "user": user.name,
            "type": "Super" if user.is_super else "Normal",
            "enabled": user.is_enabled,
        }
        for broker, users in found.items()
        for user in users.values()
    ]
