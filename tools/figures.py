"""Measures the code, and compares some figures with limits.

    python -m tools.figures            prints the figures
    python -m tools.figures --check    also fails if one exceeds its limit

Lines of code are those without blanks, comments and docstrings.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tools.import_map import ROOT, SOURCES

TASK_OWNER: Final = "rocketpy/runtime/tasks.py"
TASK_STARTERS: Final = frozenset({"create_task", "ensure_future", "TaskGroup"})
_DEFINITIONS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Figures(NamedTuple):
    """The measured figures. Places in the code are `path` or `path:line`."""

    code: Mapping[str, int]
    """Lines of code by top-level folder."""
    unexplained: list[str]
    """Broad excepts without a comment that gives the reason."""
    broad: int
    """Number of excepts that catch Exception or BaseException."""
    raw_tasks: list[str]
    """Lines outside of TASK_OWNER that start tasks."""
    misplaced: list[str]
    """Fields that the docstring of their class describes."""
    undocumented: list[str]
    """Public definitions without a docstring, unless the method that they override has one."""
    public: int
    """Number of public definitions."""


def measure() -> Figures:
    """Read all sources and return their figures."""
    code: dict[str, int] = {folder: _code_below(ROOT / folder) for folder in ("tests", "tools")}
    unexplained, raw, misplaced = [], [], []
    broad = 0
    for package, folder in SOURCES.items():
        code[package] = _code_below(folder)
        for path in sorted(folder.rglob("*.py")):
            name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
            tree = ast.parse(text)
            lines = text.splitlines()
            for line in _broad_excepts(tree):
                broad += 1
                if "#" not in lines[line - 1]:
                    unexplained.append(f"{name}:{line}")
            if name != TASK_OWNER:
                raw += [f"{name}:{line}" for line in raw_tasks(tree)]
            misplaced += [f"{name}:{line}" for line in described_fields(tree)]
    undocumented, public = _docstrings()
    return Figures(
        code=code,
        unexplained=unexplained,
        broad=broad,
        raw_tasks=raw,
        misplaced=misplaced,
        undocumented=undocumented,
        public=public,
    )


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    lines: set[int] = set()
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DEFINITIONS):
            for inner in node.body:
                # A docstring, or the text below an attribute.
                if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
                    lines.difference_update(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return len(lines)


def _code_below(folder: Path) -> int:
    return sum(code_lines(path.read_text("utf-8")) for path in folder.rglob("*.py"))


def _broad_excepts(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {one.id for one in caught if isinstance(one, ast.Name)}
            if node.type is None or names & {"Exception", "BaseException"}:
                yield node.lineno


def raw_tasks(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of a module that use one of TASK_STARTERS."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.ImportFrom):
            names = [node.attr] if isinstance(node, ast.Attribute) else [name.name for name in node.names]
            if TASK_STARTERS.intersection(names):
                yield node.lineno


def described_fields(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of fields that the docstring of their class describes, and not one below them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not (text := ast.get_docstring(node)):
            continue
        if re.search(r"^Attributes:$", text, re.MULTILINE):
            yield node.lineno
        described = re.findall(r"(?:^|[.;]\s)\s*(\w+(?:, \w+)*):\s", text, re.MULTILINE)
        names = {name for group in described for name in group.split(", ")}
        fields = list(node.body)
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name in ("__init__", "__post_init__"):
                names -= {arg.arg for arg in (*inner.args.args, *inner.args.kwonlyargs)}  # it describes them
                fields += inner.body
        for field in fields:
            if isinstance(field, ast.Assign | ast.AnnAssign):
                target = field.targets[0] if isinstance(field, ast.Assign) else field.target
                if ast.unparse(target).removeprefix("self.") in names:
                    yield field.lineno


def _docstrings() -> tuple[list[str], int]:
    classes: dict[str, list[tuple[ast.ClassDef, str]]] = {}
    modules: list[tuple[str, ast.Module]] = []
    for source in SOURCES.values():
        for path in sorted(source.rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            modules.append((str(path.relative_to(ROOT)), tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append((node, str(path)))
    missing: list[str] = []
    public = 0
    for name, tree in modules:
        for node, owner in _public(tree, None):
            public += 1
            if ast.get_docstring(node) is None and not _overrides(node, owner, classes):
                missing.append(f"{name}:{getattr(node, 'lineno', 1)}")
    return missing, public


def _public(
    node: ast.Module | ast.ClassDef, owner: ast.ClassDef | None
) -> Iterator[tuple[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, ast.ClassDef | None]]:
    yield node, owner
    inside = node if isinstance(node, ast.ClassDef) else None
    for inner in node.body:
        if not isinstance(inner, _DEFINITIONS) or isinstance(inner, ast.Module) or inner.name.startswith("_"):
            continue
        if isinstance(inner, ast.ClassDef):
            yield from _public(inner, inside)
        elif not _is_overload(inner):
            yield inner, inside


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        "overload" in ast.dump(decorator) or ".setter" in ast.unparse(decorator)
        for decorator in node.decorator_list
    )


def _overrides(
    node: ast.AST, owner: ast.ClassDef | None, classes: Mapping[str, list[tuple[ast.ClassDef, str]]]
) -> bool:
    """Return whether a method overrides a documented method of a base class, which is found by its name."""
    if owner is None or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    todo, seen = [owner], set()
    while todo:
        one = todo.pop()
        for base in one.bases:
            base_name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for found, _ in classes.get(base_name, ()):
                if id(found) in seen:
                    continue
                seen.add(id(found))
                todo.append(found)
                for inner in found.body:
                    if (
                        isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                        and inner.name == node.name
                        and ast.get_docstring(inner)
                    ):
                        return True
    return False


def main(arguments: list[str]) -> int:
    """Print the figures; return 1 if `--check` finds one that exceeds its limit, 2 for other arguments."""
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    found = measure()
    product = sum(count for package, count in found.code.items() if package not in ("tests", "tools"))
    others = f"{found.code['tests']} of tests, {found.code['tools']} of tools"
    print(f"lines of code: {product} of the product, {others}")
    print(f"broad excepts: {found.broad}, {len(found.unexplained)} without a reason; limit 0")
    print(f"tasks outside of {TASK_OWNER}: {len(found.raw_tasks)}; limit 0")
    print(f"fields that the docstring of their class describes: {len(found.misplaced)}; limit 0")
    documented = found.public - len(found.undocumented)
    print(f"public docstrings: {documented} of {found.public}; limit all")
    beyond = [*found.unexplained, *found.raw_tasks, *found.misplaced, *found.undocumented]
    if arguments and beyond:
        print("\n".join(["these exceed a limit:", *beyond]))
    return 1 if arguments and beyond else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
