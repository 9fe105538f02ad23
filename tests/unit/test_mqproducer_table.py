"""docs/reference/mqproducer.md: complete, and each row covered by a case that exists."""

from __future__ import annotations

import re

import pytest

import rocketpy
from tests.mqproducer import cases
from tools.import_map import ROOT

PAGE = (ROOT / "docs/reference/mqproducer.md").read_text("utf-8")
HELD = PAGE[: PAGE.index("## Not taken over")]

# org.apache.rocketmq.client.producer.MQProducer and MQAdmin of 4.6.0: method to the numbers of its arguments.
JAVA_METHODS = {
    "start": [0],
    "shutdown": [0],
    "fetchPublishMessageQueues": [1],
    "send": [1, 2, 2, 3, 2, 3, 3, 4, 3, 4, 4, 5, 1, 2, 2, 3],
    "sendOneway": [1, 2, 3],
    "sendMessageInTransaction": [2, 3],
    "request": [2, 3, 4, 5, 3, 4],
    "createTopic": [3, 4],
    "searchOffset": [2],
    "maxOffset": [1],
    "minOffset": [1],
    "earliestMsgStoreTime": [1],
    "viewMessage": [1, 2],
    "queryMessage": [5],
}
# Settings of DefaultMQProducer, ClientConfig and TransactionMQProducer of 4.6.0.
JAVA_SETTINGS = re.findall(
    r"\w+",
    """
    producerGroup createTopicKey defaultTopicQueueNums sendMsgTimeout compressMsgBodyOverHowmuch
    retryTimesWhenSendFailed retryTimesWhenSendAsyncFailed retryAnotherBrokerWhenNotStoreOK maxMessageSize
    sendLatencyFaultEnable latencyMax notAvailableDuration sendMessageWithVIPChannel setCallbackExecutor
    setAsyncSenderExecutor namesrvAddr clientIP instanceName clientCallbackExecutorThreads namespace
    accessChannel pollNameServerInterval heartbeatBrokerInterval persistConsumerOffsetInterval
    pullTimeDelayMillsWhenException unitMode unitName vipChannelEnabled useTLS language executorService
    checkThreadPoolMinSize checkThreadPoolMaxSize checkRequestHoldMax setTransactionListener
    setTransactionCheckListener
    """,
)


def rows() -> list[list[str]]:
    """The cells of every row that a case covers."""
    lines = [line for line in HELD.splitlines() if line.startswith(("| `", "| everything"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_row_names_its_case() -> None:
    """A promise of the table could be broken without a test that fails."""
    named = {row[-1].strip("` |") for row in rows()}
    existing = {name for name in vars(cases) if name.startswith("test_")}
    assert len(rows()) > 60
    assert named == existing


def test_the_cases_run_against_both() -> None:
    """A row could be tested with rocketpy's broker only, and be wrong with RocketMQ's."""
    for path in ("tests/integration/producer/test_mqproducer.py", "tests/interop/cases/test_mqproducer.py"):
        assert "vars(cases).items()" in (ROOT / path).read_text("utf-8")


def test_every_java_method_has_a_row() -> None:
    """A user of the Java client would not find a method."""
    found: dict[str, list[int]] = {}
    for row in rows():
        match = re.fullmatch(r"`(\w+)\(([^)]*)\)`", row[0])
        if match and match[1] in JAVA_METHODS:
            count = len(match[2].split(",")) if match[2] else 0
            found.setdefault(match[1], []).append(count)
    assert {name: sorted(counts) for name, counts in found.items()} == {
        name: sorted(counts) for name, counts in JAVA_METHODS.items()
    }


@pytest.mark.parametrize("setting", JAVA_SETTINGS)
def test_every_java_setting_is_in_the_table(setting: str) -> None:
    """A user of the Java client would not find a setting."""
    assert re.search(rf"\| .*`{setting}(\(\w+\))?`", PAGE)


def test_our_methods_exist() -> None:
    """The table would send its reader to a method that is not there."""
    names = set(re.findall(r"producer\.(\w+)\(", HELD))
    assert {name for name in names if not hasattr(rocketpy.Producer, name)} == set()


def test_settings_and_defaults_are_true() -> None:
    """The table would contain a setting that does not exist, or another default."""
    for row in rows():
        for group, name in re.findall(r"`(\w+Config)\.(\w+)`", row[1]):
            config = getattr(__import__("rocketpy.config", fromlist=[group]), group)()
            value = getattr(config, name)
            digits = re.sub(r"[ ,]", "", row[2].split(" ")[0].strip())
            if digits.isdecimal() and row[2].replace(",", "").isdecimal():
                assert value == int(digits), (group, name)
            elif row[2] in ("False", "none"):
                assert not value, (group, name)
