"""Bodies of administration requests and of their responses."""

from __future__ import annotations

from collections.abc import Mapping

from rocketpy.protocol.bodies.base import Body, always_encoded
from rocketpy.protocol.headers.base import Int64
from rocketpy.protocol.java import trim


class KVTable(Body, kw_only=True):
    """A map of strings: key-value settings, runtime information, the response to REGISTER_BROKER."""

    table: dict[str, str] = always_encoded({})


class GroupList(Body, kw_only=True):
    """The response to QUERY_TOPIC_CONSUME_BY_WHO: consumer groups."""

    group_list: list[str] = always_encoded([])


class BrokerStatsItem(Body, kw_only=True):
    """Sum, rate per second and average of one period; None where Java has NaN."""

    sum: Int64 = always_encoded(0)
    tps: float | None = None
    avgpt: float | None = None


class BrokerStatsData(Body, kw_only=True):
    """The response to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


class PlainAccessConfig(Body, kw_only=True):
    """One account of plain_acl.yml. Source: RocketMQ PlainAccessConfig."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = always_encoded(False)
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class GetBrokerClusterAclConfigResponseBody(Body, kw_only=True):
    """The response to GET_BROKER_CLUSTER_ACL_CONFIG. RocketMQ puts secrets into it; rocketpy does not."""

    global_white_addrs: list[str] | None = None
    plain_access_configs: list[PlainAccessConfig] | None = None


class UserInfo(Body, kw_only=True):
    """A user of ACL 2.0. Source: RocketMQ 5.3.3 UserInfo."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    """``Super`` or ``Normal``."""
    user_status: str | None = None
    """``enable`` or ``disable``."""


class PolicyEntryInfo(Body, kw_only=True):
    """One rule of a policy. Source: RocketMQ 5.3.3 AclInfo.PolicyEntryInfo."""

    resource: str | None = None
    """``Topic:name``, ``Group:prefix*``, ``Cluster:*``, or ``*`` for everything."""
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    """Addresses and networks (CIDR); empty for every address."""
    decision: str | None = None
    """``Allow`` or ``Deny``."""


class PolicyInfo(Body, kw_only=True):
    """The rules of one type. Source: RocketMQ 5.3.3 AclInfo.PolicyInfo."""

    policy_type: str | None = None
    """``Custom``, or ``Default``, which applies where no custom rule matches."""
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, kw_only=True):
    """The policies of a subject. Source: RocketMQ 5.3.3 AclInfo."""

    subject: str | None = None
    """``User:name``."""
    policies: list[PolicyInfo] | None = None


def encode_settings(settings: Mapping[str, str]) -> bytes:
    """Encode settings as the body of UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG.

    RocketMQ reads it with java.util.Properties.
    """
    lines = (f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
    return "".join(lines).encode("ascii")


def decode_settings(body: bytes) -> dict[str, str]:
    """Decode the response to GET_BROKER_CONFIG or GET_NAMESRV_CONFIG: ``name=value`` lines, not escaped."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").split("\n"))
    return {trim(name): trim(value) for name, separator, value in lines if separator}


def _escaped(text: str) -> str:
    r"""Return a text for a properties file: all but ASCII letters, digits and -._/,@ is written as \uXXXX."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(
        chr(code)
        if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "-._/,@")
        else f"\\u{code:04x}"
        for code in codes
    )
