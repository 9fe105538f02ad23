"""SQL92 expressions over the properties of a message, compiled once into closures.

    a > 5 AND b = 'x'      c BETWEEN 1 AND 9      d IN ('x', 'y')      e IS NOT NULL      NOT (f = 'z')

NOT binds more tightly than a comparison, as in 4.6.0. AND, OR and NOT use three-valued logic, since an
operand may be NULL. A message matches only if the result is True.

Source: the grammar of RocketMQ 4.6.0's SelectorParser. Differs: text after the end of an expression is an
error (4.6.0 ignores it); depth and size have limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from rocketpy_broker.filter.compile_cache import CompileCache
from rocketpy_broker.filter.tokens import EXPRESSION_CHARACTERS_MAX, ExpressionInvalid, Token, tokens
from rocketpy_broker.filter.values import NotComparable, Value, compare, compare_ordered, is_equal

_DEPTH_MAX: Final = 64
_NODES_MAX: Final = 2048
_LONG_MAX: Final = 2**63 - 1

Evaluate = Callable[[Mapping[str, str]], Value]

_ORDER: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


class _Node(NamedTuple):
    """A part of an expression."""

    kind: str
    """Constant, property, boolean or number."""
    evaluate: Evaluate
    depth: int = 1
    """Of nesting."""
    value: Value = None
    """Value of a constant."""


class Expression:
    """A compiled expression. text: its source."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches."""
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


def compile_expression(text: str) -> Expression:
    """Compile an expression, with a cache. Raises ExpressionInvalid with the position."""
    return _compiled(text)


def is_compiled(text: str) -> bool:
    """Whether an expression is in the cache, or its error."""
    return text in _compiled


def _compile(text: str) -> Expression:
    parser = _Parser(tokens(text))
    return Expression(text, parser.whole().evaluate)


_compiled: Final = CompileCache(_compile, EXPRESSION_CHARACTERS_MAX)


