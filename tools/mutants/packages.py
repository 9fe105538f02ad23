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
}
SAMPLE = ("send", "consume", "store", "replication", "handlers", "security", "spark")
"""The packages whose mutants are tried by the name "sample", each with the same share."""
