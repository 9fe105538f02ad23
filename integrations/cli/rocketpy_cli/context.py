"""Shared parts of all commands: global options, exit statuses, confirmations, and the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from rocketpy.admin.admin_client import AdminClient
from rocketpy.errors import ConfigInvalid, ConnectFailed, RocketError, RouteNotFound
from rocketpy.logs import LineFormatter
from rocketpy.results import SendResult
from rocketpy.runtime.signals import cancelled_by_signals
from rocketpy.runtime.text import did_you_mean, escape_json, printable
from rocketpy_cli.profiles import Cluster, find_cluster

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

_FAILED: Final = 1
_WRONG_USAGE: Final = 2
_INTERRUPTED: Final = 128 + signal.SIGINT
_TERMINATED: Final = 128 + signal.SIGTERM
_NO_ADDRESS: Final = (
    "; the address is the default: pass --namesrv, or set ROCKETPY_NAMESRV, a profile or NAMESRV_ADDR"
)
_FLAGS: Final = frozenset({"--json", "--verbose"})
_WITH_VALUE: Final = frozenset({"--namesrv", "-n", "--profile"})

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would change; change nothing.")]
OfCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")
]
OfBroker = Annotated[
    str | None, typer.Option("--broker", metavar="NAME", help="Only the broker of this name.")
]


@dataclass
class Options:
    """The global options of a command line."""

    namesrv: str | None
    profile: str | None
    as_json: bool
    verbose: bool
    has_summary: bool = False
    """Whether the command prints a summary even after Ctrl-C; then "interrupted" is not printed."""

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster to use. Raises ConfigInvalid."""
        return find_cluster(self.namesrv, self.profile, os.environ)

    def confirm(self, action: str, *, yes: bool) -> None:
        """Ask on the terminal whether to change the cluster; without a terminal, --yes is required.

        Args:
            action: What will be done, such as "create topic T".
            yes: Whether --yes was given.

        Raises:
            typer.Exit: The user did not agree, or there is neither a terminal nor --yes.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            print(f"rocketpy: {action} at {self.cluster}: without a terminal, give --yes", file=sys.stderr)
            raise typer.Exit(_WRONG_USAGE)
        if not typer.confirm(f"{action} at {self.cluster}?", err=True):
            raise typer.Exit(_FAILED)

    def print_result(self, text: str, fields: Mapping[str, object]) -> None:
        """Print what a command did: a sentence, or with --json an object."""
        print(json_line(fields) if self.as_json else printable(text), flush=True)

    def print_done(self, text: str, fields: Mapping[str, object]) -> None:
        """Print what a command changed, and at which cluster."""
        fields = {**fields, "cluster": self.cluster.client.namesrv}
        self.print_result(f"{text} at {self.cluster}", fields)

    def print_sent(self, result: SendResult) -> None:
        """Print the id of a sent message, the queue and offset where it is stored, and the status."""
        queue, status = result.queue, result.status.name
        position = f"{queue.broker_name}, queue {queue.queue_id}, offset {result.queue_offset}"
        fields = {
            "message_id": result.message_id,
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "queue_offset": result.queue_offset,
            "status": status,
        }
        text = f"{result.message_id} {position}: {status}"
        if result.recall_handle is not None:
            fields["recall_handle"] = result.recall_handle
            text += f", recall handle {result.recall_handle}"
        self.print_result(text, fields)

    def run(self, work: Coroutine[Any, Any, T], *, topic: str | None = None) -> T:
        """Run the coroutine of a command. SIGINT and SIGTERM cancel it, so that it closes its connections.

        A second signal ends that, unless it repeats the first within half a second.

        Args:
            work: The coroutine.
            topic: The topic that the user named. If no broker has it, the error names similar topics.
        """
        if topic is not None:
            work = self._naming_similar(work, topic)
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("rocketpy: %(levelname)s: %(message)s"))
        logging.basicConfig(level=logging.DEBUG if self.verbose else logging.WARNING, handlers=[handler])
        interrupts: list[int] = []
        try:
            return asyncio.run(cancelled_by_signals(work, interrupts))
        except asyncio.CancelledError:
            if interrupts:
                raise KeyboardInterrupt from None
            raise

    async def _naming_similar(self, work: Coroutine[Any, Any, T], topic: str) -> T:
        """Await `work`; if no broker has its topic, add similar topics to the error."""
        try:
            return await work
        except RouteNotFound as error:
            hint = ""
            if "; did you mean" not in str(error):  # from the admin client
                with contextlib.suppress(RocketError):
                    async with AdminClient(client=self.cluster.client) as admin:
                        known = await admin.topics.list(include_system=True)
                        hint = "" if topic in known else did_you_mean(topic, known)
            if not hint:
                raise
            raise RouteNotFound(f"{error}{hint}") from None

    def run_admin(self, work: Callable[[AdminClient], Awaitable[T]], *, topic: str | None = None) -> T:
        """Run `work` with an admin client of the cluster. Raises what `work` raises, and RocketError.

        topic: see `run`.
        """

        async def run() -> T:
            async with AdminClient(client=self.cluster.client) as admin:
                return await work(admin)

        return self.run(run(), topic=topic)


def json_line(fields: Mapping[str, object]) -> str:
    """Return an object as one line of JSON, which is safe to print on a terminal."""
    return escape_json(json.dumps(fields, ensure_ascii=False))


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ConfigInvalid of an option's value into typer.BadParameter (exit status 2)."""
    try:
        yield
    except ConfigInvalid as error:
        raise typer.BadParameter(str(error)) from None


