"""Bodies with which clients find brokers."""

from __future__ import annotations

from typing import Final

from rocketpy.protocol.bodies.base import Body, always_encoded
from rocketpy.protocol.headers.base import Int32

MASTER_ID: Final = 0
"""The broker id of a master. Source: RocketMQ MixAll MASTER_ID."""
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
"""New topics may be created from this one. Source: RocketMQ PermName."""


class QueueData(Body, kw_only=True):
    """How many queues of a topic a broker has."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    """4 read, 2 write, 1 inherit."""
    topic_syn_flag: Int32 = always_encoded(0)
    """The topic's sysFlag; RocketMQ spells it this way (QUIRKS 9)."""


class BrokerData(Body, kw_only=True):
    """A master and its slaves."""

    cluster: str | None = None
    broker_name: str
    broker_addrs: dict[int, str] = always_encoded({})
    """Broker id (0 is the master) to ``host:port``."""


class TopicRouteData(Body, kw_only=True):
    """The response to GET_ROUTEINTO_BY_TOPIC. Source: RocketMQ TopicRouteData."""

    order_topic_conf: str | None = None
    """``broker-a:4;broker-b:4`` for an ordered topic, else absent."""
    queue_datas: list[QueueData] = always_encoded([])
    broker_datas: list[BrokerData] = always_encoded([])
    filter_server_table: dict[str, list[str]] = always_encoded({})


class ClusterInfo(Body, kw_only=True):
    """The response to GET_BROKER_CLUSTER_INFO. Source: RocketMQ ClusterInfo."""

    broker_addr_table: dict[str, BrokerData] = always_encoded({})
    """By broker name."""
    cluster_addr_table: dict[str, list[str]] = always_encoded({})
    """Cluster name to broker names."""
