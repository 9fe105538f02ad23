"""The layers that docs/internals/map.md promises, compared with the imports in the code."""

import ast

import pytest

from tools import import_map
from tools.figures import TASK_OWNER, TASK_STARTERS, described_fields, raw_tasks
from tools.import_map import EVERYWHERE, ROOT, SOURCES, Imports

SCHEDULERS = ("call_soon", "call_soon_threadsafe", "call_later", "call_at")
OWNED_BY_LOOP = ("_TurnScheduler",)
"""Classes that belong to an event loop and to no component, so they have no `Tasks`."""

CALLERS_CALLBACKS = {
    "_call_back": "the callback of an application, which expects its own context",
    "_copy": "leads to `_call_back`",
    "_ended": "of the command line, which has one caller",
    "_oneway_ended": "logs the failure of the caller's message",
    "_untrack": "of a future for threads, whose callbacks have no context",
    "discard": "a method of a set",
    "notify_response": "the RPC hooks of a request run in the context that they began in",
    "pop": "a method of a dict",
    "stop": "of the command line, which has one caller",
}
"""Done callbacks that run in the context of whoever adds them, and why."""

# A package or module -> what of this repository it may import. The longest match counts; no match, no limit.
MAY_IMPORT = {
    "rocketpy": ("rocketpy",),
    "rocketpy.errors": (),
    "rocketpy.native": (),
    "rocketpy.protocol": ("rocketpy.protocol",),
    "rocketpy.runtime": ("rocketpy.runtime",),
    "rocketpy.transport": (
        "rocketpy.transport",
        "rocketpy.protocol",
        "rocketpy.runtime",
    ),
    "rocketpy_broker": ("rocketpy_broker", "rocketpy"),
    "rocketpy_broker.store": (
        "rocketpy_broker.store",
        "rocketpy.protocol",
        "rocketpy.runtime",
    ),
    "rocketpy_broker.services": (
        "rocketpy_broker.services",
        "rocketpy_broker.store",
        "rocketpy_broker.config",
        "rocketpy",
    ),
    "rocketpy_broker.replication.dledger": (
        "rocketpy_broker.replication.dledger",
        "rocketpy_broker.replication.pending_connections",
        "rocketpy_broker.store",
        "rocketpy",
    ),
    "rocketpy_broker.replication.ha": (
        "rocketpy_broker.replication.ha",
        "rocketpy_broker.replication.pending_connections",
        "rocketpy_broker.store",
        "rocketpy",
    ),
    "rocketpy_cli": ("rocketpy_cli", "rocketpy"),
    "pyspark_rocketmq": ("pyspark_rocketmq", "rocketpy"),
    "rocketpy_otel": ("rocketpy_otel", "rocketpy"),
    "rocketpy_kombu": ("rocketpy_kombu", "rocketpy"),
    "pytest_rocketpy": ("pytest_rocketpy", "rocketpy", "rocketpy_broker"),
}

# Sans-IO: bytes or events and `now` go in, values come out, so a simulation can run them at any speed.
PURE = (
    "rocketpy.protocol",
    "rocketpy.client.routing",
    "rocketpy.consumer.allocation",
    "rocketpy.consumer.outcomes",
    "rocketpy.consumer.fetch.process_queue",
    "rocketpy.consumer.group.rebalance",
    "rocketpy.consumer.stats",
    "rocketpy.consumer.fetch.subscription",
    "rocketpy_broker.replication.dledger.core",
    "rocketpy_broker.replication.ha.epochs",
    "rocketpy_broker.replication.ha.master",
    "rocketpy_broker.replication.ha.connected_slaves",
    "rocketpy_broker.replication.ha.settings",
    "rocketpy_broker.replication.ha.slave",
    "rocketpy_broker.replication.ha.sync_waiters",
    "rocketpy_broker.replication.ha.wire",
    "rocketpy_broker.namesrv.route_table",
    "rocketpy_broker.namesrv.kv_config",
    "rocketpy_broker.services.delay.queues",
    "rocketpy_broker.services.transactions.half_messages",
    "rocketpy_broker.services.delay.topic_rewrite",
)  # fmt: skip
NOT_PURE = frozenset({
    "asyncio", "concurrent", "multiprocessing", "os", "random", "select", "selectors", "signal",
    "socket", "ssl", "subprocess", "threading", "time", "uvloop",
})  # fmt: skip
# (module, import) -> why it is right all the same.
PURE_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("rocketpy.protocol.remoting.acl", "time"): "a request is signed now; `now` is an argument",
    ("rocketpy.protocol.message.message_id", "os"): "an id names its process, unless the caller says which",
    (
        "rocketpy.protocol.message.message_id",
        "time",
    ): "ids count from the local month's start; `now` is an argument",
    ("rocketpy.client.routing.selectors", "random"): "one selector chooses by chance",
    (
        "rocketpy.protocol.message.record",
        "socket",
    ): "inet_pton turns an address into bytes; no socket is opened",
}
# Modules outside of transports that open sockets, and why.
SOCKET_OPENERS = {
    "rocketpy_cli.console.server": "the console speaks HTTP; its socket is bound before the link is printed",
    "rocketpy_cli.streams": "it opens none: it asks whether standard output has room",
    "rocketpy_broker.cli.process": "systemd's notify socket, which the command's process is given",
}


