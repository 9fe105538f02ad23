"""The command ``rocketpy-broker``: starts a name server, a broker, or both in one process.

It prints one line when it is ready to serve ("broker-a ready at 127.0.0.1:10911"), and a second line that
says how to connect. SIGTERM and SIGINT stop it cleanly: it unregisters at its name servers, flushes, and
marks its store as closed. A second signal, or a stop that takes longer than --stop-timeout, ends it
immediately with exit status 3. SIGUSR1 drains a broker before it stops, which
``rocketpy-broker stop --drain`` requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from rocketpy._version import __version__
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.logs import JsonFormatter, LineFormatter
from rocketpy.native import native_form
from rocketpy.protocol.java import trim
from rocketpy.runtime.tasks import subtask
from rocketpy.runtime.text import printable
from rocketpy.transport import Address, StreamProtocol, listen_raw
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.broker.open_files import raise_open_files_limit
from rocketpy_broker.cli.accounts import add_account_commands
from rocketpy_broker.cli.dledger import add_dledger_commands
from rocketpy_broker.cli.ha import add_ha_commands
from rocketpy_broker.cli.process import (
    DRAIN_SIGNAL,
    STOP_TIMEOUT_S,
    ShutdownGuard,
    notify,
    trim_memory,
    tune_memory,
)
from rocketpy_broker.cli.promote import add_promote_command
from rocketpy_broker.cli.stop import add_stop_command
from rocketpy_broker.cli.store import add_store_commands
from rocketpy_broker.config.file import SECRET_VALUES, load_broker_config, load_namesrv_config
from rocketpy_broker.config.model import DEFAULT_BROKER_PORT
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.namesrv import NameServer

Service = Callable[[ShutdownGuard], Coroutine[Any, Any, None]]
Drain = Callable[[], Coroutine[Any, Any, None]]
"""Moves clients to other servers before a stop."""

log = logging.getLogger("rocketpy.broker")

_PORT_OFFSETS: Final = (0, 1, -2)
"""Ports that a broker opens, relative to listenPort: clients, HA, RocketMQ's "VIP channel"."""
_LAST_PORT: Final = 65535
_SOURCE: Final = "command line"
"""Name of the settings on the command line, for messages."""


