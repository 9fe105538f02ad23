"""Accounts: who may use brokers with access control (plain_acl.yml, RocketMQ 4.x).

Source: RocketMQ 4.6 DefaultMQAdminExt; mqadmin's commands updateAclConfig, deleteAccessConfig,
updateGlobalWhiteAddr, clusterAclConfigVersion, getAccessConfigSubCommand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rocketpy.admin.requests import AdminRequests
from rocketpy.protocol.bodies import (
    MASTER_ID,
    DataVersion,
    GetBrokerClusterAclConfigResponseBody,
    PlainAccessConfig,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    Header,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
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


class RulesVersion(NamedTuple):
    """The version of a broker's rules."""

    counter: int
    """The number of changes."""
    changed_ms: int
    """When the last one was made, in ms since 1970."""


class Accounts:
    """Accounts for access control: ``admin.accounts``.

    Each broker has its own rules, and so has each slave. Every method sends to all brokers of a cluster, or
    of all clusters if `cluster` is None. The keys of results are ``name`` for a master, ``name/id`` for a
    slave. If some brokers fail, BrokersFailed is raised; the same call may be repeated. Names of topics and
    groups do not include the client's namespace.

    A broker without access control returns an error: rocketpy raises BrokerError; RocketMQ 4.6.0 does not
    respond to `list` and `versions`, which raise RequestTimeout. RocketMQ 5.3 has ACL 2.0, which this class
    does not support: its brokers return BrokerError.

    Every method raises ClientClosed, TransportError, BrokerError, BrokersFailed, and ConfigInvalid for an
    unknown cluster.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def list(self, cluster: str | None = None) -> dict[str, AccessRules]:
        """Return the rules of each broker."""
        targets, code = await self._members(cluster), RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return await self._requests.call_all(targets, code, decode=self._rules)

    async def versions(self, cluster: str | None = None) -> dict[str, RulesVersion]:
        """Return the version of each broker's rules, which rises with each change.

        RocketMQ 4.9 has a version for each file of rules instead, and does not increase this one.
        """
        targets, code = await self._members(cluster), RequestCode.GET_BROKER_CLUSTER_ACL_INFO
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

        In an existing account, an argument that is None or empty leaves its field unchanged. The request
        always contains `admin`; if that is None, the current value of each broker is read first.

        Args:
            access_key: The name of the account, at least 6 characters.
            secret_key: The secret, at least 6 characters; required for a new account. It is sent
                unencrypted, unless the brokers are at ``tls://``.
            admin: Whether it is an administrator; None is False for a new account.
            white_address: Addresses from which it needs no signature, such as ``192.168.0.*``.
            default_topic_perm: The right to topics that are not in `topic_perms`: ``DENY``, ``PUB``, ``SUB``
                or ``PUB|SUB``.
            default_group_perm: The right to groups that are not in `group_perms`.
            topic_perms: Rights by topic; replaces all earlier ones.
            group_perms: Rights by consumer group; replaces all earlier ones.
            cluster: The cluster; None for all.
        """

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

        await self._requests.gather_at(await self._members(cluster), put_at)

    async def delete(self, access_key: str, *, cluster: str | None = None) -> None:
        """Delete an account. Raises BrokerError or BrokersFailed where it does not exist."""
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self._change(cluster, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(self, addresses: Iterable[str], *, cluster: str | None = None) -> None:
        """Replace the addresses from which no request needs a signature, such as ``192.168.0.*``."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs=",".join(addresses))
        await self._change(cluster, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    # -- internals ----------------------------------------------------------------------------

    async def _change(self, cluster: str | None, code: RequestCode, header: Header) -> None:
        targets = await self._members(cluster)
        await self._requests.call_all(targets, code, header, decode=lambda _: None)

    async def _is_admin(self, address: str | None, broker: str, access_key: str) -> bool:
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        known = self._rules(await self._requests.call(address, broker, code)).accounts.get(access_key)
        return known is not None and known.admin

    async def _members(self, cluster: str | None) -> dict[str, str]:
        """Return the addresses of masters and slaves, by ``name`` or ``name/id``."""
        found = await self._requests.cluster(cluster)
        return {
            name if broker_id == MASTER_ID else f"{name}/{broker_id}": address
            for name, data in sorted(found.broker_addr_table.items())
            if cluster is None or name in found.cluster_addr_table[cluster]
            for broker_id, address in sorted(data.broker_addrs.items())
        }

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


def _version(response: Command) -> RulesVersion:
    version = DataVersion.decode(response.header_as(GetBrokerAclConfigResponseHeader).version.encode())
    return RulesVersion(version.counter, version.timestamp)
