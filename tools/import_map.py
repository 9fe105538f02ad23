"""Reads the imports between modules, and keeps the diagram in docs/internals/map.md up to date.

    python -m tools.import_map --check    fails if the diagram is out of date
    python -m tools.import_map --write    draws the diagram

A part is a package (`rocketpy.protocol`) or a module next to the packages (`rocketpy.config`). The diagram
shows parts, so it changes only when imports between parts change.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from operator import eq
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = {
    "rocketpy": ROOT / "rocketpy",
    "rocketpy_broker": ROOT / "rocketpy_broker",
    "pyspark_rocketmq": ROOT / "integrations/spark/pyspark_rocketmq",
    "rocketpy_otel": ROOT / "integrations/otel/rocketpy_otel",
    "pytest_rocketpy": ROOT / "integrations/pytest/pytest_rocketpy",
}
MAP_PAGE = ROOT / "docs/internals/map.md"
BEGIN = "<!-- import map: begin; drawn by python -m tools.import_map --write -->"
END = "<!-- import map: end -->"
# Every part may import these; their arrows would only hide the others.
EVERYWHERE = frozenset({"rocketpy.errors", "rocketpy._version"})


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


def draw(imports: Imports) -> str:
    """Return a mermaid flow chart of the parts, without arrows that other arrows imply."""
    parts = part_graph(imports)
    lines = ["```mermaid", "flowchart TD"]
    for package in SOURCES:
        members = sorted(part for part in parts if part.split(".")[0] == package)
        lines.append(f"    subgraph {package}_[{package}]")
        lines += [f"        {_node(part)}[{part.partition('.')[2] or 'public names'}]" for part in members]
        lines.append("    end")
    for part in sorted(parts):
        lines += [f"    {_node(part)} --> {_node(other)}" for other in sorted(_shown_arrows(part, parts))]
    return "\n".join([*lines, "```"])


def page_with(picture: str, page: str) -> str:
    """Return the page with the picture between its markers. Raises ValueError if it has no markers."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{MAP_PAGE.name} must contain the lines {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n{picture}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Check or write the diagram; return the exit status."""
    if arguments not in (["--check"], ["--write"]):
        print(__doc__)
        return 2
    page = MAP_PAGE.read_text("utf-8")
    wanted = page_with(draw(read_imports()), page)
    if wanted == page:
        return 0
    if arguments == ["--write"]:
        MAP_PAGE.write_text(wanted, "utf-8")
        return 0
    print(f"{MAP_PAGE.relative_to(ROOT)} is out of date; update it: python -m tools.import_map --write")
    return 1


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


def _node(part: str) -> str:
    return part.replace(".", "_")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
