"""One order of sources for settings, in clients, the command and the servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

import rocketpy.sync
from rocketpy import (
    AdminClient,
    ClientConfig,
    Credentials,
    Message,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
)
from rocketpy.environment import ROCKETMQ_VARIABLES, SETTINGS, VARIABLES
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.message.message import TRACE_TOPIC
from rocketpy.transport import ChannelOptions, TlsFiles, serve
from rocketpy_broker import Broker, load_broker_config
from rocketpy_broker.cli import main as broker_command
from tests.integration.cli.commands import run
from tests.integration.sdk_peers import Names, Peer
from tests.integration.small import SMALL
from tools.import_map import ROOT

ORDER = ("argument", "variable", "profile", "rocketmq")
"""The sources, the first one first."""


class Recorder(Names):
    """A name server that only those reach who use the TLS files of its source."""

    async def listen(self, ca: trustme.CA | None) -> None:
        """Start to listen, without TLS if there is no authority."""
        if ca is None:
            await self.start()
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        self._server = await serve("tls://127.0.0.1:0", self, ChannelOptions(ssl=context))

    @property
    def accounts(self) -> set[str]:
        """The accounts that signed requests."""
        return {request.ext_fields().get("AccessKey", "") for request in self.seen}

    @property
    def topics(self) -> set[str]:
        """The topics of requests."""
        return {request.ext_fields()["topic"] for request in self.seen if "topic" in request.ext_fields()}


@dataclass(frozen=True)
class Sources:
    """One name server for each source, and the settings that this source gives."""

    servers: Mapping[str, Recorder]
    settings: Mapping[str, dict[str, str]]
    directory: Path

    def prepare(self, given: tuple[str, ...], environment: pytest.MonkeyPatch) -> dict[str, str]:
        """Give the settings of these sources; return those of the argument."""
        for name in (
            *VARIABLES.values(),
            *ROCKETMQ_VARIABLES.values(),
            "ROCKETPY_PROFILE",
            "ROCKETPY_CONFIG",
        ):
            environment.delenv(name, raising=False)
        environment.setenv("HOME", str(self.directory))
        profile = {} if "profile" not in given else self.settings["profile"]
        lines = [f'{name} = "{value}"' for name, value in profile.items()]
        file = self.directory / ".config" / "rocketpy.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(["[default]", *lines]))
        for source, names in (("variable", VARIABLES), ("rocketmq", ROCKETMQ_VARIABLES)):
            for setting, value in self.settings[source].items() if source in given else ():
                environment.setenv(names[setting], value)
        return dict(self.settings["argument"]) if "argument" in given else {}


@pytest.fixture
async def sources(tmp_path: Path) -> AsyncIterator[Sources]:
    """All sources. RocketMQ's variables have no TLS files and no namespace."""
    servers: dict[str, Recorder] = {}
    settings: dict[str, dict[str, str]] = {}
    async with AsyncExitStack() as stack:
        for source in ORDER:
            server = servers[source] = Recorder()
            stack.push_async_callback(server.close)
            ca = None if source == "rocketmq" else trustme.CA()
            await server.listen(ca)
            given = settings[source] = {
                "namesrv": server.address,
                "access_key": f"key-of-{source}",
                "secret_key": f"secret-of-{source}",
            }
            if ca is not None:
                file = tmp_path / f"{source}.pem"
                ca.cert_pem.write_to_path(file)
                given |= {"tls_ca": str(file), "namespace": source}
        yield Sources(servers, settings, tmp_path)


def config_of(given: dict[str, str]) -> ClientConfig:
    """The settings that a program passes."""
    if not given:
        return ClientConfig()
    keys = Credentials(access_key=given["access_key"], secret_key=given["secret_key"])
    files = TlsFiles(trust_cert_path=given["tls_ca"])
    return ClientConfig(namesrv=given["namesrv"], namespace=given["namespace"], credentials=keys, ssl=files)


async def by_producer(given: dict[str, str], _: Path) -> None:
    """Send with an asyncio producer."""
    async with Producer("g", client=config_of(given)) as producer:
        await producer.send(Message("T", b"x"))


async def by_pull_consumer(given: dict[str, str], _: Path) -> None:
    """Look up a topic with a pull consumer."""
    async with PullConsumer("g", client=config_of(given)) as consumer:
        await consumer.fetch_queues("T")


async def by_push_consumer(given: dict[str, str], _: Path) -> None:
    """Subscribe to a topic."""

    async def handle(_: object) -> None: ...

    consumer = PushConsumer("g", handler=handle, client=config_of(given))
    consumer.subscribe("T")
    async with consumer:
        pass


async def by_admin(given: dict[str, str], _: Path) -> None:
    """Look up a topic with an admin client."""
    async with AdminClient(client=config_of(given)) as admin:
        await admin.topics.describe("T")


async def by_blocking_producer(given: dict[str, str], _: Path) -> None:
    """Send with a blocking producer."""

    def work() -> None:
        with rocketpy.sync.Producer("g", client=config_of(given)) as producer:
            producer.send(Message("T", b"x"))

    await asyncio.to_thread(work)


async def by_command(*words: str) -> None:
    """Run a command; the environment has all settings."""
    environment: Any = {
        name: value for name, value in os.environ.items() if name.startswith(("ROCKET", "NAMESRV"))
    }
    await run(*words, **environment, HOME=os.environ["HOME"])


