"""docs/reference/mqconsumer.md: complete, and each row covered by a case that exists."""

from __future__ import annotations

import dataclasses
import re

import pytest

import rocketpy
from rocketpy.consumer.config import LitePullConfig, PushConfig
from tests.mqconsumer import CASES
from tools.import_map import ROOT

PAGE = (ROOT / "docs/reference/mqconsumer.md").read_text("utf-8")
HELD = PAGE[: PAGE.index("## Not taken over")]

# Methods of MQPushConsumer, MQConsumer and LitePullConsumer of 4.6.0, each overload by its arguments.
JAVA_METHODS = """
    start() shutdown() registerMessageListener(MessageListenerConcurrently)
    registerMessageListener(MessageListenerOrderly) subscribe(topic, subExpression)
    subscribe(topic, fullClassName, source) subscribe(topic, MessageSelector.bySql(text)) unsubscribe(topic)
    updateCorePoolSize(n) suspend() resume() sendMessageBack(msg, delayLevel)
    sendMessageBack(msg, delayLevel, brokerName) fetchSubscribeMessageQueues(topic) subscribe(topic, selector)
    assign(queues) poll() poll(timeout) seek(mq, offset) pause(queues) resume(queues)
    fetchMessageQueues(topic) offsetForTimestamp(mq, timestamp) commitSync() committed(mq)
    registerTopicMessageQueueChangeListener(topic, listener)
"""
# Settings of DefaultMQPushConsumer, DefaultLitePullConsumer and ClientConfig of 4.6.0 that consumers use.
JAVA_SETTINGS = re.findall(
    r"\w+",
    """
    consumerGroup messageModel consumeFromWhere consumeTimestamp allocateMessageQueueStrategy offsetStore
    consumeThreadMin consumeThreadMax adjustThreadPoolNumsThreshold consumeConcurrentlyMaxSpan
    pullThresholdForQueue pullThresholdSizeForQueue pullThresholdForTopic pullThresholdSizeForTopic
    pullInterval consumeMessageBatchMaxSize pullBatchSize postSubscriptionWhenPull unitMode maxReconsumeTimes
    suspendCurrentQueueTimeMillis consumeTimeout persistConsumerOffsetInterval namesrvAddr instanceName
    pollNameServerInterval heartbeatBrokerInterval namespace brokerSuspendMaxTimeMillis
    consumerTimeoutMillisWhenSuspend consumerPullTimeoutMillis messageQueueListener autoCommit pullThreadNums
    autoCommitIntervalMillis pullThresholdForAll consumeMaxSpan pollTimeoutMillis
    topicMetadataCheckIntervalMillis
    """,
)


def rows() -> list[list[str]]:
    """The cells of every row that a case covers."""
    lines = [line for line in HELD.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_row_names_its_case() -> None:
    """A promise of the table could be broken without a test that fails."""
    assert len(rows()) > 45
    assert {row[-1].strip("` |") for row in rows()} == set(CASES)


@pytest.mark.parametrize("path", ["tests/integration/consumer", "tests/interop/cases"])
def test_the_cases_run_against_both(path: str) -> None:
    """A row could be tested with rocketpy's broker only, and be wrong with RocketMQ's."""
    assert "globals().update(CASES)" in (ROOT / path / "test_mqconsumer.py").read_text("utf-8")


@pytest.mark.parametrize("method", re.findall(r"\w+\([^()]*(?:\(\w+\))?\)", JAVA_METHODS))
def test_every_java_method_is_in_the_table(method: str) -> None:
    """A user of the Java client would not find a method."""
    assert f"`{method}`" in PAGE


@pytest.mark.parametrize("setting", JAVA_SETTINGS)
def test_every_java_setting_is_in_the_table(setting: str) -> None:
    """A user of the Java client would not find a setting."""
    assert re.search(rf"\| .*[`(]{setting}[`)]", PAGE)


def test_our_methods_exist() -> None:
    """The table would send its reader to a method that is not there."""
    names = set(re.findall(r"consumer\.(\w+)\(", HELD))
    assert len(names) > 10
    for name in names:
        assert hasattr(rocketpy.PushConsumer, name) or hasattr(rocketpy.LitePullConsumer, name), name


def test_our_settings_exist() -> None:
    """The table would contain a setting that does not exist."""
    known = {
        field.name
        for config in (PushConfig, LitePullConfig, rocketpy.ClientConfig)
        for field in dataclasses.fields(config)
    }
    settings = HELD[
        HELD.index("## DefaultMQPushConsumer: settings") : HELD.index("## DefaultLitePullConsumer")
    ]
    lines = [line.split(" | ") for line in settings.splitlines() if line.startswith("| `")]
    assert len(lines) > 15
    for row in lines:
        named = [name.rpartition(".")[2] for name in re.findall(r"`([a-z_A-Z.]+)`", row[1])]
        assert {name for name in named if name.islower()} <= known, row