# A format -> the module that writes and reads it, the only one that spells it.
CODECS = {
    "record": "rocketpy.protocol.message.record",
    "frame": "rocketpy.protocol.remoting.frame",
    "JSON header": "rocketpy.protocol.remoting.header_json",
}
JSON_HEADER_NAMES = ("extFields", "serializeTypeCurrentRPC")

# The only packages that use sockets; all others use a Transport.
SOCKET_PACKAGES = ("rocketpy.transport",)


@pytest.fixture(scope="module")
def imports() -> Imports:
    """All imports of the packages, read once."""
    return import_map.read_imports()


def test_arrows_go_down(imports: Imports) -> None:
    """An application that only sends would load a broker, and a layer could not be read on its own."""
    wrong = [
        f"{module}:{used.line} imports {used.module}"
        for module, found in imports.items()
        for used in found
        if _is_ours(used.module) and not _allowed(module, used.module)
    ]
    assert wrong == []


def test_no_cycles_between_modules(imports: Imports) -> None:
    """`import rocketpy.x` would work or fail depending on earlier imports."""
    assert import_map.find_cycle(import_map.module_graph(imports)) == []


def test_no_cycles_inside_a_folder(imports: Imports) -> None:
    """Two layers would depend on each other, so that neither can be read alone."""
    graphs = import_map.folder_graphs(imports)
    cycles = {package: import_map.find_cycle(graph) for package, graph in graphs.items()}
    assert {package: cycle for package, cycle in cycles.items() if cycle} == {}


def test_pure_modules_touch_no_clock_and_no_socket(imports: Imports) -> None:
    """A failure found with a seed could not be replayed."""
    impure = {
        (module, used.module): used.line
        for module, found in imports.items()
        if _within(module, PURE)
        for used in found
        if used.module.split(".")[0] in NOT_PURE
    }
    assert {key: line for key, line in impure.items() if key not in PURE_EXCEPTIONS} == {}
    assert set(PURE_EXCEPTIONS) <= set(impure), "an exception that nothing needs any more"


def test_only_transports_open_sockets(imports: Imports) -> None:
    """memory:// would no longer be a whole RocketMQ in one process."""
    openers = [
        f"{module}:{used.line}"
        for module, found in imports.items()
        if not _within(module, SOCKET_PACKAGES)
        for used in found
        if used.module.split(".")[0] in ("socket", "select", "selectors")
        and (module, used.module) not in PURE_EXCEPTIONS
        and module not in SOCKET_OPENERS
    ]
    assert openers == []


def test_formats_are_spelled_in_their_codec_only() -> None:
    """A change of the codec would leave a second spelling behind, which reads or writes other bytes."""
    spelled = [
        f"{path.relative_to(ROOT)}:{line}: {text_format}"
        for root in SOURCES.values()
        for path in sorted(root.rglob("*.py"))
        for line, text_format in _spelled_formats(path.read_text("utf-8"))
        if not path.as_posix().endswith(CODECS[text_format].replace(".", "/") + ".py")
    ]
    assert spelled == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from rocketpy.protocol.message.record import peek\nx = Struct('>16xi16xiq')\n", [(2, "record")]),
        ("from rocketpy.protocol.message import record\nx = struct.unpack('>q', b)\n", [(2, "record")]),
        (
            "from rocketpy.protocol.message.record import peek\nn = int.from_bytes(x[36:40])\n",
            [(2, "record")],
        ),
        ("magic = 0xDAA320A7\n", [(1, "record")]),
        ("x = struct.Struct('>iI')\n", [(1, "frame")]),
        ('x = b\'{"code":%d,"extFields":{%b}}\'\n', [(1, "JSON header")]),
        ("def f(x):\n    return f'\"serializeTypeCurrentRPC\":{x}'\n", [(2, "JSON header")]),
        ("x = Struct('>qiq')\nn = int.from_bytes(x[36:40])\n", []),
    ],
)
def test_a_format_spelled_by_hand_is_found(source: str, found: list[tuple[int, str]]) -> None:
    """The test above could pass because it finds nothing."""
    assert _spelled_formats(source) == found


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_tasks_have_an_owner(package: str) -> None:
    """A task could end with an exception that is not reported."""
    raw = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SOURCES[package].rglob("*.py"))
        if path != ROOT / TASK_OWNER
        for line in _raw_tasks(path.read_text("utf-8"))
    ]
    assert raw == []


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_callbacks_run_in_a_context_of_their_own(package: str) -> None:
    """A client's timers would run in the context of their first caller: its trace, its tenant.

    Where there is a `Tasks`, its methods schedule callbacks: an exception then fails the component.
    """
    raw = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SOURCES[package].rglob("*.py"))
        for line in _raw_callbacks(path.read_text("utf-8"))
    ]
    assert raw == []


