"""Operators decide by this command whether a store can be trusted; it must see damage and change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rocketpy_broker.cli import main
from rocketpy_broker.store import IndexConfig, MessageStore
from rocketpy_broker.store.inspect.inspection import ReadOnlyStore
from tests.golden_data import GOLDEN
from tests.unit.store.helpers import index_content, kill, put, small_config


def unpacked(root: Path, name: str) -> Path:
    """A store directory recorded from a Java broker."""
    with tarfile.open(GOLDEN / "store" / f"{name}.tar.gz") as archive:
        archive.extractall(root, filter="data")
    (log,) = root.rglob("commitlog")
    return log.parent


def snapshot(root: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("clean", 0, "320 records in 0 to 187265, 320 units, 720 index entries, stopped cleanly: 0 problems"),
        ("unclean", 0, "not stopped cleanly: 0 problems"),
        ("expired", 0, "77 records in 131072 to 175371"),
        ("txdelay", 0, "0 problems"),
        ("torn", 1, "unit 80 points to 889 bytes at 187265, where it has no record"),
    ],
)
def test_check_of_java_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, status: int, says: str
) -> None:
    """The check could miss damage in a store of RocketMQ, or change the store."""
    root = unpacked(tmp_path, name)
    before = snapshot(root)
    assert main(["store", "check", str(root)]) == status
    assert says in capsys.readouterr().out
    assert snapshot(root) == before


def test_a_reader_of_the_pipe_may_end_first(tmp_path: Path) -> None:
    """`rocketpy-broker store dump DIR | head -1` would end with an error about a broken pipe."""
    root = unpacked(tmp_path, "clean")
    for command in ("dump", "stats"):  # more and less than a buffer of output
        reader, writer = os.pipe()
        os.close(reader)
        line = [sys.executable, "-m", "rocketpy_broker", "store", command, str(root)]
        done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, b"")


def test_check_of_a_killed_store_counts_the_records_of_the_next_recovery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that was killed would look damaged, or damage would pass as a normal end."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(30))
    store.flush(thorough=True)
    put(store, *range(30, 40))
    kill(store)
    assert main(["store", "check", str(tmp_path)]) == 0
    out = capsys.readouterr().out  # ten units; three keys of each message
    assert "130 units and index entries are missing at the end; the next start adds them" in out
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(90)
        file.write(b"?")
    assert main(["store", "check", str(tmp_path)]) == 1
    assert "commit log: damaged at 0: crc" in capsys.readouterr().out


def test_a_store_in_use_is_read_only_when_insisted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command would read a store while its broker changes it, and show damage that does not exist."""
    holder = (
        "import sys, fcntl, struct; f = open(sys.argv[1], 'r+b'); "
        "fcntl.lockf(f, fcntl.LOCK_EX, 1); print('locked', flush=True); sys.stdin.read()"
    )
    with MessageStore(small_config(tmp_path)) as store:
        put(store, 1)
    command = [sys.executable, "-c", holder, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["store", "stats", str(tmp_path)]) == 2
        assert f"in use by process {process.pid}" in capsys.readouterr().err
        assert main(["store", "stats", str(tmp_path), "--force-read"]) == 0
        process.communicate()
    assert main(["store", "stats", str(tmp_path)]) == 0


def test_dump_and_its_filters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator could not find a message by its queue, topic, key or offset."""
    with MessageStore(small_config(tmp_path)) as store:
        for number in range(10):
            put(store, number, queue_id=number % 2)

    def dump(*options: str) -> list[dict[str, object]]:
        assert main(["store", "dump", str(tmp_path), *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert len(dump()) == 10
    assert [record["queueOffset"] for record in dump("--queue", "1")] == [0, 1, 2, 3, 4]
    assert [record["flag"] for record in dump("--key", "k7")] == [7]
    assert [record["flag"] for record in dump("--key", f"{6:032X}", "--body")] == [6]
    assert dump("--topic", "Other") == []
    third = dump("--limit", "3")[-1]
    assert [record["flag"] for record in dump("--from", str(third["offset"]), "--limit", "2")] == [2, 3]
    assert dump("--limit", "1", "--body")[0]["body"] == "Ym9keSAw"


def test_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator could not see which offsets a store has."""
    root = unpacked(tmp_path, "expired")
    assert main(["store", "stats", str(root)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["commitLog"]["minOffset"] == 131072
    assert summary["stoppedCleanly"]
    assert summary["queues"]
    assert all(queue["maxOffset"] > queue["minOffset"] for queue in summary["queues"].values())


@pytest.mark.parametrize(("slots", "entries"), [(30, 100), (100, 400)])
def test_index_files_of_any_size_are_read(tmp_path: Path, slots: int, entries: int) -> None:
    """`store check` would call every index file of a broker with other sizes damaged, or read none of it."""
    written = small_config(tmp_path, index=IndexConfig(slots=slots, entries=entries))
    with MessageStore(written) as store:
        put(store, *range(20))
        assert store.index is not None
        expected = [index_content(file) for file in store.index.files]
    for config in (written, small_config(tmp_path, index=IndexConfig())):
        if config is not written and entries != 4 * slots:
            continue
        handles = set(Path("/proc/self/fd").iterdir())
        files = ReadOnlyStore(config)
        assert [index_content(file) for file in files.index_files] == expected
        assert len(list(files.scan(0))) == 20
        assert files.problems == []
        files.close()
        assert set(Path("/proc/self/fd").iterdir()) == handles, "files were left open"


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped directory would look like an empty store without problems."""
    assert main(["store", "check", str(tmp_path)]) == 2
    assert "is not a store" in capsys.readouterr().err
