"""A SYNC_MASTER is killed under load and does not return: `python -m tests.crash.ha_kill --rounds 100`.

Each round starts processes of a new master and a new slave. The master is killed at a random instant; then
the slave is killed, or stopped. Its store must have every message that the master acknowledged with SEND_OK,
at the offset in the response.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from rocketpy.protocol.bodies import KVTable
from rocketpy.protocol.codes import RequestCode
from tests.crash.kill import CONF, Rounds, start_broker
from tests.integration.raw_client import RawClient

_ROLE = "brokerRole={role}\nbrokerId={id}\n"
_CONNECTIONS = 4


class HaRounds(Rounds):
    """One round with one pair; the slave's store is checked."""

    acked = 0
    """Messages that the master acknowledged before it was killed."""

    async def run(self) -> None:
        """Start both, load the master, kill it, check the slave's messages."""
        flush = ("ASYNC_FLUSH", "SYNC_FLUSH")[self.random.randrange(2)]
        conf = CONF.format(root=self.root / "lost", flush=flush) + _ROLE.format(role="SYNC_MASTER", id=0)
        (self.root / "master.conf").write_text(conf)
        master, address = await start_broker(self.root / "master.conf")
        processes = [master]
        load: list[asyncio.Task[None]] = []
        try:
            conf = CONF.format(root=self.root, flush=flush) + _ROLE.format(role="SLAVE", id=1)
            conf += f"haMasterAddress={(await _info(address))['haAddress']}\n"
            (self.root / "slave.conf").write_text(conf)
            slave, _ = await start_broker(self.root / "slave.conf")
            processes.append(slave)
            async with asyncio.timeout(60):
                while (await _info(address))["haAckedOffset"] == "-1":  # noqa: ASYNC110 - as below
                    await asyncio.sleep(0.02)
            load += [asyncio.create_task(self._send(address)) for _ in range(_CONNECTIONS)]
            async with asyncio.timeout(60):
                while not self.acknowledged:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
            await asyncio.sleep(self.random.uniform(0, 0.7))
            master.kill()
            self.kills += 1
            await asyncio.wait_for(asyncio.gather(*load), 20)
            self.acked = len(self.acknowledged)
            slave.send_signal(self.random.choice((signal.SIGKILL, signal.SIGTERM)))
            await slave.wait()
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
        await asyncio.to_thread(self._look)


async def _info(address: str) -> dict[str, str]:
    async with await RawClient.open(address) as client:
        return KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


def main() -> int:
    """Run the rounds; 0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.ha_kill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    acked = problems = 0
    started = time.monotonic()
    for done in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="rocketpy-ha-kill-") as root:
            rounds = HaRounds(Path(root), Random(options.seed + done))
            asyncio.run(rounds.run())
        acked += rounds.acked
        problems += len(rounds.problems)
        print(f"{done + 1} masters killed, {acked} messages acknowledged", *rounds.problems, flush=True)
    seconds = time.monotonic() - started
    print(f"{options.rounds} masters killed, {acked} acknowledged, {problems} problems, {seconds:.0f} s")
    return 1 if problems or not acked else 0


if __name__ == "__main__":
    sys.exit(main())
