"""The file auth.json with users and policies (ACL 2.0): reads, checks and rewrites it.

RocketMQ 5.x stores them in RocksDB below the same directory, which this module does not read: mqadmin's
commands copyUser and copyAcl copy them from broker to broker. Source: AuthenticationMetadataManagerImpl,
AuthorizationMetadataManagerImpl of RocketMQ 5.3.3. Differs: the last user who may do everything is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import AclInfo, PlainAccessConfig, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy_broker.config.model import UsersConfig
from rocketpy_broker.security.access_file import RulesFile
from rocketpy_broker.security.accounts import read_access_file, validated_account
from rocketpy_broker.security.rights import Right
from rocketpy_broker.security.users import (
    CUSTOM,
    DEFAULT,
    NORMAL,
    SUPER,
    AuthFile,
    UserList,
    checked_file,
    checked_policies,
    checked_user,
    policy_kind,
    read_auth_file,
    resource_text,
    subject_name,
    subject_of,
)
from rocketpy_broker.store.files.disk import OsDisk

log = logging.getLogger("rocketpy.broker.access")


class UserStore(RulesFile[UserList]):
    """The users and policies of a server. Call `load` before the first check."""

    def __init__(self, config: UsersConfig, cluster: str) -> None:
        super().__init__(config.file, UserList({}, frozenset()))
        self._config, self._cluster = config, cluster
        self._written = AuthFile()

    def load(self) -> None:
        """Read the file, and first create the users of the configuration that it does not have.

        Raises ConfigInvalid.
        """
        if not self.rules.accounts:
            self._prepare()
        super().load()

    def _prepare(self) -> None:
        """Create initAuthenticationUser and the others of the configuration. Raises ConfigInvalid."""
        try:
            if self.path.exists():
                super().load()
            for user in self._config.initial_users:
                if self.user(user.username or "") is None:
                    self.create_user(user)
            if self._config.migrate_from is not None:
                for text in self.migrate(self._config.migrate_from).left_out:
                    log.warning("%s: not copied: %s", self._config.migrate_from, text)
        except OSError as error:
            raise ConfigInvalid(f"{self.path}: {error}") from None

    def _read(self, text: str) -> None:
        written = checked_file(read_auth_file(text))
        self.rules, self._written = self._checked(written), written

    def _why_missing(self) -> str:
        return (
            "authenticationEnabled=true needs this file with users, which does not exist; set "
            "initAuthenticationUser, or run rocketpy-broker migrate-acl"
        )

    def _checked(self, written: AuthFile) -> UserList:
        """Return the rules of a content. Raises ConfigInvalid."""
        rules = UserList.of(written, cluster=self._cluster, authorizes=self._config.authorizes)
        if not any(user.is_admin for user in rules.accounts.values()):
            raise ConfigInvalid("no user of the type Super is enabled, so nobody could change users")
        return rules

    def _save(self, users: Iterable[UserInfo], acls: Iterable[AclInfo]) -> None:
        """Validate and write a change, then apply it.

        Raises ConfigInvalid, OSError; nothing has changed then.
        """
        written = checked_file(
            AuthFile(
                users=sorted(users, key=lambda user: user.username or ""),
                acls=sorted(acls, key=lambda acl: acl.subject or ""),
            )
        )
        rules = self._checked(written)
        OsDisk().make_dir(self.path.parent)
        self._write(msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n")
        self.rules, self._written = rules, written

    # -- users --------------------------------------------------------------------------------

    def users(self, part: str = "") -> list[UserInfo]:
        """Return the users whose name contains a text, sorted."""
        return [user for user in self._written.users if part in (user.username or "")]

    def user(self, name: str) -> UserInfo | None:
        """Return a user, also one that is disabled."""
        return next((user for user in self._written.users if user.username == name), None)

    def create_user(self, info: UserInfo) -> None:
        """Add a user. Raises ConfigInvalid, OSError."""
        user = checked_user(info)
        if self.user(user.username or "") is not None:
            raise ConfigInvalid("The user is existed")
        self._save([*self._written.users, user], self._written.acls)

    def update_user(self, info: UserInfo) -> None:
        """Change the given fields of a user. Raises ConfigInvalid, OSError."""
        old = self.user(info.username or "")
        if old is None:
            raise ConfigInvalid("The user is not exist")
        user = checked_user(
            UserInfo(
                username=old.username,
                password=info.password if (info.password or "").strip() else old.password,
                user_type=info.user_type or old.user_type,
                user_status=info.user_status or old.user_status,
            )
        )
        self._save([user if other is old else other for other in self._written.users], self._written.acls)

    def delete_user(self, name: str) -> None:
        """Delete a user with its policies, if it exists. Raises ConfigInvalid, OSError."""
        self._save(
            [user for user in self._written.users if user.username != name],
            [acl for acl in self._written.acls if acl.subject != subject_of(name)],
        )

    # -- policies -----------------------------------------------------------------------------

    def acls(self, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Return the policies, by parts of their subjects and of their resources."""
        found = []
        for acl in self._written.acls:
            if subject not in (acl.subject or ""):
                continue
            policies = [
                PolicyInfo(
                    policy_type=policy.policy_type,
                    entries=[entry for entry in policy.entries or [] if resource in (entry.resource or "")],
                )
                for policy in acl.policies or []
            ]
            policies = [policy for policy in policies if policy.entries]
            if policies:
                found.append(AclInfo(subject=acl.subject, policies=policies))
        return found

    def acl(self, subject: str) -> AclInfo | None:
        """Return the policies of a user; None if it has none. Raises ConfigInvalid for an unknown user."""
        return self._acl(self._known(subject))

    def put_acl(self, subject: str, policies: Iterable[PolicyInfo] | None) -> None:
        """Add entries to the policies of a user; one with a known resource replaces its entry.

        Raises ConfigInvalid, OSError.
        """
        name = self._known(subject)
        old = self._acl(name)
        self._save_acl(name, _merged(old.policies or [] if old else [], checked_policies(policies)))

    def delete_acl(self, subject: str, kind: str | None, resource: str | None) -> None:
        """Delete the entry of a resource, or all policies of a user. Raises ConfigInvalid, OSError.

        kind: ``Custom`` or ``Default``; None or empty for Custom.
        """
        name = self._known(subject)
        old = self._acl(name)
        if old is None:
            raise ConfigInvalid("The acl is not exist.")
        if not resource:
            self._save_acl(name, [])
            return
        wanted, of_kind = resource_text(resource), policy_kind(kind)

        def kept(policy: PolicyInfo, entry: PolicyEntryInfo) -> bool:
            return policy.policy_type != of_kind or entry.resource != wanted

        self._save_acl(
            name,
            [
                PolicyInfo(
                    policy_type=policy.policy_type,
                    entries=[entry for entry in policy.entries or [] if kept(policy, entry)],
                )
                for policy in old.policies or []
            ],
        )

    def _acl(self, name: str) -> AclInfo | None:
        return next((acl for acl in self._written.acls if acl.subject == subject_of(name)), None)

    def _known(self, subject: str) -> str:
        name = subject_name(subject)
        if self.user(name) is None:
            raise ConfigInvalid(f"The subject of {subject_of(name)} is not exist.")
        return name

    def _save_acl(self, name: str, policies: Iterable[PolicyInfo]) -> None:
        subject = subject_of(name)
        others = [acl for acl in self._written.acls if acl.subject != subject]
        left = [policy for policy in policies if policy.entries]
        self._save(
            self._written.users, [*others, AclInfo(subject=subject, policies=left)] if left else others
        )

    # -- ACL 1.0 ------------------------------------------------------------------------------

    def migrate(self, plain_acl: Path) -> Migration:
        """Copy the accounts of a plain_acl.yml whose names are not in use. The file is not changed.

        Raises ConfigInvalid, OSError; nothing has changed then.
        """
        try:
            contents = read_access_file(plain_acl.read_text("utf-8"))
            found = [migrated(config) for config in contents.accounts or []]
        except (ConfigInvalid, OSError, UnicodeDecodeError) as error:
            raise ConfigInvalid(f"{plain_acl}: {error}") from None
        result = Migration([], [], [])
        if contents.global_white_remote_addresses:
            result.left_out.append("globalWhiteRemoteAddresses: ACL 2.0 has no such addresses")
        users, acls = list(self._written.users), list(self._written.acls)
        for config, (user, acl) in zip(contents.accounts or [], found, strict=True):
            if self.user(config.access_key) is not None:
                result.known.append(config.access_key)
                continue
            result.left_out.extend(_not_expressible(config))
            users.append(user)
            acls += [] if acl is None else [acl]
            result.copied.append(config.access_key)
        if result.copied:
            self._save(users, acls)
        return result


