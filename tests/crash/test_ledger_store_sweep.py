"""Crashes of a store on a ledger must not lose messages, show uncommitted ones, or prevent a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from rocketpy.errors import RocketError
from rocketpy_broker.replication.dledger.ledger_log import LedgerLog
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.replication.dledger.storage.entry_records import EntryRecordScan
from rocketpy_broker.store.files.checkpoint import Checkpoint
from tests.crash.ledger_store_sweep import sweep


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_store_on_a_ledger_survives_crashes(seed: int) -> None:
    """Messages that consumers read would be missing after a restart, or return with another content."""
    result = sweep(seed, stride=11)
    assert result.recoveries > 10
    assert not result.failures, "\n".join(result.failures)


def shows_all_entries() -> Any:
    """A restart treats all existing entries as committed."""
    original = LedgerLog.classify_files

    def classify_files(self: LedgerLog, checkpoint: Checkpoint) -> None:
        original(self, checkpoint)
        self.committed_index = self._ledger.end_index

    return patch.object(LedgerLog, "classify_files", classify_files)


def keeps_numbers_of_the_last_lead() -> Any:
    """Messages that could not be committed leave holes in the queues."""

    def lead(self: LedgerStore, appender: Any) -> None:
        self.log.set_appender(appender)

    return patch.object(LedgerStore, "become_leader", lead)


def scans_the_ledger_alone() -> Any:
    """Queues of a store that began without a ledger lose the messages of the old commit log."""
    return patch.object(EntryRecordScan, "_scan_old", lambda self: iter(()))


@pytest.mark.planted
@pytest.mark.parametrize(
    "defect", [shows_all_entries, keeps_numbers_of_the_last_lead, scans_the_ledger_alone]
)
def test_planted_defects_are_caught(defect: Callable[[], Any]) -> None:
    """A sweep that does not detect a defective store proves nothing about a correct one."""
    with defect():
        assert any(_fails(seed) for seed in range(1, 10))


def _fails(seed: int) -> bool:
    try:
        return bool(sweep(seed, stride=3).failures)
    except (RocketError, AssertionError):
        return True
