"""``rocketpy-broker migrate-acl PLAIN_ACL DIR``: copies accounts of ACL 1.0 to users and policies of ACL 2.0.

The accounts of plain_acl.yml whose names are not in use become users in DIR/auth.json; DIR is the broker's
authConfigPath. Administrators become users of the type Super; rights become policies, as with
migrateAuthFromV1Enabled of RocketMQ 5.x. Nothing is deleted, and plain_acl.yml is not changed. A running
broker reads the new file within a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rocketpy.runtime.text import printable
from rocketpy_broker.config.model import UsersConfig
from rocketpy_broker.security.user_file import UserStore


def add_account_commands(commands: Any) -> None:
    """Add ``migrate-acl`` to the subparsers of ``rocketpy-broker``."""
    text = "copy the accounts of plain_acl.yml to users and policies (ACL 2.0)"
    migrate = commands.add_parser("migrate-acl", help=text, description=__doc__)
    migrate.add_argument("plain_acl", metavar="PLAIN_ACL", type=Path, help="the plain_acl.yml")
    migrate.add_argument("directory", metavar="DIR", type=Path, help="authConfigPath of the broker")
    migrate.set_defaults(action=_migrate)


def _migrate(options: argparse.Namespace) -> int:
    store = UserStore(UsersConfig(file=options.directory / "auth.json"), "")
    if store.path.exists():
        store.load()
    migration = store.migrate(options.plain_acl)
    for name in migration.copied:
        print(printable(f"copied {name}"))
    for name in migration.known:
        print(printable(f"kept the user {name}, which exists"))
    for text in migration.left_out:
        print(printable(f"not copied: {text}"))
    print(printable(f"{store.path} has {len(store.users())} users"))
    return 0
