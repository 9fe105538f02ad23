"""Flag words: the bits are RocketMQ's."""

from __future__ import annotations

import pytest

from rocketpy.protocol.message.sysflag import MessageSysFlag, PullSysFlag, TopicSysFlag
from tests.golden_data import vectors


def test_message_bits() -> None:
    """QUIRKS 28, 51: half messages would be delivered, and IPv6 hosts cut."""
    theirs = next(table for table in vectors("constants") if table["class"] == "MessageSysFlag")
    assert {name: value for name, value in theirs.items() if name != "class"} == {
        "COMPRESSED_FLAG": MessageSysFlag.COMPRESSED,
        "MULTI_TAGS_FLAG": MessageSysFlag.MULTI_TAGS,
        "TRANSACTION_NOT_TYPE": MessageSysFlag.TRANSACTION_NOT,
        "TRANSACTION_PREPARED_TYPE": MessageSysFlag.TRANSACTION_PREPARED,
        "TRANSACTION_COMMIT_TYPE": MessageSysFlag.TRANSACTION_COMMIT,
        "TRANSACTION_ROLLBACK_TYPE": MessageSysFlag.TRANSACTION_ROLLBACK,
        "BORNHOST_V6_FLAG": MessageSysFlag.BORN_HOST_V6,
        "STOREHOSTADDRESS_V6_FLAG": MessageSysFlag.STORE_HOST_V6,
    }


def test_transaction_bits_are_replaced_alone() -> None:
    """A committed message would lose its compression flag and arrive unreadable."""
    half = MessageSysFlag.COMPRESSED | MessageSysFlag.TRANSACTION_PREPARED
    committed = MessageSysFlag.with_transaction(half, MessageSysFlag.TRANSACTION_COMMIT)
    assert committed == MessageSysFlag.COMPRESSED | MessageSysFlag.TRANSACTION_COMMIT
    assert MessageSysFlag.transaction(committed) == MessageSysFlag.TRANSACTION_COMMIT


@pytest.mark.parametrize("vector", vectors("pullSysFlag"))
def test_pull_bits(vector: dict[str, bool]) -> None:
    """QUIRKS 32: the broker would not wait, or take a request without filter for one with."""
    assert vector["sysFlag"] == (
        vector["commitOffset"] * PullSysFlag.COMMIT_OFFSET
        | vector["suspend"] * PullSysFlag.SUSPEND
        | vector["subscription"] * PullSysFlag.SUBSCRIPTION
        | vector["classFilter"] * PullSysFlag.CLASS_FILTER
    )


@pytest.mark.parametrize("vector", vectors("topicSysFlag"))
def test_topic_bits(vector: dict[str, bool]) -> None:
    """A unit topic would be listed as an ordinary one."""
    bits = vector["unit"] * TopicSysFlag.UNIT | vector["unitSub"] * TopicSysFlag.UNIT_SUB
    assert bits == vector["topicSysFlag"]
