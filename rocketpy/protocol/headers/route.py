"""Headers of requests to name servers and of their responses: routes, registration, key-value settings."""

from __future__ import annotations

from rocketpy.protocol.headers.base import Header, Int32, Int64


class GetRouteInfoRequestHeader(Header, kw_only=True):
    """GET_ROUTEINTO_BY_TOPIC (105). Source: RocketMQ GetRouteInfoRequestHeader."""

    topic: str


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """REGISTER_BROKER (103). Source: RocketMQ RegisterBrokerRequestHeader."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    """0 for a master."""
    compressed: bool = False
    """The body is the binary form of QUIRKS 12."""
    body_crc32: Int32 | None = 0
    """checksum.crc32 of the body as sent (QUIRKS 11); 0 means that it is not checked."""


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """The response to REGISTER_BROKER: where a slave finds its master (QUIRKS 15)."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentityHeader(Header, kw_only=True):
    """Identifies the broker that a request to a name server concerns."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class UnRegisterBrokerRequestHeader(BrokerIdentityHeader, kw_only=True):
    """UNREGISTER_BROKER (104). Source: RocketMQ UnRegisterBrokerRequestHeader."""


class QueryDataVersionRequestHeader(BrokerIdentityHeader, kw_only=True):
    """QUERY_DATA_VERSION (322); the body is the broker's DataVersion (QUIRKS 14)."""


class QueryDataVersionResponseHeader(Header, kw_only=True):
    """The response to QUERY_DATA_VERSION: whether the broker must register again."""

    changed: bool


class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205). Source: RocketMQ WipeWritePermOfBrokerRequestHeader."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """The response to WIPE_WRITE_PERM_OF_BROKER: how many topics lost the right."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerRequestHeader(Header, kw_only=True):
    """ADD_WRITE_PERM_OF_BROKER (327). Source: RocketMQ 4.9 AddWritePermOfBrokerRequestHeader."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """The response to ADD_WRITE_PERM_OF_BROKER: how many topics got the right."""

    add_topic_count: Int32


class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224). Source: RocketMQ GetTopicsByClusterRequestHeader."""

    cluster: str


class DeleteTopicInNamesrvRequestHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216). Source: RocketMQ DeleteTopicInNamesrvRequestHeader."""

    topic: str


class PutKVConfigRequestHeader(Header, kw_only=True):
    """PUT_KV_CONFIG (100). Source: RocketMQ PutKVConfigRequestHeader."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header, kw_only=True):
    """GET_KV_CONFIG (101). Source: RocketMQ GetKVConfigRequestHeader."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    """The response to GET_KV_CONFIG; code 22 (QUERY_NOT_FOUND) and no value if the key does not exist."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header, kw_only=True):
    """DELETE_KV_CONFIG (102). Source: RocketMQ DeleteKVConfigRequestHeader."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219). Source: RocketMQ GetKVListByNamespaceRequestHeader."""

    namespace: str
