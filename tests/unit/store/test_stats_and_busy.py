"""A store that cannot keep up must report it in time, with counters for operators."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rocketpy_broker.store import BusyConfig, MessageStore
from rocketpy_broker.store.busy import OverloadDetector, Reason, StoreBusy
from rocketpy_broker.store.stats import StoreStats
from tests.unit.store.helpers import message, put, small_config


def test_only_a_loop_that_stays_late_rejects_sends() -> None:
    """One pause of the event loop would reject sends, or an overloaded broker would accept them."""
    watch = OverloadDetector(BusyConfig())
    assert [watch.sample(250) for _ in range(4)] == [None] * 4
    assert watch.sample(10) is None
    assert [watch.sample(250) for _ in range(4)] == [None] * 4
    busy = watch.sample(250)
    assert busy is not None
    assert str(busy).startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, ")
    assert watch.sample(10) is None
    off = OverloadDetector(BusyConfig(enabled=False))
    never = OverloadDetector(BusyConfig(wait_ms=0))
    for _ in range(9):
        assert [off.sample(9999), off.wrote_in(9999), never.sample(9999)] == [None] * 3


def test_a_slow_write_rejects_until_the_next_sample(tmp_path: Path) -> None:
    """A broker with a slow disk would accept sends, or reject them after the disk has recovered."""
    now = [1_700_000_000_000]
    steps = [0]

    def clock() -> int:
        now[0] += steps[0]
        return now[0]

    store = MessageStore(small_config(tmp_path), clock=clock)
    store.open()
    put(store, 1)
    store.append(message(2))
    steps[0] = 1100
    store.write_out()
    steps[0] = 0
    with pytest.raises(StoreBusy, match="PCBUSY_CLEAN_QUEUE"):
        store.append(message(3))
    assert store.failure is None
    store.reject(Reason.BUSY, store.overload_detector.sample(0))
    put(store, 3)
    assert store.stats.put_ms_max == 1100
    assert store.stats.times_by_duration[:1] == [2]
    assert store.stats.times_by_duration[7] == 1
    store.close()


@pytest.mark.parametrize(("limit_ms", "is_busy"), [(49, True), (50, False), (1000, False)])
def test_a_write_is_slow_above_the_limit(tmp_path: Path, limit_ms: int, *, is_busy: bool) -> None:
    """A limit below 100 ms would have no effect."""
    now = itertools.count(1_700_000_000_000, 50)
    config = small_config(tmp_path, busy=BusyConfig(page_cache_ms=limit_ms))
    with MessageStore(config, clock=lambda: next(now)) as store:
        store.put_message(message(1))
        assert store.stats.put_ms_max == 50
        assert (store.rejection(Reason.BUSY) is not None) is is_busy


def test_a_write_ends_no_rejection(tmp_path: Path) -> None:
    """A broker whose event loop is late would take messages after the next write."""
    now = itertools.count(1_700_000_000_000, 500)
    with MessageStore(small_config(tmp_path), clock=lambda: next(now)) as store:
        store.append(message(1))
        late = StoreBusy("the loop is late")
        store.reject(Reason.BUSY, late)
        store.write_out()
        assert store.stats.put_ms_max == 500
        assert store.rejection(Reason.BUSY) is late


def test_counters_and_rates(tmp_path: Path) -> None:
    """Operators would see wrong numbers of stored and read messages."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    store.get_message("T", 0, 0, 32)
    store.get_message("T", 0, 20, 32)
    stats = store.stats
    assert (stats.put_times, stats.found, stats.missed, stats.transferred) == (20, 1, 1, 20)
    assert stats.put_bytes == store.max_physical_offset
    table = stats.table(store.clock())
    assert table["putMessageTimesTotal"] == "20"
    assert table["putMessageAverageSize"] == str(stats.put_bytes / 20)
    assert table["putTps"] == "0.00 0.00 0.00"
    store.close()


def test_rates_over_windows() -> None:
    """The rates over 10 s, a minute and ten minutes would be those of other periods."""
    stats = StoreStats()
    for second in range(700):
        stats.sample(second * 1000)
        stats.put_times += 5 if second < 690 else 50
    ten, minute, ten_minutes = stats.rates("put", 700_000)
    assert ten == pytest.approx(50)
    assert minute == pytest.approx((50 * 5 + 10 * 50) / 60)
    assert 5 < ten_minutes < 6
