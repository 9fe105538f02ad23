"""tools/blocking_admin.py, and the parts of the blocking admin client that it writes."""

import inspect

import pytest

import rocketpy
import rocketpy.sync
from tools import blocking_admin

PART = """
from collections.abc import AsyncIterator
from os import PathLike

LIMIT = 7

class Found: ...

class Things:
    def __init__(self, requests: AdminRequests) -> None: ...

    async def find(self, name: str, *more: int, path: PathLike[str], limit: int = LIMIT, **on: bool) -> Found:
        pass

    async def read(self, name: str = "x") -> AsyncIterator[Found]:
        yield Found()

    async def drop(self) -> None:
        pass

    def _inside(self) -> None: ...

class Other:
    def __init__(self, requests: AdminRequests, number: int) -> None: ...
"""


def test_the_file_is_current() -> None:
    """A blocking method would be missing, or have other arguments than the asyncio one."""
    wanted = blocking_admin.generate(blocking_admin.read_parts())
    text = blocking_admin.TARGET.read_text("utf-8")
    assert blocking_admin.is_current(text, wanted), "run: python -m tools.blocking_admin --write"


def test_each_part_has_a_blocking_wrapper() -> None:
    """A part would be there for asyncio only."""
    ours, blocking = rocketpy.AdminClient("127.0.0.1:1"), rocketpy.sync.AdminClient("127.0.0.1:1")
    parts = {part.definition.name for part in blocking_admin.read_parts()}
    found = {name: value for name, value in vars(ours).items() if type(value).__name__ in parts}
    assert len(found) == len(parts)
    for name, part in found.items():
        wrapper = getattr(blocking, name)
        assert type(wrapper).__module__ == "rocketpy.sync.admin"
        for method in (method for method in dir(part) if not method.startswith("_")):
            mine, theirs = getattr(part, method), getattr(wrapper, method)
            assert inspect.signature(theirs).parameters == inspect.signature(mine).parameters


def test_wrappers_are_generated() -> None:
    """Arguments would be lost on their way, or names of a signature not be imported."""
    text = blocking_admin.generate(blocking_admin.parts_of("things", PART))
    for line in (
        "from collections.abc import Iterator\n",
        "from os import PathLike\n",
        "from rocketpy.admin import things\n",
        "from rocketpy.admin.things import Found, LIMIT\n",
        "from rocketpy.sync.blocking import BlockingPart\n",
        "from rocketpy.sync.loop_thread import iterate\n",
        "class Things(BlockingPart[things.Things]):",
        "def find(self, name: str, *more: int, path: PathLike[str], limit: int=LIMIT, **on: bool) -> Found:",
        "return self._loop_thread().run(self._inner.find(name, *more, path=path, limit=limit, **on))",
        "def read(self, name: str='x') -> Iterator[Found]:",
        "return iterate(self._loop_thread(), self._inner.read(name))",
        "        self._loop_thread().run(self._inner.drop())\n",
        '"""See `rocketpy.admin.things.Things.find`."""',
    ):
        assert line in text
    assert "Other" not in text
    assert "_inside" not in text


def test_changes_are_seen_and_formatting_is_not() -> None:
    """The check could accept everything, or fail after ruff formatted the file."""
    text = blocking_admin.generate(blocking_admin.parts_of("things", PART))
    reordered = text.replace("import Found, LIMIT", "import LIMIT, Found").replace(
        "limit: int=", "limit: int = "
    )
    assert reordered != text
    assert blocking_admin.is_current(reordered, text)
    changed = blocking_admin.parts_of("things", PART.replace("= LIMIT", "= 8"))
    assert not blocking_admin.is_current(text, blocking_admin.generate(changed))


def test_a_method_that_runs_in_any_thread_is_refused() -> None:
    """A plain method would use the event loop's objects from the caller's thread."""
    text = PART.replace("async def drop", "def drop")
    with pytest.raises(ValueError, match=r"Things\.drop is not async"):
        blocking_admin.generate(blocking_admin.parts_of("things", text))
