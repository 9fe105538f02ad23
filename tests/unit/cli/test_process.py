"""Garbage collection and memory of a server's process."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import trustme

COLLECTS_WHILE_DECODING = sys.version_info < (3, 12)
"""Since Python 3.12 the garbage collector runs between bytecode instructions only."""

_HEARTBEATS = """
import gc
import sys

import rocketpy_broker.cli
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketpy_broker.cli.process import tune_memory

if sys.argv[1] == "tuned":
    tune_memory()
wanted = [SubscriptionData(topic="T", sub_string="*", sub_version=1)]
groups = [ConsumerData(group_name=f"g{n}", subscription_data_set=wanted) for n in range(3000)]
body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
del wanted, groups
before = gc.get_stats()[2]["collections"]
youngest = [0]
gc.callbacks.append(lambda phase, info: youngest.append(len(gc.get_objects(0)) if phase == "start" else 0))
for _ in range(50):
    HeartbeatData.decode(body)
print(gc.get_stats()[2]["collections"] - before, max(youngest))
"""

_LARGE_FRAMES = """
import sys
from pathlib import Path

from rocketpy_broker.cli.process import tune_memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if sys.argv[1] == "tuned":
    tune_memory()
bytearray(16 << 20)  # glibc raises its thresholds when this is freed
before = resident()
frames, small = [], []
for _ in range(100):
    frames.append(b"x" * (1 << 20))
    small.append(bytearray(50_000))  # larger than the gaps that imports left
frames.clear()
print(resident() - before)
"""

_BETWEEN_SMALL_OBJECTS = """
import asyncio
import contextlib
import sys
from pathlib import Path

from rocketpy_broker.cli.process import trim_memory, tune_memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def main() -> None:
    tune_memory()
    before = resident()
    freed, kept = [], []
    for _ in range(500):
        freed.append(b"x" * 100_000)
        kept.append(bytearray(1_000))
    freed.clear()
    if sys.argv[1] == "trimmed":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await trim_memory(0.01)
    print(resident() - before)


asyncio.run(main())
"""

_HALF_HANDSHAKES = """
import asyncio
import gc
import socket
import sys
from asyncio.sslproto import SSLProtocol
from pathlib import Path

from rocketpy_broker import NameServer, load_namesrv_config
from rocketpy_broker.cli.process import tune_memory

COUNT = 200


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def main() -> None:
    how, certificate = sys.argv[1:]
    tls = {"tls.server.certPath": certificate, "tls.server.keyPath": certificate}
    server = NameServer(load_namesrv_config(overrides={"listen": "tls://127.0.0.1:0", **tls}))
    await server.start()
    if how == "tuned":
        tune_memory()
    before = resident()
    clients = [socket.create_connection((server.address.host, server.address.port)) for _ in range(COUNT)]
    for client in clients:
        client.sendall(bytes([22]))  # the first byte of a handshake
    while sum(isinstance(one, SSLProtocol) for one in gc.get_objects()) < COUNT:
        await asyncio.sleep(0.01)
    print((resident() - before) // COUNT)
    for client in clients:
        client.close()
    await server.close()


asyncio.run(main())
"""


def test_heartbeats_cause_few_full_collections() -> None:
    """A full collection stops the event loop for 60 ms: new groups cost a third of the processor time."""
    assert _collections("tuned")[0] <= 1
    if COLLECTS_WHILE_DECODING:
        assert _collections("as CPython does")[0] > 4


@pytest.mark.skipif(not COLLECTS_WHILE_DECODING, reason="the collector does not run while a body is decoded")
def test_collections_of_the_youngest_objects_are_short() -> None:
    """A collection of 10,000 young objects stopped the event loop for 5 ms."""
    assert 0 < _collections("tuned")[1] < 3000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such thresholds")
def test_the_memory_of_large_frames_is_returned() -> None:
    """After an attack with large frames the process kept 50 MiB that it did not use."""
    assert _run(_LARGE_FRAMES, "tuned")[0] < 10 << 20 < _run(_LARGE_FRAMES, "as glibc does")[0]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such function")
def test_free_memory_between_small_objects_is_returned() -> None:
    """After thousands of TLS handshakes the process kept 200 MiB that it did not use."""
    kept, trimmed = (_run(_BETWEEN_SMALL_OBJECTS, how)[0] for how in ("as glibc does", "trimmed"))
    assert trimmed < 10 << 20 < 40 << 20 < kept


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc has the memory of the process")
def test_a_tls_handshake_takes_little_memory(tmp_path: Path) -> None:
    """8,000 clients took 2 GiB, even if they only began a handshake."""
    certificate = tmp_path / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    small, large = (_run(_HALF_HANDSHAKES, how, str(certificate))[0] for how in ("tuned", "as asyncio does"))
    assert small < 192 << 10 < 256 << 10 < large


@cache
def _collections(how: str) -> tuple[int, int]:
    """The number of full collections, and the largest number of objects in the youngest generation."""
    full, youngest = _run(_HEARTBEATS, how)
    return full, youngest


def _run(program: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]
