"""HalfMessageTable and check_action: which transactions are open, and how a check treats them."""

import random

import pytest

from rocketpy_broker.config.model import TransactionConfig
from rocketpy_broker.services.transactions.half_messages import (
    CheckAction,
    HalfMessage,
    HalfMessageTable,
    check_action,
)

RULES = TransactionConfig(timeout_ms=6000, check_max=15)
RESERVED_MS = 1_000_000


@pytest.mark.parametrize(
    ("properties", "age_ms", "action"),
    [
        ({}, 0, CheckAction.WAIT),
        ({}, 5999, CheckAction.WAIT),
        ({}, 6000, CheckAction.CHECK),
        ({}, -1, CheckAction.CHECK),  # its producer's clock is ahead, so its age is unknown
        ({"TRANSACTION_CHECK_TIMES": "14"}, 6000, CheckAction.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "15"}, 6000, CheckAction.DISCARD),
        ({"TRANSACTION_CHECK_TIMES": "many"}, 6000, CheckAction.CHECK),
        ({}, 1_000_001, CheckAction.DISCARD),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 59_999, CheckAction.RENEW),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 60_000, CheckAction.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, 1000, CheckAction.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, 5999, CheckAction.RENEW),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, 6000, CheckAction.CHECK),
    ],
)
def test_check_actions(properties: dict[str, str], age_ms: int, action: CheckAction) -> None:
    """Checks would reach producers too early, too often, or never."""
    assert check_action(properties, 10_000_000 - age_ms, 10_000_000, RULES, RESERVED_MS) is action


def seen(table: HalfMessageTable, count: int) -> None:
    """The next `count` half messages are read from their queue."""
    for _ in range(count):
        table.add_half(table.next_half * 100, 100)


def ended(table: HalfMessageTable, half_offset: int, op_offset: int) -> int:
    newest, _ = table.end(half_offset)
    table.record_end(op_offset, newest)
    return newest


def test_the_first_decision_counts() -> None:
    """A commit that arrives twice would deliver twice."""
    table = HalfMessageTable()
    seen(table, 2)
    assert table.is_open(0)
    assert ended(table, 0, 0) == 0
    assert not table.is_open(0)
    assert table.is_open(5), "one that was not read yet"
    assert ended(table, 5, 1) == 5
    assert not table.is_open(5)
    seen(table, 4)
    assert sorted(table.open) == [1, 2, 3, 4]
    assert table.unseen_ends == 0


def test_an_end_that_is_not_written_is_taken_back() -> None:
    """A full disk would lose a transaction: it would not be committed, and not be checked."""
    table = HalfMessageTable()
    seen(table, 1)
    for offset in (0, 1):
        newest, half = table.end(offset)
        table.record_end(0, newest)
        table.reopen(newest, half)
        assert table.is_open(offset)
    seen(table, 1)
    assert sorted(table.open) == [0, 1]
    assert table.progress() == (0, 1)


def test_copies_replace_their_originals() -> None:
    """A commit with the offset that the producer knows would be ignored, and a check follow."""
    table = HalfMessageTable()
    seen(table, 2)
    table.replace(0, 2, HalfMessage(1, 1))
    seen(table, 1)
    table.replace(2, 3, HalfMessage(1, 1))
    assert table.is_open(0)
    assert ended(table, 0, 0) == 3
    assert not table.is_open(0)
    assert not table.is_open(3)
    seen(table, 1)
    assert sorted(table.open) == [1]


def test_the_saved_progress_suffices_for_a_restart() -> None:
    """After a restart, ended transactions would be checked, or open ones forgotten."""
    table = HalfMessageTable()
    seen(table, 4)
    ended(table, 1, 0)
    ended(table, 3, 1)
    assert table.progress() == (0, 0)
    ended(table, 0, 2)
    assert table.progress() == (2, 1)
    ended(table, 2, 3)
    assert table.progress() == (4, 4)


def test_an_earlier_copy_is_found_by_its_unique_key() -> None:
    """A Java broker's copy for CHECK_IMMUNITY_TIME_IN_SECONDS would be checked after its end."""
    table = HalfMessageTable(half_offset=5, op_offset=0)
    table.add_op(0, 2)
    table.add_op(1, 8)
    seen(table, 2)
    table.add_earlier_copy(5, 2)
    table.add_earlier_copy(6, 3)
    assert sorted(table.open) == [6]
    assert table.is_open(3)
    assert not table.is_open(2)
    assert table.progress() == (6, 1)


class RandomTransactions:
    """Random transactions beside a model of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = HalfMessageTable()
        self.halves: list[int] = []
        """The transaction at each queue offset."""
        self.ops: list[int] = []
        self.open: set[int] = set()
        self.sent = 0

    def send(self) -> None:
        self.sent += 1
        self.halves.append(self.sent)
        self.open.add(self.sent)

    def end(self) -> None:
        offset = self.rng.randrange(len(self.halves)) if self.halves else 0
        if self.halves and self.table.is_open(offset):
            self.open.remove(self.halves[offset])  # KeyError: it ended before
            self.ops.append(ended(self.table, offset, len(self.ops)))

    def check(self) -> None:
        if self.table.open:
            old = self.rng.choice(sorted(self.table.open))
            self.halves.append(self.halves[old])
            self.table.replace(old, len(self.halves) - 1, HalfMessage(0, 0))

    def read(self) -> None:
        seen(self.table, len(self.halves) - self.table.next_half)

    def restart(self) -> None:
        half_offset, op_offset = self.table.progress()
        self.table = table = HalfMessageTable(half_offset, op_offset)
        for number in range(op_offset, len(self.ops)):
            table.add_op(number, self.ops[number])
        self.read()
        # What was replaced since the progress was noted is open again, beside its copy.
        newest = {transaction: offset for offset, transaction in enumerate(self.halves)}
        for offset in sorted(table.open):
            copy = newest[self.halves[offset]]
            if copy != offset and copy in table.open:
                table.replace(offset, copy, table.open[copy])
            elif copy != offset:
                table.discard(offset)
        assert {self.halves[offset] for offset in table.open} == self.open


@pytest.mark.parametrize("seed", range(200))
def test_any_restart_finds_the_same_open_ones(seed: int) -> None:
    """Some order of sends, ends, checks and restarts would forget a transaction or ask about an ended one."""
    run = RandomTransactions(seed)
    steps = (run.send, run.send, run.end, run.end, run.check, run.read, run.restart)
    for step in run.rng.choices(steps, k=120):
        step()
