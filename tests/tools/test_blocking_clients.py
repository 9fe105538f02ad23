"""The blocking clients are in step with the asyncio clients; tools/blocking_clients.py, which writes them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, get_args

import pytest

import rocketpy
import rocketpy.sync
from rocketpy.client.lifecycle import Client
from rocketpy.errors import ClientClosed
from rocketpy.results import Health
from tools import blocking_clients

KINDS = [kind.__name__ for kind in blocking_clients.CLIENTS]
PARTS = [name for name in vars(rocketpy.AdminClient("127.0.0.1:1")) if not name.startswith("_")]
LIMIT: Final = 7


class Numbers:
    """A part of the sample client."""

    async def add(self, one: int, *more: int, limit: int = LIMIT) -> int:
        """Return a sum. At most the limit."""
        return min(one + sum(more), limit)


class Shared(Client):
    """A base class of the sample client."""

    async def close(self) -> str:
        """Close it."""
        return "closed"

    def subscribe(self, topic: str) -> str:
        """Note a topic."""
        return f"{topic} in {threading.current_thread().name}"

    def unused(self) -> None:
        """Have no counterpart."""


class Sample(Shared):
    """A client as the generator expects it."""

    def __init__(self, name: str, *, size: int = LIMIT) -> None:
        self.name: Final = name
        self.size: Final = size
        self.numbers: Numbers = Numbers()
        self.inside: dict[str, int] = {}

    async def start(self, *, wait: bool = True) -> None:
        """Do nothing."""

    def health(self) -> Health:
        """Have none."""
        raise NotImplementedError

    async def pull(self, count: int) -> tuple[int, str]:
        """Return the count, and the thread of the call."""
        return count, threading.current_thread().name

    @property
    def thread(self) -> str:
        """The thread of the call; a description that fits in one line here, but not with the quotes."""
        return threading.current_thread().name

    async def items(self, **found: bool) -> AsyncIterator[str]:
        """Yield names."""
        for name in found:
            yield name

    async def by_hand(self) -> None:
        """Have a counterpart that is written by hand."""

    def _inside(self) -> None: ...


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The generated class for the sample client."""
    monkeypatch.setitem(blocking_clients.ELSEWHERE, "Shared.unused", "a reason")
    by_hand = {**blocking_clients.methods_by_hand(), "Sample": {"by_hand"}}
    found: dict[str, Any] = {}
    exec(blocking_clients.generate([Sample], by_hand), found)  # noqa: S102 - written by the generator
    made: Callable[..., Any] = found["Sample"]
    return made


def arguments(function: Callable[..., object]) -> set[str]:
    """Names of a function's arguments, with those of ``**how: Unpack[...]``."""
    names = set()
    for name, found in inspect.signature(function, eval_str=True).parameters.items():
        if found.kind is found.VAR_KEYWORD:
            (options,) = get_args(found.annotation)
            names |= options.__annotations__.keys()
        else:
            names.add(name)
    return names


def test_the_file_is_current() -> None:
    """A blocking method would be missing, or have other arguments than the asyncio one."""
    wanted = blocking_clients.generate(blocking_clients.CLIENTS, blocking_clients.methods_by_hand())
    text = blocking_clients.TARGET.read_text("utf-8")
    assert blocking_clients.is_current(text, wanted), "run: python -m tools.blocking_clients --write"


@pytest.mark.parametrize("kind", KINDS)
def test_a_blocking_client_has_every_method_and_argument(kind: str) -> None:
    """A method, an argument or a default would be there for asyncio only, also if written by hand."""
    ours, blocking = getattr(rocketpy, kind), getattr(rocketpy.sync, kind)
    for name in ["__init__", *(name for name in dir(ours) if not name.startswith("_"))]:
        owner = next(cls for cls in ours.__mro__ if name in vars(cls))
        if f"{owner.__name__}.{name}" in blocking_clients.ELSEWHERE:
            continue
        assert hasattr(blocking, name), f"rocketpy.sync.{kind} has no {name}"
        if not callable(vars(owner)[name]):
            continue
        mine, theirs = getattr(ours, name), getattr(blocking, name)
        if theirs.__module__ == "rocketpy.sync.methods":
            assert inspect.signature(theirs).parameters == inspect.signature(mine).parameters
        else:
            assert arguments(mine) <= arguments(theirs), f"rocketpy.sync.{kind}.{name} lacks an argument"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_every_method_and_argument(part: str) -> None:
    """A method of `AdminClient.topics`, for instance, would be there for asyncio only."""
    ours = getattr(rocketpy.AdminClient("127.0.0.1:1"), part)
    blocking = getattr(rocketpy.sync.AdminClient("127.0.0.1:1"), part)
    for name in [name for name in dir(ours) if not name.startswith("_")]:
        mine, theirs = getattr(ours, name), getattr(blocking, name)
        assert inspect.signature(theirs).parameters == inspect.signature(mine).parameters


def test_exceptions_of_the_generator_exist() -> None:
    """A method could be left out under a name that another one got later."""
    known = {
        f"{cls.__name__}.{name}"
        for kind in blocking_clients.CLIENTS
        for cls in kind.__mro__
        for name in vars(cls)
    }
    assert set(blocking_clients.ELSEWHERE) <= known
    names = {name.rpartition(".")[2] for name in known}
    assert {*blocking_clients.FUTURES, *blocking_clients.RUNNERS} <= names


def test_generated_methods_run_in_the_background_thread(sample: Callable[..., Any]) -> None:
    """Arguments would be lost on their way, or asyncio objects be used in the caller's thread."""
    client = sample("a", size=3)
    with client:
        assert (client.name, client.size) == ("a", 3)
        assert client.pull(2) == (2, "rocketpy")
        assert client.pull_async(count=4).result() == (4, "rocketpy")
        assert client.thread() == "rocketpy"
        assert client.subscribe("T") == "T in rocketpy"
        assert list(client.items(a=True, b=False)) == ["a", "b"]
        assert client.numbers.add(1, 2, 3, limit=4) == 4
        assert client.numbers.add(1, 2, 3) == 6
    assert client.close() == "closed"
    assert not {"unused", "by_hand", "_inside", "inside"} & {*dir(client)}
    assert type(client).pull.__doc__ == "Return the count, and the thread of the call."


def test_methods_before_the_start(sample: Callable[..., Any]) -> None:
    """A client could not be configured before a fork without a thread, or would fail in an unclear way."""
    client = sample("a")
    here = threading.current_thread().name
    assert client.subscribe("T") == f"T in {here}"
    assert client.close() == "closed"
    for call in (
        lambda: client.pull(1),
        client.thread,
        lambda: client.numbers.add(1),
        client.items,
    ):
        with pytest.raises(ClientClosed, match="this Sample was not started"):
            call()


def test_changes_are_seen_and_formatting_is_not() -> None:
    """The check could accept everything, or fail after ruff formatted the file."""
    text = blocking_clients.generate([Sample], {})
    assert text.count("limit: int=") == 1
    assert blocking_clients.is_current(text.replace("limit: int=", "limit: int = "), text)
    assert not blocking_clients.is_current(text.replace("limit: int=LIMIT", "limit: int=8"), text)
    assert not blocking_clients.is_current(text, blocking_clients.generate([Sample], {"Sample": {"pull"}}))
