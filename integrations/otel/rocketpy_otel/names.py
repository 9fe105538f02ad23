"""Names of span attributes and metrics, from the messaging conventions of OpenTelemetry.

The conventions are still in development upstream; apply their changes here.
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
"""Status of a stored message if it is not SEND_OK; not in the conventions."""
OUTCOME: Final = "rocketpy.outcome"
"""Whether the message of a failed send may be stored; not in the conventions."""

TRANSACTION_STATE: Final = "rocketpy.transaction.state"
"""How a local transaction ended; not in the conventions."""
TRANSACTION_ASKED: Final = "rocketpy.transaction.asked"
"""Whether the end was sent in response to a broker's check; not in the conventions."""

EVENT_RETRY: Final = "retry"
"""Name of the event of a failed attempt. Its attributes are the error, and for a send also the queue."""

OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"

CLIENT_FAILURES: Final = "rocketpy.client.failures"
"""Bugs that ended background work; not in the conventions."""
CLIENT: Final = "rocketpy.client"
"""The producer or consumer that failed; not in the conventions."""

DURATION_BOUNDARIES: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Bucket boundaries of the histograms, in seconds."""
