"""Defects of the ledger's files, each without one rule: the sweep must detect each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from rocketpy.errors import StoreError
from rocketpy_broker.replication.dledger.storage.entry_scan import EntryScan
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.replication.dledger.storage.recovery import LedgerRecovery
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.log_scan import LogTail
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

Defect = Callable[[], AbstractContextManager[Any]]
_truncate, _save_checkpoint = MappedFileQueue.truncate, LedgerFiles._save_checkpoint
_plan_flush, _run, _problem_of = LedgerFiles.plan_flush, FlushPlan.run, EntryScan._problem_of


def _wipe_nothing(self: MappedFileQueue, offset: int, *, erase: bool = True) -> int:
    return _truncate(self, offset, erase=False)


def _cut_without_flush(self: LedgerFiles, end: int, index: int) -> None:
    if self._tail.offset >= end:
        self._tail = LogTail(self.data.min_offset)
    self._save_checkpoint(end, log_end=end)
    self.data.delete_preallocated()
    self.data.truncate(end)
    self.index.truncate((index + 1) * 32)
    self._reader.forget(index)
    self._save_checkpoint(end, log_end=-1)


def _checkpoint_without_end(self: LedgerFiles, end: int, *, log_end: int) -> None:
    _save_checkpoint(self, end, log_end=-1)


def _keep_checkpoint(self: LedgerFiles, end: int, *, log_end: int) -> None:
    """Counts truncated entries as flushed."""


def _undo_nothing(self: LedgerFiles, end: int) -> None:
    self._reader.forget(self.end_index)


def _flush_the_index_only(self: LedgerFiles, *, thorough: bool = False) -> FlushPlan:
    plan = _plan_flush(self, thorough=thorough)
    plan.targets = [target for target in plan.targets if target.file not in self.data.mapped_files]
    return plan


def _swallow(self: FlushPlan, disk: Any, checkpoint_file: Any) -> None:
    with contextlib.suppress(StoreError):
        _run(self, disk, checkpoint_file)


def _accept_any_order(self: EntryScan, found: Any, room: int) -> str:
    self.last = None
    return _problem_of(self, found, room)


def _end_where_it_ends(self: LedgerRecovery, *_: Any) -> None:
    """Drops everything after damage, like DLedger 0.1."""


def _replaced(owner: type, name: str, value: Any) -> Defect:
    return lambda: patch.object(owner, name, value)


DEFECTS: dict[str, Defect] = {
    "cut_wipes_nothing": _replaced(MappedFileQueue, "truncate", _wipe_nothing),
    "cut_is_not_flushed": _replaced(LedgerFiles, "_truncate", _cut_without_flush),
    "checkpoint_lacks_the_cut": _replaced(LedgerFiles, "_save_checkpoint", _checkpoint_without_end),
    "checkpoint_stays_when_cut": _replaced(LedgerFiles, "_save_checkpoint", _keep_checkpoint),
    "failed_append_is_not_undone": _replaced(LedgerFiles, "_roll_back", _undo_nothing),
    "data_are_not_flushed": _replaced(LedgerFiles, "plan_flush", _flush_the_index_only),
    "failed_flush_is_swallowed": _replaced(FlushPlan, "run", _swallow),
    "any_order_is_accepted": _replaced(EntryScan, "_problem_of", _accept_any_order),
    "damage_is_cut": _replaced(LedgerRecovery, "_check_end", _end_where_it_ends),
    "torn_tail_is_kept": _replaced(MappedFileQueue, "truncate", lambda *_, **__: 0),
}
