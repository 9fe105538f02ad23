"""Mutations of statements, which cosmic-ray lacks: a missing call, and two steps in the wrong order."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name

# Log calls have no order that matters.
_LOGS = {"log", "logger", "_log", "_logger"}


class DropCall(Operator):
    """Replaces a statement that is only a call, awaited or not, by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[object, object]]:
        """Yield the start and end of the call, if `node` is a statement that is only a call."""
        if _is_call_statement(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> object:
        """Return `pass` in place of the call."""
        return Name("pass", node.start_pos, node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return examples of the mutation, as cosmic-ray requires."""
        return (Example("close(file)\nx = 1", "pass\nx = 1"), Example("await close(file)", "pass"))


class SwapSteps(Operator):
    """Swaps a statement that is only a call with the next one, which is such a call or sets an attribute.

    Also swaps them if the call comes second.
    """

    def mutation_positions(self, node: Any) -> Iterator[tuple[object, object]]:
        """Yield the start and end of each such pair of statements in the block `node`."""
        for first in _pairs(node):
            yield node.children[first].children[0].start_pos, node.children[first + 1].end_pos

    def mutate(self, node: Any, index: int) -> object:
        """Return the block with the statements of a pair in the other order."""
        first = _pairs(node)[index]
        node.children[first : first + 2] = reversed(node.children[first : first + 2])
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return examples of the mutation, as cosmic-ray requires."""
        return (Example("def f(x):\n    x.a = 1\n    g(x)\n", "def f(x):\n    g(x)\n    x.a = 1\n"),)


def _pairs(node: Any) -> list[int]:
    """Return the positions in a block from which two statements can be swapped."""
    if node.type != "suite":
        return []
    steps = [_step(child) for child in node.children]
    return [number for number, pair in enumerate(pairwise(steps)) if "" not in pair and "call" in pair]


def _step(child: Any) -> str:
    if child.type != "simple_stmt" or child.get_first_leaf().value in _LOGS:
        return ""
    statement = child.children[0]
    if _is_call_statement(statement):
        return "call"
    is_assignment = statement.type == "expr_stmt" and statement.children[0].type == "atom_expr"
    return "assignment" if is_assignment else ""


def _is_call_statement(node: Any) -> bool:
    if node.type != "atom_expr" or node.parent is None or node.parent.type not in {"simple_stmt", "suite"}:
        return False
    last = node.children[-1]
    return bool(last.type == "trailer" and last.children[0] == "(")
