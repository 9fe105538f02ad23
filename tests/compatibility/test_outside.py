"""Interfaces that users of an earlier version rely on: names, pickles, loggers, and data on disk.

`data/` was written by commit 4141086: the public names and loggers, a pickle of each exported class, and the
directories of a master with its slave and of a DLedger group of three, each with the same 124 messages.
"""

import base64
import importlib
import json
import logging
import pickle
import pkgutil
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rocketpy
import rocketpy_broker
from rocketpy import AdminClient, LocalTransactionState, Producer, PullConsumer
from rocketpy_broker import Broker
from tests.integration.ha_pair import pair
from tests.integration.ledger_group import ledger_group
from tests.waiting import until

DATA = Path(__file__).parent / "data"
NAMES = json.loads((DATA / "names.json").read_text())
PICKLES = json.loads((DATA / "pickles.json").read_text())
LATE = b"late"  # its delay is over, so it is delivered soon after the start
# The recorded messages get older, and must not expire.
SETTINGS = {"transactionTimeOut": "500", "transactionCheckInterval": "200", "fileReservedTime": "876000"}
SENT = {b"%d" % number for number in range(120)} | {b"x" * 9000, b"committed"}
OLD_DEFAULTS = {"pull_batch_size": "32"}
"""Defaults that have changed since the pickles were recorded, which keep the old ones."""


@pytest.mark.parametrize("module", NAMES["modules"])
def test_public_names_stay(module: str) -> None:
    """An application that imports a removed name would fail at its start."""
    found = importlib.import_module(module)
    assert [name for name in NAMES["modules"][module] if not hasattr(found, name)] == []


def test_entry_points_stay() -> None:
    """`embedded:` addresses, telemetry and the command would be missing."""
    found = {
        (group, point.name): point.value
        for group in ("rocketpy.embedded", "rocketpy.telemetry", "console_scripts")
        for point in entry_points(group=group)
    }
    assert found["rocketpy.embedded", "embedded"] == "rocketpy_broker.embedded:open_embedded"
    assert found["rocketpy.telemetry", "opentelemetry"] == "rocketpy_otel:OpenTelemetry"
    assert found["console_scripts", "rocketpy-broker"] == "rocketpy_broker.cli:main"


def test_loggers_stay() -> None:
    """Log levels that an application has configured would have no effect."""
    for package in (rocketpy, rocketpy_broker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    assert set(NAMES["loggers"]) - set(logging.root.manager.loggerDict) == set()


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_load(name: str) -> None:
    """Pickled values in a queue, a cache or a checkpoint could not be loaded."""
    loaded = pickle.loads(base64.b64decode(PICKLES[name]))  # noqa: S301 - recorded by this project
    if name.endswith("Config") and not name.startswith(("class ", "Allocate")):
        expected = _shown(type(loaded)())
        if isinstance(expected, dict):
            expected |= {name: value for name, value in OLD_DEFAULTS.items() if name in expected}
        assert _shown(loaded) == expected
    for value in loaded if isinstance(loaded, list) else [loaded]:
        repr(value)
        for field in _fields(value):
            getattr(value, field)
        assert pickle.loads(pickle.dumps(value)) is not None  # noqa: S301 - written here


def test_each_exported_class_has_a_pickle() -> None:
    """A class without a recorded pickle could be moved, and no test would fail."""
    classes = {name.removeprefix("class ") for name in PICKLES if name.startswith("class ")}
    exported = {name for name in NAMES["modules"]["rocketpy"] if isinstance(getattr(rocketpy, name), type)}
    assert exported == classes


def _shown(value: Any) -> object:
    """A value with all its fields, so that two of them can be compared."""
    if is_dataclass(value):
        return {field.name: _shown(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset):
        return value
    return re.sub(r" at 0x\w+", "", repr(value))


def _fields(value: object) -> Iterator[str]:
    if isinstance(value, type):
        return
    if isinstance(value, msgspec.Struct):
        yield from value.__struct_fields__
    else:
        yield from getattr(value, "__dataclass_fields__", ())


def _unpack(root: Path) -> None:
    with tarfile.open(DATA / "stores.tar.xz") as archive:
        archive.extractall(root, filter="data")


async def _check_messages(namesrv: str, broker: Callable[[], Broker]) -> None:
    """All messages are read with their keys; offsets are kept; the open transaction ends; sends succeed."""
    async with PullConsumer("c", namesrv=namesrv) as consumer:
        got = [message for message in await _read_all(consumer) if message.body != LATE]
        assert {message.body for message in got} == SENT
        assert all(message.keys for message in got if message.body != b"committed")
        queues = await consumer.fetch_queues("T")
        assert [await consumer.committed(queue) for queue in queues] == [5] * len(queues)
    async with AdminClient(namesrv) as admin:
        (found,) = (await admin.query_message("T", "k77")).messages
        assert found.body == b"77"
    checked: list[bytes] = []

    def check(message: Any) -> LocalTransactionState:
        checked.append(message.body)
        return LocalTransactionState.COMMIT

    async with Producer("p", namesrv=namesrv) as producer:
        producer.check_transactions(check)
        await producer.send(rocketpy.Message("T", b"new"))
        await until(lambda: set(checked) == {b"open"})  # a slow producer is asked again
        await until(lambda: _stored(broker()) == len(SENT | {LATE, b"new", b"open"}))


def _stored(broker: Broker) -> int:
    return sum(broker.store.max_offset_in_queue("T", queue) for queue in range(4))


async def _read_all(consumer: PullConsumer) -> list[rocketpy.MessageExt]:
    found: list[rocketpy.MessageExt] = []
    for queue in await consumer.fetch_queues("T"):
        offset = await consumer.min_offset(queue)
        while offset < await consumer.max_offset(queue):
            result = await consumer.pull(queue, offset)
            found += result.messages
            offset = result.next_offset
    return found


async def test_a_pair_continues_with_its_data(tmp_path: Path) -> None:
    """An upgrade would lose messages, offsets, transactions or the slave."""
    _unpack(tmp_path)
    async with pair(tmp_path / "ha") as it:
        master = await it.master(**SETTINGS)
        slave = await it.start("slave", brokerRole="SLAVE", brokerId="1", **SETTINGS)
        await _check_messages(it.namesrv_address, lambda: master)
        await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
        assert _stored(slave) == _stored(master)


async def test_a_dledger_group_continues_with_its_data(tmp_path: Path) -> None:
    """An upgrade of a group would lose messages, offsets or transactions."""
    _unpack(tmp_path)
    async with ledger_group(tmp_path / "dledger", settings=SETTINGS, sync_ms=50) as group:
        master = await group.master()
        await _check_messages(group.namesrv_address, lambda: master)
