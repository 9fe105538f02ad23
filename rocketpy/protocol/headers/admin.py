"""Headers of administration requests and of filter servers, and of their responses."""

from __future__ import annotations

from msgspec import field

from rocketpy.protocol.headers.base import Header, Int32, Int64


class GetBrokerConfigResponseHeader(Header, kw_only=True):
    """The response to GET_BROKER_CONFIG (26)."""

    version: str
    """DataVersion as JSON; the body has the settings."""


class GetConsumeStatsRequestHeader(Header, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    """Absent or empty for all topics of the group."""


class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317).

    Source: RocketMQ GetConsumeStatsInBrokerHeader.
    """

    is_order: bool
    """Only topics for ordered messages (TopicConfig.order)."""


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303). Source: RocketMQ QueryConsumeTimeSpanRequestHeader."""

    topic: str
    group: str


class QueryConsumeQueueRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    """First queue offset."""
    count: Int32 = 0
    """Number of units."""
    consumer_group: str | None = None


class QueryCorrectionOffsetHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308): compares the offsets of `compare_group` with those of all
    other groups.
    """

    compare_group: str
    topic: str
    filter_groups: str | None = None
    """Groups to leave out, separated by commas."""


class CloneGroupOffsetRequestHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    """Absent for all topics."""
    offline: bool = False
    """Also copy the offsets of topics to which the online members of `src_group` do not subscribe."""


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315). Source: RocketMQ ViewBrokerStatsDataRequestHeader."""

    stats_name: str
    stats_key: str


class RegisterFilterServerRequestHeader(Header, kw_only=True):
    """REGISTER_FILTER_SERVER (301). Source: RocketMQ RegisterFilterServerRequestHeader."""

    filter_server_addr: str


class RegisterFilterServerResponseHeader(Header, kw_only=True):
    """The response to REGISTER_FILTER_SERVER. Source: RocketMQ RegisterFilterServerResponseHeader."""

    broker_name: str
    broker_id: Int64


class RegisterMessageFilterClassRequestHeader(Header, kw_only=True):
    """REGISTER_MESSAGE_FILTER_CLASS (302); the body is the Java source of the filter."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int32 = field(name="classCRC")


class CreateAccessConfigRequestHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). Source: RocketMQ CreateAccessConfigRequestHeader."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """``name=PERM`` separated by commas."""
    group_perms: str | None = None
    """``name=PERM`` separated by commas."""


class DeleteAccessConfigRequestHeader(Header, kw_only=True):
    """DELETE_ACL_CONFIG (51). Source: RocketMQ DeleteAccessConfigRequestHeader."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53). Source: RocketMQ UpdateGlobalWhiteAddrsConfigRequestHeader."""

    global_white_addrs: str


class GetBrokerAclConfigResponseHeader(Header, kw_only=True):
    """The response to GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    """DataVersion as JSON text."""
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None
    """File name -> DataVersion, as JSON text; mqadmin from 4.9.3 on shows only this."""


class UserRequestHeader(Header, kw_only=True):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER (3004).

    Source: RocketMQ 5.3.3 CreateUserRequestHeader, UpdateUserRequestHeader, DeleteUserRequestHeader,
    GetUserRequestHeader.
    """

    username: str | None = None


class ListUsersRequestHeader(Header, kw_only=True):
    """AUTH_LIST_USER (3005). Source: RocketMQ 5.3.3 ListUsersRequestHeader."""

    filter: str | None = None
    """Part of the names; None for all users."""


class AclRequestHeader(Header, kw_only=True):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007) and AUTH_GET_ACL (3009).

    Source: RocketMQ 5.3.3 CreateAclRequestHeader, UpdateAclRequestHeader, GetAclRequestHeader.
    """

    subject: str | None = None
    """``User:name``."""


class DeleteAclRequestHeader(Header, kw_only=True):
    """AUTH_DELETE_ACL (3008). Source: RocketMQ 5.3.3 DeleteAclRequestHeader."""

    subject: str | None = None
    policy_type: str | None = None
    """``Custom`` or ``Default``; None for Custom."""
    resource: str | None = None
    """None for all policies of the subject."""


class ListAclsRequestHeader(Header, kw_only=True):
    """AUTH_LIST_ACL (3010). Source: RocketMQ 5.3.3 ListAclsRequestHeader."""

    subject_filter: str | None = None
    """Part of the subjects; None for all."""
    resource_filter: str | None = None
    """Part of the resources; None for all."""
