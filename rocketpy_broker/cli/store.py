"""``rocketpy-broker store check|dump|stats DIR``: inspects a store that no broker has open.

It also works with the directories of Java brokers. It changes nothing and takes no lock. `check` prints one
line for each inconsistency. Exit status 0: no inconsistency. 1: at least one. 2: the store cannot be read.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rocketpy.protocol.message import properties
from rocketpy.protocol.message.record import Record, decode, host_text
from rocketpy_broker.replication.dledger.storage.inspection import StoredLedgerFiles, find_ledger
from rocketpy_broker.store.config import CommitLogConfig, IndexConfig, StoreConfig
from rocketpy_broker.store.inspect.checker import check_files
from rocketpy_broker.store.inspect.inspection import ReadOnlyStore

Run = Callable[[ReadOnlyStore, argparse.Namespace], int]

_EXIT_PROBLEMS = 1
_EXIT_UNREADABLE = 2


def add_store_commands(commands: Any) -> None:
    """Add ``store`` and its commands to the subparsers of ``rocketpy-broker``.

    The option `action` of a parsed command is a function of the options that returns the exit status. The
    option `failed` is the exit status after an error.
    """
    text = "check a store, print its records, or its statistics"
    store = commands.add_parser("store", help=text, description=__doc__)
    actions = store.add_subparsers(required=True, metavar="check|dump|stats")
    _add(actions, "check", "report every inconsistency and its position", _check)
    dump = _add(actions, "dump", "print records as JSON, one per line", _dump)
    dump.add_argument("--topic", help="only records of this topic")
    dump.add_argument("--queue", type=int, metavar="ID", help="only records of this queue id")
    dump.add_argument("--key", help="only records with this KEYS or UNIQ_KEY")
    dump.add_argument(
        "--from", type=int, dest="start", metavar="OFFSET", help="physical offset of the first record"
    )
    dump.add_argument(
        "--limit", type=int, default=None, metavar="N", help="maximum number of records to print"
    )
    dump.add_argument("--body", action="store_true", help="print bodies, too, in base64")
    _add(actions, "stats", "print sizes, counts and offsets as JSON", _stats)


def _add(actions: Any, name: str, text: str, run: Run) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    command.add_argument("directory", metavar="DIR", type=Path, help="storePathRootDir of the broker")
    command.add_argument("--commit-log", metavar="DIR", type=Path, help="storePathCommitLog, if elsewhere")
    for option, key, default in (
        ("--index-slots", "maxHashSlotNum", IndexConfig().slots),
        ("--index-entries", "maxIndexNum", IndexConfig().entries),
    ):
        text = f"{key} of the broker (default: %(default)d)"
        command.add_argument(option, type=int, metavar="N", default=default, help=text)
    command.add_argument("--force-read", action="store_true", help="read even if a broker has the store open")
    command.set_defaults(action=lambda options: _run(run, options), failed=_EXIT_UNREADABLE)
    return command


def _run(run: Run, options: argparse.Namespace) -> int:
    config = StoreConfig(
        root=options.directory,
        commit_log=CommitLogConfig(directory=options.commit_log),
        index=IndexConfig(slots=options.index_slots, entries=options.index_entries),
    )
    ledger = find_ledger(config.root)
    with closing(
        ReadOnlyStore(config, force=options.force_read)
        if ledger is None
        else StoredLedgerFiles(config, ledger, force=options.force_read)
    ) as stored:
        return run(stored, options)


def _check(stored: ReadOnlyStore, _: argparse.Namespace) -> int:
    report = check_files(stored)
    for problem in report.problems:
        print(problem)
    stop = "stopped cleanly" if stored.is_clean else "not stopped cleanly"
    print(
        f"{report.records} records in {stored.log.min_offset} to {report.log_end}, {report.units} units, "
        f"{report.index_entries} index entries, {stop}: {len(report.problems)} problems"
    )
    if report.behind:
        print(f"{report.behind} units and index entries are missing at the end; the next start adds them")
    return _EXIT_PROBLEMS if report.problems else 0


def _dump(stored: ReadOnlyStore, options: argparse.Namespace) -> int:
    for printed, record in enumerate(_records(stored, options)):
        if printed == options.limit:
            break
        print(json.dumps(_described(record, with_body=options.body), ensure_ascii=False))
    return 0


def _records(stored: ReadOnlyStore, options: argparse.Namespace) -> Iterator[Record]:
    start = stored.log.min_offset if options.start is None else options.start
    for view in stored.scan(start, check_crc=False):
        if options.topic not in (None, view.topic) or options.queue not in (None, view.queue_id):
            continue
        if options.key is not None and options.key not in _keys(view.properties):
            continue
        data = stored.log.read(view.physical_offset, view.size)
        if data is not None:
            yield decode(data, check_crc=False)


def _keys(raw: bytes) -> list[str]:
    found = properties.decode(raw.decode("utf-8", "replace"))
    unique_key = found.get(properties.PROPERTY_UNIQ_KEY)
    return [
        *properties.split_keys(found.get(properties.PROPERTY_KEYS)),
        *([unique_key] if unique_key else []),
    ]


def _described(record: Record, *, with_body: bool) -> dict[str, Any]:
    described = {
        "offset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": "{}:{}".format(*host_text(record.born_host)),
        "storeTimestamp": record.store_timestamp,
        "storeHost": "{}:{}".format(*host_text(record.store_host)),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCrc": record.body_crc,
        "bodyBytes": len(record.body),
        "properties": properties.decode(record.properties.decode("utf-8", "replace")),
    }
    if with_body:
        described["body"] = base64.b64encode(record.body).decode()
    return described


def _stats(stored: ReadOnlyStore, _: argparse.Namespace) -> int:
    checkpoint = stored.checkpoint
    disk_bytes = sum(path.stat().st_blocks * 512 for path in stored.config.root.rglob("*") if path.is_file())
    summary = {
        "stoppedCleanly": stored.is_clean,
        "diskBytes": disk_bytes,
        "commitLog": {
            "minOffset": stored.log.min_offset,
            "files": len(stored.log.mapped_files),
            "fileBytes": stored.log.file_bytes,
            "flushedOffset": checkpoint.flushed_offset,
            "dispatchedOffset": checkpoint.dispatched_offset,
        },
        **stored.summary(),
        "queues": {
            f"{queue.topic}/{queue.queue_id}": {
                "minOffset": queue.min_offset,
                "maxOffset": queue.next_offset,
                "files": len(queue.files.mapped_files),
            }
            for queue in stored.queues.values()
        },
        "index": [
            {
                "file": file.path.name,
                "entries": file.next_entry - 1,
                "beginOffset": file.begin_offset,
                "endOffset": file.end_offset,
                "beginTimestamp": file.begin_timestamp,
                "endTimestamp": file.end_timestamp,
            }
            for file in stored.index_files
        ],
        "checkpoint": {
            "physicMsgTimestamp": checkpoint.physic_timestamp,
            "logicsMsgTimestamp": checkpoint.logics_timestamp,
            "indexMsgTimestamp": checkpoint.index_timestamp,
        },
    }
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    return 0
