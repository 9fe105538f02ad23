"""A slave's end of the connection, on a socket: what it does when its master does not have it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.ha.client import HaClient, HaClientState
from rocketpy_broker.ha.log import EpochFile
from rocketpy_broker.ha.progress import Progress
from rocketpy_broker.ha.server import HaServer
from rocketpy_broker.ha.settings import LinkSettings
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.driver import StoreDriver
from tests.unit.ha.logs import MemoryLog
from tests.unit.store.helpers import small_config
from tests.waiting import until


@asynccontextmanager
async def following(root: Path, address: Address, settings: LinkSettings) -> AsyncIterator[HaClient]:
    """A slave with an empty store that tries again after a minute."""
    with MessageStore(small_config(root)) as store:
        client = HaClient(
            StoreDriver(store), EpochFile(store.disk, root / "haEpochs.json"), settings, Tasks("a broker"),
            name="b", broker_id=1, reconnect_ms=60_000, on_copied=lambda: None,
        )  # fmt: skip
        client.follow(address)
        client.start()
        try:
            yield client
        finally:
            await client.close()


async def test_a_slave_waits_before_it_tries_again(tmp_path: Path) -> None:
    """It would come to a master that drops it thousands of times a second, or seem to copy from it."""
    came: list[asyncio.StreamWriter] = []

    async def drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    async with following(tmp_path, Address("tcp", *server.sockets[0].getsockname()), LinkSettings()) as slave:
        await until(lambda: slave.problem != "")
        assert slave.state is HaClientState.WAITS
        await asyncio.sleep(0.2)  # for what must not happen
        assert len(came) == 1
    server.close()
    await server.wait_closed()


async def test_a_slave_that_was_refused_says_so_while_it_waits(tmp_path: Path) -> None:
    """An operator would take it for one that waits for its master, and that nothing has to be done for."""
    progress = Progress(behind_bytes_max=1 << 30)
    server = HaServer(
        MemoryLog(),
        LinkSettings(secret="theirs"),
        progress,
        lambda: None,
        Tasks("a broker"),
    )
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    async with following(tmp_path, server.address, LinkSettings(secret="ours")) as slave:
        await until(lambda: slave.problem != "")
        assert slave.state is HaClientState.REFUSED
    await server.close()
