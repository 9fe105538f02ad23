"""A message store on a ledger: positions, queues, restarts, retention, and older stores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rocketpy.errors import MessageInvalid, MessageTooLarge, StoreError
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import decode, decode_all
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.cli import main
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.ledger_log import NO_OP_TOPIC
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    GetMessageStatus,
    MessageInner,
    MessageStore,
    RecoveryConfig,
    RetentionConfig,
    StoreConfig,
)
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.replica.replica_log import ReplicaLog
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests import golden_data
from tests.integration.raft_group import group
from tests.unit.replication.dledger.solo import Solo
from tests.unit.store.helpers import message, put, queue_content, small_config

STORES = golden_data.store_names("dledger")


def numbers(store: MessageStore, *, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Flags of a queue's messages, in order."""
    found: list[int] = []
    at = store.min_offset_in_queue(topic, queue_id)
    while (result := store.get_message(topic, queue_id, at, 32)).status is GetMessageStatus.FOUND:
        found += [record.flag for record in decode_all(result.body)]
        at = result.next_begin_offset
    return found


def recorded_config(root: Path) -> StoreConfig:
    """Sizes of the recorded group's files."""
    return small_config(root, consume_queue=ConsumeQueueConfig(segment_bytes=2000))


def recorded_queues(name: str) -> dict[str, list[tuple[int, int, int, int]]]:
    """The content of the real broker's queues."""
    return {
        queue: [
            (unit["logicOffset"], unit["commitLogOffset"], unit["size"], unit["tagsCode"])
            for unit in content["entries"]
        ]
        for queue, content in golden_data.parsed(name)["consumequeue"].items()
    }


@pytest.mark.parametrize("keeps_queues", [True, False])
@pytest.mark.parametrize("name", STORES)
def test_a_directory_of_a_java_broker_is_opened(name: str, keeps_queues: bool, tmp_path: Path) -> None:
    """QUIRKS 62, 64: this broker could not replace a Java one in its group."""
    root = golden_data.extract_store(name, tmp_path)
    recorded = golden_data.parsed(name)["dledger"]
    if not keeps_queues:
        for path in (root / "consumequeue").glob("*/*/*"):
            path.unlink()
    store = LedgerStore(recorded_config(root), root / recorded["dir"])
    store.open()
    expected = recorded_queues(name)
    if keeps_queues:
        assert queue_content(store) == expected
    committed = store.log.committed_index
    entries = [entry for file in recorded["data"] for entry in file["entries"] if "index" in entry]
    messages = [entry["message"] for entry in entries if entry["index"] <= committed]
    for stored in messages:
        record = store.look_message(stored["physicalOffset"])
        assert record is not None
        assert decode(record).queue_offset == stored["queueOffset"]
        unit = store.units(stored["topic"], stored["queueId"], stored["queueOffset"], 1)
        assert unit[0][:2] == (stored["physicalOffset"], stored["totalSize"])
    assert sum(map(len, queue_content(store).values())) == len(messages)
    assert store.earliest_store_time() == store.store_timestamp("RaftTopic", 0, 0) > 0
    store.close()


def test_an_entry_that_is_not_committed_is_not_shown(tmp_path: Path) -> None:
    """QUIRKS 64: consumers would read messages that the next leader truncates."""
    root = golden_data.extract_store("n1-uncommitted-tail", tmp_path)
    store = LedgerStore(recorded_config(root), root / "dledger-n1")
    store.open()
    assert (store.ledger.end_index, store.log.committed_index) == (150, 149)
    tail = store.ledger.get(150)
    assert store.committed_offset == tail.pos
    assert store.look_message(tail.pos + 48) is None
    assert store.max_offset_in_queue("RaftTopic", 0) == 75
    store.commit(150)
    store.dispatch()
    assert store.look_message(tail.pos + 48) == tail.body
    store.close()


