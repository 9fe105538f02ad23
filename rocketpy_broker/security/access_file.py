"""The file plain_acl.yml: reads it, checks it for changes, and rewrites it for administrators.

Source: PlainPermissionManager of RocketMQ 4.6.0. Differs: when a changed file cannot be read, that is logged
and the previous rules remain in effect. The file is replaced atomically and keeps its mode.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import DataVersion, PlainAccessConfig
from rocketpy.transport.tls import file_stamp
from rocketpy_broker.security.accounts import (
    AccessFile,
    AccessList,
    dump_access_file,
    read_access_file,
)
from rocketpy_broker.security.rights import Rules
from rocketpy_broker.store.files.disk import Clock, system_clock
from rocketpy_broker.store.files.state_file import replace_file

log = logging.getLogger("rocketpy.broker.access")


T = TypeVar("T", bound=Rules)


class RulesFile(Generic[T]):
    """A file with the rules of a server, which is read again after a change."""

    def __init__(self, path: Path, rules: T) -> None:
        self.path = path.absolute()
        self.rules = rules
        """The rules in force."""
        self._stamp: object = None
        """Of the content that was read last, even if it is invalid; None if the file could not be read."""
        self.problem = ""
        """Why the content of the file is not in effect; empty if it is."""

    def load(self) -> None:
        """Read the file. Raises ConfigInvalid, which names the file; the rules are then unchanged."""
        stamp, self._stamp = file_stamp(self.path), None
        try:
            text = self.path.read_text("utf-8")
            self._stamp = stamp  # invalid content is not parsed again before it changes
            self._read(text)
            self.problem = ""
        except FileNotFoundError:
            raise ConfigInvalid(f"{self.path}: {self._why_missing()}") from None
        except UnicodeDecodeError:
            raise ConfigInvalid(f"{self.path}: the file is not in UTF-8") from None
        except (OSError, ConfigInvalid) as error:
            raise ConfigInvalid(f"{self.path}: {error}") from None

    def reload_changed(self) -> None:
        """Read the file again if it has changed, or could not be read; the same error is logged once."""
        if self._stamp is not None and file_stamp(self.path) == self._stamp:
            return
        with contextlib.suppress(ConfigInvalid):  # logged
            self._reload()

    def before_change(self) -> None:
        """Read what a person has written to the file since the last check, so that a change keeps it.

        Raises ConfigInvalid as long as the file cannot be read: a change would replace it by older rules.
        """
        if self.problem or self._stamp is None or file_stamp(self.path) != self._stamp:
            self._reload()

    def _reload(self) -> None:
        """Read the file again. Raises ConfigInvalid, which becomes `problem`, and is logged once."""
        try:
            self.load()
        except ConfigInvalid as error:
            if str(error) != self.problem:
                log.error("%s; the previous rules remain in effect", error)
            self.problem = str(error)
            raise
        log.warning("%s was read again and has %d accounts now", self.path, len(self.rules.accounts))

    def _read(self, text: str) -> None:
        """Apply the rules of a text. Raises ConfigInvalid; nothing has changed then."""
        raise NotImplementedError

    def _why_missing(self) -> str:
        """Return why the server needs the file, and what to do."""
        raise NotImplementedError

    def _write(self, text: str) -> None:
        """Replace the file. Raises OSError."""
        replace_file(self.path, text)
        self._stamp, self.problem = file_stamp(self.path), ""


class AccessStore(RulesFile[AccessList]):
    """The rules of plain_acl.yml. Call `load` before the first check."""

    def __init__(self, path: Path, *, clock: Clock = system_clock) -> None:
        super().__init__(path, AccessList((), {}))
        self._clock = clock
        self._written = AccessFile()

    def _read(self, text: str) -> None:
        self._apply(read_access_file(text))

    def _why_missing(self) -> str:
        return (
            "aclEnable=true needs this file, which does not exist; create it, or set rocketmq.acl.plain.file"
        )

    def _apply(self, written: AccessFile) -> None:
        self.rules = AccessList.of(written)  # if it raises, nothing has changed
        self._written = written

    # -- requests of administrators -----------------------------------------------------------

    @property
    def version(self) -> DataVersion:
        """Number of changes that administrators requested, and the time of the last one."""
        versions = self._written.data_version
        return versions[0] if versions else DataVersion()

    def listing(self) -> tuple[list[str], list[PlainAccessConfig]]:
        """Return the white addresses, and the accounts without their secrets."""
        accounts = [msgspec.structs.replace(account, secret_key=None) for account in self._accounts()]
        return list(self._written.global_white_remote_addresses or []), accounts

    def put_account(self, account: PlainAccessConfig) -> None:
        """Add an account, or change the given fields of a known one. Raises ConfigInvalid, OSError."""
        others = [other for other in self._accounts() if other.access_key != account.access_key]
        known = next((other for other in self._accounts() if other.access_key == account.access_key), None)
        self._save(accounts=[*others, account if known is None else _merged(known, account)])

    def delete_account(self, access_key: str) -> bool:
        """Remove an account; return False if it does not exist. Raises ConfigInvalid, OSError."""
        if access_key not in self.rules.accounts:
            return False
        self._save(accounts=[account for account in self._accounts() if account.access_key != access_key])
        return True

    def set_white_addresses(self, patterns: Sequence[str]) -> None:
        """Replace the addresses that need no signature. Raises ConfigInvalid, OSError."""
        self._save(global_white_remote_addresses=list(patterns))

    def _accounts(self) -> list[PlainAccessConfig]:
        return self._written.accounts or []

    def _save(self, **changes: Any) -> None:
        """Validate and write a change, then apply it. A change that cannot be written is not applied."""
        version = [self.version.next(self._clock())]
        written = msgspec.structs.replace(self._written, data_version=version, **changes)
        AccessList.of(written)
        self._write(dump_access_file(written))
        self._apply(written)


def _merged(known: PlainAccessConfig, change: PlainAccessConfig) -> PlainAccessConfig:
    """Merge a change as 4.6.0 does: empty fields keep their value, and the admin flag always changes."""
    given = {
        field.name: value
        for field in msgspec.structs.fields(PlainAccessConfig)
        if (value := getattr(change, field.name)) or field.name == "admin"
    }
    return msgspec.structs.replace(known, **given)
