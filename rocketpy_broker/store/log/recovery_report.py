"""What opening a store found and did."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

logger = logging.getLogger("rocketpy_broker.store.recovery_report")


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store found and did.

    clean: did it stop cleanly? scanned_from, end: part of the commit log that was read. records: in it.
    rebuilt: units added to consume queues. cut_bytes: bytes other than zeros dropped from the log's end.
    """

    clean: bool
    is_ours: bool = True
    """Whether rocketpy wrote the directory last, and has closed it before with checksums of its queues.

    False for a new directory, one that a Java broker wrote last, and one of a version without checksums.
    """
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    rebuilt: int = 0
    cut_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """One line for each thing an operator may want to know."""

    def note(self, text: str) -> None:
        """Add a line and log it."""
        self.notes.append(text)
        logger.warning("%s", text)
