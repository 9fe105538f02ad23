"""A mutation that cosmic-ray lacks: removes a call whose result is not used."""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name


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


def _is_call_statement(node: Any) -> bool:
    if node.type != "atom_expr" or node.parent is None or node.parent.type not in {"simple_stmt", "suite"}:
        return False
    last = node.children[-1]
    return bool(last.type == "trailer" and last.children[0] == "(")
