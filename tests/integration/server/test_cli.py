"""The command rocketpy-broker, as an operator starts and stops it."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from rocketpy import Message, Producer
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import GetMaxOffsetRequestHeader, GetRouteInfoRequestHeader
from rocketpy.protocol.headers import SendMessageRequestHeaderV2 as SendHeader
from rocketpy_broker.store import MessageStore, StoreConfig
from tests.integration.processes import output_of, start, stop
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S

DEV = ("dev", "--listen", "127.0.0.1:0", "--set", "listenPort=0")
"""Name server and broker at free ports."""


async def store_one(address: str) -> dict[str, str]:
    header = SendHeader(
        producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    async with await RawClient.open(address) as client:
        return (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")).ext_fields()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_broker_keeps_its_messages_however_it_ends(tmp_path: Path, number: int) -> None:
    """Without this a kill -9 would lose messages that were acknowledged."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b1\nstorePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n")
    namesrv, namesrv_address = await start("namesrv", "--listen", "127.0.0.1:0")
    arguments = ("broker", "-c", str(conf), "--listen", "127.0.0.1:0", "--namesrv", namesrv_address)
    broker, address = await start(*arguments)
    assert (await store_one(address))["queueOffset"] == "0"
    async with await RawClient.open(namesrv_address) as client:
        request = GetRouteInfoRequestHeader(topic="TBW102")
        assert (await client.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, request)).code == 0
    assert await stop(broker, number) == (0 if number == signal.SIGTERM else -number)
    broker, address = await start(*arguments)
    async with await RawClient.open(address) as client:
        request2 = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
        assert (await client.call(RequestCode.GET_MAX_OFFSET, request2)).ext_fields() == {"offset": "1"}
    assert (await store_one(address))["queueOffset"] == "1"
    assert await stop(broker) == 0
    assert await stop(namesrv, signal.SIGINT) == 0


async def test_dev_runs_both(tmp_path: Path) -> None:
    """Without this a newcomer would need two terminals."""
    process, namesrv_address = await start(*DEV, "--store", str(tmp_path))
    async with await RawClient.open(namesrv_address) as client:
        answer = await client.call(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic="TBW102")
        )
        assert answer.code == 0
    assert await stop(process) == 0


async def test_dev_takes_settings() -> None:
    """Nobody could try SQL92, or any setting of a broker, without files and two processes."""
    process, _ = await start(*DEV, "--set", "enablePropertyFilter=true")
    async with await RawClient.open(await broker_of(process)) as client:
        assert b"\nenablePropertyFilter=true\n" in (await client.call(RequestCode.GET_BROKER_CONFIG)).body
    assert await stop(process) == 0


async def broker_of(process: Process) -> str:
    """The address of the broker that `dev` has started, from its second line."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().split()[-1]


async def test_the_broker_of_dev_keeps_its_port() -> None:
    """A restart would move the broker, so that firewalls, tunnels and other tools no longer find it."""
    first, _ = await start("dev", "--listen", "127.0.0.1:0")
    address = await broker_of(first)
    second, _ = await start("dev", "--listen", "127.0.0.1:0")
    other = await broker_of(second)
    assert await stop(first) == 0
    second.send_signal(signal.SIGTERM)
    _, errors = await second.communicate()
    again, _ = await start("dev", "--listen", "127.0.0.1:0")
    assert await broker_of(again) == address
    assert await stop(again) == 0
    port, other_port = (int(text.rpartition(":")[2]) for text in (address, other))
    assert 10911 <= port < other_port
    assert f"port 10911 or a neighbour is in use; the broker listens on port {other_port}" in errors.decode()


@pytest.mark.parametrize(
    ("host", "problem"),
    [("203.0.113.1", "'203.0.113.1', 10911"), ("nowhere.invalid", "not known")],
)
async def test_dev_names_an_address_that_is_not_this_machines(host: str, problem: str) -> None:
    """Every port would be tried, and the operator would read that 10911 is in use."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rocketpy_broker.cli", "dev", "--listen", "127.0.0.1:0",
        "--set", f"bindAddress={host}", "--set", "insecure=true", stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 1
    assert "in use" not in errors.decode()
    assert problem in errors.decode()


