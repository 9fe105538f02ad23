"""Faults of the pytest plugin, without a pytest session."""

from __future__ import annotations

from pathlib import Path

from pytest_rocketpy.faults import BUSY, Faults, apply_rejections
from rocketpy_broker.store import MessageStore, StoreConfig
from rocketpy_broker.store.busy import Reason


def test_the_checks_of_a_store_do_not_end_a_fault(tmp_path: Path) -> None:
    """A message that waits while its topic is created would be stored in spite of the fault."""
    faults, store = Faults(rejections={Reason.BUSY: BUSY}), MessageStore(StoreConfig(root=tmp_path))
    apply_rejections(faults, store)
    assert store.rejection(Reason.BUSY) is BUSY
    store.reject(Reason.BUSY, None)
    assert store.rejection(Reason.BUSY) is BUSY
    del faults.rejections[Reason.BUSY]
    store.reject(Reason.BUSY, None)
    assert store.rejection(Reason.BUSY) is None