class _Parser:
    """Recursive descent parser with one method for each level of the grammar. For one expression."""

    def __init__(self, tokens_: Iterator[Token]) -> None:
        self._tokens = tokens_
        self._token = next(tokens_)
        """Current token."""
        self._ahead: Token | None = None
        """Next token, after `_look_ahead`."""
        self._depth = 0
        self._nodes = 0

    def whole(self) -> _Node:
        node = self._boolean(self._or_expression())
        if self._token.kind != "end":
            raise self._error("unexpected text after the expression")
        return node

    # -- levels, from the lowest precedence on -------------------------------------------------------

    def _or_expression(self) -> _Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX}")
        node = self._chain("OR", self._and_expression, _any_of)
        self._depth -= 1
        return node

    def _and_expression(self) -> _Node:
        return self._chain("AND", self._equality, _all_of)

    def _chain(
        self, word: str, part: Callable[[], _Node], join: Callable[[list[Evaluate]], Evaluate]
    ) -> _Node:
        """Parse operands joined by AND or OR. Not recursive: a long list needs no deep stack."""
        first = part()
        if self._token[:2] != ("word", word):
            return first
        parts = [self._boolean(first)]
        while self._accept("word", word):
            parts.append(self._boolean(part()))
        depth = 1 + max(node.depth for node in parts)
        return self._node("boolean", join([node.evaluate for node in parts]), depth)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            if self._accept("symbol", "="):
                left = self._equal(left, self._comparison())
            elif self._accept("symbol", "<>"):
                left = self._not(self._equal(left, self._comparison()))
            elif self._accept("word", "IS"):
                is_not = self._accept("word", "NOT")
                self._expect("word", "NULL")
                null = self._node("boolean", _equals(left.evaluate, _null), left.depth + 1)
                left = self._not(null) if is_not else null
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            token = self._token
            if token.kind == "symbol" and token.text in _ORDER:
                self._advance()
                left = self._ordered(token.text, left, self._unary())
                continue
            is_not = token[:2] == ("word", "NOT") and self._look_ahead()[:2] in _INVERTIBLE
            if is_not:
                self._advance()
            if self._accept("word", "BETWEEN"):
                left = self._outside(left) if is_not else self._between(left)
            elif self._accept("word", "IN"):
                left = self._in(left, inverted=is_not)
            else:
                return left

    def _unary(self) -> _Node:
        signs = []
        while (token := self._token)[:2] in _PREFIXES:
            self._advance()
            signs.append(token.text)
            if len(signs) > _DEPTH_MAX:
                raise self._error(f"nested deeper than {_DEPTH_MAX}")
        node = self._primary()
        for sign in reversed(signs):
            if sign == "NOT":
                node = self._not(self._boolean(node))
            elif sign == "-":
                node = self._node("number", _negated(node.evaluate), node.depth + 1)
        return node

    def _primary(self) -> _Node:
        token = self._token
        if self._accept("symbol", "("):
            node = self._or_expression()
            self._expect("symbol", ")")
            return node
        node = self._value(token)
        self._advance()
        return node

    def _value(self, token: Token) -> _Node:
        if token.kind == "name":
            name = token.text
            return self._node("property", lambda properties: properties.get(name))
        if token.kind == "string":
            return self._constant(token.text)
        if token.kind == "integer":
            return self._constant(self._integer(token))
        if token.kind == "float":
            return self._constant(self._float(token))
        if token.kind == "word" and token.text in _LITERALS:
            return self._constant(_LITERALS[token.text])
        raise self._error("expected a value")

    # -- parts --------------------------------------------------------------------------------

    def _equal(self, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.kind == "constant" and node.value is None:
                raise self._error("NULL cannot be compared; write IS NULL")
        are_constants = left.kind == right.kind == "constant"
        if are_constants and isinstance(left.value, bool) and not isinstance(right.value, bool):
            raise self._error(f"{left.value} cannot be compared with {right.value!r}")
        return self._node("boolean", _equals(left.evaluate, right.evaluate), 1 + max(left.depth, right.depth))

    def _ordered(self, symbol: str, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
            if node.kind == "boolean" or (node.kind == "constant" and not is_number):
                raise self._error(f"only numbers can be compared with {symbol}")
        evaluate = _orders(_ORDER[symbol], left.evaluate, right.evaluate)
        return self._node("boolean", evaluate, 1 + max(left.depth, right.depth))

    def _between(self, value: _Node) -> _Node:
        low, high = self._bounds()
        if low.kind == high.kind == "constant":
            if low.value is None or high.value is None:
                raise self._error("NULL is not allowed as a limit of BETWEEN")
            if _is_above(low.value, high.value):
                raise self._error(f"BETWEEN needs its lower limit first, not {low.value} and {high.value}")
        parts = [self._ordered(">=", value, low), self._ordered("<=", value, high)]
        return self._node("boolean", _all_of([node.evaluate for node in parts]), 1 + parts[0].depth)

    def _outside(self, value: _Node) -> _Node:
        low, high = self._bounds()
        parts = [self._ordered("<", value, low), self._ordered(">", value, high)]
        return self._node("boolean", _any_of([node.evaluate for node in parts]), 1 + parts[0].depth)

    def _bounds(self) -> tuple[_Node, _Node]:
        low = self._unary()
        self._expect("word", "AND")
        return low, self._unary()

    def _in(self, left: _Node, *, inverted: bool) -> _Node:
        if left.kind != "property":
            raise self._error("a property is expected before IN")
        self._expect("symbol", "(")
        values = {self._expect("string")}
        while self._accept("symbol", ","):
            self._count(1)
            values.add(self._expect("string"))
        self._expect("symbol", ")")
        return self._node("boolean", _is_in(left.evaluate, frozenset(values), inverted), 2)

    def _not(self, node: _Node) -> _Node:
        return self._node("boolean", _inverted(node.evaluate), node.depth + 1)

    def _boolean(self, node: _Node) -> _Node:
        """Return a node with a boolean value. A property becomes False (it is a text), or NULL if missing."""
        if node.kind == "property":
            return self._node("boolean", _as_boolean(node.evaluate), 2)
        is_literal = node.kind == "constant" and (node.value is None or isinstance(node.value, bool))
        if node.kind == "boolean" or is_literal:
            return node
        raise self._error("a boolean is expected")

    def _constant(self, value: Value) -> _Node:
        return self._node("constant", lambda _: value, value=value)

    def _integer(self, token: Token) -> int:
        value = int(token.text.rstrip("lL")) if len(token.text) <= 20 else _LONG_MAX + 1
        if value > _LONG_MAX:
            raise self._error(f"{token.text[:30]} is above {_LONG_MAX}")
        return value

    def _float(self, token: Token) -> float:
        value = float(token.text)
        if math.isinf(value):
            raise self._error(f"{token.text[:30]} is too large")
        return value

    # -- nodes and tokens -----------------------------------------------------------------------

    def _node(self, kind: str, evaluate: Evaluate, depth: int = 1, *, value: Value = None) -> _Node:
        if depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX}")
        self._count(1)
        return _Node(kind, evaluate, depth, value)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > _NODES_MAX:
            raise self._error(f"more than {_NODES_MAX} parts")

    def _advance(self) -> None:
        self._token, self._ahead = self._ahead or next(self._tokens), None

    def _look_ahead(self) -> Token:
        """Return the token after the current one, which must not be the end."""
        if self._ahead is None:
            self._ahead = next(self._tokens)
        return self._ahead

    def _accept(self, kind: str, text: str) -> bool:
        token = self._token
        if token.text != text or token.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, text: str | None = None) -> str:
        token = self._token
        if token.kind != kind or (text is not None and token.text != text):
            raise self._error(f"expected {text or 'a ' + kind}")
        self._advance()
        return token.text

    def _error(self, what: str) -> ExpressionInvalid:
        token = self._token
        return ExpressionInvalid(f"expression: {what} at {token.at}, before {token.text[:30]!r}")


_PREFIXES: Final = frozenset({("symbol", "+"), ("symbol", "-"), ("word", "NOT")})
_INVERTIBLE: Final = frozenset({("word", "BETWEEN"), ("word", "IN")})
_LITERALS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}


def _null(_: Mapping[str, str]) -> Value:
    return None


def _is_above(low: str | bool | float, high: str | bool | float) -> bool:
    try:
        return compare(high, low) < 0
    except NotComparable:
        return True


def _equals(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda properties: is_equal(left(properties), right(properties))


def _orders(holds: Callable[[int], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        order = compare_ordered(left(properties), right(properties))
        return None if order is None else holds(order)

    return evaluate


def _all_of(parts: list[Evaluate]) -> Evaluate:
    return _combined(parts, decisive=False)


def _any_of(parts: list[Evaluate]) -> Evaluate:
    return _combined(parts, decisive=True)


def _combined(parts: list[Evaluate], *, decisive: bool) -> Evaluate:
    """Combine operands by three-valued AND (decisive=False) or OR (decisive=True).

    The result is `decisive` if an operand has this value, else NULL if one is NULL, else the opposite.
    """

    def evaluate(properties: Mapping[str, str]) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _inverted(part: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        return None if value is None else not value

    return evaluate


def _negated(part: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return evaluate


def _as_boolean(part: Evaluate) -> Evaluate:
    return lambda properties: None if part(properties) is None else False


def _is_in(part: Evaluate, values: frozenset[str], inverted: bool) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        return None if value is None else (value in values) != inverted

    return evaluate
