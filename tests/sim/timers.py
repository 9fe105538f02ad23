"""``python -m tests.sim.timers [COUNT] [SEED]``: many timed messages over 40 days of a simulated clock.

COUNT messages (1,000,000) are due between 0.5 s and 40 days after they were sent. They are sent during the
first hour. The broker is stopped and killed meanwhile, and some messages are recalled. Each of the others
must be delivered once, in its millisecond or, if the broker was down, at its next start.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Final

from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.services.timers.files import TimerFiles
from rocketpy_broker.services.timers.messages import RECALLED, out_time, to_timer_message
from rocketpy_broker.services.timers.timers import Timers
from rocketpy_broker.store import MessageInner, MessageStore, StoreConfig
from tests.unit.store.helpers import kill

START_MS: Final = 1_700_000_000_250
LEAST_MS: Final = 500
DAY_MS: Final = 86_400_000
SENDS_MS: Final = 3_600_000
ROUNDS: Final = 1000
"""The messages are sent in this number of batches."""
RESTARTS: Final = 40
RECALLS: Final = 50
"""One of this number of messages is recalled."""
_WINDOW_S: Final = 172_800
_LOG_BYTES: Final = 52 << 20
_AT_ONCE: Final = 1000


class TimedWorld:
    """A store with timers, and what was sent to it."""

    def __init__(self, root: Path, seed: int, days: int) -> None:
        self._root = root
        self._most_ms = days * DAY_MS
        self._random = random.Random(seed)
        self.now = START_MS
        self.dues = array("q")
        """When each message is due."""
        self._restarts: list[int] = []
        """When the broker started again, newest last."""
        self._recalled: set[int] = set()
        self._open()

    def _open(self) -> None:
        self._store = MessageStore(StoreConfig(root=self._root), clock=lambda: self.now)
        self._store.open()
        self._store.dispatch()
        self._files = TimerFiles(self._store.disk, self._root, _LOG_BYTES)
        self._timers = Timers(self._store, self._files, lambda: _WINDOW_S, lambda _, queue_id, __: queue_id)
        self._timers.load(self.now)
        self._timers.begin(self.now)

    def _close(self, *, kills: bool) -> None:
        if kills:
            self._files.close()
            kill(self._store)
            return
        self._timers.finish_slot()
        self._save()
        self._files.close()
        self._store.close()

    def _save(self) -> None:
        progress = self._timers.progress(self.now)
        self._store.flush(thorough=True)
        self._files.flush()
        self._files.checkpoint_file.save(progress)
        self._timers.checkpoint = progress

    def restart(self) -> None:
        """Stop or kill the broker, and start it up to an hour later."""
        if self._random.random() < 0.5:
            self._save()
        self._close(kills=self._random.random() < 0.5)
        self.now += self._random.randrange(3_600_000)
        self._open()
        self._restarts.append(self.now)

    def send(self, count: int) -> None:
        """Send messages, and recall some of them."""
        for number in range(len(self.dues), len(self.dues) + count):
            # As many of each order of magnitude.
            delay_ms = int(LEAST_MS * (self._most_ms / LEAST_MS) ** self._random.random())
            self.dues.append(self.now + delay_ms)
            self._append(number, {props.TIMER_DELAY_MS: str(delay_ms)}, self.dues[number])
            if number % RECALLS == 0 and delay_ms > 10_000:
                self._recalled.add(number)
                self._append(number, {RECALLED: f"Real+{number}"}, out_time(self.dues[number]) + 1)
        self._store.write_out()
        self._store.dispatch()

    def _append(self, number: int, texts: dict[str, str], due_ms: int) -> None:
        message = MessageInner("Real", number % 4, b"%d" % number, born_timestamp=self.now)
        message.properties = props.encode({props.PROPERTY_UNIQ_KEY: str(number), **texts}).encode()
        to_timer_message(message, due_ms)
        self._store.append(message)

    def run(self, until_ms: int) -> None:
        """Let the clock go, and call the timers when they want it or a message is due."""
        while True:
            while self._timers.enqueue(self.now, _AT_ONCE):
                pass
            count, next_ms = self._timers.deliver(self.now, _AT_ONCE)
            if count:
                self._store.dispatch()
                continue
            if next_ms is None or next_ms > until_ms:
                break
            self.now = max(self.now, next_ms)
        self.now = max(self.now, until_ms)

    def check(self) -> str:
        """Return the figures. Raises AssertionError for a broken promise; see `simulate`."""
        seen, late = bytearray(len(self.dues)), 0
        for queue_id in range(4):
            offset, end = 0, self._store.max_offset_in_queue("Real", queue_id)
            while offset < end:
                result = self._store.get_message("Real", queue_id, offset, 256)
                for record in decode_all(result.body):
                    number, stored = int(record.body), record.store_timestamp
                    assert not seen[number], f"message {number} was delivered twice"
                    assert number not in self._recalled, f"message {number} was recalled"
                    seen[number] = 1
                    lateness = stored - self.dues[number]
                    assert lateness >= 0, f"message {number} was early by {-lateness} ms"
                    assert not lateness or stored in self._restarts, (
                        f"message {number} was {lateness} ms late"
                    )
                    late += lateness > 0
                offset = result.next_begin_offset
        lost = len(seen) - sum(seen) - len(self._recalled)
        assert not lost, f"{lost} messages were lost"
        return (
            f"{sum(seen):,} messages delivered once, {len(self._recalled):,} recalled, {len(self._restarts)} "
            f"restarts, and {late:,} messages that were due before them"
        )

    def close(self) -> None:
        """Close the store."""
        self._close(kills=False)


def simulate(root: Path, count: int, seed: int, days: int = 40) -> str:
    """Send messages that are due within some days, let the time go by, and return the figures.

    Raises AssertionError for a message that is lost, early, late in a running broker, or delivered twice.
    """
    world, draw = TimedWorld(root, seed, days), random.Random(seed)
    rounds = min(ROUNDS, count)
    for number in range(rounds):
        world.send(count * (number + 1) // rounds - len(world.dues))
        world.run(world.now + SENDS_MS // rounds)
    end = world.now + (days + 1) * DAY_MS
    # More of them in the first hours, when most messages are due.
    for after in sorted(int((end - world.now) ** draw.random()) for _ in range(RESTARTS)):
        world.run(max(world.now, START_MS + after))
        world.restart()
    world.run(end)
    found = world.check()
    world.close()
    return found


def main(arguments: list[str]) -> None:
    """Run one simulation in a temporary directory."""
    count, seed = (*map(int, arguments), *(1_000_000, 1)[len(arguments) :])
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="rocketpy-timers-") as root:
        print(f"seed {seed}: {simulate(Path(root), count, seed)}; {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])
