"""Tells a commit log's torn tail, which is cut, from damage, which is refused; see `recovery`."""

from __future__ import annotations

from rocketpy.errors import StoreDamaged
from rocketpy_broker.store.config import RecoveryConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.log.log_scan import find_record, has_lost_sector
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.log.message_log import RecordScan
from rocketpy_broker.store.log.recovery_report import RecoveryReport


def check_end(
    files: MappedFileQueue,
    scan: RecordScan,
    checkpoint: Checkpoint,
    config: RecoveryConfig,
    report: RecoveryReport,
) -> None:
    """Refuse an end that is damage rather than a torn tail. Raises StoreDamaged."""
    follower = find_record(files, scan.end)
    is_ours = checkpoint.flushed_offset >= 0
    if follower is not None and not is_ours and follower.store_timestamp < scan.last_store_timestamp:
        follower = None  # left over from an earlier, longer log: 4.6.0 cuts without wiping
    problem = ""
    if 0 <= scan.end < checkpoint.flushed_offset:
        problem = f"the log was flushed up to {checkpoint.flushed_offset}"
    elif follower is not None and not (
        is_ours and has_lost_sector(files, scan.end, follower.physical_offset)
    ):
        problem = f"a valid record follows at {follower.physical_offset}"
    reason = scan.stop.reason if scan.stop is not None else "there are only zeros"
    if problem and not config.cut_damage:
        raise StoreDamaged(
            f"the commit log in {files.directory} is damaged at {scan.end}: {reason}, but "
            f"{problem}. Restore the file from a replica or a copy; or set cut_damage and lose the rest"
        )
    if problem:
        report.note(f"damage at {scan.end} ({reason}, but {problem}) is cut off as configured")
    elif follower is not None:
        report.note(f"unflushed records behind {scan.end} are lost: {reason}")
    elif scan.stop is not None:
        report.note(f"torn tail at {scan.end}: {reason}")


def cut(files: MappedFileQueue, end: int, report: RecoveryReport) -> None:
    """Cut the log's files at `end`, and delete those that are none of the log's. Raises StoreError."""
    report.cut_bytes = files.truncate(end)
    if strays := files.drop_strays():
        report.note(f"{strays} files are deleted that power loss left: expired ones, or unflushed ones")
    if report.cut_bytes:
        report.note(f"{report.cut_bytes} bytes behind {end} are wiped from the commit log")
