"""Users and policies (ACL 2.0, RIP-68): the contents of auth.json.

Source: the module auth of RocketMQ 5.3.3 and 5.5.0. The order of precedence is that of 5.5.0, since 5.3.3 may
prefer a shorter prefix, or Allow over Deny. Differs: an unknown action is an error and is not skipped, and a
``*`` may only be the end of a resource. No error text of this module contains a password.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.message import TRACE_TOPIC
from rocketpy.protocol.bodies import (
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.security.accounts import reject_twice, reject_unknown
from rocketpy_broker.security.rights import (
    ALL_RIGHTS,
    RequiredRight,
    Right,
    Subject,
    is_internal_group,
    is_internal_topic,
)

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
_USER: Final = "User:"
_CLUSTER: Final = "Cluster"
_ALLOW: Final = "Allow"
_DENY: Final = "Deny"
_TYPES: Final[Mapping[str, Subject | None]] = {
    "Topic": Subject.TOPIC,
    "Group": Subject.GROUP,
    _CLUSTER: Subject.CLUSTER,
    "Namespace": None,  # no request needs a right to a namespace, in RocketMQ either
}
_ACTIONS: Final[Mapping[str, Right]] = {
    "All": ALL_RIGHTS,
    **{(right.name or "").capitalize(): right for right in ALL_RIGHTS},
}
_MAPPED_BITS: Final = 96
"""Bits of ``::ffff:0:0``, which IPv4 addresses follow in IPv6."""
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class AuthFile(msgspec.Struct, kw_only=True, rename="camel"):
    """Contents of auth.json, as brokers exchange them. `read_auth_file` parses it."""

    users: list[UserInfo] = []
    acls: list[AclInfo] = []


class _Resource(msgspec.Struct, frozen=True):
    """What an entry applies to."""

    kind: str
    """A name of `_TYPES`; empty for everything."""
    name: str
    """A name, or the beginning of names. Empty for all names."""
    is_literal: bool

    @classmethod
    def of(cls, text: str) -> _Resource:
        """Parse ``Topic:name``, ``Topic:prefix*``, ``Topic:*`` or ``*``. Raises ConfigInvalid."""
        text = text.strip()
        if text == "*":
            return cls("", "", is_literal=False)
        kind, colon, name = text.partition(":")
        known = {known.lower(): known for known in _TYPES}.get(kind.lower())
        if known is None or not colon or not name or "*" in name[:-1]:
            raise ConfigInvalid(
                f"invalid resource {text!r}; expected TYPE:NAME, TYPE:PREFIX*, TYPE:* or *, where TYPE is "
                f"{', '.join(_TYPES)}"
            )
        if known == "Group":
            name = name.removeprefix(RETRY_TOPIC_PREFIX)
        return cls(known, name.removesuffix("*"), is_literal=not name.endswith("*"))

    def __str__(self) -> str:
        if not self.kind:
            return "*"
        return f"{self.kind}:{self.name}" + ("" if self.is_literal else "*")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One rule of a policy."""

    resource: _Resource
    actions: Right
    networks: tuple[Network, ...]
    """Where it applies; empty for every address."""
    denies: bool

    def applies(self, actions: Right, host: str) -> bool:
        """Whether it is about one of these actions, and about this host."""
        return bool(self.actions & actions) and (not self.networks or _contains(self.networks, host))


