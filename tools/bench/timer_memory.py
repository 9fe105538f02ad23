"""Memory of a broker with many timers: `python -m tools.bench.timer_memory [MILLIONS]` (10).

Writes timed messages into a store and enqueues them, in a process of its own. They are due within three days.
Then starts a broker at this store. Printed is the memory of both processes that belongs to no file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rocketpy.protocol.message import properties as props
from rocketpy_broker.services.timers.files import TimerFiles
from rocketpy_broker.services.timers.messages import to_timer_message
from rocketpy_broker.services.timers.timers import Timers
from rocketpy_broker.store import MessageInner, MessageStore, StoreConfig
from tests.interop.processes import OurBroker, OurNameServer

_BATCH: Final = 1000
_MOST_MS: Final = 3 * 86_400_000
_LOG_BYTES: Final = 100 << 20


def anonymous_mb(pid: int | str = "self") -> float:
    """Return the resident memory of a process that belongs to no file, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return kilobytes / 1000


def fill(root: Path, count: int) -> None:
    """Store timers, enqueue them, and print the memory of this process ten times."""
    start_ms = time.time_ns() // 1_000_000
    store = MessageStore(StoreConfig(root=root))
    store.open()
    files = TimerFiles(store.disk, root, _LOG_BYTES)
    timers = Timers(store, files, lambda: 172_800, lambda _, queue_id, __: queue_id)
    timers.load(start_ms)
    timers.begin(start_ms)
    print(f"no timers: {anonymous_mb():.0f} MB", flush=True)
    for first in range(0, count, _BATCH):
        for number in range(first, first + _BATCH):
            # 1 hour at least: none becomes due meanwhile.
            due_ms = start_ms + 3_600_000 + number * 7_919_333 % (_MOST_MS - 7_200_000)
            message = MessageInner("Memory", 0, b"x" * 100, born_timestamp=start_ms)
            properties = {props.PROPERTY_UNIQ_KEY: f"{number:032X}", props.TIMER_DELIVER_MS: str(due_ms)}
            message.properties = props.encode(properties).encode()
            to_timer_message(message, due_ms)
            store.append(message)
        store.write_out()
        store.dispatch()
        while timers.enqueue(start_ms, _BATCH):
            pass
        if (first + _BATCH) % (count // 10) == 0:
            print(f"{timers.waiting:,} timers: {anonymous_mb():.0f} MB", flush=True)
    timers.finish_slot()
    progress = timers.progress(start_ms)
    store.flush(thorough=True)
    files.flush()
    files.checkpoint_file.save(progress)
    files.close()
    store.close()


def main(arguments: list[str]) -> None:
    """Fill a store in another process, and start a broker with it."""
    if arguments[:1] == ["fill"]:
        fill(Path(arguments[1]), int(arguments[2]))
        return
    count = int(float(arguments[0]) * 1_000_000) if arguments else 10_000_000
    with tempfile.TemporaryDirectory(prefix="rocketpy-timer-memory-") as directory:
        run = Path(directory)
        store = run / "store"
        fill_it = [sys.executable, "-m", "tools.bench.timer_memory", "fill", str(store), str(count)]
        subprocess.run(fill_it, check=True)
        conf = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 300_000 * 20}
        with (
            OurNameServer(run) as names,
            OurBroker(run, names.address, store=store, conf=conf) as broker,
        ):
            print(f"broker with {count:,} timers: {anonymous_mb(broker.pid):.0f} MB", flush=True)
        with OurNameServer(run) as names, OurBroker(run, names.address, name="empty", conf=conf) as broker:
            print(f"broker without timers: {anonymous_mb(broker.pid):.0f} MB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
