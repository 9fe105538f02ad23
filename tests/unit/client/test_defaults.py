"""Defaults of a client: those of RocketMQ 4.6.0's clients, and those of this project."""

from __future__ import annotations

from typing import Any, Final

import pytest

from rocketpy.client import broker_api, heartbeats, queries
from rocketpy.config import (
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    LatencyConfig,
    MessageTraceConfig,
    ProducerConfig,
)
from rocketpy.consumer.config import ConsumeFrom, LitePullConfig, MemberConfig, MessageModel, PushConfig
from rocketpy.consumer.fetch import consumer_api, process_queue
from rocketpy.consumer.fetch import puller as pulling
from rocketpy.consumer.group import start_offsets
from rocketpy.consumer.handling import concurrent as consuming
from rocketpy.consumer.handling import orderly
from rocketpy.consumer.handling import send_back as sending_back
from rocketpy.producer import transaction
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message import compression
from rocketpy.protocol.remoting.frame import MAX_FRAME_BYTES
from rocketpy.transport import ChannelOptions

Row = tuple[Any, Any]
PRODUCER: Final = ProducerConfig()
PUSH: Final = PushConfig()

ROCKETMQ: Final[dict[str, Row]] = {
    # DefaultMQProducer
    "sendMsgTimeout": (PRODUCER.send_timeout_ms, 3000),
    "maxMessageSize": (PRODUCER.max_message_bytes, 4 * 1024 * 1024),
    "createTopicKey": (PRODUCER.default_topic, "TBW102"),
    "defaultTopicQueueNums": (PRODUCER.default_topic_queues, 4),
    "retryTimesWhenSendFailed": (PRODUCER.retry.times, 2),
    "retryAnotherBrokerWhenNotStoreOK": (PRODUCER.retry.another_broker_when_not_ok, False),
    "compressMsgBodyOverHowmuch": (CompressionConfig().above_bytes, 4096),
    "rocketmq.message.compressLevel": (CompressionConfig().level, 5),
    "compress: zlib": (CompressionConfig().type, "zlib"),
    "clientAsyncSemaphoreValue": (PRODUCER.max_in_flight, 65_535),
    "enableMsgTrace": (PRODUCER.message_trace, None),
    # DefaultMQProducerImpl.sendDefaultImpl
    "codes that are tried again": (
        PRODUCER.retry.codes,
        {
            ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
            ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
        },
    ),
    # MQFaultStrategy
    "sendLatencyFaultEnable": (LatencyConfig().enabled, False),
    "latencyMax": (LatencyConfig().latency_ms, (50, 100, 550, 1000, 2000, 3000, 15_000)),
    "notAvailableDuration": (
        LatencyConfig().not_available_ms,
        (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
    ),
    "latency of a failure": (LatencyConfig().failed_ms, 30_000),
    # AsyncTraceDispatcher
    "trace topic": (MessageTraceConfig().topic, "RMQ_SYS_TRACE_TOPIC"),
    "trace batch": (MessageTraceConfig().batch_count, 100),
    "trace wait": (MessageTraceConfig().linger_ms, 5),
    # ClientConfig
    "pollNameServerInterval": (ClientConfig().route_refresh_ms, 30_000),
    "heartbeatBrokerInterval": (ClientConfig().heartbeat_ms, 30_000),
    "mqClientApiTimeout": (ClientConfig().request_timeout_ms, 3000),
    "rocketmq.serialize.type": (ClientConfig().codec, "json"),
    "namespace": (ClientConfig().namespace, ""),
    "persistConsumerOffsetInterval": (MemberConfig().persist_interval_ms, 5000),
    # RebalanceService, ProcessQueue
    "rocketmq.client.rebalance.waitInterval": (MemberConfig().rebalance_interval_ms, 20_000),
    "rocketmq.client.rebalance.lockInterval": (process_queue.LOCK_INTERVAL_MS, 20_000),
    "rocketmq.client.rebalance.lockMaxLiveTime": (process_queue.LOCK_ALIVE_MS, 30_000),
    "timeout of a lock": (consumer_api._LOCK_TIMEOUT_MS, 1000),
    "timeout of an offset": (consumer_api._OFFSET_TIMEOUT_MS, 5000),
    # DefaultMQPushConsumer, DefaultMQPushConsumerImpl
    "messageModel": (PUSH.model, MessageModel.CLUSTERING),
    "consumeFromWhere": (PUSH.consume_from, ConsumeFrom.LAST_OFFSET),
    "consumeTimestamp, without one": (start_offsets.DEFAULT_TIMESTAMP_AGE_MS, 30 * 60_000),
    "consumeThreadMax": (PUSH.concurrency, 20),
    "consumeConcurrentlyMaxSpan": (PUSH.span_max, 2000),
    "pullThresholdForQueue": (PUSH.queue_messages_max, 1000),
    "pullThresholdSizeForQueue": (PUSH.queue_bytes_max, 100 << 20),
    "pullThresholdForTopic": (PUSH.topic_messages_max, None),
    "pullThresholdSizeForTopic": (PUSH.topic_bytes_max, None),
    "pullInterval": (PUSH.pull_interval_ms, 0),
    "consumeMessageBatchMaxSize": (PUSH.batch_size, 1),
    "postSubscriptionWhenPull": (PUSH.post_subscription, False),
    "unitMode": (PUSH.unit_mode, False),
    "maxReconsumeTimes": (PUSH.max_reconsume_times, -1),
    "maxReconsumeTimes, without one": (consuming._DEFAULT_MAX_RECONSUME_TIMES, 16),
    "suspendCurrentQueueTimeMillis": (PUSH.suspend_ms, 1000),
    "consumeTimeout": (PUSH.consume_timeout_ms, 15 * 60_000),
    "BROKER_SUSPEND_MAX_TIME_MILLIS": (PUSH.suspend_timeout_ms, 15_000),
    "CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND": (PUSH.pull_timeout_ms, 30_000),
    "pullTimeDelayMillsWhenException": (pulling._PAUSE_MAX_S, 3.0),
    "timeout of a send-back": (sending_back._TIMEOUT_MS, 5000),
    "first level of a retry": (sending_back._FIRST_RETRY_LEVEL, 3),
    "level of a message that took too long": (consuming._EXPIRED_LEVEL, 3),
    "orderly: lock failed": (orderly._LOCK_FAILED_S, 3.0),
    "orderly: not locked": (orderly._LOCK_AGAIN_S, 0.1),
    "consumeOrderly": (PUSH.orderly, False),
    # DefaultLitePullConsumer, DefaultMQPullConsumer
    "autoCommit": (LitePullConfig().auto_commit, True),
    "pollTimeoutMillis": (LitePullConfig().poll_timeout_ms, 5000),
    "consumerPullTimeoutMillis": (ConsumerConfig().pull_timeout_ms, 10_000),
    "brokerSuspendMaxTimeMillis": (ConsumerConfig().suspend_timeout_ms, 20_000),
    # NettyClientConfig, NettyDecoder
    "connectTimeoutMillis": (ClientConfig().channel.connect_timeout_ms, 3000),
    "clientChannelMaxIdleTimeSeconds": (ClientConfig().channel.idle_timeout_ms, 120_000),
    "com.rocketmq.remoting.frameMaxLength": (ClientConfig().channel.max_frame_bytes, 16_777_216),
}  # fmt: skip
"""Name of the setting in RocketMQ -> its name here, and the default of 4.6.0."""

OURS: Final[dict[str, Row]] = {
    "bodies compressed on a thread": (CompressionConfig().off_loop_above_bytes, 64 * 1024),
    "pause between attempts at an only broker": (PRODUCER.retry.pause_ms, 100),
    "bytes of a batch": (PRODUCER.batch.max_bytes, 1 << 20),
    "sends gathered into a batch": (PRODUCER.batch.max_gathered, 128),
    "wait for more sends": (PRODUCER.batch.linger_ms, 0),
    "bytes in flight": (PRODUCER.max_in_flight_bytes, 64 << 20),
    "close waits for sends": (PRODUCER.close_timeout_ms, 5000),
    "body checksum": (PRODUCER.body_checksum, ""),
    "batching": (PRODUCER.batching, True),
    "an inflated body": (ConsumerConfig().max_body_bytes, 16 << 20),
    "checksums are verified": (ConsumerConfig().verify_checksums, True),
    "pull without waiting": (ConsumerConfig().suspend, False),
    "a member's inflated body": (MemberConfig().max_body_bytes, 16 << 20),
    "a member verifies checksums": (MemberConfig().verify_checksums, True),
    "a member's close waits": (MemberConfig().close_timeout_ms, 10_000),
    "messages of a pull": (PUSH.pull_batch_size, 256),
    "messages of a poll": (LitePullConfig().poll_batch_size, 32),
    "handlers run in threads": (PUSH.threads, True),
    "compression level of all": (compression.DEFAULT_LEVEL, 5),
    "a body found by id or key inflated": (broker_api.MAX_BODY_BYTES, 16 << 20),
    "largest half message inflated": (transaction._MAX_BODY_BYTES, 16 << 20),
    "largest body inflated": (compression.MAX_INFLATED_BYTES, 16 << 20),
    "a body inflates to at most": (compression.MAX_RATIO, 100),
    "header of a response": (ClientConfig().channel.max_header_bytes, MAX_FRAME_BYTES),
    "writes are held above": (ChannelOptions().write_high_bytes, 1 << 20),
    "a peer that does not read is left above": (ChannelOptions().write_limit_bytes, 8 << 20),
    "requests without a response": (ChannelOptions().max_unanswered, 4096),
    "a frame takes at most": (ChannelOptions().frame_timeout_ms, 15_000),
    "connections of a server": (ChannelOptions().max_connections, 8192),
    "connections of a host": (ChannelOptions().max_connections_per_host, None),
    "UNREGISTER_CLIENT waits for": (heartbeats._UNREGISTER_TIMEOUT_MS, 1000),
    "admin requests": (queries.QUERY_TIMEOUT_MS, 6000),
}
"""Settings and times that RocketMQ's clients do not have, or that differ there."""


@pytest.mark.parametrize("name", ROCKETMQ)
def test_a_default_is_that_of_rocketmq(name: str) -> None:
    """A client would behave unlike the Java client that it replaces, with the same settings."""
    ours, theirs = ROCKETMQ[name]
    assert ours == theirs
    assert type(ours) is type(theirs) or isinstance(ours, frozenset)


@pytest.mark.parametrize("name", OURS)
def test_our_own_settings_keep_their_defaults(name: str) -> None:
    """A documented default would change by accident."""
    value, documented = OURS[name]
    assert value == documented