def run_command(arguments: Sequence[str] | None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    name = f"rocketpy-broker {options.command}"
    try:
        if "action" in options:
            status: int = options.action(options)
            return status
        name = "rocketpy-broker"
        _set_up_logging(options.log_level, options.log_format)
        raise_open_files_limit()
        _run(options.service(options), options)
    except BrokenPipeError:  # of stdout; the caller handles it
        raise
    except (RocketError, OSError) as error:
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        failed: int = options.failed
        return failed
    return 0


def _set_up_logging(level: str, form: str) -> None:
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Parser(argparse.ArgumentParser):
    """Rejects unknown arguments, so that the error shows the usage of the command.

    With argparse's own parser, the error shows the usage of ``rocketpy-broker``.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rocketpy-broker", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__} ({native_form()})")
    parser.set_defaults(failed=1)
    commands = parser.add_subparsers(
        required=True, dest="command", metavar="namesrv|broker|dev|stop|store|ha|dledger|promote|migrate-acl"
    )
    namesrv = _command(commands, "namesrv", "run a name server", _namesrv)
    broker = _command(commands, "broker", "run a broker", _broker)
    for command in (namesrv, broker):
        command.add_argument("-c", "--config", metavar="FILE", help="file with RocketMQ's own keys")
        command.add_argument(
            "--listen", metavar="HOST:PORT", help="address to listen on; port 0 is any free port"
        )
        command.add_argument(
            "--insecure", action="store_true", help="serve other machines without TLS or access control"
        )
    broker.add_argument("--namesrv", metavar="ADDR", help="name servers, separated by semicolons")
    broker.add_argument("--store", metavar="DIR", help="directory of the store (storePathRootDir)")
    broker.add_argument("--name", metavar="NAME", help="name of the broker (brokerName)")
    dev = _command(
        commands, "dev", "run a name server and a broker (at port 10911 or higher) in one process", _dev
    )
    dev.add_argument("--store", metavar="DIR", help="directory of the store; default: a temporary one")
    dev.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:9876", help="address of the name server"
    )
    for command in (namesrv, broker, dev):
        command.add_argument(
            "--set",
            metavar="KEY=VALUE",
            type=_setting,
            action="append",
            default=[],
            help="a setting that takes precedence over the file; may be repeated",
        )
    add_stop_command(commands, _seconds)
    add_store_commands(commands)
    add_ha_commands(commands)
    add_dledger_commands(commands)
    add_promote_command(commands)
    add_account_commands(commands)
    return parser


def _command(
    commands: Any, name: str, text: str, service: Callable[[argparse.Namespace], Service]
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(service=service)
    command.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="event loop to use")
    command.add_argument(
        "--log-format", default="text", choices=("text", "json"), help="text lines or JSON objects"
    )
    command.add_argument(
        "--stop-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=STOP_TIMEOUT_S,
        help="end a longer stop immediately, with exit status 3 (default: %(default)g)",
    )
    command.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="lowest level that is logged (default: %(default)s)",
    )
    return command


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"KEY=VALUE is expected, not {text!r}")
    if key.strip().endswith(".keyPassword"):
        raise argparse.ArgumentTypeError(
            f"every user of this machine can read the command line; write {key.strip()} into the file, or "
            f"set {key.strip()}File"
        )
    if key.strip() in SECRET_VALUES:
        raise argparse.ArgumentTypeError(
            f"every user of this machine can read the command line; write {key.strip()} into the file"
        )
    return key.strip(), trim(value)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError
    return seconds


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings on the command line by the keys of a file."""
    keys = {"listen": "listen", "namesrv": "namesrvAddr", "store": "storePathRootDir", "name": "brokerName"}
    values = vars(options)
    given = dict(options.set) | {key: values[option] for option, key in keys.items() if values.get(option)}
    return given | {"insecure": "true"} if options.insecure else given


def _namesrv(options: argparse.Namespace) -> Service:
    config = load_namesrv_config(options.config, _overrides(options), source=_SOURCE)
    server = NameServer(config)
    return _serve(
        "namesrv", server, _no_drain, lambda: f"clients and brokers connect with --namesrv {server.address}"
    )


def _broker(options: argparse.Namespace) -> Service:
    config = load_broker_config(options.config, _overrides(options), source=_SOURCE)
    broker = Broker(config)
    servers = ";".join(map(str, config.registration.namesrv))
    hint = f"clients connect to the name servers {servers}"
    if not servers:
        hint = "clients cannot find this broker: it has no name servers (namesrvAddr)"
    return _serve(config.name, broker, broker.drain, lambda: hint)


async def _no_drain() -> None:
    """Drain servers that have no producers to move: a name server, or servers for development."""


def _serve(name: str, server: Broker | NameServer, drain: Drain, hint: Callable[[], str]) -> Service:
    """Return a function that runs a server until it is stopped.

    hint: returns how to connect to the server; called when its address is known.
    """

    async def serve(guard: ShutdownGuard) -> None:
        guard.report_phases_of(server)
        await server.start()
        _print_ready(name, server.address)
        _print(hint())
        try:
            await _stopped_or_failed(guard, drain, server)
        finally:
            await server.close()
        _print(f"{name} stopped")

    return serve


def _dev(options: argparse.Namespace) -> Service:
    async def serve(guard: ShutdownGuard) -> None:
        settings = dict(options.set)
        if not {"listen", "listenPort"} & settings.keys():
            settings["listenPort"] = str(await _broker_port(settings.get("bindAddress", "127.0.0.1")))
        async with EmbeddedCluster(options.store, namesrv=options.listen, settings=settings) as cluster:
            guard.report_phases_of(*cluster.servers)
            _print_ready("namesrv", cluster.namesrv_address)
            for broker in cluster.brokers:
                _print_ready(broker.config.name, broker.address)
            _print(
                f'connect with namesrv="{cluster.namesrv_address}", or from a shell: '
                f"rocketpy --namesrv {cluster.namesrv_address} topic list"
            )
            await _stopped_or_failed(guard, _no_drain, *cluster.servers)
        _print("namesrv and broker stopped")

    return serve


async def _broker_port(host: str) -> int:
    """Return the default port of a broker, or the next port that is free together with its neighbours."""
    for port in range(DEFAULT_BROKER_PORT, _LAST_PORT):
        if await _is_free(host, port):
            break
    if port != DEFAULT_BROKER_PORT:
        log.warning(
            "port %d or a neighbour is in use; the broker listens on port %d (--set listenPort=PORT sets it)",
            DEFAULT_BROKER_PORT,
            port,
        )
    return port


async def _is_free(host: str, port: int) -> bool:
    for step in _PORT_OFFSETS:
        try:
            listener = await listen_raw(Address("tcp", host, port + step), StreamProtocol)
        except OSError as error:
            # The start reports any other error, such as an address of another machine.
            return error.errno != errno.EADDRINUSE
        await listener.close()
    return True


async def _stopped_or_failed(guard: ShutdownGuard, drain: Drain, *servers: Broker | NameServer) -> None:
    """Wait for SIGTERM, SIGINT, the end of a drain, or the failure of a server, which is raised.

    Then the time limit of the stop begins.
    """
    tune_memory()
    trimming = subtask(trim_memory(), "return of unused memory")
    if not guard.requested.is_set():
        notify("READY=1")
    stopping = subtask(guard.requested.wait(), "wait for a signal")
    draining = subtask(_drained(guard, drain), "drain")
    failing = [subtask(server.wait_failed(), "wait for a failure") for server in servers]
    await asyncio.wait({stopping, draining, *failing}, return_when=asyncio.FIRST_COMPLETED)
    guard.start_time_limit()
    for waiting in (stopping, draining, trimming, *failing):
        waiting.cancel()
    for failed in failing:
        if failed.done() and not failed.cancelled():
            raise failed.result()
    if draining.done() and not draining.cancelled():
        draining.result()


async def _drained(guard: ShutdownGuard, drain: Drain) -> None:
    await guard.drain_requested.wait()
    log.warning("received %s: draining; SIGTERM stops immediately", DRAIN_SIGNAL.name)
    await drain()


def _print_ready(name: str, address: object) -> None:
    print(f"{name} ready at {address}", flush=True)


def _print(text: str) -> None:
    """Print a line on stdout, which may be closed by now."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _run(service: Service, options: argparse.Namespace) -> None:
    async def run() -> None:
        await service(ShutdownGuard(options.stop_timeout))

    with asyncio.Runner(loop_factory=_loop_factory(options.loop)) as runner:
        runner.run(run())


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise ConfigInvalid(
            '--loop uvloop needs the package uvloop: pip install "rocketpy-mq[speed]"'
        ) from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