def test_done_callbacks_run_in_a_context_of_their_own() -> None:
    """What a client does after a response would run in the context of a caller: its trace, its tenant."""
    found = {
        f"{path.relative_to(ROOT)}: {callback}"
        for package in SOURCES.values()
        for path in sorted(package.rglob("*.py"))
        for callback in _done_callbacks(path.read_text("utf-8"))
    }
    assert {one.rpartition(" ")[2] for one in found} == set(CALLERS_CALLBACKS), found


def test_a_done_callback_without_a_context_is_found() -> None:
    """The test above could pass because it finds nothing."""
    source = "f.add_done_callback(self._ended)\nf.add_done_callback(partial(g, 1))\n"
    lines = "f.add_done_callback(lambda f: own(1, f))\nf.add_done_callback(h, context=Context())\n"
    assert _done_callbacks(source + lines) == ["_ended", "g", "own"]


def test_a_raw_callback_is_found() -> None:
    """The test above could pass because it finds nothing."""
    with_context = "loop.call_later(1, f, context=Context())\n"
    assert _raw_callbacks("loop.call_soon(f)\n" + with_context) == [1]
    assert _raw_callbacks("from rocketpy.runtime.tasks import Tasks\n" + with_context) == [2]
    assert _raw_callbacks("loop.call_soon_threadsafe(tasks.run, f, context=Context())\n") == []
    assert _raw_callbacks("loop.call_soon(tasks.run, f, context=Context())\n") == [1]


def test_a_raw_task_is_found() -> None:
    """The test above could pass because it finds no file."""
    assert _raw_tasks("loop.create_task(work())\nasyncio.ensure_future(work())\n") == [1, 2]
    assert _raw_tasks("from asyncio import create_task as begin\nx = asyncio.TaskGroup()\n") == [1, 2]
    assert _raw_tasks((ROOT / TASK_OWNER).read_text("utf-8")) != []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('class Place:\n    """A place. at: in bytes."""\n    at: int\n', [3]),
        ('class Place:\n    """A place. name, at: as on disk."""\n    name: str\n    at: int\n', [3, 4]),
        ('class Place:\n    """A place.\n\n    Attributes:\n        at: In bytes.\n    """\n', [1]),
        ('class Place:\n    """A place."""\n    at: int\n    """In bytes."""\n', []),
        (
            'class Place:\n    """Spot. end: its."""\n    def __init__(self, at):\n        self.end = at\n',
            [4],
        ),
    ],
)
def test_a_field_that_its_class_describes_is_found(source: str, found: list[int]) -> None:
    """The check in tools.figures could pass because it finds nothing."""
    assert list(described_fields(ast.parse(source))) == found


def test_imports_are_absolute(imports: Imports) -> None:
    """A module that is moved would change its meaning without a change of its text."""
    relative = [
        f"{module}:{used.line} imports {used.module}"
        for module, found in imports.items()
        for used in found
        if used.module.startswith(".")
    ]
    assert relative == []


def test_every_folder_is_a_package() -> None:
    """A folder without __init__.py would merge with another distribution's folder of the same name."""
    folders = {path.parent for source in SOURCES.values() for path in source.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_map_is_true(imports: Imports) -> None:
    """The pictures would differ from the code; draw them with python -m tools.import_map --write."""
    drawn = import_map.pictures(imports)
    assert {path.name: path.read_text("utf-8") for path in drawn} == {
        path.name: text for path, text in drawn.items()
    }


def test_the_map_shows_imports_through_modules() -> None:
    """An arrow would be missing where a package uses another one through a module beside the packages."""
    through = import_map.package_graph(
        {
            "rocketpy.a.x": frozenset({import_map.Import("rocketpy.b", 1)}),
            "rocketpy.b": frozenset({import_map.Import("rocketpy.c.y", 1)}),
            "rocketpy.c.y": frozenset(),
            "pytest_rocketpy.d": frozenset({import_map.Import("rocketpy.a.x", 1)}),
        }
    )
    assert through == {
        "rocketpy.a": {"rocketpy.c"},
        "rocketpy.c": set(),
        "pytest_rocketpy": {"rocketpy.a", "rocketpy.c"},
    }


def test_a_cycle_is_found() -> None:
    """The tests above could pass because they find nothing."""
    assert import_map.find_cycle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}) == [
        "b",
        "c",
        "b",
    ]
    assert import_map.find_cycle({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}) == []


