"""Accounts and users: who may use brokers with access control.

Accounts are those of plain_acl.yml (ACL 1.0, RocketMQ 4.x), users and policies those of ACL 2.0 (5.x).

Source: RocketMQ 4.6 DefaultMQAdminExt; mqadmin's commands updateAclConfig, deleteAccessConfig,
updateGlobalWhiteAddr, clusterAclConfigVersion, getAccessConfigSubCommand. RocketMQ 5.3.3: createUser and the
other commands about users and acls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpy.admin.requests import AdminRequests
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    AclInfo,
    DataVersion,
    GetBrokerClusterAclConfigResponseBody,
    PlainAccessConfig,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    AclRequestHeader,
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    GetBrokerAclConfigResponseHeader,
    Header,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    UserRequestHeader,
)
from rocketpy.protocol.remoting.command import Command


@dataclass(frozen=True)
class Account:
    """An account of a broker, without its secret."""

    access_key: str
    """Its name."""
    white_address: str
    """Addresses from which it needs no signature; empty for none."""
    admin: bool
    """Whether it is an administrator."""
    default_topic_perm: str
    """The right to topics that are not in `topic_perms`: ``DENY``, ``PUB``, ``SUB`` or ``PUB|SUB``; empty for
    DENY."""
    default_group_perm: str
    """The right to groups that are not in `group_perms`."""
    topic_perms: dict[str, str]
    """Rights by topic."""
    group_perms: dict[str, str]
    """Rights by consumer group."""


class AccessRules(NamedTuple):
    """The rules of a broker."""

    accounts: dict[str, Account]
    """The accounts by access key."""
    white_addresses: list[str]
    """Addresses from which no request needs a signature."""


_TYPES: Final = {True: "Super", False: "Normal"}
_STATUS: Final = {True: "enable", False: "disable"}
_DECISIONS: Final = {True: "Allow", False: "Deny"}
_KINDS: Final = {True: "Default", False: "Custom"}


class RulesVersion(NamedTuple):
    """The version of a broker's rules."""

    counter: int
    """The number of changes."""
    changed_ms: int
    """When the last one was made, in ms since 1970."""


@dataclass(frozen=True)
class User:
    """A user of a broker with ACL 2.0, without its password."""

    name: str
    """Its name, which is the access key of its requests."""
    is_super: bool
    """Whether it may do everything (type ``Super``); else policies decide (``Normal``)."""
    is_enabled: bool
    """Whether its requests are accepted."""


@dataclass(frozen=True)
class Policy:
    """What a user of ACL 2.0 may do with a resource, or must not do."""

    user: str
    """The name of the user."""
    resource: str
    """``Topic:name``, ``Group:prefix*``, ``Cluster:*``, or ``*`` for everything."""
    actions: tuple[str, ...]
    """``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List``, or ``All``."""
    allows: bool
    """False if it denies the actions."""
    source_ips: tuple[str, ...] = ()
    """Addresses and networks to which it applies; empty for all."""
    is_default: bool = False
    """Whether it applies only where no other policy of the user does."""


