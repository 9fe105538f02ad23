"""Accounts and their rights: the contents of plain_acl.yml.

Source: PlainPermissionManager, Permission of RocketMQ 4.6.0. Differs: a misspelled right is an error and does
not mean DENY. An unknown key is an error, because it may be meant to forbid something. No error text of this
module contains a secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.message import TRACE_TOPIC
from rocketpy.protocol.bodies import DataVersion, PlainAccessConfig
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.security.addresses import AddressPattern
from rocketpy_broker.security.rights import (
    RequiredRight,
    Right,
    Subject,
    is_internal_group,
    is_internal_topic,
)

KEY_CHARACTERS_MIN: Final = 7
"""Minimum length of access and secret keys: 4.6.0 requires more than 6 characters."""

_JAVA_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
_RIGHTS: Final = {
    "DENY": Right.DENY,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
}


@dataclass(frozen=True, slots=True)
class Account:
    """An account."""

    access_key: str
    secret_key: bytes = field(repr=False)
    allow_list: AddressPattern
    """Clients that need no signature and may do everything."""
    is_admin: bool
    default_topic: Right
    default_group: Right
    topics: Mapping[str, Right]
    """Rights by topic that differ from the default right."""
    groups: Mapping[str, Right]
    """Rights by group that differ from the default right."""

    def right_to_group(self, name: str) -> Right:
        """Return the right to act as a group. The default right does not apply to the broker's own groups."""
        default = Right.DENY if is_internal_group(name) else self.default_group
        return self.groups.get(name, default)

    def right_to_topic(self, name: str) -> Right:
        """Return the right to a topic.

        The default right does not apply to internal topics of the broker, except for sending traces. For
        dead letters it applies only together with the right to read as their group.
        """
        named = self.topics.get(name)
        if named is not None:
            return named
        if name == TRACE_TOPIC:
            return self.default_topic & Right.PUB
        if is_internal_topic(name):
            return Right.DENY
        group = name.removeprefix(DLQ_TOPIC_PREFIX)
        if group != name and not self.right_to_group(group) & Right.SUB:
            return Right.DENY
        return self.default_topic

    @property
    def listed_topics(self) -> Iterable[str]:
        """Topics that its rights name."""
        return self.topics

    def is_exempt_at(self, host: str) -> bool:
        """Whether its requests from this host need no signature and no right."""
        return self.allow_list.matches(host)

    def refusal(self, required: RequiredRight, host: str) -> str | None:
        """Return why it lacks a right to a topic or a group, from any host; None if it has the right."""
        match required.kind:
            case Subject.TOPIC:
                found = self.right_to_topic(required.name)
            case Subject.GROUP:
                found = self.right_to_group(required.name)
            case _:
                found = Right.DENY
        return None if required.right & found else f"No default permission for {required}"

    @property
    def is_limited(self) -> bool:
        """False for an administrator without listed rights, who may do everything."""
        return not self.is_admin or bool(self.topics or self.groups)


class AccessFile(msgspec.Struct, kw_only=True, rename="camel"):
    """Contents of plain_acl.yml. A list is None if its key has no value."""

    global_white_remote_addresses: list[str] | None = None
    accounts: list[PlainAccessConfig] | None = None
    data_version: list[DataVersion] | None = None
    """One element, the number of changes that administrators requested, and the time of the last."""


@dataclass(frozen=True, slots=True)
class AccessList:
    """The validated rules of a whole file."""

    allow_list: tuple[AddressPattern, ...]
    accounts: Mapping[str, Account]
    delegates: ClassVar = False

    @classmethod
    def of(cls, contents: AccessFile) -> AccessList:
        """Return the rules of a file. Raises ConfigInvalid, which names the account or the pattern."""
        accounts = [validated_account(config) for config in contents.accounts or []]
        return cls(
            tuple(AddressPattern(text) for text in contents.global_white_remote_addresses or []),
            {account.access_key: account for account in accounts},
        )

    def is_on_allow_list(self, host: str) -> bool:
        """Whether a client at this host may do everything without a signature."""
        return any(pattern.matches(host) for pattern in self.allow_list)

    def why_unknown(self, access_key: str | None) -> str:
        """Return why a request with this access key, or without one, is rejected."""
        return "No accessKey is configured" if access_key is None else f"No acl config for {access_key}"

    def rejection(self, request: Command, reason: str) -> Command:
        """Return the response that clients of 4.6.0 expect: SYSTEM_ERROR and the name of Java's exception."""
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{_JAVA_EXCEPTION}: {reason}")


