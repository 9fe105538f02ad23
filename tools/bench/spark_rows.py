"""Long rows through the Spark sink: each must be stored, duplicates be reported, and memory be bounded.

`python -m tools.bench.spark_rows` writes 20,000 rows of 8,000 random bytes and 300 rows of 4 MB, each without
a fault and with the broker stopped for 8 s. It prints a line for each, and fails if a row is missing, if
there are more duplicates than the sink has reported, or if a Python worker uses more than 256 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.spark_session import start_session
from pyspark_rocketmq import SeenRows, write_batch
from rocketpy import MessageExt, PullStatus
from rocketpy.sync import AdminClient, PullConsumer
from tests.interop.processes import OurBroker, OurNameServer
from tests.spark.conftest import CLUSTER, PATIENT

STOP_S = 8
MIB = 1 << 20
WORKER_BYTES_MAX = 256_000_000


def worker_pids(root: int) -> list[int]:
    """The Python processes below a process."""
    parents: dict[int, list[int]] = {}
    names = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = entry.read_text().partition(" (")[2].rpartition(") ")
            names[int(entry.parent.name)] = name
            parents.setdefault(int(rest.split()[1]), []).append(int(entry.parent.name))
    found, waiting = [], [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        waiting += children
        found += [pid for pid in children if names[pid].startswith("python")]
    return found


class PeakMemory(threading.Thread):
    """The most memory of a Python worker so far, in bytes."""

    def __init__(self, jvm: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._jvm = jvm
        self._ends = threading.Event()

    def run(self) -> None:
        """Read the peaks, which the kernel keeps for each process, twice a second."""
        while not self._ends.wait(0.5):
            for pid in worker_pids(self._jvm):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    self.peak = max(self.peak, int(status.partition("VmHWM:")[2].split()[0]) * 1024)

    def end(self) -> int:
        """Stop, and return the peak."""
        self._ends.set()
        self.join()
        return self.peak


def messages_of(namesrv: str, topic: str) -> Iterator[MessageExt]:
    """All messages of a topic."""
    with PullConsumer("long_rows", namesrv) as consumer:
        for queue in consumer.fetch_queues(topic):
            offset = consumer.min_offset(queue)
            while (result := consumer.pull(queue, offset)).status is PullStatus.FOUND:
                yield from result.messages
                offset = result.next_offset


def stop_soon(broker: OurBroker, stored: Any) -> None:
    """Stop the broker for some seconds once it has stored rows."""
    while not stored():
        time.sleep(0.1)
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(broker.pid, signal.SIGCONT)


def run_once(
    spark: Any, names: OurNameServer, broker: OurBroker, rows: int, size: int, *, stops: bool
) -> str:
    """Write rows once, and return what was found. Raises AssertionError."""
    topic = f"Long{rows}{'Stopped' if stops else ''}"
    with AdminClient(names.address) as admin:
        admin.create_topic(topic, 4, key=CLUSTER)

        def stored() -> int:
            return sum(map(admin.max_offset, admin.fetch_publish_message_queues(topic)))

        # Encrypted zeros are a fast way to generate random bytes in the JVM.
        zeros = f"repeat('0', {size - 28})"
        frame = spark.range(0, rows, 1, 2).selectExpr(
            f"aes_encrypt({zeros}, lpad(cast(id AS string), 16, 'k')) AS body", "cast(id AS string) AS keys"
        )
        memory = PeakMemory(spark.sparkContext._gateway.proc.pid)
        memory.start()
        stopping = threading.Thread(target=stop_soon, args=(broker, stored))
        if stops:
            stopping.start()
        began = time.perf_counter()
        reports = write_batch(
            frame, {"nameServer": names.address, "topic": topic, "maxMessageBytes": 8 * MIB}
        )
        seconds = time.perf_counter() - began
        if stops:
            stopping.join()
    retried, peak = sum(report.retried for report in reports), memory.end()
    count = 0
    once: set[str] = set()
    seen = SeenRows()
    for message in messages_of(names.address, topic):
        count += 1
        once.update(row.keys[0] for row in seen.new([message]))
    text = (
        f"{rows} rows of {size} bytes, broker {'stopped' if stops else 'running'}: {seconds:.1f} s, "
        f"{count} stored, {len(once)} after dedupe, {retried} reported as retried, "
        f"workers at most {peak // MIB} MiB"
    )
    assert len(once) == rows, text
    assert count <= rows + (retried if stops else 0), text
    assert peak <= WORKER_BYTES_MAX, text
    return text


def main() -> None:
    """Print a line for each write."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.spark_rows")
    parser.add_argument("--small", type=int, default=20_000, help="rows of 8,000 bytes")
    parser.add_argument("--large", type=int, default=300, help="rows of 4 MB")
    options = parser.parse_args()
    spark = start_session("long rows", settings={"spark.sql.execution.arrow.maxBytesPerBatch": "4m"})
    conf = {**PATIENT, "maxMessageSize": 16 * MIB}
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-long-rows-") as folder,
        OurNameServer(Path(folder)) as names,
        OurBroker(Path(folder), names.address, conf=conf) as broker,
    ):
        for rows, size in ((options.small, 8000), (options.large, 4_000_000)):
            for stops in (False, True):
                print(run_once(spark, names, broker, rows, size, stops=stops), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