class Accounts:
    """Accounts and users for access control: ``admin.accounts``.

    `list`, `versions`, `put`, `delete` and `set_white_addresses` are for brokers with accounts (ACL 1.0, the
    setting ``aclEnable``). The other methods are for brokers with users and policies (ACL 2.0, the setting
    ``authenticationEnabled``): RocketMQ 5.3 and later, and rocketpy's. A broker of the other kind returns an
    error, which raises BrokerError.

    Each broker has its own rules, and so has each slave. Every method sends to all brokers of a cluster, or
    of all clusters if `cluster` is None, that are registered at the name server. One that is down or not
    registered keeps its rules: repeat the call when it is back, or use `copy_users`. The keys of results are
    ``name`` for a master, ``name/id`` for a slave. If some brokers fail, or have no master now, BrokersFailed
    is raised; the same call may be repeated. Names of topics and groups do not include the client's
    namespace.

    A broker without access control returns an error, too, but RocketMQ 4.6.0 does not respond to `list` and
    `versions`, which raise RequestTimeout.

    Every method raises ClientClosed, TransportError, BrokerError, BrokersFailed, ConfigInvalid for an unknown
    cluster, and RouteNotFound if no broker, or only one without a master, is registered.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def list(self, cluster: str | None = None) -> dict[str, AccessRules]:
        """Return the rules of each broker."""
        targets, code = await self._requests.members(cluster), RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return await self._requests.call_all(targets, code, decode=self._rules)

    async def versions(self, cluster: str | None = None) -> dict[str, RulesVersion]:
        """Return the version of each broker's rules, which rises with each change.

        RocketMQ 4.9 has a version for each file of rules instead, and does not increase this one.
        """
        targets, code = await self._requests.members(cluster), RequestCode.GET_BROKER_CLUSTER_ACL_INFO
        return await self._requests.call_all(targets, code, decode=_version)

    async def put(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        white_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Mapping[str, str] | None = None,
        group_perms: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Add an account, or change an existing one.

        In an existing account, an argument that is None leaves its field unchanged. To clear a field, delete
        the account and add it again, since brokers ignore an empty value. The request always contains
        `admin`; if that is None, the current value of each broker is read first.

        Args:
            access_key: The name of the account, at least 7 characters.
            secret_key: The secret, at least 7 characters; required for a new account. It is sent
                unencrypted, unless the brokers are at ``tls://``.
            admin: Whether it is an administrator; None is False for a new account.
            white_address: Addresses from which it needs no signature, such as ``192.168.0.*``.
            default_topic_perm: The right to topics that are not in `topic_perms`: ``DENY``, ``PUB``, ``SUB``
                or ``PUB|SUB``.
            default_group_perm: The right to groups that are not in `group_perms`.
            topic_perms: Rights by topic; replaces all earlier ones.
            group_perms: Rights by consumer group; replaces all earlier ones.
            cluster: The cluster; None for all.

        Raises:
            ConfigInvalid: An argument is blank or empty; nothing was sent.
        """
        _reject_blank(
            access_key=access_key,
            secret_key=secret_key,
            white_address=white_address,
            default_topic_perm=default_topic_perm,
            default_group_perm=default_group_perm,
            topic_perms=topic_perms,
            group_perms=group_perms,
        )

        async def put_at(address: str | None, broker: str) -> None:
            is_admin = await self._is_admin(address, broker, access_key) if admin is None else admin
            header = CreateAccessConfigRequestHeader(
                access_key=access_key,
                secret_key=secret_key,
                white_remote_address=white_address,
                admin=is_admin,
                default_topic_perm=default_topic_perm,
                default_group_perm=default_group_perm,
                topic_perms=self._joined(topic_perms),
                group_perms=self._joined(group_perms),
            )
            code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
            await self._requests.call(address, broker, code, header)

        await self._requests.gather_at(await self._requests.members(cluster), put_at)

    async def delete(self, access_key: str, *, cluster: str | None = None) -> None:
        """Delete an account. Raises BrokerError or BrokersFailed where it does not exist."""
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self._change(cluster, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(self, addresses: Iterable[str], *, cluster: str | None = None) -> None:
        """Replace the addresses from which no request needs a signature, such as ``192.168.0.*``."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs=",".join(addresses))
        await self._change(cluster, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    # -- ACL 2.0 ------------------------------------------------------------------------------

    async def users(self, cluster: str | None = None) -> dict[str, dict[str, User]]:
        """Return the users of each broker, by name."""
        header = ListUsersRequestHeader()
        return await self._requests.call_all(
            await self._requests.members(cluster), RequestCode.AUTH_LIST_USER, header, decode=_users
        )

    async def put_user(
        self,
        name: str,
        password: str | None = None,
        *,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
    ) -> None:
        """Add a user, or change an existing one.

        In an existing user, an argument that is None leaves its field unchanged.

        Args:
            name: The name of the user.
            password: The password, which is the secret key of its clients; required for a new user. It is
                sent unencrypted, unless the brokers are at ``tls://``.
            is_super: Whether it may do everything; None is False for a new user. Only a user of this type can
                change one of this type.
            is_enabled: Whether its requests are accepted; None is True for a new user.
            cluster: The cluster; None for all.

        Raises:
            ConfigInvalid: A new user has no password, or the password is blank.
        """
        _reject_blank(name=name, password=password)
        body = UserInfo(
            username=name,
            password=password,
            user_type=None if is_super is None else _TYPES[is_super],
            user_status=None if is_enabled is None else _STATUS[is_enabled],
        ).encode()
        header = UserRequestHeader(username=name)

        async def put_at(address: str | None, broker: str) -> None:
            found = await self._requests.call(address, broker, RequestCode.AUTH_GET_USER, header)
            if not found.body and password is None:
                raise ConfigInvalid(f"broker {broker} has no user {name!r}; a new user needs a password")
            code = RequestCode.AUTH_UPDATE_USER if found.body else RequestCode.AUTH_CREATE_USER
            await self._requests.call(address, broker, code, header, body)

        await self._requests.gather_at(await self._requests.members(cluster), put_at)

    async def delete_user(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a user and its policies; nothing happens where it does not exist."""
        await self._change(cluster, RequestCode.AUTH_DELETE_USER, UserRequestHeader(username=name))

    async def policies(
        self, user: str | None = None, *, cluster: str | None = None
    ) -> dict[str, tuple[Policy, ...]]:
        """Return the policies of each broker. user: the name of a user; None for all."""
        header = ListAclsRequestHeader(subject_filter=None if user is None else _subject(user))

        def decode(response: Command) -> tuple[Policy, ...]:
            acls = fastjson.decode(response.body, list[AclInfo]) if response.body else []
            found = (policy for acl in acls for policy in self._policies(acl))
            # The filter finds a part of the names.
            return tuple(policy for policy in found if user in (None, policy.user))

        return await self._requests.call_all(
            await self._requests.members(cluster), RequestCode.AUTH_LIST_ACL, header, decode=decode
        )

    async def put_policy(self, policy: Policy, *, cluster: str | None = None) -> None:
        """Add a policy. It replaces the one of the same user, resource and kind (`Policy.is_default`)."""
        entry = PolicyEntryInfo(
            resource=self._resource(self._requests.wrap, policy.resource),
            actions=[*policy.actions],
            source_ips=[*policy.source_ips] or None,
            decision=_DECISIONS[policy.allows],
        )
        subject = _subject(policy.user)
        info = PolicyInfo(policy_type=_KINDS[policy.is_default], entries=[entry])
        header, body = AclRequestHeader(subject=subject), AclInfo(subject=subject, policies=[info]).encode()
        targets = await self._requests.members(cluster)
        code = RequestCode.AUTH_UPDATE_ACL  # it creates, too
        await self._requests.call_all(targets, code, header, body, decode=lambda _: None)

    async def delete_policies(
        self,
        user: str,
        resource: str | None = None,
        *,
        is_default: bool = False,
        cluster: str | None = None,
    ) -> None:
        """Delete the policy for a resource, or all policies of a user if `resource` is None.

        is_default: see `Policy.is_default`; ignored without `resource`. Raises BrokerError or BrokersFailed
        where the user does not exist or has no policy. Where it has others only, nothing happens.
        """
        header = DeleteAclRequestHeader(
            subject=_subject(user),
            policy_type=None if resource is None else _KINDS[is_default],
            resource=None if resource is None else self._resource(self._requests.wrap, resource),
        )
        await self._change(cluster, RequestCode.AUTH_DELETE_ACL, header)

    async def copy_users(self, source: str, target: str) -> tuple[str, ...]:
        """Copy all users with their policies from one broker to another, such as a new slave.

        A user or a policy that the target already has is replaced; nothing is deleted there. The passwords
        are sent unencrypted, unless the brokers are at ``tls://``.

        Args:
            source: A key of the results of `users`: ``name`` for a master, ``name/id`` for a slave.
            target: The same.

        Returns:
            The names of the users.

        Raises:
            ConfigInvalid: There is no such broker, or the source does not show passwords to this account.
            RouteNotFound: One of the two is a master that is not registered now.
        """
        members = await self._requests.members(None)
        for broker in (source, target):
            if broker not in members:
                raise ConfigInvalid(f"there is no broker {broker}; the brokers are {', '.join(members)}")
        requests = self._requests
        users = await requests.call(
            members[source], source, RequestCode.AUTH_LIST_USER, ListUsersRequestHeader()
        )
        acls = await requests.call(
            members[source], source, RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader()
        )
        found = fastjson.decode(users.body, list[UserInfo]) if users.body else []
        for user in found:
            if not user.password:
                raise ConfigInvalid(f"broker {source} shows no passwords; use a user of the type Super")
        for user in found:
            user_header = UserRequestHeader(username=user.username)
            known = await requests.call(members[target], target, RequestCode.AUTH_GET_USER, user_header)
            code = RequestCode.AUTH_UPDATE_USER if known.body else RequestCode.AUTH_CREATE_USER
            await requests.call(members[target], target, code, user_header, user.encode())
        for acl in fastjson.decode(acls.body, list[AclInfo]) if acls.body else []:
            acl_header, code = AclRequestHeader(subject=acl.subject), RequestCode.AUTH_UPDATE_ACL
            await requests.call(members[target], target, code, acl_header, acl.encode())
        return tuple(user.username or "" for user in found)

    # -- internals ----------------------------------------------------------------------------

    async def _change(self, cluster: str | None, code: RequestCode, header: Header) -> None:
        targets = await self._requests.members(cluster)
        await self._requests.call_all(targets, code, header, decode=lambda _: None)

    async def _is_admin(self, address: str | None, broker: str, access_key: str) -> bool:
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        known = self._rules(await self._requests.call(address, broker, code)).accounts.get(access_key)
        return known is not None and known.admin

    def _joined(self, rights: Mapping[str, str] | None) -> str | None:
        if rights is None:
            return None
        return ",".join(f"{self._requests.wrap(name)}={right}" for name, right in rights.items())

    def _rules(self, response: Command) -> AccessRules:
        body = GetBrokerClusterAclConfigResponseBody.decode(response.body)
        accounts = {config.access_key: self._account(config) for config in body.plain_access_configs or []}
        return AccessRules(accounts, body.global_white_addrs or [])

    def _account(self, found: PlainAccessConfig) -> Account:
        return Account(
            found.access_key,
            found.white_remote_address or "",
            found.admin,
            found.default_topic_perm or "",
            found.default_group_perm or "",
            self._rights(found.topic_perms),
            self._rights(found.group_perms),
        )

    def _rights(self, texts: Iterable[str] | None) -> dict[str, str]:
        pairs = (text.partition("=") for text in texts or ())
        return {self._requests.unwrap(name.strip()): right.strip() for name, _, right in pairs}

    def _policies(self, acl: AclInfo) -> Iterator[Policy]:
        for policy in acl.policies or []:
            for entry in policy.entries or []:
                yield Policy(
                    (acl.subject or "").partition(":")[2],
                    self._resource(self._requests.unwrap, entry.resource or ""),
                    tuple(entry.actions or ()),
                    entry.decision == _DECISIONS[True],
                    tuple(entry.source_ips or ()),
                    policy.policy_type == _KINDS[True],
                )

    def _resource(self, rename: Callable[[str], str], resource: str) -> str:
        """Return a resource with the name of its topic or group in, or without, the client's namespace."""
        kind, colon, name = resource.partition(":")
        if kind.strip().lower() not in ("topic", "group") or not colon:
            return resource
        return f"{kind}:{rename(name)}"


def _reject_blank(**given: str | Mapping[str, str] | None) -> None:
    """Raise ConfigInvalid for a value that brokers ignore, so that the old one would stay in force."""
    for name, value in given.items():
        if value is not None and not (value.strip() if isinstance(value, str) else value):
            raise ConfigInvalid(f"{name} is blank: brokers would keep the old value and report success")


def _subject(user: str) -> str:
    return f"User:{user}"


def _users(response: Command) -> dict[str, User]:
    found = fastjson.decode(response.body, list[UserInfo]) if response.body else []
    return {
        user.username or "": User(
            user.username or "", user.user_type == _TYPES[True], user.user_status != _STATUS[False]
        )
        for user in found
    }


def _version(response: Command) -> RulesVersion:
    version = DataVersion.decode(response.header_as(GetBrokerAclConfigResponseHeader).version.encode())
    return RulesVersion(version.counter, version.timestamp)
