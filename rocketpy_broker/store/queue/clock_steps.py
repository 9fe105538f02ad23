"""The places in the log where store times go back, because the clock of its broker was set back.

Between two of them times increase, so a search by time can halve each part. The list is in the file
`clocksteps`; it is empty as long as no clock is set back. A log that was written before, or by RocketMQ, has
no such list: its times are taken as increasing, as in RocketMQ.
Source: none.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import StoreError
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.files.state_file import load_state, save_state
from rocketpy_broker.store.queue.log_fields import LogFields

logger = logging.getLogger("rocketpy_broker.store.clock_steps")

_SAVED_MS: Final = 1000
"""A smaller step is saved with the next larger one, or at the stop: some clocks go back often."""
_STEPS_MAX: Final = 4096

ClockStep = tuple[int, int]
"""(physical offset, ms): the store time before this record, which has a lower one."""


class ClockSteps:
    """The steps of one log. It must follow all records, in log order."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.steps: list[ClockStep] = []
        """In log order."""
        self._is_unsaved = False
        self._last_ms = 0
        self._end = 0

    def load(self) -> None:
        """Read the file, if there is one. An error is logged."""
        try:
            self.steps = load_state(self._disk, self._path, _decode).value or []
        except StoreError as error:
            logger.warning("searches by time assume that store times increase: %s", error)

    def start(self, end: int, last_ms: int) -> None:
        """Follow the log from `end` on; drop the steps after it. last_ms: store time of the last record."""
        kept = [step for step in self.steps if step[0] < end]
        if kept != self.steps:  # the log was truncated; other records may come to these offsets
            self.steps, self._is_unsaved = kept, True
            self.save()
        self._end, self._last_ms = end, last_ms

    def follow(self, fields: LogFields) -> None:
        """Follow the next records. Those that were followed before are ignored."""
        if fields.end <= self._end:
            return
        if fields.begin >= self._end and fields.first_ms < self._last_ms:
            self._add(fields.begin, self._last_ms, fields.first_ms)
        for offset, before_ms, stored_ms in fields.steps:
            if offset >= self._end:
                self._add(offset, before_ms, stored_ms)
        self._end, self._last_ms = fields.end, fields.last_ms

    def _add(self, offset: int, before_ms: int, stored_ms: int) -> None:
        place = bisect_left(self.steps, (offset, 0))
        known = self.steps[place : place + 1]
        if known == [(offset, before_ms)]:  # saved before a crash
            return
        self._is_unsaved = True
        self.steps[place : place + (known[:1] != [] and known[0][0] == offset)] = [(offset, before_ms)]
        del self.steps[:-_STEPS_MAX]
        step_ms = before_ms - stored_ms
        if step_ms < _SAVED_MS:
            return
        logger.warning("store times go back by %d ms at offset %d: the clock was set back", step_ms, offset)
        self.save()

    def save(self) -> None:
        """Save the steps, if there are unsaved ones. An error is logged."""
        if not self._is_unsaved:
            return
        try:
            save_state(self._disk, self._path, msgspec.json.encode(self.steps))
            self._is_unsaved = False
        except StoreError as error:
            logger.warning("searches by time may skip messages after a restart: %s", error)


def _decode(data: bytes) -> list[ClockStep]:
    try:
        return msgspec.json.decode(data, type=list[ClockStep])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(str(error)) from error
