"""Epochs: how far two logs are equal."""

import random
from pathlib import Path

import pytest

from rocketpy.errors import StoreDamaged
from rocketpy_broker.replication.ha.epochs import NO_EPOCHS, Epoch, EpochState, begin_epoch, common_end
from rocketpy_broker.replication.ha.log import EpochFile
from rocketpy_broker.store.files.disk import OsDisk


def test_logs_are_equal_up_to_the_first_different_epoch() -> None:
    """The losing master would keep bytes that its successor lacks, or cut too much."""
    one, two, other = Epoch(1, 0, "a"), Epoch(2, 100, "b"), Epoch(2, 120, "c")
    assert common_end([one], 90, [one, two], 200) == 90
    assert common_end([one], 150, [one, two], 200) == 100
    assert common_end([one, two], 150, [one, two], 200) == 150
    assert common_end([one, other], 150, [one, two], 200) == 100
    assert common_end([one, two], 300, [one, two], 200) == 200
    assert common_end([one, two, Epoch(3, 140, "c")], 150, [one], 200) == 100
    assert common_end([], 90, [one], 200) is None
    assert common_end([other], 130, [one, two], 200) is None


def test_a_new_epoch_drops_epochs_without_bytes() -> None:
    """A slave promoted before it had caught up would claim bytes of an epoch of which it has none."""
    one, two = Epoch(1, 0, "a"), Epoch(2, 100, "b")
    state = begin_epoch(EpochState(epochs=(one, two), seen=5), 80, "c", 3)
    assert state == EpochState(epochs=(one, Epoch(6, 80, "c")), seen=6, own="c")
    assert begin_epoch(state, 90, "d", 1000).seen == 1000
    assert begin_epoch(NO_EPOCHS, 0, "x", 0) == EpochState(epochs=(Epoch(1, 0, "x"),), seen=1, own="x")


def test_a_new_epoch_is_above_those_of_the_log() -> None:
    """Two epochs would get one number after a log was copied without its epochs."""
    copied = EpochState(epochs=(Epoch(5, 0, "a"),))
    assert begin_epoch(copied, 10, "b", 0).epochs[-1] == Epoch(6, 10, "b")


def test_when_an_epoch_begins_and_with_which_number(tmp_path: Path) -> None:
    """A master that crashed would have a higher epoch than the slave that was promoted meanwhile.

    Or a slave that becomes the master by its file alone would write in its old master's epoch.
    """
    master, slave = (EpochFile(OsDisk(), tmp_path / name) for name in ("master.json", "slave.json"))
    master.become_master(0, "a", 1000, is_clean=True)
    slave.save(EpochState(epochs=master.state.epochs, seen=1000))
    slave.promote(50, "b", 5000)
    master.load()
    master.become_master(80, "c", 9000, is_clean=False)
    assert master.state.epochs == (Epoch(1000, 0, "a"), Epoch(1001, 80, "c"))
    assert slave.state.seen == 5000
    before = slave.state
    slave.become_master(60, "d", 6000, is_clean=True)
    assert slave.state == before
    slave.become_slave()
    slave.become_master(60, "e", 7000, is_clean=True)
    assert slave.state.epochs[-1] == Epoch(7000, 60, "e")


def test_a_master_starts_without_its_damaged_epochs(tmp_path: Path) -> None:
    """A broker that never had a slave could not start, because of a file that it does not need."""
    path = tmp_path / "haEpochs.json"
    EpochFile(OsDisk(), path).become_master(0, "a", 1000, is_clean=True)
    assert [file.name for file in tmp_path.iterdir()] == ["haEpochs.json"]
    path.write_bytes(b"\x00" * 100)
    with pytest.raises(StoreDamaged, match="cannot read"):
        EpochFile(OsDisk(), path).load(is_slave=True)
    master = EpochFile(OsDisk(), path)
    master.load()
    assert master.is_older
    master.become_master(80, "b", 2000, is_clean=False)
    assert master.state.epochs == (Epoch(2000, 80, "b"),)
    assert path.with_name("haEpochs.json.damaged").read_bytes() == b"\x00" * 100


def test_common_end_against_real_histories() -> None:
    """A rare order of promotions could make two logs look equal although they differ."""
    for seed in range(300):
        rng = random.Random(seed)
        logs = [(b"", NO_EPOCHS) for _ in range(3)]
        for turn in range(6):
            leader = rng.randrange(3)
            data, state = logs[leader]
            data = data[: rng.randint(max(0, len(data) - 3), len(data))]
            state = begin_epoch(state, len(data), f"{turn}", 0)
            data += bytes([turn + 65]) * rng.randint(0, 5)
            logs[leader] = data, state
            for slave in range(3):
                mine, known = logs[slave]
                if slave == leader or rng.random() < 0.4 or known.seen > state.seen:
                    continue
                end = common_end(known.epochs, len(mine), state.epochs, len(data)) if mine else 0
                if end is None:
                    continue
                assert mine[:end] == data[:end], f"seed {seed}"
                logs[slave] = data[: rng.randint(end, len(data))], state