def read_access_file(text: str) -> AccessFile:
    """Parse plain_acl.yml. Raises ConfigInvalid."""
    import yaml  # noqa: PLC0415 - a server without access control starts 20 ms sooner

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            if isinstance(node, yaml.MappingNode):  # else it raises
                reject_twice(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return dict(super().construct_mapping(node, deep))

    try:
        found: Any = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
        if not isinstance(found, dict) or not found:
            raise ConfigInvalid("the file has no settings")
        # Keys and names may look like numbers: 12345678 is a string, as in 4.6.0.
        contents = msgspec.convert(_strings(found), AccessFile, strict=False)
        reject_unknown(found, AccessFile)
        for account in found.get("accounts") or []:
            reject_unknown(account, PlainAccessConfig)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigInvalid(f"invalid YAML{location}") from None  # without the text: it may be a secret
    except msgspec.ValidationError as error:
        raise ConfigInvalid(str(error)) from None
    except (ValueError, OverflowError, RecursionError, AttributeError) as error:  # such as an invalid date
        raise ConfigInvalid(f"a value cannot be read ({type(error).__name__})") from None
    return contents


def dump_access_file(contents: AccessFile) -> str:
    """Return the text of the file. Its comments are lost, as in 4.6.0."""
    import yaml  # noqa: PLC0415 - see read_access_file

    data = msgspec.to_builtins(contents)
    return str(yaml.safe_dump({key: value for key, value in data.items() if value is not None}))


def reject_unknown(settings: Mapping[Any, Any], known: type[msgspec.Struct]) -> None:
    """Raise ConfigInvalid for a key that is no field of `known`: it may be meant to forbid something."""
    unknown = set(map(str, settings)) - {field.encode_name for field in msgspec.structs.fields(known)}
    if unknown:
        raise ConfigInvalid(f"unknown setting {', '.join(sorted(map(_shown, unknown)))}")


def reject_twice(keys: Iterable[str]) -> None:
    """Raise ConfigInvalid for a key that is there twice: one of the two would have no effect."""
    for key, count in Counter(keys).items():
        if count > 1:
            raise ConfigInvalid(f"the setting {_shown(key)} is there twice; remove one")


def _shown(key: str) -> str:
    """Return the first word: YAML reads ``secretKey:12345678`` (no space) as one key, with the secret."""
    return re.split(r"\W", key, maxsplit=1)[0][:40]


def _strings(value: Any) -> Any:
    """Return the same tree with numbers as strings."""
    if isinstance(value, dict):
        return {str(key): _strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strings(inner) for inner in value]
    return str(value) if type(value) in (int, float) else value


def validated_account(config: PlainAccessConfig) -> Account:
    """Return an account with its rights. Raises ConfigInvalid, which names it."""
    key, secret = config.access_key, config.secret_key or ""
    if len(key) < KEY_CHARACTERS_MIN or len(secret) < KEY_CHARACTERS_MIN:
        raise ConfigInvalid(f"account {key!r}: accessKey and secretKey must be longer than 6 characters")
    try:
        return Account(
            access_key=key,
            secret_key=secret.encode(),
            allow_list=AddressPattern(config.white_remote_address or ""),
            is_admin=config.admin,
            default_topic=_right(config.default_topic_perm),
            default_group=_right(config.default_group_perm),
            topics=dict(map(_named_right, config.topic_perms or [])),
            groups=dict(map(_named_right, config.group_perms or [])),
        )
    except ConfigInvalid as error:
        raise ConfigInvalid(f"account {key!r}: {error}") from None


def _right(text: str | None) -> Right:
    right = Right.DENY if text is None else _RIGHTS.get(text.strip())
    if right is None:
        raise ConfigInvalid(f"unknown right {text!r}; expected one of {', '.join(_RIGHTS)}")
    return right


def _named_right(text: str) -> tuple[str, Right]:
    name, sign, right = text.partition("=")
    if not name.strip() or not sign:
        raise ConfigInvalid(f"{text!r} is not of the form NAME=RIGHT")
    return name.strip(), _right(right)
