"""The command rocketpy-broker, as an operator starts and stops it."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy import Message, Producer
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import GetMaxOffsetRequestHeader, GetRouteInfoRequestHeader
from rocketpy.protocol.headers import SendMessageRequestHeaderV2 as SendHeader
from rocketpy_broker import Broker, EmbeddedCluster, load_broker_config
from rocketpy_broker.cli import main
from rocketpy_broker.store import MessageStore, StoreConfig
from tests.integration.processes import start, stop
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until

DEV = ("dev", "--listen", "127.0.0.1:0", "--set", "listenPort=0")
"""Name server and broker at free ports."""


async def store_one(address: str) -> dict[str, str]:
    header = SendHeader(
        producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    async with await RawClient.open(address) as client:
        return (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")).ext_fields()


async def test_a_broker_keeps_its_messages_however_it_ends(tmp_path: Path) -> None:
    """A kill -9 would lose acknowledged messages."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b1\nstorePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n")
    namesrv, namesrv_address = await start("namesrv", "--listen", "127.0.0.1:0")
    arguments = ("broker", "-c", str(conf), "--listen", "127.0.0.1:0", "--namesrv", namesrv_address)
    broker, address = await start(*arguments)
    assert (await store_one(address))["queueOffset"] == "0"
    async with await RawClient.open(namesrv_address) as client:
        request = GetRouteInfoRequestHeader(topic="TBW102")
        assert (await client.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, request)).code == 0
    for count, number in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
        assert await stop(broker, number) == (0 if number == signal.SIGTERM else -number)
        broker, address = await start(*arguments)
        async with await RawClient.open(address) as client:
            request2 = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
            response = await client.call(RequestCode.GET_MAX_OFFSET, request2)
            assert response.ext_fields() == {"offset": str(count)}
        assert (await store_one(address))["queueOffset"] == str(count)
    assert await stop(broker) == 0
    assert await stop(namesrv, signal.SIGINT) == 0


async def test_dev_runs_both_servers_with_settings(tmp_path: Path) -> None:
    """A new user would need two terminals, and could not try a broker setting without files."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = (f"listenPort={port}", "brokerName=barista", "enablePropertyFilter=true")
    process, namesrv_address = await start(
        "dev", "--listen", "127.0.0.1:0", "--store", str(tmp_path), *(f"--set={text}" for text in settings)
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == f"barista ready at 127.0.0.1:{port}\n".encode()
    async with await RawClient.open(namesrv_address) as client:
        response = await client.call(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic="TBW102")
        )
        assert response.code == 0
    async with await RawClient.open(f"127.0.0.1:{port}") as client:
        assert b"\nenablePropertyFilter=true\n" in (await client.call(RequestCode.GET_BROKER_CONFIG)).body
    assert await stop(process) == 0


async def broker_of(process: Process) -> str:
    """The address of the broker that `dev` has started, from its second line."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().split()[-1]


async def test_the_broker_of_dev_keeps_its_port() -> None:
    """A restart would move the broker, so that firewalls, tunnels and other tools no longer find it."""
    default = 12000 + os.getpid() * 16 % 16000  # 10911 may be that of another test
    program = (
        "import sys; from rocketpy_broker.cli import app, main; "
        f"app.DEFAULT_BROKER_PORT = {default}; sys.exit(main(['dev', '--listen', '127.0.0.1:0']))"
    )
    dev = (sys.executable, "-c", program)
    first, _ = await start(command=dev)
    address = await broker_of(first)
    second, _ = await start(command=dev)
    other = await broker_of(second)
    assert await stop(first) == 0
    second.send_signal(signal.SIGTERM)
    _, errors = await second.communicate()
    again, _ = await start(command=dev)
    assert await broker_of(again) == address == f"127.0.0.1:{default}"
    assert await stop(again) == 0
    other_port = int(other.rpartition(":")[2])
    assert default < other_port
    assert (
        f"port {default} or a neighbour is in use; the broker listens on port {other_port}" in errors.decode()
    )


@pytest.mark.parametrize(
    ("host", "problem"),
    [("203.0.113.1", "'203.0.113.1', 10911"), ("nowhere.invalid", "not known")],
)
async def test_dev_reports_an_address_of_another_machine(host: str, problem: str) -> None:
    """The command would try every port, and report that 10911 is in use."""
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


async def test_a_broker_without_a_name_server_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be reported as ready, and clients would find no route, without a visible reason."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("ROCKETPY_NAMESRV", raising=False)
    process, _ = await start("broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path))
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert errors.decode().count("set namesrvAddr (--namesrv), ROCKETPY_NAMESRV or NAMESRV_ADDR") == 1


async def test_a_second_broker_of_one_name_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages would be sent to one of the two brokers, and read from the other."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        async with another_broker(cluster.namesrv_address, tmp_path / "other", brokerName="other"):
            pass
        async with another_broker(cluster.namesrv_address, tmp_path / "again"):
            await until(lambda: "another broker" in caplog.text)
        first = cluster.brokers[0].address
    [line] = [record for record in caplog.records if "another broker" in record.getMessage()]
    assert line.levelno == logging.ERROR
    duplicate = f"another broker with brokerName=broker-a and brokerId=0 runs at {first}, according to"
    assert line.getMessage().startswith(duplicate)


async def test_a_broker_whose_name_server_is_a_broker_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker that no client finds would only report an unsupported request code."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        address = str(cluster.brokers[0].address)
        async with another_broker(address, tmp_path):
            assert f"cannot register at name server {address}" in caplog.text
            assert "it is a broker, not a name server" in caplog.text
        assert await asyncio.to_thread(main, ["ha", "status", "--namesrv", address]) == 2
    assert capsys.readouterr().err.endswith("it is a broker, not a name server\n")


@asynccontextmanager
async def another_broker(namesrv: str, store: Path, **settings: str) -> AsyncIterator[None]:
    """A running broker in this process, by default with the name of an embedded cluster's."""
    given = {**SMALL, "listen": "127.0.0.1:0", "namesrvAddr": namesrv, "storePathRootDir": str(store)}
    broker = Broker(load_broker_config(overrides=given | settings))
    await broker.start()
    try:
        yield
    finally:
        await broker.close()


async def test_logs_as_json_lines_without_bodies(tmp_path: Path) -> None:
    """A log collector could not parse the lines, or they would contain message bodies."""
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


def test_a_failed_start_names_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator would get a traceback."""
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=none\n")
    assert main(["broker", "-c", str(conf)]) == 1
    expected = f"rocketpy-broker: {conf}:1: listenPort=none: a whole number is expected\n"
    assert capsys.readouterr().err == expected


_WITH_A_BUG = """
import sys
from rocketpy_broker import Broker, cli
from rocketpy_broker.namesrv import NameServer

async def work():
    raise ValueError("a bug")

def with_a_bug(server):
    start = server.start
    async def start_with_a_bug(self):
        await start(self)
        self.tasks.spawn(work(), "work")
    server.start = start_with_a_bug

with_a_bug(NameServer if sys.argv[1] == "namesrv" else Broker)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["namesrv", "broker", "dev"])
async def test_a_background_task_that_ends_ends_the_server(tmp_path: Path, command: str) -> None:
    """A supervisor would keep a server that does only a part of its work."""
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
    owner = "the name server" if command == "namesrv" else "broker broker-a"
    assert f"ERROR rocketpy.tasks: background task work of {owner} failed: ValueError('a bug')" in errors
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("rocketpy-broker: background task")
    if command != "namesrv":
        with MessageStore(StoreConfig(root=tmp_path)):
            pass  # the store is closed and unlocked