def parse_pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of words such as ``name=value``. Raises typer.BadParameter."""
    pairs = [word.partition("=") for word in words]
    for word, (name, equals, _) in zip(words, pairs, strict=True):
        if not name or not equals:
            raise typer.BadParameter(f"NAME=VALUE is expected, not {word!r}")
    return {name: value for name, _, value in pairs}


def read_first_line(file: str) -> str:
    """Return the first line of a file, or of stdin for ``-``: a secret.

    Raises OSError, and typer.BadParameter for a blank line: a broker would keep the old secret.
    """
    text = sys.stdin.readline() if file == "-" else Path(file).read_text("utf-8")
    line = text.partition("\n")[0].strip()
    if not line:
        raise typer.BadParameter(f"the first line of {'stdin' if file == '-' else file} is blank")
    return line


class CommandGroup(typer.Typer):
    """A typer application whose functions may take the `Options` of the command line, as ``options``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[F], F]:
        """Return a decorator that adds a function as a command; the arguments are those of typer."""
        add = super().command(*names, **settings)

        def decorate(function: F) -> F:
            @wraps(function)
            def run(options: typer.Context, **given: Any) -> None:
                function(options.obj, **given)

            run.__annotations__ = {**function.__annotations__, "options": typer.Context}
            add(run if "options" in function.__annotations__ else function)
            return function

        return decorate


class Commands(TyperGroup):
    """The root command: turns errors of its commands into exit statuses."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print an expected error as one line on stderr."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of the output, such as head(1), has closed it
            _discard_output()
            raise typer.Exit from None
        except (RocketError, OSError) as error:
            if ctx.obj.verbose:
                traceback.print_exc()
            hint = _NO_ADDRESS if isinstance(error, ConnectFailed) and ctx.obj.cluster.is_default else ""
            print(f"rocketpy: {printable(str(error))}{hint}", file=sys.stderr)
            raise typer.Exit(_FAILED) from None
        except KeyboardInterrupt:
            if not ctx.obj.has_summary:
                print("rocketpy: interrupted", file=sys.stderr)
            raise typer.Exit(_INTERRUPTED) from None
        except asyncio.CancelledError:
            raise typer.Exit(_TERMINATED) from None


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with global options first, because users may write them anywhere."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in _FLAGS or (equals and name in _WITH_VALUE):
            first.append(word)
        elif word in _WITH_VALUE:
            first += [word, *itertools.islice(words, 1)]
        else:
            rest.append(word)
    return first + rest


def _discard_output() -> None:
    """Redirect stdout to the null device; otherwise the interpreter's flush at exit would fail."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)
