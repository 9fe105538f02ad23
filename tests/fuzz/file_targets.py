"""Files that another program may have written: broker.conf, a store's files, small state files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rocketpy.errors import RocketError
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState
from rocketpy_broker.replication.dledger.storage.state_files import (
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
    with_checksum,
)
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.properties import read_settings, with_settings
from tests.fuzz.mutation import Mutator
from tests.unit.store.helpers import cutting, message, put, small_config

# -- broker.conf --------------------------------------------------------------------------------

_SETTINGS = (
    b"brokerName=b-0\nbrokerId = 1\nbrokerRole: SLAVE\n",
    b"# a comment\nlistenPort=10911\nnamesrvAddr=127.0.0.1:9876;[::1]:9876\naclEnable=false\n",
    b"flushDiskType=SYNC_FLUSH\nmapedFileSizeCommitLog=1048576\ndeleteWhen=04;05\nmessageDelayLevel=1s 5s\n",
    b"enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:2\ndLegerSelfId=n0\n",
    b"storePathRootDir=/tmp/x\\\n  y\ndiskMaxUsedSpaceRatio=75\nmaxMessageSize=4194304\nlisten=tls://[::1]:9\n",
)
_SETTING_TOKENS = (
    b"=",
    b":",
    b"\\",
    b"\\u0041",
    b"\\ud800",
    b"\\u12",
    b"\r",
    b"\n",
    b"#",
    b"!",
    b" ",
    b"true",
    b"false",
    b"-1",
    b"1e9",
    b"NaN",
    b"inf",
    b"9" * 30,
    b"9" * 5000,
    b"0x10",
    b"[::1]:",
    b"tls://",
    b";",
    b"\xc3\xa9",
    b"\x85",
    b"\x00",
    b"99999",
    b"brokerId=",
    b"haListenPort=",
    b"metricsPort=",
    b"maxConnections=",
    b"accessMessageInMemoryMaxRatio=",
)


def make_broker_conf(rng: Random) -> bytes:
    """Return a mutated broker.conf."""
    return Mutator(_SETTINGS, _SETTING_TOKENS).make(rng)[:65_536]


def check_broker_conf(data: bytes, _: Random) -> None:
    """Settings that one server accepts are complete; a changed file contains the changed values."""
    path = _scratch() / "broker.conf"
    path.write_bytes(data)
    text = data.decode("latin-1")
    read_settings(text, "broker.conf")
    wanted = {"brokerName": "new", "messageDelayLevel": text[:20].strip()}
    changed = {s.key: s.value for s in read_settings(with_settings(text, wanted), "broker.conf")}
    assert {key: changed.get(key) for key in wanted} == wanted, "a changed file says something else"
    load_broker_config(path)
    load_namesrv_config(path)


# -- small files of state -----------------------------------------------------------------------

_STATES: tuple[tuple[Callable[[bytes], Any], bytes], ...] = (
    (decode_term, encode_term(TermState(7, "n1"))),
    (decode_term, encode_term(TermState(7, None))),
    (decode_checkpoint, encode_checkpoint(LedgerCheckpoint(5, 9))),
    (Checkpoint.decode, Checkpoint().encode()),
)


def make_state_file(rng: Random) -> bytes:
    """One byte that selects the file, and the file; some files with a checksum have the right one."""
    number = rng.randrange(len(_STATES))
    data = Mutator([_STATES[number][1]], (b"=", b"\n", b"# crc32 ", b"-1", b"9" * 5000, b"\\u00")).make(rng)
    if rng.random() < 0.5:
        data = with_checksum(data.partition(b"# crc32 ")[0])
    return bytes((number,)) + data


def check_state_file(data: bytes, _: Random) -> None:
    """A damaged file is refused as such."""
    decode, _example = _STATES[data[0] % len(_STATES) if data else 0]
    decode(data[1:])


# -- stores -------------------------------------------------------------------------------------

_BIG_NUMBERS = tuple(number.to_bytes(8, "big", signed=True) for number in (2**62, 65_536, 4_000_000_000, -20))


@cache
def _scratch() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - files in memory: stores are flushed all the time
    path = Path(tempfile.mkdtemp(prefix="rocketpy-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def _image() -> tuple[Path, tuple[str, ...]]:
    """A small store that was killed, and one that was stopped; and the files of both that have a content."""
    root = _scratch() / "image"
    for name in ("killed", "stopped"):
        store = MessageStore(small_config(root / name))
        store.open()
        put(store, *range(40))
        store.append(message(100, topic="Other", body=b"x" * 3000))
        put(store, *range(40, 60), queue_id=1)
        store.flush()
        if name == "killed":
            shutil.copytree(root / name, root / "copy")
        store.close()
        if name == "killed":
            shutil.rmtree(root / name)
            (root / "copy").rename(root / name)
    names = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    return root, tuple(str(name) for name in names if (root / name).stat().st_size)


def make_store_file(rng: Random) -> bytes:
    """One byte that selects the store and file, one whether damage may be cut, and the file."""
    root, names = _image()
    number = rng.randrange(len(names))
    data = (root / names[number]).read_bytes()
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    used = data.rstrip(b"\0")
    mutator = Mutator([used], _BIG_NUMBERS)
    changed = mutator.mutate(rng, used)
    if rng.random() < 0.8:  # as long as it was: else most are refused for that alone
        changed = changed[: len(data)].ljust(len(data), b"\0")
    return bytes((number, rng.randrange(2))) + changed


def check_store_file(data: bytes, _: Random) -> None:
    """A damaged store opens or is rejected; it serves whole records, and reopens with the same state."""
    root, names = _image()
    name = names[(data[0] if data else 0) % len(names)]
    place = _scratch() / "store"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root / name.partition("/")[0], place)
    (place / name.partition("/")[2]).write_bytes(data[2:])
    config = (cutting if data[1:2] == b"\1" else small_config)(place)
    first = _read_all(MessageStore(config))
    again = _read_all(MessageStore(config))
    assert again == first, "another start found other messages"


def _read_all(store: MessageStore) -> dict[tuple[str, int], int]:
    """The number of bytes that each queue serves; damaged records may be rejected."""
    found: dict[tuple[str, int], int] = {}
    store.open()
    try:
        for topic, queue_id in sorted(store.queues.queues):
            offset = store.min_offset_in_queue(topic, queue_id)
            for _ in range(200):
                try:
                    result = store.get_message(topic, queue_id, offset, 32)
                except RocketError:
                    break
                found[topic, queue_id] = found.get((topic, queue_id), 0) + len(result.body)
                if result.next_begin_offset <= offset:
                    break
                offset = result.next_begin_offset
    finally:
        store.close()
    return found