class _Policy:
    """The entries of one type, in their order of precedence."""

    __slots__ = ("_literals", "_patterns")

    def __init__(self, entries: Iterable[_Entry]) -> None:
        ordered = sorted(entries, key=lambda entry: (not entry.resource.kind, -len(entry.resource.name)))
        self._literals: dict[tuple[str, str], _Entry] = {}
        self._patterns: list[_Entry] = []
        for entry in ordered:
            if entry.resource.is_literal:
                self._literals[entry.resource.kind, entry.resource.name] = entry
            else:
                self._patterns.append(entry)

    def find(self, kind: str, name: str, actions: Right, host: str) -> _Entry | None:
        """Return the entry that decides; None if none applies.

        A name takes precedence over a prefix, a longer prefix over a shorter one, and the type of a resource
        over ``*``. Each resource has one entry, so no two entries of the same precedence apply.

        A name server belongs to no cluster, so its name is empty: each denial for a cluster applies there.
        """
        if kind == _CLUSTER and not name:
            for entry in (*self._literals.values(), *self._patterns):
                if entry.denies and entry.resource.kind == kind and entry.applies(actions, host):
                    return entry
        literal = self._literals.get((kind, name))
        if literal is not None and literal.applies(actions, host):
            return literal
        for entry in self._patterns:
            resource = entry.resource
            if (
                resource.kind in ("", kind)
                and name.startswith(resource.name)
                and entry.applies(actions, host)
            ):
                return entry
        return None

    @property
    def topics(self) -> Iterable[str]:
        """Names and prefixes of topics."""
        yield from (name for kind, name in self._literals if kind == "Topic")
        yield from (entry.resource.name for entry in self._patterns if entry.resource.kind == "Topic")


@dataclass(frozen=True, slots=True)
class User:
    """A user who is not disabled."""

    access_key: str
    secret_key: bytes = field(repr=False)
    is_admin: bool
    """Whether its type is Super, so that it may do everything."""
    is_limited: bool
    cluster: str
    """Name of the server's cluster; empty at a name server."""
    custom: _Policy
    default: _Policy
    """Applies where no entry of `custom` does."""

    @property
    def listed_topics(self) -> Iterable[str]:
        """Topics, and beginnings of topics, that its policies name."""
        yield from self.custom.topics
        yield from self.default.topics

    def is_exempt_at(self, host: str) -> bool:
        """Whether its requests need no signature: never, in ACL 2.0."""
        return False

    def refusal(self, required: RequiredRight, host: str) -> str | None:
        """Return why a client at this host lacks a right; None if it has the right.

        A pattern does not cover the broker's own topics and groups, except for sending traces. It covers
        dead letters only together with the right to read as their group.
        """
        if not required.actions:
            return None
        kind = required.kind.value.capitalize()
        name = self.cluster if required.kind is Subject.CLUSTER else required.name
        entry = self._find(kind, name, required.actions, host)
        if entry is None:
            why = "no matched policies."
        elif entry.denies:
            why = "the decision is deny."
        elif not entry.resource.is_literal and not self._pattern_covers(required, host):
            why = "a policy with * does not cover it: it is the broker's own, or the group's dead letters."
        else:
            return None
        return f"{_USER}{self.access_key} has no permission to access {kind}:{name} from {host}, {why}"

    def _find(self, kind: str, name: str, actions: Right, host: str) -> _Entry | None:
        return self.custom.find(kind, name, actions, host) or self.default.find(kind, name, actions, host)

    def _pattern_covers(self, required: RequiredRight, host: str) -> bool:
        name = required.name
        if required.kind is Subject.GROUP:
            return not is_internal_group(name)
        if required.kind is not Subject.TOPIC:
            return True
        if name == TRACE_TOPIC:
            return bool(required.actions & Right.PUB)
        if is_internal_topic(name):
            return False
        group = name.removeprefix(DLQ_TOPIC_PREFIX)
        wanted = RequiredRight(group, Subject.GROUP, Right.SUB, Right.SUB)
        return group == name or self.refusal(wanted, host) is None


