"""Every metric of a broker. Metrics that RocketMQ 5 has, too, have its names.

Each has the labels cluster, node_id (the name of the broker) and those that are given here.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from rocketpy.telemetry.plugin import Metric

BROKER_LABELS: Final = ("cluster", "node_id")

_GROUP: Final = ("topic", "consumer_group")


def _metric(
    kind: Literal["counter", "gauge"], name: str, unit: str, description: str, *labels: str
) -> Metric:
    return Metric(f"rocketmq_{name}", kind, unit, description, (*BROKER_LABELS, *labels))


_counter = partial(_metric, "counter")
_gauge = partial(_metric, "gauge")

MESSAGES_IN: Final = _counter("messages_in_total", "{message}", "Messages stored in a topic", "topic")
BYTES_IN: Final = _counter("throughput_in_total", "By", "Bytes of the records stored")
MESSAGES_OUT: Final = _counter("messages_out_total", "{message}", "Messages delivered by pulls", *_GROUP)
BYTES_OUT: Final = _counter("throughput_out_total", "By", "Bytes of the records delivered by pulls", *_GROUP)
SENT_BACK: Final = _counter(
    "messages_sent_back_total", "{message}", "Messages that consumers sent back", *_GROUP
)
PULLS_FOUND: Final = _counter("pulls_found_total", "{pull}", "Reads of a queue that found messages")
PULLS_MISSED: Final = _counter("pulls_missed_total", "{pull}", "Reads of a queue that found none")
PULLS_HELD: Final = _gauge("pulls_held", "{pull}", "Pulls that wait for messages")
PUT_TIMES: Final = _counter(
    "put_within_milliseconds_total", "{message}", "Messages that were written within this time", "le"
)
PUT_MAX: Final = _gauge("put_milliseconds_max", "ms", "The longest write since the start")
LAG_MESSAGES: Final = _gauge(
    "consumer_lag_messages", "{message}", "Messages that a group has not committed", *_GROUP
)
LAG_LATENCY: Final = _gauge(
    "consumer_lag_latency", "ms", "Age of the oldest message that a group has not committed", *_GROUP
)
QUEUE_MESSAGES: Final = _gauge("topic_messages", "{message}", "Messages in the queues of a topic", "topic")
DELAYED: Final = _gauge(
    "delayed_messages", "{message}", "Delayed messages that are not delivered yet; 0 on slaves", "level"
)
TIMED: Final = _gauge(
    "timed_messages", "{message}", "Messages with a due time that are not delivered yet; 0 on slaves"
)
TIMED_LATE: Final = _gauge(
    "timed_messages_late_seconds", "s", "For how long a message with a due time has been due; 0 if none is"
)
HALF: Final = _gauge(
    "half_messages", "{message}", "Transactional messages without a commit or rollback; 0 on slaves"
)
CONNECTIONS: Final = _gauge("connections", "{connection}", "Open connections")
CONNECTION_BYTES: Final = _gauge(
    "connections_memory",
    "By",
    "Memory of connections: frame (received parts), requests (not handled yet), responses (unsent), "
    "pulls (held), subscriptions, waiting (sends to new topics)",
    "kind",
)
CONNECTION_REFUSALS: Final = _counter(
    "connections_memory_refusals_total",
    "{refusal}",
    "Requests rejected and connections closed because of maxConnectionBytes or maxTotalBytes",
)
PRODUCERS: Final = _gauge("producer_connections", "{connection}", "Producers of a group", "producer_group")
CONSUMERS: Final = _gauge("consumer_connections", "{connection}", "Consumers of a group", "consumer_group")
CONSUMER_CONFLICTS: Final = _gauge(
    "consumer_group_conflicts",
    "1",
    "1 for each setting in which the members of a group differ: subscriptions, message_model, consume_type, "
    "consume_from_where, or client_id if several clients have one",
    "consumer_group",
    "setting",
)
STORAGE_BYTES: Final = _gauge("storage_size", "By", "Bytes in the commit log")
FLUSH_BEHIND: Final = _gauge("storage_flush_behind_bytes", "By", "Bytes written that are not flushed")
FLUSHES: Final = _counter("storage_flushes_total", "{flush}", "Flushes of the commit log")
FLUSH_SECONDS: Final = _counter("storage_flush_seconds_total", "s", "Time that flushes took")
FLUSH_MAX: Final = _gauge("storage_flush_seconds_max", "s", "The longest flush since the start")
DISPATCH_BEHIND: Final = _gauge(
    "storage_dispatch_behind_bytes", "By", "Bytes written that are in no queue yet"
)
DISPATCH_WAITING: Final = _gauge(
    "storage_dispatch_waiting", "{message}", "Records written that are in no queue yet"
)
DAMAGED_READS: Final = _counter(
    "storage_damaged_reads_total",
    "{read}",
    "Reads that failed because of a damaged record, or a damaged unit of a consume queue",
)
FORCED_DELETIONS: Final = _counter(
    "storage_unexpired_messages_deleted_total",
    "{message}",
    "Messages deleted before fileReservedTime because the disk was nearly full (cleanFileForciblyEnable)",
)
RESERVE_TIME: Final = _gauge(
    "storage_message_reserve_time", "ms", "Age of the oldest message in the commit log"
)
IN_FLIGHT: Final = _gauge(
    "consumer_inflight_messages", "{message}", "Popped messages that are not acknowledged", *_GROUP
)
POPS_HELD: Final = _gauge("pops_held", "{request}", "Pops that wait for messages")
REVIVED: Final = _counter(
    "pop_revived_messages_total",
    "{message}",
    "Messages delivered again after the end of their invisible time",
)
REVIVE_LATE: Final = _gauge(
    "pop_revive_late_seconds", "s", "For how long a message waits to be delivered again"
)
SLAVES: Final = _gauge("slaves", "{connection}", "Slaves that are connected")
SLAVE_LAG: Final = _gauge(
    "slave_lag_bytes", "By", "Bytes of the commit log that a slave does not have", "slave"
)
SLAVE_STATE: Final = _gauge(
    "slave_state",
    "1",
    "1 for the state of a slave: waits, connects, copies, refused (an operator is needed)",
    "state",
)
MISSING_REPLICAS: Final = _gauge(
    "replicas_missing",
    "{replica}",
    "1 for a SYNC_MASTER without a slave that keeps up; on a DLedger leader, peers that do not respond",
)
LESS_DURABLE: Final = _counter(
    "messages_less_durable_total",
    "{message}",
    "Messages that were stored, but not flushed or replicated as configured, by the status of the response",
    "status",
)
DLEDGER_TERM: Final = _gauge("dledger_term", "{term}", "Term of the broker's DLedger group")
DLEDGER_ROLE: Final = _gauge(
    "dledger_role", "1", "1 for the role of the broker in its group: leader, follower, candidate", "role"
)
DLEDGER_CHANGES: Final = _counter("dledger_leader_changes_total", "{change}", "Changes of the leader")
DLEDGER_UNCOMMITTED: Final = _gauge(
    "dledger_uncommitted_entries", "{entry}", "Entries that are not committed"
)
DLEDGER_LAG: Final = _gauge(
    "dledger_peer_lag_entries", "{entry}", "Entries that a peer lacks, according to the leader", "peer"
)
DLEDGER_LAG_SECONDS: Final = _gauge(
    "dledger_peer_lag_seconds", "s", "For how long a peer has lacked entries, according to the leader", "peer"
)
DISK_USED: Final = _gauge("disk_used_ratio", "1", "Used share of the store's disk")
DISK_FREE: Final = _gauge("disk_free_bytes", "By", "Bytes free on the store's disk")
PERMISSION: Final = _gauge("broker_permission", "1", "brokerPermission: 4 read, 2 write")
SERVING: Final = _gauge(
    "broker_serving", "1", "1 while the broker handles requests without a failure or full disk, else 0"
)
STALLED: Final = _gauge(
    "broker_stalled_jobs", "{job}", "Flushes, saves, deletions, copies and periodic calls that do not succeed"
)
NAME_SERVERS: Final = _gauge("broker_name_servers", "{server}", "Name servers that know the broker")
BOOTED: Final = _gauge("broker_start_time_seconds", "s", "Start time of the broker, since 1970")

CATALOG: Final = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
