"""Numbers that peers of rocketpy and of RocketMQ exchange."""

from rocketpy_broker.replication.dledger.core.messages import RaftResponseCode

JAVAS = {
    -1: "UNKNOWN", 200: "SUCCESS", 300: "TIMEOUT", 301: "METADATA_ERROR", 302: "NETWORK_ERROR",
    303: "UNSUPPORTED", 400: "UNKNOWN_GROUP", 401: "UNKNOWN_MEMBER", 402: "UNEXPECTED_MEMBER",
    403: "EXPIRED_TERM", 404: "NOT_LEADER", 405: "NOT_FOLLOWER", 406: "INCONSISTENT_STATE",
    407: "INCONSISTENT_TERM", 408: "INCONSISTENT_INDEX", 409: "INCONSISTENT_LEADER",
    410: "INDEX_OUT_OF_RANGE", 411: "UNEXPECTED_ARGUMENT", 412: "REPEATED_REQUEST", 413: "REPEATED_PUSH",
    414: "DISK_ERROR", 415: "DISK_FULL", 416: "TERM_NOT_READY", 500: "INTERNAL_ERROR",
    501: "TERM_CHANGED",
    502: "WAIT_QUORUM_ACK_TIMEOUT", 503: "LEADER_PENDING_FULL", 504: "ILLEGAL_MEMBER_STATE",
    505: "LEADER_NOT_READY",
}  # fmt: skip
"""Source: DLedgerResponseCode of DLedger 0.1."""


def test_every_code_has_its_number() -> None:
    """A Java peer would take a full leader for one that is being stopped."""
    assert {code.value: code.name for code in RaftResponseCode} == JAVAS
