"""The permission that each request code needs. Servers reject request codes that are not in their table.

PUBLISH and SUBSCRIBE give the direction of a request; `required_permissions` checks its topics and groups.
With access control, ANY needs a signature, and BROKER and ADMIN need an administrator or a white address.

Deny by default: a handler for a new request code is not called until the code has a permission here. With
access control, only administrators may use the code until `required_permissions` has a rule for it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from rocketpy.protocol.codes import RequestCode

ADD_WRITE_PERM_OF_BROKER: Final = 327
"""Request code of RocketMQ 4.9, the opposite of WIPE_WRITE_PERM_OF_BROKER."""


class Permission(Enum):
    """A right that a request needs."""

    ANY = "any"
    """Every client that may connect."""
    PUBLISH = "publish"
    """To send to the topic in the header."""
    SUBSCRIBE = "subscribe"
    """To read from the topic in the header, as the group in it."""
    BROKER = "broker"
    """To act as a broker of the cluster."""
    ADMIN = "admin"
    """To change the cluster or to see all of it."""


NAMESRV_PERMISSIONS: Final[dict[int, Permission]] = {
    RequestCode.PUT_KV_CONFIG: Permission.ADMIN,
    RequestCode.GET_KV_CONFIG: Permission.ANY,
    RequestCode.DELETE_KV_CONFIG: Permission.ADMIN,
    RequestCode.GET_KVLIST_BY_NAMESPACE: Permission.ADMIN,
    RequestCode.QUERY_DATA_VERSION: Permission.BROKER,
    RequestCode.REGISTER_BROKER: Permission.BROKER,
    RequestCode.UNREGISTER_BROKER: Permission.BROKER,
    RequestCode.GET_ROUTEINTO_BY_TOPIC: Permission.ANY,
    RequestCode.GET_BROKER_CLUSTER_INFO: Permission.ANY,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Permission.ADMIN,
    ADD_WRITE_PERM_OF_BROKER: Permission.ADMIN,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Permission.ADMIN,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Permission.ADMIN,
    RequestCode.GET_TOPICS_BY_CLUSTER: Permission.ADMIN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Permission.ANY,
    RequestCode.GET_UNIT_TOPIC_LIST: Permission.ADMIN,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Permission.ADMIN,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Permission.ADMIN,
    RequestCode.UPDATE_NAMESRV_CONFIG: Permission.ADMIN,
    RequestCode.GET_NAMESRV_CONFIG: Permission.ADMIN,
}

BROKER_PERMISSIONS: Final[dict[int, Permission]] = {
    RequestCode.SEND_MESSAGE: Permission.PUBLISH,
    RequestCode.SEND_MESSAGE_V2: Permission.PUBLISH,
    RequestCode.SEND_BATCH_MESSAGE: Permission.PUBLISH,
    RequestCode.SEND_REPLY_MESSAGE: Permission.PUBLISH,
    RequestCode.SEND_REPLY_MESSAGE_V2: Permission.PUBLISH,
    RequestCode.END_TRANSACTION: Permission.PUBLISH,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Permission.ADMIN,
    RequestCode.GET_ALL_DELAY_OFFSET: Permission.BROKER,
    RequestCode.CONSUMER_SEND_MSG_BACK: Permission.SUBSCRIBE,
    RequestCode.PULL_MESSAGE: Permission.SUBSCRIBE,
    RequestCode.QUERY_MESSAGE: Permission.SUBSCRIBE,
    RequestCode.VIEW_MESSAGE_BY_ID: Permission.ANY,
    RequestCode.GET_MAX_OFFSET: Permission.ANY,
    RequestCode.GET_MIN_OFFSET: Permission.ANY,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Permission.ANY,
    RequestCode.GET_EARLIEST_MSG_STORETIME: Permission.ANY,
    RequestCode.QUERY_CONSUMER_OFFSET: Permission.SUBSCRIBE,
    RequestCode.UPDATE_CONSUMER_OFFSET: Permission.SUBSCRIBE,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Permission.SUBSCRIBE,
    RequestCode.GET_ALL_CONSUMER_OFFSET: Permission.BROKER,
    RequestCode.DELETE_TOPIC_IN_BROKER: Permission.ADMIN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Permission.ANY,
    RequestCode.CLEAN_UNUSED_TOPIC: Permission.ADMIN,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Permission.ADMIN,
    RequestCode.CLONE_GROUP_OFFSET: Permission.ADMIN,
    RequestCode.QUERY_CONSUME_QUEUE: Permission.ADMIN,
    RequestCode.GET_TOPIC_STATS_INFO: Permission.ANY,
    RequestCode.GET_CONSUME_STATS: Permission.ANY,
    RequestCode.GET_BROKER_CONSUME_STATS: Permission.ADMIN,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Permission.ANY,
    RequestCode.QUERY_CONSUME_TIME_SPAN: Permission.ANY,
    RequestCode.QUERY_CORRECTION_OFFSET: Permission.ANY,
    RequestCode.VIEW_BROKER_STATS_DATA: Permission.ADMIN,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Permission.ANY,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Permission.ANY,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Permission.ADMIN,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Permission.ANY,
    RequestCode.GET_CONSUMER_RUNNING_INFO: Permission.ANY,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Permission.ADMIN,
    RequestCode.LOCK_BATCH_MQ: Permission.SUBSCRIBE,
    RequestCode.UNLOCK_BATCH_MQ: Permission.SUBSCRIBE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Permission.ADMIN,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Permission.BROKER,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Permission.ANY,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Permission.ADMIN,
    RequestCode.HEART_BEAT: Permission.ANY,
    RequestCode.UNREGISTER_CLIENT: Permission.ANY,
    RequestCode.CHECK_CLIENT_CONFIG: Permission.ANY,
    RequestCode.GET_TOPIC_CONFIG: Permission.ANY,
    RequestCode.GET_ALL_TOPIC_CONFIG: Permission.BROKER,
    RequestCode.UPDATE_AND_CREATE_TOPIC: Permission.ADMIN,
    RequestCode.GET_BROKER_RUNTIME_INFO: Permission.ADMIN,
    RequestCode.GET_BROKER_CONFIG: Permission.ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: Permission.ADMIN,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: Permission.ADMIN,
    RequestCode.DELETE_ACL_CONFIG: Permission.ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Permission.ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: Permission.ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: Permission.ADMIN,
}
