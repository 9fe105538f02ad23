"""Every metric of a broker. Names are those of RocketMQ 5's metrics where it has the same one.

Each has the labels cluster, node_id (the broker's name) and, at the end, those named here.
"""

from __future__ import annotations

from typing import Final, Literal

from rocketpy.telemetry.plugin import Metric

BROKER_LABELS: Final = ("cluster", "node_id")

_TOPIC: Final = ("topic",)
_GROUP: Final = ("topic", "consumer_group")


def _metric(
    name: str, kind: Literal["counter", "gauge"], unit: str, description: str, labels: tuple[str, ...] = ()
) -> Metric:
    return Metric(f"rocketmq_{name}", kind, unit, description, (*BROKER_LABELS, *labels))


MESSAGES_IN: Final = _metric(
    "messages_in_total", "counter", "{message}", "Messages stored in a topic", _TOPIC
)
BYTES_IN: Final = _metric("throughput_in_total", "counter", "By", "Bytes of the records stored")
MESSAGES_OUT: Final = _metric(
    "messages_out_total", "counter", "{message}", "Messages that pulls took away", _GROUP
)
BYTES_OUT: Final = _metric(
    "throughput_out_total", "counter", "By", "Bytes of the records that pulls took away", _GROUP
)
SENT_BACK: Final = _metric(
    "messages_sent_back_total", "counter", "{message}", "Messages that consumers could not use", _GROUP
)
PULLS_FOUND: Final = _metric("pulls_found_total", "counter", "{pull}", "Reads of a queue that found messages")
PULLS_MISSED: Final = _metric("pulls_missed_total", "counter", "{pull}", "Reads of a queue that found none")
PULLS_HELD: Final = _metric("pulls_held", "gauge", "{pull}", "Pulls that wait for messages now")
PUT_TIMES: Final = _metric(
    "put_within_milliseconds_total",
    "counter",
    "{message}",
    "Messages whose write took at most so long",
    ("le",),
)
PUT_MAX: Final = _metric("put_milliseconds_max", "gauge", "ms", "The longest write since the start")
LAG_MESSAGES: Final = _metric(
    "consumer_lag_messages", "gauge", "{message}", "Messages a group has not committed yet", _GROUP
)
LAG_LATENCY: Final = _metric(
    "consumer_lag_latency", "gauge", "ms", "Age of the oldest message that a group has not committed", _GROUP
)
QUEUE_MESSAGES: Final = _metric(
    "topic_messages", "gauge", "{message}", "Messages in the queues of a topic", _TOPIC
)
DELAYED: Final = _metric(
    "delayed_messages", "gauge", "{message}", "Messages that wait for their time", ("level",)
)
HALF: Final = _metric(
    "half_messages", "gauge", "{message}", "Transactional messages whose end is not known yet"
)
CONNECTIONS: Final = _metric("connections", "gauge", "{connection}", "Open connections")
CONNECTION_BYTES: Final = _metric(
    "connections_memory",
    "gauge",
    "By",
    "Bytes kept for connections: frame (received parts), requests (not handled yet), answers (unsent), "
    "pulls (held), subscriptions, waiting (sends to new topics)",
    ("kind",),
)
CONNECTION_REFUSALS: Final = _metric(
    "connections_memory_refusals_total",
    "counter",
    "{refusal}",
    "Requests refused and connections closed because of maxConnectionBytes or maxTotalBytes",
)
PRODUCERS: Final = _metric(
    "producer_connections", "gauge", "{connection}", "Producers of a group", ("producer_group",)
)
CONSUMERS: Final = _metric(
    "consumer_connections", "gauge", "{connection}", "Consumers of a group", ("consumer_group",)
)
STORAGE_BYTES: Final = _metric("storage_size", "gauge", "By", "Bytes in the commit log")
FLUSH_BEHIND: Final = _metric(
    "storage_flush_behind_bytes", "gauge", "By", "Bytes written that are not flushed"
)
FLUSHES: Final = _metric("storage_flushes_total", "counter", "{flush}", "Flushes of the commit log")
FLUSH_SECONDS: Final = _metric("storage_flush_seconds_total", "counter", "s", "Time that flushes took")
FLUSH_MAX: Final = _metric("storage_flush_seconds_max", "gauge", "s", "The longest flush since the start")
DISPATCH_BEHIND: Final = _metric(
    "storage_dispatch_behind_bytes", "gauge", "By", "Bytes written that are in no queue yet"
)
DISPATCH_WAITING: Final = _metric(
    "storage_dispatch_waiting", "gauge", "{message}", "Records written that are in no queue yet"
)
FORCED_DELETIONS: Final = _metric(
    "storage_unexpired_messages_deleted_total",
    "counter",
    "{message}",
    "Messages deleted before fileReservedTime because the disk was nearly full (cleanFileForciblyEnable)",
)
RESERVE_TIME: Final = _metric(
    "storage_message_reserve_time", "gauge", "ms", "Age of the oldest message in the commit log"
)
SLAVES: Final = _metric("slaves", "gauge", "{connection}", "Slaves that are connected")
SLAVE_LAG: Final = _metric(
    "slave_lag_bytes", "gauge", "By", "Bytes of the commit log that a slave does not have", ("slave",)
)
SLAVE_STATE: Final = _metric(
    "slave_state",
    "gauge",
    "1",
    "1 for what a slave is doing: waits, connects, copies, refused (an operator is needed)",
    ("state",),
)
DLEDGER_TERM: Final = _metric("dledger_term", "gauge", "{term}", "Term of the broker's DLedger group")
DLEDGER_ROLE: Final = _metric(
    "dledger_role",
    "gauge",
    "1",
    "1 for what the broker is in its group: leader, follower, candidate",
    ("role",),
)
DLEDGER_CHANGES: Final = _metric(
    "dledger_leader_changes_total", "counter", "{change}", "How often another peer began to lead"
)
DLEDGER_UNCOMMITTED: Final = _metric(
    "dledger_uncommitted_entries", "gauge", "{entry}", "Entries that no majority has, as far as is known"
)
DLEDGER_LAG: Final = _metric(
    "dledger_peer_lag_entries", "gauge", "{entry}", "Entries that a peer lacks, told by the leader", ("peer",)
)
DISK_USED: Final = _metric("disk_used_ratio", "gauge", "1", "Share of the store's disk that is used")
DISK_FREE: Final = _metric("disk_free_bytes", "gauge", "By", "Bytes free on the store's disk")
PERMISSION: Final = _metric("broker_permission", "gauge", "1", "brokerPermission: 4 read, 2 write")
SERVING: Final = _metric("broker_serving", "gauge", "1", "1 while the broker takes messages, else 0")
NAME_SERVERS: Final = _metric("broker_name_servers", "gauge", "{server}", "Name servers that know the broker")
BOOTED: Final = _metric("broker_start_time_seconds", "gauge", "s", "When it was started, since 1970")

CATALOG: Final = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