def test_messages_are_found_by_every_way_and_survive_restarts(tmp_path: Path) -> None:
    """A broker in DLedger mode would serve other messages than it was sent."""
    solo = Solo(tmp_path)
    receipts = [solo.store.append(message(number, queue_id=number % 2)) for number in range(700)]
    assert solo.store.max_offset_in_queue("T", 0) == 0
    assert solo.store.appended_offset > solo.store.committed_offset
    solo.commit()
    for reopened in range(3):
        store = solo.store
        assert numbers(store) == list(range(0, 700, 2))
        assert numbers(store, queue_id=1) == list(range(1, 700, 2))
        assert (receipts[0].physical_offset, store.min_physical_offset) == (48, 0)
        for number, receipt in enumerate(receipts):
            record = store.look_message(receipt.physical_offset)
            assert record is not None
            assert decode(record).flag == number
            assert len(store.query_message("T", f"k{number}", 5, 0, 1 << 62).records) == 1
        if reopened == 0:
            solo.close()
        else:
            solo.save_checkpoint()
            solo.kill()
        solo = Solo(tmp_path)
        assert solo.report.clean == (reopened == 0)
    solo.put(700)
    assert numbers(solo.store)[-1] == 700
    solo.close()


def test_the_checkpoint_has_the_times_of_stored_messages(tmp_path: Path) -> None:
    """QUIRKS 67: with times of 0 a start would have to read everything."""
    times = iter(range(1_800_000_000_000, 1_900_000_000_000, 1000))
    solo = Solo(tmp_path, clock=times.__next__)
    receipts = [solo.store.append(message(number)) for number in range(10)]
    solo.commit()
    stored = receipts[-1].store_timestamp
    solo.close()
    checkpoint = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
    assert (checkpoint.physic_timestamp, checkpoint.logics_timestamp) == (stored, stored)
    assert checkpoint.dispatched_offset == checkpoint.log_end == solo.store.committed_offset


def test_the_index_is_rebuilt_after_a_kill(tmp_path: Path) -> None:
    """QUIRKS 66: as with 4.6.0, no older message would be found by its key."""
    solo = Solo(tmp_path)
    solo.put(*range(150))
    solo.save_checkpoint()
    solo.kill()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    solo = Solo(tmp_path)
    assert len(solo.store.query_message("T", "k3", 5, 0, 1 << 62).records) == 1
    solo.close()


def test_a_start_after_a_kill_skips_files_that_are_dispatched(tmp_path: Path) -> None:
    """A broker whose progress is unknown would read its whole ledger at each start."""
    config = small_config(tmp_path, recovery=RecoveryConfig(use_progress=False))
    time = [1_800_000_000_000]
    solo = Solo(tmp_path, config, clock=lambda: time[0])
    for number in range(1500):
        time[0] += 1000
        solo.put(number)
    solo.store.flush(thorough=True)
    solo.save_checkpoint()
    assert len(solo.store.ledger.data.mapped_files) > 4
    solo.kill()
    solo = Solo(tmp_path, config)
    assert solo.report.scanned_from >= 2 * 65536
    assert numbers(solo.store) == list(range(1500))
    solo.close()


def test_queues_are_built_from_committed_entries_alone(tmp_path: Path) -> None:
    """Consumers would read uncommitted messages after a restart."""
    solo = Solo(tmp_path)
    solo.put(*range(10))
    solo.save_checkpoint()
    for number in range(10, 15):
        solo.store.append(message(number))
    solo.store_entries()
    solo.kill()
    store = LedgerStore(small_config(tmp_path), solo.directory)
    store.open()
    assert store.ledger.end_index == 14
    assert numbers(store) == list(range(10))
    store.commit(12)
    store.dispatch()
    assert numbers(store) == list(range(13))
    store.close()


def test_dispatched_messages_count_as_committed(tmp_path: Path) -> None:
    """The checkpoint is three seconds old: messages that were read would vanish and return."""
    solo = Solo(tmp_path)
    solo.put(*range(10))
    solo.save_checkpoint()
    solo.put(*range(10, 20))
    solo.store.flush(thorough=True)
    solo.kill()
    store = LedgerStore(small_config(tmp_path), solo.directory)
    store.open()
    assert store.log.committed_index == 19
    assert numbers(store) == list(range(20))
    store.close()


