"""Writes rocketpy/sync/admin.py: blocking wrappers for the parts of the admin client.

    python -m tools.blocking_admin --check    fails if the file is out of date
    python -m tools.blocking_admin --write    writes the file, unformatted: run ruff format afterwards

A part is a class of rocketpy/admin whose constructor takes only `AdminRequests`. Each of its public methods
gets a wrapper with the same signature, which waits for the result.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tools.import_map import ROOT

PARTS = ROOT / "rocketpy/admin"
TARGET = ROOT / "rocketpy/sync/admin.py"
_HEAD = '''"""The parts of the blocking `AdminClient`; see those of `rocketpy.AdminClient`.

Written by python -m tools.blocking_admin --write; do not edit.
"""

from __future__ import annotations

'''
_START = '''
class {name}(BlockingPart[{stem}.{name}]):
    """See `{module}.{name}`."""
'''
_ITERATOR = "AsyncIterator"


class Part(NamedTuple):
    """A part of the admin client: the name and text of its module, and its class."""

    stem: str
    tree: ast.Module
    definition: ast.ClassDef

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"rocketpy.admin.{self.stem}"


def read_parts() -> list[Part]:
    """Return all parts, in the order of their modules."""
    return [
        part for path in sorted(PARTS.glob("*.py")) for part in parts_of(path.stem, path.read_text("utf-8"))
    ]


def parts_of(stem: str, text: str) -> list[Part]:
    """Return the parts in the text of a module."""
    tree = ast.parse(text)
    return [Part(stem, tree, node) for node in tree.body if isinstance(node, ast.ClassDef) and _is_part(node)]


def generate(parts: Sequence[Part]) -> str:
    """Return the text of the module. Raises ValueError for a method that cannot be wrapped."""
    imports = {("rocketpy.sync.blocking", "BlockingPart")}
    classes = []
    for part in parts:
        imports.add(("rocketpy.admin", part.stem))
        lines = [_START.format(name=part.definition.name, module=part.module, stem=part.stem)]
        for method in _methods(part):
            lines.append(_wrapper(part, method))
            imports.update(_imports_of(part, method))
            if _is_iterator(method):
                imports.update([("collections.abc", "Iterator"), ("rocketpy.sync.loop_thread", "iterate")])
        classes.append("\n".join(lines))
    froms = [
        f"from {module} import {', '.join(sorted(name for found, name in imports if found == module))}\n"
        for module in sorted({module for module, _ in imports})
    ]
    return _HEAD + "".join(froms) + "\n" + "\n".join(classes)


def is_current(text: str, wanted: str) -> bool:
    """Return whether two modules have the same code, whatever their formatting and comments."""
    return _shape(text) == _shape(wanted)


def main(arguments: list[str]) -> int:
    """Check or write the module; return the exit status."""
    if arguments not in (["--check"], ["--write"]):
        print(__doc__)
        return 2
    wanted = generate(read_parts())
    if TARGET.exists() and is_current(TARGET.read_text("utf-8"), wanted):
        return 0
    if arguments == ["--write"]:
        TARGET.write_text(wanted, "utf-8")
        return 0
    print(f"{TARGET.relative_to(ROOT)} is out of date; run: python -m tools.blocking_admin --write")
    return 1


def _is_part(node: ast.ClassDef) -> bool:
    constructors = (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    taken = [argument.annotation for function in constructors for argument in function.args.args[1:]]
    return [found.id for found in taken if isinstance(found, ast.Name)] == ["AdminRequests"] and len(
        taken
    ) == 1


def _methods(part: Part) -> Iterator[ast.AsyncFunctionDef | ast.FunctionDef]:
    for node in part.definition.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef) and not _is_iterator(node):
            raise ValueError(
                f"{part.definition.name}.{node.name} is not async; it would run outside of the event loop"
            )
        yield node


def _is_iterator(node: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    result = node.returns
    return isinstance(result, ast.Subscript) and ast.unparse(result.value) == _ITERATOR


def _wrapper(part: Part, node: ast.AsyncFunctionDef | ast.FunctionDef) -> str:
    """Return the text of the blocking wrapper of a method."""
    result = "None" if node.returns is None else ast.unparse(node.returns)
    call = f"self._inner.{node.name}({', '.join(_passed(node.args))})"
    if _is_iterator(node):
        result = result.removeprefix("Async")
        body = f"return iterate(self._loop_thread(), {call})"
    else:
        body = ("" if result == "None" else "return ") + f"self._loop_thread().run({call})"
    return (
        f"    def {node.name}({ast.unparse(node.args)}) -> {result}:\n"
        f'        """See `{part.module}.{part.definition.name}.{node.name}`."""\n'
        f"        {body}\n"
    )


def _passed(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    yield from (argument.arg for argument in positional)
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}"
    yield from (f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"


def _imports_of(part: Part, node: ast.AsyncFunctionDef | ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the module and name of everything that a signature refers to."""
    known = {
        alias.name: found.module or ""
        for found in part.tree.body
        if isinstance(found, ast.ImportFrom)
        for alias in found.names
    }
    signature = [node.args, *([] if node.returns is None else [node.returns])]
    for name in (found.id for tree in signature for found in ast.walk(tree) if isinstance(found, ast.Name)):
        if name != _ITERATOR and not hasattr(builtins, name):
            yield known.get(name, part.module), name


def _shape(text: str) -> tuple[set[tuple[str | None, str]], list[str]]:
    body = ast.parse(text).body
    imports = {
        (node.module, alias.name) for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return imports, [ast.dump(node) for node in body if not isinstance(node, ast.ImportFrom)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
