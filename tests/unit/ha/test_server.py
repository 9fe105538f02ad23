"""A master's HA port, on a socket."""

import socket

from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.ha.progress import Progress
from rocketpy_broker.ha.server import HaServer
from rocketpy_broker.ha.settings import LinkSettings
from rocketpy_broker.ha.wire import REPORT
from tests.integration.ha_pair import until
from tests.unit.ha.logs import MemoryLog


async def test_a_slave_that_hangs_is_let_go() -> None:
    """Each hang of a slave would cost its master a socket and its buffer for ever: 64, and none is let in."""
    source = MemoryLog(bytes(32 << 20), segment_bytes=64 << 20)
    progress = Progress(behind_bytes_max=1 << 30)
    server = HaServer(
        source, LinkSettings(silence_ms=300, heartbeat_ms=100), progress, lambda: None, Tasks("a broker")
    )
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    with socket.create_connection((server.address.host, server.address.port)) as hanging:
        hanging.sendall(REPORT.pack(1))
        await until(lambda: bool(progress.states(source.max_offset)))
        await until(lambda: not progress.states(source.max_offset))
    await server.close()
