"""A real broker under load, killed repeatedly with SIGKILL: `python -m tests.crash.kill --rounds 100`.

All rounds use one store, so that each start recovers the store of the last kill. A copy is opened after each
kill. It must have every acknowledged message at the offset in its response, and no message that was not sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.record import decode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    IndexConfig,
    MessageStore,
    StoreConfig,
)
from rocketpy_broker.store.log.log_scan import LogScan
from tests.integration.raw_client import RawClient
from tests.store_checks import check_store

_QUEUES = 4
_CONNECTIONS = 4
CONF = """brokerName=killed
storePathRootDir={root}/store
mappedFileSizeCommitLog=262144
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=64
maxIndexNum=500
flushDiskType={flush}
"""


@dataclass(slots=True)
class Rounds:
    """Rounds with one store. acknowledged: body by (queue id, queue offset). sent: count of messages."""

    root: Path
    random: Random
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    sent: int = 0
    kills: int = 0
    stored: int = 0
    problems: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """One round: start (and so recover), load, kill, look."""
        conf = self.root / "broker.conf"
        conf.write_text(CONF.format(root=self.root, flush=("ASYNC_FLUSH", "SYNC_FLUSH")[self.kills % 2]))
        process, address = await start_broker(conf)
        load = [asyncio.create_task(self._send(address)) for _ in range(_CONNECTIONS)]
        try:
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        self.kills += 1
        await asyncio.wait_for(asyncio.gather(*load), 20)
        await asyncio.to_thread(self._look)

    async def _send(self, address: str) -> None:
        """Send until the broker is killed, with several messages in flight; record the acknowledged ones."""
        with contextlib.suppress(ConnectionError, OSError, TimeoutError):
            async with await RawClient.open(address) as client:
                while True:
                    await self._send_some(client)

    async def _send_some(self, client: RawClient) -> None:
        calls = []
        for _ in range(self.random.randrange(1, 40)):
            number, self.sent = self.sent, self.sent + 1
            body = b"%d " % number * self.random.randrange(1, 60)
            properties = f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02"
            header = SendMessageRequestHeaderV2(
                producer_group="g", topic="Killed", default_topic="TBW102",
                default_topic_queue_nums=_QUEUES, queue_id=number % _QUEUES, sys_flag=0,
                born_timestamp=1, flag=0, properties=properties,
            )  # fmt: skip
            calls.append((number % _QUEUES, body, header))
        waiting = {}
        frames = []
        for opaque, (queue_id, body, header) in enumerate(calls):
            command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body)
            command.opaque = opaque
            waiting[opaque] = queue_id, body
            frames.append(encode_command(command))
        client.writer.write(b"".join(frames))
        while waiting:
            response = await client.next()
            queue_id, body = waiting.pop(response.opaque)
            if response.code == ResponseCode.SUCCESS:
                self.acknowledged[queue_id, int(response.ext_fields()["queueOffset"])] = body

    def _look(self) -> None:
        """Open a copy of the killed store."""
        copy = self.root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root / "store", copy)
        store = MessageStore(_store_config(copy))
        try:
            store.open()
            self._compare(store)
            self.problems += check_store(store).problems[:3]
        finally:
            store.close()

    def _compare(self, store: MessageStore) -> None:
        found: dict[tuple[int, int], bytes] = {}
        for view in LogScan(store.commit_log.files, store.min_physical_offset):
            raw = store.look_message(view.physical_offset)
            if view.topic == "Killed" and raw is not None:
                found[view.queue_id, view.queue_offset] = decode(raw).body
        self.stored = len(found)
        lost = [place for place, body in self.acknowledged.items() if found.get(place) != body]
        if lost:
            self.problems.append(f"kill {self.kills}: {len(lost)} acknowledged are gone: {lost[:3]}")
        for place, body in found.items():
            if not 0 <= int(body.split()[0]) < self.sent:
                self.problems.append(f"kill {self.kills}: {place} was never sent: {body[:40]!r}")
        self.acknowledged = found  # messages that were recovered once must stay


def _store_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        commit_log=CommitLogConfig(segment_bytes=262144),
        consume_queue=ConsumeQueueConfig(segment_bytes=2000),
        index=IndexConfig(slots=64, entries=500),
    )


async def start_broker(conf: Path) -> tuple[Process, str]:
    """A broker's process and address, once it serves."""
    command = ("-m", "rocketpy_broker.cli", "broker", "-c", str(conf), "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = (await process.stdout.readline()).decode()
    if " ready at " not in line:
        raise RuntimeError(f"the broker did not start: {line!r}")
    return process, line.split()[-1]


def main() -> int:
    """Run the rounds; 0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rounds-a-store", type=int, default=10, help="then a new one (default: %(default)s)"
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    done = stored = problems = 0
    started = time.monotonic()
    while done < options.rounds and not problems:
        with tempfile.TemporaryDirectory(prefix="rocketpy-kill-") as root:
            rounds = Rounds(Path(root), Random(options.seed + done))
            for _ in range(min(options.rounds_a_store, options.rounds - done)):
                asyncio.run(rounds.run())
            done += rounds.kills
            stored += rounds.stored
            problems += len(rounds.problems)
            print(f"{done} kills, {stored} messages acknowledged or stored", *rounds.problems, flush=True)
    print(f"{done} kills, {problems} problems, {time.monotonic() - started:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