def test_a_batch_is_an_entry_for_each_message(tmp_path: Path) -> None:
    """Producers would have to send one by one, as to a Java group, which refuses batches."""
    solo = Solo(tmp_path)
    entries = [(number, b"body %d" % number, b"KEYS\x01k%d\x02" % number) for number in range(5)]
    receipt = solo.store.append_batch(message(0, body=encode_batch(entries)))
    solo.commit()
    assert solo.view.end_index == 4
    assert (len(receipt.physical_offsets), receipt.queue_offset) == (5, 0)
    assert numbers(solo.store) == [0, 1, 2, 3, 4]
    with pytest.raises(MessageTooLarge):
        solo.store.append_batch(message(0, body=encode_batch([(0, bytes(3 << 20), b"")] * 2)))
    with pytest.raises(MessageTooLarge, match=f"record of {4 * (91 + 1) + (4 << 20)} bytes"):
        solo.store.append_batch(message(0, body=encode_batch([(0, bytes(1 << 20), b"")] * 4)))
    half = message(0)
    half.sys_flag = MessageSysFlag.TRANSACTION_PREPARED
    with pytest.raises(MessageInvalid, match="transactional"):
        solo.store.append_batch(half)
    with pytest.raises(MessageInvalid):
        solo.store.append(MessageInner("T", 0, b"x", b"A\x01\0\x02"))
    assert solo.view.end_index == 4
    solo.close()


def test_a_message_that_fits_into_no_file_is_rejected(tmp_path: Path) -> None:
    """With files smaller than maxMessageSize, one message would stop every peer of its group for good."""
    solo = Solo(tmp_path)
    room = solo.store.ledger.data.file_bytes
    with pytest.raises(MessageTooLarge, match="does not fit into a ledger file"):
        solo.put(1, body=bytes(room))
    receipt = solo.store.append(message(2, body=b""))
    largest = room - HEADER_BYTES - 8 - receipt.size
    with pytest.raises(MessageTooLarge, match="does not fit into a ledger file"):
        solo.store.append(message(3, body=bytes(largest + 1)))
    solo.put(3, body=bytes(largest))
    assert numbers(solo.store) == [2, 3]
    solo.store.close()


@pytest.mark.parametrize(
    ("body_bytes", "property_bytes"),
    [(100, 32768), (10_001, 10), (9000, 1500)],
    ids=["names", "body", "both"],
)
def test_a_message_over_a_limit_is_rejected(body_bytes: int, property_bytes: int, tmp_path: Path) -> None:
    """The length of properties has two bytes: longer properties would make the record unreadable."""
    sizes = CommitLogConfig(segment_bytes=1 << 20, reserve_bytes=0, message_bytes_max=10_000)
    if property_bytes > 10_000:
        sizes = dataclasses.replace(sizes, message_bytes_max=100_000)
    solo = Solo(tmp_path, small_config(tmp_path, commit_log=sizes))
    with pytest.raises(MessageTooLarge):
        solo.store.append(MessageInner("T", 0, bytes(body_bytes), b"A\x01" + b"x" * property_bytes + b"\x02"))
    solo.put(1)
    assert numbers(solo.store) == [1]
    solo.close()


async def test_a_peer_that_has_just_stopped_rejects_messages(tmp_path: Path) -> None:
    """Producers would get an internal error, and not ask for another leader."""
    async with group(tmp_path, 1) as running:
        _, peer = await running.leader()
        solo = Solo(tmp_path / "store")
        solo.put(0)
        solo.store.become_leader(peer)
        await peer.close()
        with pytest.raises(StoreError, match="does not lead its group: peer n0 has stopped"):
            solo.store.append(message(1))
        solo.store.become_leader(solo)
        solo.put(1)
        assert numbers(solo.store) == [0, 1]
        solo.close()


def test_an_offset_inside_a_message_finds_nothing(tmp_path: Path) -> None:
    """A mistyped message id would make the broker read up to a whole file."""
    solo = Solo(tmp_path)
    receipt = solo.store.append(message(1, body=b"\x00\x00\x07\x07" * 1000))
    solo.commit()
    offset = receipt.physical_offset
    assert solo.store.log.read_record(offset + 88) is None
    assert solo.store.log.read_record(offset) == solo.store.look_message(offset)
    solo.store.close()


def test_half_messages_and_rollbacks_are_in_no_queue(tmp_path: Path) -> None:
    """Consumers would get uncommitted messages, and the first record of a leader's term."""
    solo = Solo(tmp_path)
    for flag in (MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_ROLLBACK, 0):
        inner = message(7)
        inner.sys_flag = flag
        assert solo.store.append(inner).queue_offset == 0
    solo.commit()
    assert numbers(solo.store) == [7]
    solo.close()


