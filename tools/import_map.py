"""Reads the imports between modules, and keeps the pictures of docs/internals/map.md up to date.

    python -m tools.import_map --check    fails if a picture is out of date
    python -m tools.import_map --write    draws the pictures

A part is a package (`rocketpy.protocol`) or a module next to the packages (`rocketpy.config`). One picture
shows packages, the other one parts, so they change only when imports between parts change.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from operator import eq
from pathlib import Path
from typing import NamedTuple

from tools import layers
from tools.layers import Box

ROOT = Path(__file__).parent.parent
SOURCES = {
    "rocketpy": ROOT / "rocketpy",
    "rocketpy_broker": ROOT / "rocketpy_broker",
    "rocketpy_cli": ROOT / "integrations/cli/rocketpy_cli",
    "pyspark_rocketmq": ROOT / "integrations/spark/pyspark_rocketmq",
    "rocketpy_otel": ROOT / "integrations/otel/rocketpy_otel",
    "rocketpy_kombu": ROOT / "integrations/kombu/rocketpy_kombu",
    "pytest_rocketpy": ROOT / "integrations/pytest/pytest_rocketpy",
}
PACKAGES_PICTURE = ROOT / "docs/images/packages.svg"
PARTS_PICTURE = ROOT / "docs/images/parts.svg"
# The colour of a distribution, as a CSS class of `tools.svg`; integrations share one.
_KINDS = {"rocketpy": "a", "rocketpy_broker": "c"}
# Every part may import these; their arrows would only hide the others.
EVERYWHERE = frozenset({"rocketpy.errors", "rocketpy._version", "rocketpy.native"})


class Import(NamedTuple):
    """One imported module (absolute name), and the line that imports it."""

    module: str
    line: int


Imports = Mapping[str, frozenset[Import]]
Graph = Mapping[str, frozenset[str]]


def read_imports() -> Imports:
    """Each module of our packages -> everything it imports, also inside functions and for types only."""
    paths = dict(_modules())
    return {
        module: frozenset(_imports_of(ast.parse(path.read_text("utf-8")), paths))
        for module, path in paths.items()
    }


def module_graph(imports: Imports) -> Graph:
    """Module -> modules of this repository that it imports."""
    return {
        module: frozenset(
            found.module for found in used if found.module in imports and found.module != module
        )
        for module, used in imports.items()
    }


def part_graph(imports: Imports) -> Graph:
    """Part -> parts that it imports; modules that all parts import are left out."""
    packages = {module.rpartition(".")[0] for module in imports}
    graph: dict[str, set[str]] = {}
    for module, used in module_graph(imports).items():
        part = part_of(module, packages)
        if part not in EVERYWHERE:
            parts = {part_of(other, packages) for other in used}
            graph.setdefault(part, set()).update(parts - EVERYWHERE - {part})
    return {part: frozenset(parts) for part, parts in graph.items()}


def folder_graphs(imports: Imports) -> Mapping[str, Graph]:
    """Package -> imports between the modules and packages directly inside it."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for module, used in module_graph(imports).items():
        for other in used:
            mine, theirs = module.split("."), other.split(".")
            shared = sum(accumulate(map(eq, mine, theirs), min))
            if shared < min(len(mine), len(theirs)):
                graph = graphs.setdefault(".".join(mine[:shared]), {})
                graph.setdefault(mine[shared], set()).add(theirs[shared])
    return {
        package: {name: frozenset(names) for name, names in graph.items()}
        for package, graph in graphs.items()
    }


def part_of(module: str, packages: Iterable[str]) -> str:
    """Return the part of a module: `rocketpy.protocol` for `rocketpy.protocol.remoting.frame`."""
    parts = module.split(".")
    part = ".".join(parts[:2])
    return part if len(parts) < 2 or part in packages else module


def find_cycle(graph: Graph) -> list[str]:
    """Return one cycle of the graph, with its first name repeated at the end; empty if there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        cycle = _cycle_from(start, graph, [], done)
        if cycle:
            return cycle
    return []


def package_graph(imports: Imports) -> Graph:
    """Package -> packages that it imports, also through modules. An integration counts as one package."""
    packages = {module.rpartition(".")[0] for module in imports}
    parts = part_graph(imports)
    shown: dict[str, set[str]] = {}
    for part in parts:
        reached = {_shown_package(other, packages) for other in _reachable(part, parts)}
        if package := _shown_package(part, packages):
            shown.setdefault(package, set()).update(reached - {package, ""})
    return {package: frozenset(reached) for package, reached in shown.items()}


def pictures(imports: Imports) -> Mapping[Path, str]:
    """File -> picture of the packages, and one of all parts. Both omit arrows that other arrows imply."""
    return {
        PACKAGES_PICTURE: _draw("The packages and their imports", package_graph(imports)),
        PARTS_PICTURE: _draw("The packages, the modules beside them, and their imports", part_graph(imports)),
    }


def main(arguments: list[str]) -> int:
    """Check or write the pictures; return the exit status."""
    if arguments not in (["--check"], ["--write"]):
        print(__doc__)
        return 2
    stale = {
        path: picture
        for path, picture in pictures(read_imports()).items()
        if not path.exists() or path.read_text("utf-8") != picture
    }
    for path, picture in stale.items():
        if arguments == ["--write"]:
            path.write_text(picture, "utf-8")
        else:
            print(f"{path.relative_to(ROOT)} is out of date; update it: python -m tools.import_map --write")
    return int(bool(stale) and arguments == ["--check"])


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            names = inner[:-1] if inner[-1] == "__init__" else inner
            yield ".".join((package, *names)), path


def _imports_of(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield Import(name if name in known else base, node.lineno)


def _cycle_from(name: str, graph: Graph, path: list[str], done: set[str]) -> list[str]:
    if name in path:
        return [*path[path.index(name) :], name]
    if name in done:
        return []
    for other in sorted(graph.get(name, ())):
        cycle = _cycle_from(other, graph, [*path, name], done)
        if cycle:
            return cycle
    done.add(name)
    return []


def _draw(title: str, graph: Graph) -> str:
    boxes = {}
    for name in graph:
        package, _, inner = name.partition(".")
        kind = _KINDS.get(package, "b")
        boxes[name] = Box(package, inner, kind) if inner else Box("", package, kind)
    arrows = {name: _shown_arrows(name, graph) for name in graph}
    return layers.draw(
        title, arrows, boxes, {kind: name for name, kind in _KINDS.items()} | {"b": "integrations"}
    )


def _shown_package(part: str, packages: Iterable[str]) -> str:
    """Return the package that stands for a part; empty for a module beside the packages."""
    distribution = part.partition(".")[0]
    if distribution not in _KINDS:
        return distribution
    return part if part in packages else ""


def _shown_arrows(part: str, parts: Graph) -> set[str]:
    direct = parts[part]
    implied = {far for near in direct for far in _reachable(near, parts)}
    return set(direct - implied)


def _reachable(part: str, parts: Graph) -> set[str]:
    found: set[str] = set()
    todo = list(parts.get(part, ()))
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += parts.get(name, ())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
