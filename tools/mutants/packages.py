"""The packages that are sampled, and the tests of each."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache/mutants"


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a short hash of these files, and of the Python files below these folders."""
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


class Package(NamedTuple):
    """A folder whose mutants are sampled, and paths of the tests that should fail with them."""

    source: Path
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Options of pytest that choose these tests."""


_WITHOUT_SESSION = (
    "not (topics_and_queues or stream or its_times or partitions or prefix or left_out or fail_at_load or "
    "few_messages)"
)
"""Tests of Spark's tasks that start no Spark session."""
PACKAGES = {
    "store": Package(
        ROOT / "rocketpy_broker/store",
        (
            "tests/unit/store",
            "tests/unit/services/test_delay_queues.py",
            "tests/unit/config/test_defaults.py",
            "tests/property/test_hostile_bytes.py",
            "tests/integration/store/test_golden.py",
            "tests/integration/store/test_model.py",
            "tests/integration/store/test_recovery.py",
            "tests/integration/store/test_store_faults.py",
        ),
    ),
    "ha": Package(
        ROOT / "rocketpy_broker/replication/ha",
        (
            "tests/unit/replication/ha",
            "tests/unit/config/test_defaults.py",
            "tests/property/test_hostile_bytes.py",
            "tests/integration/replication/test_ha.py",
            "tests/integration/replication/test_ha_status.py",
            "tests/sim/test_ha.py",
        ),
    ),
    "dledger": Package(
        ROOT / "rocketpy_broker/replication/dledger",
        (
            "tests/unit/replication/dledger",
            "tests/unit/config/test_defaults.py",
            "tests/property/test_hostile_bytes.py",
            "tests/sim/test_raft.py",
            "tests/integration/replication/test_raft_peers.py",
            "tests/integration/replication/test_ledger_brokers.py",
            "tests/integration/replication/test_ledger_directories.py",
        ),
    ),
    "producer": Package(
        ROOT / "rocketpy/producer",
        (
            "tests/unit/producer",
            "tests/unit/client",
            "tests/integration/client/test_client_life.py",
            "tests/integration/producer/test_producer.py",
            "tests/integration/producer/test_batching.py",
            "tests/integration/producer/test_requests.py",
            "tests/integration/client/test_failures.py",
            "tests/integration/client/test_hooks.py",
            "tests/integration/client/test_misuse.py",
            "tests/integration/producer/test_slow_broker.py",
            "tests/integration/client/test_error_texts.py",
            "tests/integration/security/test_acl.py",
            "tests/integration/client/test_message_trace.py",
            "tests/otel/test_sending.py",
        ),
    ),
    "protocol": Package(
        ROOT / "rocketpy/protocol",
        ("tests/unit/protocol", "tests/property", "tests/unit/message/test_message.py"),
    ),
    "send": Package(
        ROOT / "rocketpy/producer/send",
        (
            "tests/unit/producer",
            "tests/integration/producer/test_producer.py",
            "tests/integration/producer/test_batching.py",
            "tests/integration/producer/test_bursts.py",
            "tests/integration/producer/test_send_status.py",
            "tests/integration/producer/test_slow_broker.py",
            "tests/integration/producer/test_timers.py",
            "tests/integration/client/test_client_life.py",
            "tests/integration/client/test_failures.py",
            "tests/integration/client/test_hooks.py",
            "tests/integration/client/test_misuse.py",
        ),
    ),
    "consume": Package(
        ROOT / "rocketpy/consumer",
        (
            "tests/unit/consumer",
            "tests/integration/consumer",
            "tests/integration/client/test_application_code.py",
            "tests/integration/client/test_client_life.py",
            "tests/integration/client/test_failures.py",
            "tests/integration/client/test_misuse.py",
        ),
    ),
    "replication": Package(
        ROOT / "rocketpy_broker/replication",
        (
            "tests/unit/replication",
            "tests/sim",
            "tests/property/test_hostile_bytes.py",
            "tests/integration/replication/test_ha.py",
            "tests/integration/replication/test_ha_status.py",
            "tests/integration/replication/test_missing_replicas.py",
            "tests/integration/replication/test_raft_peers.py",
            "tests/integration/replication/test_ledger_brokers.py",
            "tests/integration/replication/test_ledger_directories.py",
            "tests/integration/replication/test_peer_tasks.py",
            "tests/integration/security/test_raft_secret.py",
        ),
    ),
    "handlers": Package(
        ROOT / "rocketpy_broker/handlers",
        (
            "tests/unit/handlers",
            "tests/unit/broker",
            "tests/integration/broker",
            "tests/integration/consumer/test_group_conflicts.py",
            "tests/integration/security/test_access_attacks.py",
            "tests/integration/security/test_access_table.py",
            "tests/integration/producer/test_timers.py",
            "tests/integration/producer/test_requests.py",
            "tests/integration/server/test_live_config.py",
        ),
    ),
    "security": Package(
        ROOT / "rocketpy_broker/security",
        ("tests/unit/security", "tests/unit/handlers/test_access_handler.py", "tests/integration/security"),
    ),
    "spark": Package(
        ROOT / "integrations/spark/pyspark_rocketmq",
        (
            "tests/spark/test_task.py",
            "tests/spark/test_record_arrays.py",
            "tests/spark/test_source_options.py",
        ),
        (
            "-m",
            "spark",
            "-k",
            _WITHOUT_SESSION,
        ),
    ),
    "services": Package(
        ROOT / "rocketpy_broker/services",
        (
            "tests/unit/services",
            "tests/unit/broker",
            "tests/unit/handlers",
            "tests/integration/broker/test_broker.py",
            "tests/integration/broker/test_busy.py",
            "tests/integration/broker/test_deferred.py",
            "tests/integration/broker/test_lost_queues.py",
            "tests/integration/broker/test_tables.py",
            "tests/integration/consumer/test_orderly.py",
            "tests/integration/namesrv/test_topic_announcements.py",
            "tests/integration/producer/test_producer.py",
            "tests/integration/replication/test_ha.py",
            "tests/integration/replication/test_ha_status.py",
            "tests/integration/server/test_live_config.py",
            "tests/integration/server/test_lost_state.py",
            "tests/integration/server/test_server_tasks.py",
            "tests/otel/test_broker_metrics.py",
        ),
    ),
    "namesrv": Package(
        ROOT / "rocketpy_broker/namesrv",
        (
            "tests/unit/namesrv",
            "tests/unit/security/test_allowed_callers.py",
            "tests/integration/namesrv",
            "tests/integration/client/admin/test_name_servers.py",
            "tests/integration/server/test_server_tasks.py",
            "tests/integration/server/test_live_config.py",
        ),
    ),
    "transport": Package(
        ROOT / "rocketpy/transport",
        (
            "tests/unit/transport",
            "tests/unit/config/test_file.py",
            "tests/integration/broker/test_channel_turns.py",
            "tests/integration/client/test_client_life.py",
            "tests/integration/client/test_connections.py",
            "tests/integration/client/test_failures.py",
            "tests/integration/client/test_stalled_clients.py",
            "tests/integration/client/test_wrong_responses.py",
            "tests/integration/namesrv/test_bounds.py",
            "tests/integration/security/test_tls.py",
            "tests/integration/server/test_memory_bounds.py",
            "tests/integration/server/test_transports.py",
        ),
    ),
    "client": Package(
        ROOT / "rocketpy/client",
        (
            "tests/unit/client",
            "tests/integration/client",
            "tests/integration/consumer/test_group_conflicts.py",
            "tests/integration/producer/test_producer.py",
            "tests/integration/server/test_embedded.py",
        ),
    ),
    "admin": Package(
        ROOT / "rocketpy/admin",
        (
            "tests/integration/client/admin",
            "tests/integration/client/test_message_trace.py",
            "tests/integration/consumer/test_dead_letters.py",
            "tests/integration/consumer/test_group_conflicts.py",
            "tests/integration/broker/test_lost_queues.py",
            "tests/integration/server/test_drain.py",
            "tests/unit/client/test_traces.py",
        ),
    ),
    "cli": Package(
        ROOT / "integrations/cli/rocketpy_cli",
        ("tests/unit/cli", "tests/integration/cli", "tests/integration/console"),
    ),
    "broker": Package(
        ROOT / "rocketpy_broker/broker",
        (
            "tests/unit/broker",
            "tests/unit/handlers/test_handler_table.py",
            "tests/integration/broker",
            "tests/integration/replication/test_ha.py",
            "tests/integration/replication/test_ledger_brokers.py",
            "tests/integration/replication/test_ledger_directories.py",
            "tests/integration/server/test_drain.py",
            "tests/integration/server/test_embedded.py",
            "tests/integration/server/test_live_config.py",
            "tests/integration/server/test_open_files.py",
            "tests/integration/server/test_probes.py",
            "tests/integration/server/test_server_tasks.py",
        ),
    ),
    "metrics": Package(
        ROOT / "rocketpy_broker/metrics",
        (
            "tests/otel/test_broker_metrics.py",
            "tests/otel/test_broker_spans.py",
            "tests/otel/test_reference.py",
            "tests/integration/consumer/test_group_conflicts.py",
            "tests/integration/replication/test_missing_replicas.py",
            "tests/integration/server/test_probes.py",
            "tests/integration/server/test_server_tasks.py",
        ),
    ),
}
SAMPLE = (
    "send",
    "consume",
    "store",
    "replication",
    "handlers",
    "security",
    "spark",
    "services",
    "namesrv",
    "transport",
    "client",
    "admin",
    "cli",
    "broker",
    "metrics",
)
"""The packages whose mutants are tried by the name "sample", each with the same share."""
