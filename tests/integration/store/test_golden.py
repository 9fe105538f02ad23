"""Stores that a real 4.6.0 broker left, clean, killed or damaged, must open with all their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.message.record import decode
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    GetMessageStatus,
    IndexConfig,
    MessageInner,
    MessageStore,
    RecoveryReport,
    StoreConfig,
)
from tests import golden_data
from tests.store_checks import check_store
from tests.unit.store.helpers import log_content, queue_content, small_config

# Recorded store -> the recorded store with its expected content after it is opened.
EXPECTED = {
    "clean": "clean",
    "unclean": "unclean-recovered",
    "unclean-recovered": "unclean-recovered",
    "torn": "torn-recovered",
    "torn-recovered": "torn-recovered",
    "torn-recovered-2more": "torn-recovered-2more",
    "txdelay": "txdelay",
    "expired": "expired",
    "extras": "extras",
}
TORN_AT = 187265


def config_for(name: str, root: Path) -> StoreConfig:
    if name != "extras":
        return small_config(root)
    return StoreConfig(
        root=root,
        commit_log=CommitLogConfig(segment_bytes=1 << 20),
        consume_queue=ConsumeQueueConfig(),
        index=IndexConfig(slots=100, entries=400),
    )


def opened(name: str, root: Path) -> tuple[MessageStore, RecoveryReport]:
    store = MessageStore(config_for(name, golden_data.extract_store(name, root)))
    return store, store.open()


def expected_log(name: str) -> list[dict[str, Any]]:
    keys = ("physicalOffset", "totalSize", "topic", "queueId", "queueOffset", "sysFlag", "storeTimestamp",
            "bodyCRC")  # fmt: skip
    records = [record for file in golden_data.parsed(name)["commitlog"] for record in file["records"]]
    return [{key: record[key] for key in keys} for record in records if record.get("crcOk")]


def expected_queues(name: str) -> dict[str, list[tuple[int, int, int, int]]]:
    queues = {
        queue: [
            (entry["logicOffset"], entry["commitLogOffset"], entry["size"], entry["tagsCode"])
            for entry in content["entries"]
            if not (name == "torn-recovered" and entry["commitLogOffset"] >= TORN_AT)  # stale: QUIRKS 48
        ]
        for queue, content in golden_data.parsed(name)["consumequeue"].items()
    }
    return {queue: units for queue, units in queues.items() if units}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_message_is_where_the_real_broker_has_it(name: str, tmp_path: Path) -> None:
    """Opening a Java store would lose or misplace messages."""
    store, report = opened(name, tmp_path)
    assert report.clean == (name not in {"unclean", "torn"})
    assert log_content(store) == expected_log(EXPECTED[name])
    assert queue_content(store) == expected_queues(EXPECTED[name])
    assert check_store(store).problems == []
    store.close()
    again = MessageStore(config_for(name, tmp_path))
    assert again.open().clean
    assert log_content(again) == expected_log(EXPECTED[name])
    assert queue_content(again) == expected_queues(EXPECTED[name])
    again.close()


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "extras"])
def test_the_index_equals_the_real_broker_s_or_is_rebuilt(name: str, tmp_path: Path) -> None:
    """QUIRKS 46: queries by key would miss messages of a Java store."""
    store, _ = opened(name, tmp_path)
    assert store.index is not None
    expected = golden_data.parsed(EXPECTED[name])["index"]
    assert len(store.index.files) == len(expected)
    for file, wanted in zip(store.index.files, expected, strict=True):
        assert [
            (entry["keyHash"], entry["phyOffset"], entry["timeDiffSeconds"], entry["prevIndex"])
            for entry in wanted["entries"]
        ] == file.entries()
        header = file
        assert (header.begin_timestamp, header.end_timestamp, header.begin_offset, header.end_offset) == (
            wanted["beginTimestamp"], wanted["endTimestamp"], wanted["beginPhyOffset"], wanted["endPhyOffset"]
        )  # fmt: skip
        assert (header.inserts, header.next_entry) == (wanted["hashSlotCount"], wanted["indexCount"])
    store.close()


@pytest.mark.parametrize("name", ["clean", "unclean-recovered"])
def test_index_files_closed_by_rocketpy_equal_those_of_java(name: str, tmp_path: Path) -> None:
    """A Java broker that opens a store of rocketpy would read another index."""
    before = {path.name: path.read_bytes() for path in _files(name, tmp_path / "a", "index")}
    for path in (tmp_path / "a" / "index").iterdir():
        path.unlink()
    store = MessageStore(small_config(tmp_path / "a"))
    store.open()
    store.close()
    after = sorted((tmp_path / "a" / "index").iterdir())
    if name == "clean":  # never recovered: no record was indexed twice
        assert [path.read_bytes() for path in after] == list(before.values())
    assert len(after) == len(before)


def _files(name: str, root: Path, room: str) -> list[Path]:
    return sorted((golden_data.extract_store(name, root) / room).iterdir())


def test_messages_are_found_by_key_and_by_place(tmp_path: Path) -> None:
    """A lookup by key, unique id or broker message id in a Java store would fail."""
    store, _ = opened("clean", tmp_path)
    for sent in golden_data.manifest("clean")[::17]:
        properties = sent["properties"]
        by_id = store.query_message(sent["topic"], properties["UNIQ_KEY"], 32, 0, 1 << 62)
        records = [decode(record) for record in by_id.records]
        assert [(r.queue_id, r.queue_offset) for r in records] == [(sent["queueId"], sent["queueOffset"])]
        for key in properties.get("KEYS", "").split():
            found = store.query_message(sent["topic"], key, 64, 0, 1 << 62).records
            assert len(found) == 64 or records[0] in [decode(record) for record in found]
        physical = int(sent["offsetMsgId"][16:], 16)
        assert store.look_message(physical) == by_id.records[0]
        assert store.look_message(physical + 1) is None
    store.close()


def test_a_torn_tail_is_cut_and_its_offset_reused(tmp_path: Path) -> None:
    """A torn record would prevent new ones, or its queue offset be skipped."""
    store, report = opened("torn", tmp_path)
    assert report.end == TORN_AT
    assert any("torn tail at 187265: crc" in note for note in report.notes)
    log = tmp_path / "commitlog" / f"{131072:020d}"
    assert not log.read_bytes()[TORN_AT - 131072 :].strip(b"\0"), "a longer log must not bring it back"
    receipt = store.put_message(MessageInner("StoreTopic", 0, b"new"))
    assert (receipt.physical_offset, receipt.queue_offset) == (TORN_AT, 80)
    store.dispatch()
    result = store.get_message("StoreTopic", 0, 80, 32)
    assert (result.status, result.count) == (GetMessageStatus.FOUND, 1)
    store.close()
    assert MessageStore(small_config(tmp_path)).open().clean


def test_min_offset_follows_the_deleted_files(tmp_path: Path) -> None:
    """QUIRKS 50: consumers of a store whose old files are deleted would read nothing, or deleted messages."""
    store, _ = opened("expired", tmp_path)
    assert store.min_physical_offset == 131072
    low = store.min_offset_in_queue("ExpTopic", 0)
    assert low > 100
    assert store.get_message("ExpTopic", 0, 0, 32).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.get_message("ExpTopic", 0, 0, 32).next_begin_offset == low
    assert store.get_message("ExpTopic", 0, low, 1).status is GetMessageStatus.FOUND
    assert decode(store.look_message(0) or b"").physical_offset == 131072  # QUIRKS 36
    assert store.earliest_store_time() == decode(store.look_message(0) or b"").store_timestamp
    store.close()


def test_preallocated_next_file_is_deleted(tmp_path: Path) -> None:
    """An empty file at the end would be taken for data by the next start."""
    store, _ = opened("unclean", tmp_path)
    store.close()
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert names == [f"{start:020d}" for start in (0, 65536, 131072)]
    assert not (tmp_path / "abort").exists()
