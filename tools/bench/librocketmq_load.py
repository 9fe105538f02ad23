"""The benchmark's client process for the PyPI package `rocketmq`: threads of sends over librocketmq.

It has the interface of sdk_load.py; "threads" in a request is the number of threads. All producers of a
process share one client instance of the library, which uses the first name server only, so a process drives
one server.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from typing import Any

from tools.bench.sdk_load import Tally

rocketmq: Any = importlib.import_module("rocketmq.client")  # it ships no types


def keep_sending(producer: Any, what: dict[str, Any], tally: Tally, until: float) -> None:
    """Send until the end, in one of the threads. The library releases the GIL while it sends."""
    body = b"b" * what["bytes"]
    while (before := time.perf_counter()) < until:
        message = rocketmq.Message(what["topic"])
        message.set_body(body)
        try:
            ok = producer.send_sync(message).status == rocketmq.SendStatus.OK
        except Exception:  # noqa: BLE001 - any of its errors is a failed send
            ok = False
        tally.sent += ok
        tally.failed += not ok
        tally.nanoseconds.append(int((time.perf_counter() - before) * 1e9))


def measure_load(producer: Any, what: dict[str, Any]) -> dict[str, Any]:
    """Send as the request `what` describes; return the result line."""
    start, whole = time.perf_counter(), Tally()
    tallies = [Tally() for _ in range(what["threads"])]
    threads = [
        threading.Thread(target=keep_sending, args=(producer, what, tally, start + what["seconds"]))
        for tally in tallies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tally in tallies:
        whole.sent += tally.sent
        whole.failed += tally.failed
        whole.nanoseconds += tally.nanoseconds
    return whole.report(time.perf_counter() - start)


def main() -> None:
    """Respond to requests until the input ends."""
    producer: Any = None
    for line in sys.stdin:
        what = json.loads(line)
        if producer is None:
            producer = rocketmq.Producer("bench_librocketmq")
            producer.set_namesrv_addr(what["namesrv"])
            producer.start()
        print(json.dumps(measure_load(producer, what)), flush=True)
    if producer is not None:
        producer.shutdown()


if __name__ == "__main__":
    main()
