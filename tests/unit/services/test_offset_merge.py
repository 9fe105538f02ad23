"""Consumer offsets of a slave: which of the master's offsets replace its own."""

from pathlib import Path

from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets


class Clock:
    """Milliseconds that a test sets."""

    now = 1000

    def __call__(self) -> int:
        return self.now


def tables(tmp_path: Path) -> tuple[ConsumerOffsets, ConsumerOffsets, Clock]:
    clock = Clock()
    return (
        ConsumerOffsets(tmp_path / "master.json", clock=clock),
        ConsumerOffsets(tmp_path / "slave.json", clock=clock),
        clock,
    )


def copy(master: ConsumerOffsets, slave: ConsumerOffsets, *, versions: bool = True) -> int | None:
    slave.merge(ConsumerOffsetSerializeWrapper.decode(master.encode(with_times=versions)))
    return slave.get("g", "T", 0)


def test_a_reset_is_merged_and_an_older_value_is_not(tmp_path: Path) -> None:
    """A group would consume messages twice, or a deliberate reset would be lost (#1094)."""
    for versions in (True, False):
        master, slave, clock = tables(tmp_path)
        master.commit("g", "T", 0, 100)
        assert copy(master, slave, versions=versions) == 100
        clock.now += 10
        slave.commit("g", "T", 0, 150)
        assert copy(master, slave, versions=versions) == 150
        clock.now += 10
        master.commit("g", "T", 0, 20)
        assert copy(master, slave, versions=versions) == 20


async def test_when_it_was_committed_survives_a_restart(tmp_path: Path) -> None:
    """A slave's newer offsets would fall back after both were restarted."""
    master, slave, clock = tables(tmp_path)
    master.commit("g", "T", 0, 100)
    clock.now += 10
    slave.commit("g", "T", 0, 150)
    await slave.save()
    again = ConsumerOffsets(tmp_path / "slave.json", clock=clock)
    again.load()
    assert copy(master, again) == 150


def test_nothing_of_a_deleted_topic_is_kept(tmp_path: Path) -> None:
    """The file would grow with each topic that is deleted; commits would count as older than those."""
    table, slave, clock = tables(tmp_path)
    table.commit("g", "T", 0, 100)
    table.commit("g", "T2", 0, 100)
    slave.merge(ConsumerOffsetSerializeWrapper.decode(table.encode(with_times=False)))
    for offsets in (table, slave):
        offsets.remove_topic("T")
        assert b'"T@' not in offsets.encode(with_times=True)
        assert b'"T2@' in offsets.encode(with_times=True)
    clock.now -= 500  # set back meanwhile
    table.commit("g", "T", 0, 3)
    assert copy(table, slave) == 3
    assert copy(table, slave, versions=False) == 3