async def test_dev_takes_a_port_and_a_name() -> None:
    """The guide says that any key of the broker can be set."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = (f"listenPort={port}", "brokerName=barista")
    process, _ = await start("dev", "--listen", "127.0.0.1:0", *(f"--set={text}" for text in settings))
    assert process.stdout is not None
    assert await process.stdout.readline() == f"barista ready at 127.0.0.1:{port}\n".encode()
    assert await stop(process) == 0


async def test_a_broker_without_a_name_server_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say that it is ready, and clients would find no route, for no reason to be seen."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    process, _ = await start("broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path))
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert errors.decode().count("set namesrvAddr (--namesrv) or NAMESRV_ADDR") == 1


async def test_a_second_broker_of_one_name_is_told_so(tmp_path: Path) -> None:
    """Messages would go to one of the two, and be looked for in the other."""
    namesrv, address = await start("namesrv", "--listen", "127.0.0.1:0")
    common = ("broker", "--listen", "127.0.0.1:0", "--namesrv", address)
    first, first_address = await start(*common, "--store", str(tmp_path / "1"))
    name = ("--set", "brokerName=other")
    other, _ = await start(*common, "--store", str(tmp_path / "2"), *name)
    again, _ = await start(*common, "--store", str(tmp_path / "3"))
    duplicate = (
        f"another broker with brokerName=broker-a and brokerId=0 runs at {first_address}, according to"
    )
    assert again.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        assert duplicate in (await again.stderr.readline()).decode()
    for process in (again, other, first):
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
        assert b"another broker" not in errors
    assert await stop(namesrv) == 0


async def test_a_broker_is_told_that_its_name_server_is_a_broker(tmp_path: Path) -> None:
    """A broker that nobody finds would only say that a request code is not supported."""
    namesrv, address = await start("namesrv", "--listen", "127.0.0.1:0")
    first, broker_address = await start(
        "broker", "--listen", "127.0.0.1:0", "--namesrv", address, "--store", str(tmp_path / "1")
    )
    lost, _ = await start(
        "broker", "--listen", "127.0.0.1:0", "--namesrv", broker_address, "--store", str(tmp_path / "2")
    )
    lost.send_signal(signal.SIGTERM)
    _, errors = await lost.communicate()
    assert f"cannot register at name server {broker_address}" in errors.decode()
    assert "it is a broker, not a name server" in errors.decode()
    status, output = await output_of("ha", "status", "--namesrv", broker_address)
    assert status == 2
    assert output.endswith("it is a broker, not a name server\n")
    assert await stop(first) == 0
    assert await stop(namesrv) == 0


async def test_logs_as_json_lines_without_bodies(tmp_path: Path) -> None:
    """A log collector could not read the lines, or what customers sent would be in them."""
    process, address = await start(
        *DEV, "--store", str(tmp_path), "--log-format", "json", "--log-level", "debug"
    )
    async with Producer("g", address) as producer:
        await producer.send(Message("T", b"a secret body", properties={"p": "a secret too"}))
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert lines
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert b"secret" not in errors


async def test_a_wrong_start_says_why(tmp_path: Path) -> None:
    """Without this an operator would read a traceback."""
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=none\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rocketpy_broker.cli", "broker", "-c", str(conf), stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode() == f"rocketpy-broker: {conf}:1: listenPort=none: a whole number is expected\n"


_WITH_A_BUG = """
import asyncio, sys
from rocketpy_broker import Broker, cli
from rocketpy_broker.namesrv import NameServer

async def save(self):
    raise ValueError("a bug")

def scan(self):
    def drop_inactive():
        raise ValueError("a bug")
    asyncio.get_running_loop().call_soon(self.tasks.run, drop_inactive)

if sys.argv[1] == "namesrv":
    NameServer._schedule_scan = scan
else:
    Broker._save_offsets = save
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["namesrv", "broker", "dev"])
async def test_a_background_task_that_ends_ends_the_server(tmp_path: Path, command: str) -> None:
    """A supervisor would keep a server that does half of its work, and nobody look at its log."""
    arguments = ["--listen", "127.0.0.1:0"]
    if command != "namesrv":
        arguments += ["--store", str(tmp_path)]
    if command == "dev":
        arguments += ["--set", "listenPort=0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WITH_A_BUG, command, *arguments, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(LIMIT_S):
        _, output = await process.communicate()
    errors = output.decode()
    assert process.returncode == 1
    task = "offsets of broker broker-a"
    if command == "namesrv":
        task = "scan.<locals>.drop_inactive of the name server"
    assert f"ERROR rocketpy.tasks: background task {task} failed: ValueError('a bug')" in errors
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("rocketpy-broker: background task")
    if command != "namesrv":
        with MessageStore(StoreConfig(root=tmp_path)):
            pass  # closed, and not locked any more
