"""Names of spans' attributes and of metrics: the messaging conventions of OpenTelemetry, in one table.

They are still in development upstream, so whoever follows a change follows it here.
"""

from typing import Final

SYSTEM: Final = "messaging.system"
SYSTEM_ROCKETMQ: Final = "rocketmq"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
"""``{broker}/{queue id}``: queue ids repeat across brokers."""
MESSAGE_ID: Final = "messaging.message.id"
BODY_BYTES: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
NAMESPACE: Final = "messaging.rocketmq.namespace"
CONSUMPTION_MODEL: Final = "messaging.rocketmq.consumption_model"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIME: Final = "messaging.rocketmq.message.delivery_timestamp"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
PEER_ADDRESS: Final = "network.peer.address"
PEER_PORT: Final = "network.peer.port"
ERROR_TYPE: Final = "error.type"
SEND_STATUS: Final = "rocketpy.send_status"
"""Of a message that was stored with less than SEND_OK; no convention has a name for that."""
OUTCOME: Final = "rocketpy.outcome"
"""Of a send that failed: whether the message may be stored all the same; no convention has one."""

TRANSACTION_STATE: Final = "rocketpy.transaction.state"
"""How a local transaction ended; no convention has one."""
TRANSACTION_ASKED: Final = "rocketpy.transaction.asked"
"""Whether a broker had asked how it ended; no convention has one."""

EVENT_RETRY: Final = "retry"
"""A failed attempt of a send or of a nack, with its error, and of a send the queue it went to."""

OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"

CLIENT_FAILURES: Final = "rocketpy.client.failures"
"""Bugs that ended background work; no convention has a metric for that."""
CLIENT: Final = "rocketpy.client"
"""Which producer or consumer that was; no convention has a name for it."""

DURATION_BOUNDARIES: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Seconds."""