class Migration(NamedTuple):
    """What became of the accounts of a plain_acl.yml."""

    copied: list[str]
    """Accounts that are users now."""
    known: list[str]
    """Accounts whose names were users before; these were not changed."""
    left_out: list[str]
    """What ACL 2.0 cannot express, as texts."""


def migrated(config: PlainAccessConfig) -> tuple[UserInfo, AclInfo | None]:
    """Return the user of an account of ACL 1.0, and its policies if it has any. Raises ConfigInvalid.

    Source: AuthMigrator of RocketMQ 5.3.3. Consumers of Java brokers of 5.x also need the action Get.
    Differs: a right to a name replaces the default right, as in ACL 1.0; there, it adds to it.
    """
    account = validated_account(config)
    user = UserInfo(
        username=account.access_key,
        password=config.secret_key,
        user_type=SUPER if config.admin else NORMAL,
    )
    custom = [
        *_named_entries("Topic", account.topics, account.default_topic),
        *_named_entries("Group", account.groups, account.default_group),
    ]
    every = [
        _migrated_entry(f"{kind}:*", right)
        for kind, text, right in (
            ("Topic", config.default_topic_perm, account.default_topic),
            ("Group", config.default_group_perm, account.default_group),
        )
        if text is not None and text.strip()
    ]
    entries = {CUSTOM: [allowed for allowed, _ in custom], DEFAULT: [*(no for _, no in custom if no), *every]}
    policies = [PolicyInfo(policy_type=kind, entries=found) for kind, found in entries.items() if found]
    acl = (
        AclInfo(subject=subject_of(account.access_key), policies=checked_policies(policies))
        if policies
        else None
    )
    return checked_user(user), acl


