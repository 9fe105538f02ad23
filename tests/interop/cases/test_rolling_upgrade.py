"""One store directory that brokers of RocketMQ 4.6 to 5.5 and ours serve in turn, under load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from rocketpy import AdminClient
from tests.interop.cluster import new_broker, stopping
from tests.interop.java_peer import JavaPeer, java_environment, make_home
from tests.interop.processes import (
    BrokerProcess,
    NameServerProcess,
    free_broker_port,
)
from tools.soak.witness import Witness

pytestmark = [pytest.mark.interop, pytest.mark.versions]

WAY: Final = ("4.6.0", "our", "4.9.7", "5.3.3", "5.5.0", "our")
"""The brokers that serve the store, in order: versions of RocketMQ, and ours."""
TOPIC: Final = "Rolling"
SERVED_S: Final = 12.0
"""For how long each broker serves."""
SETTLE_S: Final = 120.0
PAUSE_MS: Final = 10
GROUPS: Final = ("our_members", "java_members")


class Load:
    """A producer and a consumer of each make, and what they have seen. Each consumer has its own group."""

    def __init__(self, peer: JavaPeer, home: Path, namesrv: str) -> None:
        self._peer, self._home, self._namesrv = peer, make_home(home), namesrv
        self.witness = Witness(dict.fromkeys(GROUPS, False))
        self.repeats = dict.fromkeys(GROUPS, 0)
        """Repeated deliveries, without failed messages: a killed broker of RocketMQ repeats those."""
        self._handled: set[tuple[str, str]] = set()
        self.heard = asyncio.Event()
        """Set by each line of a member."""

    @asynccontextmanager
    async def member(self, make: str, role: str, group: str, first: int = 0) -> AsyncIterator[None]:
        """Run a member in the block; SIGTERM ends it."""
        arguments = (role, self._namesrv, TOPIC, group, str(first), str(PAUSE_MS))
        if make == "our":
            command, environment = [sys.executable, "-m", "tools.soak.member", *arguments], dict(os.environ)
        else:
            command = self._peer.command("Soak", *arguments, home=self._home)
            environment = java_environment(self._home)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
        reading = asyncio.create_task(self._read(process, group))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await reading
            await process.wait()

    async def _read(self, process: Process, group: str) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            now = time.monotonic()
            self.witness.disturb(group, now)  # all the time a broker comes or goes
            self.witness.observe(group, group, line.decode(), now)
            match line.decode().split():
                case ["got", number, _, _, "0"]:
                    self.repeats[group] += (group, number) in self._handled
                    self._handled.add((group, number))
            self.heard.set()

    async def wait_for_sends(self, count: int) -> None:
        """Wait until so many further messages are acknowledged."""
        wanted = len(self.witness.acked) + count
        while len(self.witness.acked) < wanted:
            self.heard.clear()
            await self.heard.wait()

    async def settle(self) -> None:
        """Wait until each group has all acknowledged messages, or for so long that they are lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while self.witness.missing():
                    self.heard.clear()
                    await self.heard.wait()


@pytest.mark.parametrize("ending", ["stopped", "killed"])
async def test_an_upgrade_loses_nothing(
    peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path, ending: str
) -> None:
    """Acknowledged messages would be lost, or our members handle more messages again than RocketMQ's."""
    port = free_broker_port()

    def broker(at: int) -> BrokerProcess:
        is_ours = WAY[at] == "our"
        return new_broker(
            "our" if is_ours else "java",
            None if is_ours else peer.of_version(WAY[at]),
            tmp_path / f"{at}",
            namesrv.address,
            store=tmp_path / "store",
            port=port,
            conf={"brokerName": "rolling"},
        )

    load = Load(peer, tmp_path / "java", namesrv.address)
    brokers: Sequence[BrokerProcess] = [await asyncio.to_thread(broker, at) for at in range(len(WAY))]
    with stopping(brokers):
        await asyncio.to_thread(brokers[0].start)
        async with AdminClient(namesrv.address) as admin:
            await admin.topics.create(TOPIC, queues=4)
        async with AsyncExitStack() as consumers, AsyncExitStack() as producers:
            await consumers.enter_async_context(load.member("our", "concurrent", GROUPS[0]))
            await consumers.enter_async_context(load.member("java", "concurrent", GROUPS[1]))
            await producers.enter_async_context(load.member("our", "produce", "our_producers", 10**6))
            await producers.enter_async_context(load.member("java", "produce", "java_producers", 2 * 10**6))
            for at, serving in enumerate(brokers):
                if at:
                    await asyncio.to_thread(serving.start)
                await load.wait_for_sends(300)
                await asyncio.sleep(SERVED_S)
                if at < len(brokers) - 1:
                    await asyncio.to_thread(serving.kill if ending == "killed" else serving.stop)
            await producers.aclose()
            await load.settle()
            load.witness.settle()
    print(
        f"{ending}: {len(load.witness.acked)} acknowledged, {load.witness.unknown} sends failed, "
        f"{load.witness.duplicates} repeated deliveries, without failed messages {load.repeats}"
    )
    assert load.witness.problems == []
    assert load.repeats[GROUPS[0]] <= load.repeats[GROUPS[1]]
