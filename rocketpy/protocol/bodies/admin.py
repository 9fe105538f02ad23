"""Bodies that only operators' tools, and a slave for its tables, read."""

from __future__ import annotations

from rocketpy.protocol.bodies.base import Body, written
from rocketpy.protocol.headers.base import Int64


class KVTable(Body, kw_only=True):
    """Texts by name: key-value configuration, runtime information, the answer to REGISTER_BROKER."""

    table: dict[str, str] = written({})


class GroupList(Body, kw_only=True):
    """The response to QUERY_TOPIC_CONSUME_BY_WHO: consumer groups."""

    group_list: list[str] = written([])


class BrokerStatsItem(Body, kw_only=True):
    """Sum, rate a second and average of one period; None where Java has NaN."""

    sum: Int64 = written(0)
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
    admin: bool = written(False)
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class GetBrokerClusterAclConfigResponseBody(Body, kw_only=True):
    """The response to GET_BROKER_CLUSTER_ACL_CONFIG. RocketMQ puts secrets into it; rocketpy does not."""

    global_white_addrs: list[str] | None = None
    plain_access_configs: list[PlainAccessConfig] | None = None
