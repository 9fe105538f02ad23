"""SQL92 expressions: their results, their syntax errors, and their limits."""

import pytest

from rocketpy_broker.filter import ExpressionInvalid, compile_expression

MESSAGE = {
    "a": "5",
    "b": "text",
    "half": "2.5",
    "big": "3000000000",
    "yes": "true",
    "TAGS": "TagA",
    "n": "-7",
    "inf": "1e400",
}


def matches(expression: str) -> bool:
    return compile_expression(expression).matches(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a <> 6",
        "5 = a",
        "a > 4 AND a >= 5 and a < 6 AND a <= 5",
        "a > 4.5",
        "half > 2.4 AND half < 2.6",
        "n < 0 AND n = -7 AND n > - 8",
        "a = +5",
        "a BETWEEN 5 AND 5",
        "a NOT BETWEEN 6 AND 9",
        "b = 'text'",
        "b <> 'other'",
        "b IN ('x', 'text')",
        "b NOT IN ('x', 'y')",
        "missing IS NULL",
        "b IS NOT NULL",
        "missing IS NULL AND NOT (a = 6)",
        "a = 6 OR b = 'text'",
        "missing > 3 OR a = 5",
        "yes = TRUE",
        "TRUE",
        "NOT (FALSE)",
        "(TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 0 and 5)",
        "a = 5L AND a = 5.0 AND a > 1E-3",
        "inf > 5.0",
        "a = 5 /* five */ -- the end\n",
        "half > a OR a > half",
        "big > 2999999999",
    ],
)
def test_accepted_messages(expression: str) -> None:
    """A consumer would miss messages that a RocketMQ broker delivers."""
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 6",
        "missing = 5",
        "NOT (missing = 5)",
        "missing <> 5",
        "missing > 5 AND a = 5",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "b > 5",
        "b > a",
        "half > 2",
        "big > 5",
        "b = 5 OR a = 5",
        "yes",
        "TRUE = yes",
        "b IS NULL",
        "a BETWEEN 6 AND 9",
        "NOT a = 5",
        "- b > 5",
        "FALSE OR NULL",
    ],
)
def test_dropped_messages(expression: str) -> None:
    """NULL, texts that are not numbers, and integers compared with floats would match too often."""
    assert not matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "", "a", "a >", "a = ", "a ==  5", "a = 5 b = 6", "a = NULL", "NULL = a", "a > 'text'", "a > TRUE",
        "a BETWEEN 5 AND 4", "a BETWEEN NULL AND 5", "a BETWEEN 'a' AND 'b'", "a BETWEEN 5 AND 'x'",
        "a IN (5)", "a IN ()",
        "a = 9223372036854775808", "5 IN ('5')", "a IS", "(a = 5", "a = 5)", "a # 5", "'text'", "5",
        "a = 'open",
        "a > 1E999", "TRUE = 5", "(a > 5) > 6", "a = 007", "/* open", "AND", "a NOT 5", "5 AND a = 5",
    ],
)  # fmt: skip
def test_invalid_expressions(expression: str) -> None:
    """A user would notice a typing error only by missing messages."""
    if expression == "a":
        assert not matches(expression)  # a property alone is never True
        return
    with pytest.raises(ExpressionInvalid):
        compile_expression(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 200 + "a = 5" + ")" * 200,
        "NOT " * 200 + "a = 5",
        " = ".join(["a"] * 300),
        "a = " + "-" * 500 + "5",
        " OR ".join(["a = 5"] * 3000),
        "a = '" + "x" * 20_000 + "'",
        "a IN (" + ",".join([f"'{n}'" for n in range(2500)]) + ")",
    ],
)
def test_an_expression_has_limits(expression: str) -> None:
    """One client could stop the broker, or end it with a RecursionError."""
    with pytest.raises(ExpressionInvalid):
        compile_expression(expression)


def test_a_long_list_of_conditions_is_no_deep_one() -> None:
    """A long but plain filter would be refused."""
    assert matches(" AND ".join(["a = 5"] * 600))
    assert matches(" OR ".join(["a = 6"] * 600) + " OR a = 5")


def test_an_expression_is_compiled_once() -> None:
    """Every pull would compile its filter again."""
    assert compile_expression("a = 5") is compile_expression("a = 5")


def test_the_error_names_the_place() -> None:
    """The author of a filter would have to guess where its error is."""
    with pytest.raises(ExpressionInvalid, match=r"expected 'AND'|expected AND at 11"):
        compile_expression("a BETWEEN 1")
