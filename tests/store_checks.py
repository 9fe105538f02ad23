"""Checks an open store with the functions for the files of a stopped one."""

from __future__ import annotations

from rocketpy.errors import StoreError
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.inspect.checker import CheckReport, check_log


def check_store(store: MessageStore) -> CheckReport:
    """Check an open store whose records are all dispatched. Reads it whole; memory grows with its records.

    Raises StoreError when records wait for dispatch, or when the disk fails.
    """
    if store.dispatcher.waiting:
        raise StoreError(f"{store.dispatcher.waiting} records wait for dispatch; dispatch or stop first")
    report = CheckReport()
    log = store.commit_log
    index = None if store.index is None else store.index.files
    scan = log.scan(log.min_offset, log.max_offset, check_crc=True, bulk=None)
    check_log(scan, log.files, store.queues.queues, index, store.dispatcher.delays_ms, report)
    if scan.end != store.max_physical_offset:
        reason = scan.stop.reason if scan.stop is not None else "zeros"
        report.add(f"commit log: readable to {scan.end}, ends at {store.max_physical_offset}: {reason}")
    return report