@dataclass(frozen=True, slots=True)
class UserList:
    """The validated users and policies of a server."""

    accounts: Mapping[str, User]
    """Users by name, without those that are disabled."""
    disabled: frozenset[str]
    delegates: ClassVar = True

    @classmethod
    def of(cls, contents: AuthFile, *, cluster: str, authorizes: bool) -> UserList:
        """Return the users of a file that `checked_file` has returned.

        cluster: name of the cluster, for resources of this type; empty at a name server. authorizes: whether
        policies are checked.
        """
        policies = {acl.subject: acl for acl in contents.acls}
        users: dict[str, User] = {}
        disabled = set()
        for found in contents.users:
            name = found.username or ""
            acl = policies.get(subject_of(name), AclInfo())
            if found.user_status == DISABLED:
                disabled.add(name)
                continue
            is_super = found.user_type == SUPER
            users[name] = User(
                access_key=name,
                secret_key=(found.password or "").encode(),
                is_admin=is_super,
                is_limited=authorizes and not is_super,
                cluster=cluster,
                custom=_policy(acl, CUSTOM),
                default=_policy(acl, DEFAULT),
            )
        return cls(users, frozenset(disabled))

    def is_on_allow_list(self, host: str) -> bool:
        """Whether a host needs no signature: never, in ACL 2.0."""
        return False

    def why_unknown(self, access_key: str | None) -> str:
        """Return why a request with this access key, or without one, is rejected."""
        if access_key is None:
            return "username cannot be null."
        return f"User:{access_key} is {'disabled' if access_key in self.disabled else 'not found'}."

    def rejection(self, request: Command, reason: str) -> Command:
        """Return the response that clients of 5.x expect."""
        return request.reply(ResponseCode.NO_PERMISSION, remark=reason)


def read_auth_file(text: str) -> AuthFile:
    """Parse auth.json; `checked_file` checks the values.

    Raises ConfigInvalid, also for an unknown key, or one that is there twice.

    The bodies of requests have the same structs, but may have more keys, as those of later versions do.
    """
    try:
        contents = msgspec.json.decode(text.encode(), type=AuthFile)
        found: Any = json.loads(text, object_pairs_hook=_without_duplicates)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigInvalid(str(error)) from None
    reject_unknown(found, AuthFile)
    for user in found.get("users", []):
        _reject_unknown_of(f"user {user.get('username')!r}", (user, UserInfo))
    for acl in found.get("acls", []):
        policies = acl.get("policies") or []
        entries = [entry for policy in policies for entry in policy.get("entries") or []]
        _reject_unknown_of(
            f"subject {acl.get('subject')!r}",
            (acl, AclInfo),
            *((policy, PolicyInfo) for policy in policies),
            *((entry, PolicyEntryInfo) for entry in entries),
        )
    return contents


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    reject_twice(key for key, _ in pairs)
    return dict(pairs)


def _reject_unknown_of(owner: str, *parts: tuple[dict[str, Any], type[msgspec.Struct]]) -> None:
    try:
        for settings, known in parts:
            reject_unknown(settings, known)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{owner}: {error}") from None


