"""Codes: the numbers are those of RocketMQ 4.6.0."""

from __future__ import annotations

from enum import IntEnum

import pytest

from rocketpy.protocol.codes import VERSION_4_6_0, LanguageCode, RequestCode, ResponseCode, name_of
from tests.golden_data import vectors

CONSTANTS = {
    table["class"]: {k: v for k, v in table.items() if k != "class"} for table in vectors("constants")
}


LATER = {
    "UPDATE_AND_CREATE_TOPIC_LIST": 18,
    "GET_TIMER_CHECK_POINT": 60,
    "GET_TIMER_METRICS": 61,
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": 225,
    "ADD_WRITE_PERM_OF_BROKER": 327,
    "GET_ALL_PRODUCER_INFO": 328,
    "DELETE_EXPIRED_COMMITLOG": 329,
    "QUERY_TOPICS_BY_CONSUMER": 343,
    "QUERY_SUBSCRIPTION_BY_CONSUMER": 345,
    "GET_TOPIC_CONFIG": 351,
    "GET_SUBSCRIPTIONGROUP_CONFIG": 352,
    "UPDATE_AND_GET_GROUP_FORBIDDEN": 353,
    "LITE_PULL_MESSAGE": 361,
    "RECALL_MESSAGE": 370,
    "POP_MESSAGE": 200050,
    "ACK_MESSAGE": 200051,
    "PEEK_MESSAGE": 200052,
    "CHANGE_MESSAGE_INVISIBLETIME": 200053,
    "NOTIFICATION": 200054,
    "POLLING_INFO": 200055,
    "BATCH_ACK_MESSAGE": 200151,
    "QUERY_ASSIGNMENT": 400,
    "SET_MESSAGE_REQUEST_MODE": 401,
    "GET_ALL_MESSAGE_REQUEST_MODE": 402,
    "AUTH_CREATE_USER": 3001,
    "AUTH_UPDATE_USER": 3002,
    "AUTH_DELETE_USER": 3003,
    "AUTH_GET_USER": 3004,
    "AUTH_LIST_USER": 3005,
    "AUTH_CREATE_ACL": 3006,
    "AUTH_UPDATE_ACL": 3007,
    "AUTH_DELETE_ACL": 3008,
    "AUTH_GET_ACL": 3009,
    "AUTH_LIST_ACL": 3010,
}
"""Requests of newer clients. Source: RequestCode of 5.3.3."""
LATER_RESPONSES = {
    "INVALID_PARAMETER": 29,
    "POLLING_FULL": 209,
    "POLLING_TIMEOUT": 210,
    "ILLEGAL_OPERATION": 604,
}
"""Source: ResponseCode of 5.3.3."""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RequestCode, CONSTANTS["RequestCode"] | LATER),
        (ResponseCode, CONSTANTS["ResponseCode"] | CONSTANTS["RemotingSysResponseCode"] | LATER_RESPONSES),
        (LanguageCode, {v["language"]: v["code"] for v in vectors("versionAndLanguage") if "language" in v}),
    ],
)
def test_every_code_has_its_number(ours: type[IntEnum], theirs: dict[str, int]) -> None:
    """A request would have the code of another, or a rejection would be mistaken for another."""
    assert {name: member.value for name, member in ours.__members__.items()} == theirs


def test_version_is_that_of_4_6_0() -> None:
    """QUIRKS 4: Java peers would assume another release and switch features."""
    assert vectors("versionAndLanguage")[0]["CURRENT_VERSION"] == VERSION_4_6_0


def test_unknown_codes_keep_their_number() -> None:
    """The rejection of a newer broker would crash the code that reports it."""
    assert name_of(ResponseCode, ResponseCode.NO_PERMISSION) == "NO_PERMISSION"
    assert name_of(ResponseCode, 4711) == "4711"