def _is_pattern(name: str) -> bool:
    """Whether a name of ACL 1.0 would be that of others in ACL 2.0."""
    return "*" in name or name.startswith(RETRY_TOPIC_PREFIX)


def _not_expressible(config: PlainAccessConfig) -> Iterator[str]:
    """Return what the user of an account lacks, or has in addition."""
    if config.white_remote_address:
        yield f"whiteRemoteAddress of {config.access_key}"
    account = validated_account(config)
    for name in filter(_is_pattern, (*account.topics, *account.groups)):
        yield f"the right of {config.access_key} to {name}: ACL 1.0 has no patterns, so it had no effect"
    if account.is_admin and account.is_limited:
        yield f"the rights of {config.access_key}: a user of the type Super may do everything"


def _named_entries(
    kind: str, rights: Mapping[str, Right], default: Right
) -> Iterator[tuple[PolicyEntryInfo, PolicyEntryInfo | None]]:
    """Return the entry of each right, and the one that keeps the default right from adding to it."""
    for name, right in rights.items():
        if _is_pattern(name):
            continue
        resource = f"{kind}:{name}"
        more = default & ~right if right else Right.DENY
        denial = PolicyEntryInfo(resource=resource, actions=_actions(more), decision="Deny") if more else None
        yield _migrated_entry(resource, right), denial


def _migrated_entry(resource: str, right: Right) -> PolicyEntryInfo:
    if not right:
        return PolicyEntryInfo(resource=resource, actions=["All"], decision="Deny")
    return PolicyEntryInfo(resource=resource, actions=_actions(right), decision="Allow")


def _actions(right: Right) -> list[str]:
    return [name for name, bit in (("Pub", Right.PUB), ("Sub", Right.SUB)) if right & bit]


def _merged(old: Iterable[PolicyInfo], new: Iterable[PolicyInfo]) -> list[PolicyInfo]:
    """Return the entries of both; a new entry replaces the one of the same type and resource."""
    entries: dict[str, dict[str, PolicyEntryInfo]] = {CUSTOM: {}, DEFAULT: {}}
    for policy in (*old, *new):
        of_kind = entries[policy.policy_type or CUSTOM]
        for entry in policy.entries or []:
            of_kind[entry.resource or ""] = entry
    return [
        PolicyInfo(policy_type=kind, entries=list(found.values())) for kind, found in entries.items() if found
    ]
