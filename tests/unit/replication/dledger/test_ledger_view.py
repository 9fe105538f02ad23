"""The ledger that is partly stored and partly still to be written."""

from random import Random

import pytest

from rocketpy.errors import InvariantError
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from tests.sim.raft_disk import RaftDisk


def _entry(view: LedgerView, term: int, body: bytes = b"x") -> Entry:
    return Entry.of(view.end_index + 1, term, view.next_entry_pos(len(body)), body)


@pytest.mark.parametrize("seed", range(40))
def test_the_stored_ledger_equals_the_view(seed: int) -> None:
    """An entry that was truncated while it was being written would return, or count as durable."""
    random = Random(seed)
    disk = RaftDisk()
    view = LedgerView(disk, 300)
    seen: list[Entry] = []
    is_out = False
    durable: list[Entry] = []
    for step in range(300):
        match random.randrange(5):
            case 0 | 1:
                entry = _entry(view, step, b"." * random.randrange(60))
                view.append(entry)
                seen.append(entry)
            case 2 if random.random() < 0.5:
                keep = random.randint(view.begin_index - 1, view.end_index) if seen else -1
                view.truncate_after(keep)
                seen = [entry for entry in seen if entry.index <= keep]
                durable = [entry for entry in durable if entry.index <= keep]
            case 3 if random.random() < 0.05:
                view.reset_to(step)
                entry = Entry.of(step, step, step * 300, b"after a gap")
                view.append(entry)
                seen, durable = [entry], []
            case _ if is_out:
                view.written()
                durable = [entry for entry in disk.entries if entry in seen]
                is_out = False
            case _:
                disk.write(None, view.take())
                is_out = True
        assert [view.find(entry.index) for entry in seen] == seen
        assert view.find(view.end_index + 1) is None
        if seen:
            assert (view.begin_index, view.end_index) == (seen[0].index, seen[-1].index)
            assert view.end_term == seen[-1].term
        if durable:
            assert view.durable_index == durable[-1].index
    if is_out:
        view.written()
    disk.write(None, view.take())
    assert disk.entries == seen


def test_an_entry_with_another_index_is_our_bug() -> None:
    """A hole in the ledger would be found only by a later read."""
    view = LedgerView(RaftDisk(), 1000)
    with pytest.raises(InvariantError):
        view.append(Entry.of(1, 0, 0, b"x"))


def test_entries_go_where_a_file_has_room() -> None:
    """A Java follower would reject an entry with another position than it assigns."""
    view = LedgerView(RaftDisk(), 100)
    view.append(_entry(view, 0, b"." * 40))
    assert view.next_entry_pos(40) == 100
    assert view.next_entry_pos(0) == 100
