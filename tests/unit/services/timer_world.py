"""A small store with timers, under a clock that tests set."""

from __future__ import annotations

from pathlib import Path

from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record, decode_all
from rocketpy_broker.services.timers.files import TimerFiles
from rocketpy_broker.services.timers.messages import (
    RECALLED,
    TIMER_TOPIC,
    due_time,
    out_time,
    to_timer_message,
)
from rocketpy_broker.services.timers.timers import Timers
from rocketpy_broker.store import MessageInner, MessageStore, StoreConfig
from tests.unit.store.helpers import kill, small_config

START_MS = 1_700_000_000_250
DAY_MS = 86_400_000


class TimerWorld:
    """A store and its timers."""

    def __init__(self, root: Path, *, window_s: int = 172_800, config: StoreConfig | None = None) -> None:
        self.now = START_MS
        self.root = root
        self.window_s = window_s
        self.config = config or small_config(root)
        self.log_bytes = 5200
        self.dues: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        """The saved counts."""
        self.queue_count = 1000
        """Number of queues that each topic has when a message is delivered."""
        self._open()

    def _open(self, *, delivers: bool = True) -> None:
        self.store = MessageStore(self.config, clock=lambda: self.now)
        self.store.open()
        self.files = TimerFiles(self.store.disk, self.root, self.log_bytes)
        self.timers = Timers(
            self.store, self.files, lambda: self.window_s, lambda _, queue_id, __: queue_id % self.queue_count
        )
        self.timers.load_counts(self.counts)
        self.timers.load(self.now)
        if delivers:
            self.timers.begin(self.now)

    def send(self, name: str, *, topic: str = "Real", queue_id: int = 0, **asked: int) -> None:
        """Store a timed message; asked: its timer properties."""
        message = MessageInner(topic, queue_id, name.encode(), born_timestamp=self.now)
        texts = {key: str(value) for key, value in asked.items()}
        properties = {props.PROPERTY_UNIQ_KEY: name, **texts}
        due_ms = due_time(properties, self.now)
        self.dues[name] = due_ms
        message.properties = props.encode(properties).encode()
        to_timer_message(message, due_ms)
        self.store.put_message(message)

    def recall(self, name: str, *, topic: str = "Real", prefix: str = "Real+") -> None:
        """Store a recall, as the handler of RECALL_MESSAGE does."""
        message = MessageInner(topic, 0, b"0", born_timestamp=self.now)
        properties = {RECALLED: f"{prefix}{name}", props.PROPERTY_UNIQ_KEY: name}
        message.properties = props.encode(properties).encode()
        to_timer_message(message, out_time(self.dues[name]) + 1)
        self.store.put_message(message)

    def run(self, until_ms: int, *, count_max: int = 100) -> None:
        """Let the clock go to `until_ms`, and call the timers when they want it.

        Seconds without due messages are skipped, as if the event loop was busy.
        """
        while True:
            while self.timers.enqueue(self.now, 100):
                pass
            count, next_ms = self.timers.deliver(self.now, count_max)
            if count or (next_ms or self.now + 1) <= self.now:
                continue
            dues = [due_ms for due_ms in self.dues.values() if due_ms > self.now]
            at_ms = min([until_ms, *dues, self.now + self.window_s * 100])
            if next_ms is None or at_ms <= self.now:
                break
            if self.timers._due:
                at_ms = min(at_ms, next_ms)
            self.now = at_ms
        self.now = max(self.now, until_ms)

    def save(self) -> None:
        """Save the checkpoint."""
        progress = self.timers.progress(self.now)
        self.counts = dict(self.timers.counts)
        self.store.flush(thorough=True)
        self.files.flush()
        self.files.checkpoint_file.save(progress)
        self.timers.checkpoint = progress

    def stop(self) -> None:
        """Stop cleanly."""
        self.store.dispatch()
        while self.timers.enqueue(self.now, 100):
            pass
        self.timers.finish_slot()
        self.save()
        self.files.close()
        self.store.close()

    def restart(self, *, crash: bool, delivers: bool = True) -> None:
        """Stop and start, or kill and start."""
        if crash:
            self.files.close()
            kill(self.store)
        else:
            self.stop()
        self._open(delivers=delivers)

    def delivered(self, topic: str = "Real", queue_id: int = 0) -> list[Record]:
        """Every message of a queue."""
        found: list[Record] = []
        offset = 0
        while offset < self.store.max_offset_in_queue(topic, queue_id):
            result = self.store.get_message(topic, queue_id, offset, 32)
            found += decode_all(result.body)
            offset = result.next_begin_offset
        return found

    def late(self, topic: str = "Real", queue_id: int = 0) -> dict[str, int]:
        """Name of each delivered message -> how many ms late it was delivered; it must be there once."""
        records = self.delivered(topic, queue_id)
        found = {r.body.decode(): r.store_timestamp - self.dues[r.body.decode()] for r in records}
        assert len(found) == len(records), "a message was delivered twice"
        return found

    def rolled(self) -> int:
        """Number of records in the timer topic."""
        return self.store.max_offset_in_queue(TIMER_TOPIC, 0)