def test_a_new_leader_continues_the_offsets_of_its_queues(tmp_path: Path) -> None:
    """Uncommitted messages of the former leader would leave gaps in the queue offsets (I4)."""
    solo = Solo(tmp_path)
    solo.put(0, 1)
    for number in (2, 3):
        solo.store.append(message(number))
    solo.store.become_follower()
    with pytest.raises(StoreError, match="does not lead"):
        solo.store.append(message(4))
    solo.view.truncate_after(1)
    solo.store.become_leader(solo)
    solo.put(5)
    assert numbers(solo.store) == [0, 1, 5]
    solo.close()


def test_a_follower_whose_entries_expired_on_the_leader_starts_over(tmp_path: Path) -> None:
    """Queues of the follower would point to deleted messages, or it could never join the group."""
    solo = Solo(tmp_path)
    solo.put(*range(30))
    pos = 3 * 65536
    later = Solo(tmp_path / "other")
    later.put(*range(30))
    bodies = [later.store.ledger.get(index).body for index in (28, 29)]
    later.close()
    entries, at = [], pos
    for index, body in enumerate(bodies, 500):
        moved = body[:28] + (at + 48).to_bytes(8, "big") + body[36:]
        entries.append(Entry.of(index, 2, at, moved))
        at = entries[-1].end_pos
    solo.store.ledger.apply(Write(is_reset=True, truncate_after=None, entries=tuple(entries)))
    solo.store.ledger.flush()
    for _ in range(2):
        solo.store.commit(501)
        solo.store.flush(thorough=True)
        solo.store.dispatch()
        store = solo.store
        assert numbers(store) == [28, 29]
        assert (store.min_offset_in_queue("T", 0), store.max_offset_in_queue("T", 0)) == (28, 30)
        assert store.min_physical_offset == pos
        assert len(store.query_message("T", "all", 64, 0, 1 << 62).records) == 2
        solo.close()
        solo = Solo(tmp_path)
    solo.close()


def test_queues_keep_their_offsets_when_a_follower_starts_over(tmp_path: Path) -> None:
    """A follower that becomes the leader would number new messages of empty queues from 0."""
    solo = Solo(tmp_path)
    solo.put(0, 1, 2, topic="U")
    solo.put(3)
    body = solo.store.ledger.get(3).body
    solo.store.become_follower()
    pos = 65536
    moved = body[:28] + (pos + 48).to_bytes(8, "big") + body[36:]
    solo.view.reset_to(500)
    solo.view.append(Entry.of(500, 2, pos, moved))
    solo.store_entries()
    solo.store.commit(500)
    solo.store.dispatch()
    assert not solo.store.is_dispatched, (
        "the next leader would number its queues from 0, and respond to no send"
    )
    solo.store.flush(thorough=True)
    solo.store.dispatch()
    assert solo.store.is_dispatched
    solo.term = 3
    solo.store.become_leader(solo)
    store = solo.store
    assert (store.min_offset_in_queue("U", 0), store.max_offset_in_queue("U", 0)) == (3, 3)
    solo.put(4, topic="U")
    assert (store.min_offset_in_queue("U", 0), store.max_offset_in_queue("U", 0)) == (3, 4)
    assert numbers(store, topic="U") == [4]
    assert numbers(store) == [3]
    solo.close()
    solo = Solo(tmp_path)
    assert (numbers(solo.store, topic="U"), solo.store.max_offset_in_queue("U", 0)) == ([4], 4)
    solo.close()


# -- retention -----------------------------------------------------------------------------------


def always_full(_: Path) -> float:
    """A disk that is nearly full."""
    return 0.88


def test_old_files_go_with_their_queues_index_and_entries(tmp_path: Path) -> None:
    """The disk would become full, or consumers would be sent to deleted files."""
    config = small_config(tmp_path, retention=RetentionConfig(reserved_hours=0))
    solo = Solo(tmp_path, config)
    solo.put(*range(1500))
    solo.store.flush(thorough=True)
    count = len(solo.store.ledger.data.mapped_files)
    assert count > 3
    assert Cleaner(solo.store, use=always_full).run(solo.store.clock()) > 0
    for _ in range(2):
        store = solo.store
        begin = store.ledger.begin_index
        assert 0 < begin == solo.view.begin_index
        assert len(store.ledger.data.mapped_files) < count
        assert numbers(store) == list(range(begin, 1500))
        assert store.earliest_store_time() == store.store_timestamp("T", 0, begin) > 0
        solo.close()
        solo = Solo(tmp_path, config)
    solo.put(1500)
    assert numbers(solo.store)[-1] == 1500
    solo.close()


