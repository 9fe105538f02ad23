"""Finds the places of a package where cosmic-ray's operators can change it, and draws a sample of them.

The sample depends on the seed and on the text of each place, not on line numbers or on other places.
So it stays nearly the same while the package changes, and kept results remain valid.
"""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

from tools.mutants.operators import DropCall, SwapSteps
from tools.mutants.packages import CACHE, ROOT, fingerprint

# The first two need names of variables as arguments; the third breaks nearly every class and property.
LEFT_OUT = ("core/VariableReplacer", "core/VariableInserter", "core/RemoveDecorator")
# These rarely change a result: small integers are single objects, and combined flags have no bit in common.
ALIKE = ("_Eq_Is", "_Is_Eq", "_NotEq_IsNot", "_IsNot_NotEq", "_BitOr_Add", "_BitOr_BitXor")
OWN: dict[str, type[Operator]] = {"rocketpy/DropCall": DropCall, "rocketpy/SwapSteps": SwapSteps}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place.

    `occurrence` is the number of the operator's change in the file, from 0, as cosmic-ray counts. `id` is a
    hash of file, operator, definition and text of the line, so it survives changes elsewhere in the file.
    """

    id: str
    path: str
    definition: str
    line: int
    operator: str
    occurrence: int

    def source(self) -> str:
        """Return the whole text of the changed module.

        Raises:
            ValueError: The operator makes no change there.
        """
        changed = mutate_code(
            (ROOT / self.path).read_text("utf-8"), _operator(self.operator), self.occurrence
        )
        if changed is None:
            raise ValueError(f"{self.operator} makes no change {self.occurrence} of {self.path}")
        return str(changed)


def draw(source: Path, seed: int) -> list[Mutant]:
    """Return all mutants of the modules below `source`, in random order, but one of each place first.

    The search takes many seconds, so its result is kept in a file until a source or this tool changes.
    """
    kept = CACHE / f"{source.name}-{fingerprint([source, Path(__file__).parent])}-{seed}.places"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(mutant) for mutant in _ranked(source, seed)]), "utf-8")
    return [Mutant(**fields) for fields in json.loads(kept.read_text("utf-8"))]


def _ranked(source: Path, seed: int) -> list[Mutant]:
    found: list[tuple[str, tuple[str, object], Mutant]] = []
    for path in sorted(source.rglob("*.py")):
        for place, mutant in _mutants_of(path):
            rank = hashlib.sha256(f"{seed} {mutant.id}".encode()).hexdigest()
            found.append((rank, (mutant.path, place), mutant))
    found.sort(key=lambda ranked: ranked[0])
    first = {place: mutant for _, place, mutant in reversed(found)}
    drawn = {mutant.id for mutant in first.values()}
    return sorted((mutant for _, _, mutant in found), key=lambda mutant: mutant.id not in drawn)


def _mutants_of(path: Path) -> Iterator[tuple[object, Mutant]]:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    ignored = _ignored(tree)
    definitions = _definitions(tree)
    seen: Counter[str] = Counter()
    nodes = list(ast_nodes(get_ast(text)))
    for name in _operators():
        occurrence = -1
        for node in nodes:
            for start, end in _operator(name).mutation_positions(node):
                occurrence += 1
                if any(first <= start < last for first, last in ignored) or _separates_parameters(node):
                    continue
                relative = str(path.relative_to(ROOT))
                line = lines[start[0] - 1]
                if name == "core/ExceptionReplacer" and "." in line[start[1] : end[1]]:
                    continue  # cosmic-ray 8.4 fails on dotted names
                column = start[1] - (len(line) - len(line.lstrip()))
                words = f"{relative}|{definitions.get(start[0], '')}|{name}|{line.strip()}|{column}"
                seen[words] += 1
                identity = hashlib.sha256(f"{words}|{seen[words]}".encode()).hexdigest()[:12]
                mutant = Mutant(identity, relative, definitions.get(start[0], ""), start[0], name, occurrence)
                yield (start, end), mutant


def _operators() -> list[str]:
    return [
        *(name for name in sorted(operator_names()) if name not in LEFT_OUT and not name.endswith(ALIKE)),
        *OWN,
    ]


def _operator(name: str) -> Any:
    return OWN[name]() if name in OWN else get_operator(name)()


def _ignored(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return begin and end of the code that is not mutated, as (line, column)."""
    found = [part for node in ast.walk(tree) for part in _without_behaviour(node)]
    return [
        ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)) for part in found
    ]


def _without_behaviour(node: ast.AST) -> list[ast.expr | ast.stmt | ast.keyword]:
    """Return annotations, decorators, class keywords, imports for types, log calls and raise statements."""
    match node:
        case ast.arg(annotation=ast.expr() as part) | ast.AnnAssign(annotation=ast.expr() as part):
            return [part]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.decorator_list, *([] if node.returns is None else [node.returns])]
        case ast.ClassDef():
            return [*node.decorator_list, *node.keywords]
        case ast.Expr(value=value) if _is_log_call(value):
            return [node]
        case ast.Raise() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return [node]
        case ast.Subscript() if _names_a_type(node.value):
            return [node.slice]
    return []


def _separates_parameters(node: Any) -> bool:
    """Return whether a node is the `*` or `/` of a signature, which cosmic-ray treats as an operator."""
    return node.parent is not None and node.parent.type in {"parameters", "lambdef", "param"}


def _is_log_call(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger" | "_log" | "_logger"))):
            return True
    return False


def _names_a_type(node: ast.expr) -> bool:
    """Return whether `node[...]` can only be a type, such as `list[int | str]` or `Callable[[], None]`."""
    return isinstance(node, ast.Name) and (
        node.id[:1].isupper() or node.id in {"list", "dict", "tuple", "set", "frozenset"}
    )


def _definitions(tree: ast.Module) -> dict[int, str]:
    """Return for each line the dotted name of the innermost class or function that contains it."""
    lines: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                lines.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
                visit(child, name)
            else:
                visit(child, prefix)

    visit(tree, "")
    return lines