async def by_broker(given: dict[str, str], directory: Path) -> None:
    """Register a broker."""
    settings = {**SMALL, "storePathRootDir": str(directory / "store"), "listenPort": "0"}
    if given:
        settings |= {"namesrvAddr": given["namesrv"], "tls.client.trustCertPath": given["tls_ca"]}
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    await broker.close()


async def by_status(_: dict[str, str], __: Path) -> None:
    """Query the brokers of a name server."""
    await asyncio.to_thread(broker_command, ["ha", "status"])


CLIENTS = frozenset({"argument", "variable", "rocketmq"})
COMMANDS = frozenset({"variable", "profile", "rocketmq"})
"""The address is their only argument; `tests/unit/cli/test_profiles.py` has it."""
SERVERS = frozenset({"variable", "rocketmq"})
"""A file has no key for the account; the next test has the other settings."""


@pytest.mark.parametrize(
    ("use", "reads", "names_topic"),
    [
        pytest.param(by_producer, CLIENTS, True, id="producer"),
        pytest.param(by_pull_consumer, CLIENTS, True, id="pull consumer"),
        pytest.param(by_push_consumer, CLIENTS, True, id="push consumer"),
        pytest.param(by_admin, CLIENTS, True, id="admin"),
        pytest.param(by_blocking_producer, CLIENTS, True, id="blocking producer"),
        pytest.param(lambda *_: by_command("topic", "describe", "T"), COMMANDS, True, id="command"),
        pytest.param(lambda *_: by_command("doctor"), COMMANDS, False, id="doctor"),
        pytest.param(by_broker, SERVERS, False, id="broker"),
        pytest.param(by_status, SERVERS, False, id="ha status"),
    ],
)
async def test_every_program_uses_its_first_source(
    sources: Sources,
    use: Callable[[dict[str, str], Path], Awaitable[object]],
    reads: frozenset[str],
    names_topic: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program and the command beside it would use different clusters, accounts or tenants."""
    for number, first in enumerate(ORDER):
        if first not in reads:
            continue
        for server in sources.servers.values():
            server.seen.clear()
        given = sources.prepare(ORDER[number:], monkeypatch)
        with contextlib.suppress(RocketError):  # the topic does not exist
            await use(given, sources.directory)
        for source, server in sources.servers.items():
            assert server.accounts == ({f"key-of-{first}"} if source == first else set()), (first, source)
        if names_topic:
            name = "T" if first == "rocketmq" else f"{first}%T"
            assert name in sources.servers[first].topics


async def test_a_file_of_a_broker_comes_before_the_environment(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of a user's shell would move a broker to another cluster."""
    given = sources.prepare(ORDER, monkeypatch)
    await by_broker(given, sources.directory)
    assert [name for name, server in sources.servers.items() if server.seen] == ["argument"]


async def test_profiles_are_for_the_command_only(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service would sign as whoever owns the home directory."""
    sources.prepare(("profile",), monkeypatch)
    with pytest.raises(ConfigInvalid, match="no name server: pass namesrv='host:9876', or set ROCKETPY_NAM"):
        await AdminClient().start()
    assert not any(server.opened for server in sources.servers.values())


async def test_settings_can_exclude_the_environment(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test would sign with keys of production, or fail because its server has no TLS."""
    sources.prepare(("variable",), monkeypatch)
    plain = sources.servers["rocketmq"]
    config = ClientConfig(namesrv=plain.address, trust_env=False)
    async with AdminClient(client=config) as admin:
        with contextlib.suppress(RocketError):
            await admin.topics.describe("T")
    assert plain.accounts == {""}
    assert "T" in plain.topics
    with pytest.raises(ConfigInvalid, match=r"ROCKETPY_TLS_CA .* would be reached without TLS"):
        await AdminClient(plain.address).start()


async def test_a_message_trace_has_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces would be in a topic of each tenant, where RocketMQ's tools do not look for them."""
    config = ProducerConfig(message_trace=MessageTraceConfig(linger_ms=1))
    async with Peer() as broker, Names() as names:
        names.routes |= {topic: {"a": broker.address} for topic in ("shop%T", TRACE_TOPIC)}
        monkeypatch.setenv("ROCKETPY_NAMESRV", names.address)
        monkeypatch.setenv("ROCKETPY_NAMESPACE", "shop")
        async with Producer("g", config=config) as producer:
            await producer.send(Message("T", b"x"))
            await broker.until(lambda: len(broker.sends) == 2)
        assert {send.ext_fields()["b"] for send in broker.sends} == {"shop%T", TRACE_TOPIC}


async def test_clients_with_equal_tls_files_share_connections(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client of a process would open connections of its own to every broker."""
    sources.prepare(("variable",), monkeypatch)
    server = sources.servers["variable"]
    async with AdminClient(), AdminClient():
        assert server.opened == 1


def test_the_reference_has_every_variable() -> None:
    """A user could not find out which settings the environment can give."""
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    table = page.partition("## Where settings come from")[2].partition("\n## ")[0]
    shown = set(re.findall(r"`((?:ROCKETPY|ROCKETMQ|NAMESRV)_[A-Z_]+)`", table))
    assert shown >= {*VARIABLES.values(), *ROCKETMQ_VARIABLES.values()}
    assert {f"`{setting}`" for setting in SETTINGS} <= set(re.findall(r"`[a-z_]+`", table))
