"""Stores and processes: one process at a time, and the store after a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpy.errors import StoreLocked
from rocketpy_broker.store import MessageStore
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, put, small_config

REPOSITORY = Path(__file__).parents[2]

HOLDER = """
import sys
from rocketpy_broker.store import MessageStore
from tests.unit.store.helpers import small_config
from pathlib import Path
store = MessageStore(small_config(Path(sys.argv[1])))
store.open()
print("open", flush=True)
sys.stdin.read()
"""

# Prints the number of a message once it is acknowledged; numbers continue where the last process stopped.
WRITER = """
import sys
from pathlib import Path
from rocketpy_broker.store import MessageStore
from tests.unit.store.helpers import message, small_config
store = MessageStore(small_config(Path(sys.argv[1])))
store.open()
number = int(sys.argv[2])
print("open", flush=True)
while True:
    for number in range(number, number + 7):
        store.append(message(number, queue_id=number % 3, body=b"%d " % number * (number % 97 + 1)))
    number += 1
    store.write_out()
    print(number, flush=True)
    store.dispatch()
    if number % 5 == 0:
        store.flush(thorough=number % 2 == 0)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def stop(process: subprocess.Popen[str], how: int) -> str:
    """Send a signal; return the rest of the output of the process."""
    os.kill(process.pid, how)
    rest, _ = process.communicate()
    return rest


def test_second_process_is_rejected_by_name(tmp_path: Path) -> None:
    """Two brokers on one directory would destroy it."""
    holder = start(HOLDER, str(tmp_path))
    with pytest.raises(StoreLocked, match=f"{tmp_path} is in use by process {holder.pid}"):
        MessageStore(small_config(tmp_path)).open()
    stop(holder, signal.SIGKILL)
    store = MessageStore(small_config(tmp_path))
    assert not store.open().clean
    assert (tmp_path / "lock").read_bytes() == b"lock"
    with pytest.raises(StoreLocked, match="in this process"):
        MessageStore(small_config(tmp_path)).open()
    store.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """A broker killed under load would lose acknowledged messages."""
    chance = random.Random(seed)
    first = 0
    acknowledged: list[int] = []
    for _ in range(3):
        writer = start(WRITER, str(tmp_path), str(first))
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 120))]
        lines += stop(writer, signal.SIGKILL).splitlines(keepends=True)
        ends = [int(line) for line in lines if line.endswith("\n")]
        acknowledged += range(first, ends[-1])
        store = MessageStore(small_config(tmp_path))
        assert not store.open().clean
        texts = [body for queue_id in range(3) for body in bodies(store, queue_id=queue_id)]
        numbers = sorted(int(text.split()[0]) for text in texts)
        assert numbers == sorted(set(numbers))
        assert set(acknowledged) <= set(numbers)
        assert set(numbers) <= set(range(first + 10**6)), "nothing that was not sent"
        assert check_store(store).problems == []
        acknowledged = numbers  # messages that were recovered once must stay
        first = max(numbers) + 1
        put(store, first, body=b"%d between" % first)
        acknowledged.append(first)
        first += 1
        store.close()