def subject_name(subject: str | None) -> str:
    """Return the user of a subject, ``User:name``. Raises ConfigInvalid."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != "user" or not name.strip():
        raise ConfigInvalid(f"invalid subject {subject!r}; expected User:NAME")
    return name.strip()


def subject_of(name: str) -> str:
    """Return the subject of a user."""
    return _USER + name


def checked_user(info: UserInfo) -> UserInfo:
    """Return a user with its type and status as they are spelled here. Raises ConfigInvalid."""
    name = (info.username or "").strip()
    if not name:
        raise ConfigInvalid("username can not be blank")
    if not (info.password or "").strip():
        raise ConfigInvalid(f"user {name!r}: password can not be blank")
    return UserInfo(
        username=name,
        password=info.password,
        user_type=_word("userType", info.user_type or NORMAL, (SUPER, NORMAL)),
        user_status=_word("userStatus", info.user_status or ENABLED, (ENABLED, DISABLED)),
    )


def checked_policies(policies: Iterable[PolicyInfo] | None) -> list[PolicyInfo]:
    """Return policies with their types and resources as they are spelled here. Raises ConfigInvalid."""
    found = [_checked_policy(policy) for policy in policies or []]
    if not found:
        raise ConfigInvalid("The policies is empty.")
    if not all(policy.entries for policy in found):
        raise ConfigInvalid("The policy entries is empty.")
    return found


def checked_file(contents: AuthFile) -> AuthFile:
    """Return the contents of a file with all texts as they are spelled here.

    Raises ConfigInvalid for what is invalid, or there twice: one of the two would have no effect.
    """
    users = [checked_user(user) for user in contents.users]
    _reject_twice("user", (user.username for user in users))
    acls = [_checked_acl(acl) for acl in contents.acls]
    _reject_twice("subject", (acl.subject for acl in acls))
    subjects = {subject_of(user.username or "") for user in users}
    for acl in acls:
        if acl.subject not in subjects:
            raise ConfigInvalid(f"there are policies of {acl.subject}, but there is no such user")
    return AuthFile(users=users, acls=acls)


def _checked_acl(acl: AclInfo) -> AclInfo:
    name = subject_name(acl.subject)
    try:
        policies = [_checked_policy(policy) for policy in acl.policies or []]
        for kind in (CUSTOM, DEFAULT):
            entries = [
                entry for policy in policies if policy.policy_type == kind for entry in policy.entries or []
            ]
            _reject_twice(f"{kind} resource", (entry.resource for entry in entries))
    except ConfigInvalid as error:
        raise ConfigInvalid(f"user {name!r}: {error}") from None
    return AclInfo(subject=subject_of(name), policies=policies)


def _reject_twice(what: str, names: Iterable[str | None]) -> None:
    seen: set[str | None] = set()
    for name in names:
        if name in seen:
            raise ConfigInvalid(f"the {what} {name!r} is there twice; remove one")
        seen.add(name)


def resource_text(text: str) -> str:
    """Return a resource as it is spelled here. Raises ConfigInvalid."""
    return str(_Resource.of(text))


def policy_kind(text: str | None) -> str:
    """Return ``Custom``, also for no text, or ``Default``. Raises ConfigInvalid."""
    return _word("policyType", text or CUSTOM, (CUSTOM, DEFAULT))


def _checked_policy(policy: PolicyInfo) -> PolicyInfo:
    return PolicyInfo(
        policy_type=policy_kind(policy.policy_type),
        entries=[_checked_entry(entry) for entry in policy.entries or []],
    )


def _checked_entry(info: PolicyEntryInfo) -> PolicyEntryInfo:
    entry = _entry(info)
    actions = [_action_name(text) for text in info.actions or []]
    return PolicyEntryInfo(
        resource=str(entry.resource),
        actions=list(dict.fromkeys(actions)),
        source_ips=[text.strip() for text in info.source_ips or []] or None,
        decision=_DENY if entry.denies else _ALLOW,
    )


def _policy(acl: AclInfo, kind: str) -> _Policy:
    policies = [policy for policy in acl.policies or [] if policy.policy_type == kind]
    return _Policy(_entry(info) for policy in policies for info in policy.entries or [])


def _entry(info: PolicyEntryInfo) -> _Entry:
    if info.resource is None:
        raise ConfigInvalid("The resource is null.")
    if not info.actions:
        raise ConfigInvalid("The actions is empty.")
    actions = Right.DENY
    for text in info.actions:
        actions |= _ACTIONS[_action_name(text)]
    return _Entry(
        _Resource.of(info.resource),
        actions,
        tuple(_network(text) for text in info.source_ips or []),
        denies=_word("decision", info.decision or "", (_ALLOW, _DENY)) == _DENY,
    )


def _action_name(text: str) -> str:
    return _word("action", text, tuple(_ACTIONS))


def _word(what: str, text: str, known: tuple[str, ...]) -> str:
    """Return a known word in its spelling; the case is ignored, as in 5.3.3. Raises ConfigInvalid."""
    found = {word.lower(): word for word in known}.get(text.strip().lower())
    if found is None:
        raise ConfigInvalid(f"{what} {text!r} is unknown; expected one of {', '.join(known)}")
    return found


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigInvalid(f"The source ip {text!r} is neither an address nor a network") from None
    if network.version == 6 and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:  # hosts are compared as IPv4 addresses
            return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def _contains(networks: Iterable[Network], host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    if address.version == 6:
        address = address.ipv4_mapped or address
    return any(address in network for network in networks)