def test_an_upward_import_is_found() -> None:
    """The rule about imports could accept everything."""
    assert not _allowed("rocketpy.client", "rocketpy_broker.embedded")
    assert not _allowed("rocketpy.protocol.remoting.frame", "rocketpy.transport.tcp")
    assert not _allowed("rocketpy_broker.store.log.commit_log", "rocketpy.client")
    assert not _allowed("rocketpy_broker.broker.broker", "pyspark_rocketmq")
    assert _allowed("rocketpy_broker.store.log.commit_log", "rocketpy.errors")


def _spelled_formats(source: str) -> list[tuple[int, str]]:
    """The lines that lay out a record or the prefix of a frame, or contain JSON text of a header."""
    if not any(name in source.lower() for name in ("struct", "from_bytes", "0xdaa320a7", "extfields", "rpc")):
        return []
    tree = ast.parse(source)
    reads_records = any(
        isinstance(node, ast.ImportFrom)
        and CODECS["record"] in {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        for node in ast.walk(tree)
    )
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=0xDAA320A7):
                found.append((node.lineno, "record"))
            case ast.Constant(value=str() | bytes() as text):
                words = text.decode("latin-1") if isinstance(text, bytes) else text
                if any(name in words for name in JSON_HEADER_NAMES):
                    found.append((node.lineno, "JSON header"))
            case ast.Call(args=[ast.Constant(value=str() as layout), *_]) if "truct" in ast.unparse(
                node.func
            ):
                if layout == ">iI":
                    found.append((node.lineno, "frame"))
                elif reads_records:
                    found.append((node.lineno, "record"))
            case ast.Call(
                func=ast.Attribute(attr="from_bytes"),
                args=[ast.Subscript(slice=ast.Slice(upper=ast.Constant())), *_],
            ) if reads_records:
                found.append((node.lineno, "record"))
    return sorted(found)


def _raw_tasks(source: str) -> list[int]:
    """The lines that name a function which starts tasks."""
    if not any(name in source for name in TASK_STARTERS):  # parsing all modules takes seconds
        return []
    return sorted(raw_tasks(ast.parse(source)))


def _raw_callbacks(source: str) -> list[int]:
    """The lines that schedule a callback in the current context, or without the `Tasks` of the module."""
    if not any(f".{name}" in source for name in SCHEDULERS):
        return []
    tree = ast.parse(source)
    has_tasks = any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "Tasks" for alias in node.names)
        for node in ast.walk(tree)
    )
    exempt = {
        id(node)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef) and owner.name in OWNED_BY_LOOP
        for node in ast.walk(owner)
    }
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SCHEDULERS
        and "loop" in ast.unparse(node.func.value)
        and (
            all(keyword.arg != "context" for keyword in node.keywords)
            or (
                node.func.attr != "call_soon_threadsafe"  # `Tasks` schedules in the running loop
                and (has_tasks or any(ast.unparse(argument).endswith("tasks.run") for argument in node.args))
                and id(node) not in exempt
            )
        )
    )


def _done_callbacks(source: str) -> list[str]:
    """The names of the functions that run when a future is done, in the context of whoever adds them."""
    if ".add_done_callback" not in source:
        return []
    added = [
        call.args[0]
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".add_done_callback")
        if all(keyword.arg != "context" for keyword in call.keywords)
    ]
    return [_called(callback) for callback in added]


def _called(callback: ast.expr) -> str:
    """The name of the function that a lambda, `partial` or plain name calls."""
    if isinstance(callback, ast.Lambda):
        return _called(callback.body)
    if isinstance(callback, ast.Call):
        return _called(callback.args[0] if ast.unparse(callback.func) == "partial" else callback.func)
    return ast.unparse(callback).rpartition(".")[2]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in SOURCES


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _allowed(module: str, used: str) -> bool:
    package = max((name for name in MAY_IMPORT if _within(module, (name,))), key=len)
    return used in EVERYWHERE or _within(used, MAY_IMPORT[package])
