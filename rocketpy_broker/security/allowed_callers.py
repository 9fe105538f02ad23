"""Who may use each request code. Servers reject request codes that are not in their table.

This applies with access control. CLIENT needs a signed request and the rights that
`required_rights` returns for it. BROKER and ADMIN need an administrator's account or an address on the
allow list. With users and policies (ACL 2.0), a user may be given most of these requests (see
`administrative_rights`).

Deny by default: a handler for a new request code is not called until the code is in a table here. With
access control, only administrators may use the code until `required_rights` has a rule for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from rocketpy.protocol.codes import RequestCode


class AllowedCaller(Enum):
    """Who may use a request code."""

    CLIENT = "client"
    """Every account, if it has the rights that the request needs."""
    BROKER = "broker"
    """Brokers of the cluster."""
    ADMIN = "admin"
    """Administrators: the request changes the cluster, or reads all of it."""


def _table(*, client: Iterable[int], broker: Iterable[int], admin: Iterable[int]) -> dict[int, AllowedCaller]:
    return {
        **dict.fromkeys(client, AllowedCaller.CLIENT),
        **dict.fromkeys(broker, AllowedCaller.BROKER),
        **dict.fromkeys(admin, AllowedCaller.ADMIN),
    }


NAMESRV_CALLERS: Final = _table(
    client=(
        RequestCode.GET_KV_CONFIG, RequestCode.GET_ROUTEINTO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    ),
    broker=(
        RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER,
    ),
    admin=(
        RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.GET_TOPICS_BY_CLUSTER, RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG,
    ),
)  # fmt: skip

BROKER_CALLERS: Final = _table(
    client=(
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.END_TRANSACTION,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CORRECTION_OFFSET, RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG, RequestCode.GET_TOPIC_CONFIG, RequestCode.LITE_PULL_MESSAGE,
        RequestCode.RECALL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION,
        RequestCode.PEEK_MESSAGE, RequestCode.POLLING_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, RequestCode.QUERY_ASSIGNMENT,
    ),
    broker=(
        RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    ),
    admin=(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLONE_GROUP_OFFSET, RequestCode.QUERY_CONSUME_QUEUE, RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER, RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL, RequestCode.AUTH_LIST_ACL, RequestCode.SET_MESSAGE_REQUEST_MODE,
    ),
)  # fmt: skip