def test_entries_that_are_not_committed_do_not_expire(tmp_path: Path) -> None:
    """A leader would delete entries that its followers still need."""
    solo = Solo(tmp_path, small_config(tmp_path, retention=RetentionConfig(reserved_hours=0)))
    solo.put(*range(10))
    for number in range(10, 1500):
        solo.store.append(message(number))
    solo.store_entries()
    solo.store.flush(thorough=True)
    Cleaner(solo.store, use=always_full).run(solo.store.clock())
    assert solo.store.ledger.begin_index == 0
    solo.close()


# -- stores that began without a ledger ----------------------------------------------------------


def plain(root: Path, count: int, *, clean: bool) -> None:
    """A store with a commit log of this many messages."""
    store = MessageStore(small_config(root))
    store.open()
    put(store, *range(count))
    if clean:
        store.close()
        return
    store.failure = StoreError("killed")
    store.close()


@pytest.mark.parametrize(("count", "clean"), [(200, True), (700, True), (700, False), (1100, True)])
def test_a_ledger_continues_a_store_with_a_commit_log(count: int, clean: bool, tmp_path: Path) -> None:
    """After DLedger is enabled, older messages would be lost or not be found."""
    plain(tmp_path, count, clean=clean)
    files = len(list((tmp_path / "commitlog").iterdir()))
    solo = Solo(tmp_path)
    divided = solo.store.ledger.start_pos
    assert divided == files * 65536
    assert files == {200: 1, 700: 2, 1100: 3}[count]
    solo.put(*range(count, count + 400))
    for _ in range(2):
        store = solo.store
        assert solo.store.ledger.get(0).pos == divided
        assert numbers(store) == list(range(count + 400))
        assert store.min_physical_offset == 0
        for number in (0, count - 1, count, count + 399):
            assert len(store.query_message("T", f"k{number}", 5, 0, 1 << 62).records) == 1
        solo.save_checkpoint()
        solo.kill()
        solo = Solo(tmp_path)
    solo.close()


def test_the_old_commit_log_expires_whole(tmp_path: Path) -> None:
    """The last file of the commit log would never expire, since a plain log keeps its last file."""
    config = small_config(tmp_path, retention=RetentionConfig(reserved_hours=0))
    plain(tmp_path, 500, clean=True)
    solo = Solo(tmp_path, config)
    solo.put(*range(500, 1500))
    solo.store.flush(thorough=True)
    Cleaner(solo.store, use=always_full).run(solo.store.clock())
    assert list((tmp_path / "commitlog").iterdir()) == []
    begin = numbers(solo.store)[0]
    assert begin > 500
    solo.close()
    solo = Solo(tmp_path, config)
    assert numbers(solo.store) == list(range(begin, 1500))
    solo.close()


def test_a_store_on_a_ledger_copies_no_other(tmp_path: Path) -> None:
    """Two kinds of replication would write the same files."""
    solo = Solo(tmp_path)
    with pytest.raises(StoreError, match="DLedger replicates its log"):
        ReplicaLog(solo.store)
    solo.close()


# -- store check|dump|stats ----------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit status and output of `rocketpy-broker store …`."""
    status = main(["store", *map(str, arguments), "--index-slots", "100", "--index-entries", "400"])
    return status, capsys.readouterr().out


