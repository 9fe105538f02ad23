"""What imports load: a short program would wait for modules that it does not use."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from typing import Any

import pytest

import rocketpy
import rocketpy_broker
from tools.import_map import ROOT


def loaded_by(statement: str) -> set[str]:
    """The modules that a new interpreter loads for a statement, besides those for asyncio."""
    script = f"import sys, asyncio\nbefore = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_alone_loads_almost_nothing() -> None:
    """A command line or a test plugin would take a second to say what version it is."""
    found = loaded_by("import rocketpy; rocketpy.__version__")
    assert {name for name in found if name.startswith("rocketpy")} == {"rocketpy", "rocketpy._version"}
    assert len(found) <= 20


def test_a_producer_loads_no_consumer_and_no_administration() -> None:
    """Every producer would pay for the import of what it does not use."""
    found = loaded_by("from rocketpy import Message, Producer")
    assert "rocketpy.producer.producer" in found
    unused = ("rocketpy.admin", "rocketpy.consumer", "rocketpy.sync", "rocketpy_broker", "importlib.metadata")
    assert {name for name in found if name.startswith(unused)} == set()


def test_checksums_are_loaded_on_first_use() -> None:
    """A job with Spark's `--py-files` would need crcmod on every executor, for checksums it does not use."""
    clients = "from rocketpy import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer"
    assert not any(name.startswith("crcmod") for name in loaded_by(clients))
    use = "from rocketpy.protocol.message.checksum import body_checksum; body_checksum('crc-32c', b'')"
    assert "crcmod.predefined" in loaded_by(use)


@pytest.mark.parametrize("package", [rocketpy, rocketpy_broker])
def test_the_names_are_those_that_type_checkers_see(package: Any) -> None:
    """A name would exist for type checkers only, or at run time only."""
    tree = ast.parse((ROOT / package.__name__ / "__init__.py").read_text("utf-8"))
    checked = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    seen = {
        (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rocketpy")
        for alias in node.names
    }
    assert seen == {(module, name) for name, module in package._MODULE_OF.items()}
    assert {*package._MODULE_OF} == set(package.__all__) - {"__version__"}
    assert set(package.__all__) <= set(dir(package))


def test_parts_are_available_without_an_import_of_their_own() -> None:
    """`rocketpy.errors.RocketError` worked in version 0.1, after `import rocketpy` alone."""
    loaded_by(
        "import rocketpy; rocketpy.errors.RocketError, rocketpy.config.ClientConfig, rocketpy.hooks.SendEvent"
    )
    loaded_by(
        "import rocketpy_broker; rocketpy_broker.embedded.EmbeddedCluster, rocketpy_broker.store.MessageStore"
    )
    with pytest.raises(AttributeError, match="module 'rocketpy' has no attribute 'Produce'"):
        rocketpy.Produce  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match="module 'rocketpy_broker' has no attribute 'Brokers'"):
        rocketpy_broker.Brokers  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize(("former", "now"), rocketpy._FORMER.items())
def test_former_paths_give_the_same_module(former: str, now: str) -> None:
    """A pickle of version 0.1 could not be read, or its classes would be other classes than ours."""
    found = loaded_by(f"import {former}, {now}; assert sys.modules[{former!r}] is sys.modules[{now!r}]")
    assert {former, now} <= found
    module = importlib.import_module(former)
    assert module.__spec__ is not None
    assert module.__spec__.name == now


@pytest.mark.parametrize("package", ["rocketpy_cli", "rocketpy_broker.cli"])
def test_a_command_exempts_its_modules_from_garbage_collection(package: str) -> None:
    """Python would search all modules for garbage when the command ends: a tenth of a short command."""
    script = f"""
import gc, sys
from {package} import main
sys.argv = ["command", "--version"]
for arguments in (sys.argv[1:],), ():
    try:
        main(*arguments)
    except SystemExit:
        pass
    print(gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    called, run = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    assert called == 0, "what a program has made before would stay for ever"
    assert run > 10_000
