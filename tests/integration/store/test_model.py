"""Compares a store with a model under random appends, batches, flushes, kills and restarts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketpy.errors import MessageTooLarge
from rocketpy.protocol.message.batch import encode_batch
from rocketpy_broker.store import CommitLogConfig, MessageStore
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, kill, message, small_config

QUEUES = st.integers(0, 2)
SIZES = st.one_of(st.integers(0, 300), st.integers(300, 3900))


class StoreMachine(RuleBasedStateMachine):
    """The model: bodies by queue, those written and those in the run."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.config = small_config(
            self.root, commit_log=CommitLogConfig(segment_bytes=4096, reserve_bytes=1024)
        )
        self.store = MessageStore(self.config)
        self.store.open()
        self.written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self.placed: list[tuple[int, bytes]] = []
        self.number = 0

    def _body(self, size: int) -> bytes:
        self.number += 1
        return b"%d " % self.number + b"x" * size

    @rule(queue_id=QUEUES, size=SIZES)
    def append(self, queue_id: int, size: int) -> None:
        body = self._body(size)
        before = len(self.written[queue_id]) + sum(queue == queue_id for queue, _ in self.placed)
        try:
            receipt = self.store.append(message(self.number, queue_id=queue_id, body=body))
        except MessageTooLarge:
            assert len(body) + 200 > 4096 - 8
            return
        assert receipt.queue_offset == before
        self.placed.append((queue_id, body))

    @rule(queue_id=QUEUES, sizes=st.lists(st.integers(0, 400), min_size=1, max_size=6))
    def append_batch(self, queue_id: int, sizes: list[int]) -> None:
        texts = [self._body(size) for size in sizes]
        entries = [(0, text, b"KEYS\x01batch\x02") for text in texts]
        receipt = self.store.append_batch(message(self.number, queue_id=queue_id, body=encode_batch(entries)))
        assert len({offset // 4096 for offset in receipt.physical_offsets}) == 1
        self.placed += [(queue_id, text) for text in texts]

    @rule()
    def write_out(self) -> None:
        self.store.write_out()
        for queue_id, body in self.placed:
            self.written[queue_id].append(body)
        self.placed.clear()

    @rule()
    def dispatch(self) -> None:
        self.store.dispatch()

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        self.store.flush(thorough=thorough)
        assert self.store.flushed_offset == self.store.max_physical_offset

    @rule()
    def preallocate_ahead(self) -> None:
        if self.store.needs_preallocation():
            self.store.adopt_preallocated(self.store.preallocate_ahead())

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.write_out()
            self.store.close()
        else:
            kill(self.store)
            self.placed.clear()
        self.store = MessageStore(self.config)
        report = self.store.open()
        assert report.clean == clean
        assert report.cut_bytes == 0
        self._check_all()

    def _check_all(self) -> None:
        for queue_id, texts in self.written.items():
            assert bodies(self.store, queue_id=queue_id) == texts
        assert check_store(self.store).problems == []

    @invariant()
    def nothing_is_read_before_it_is_written(self) -> None:
        for queue_id, texts in self.written.items():
            assert self.store.max_offset_in_queue("T", queue_id) <= len(texts)

    def teardown(self) -> None:
        self.write_out()
        self.dispatch()
        self._check_all()
        self.store.close()
        shutil.rmtree(self.root)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.__doc__ = "Some order of appends, flushes and crashes would lose, repeat or misplace messages."
TestStoreModel.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


class LongerStoreMachine(StoreMachine):
    """The same with many more examples."""


TestStoreModelForLonger = pytest.mark.slow(LongerStoreMachine.TestCase)
TestStoreModelForLonger.__doc__ = (
    "A rare order of appends, flushes and crashes would lose or repeat messages."
)
TestStoreModelForLonger.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