@pytest.mark.parametrize("name", STORES)
def test_a_java_brokers_directory_can_be_looked_into(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator could not distinguish a whole directory from a damaged one before the start."""
    root = golden_data.extract_store(name, tmp_path)
    status, text = said(capsys, "check", root)
    # QUIRKS 66: Java deleted the index of stores that were killed before, and did not rebuild it.
    assert (status == 1) == name.endswith("-final"), text
    rest = ("the next start adds them", " problems")
    problems = [line for line in text.splitlines() if not line.endswith(rest)]
    assert all(line.startswith("index: no entry for the record at") for line in problems), text
    _, dumped = said(capsys, "dump", root, "--topic", "RaftTopic", "--limit", 3)
    records = [json.loads(line) for line in dumped.splitlines()]
    assert records[0]["offset"] == 48
    _, again = said(capsys, "dump", root, "--from", records[2]["offset"], "--limit", 1)
    assert json.loads(again) == records[2]
    _, text = said(capsys, "stats", root)
    recorded = golden_data.parsed(name)["dledger"]
    last = [entry for file in recorded["data"] for entry in file["entries"] if "index" in entry][-1]
    summary = json.loads(text)["ledger"]
    assert (summary["beginIndex"], summary["endIndex"]) == (0, last["index"])
    assert summary["endTerm"] == last["term"]
    assert f"currTerm={summary['term']}" in recorded["currterm"]


def test_damage_in_a_ledger_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged peer would be found when it refuses to start, or by a consumer."""
    solo = Solo(tmp_path)
    solo.put(*range(100))
    solo.close()
    assert said(capsys, "check", tmp_path)[0] == 0
    entry = solo.store.ledger.get(50)
    with (solo.directory / "data" / f"{0:020d}").open("r+b") as file:
        file.seek(entry.pos + 48 + 90)
        file.write(b"\xff")
    status, text = said(capsys, "check", tmp_path)
    assert status == 1
    assert f"damaged at {entry.pos}" in text


def test_an_index_with_another_position_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer would refuse single entries later, when a follower or a consumer asks for them."""
    solo = Solo(tmp_path)
    solo.put(*range(100))
    solo.close()
    with (solo.directory / "index" / f"{0:020d}").open("r+b") as file:
        file.seek(50 * 32 + 31)
        file.write(b"\7")  # the entry's term
    status, text = said(capsys, "check", tmp_path)
    assert status == 1
    assert f"the index does not match entry 50 at {solo.store.ledger.get(50).pos}" in text


def test_a_check_that_stops_at_many_problems_reports_no_damage_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger whose index alone is wrong would be taken for a damaged one, and copied from another peer."""
    solo = Solo(tmp_path)
    solo.put(*range(150))
    solo.close()
    with (solo.directory / "index" / f"{0:020d}").open("r+b") as file:
        for index in range(150):
            file.seek(index * 32 + 31)
            file.write(b"\7")  # the entry's term
    status, text = said(capsys, "check", tmp_path)
    assert status == 1
    assert text.count("ledger: the index does not match entry") == 100
    assert "damaged" not in text


def test_a_peer_that_never_had_an_entry_shows_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator would see the position of a peer with one entry, or in its first term."""
    solo = Solo(tmp_path)
    solo.close()
    (solo.directory / "index").mkdir()  # as Java leaves it
    (tmp_path / "index").mkdir()
    _, text = said(capsys, "stats", tmp_path)
    shown = json.loads(text)["ledger"]
    names = ("beginIndex", "endIndex", "endTerm", "committedIndex", "term", "votedFor")
    assert [shown[name] for name in names] == [-1, -1, -1, -1, -1, None]


def test_a_first_entry_counts_only_once_it_is_committed(tmp_path: Path) -> None:
    """A peer that was killed before its first checkpoint would show messages that its group may replace."""
    solo = Solo(tmp_path)
    solo.store.append(message(0))
    solo.store_entries()
    solo.kill()
    solo = Solo(tmp_path)
    assert (solo.store.ledger.end_index, solo.store.log.committed_index) == (0, -1)
    assert numbers(solo.store) == []
    solo.close()


@pytest.mark.parametrize("host", [bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(20)])
def test_a_leaders_first_entry_is_a_record_that_no_queue_gets(host: bytes, tmp_path: Path) -> None:
    """A Java broker of the group would show it to consumers, or fail to read its own commit log."""
    store = LedgerStore(small_config(tmp_path), tmp_path / "dledger-n0", clock=lambda: 1234)
    store.set_store_host(host)
    body = store.log.no_op(4096)
    record = decode(body)
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == (NO_OP_TOPIC, 0, 0, 0)
    assert (record.physical_offset, record.size, record.body) == (4096, len(body), b"")
    assert record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK
    assert (record.born_timestamp, record.store_timestamp) == (1234, 1234)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (0, 0)
    assert len(store.log.no_op(1 << 40)) == len(body)
