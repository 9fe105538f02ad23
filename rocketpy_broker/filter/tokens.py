"""The tokens of an SQL92 expression.

    number     0 | 12 | 12L | 1.5 | .5 | 5E10       string   'it''s'
    name       a letter, _ or $, then digits too    symbol   = <> > >= < <= ( ) , + -
    word       NOT AND OR BETWEEN IN TRUE FALSE NULL IS, in any case
    comment    -- to the end of its line, or between /* and */

Source: the tokens of RocketMQ 4.6.0's SelectorParser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from rocketpy.errors import UsageError

EXPRESSION_CHARACTERS_MAX: Final = 16_384
"""Not in RocketMQ: 4.6.0 has no limit."""

_WORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})


def _pattern(line_comment: str) -> re.Pattern[str]:
    """Compile the pattern of a token. Possessive quantifiers prevent backtracking."""
    return re.compile(
        rf"""
          [ \t\n\r\f]*+ (?:
          (?P<space>   {line_comment} /\*(?:[^*]++|\*(?!/))*+\*/ | \Z )
        | (?P<float>   [0-9]++\.[0-9]*+(?:E[+-]?[0-9]++)? | \.[0-9]++(?:E[+-]?[0-9]++)?
                     | [0-9]++E[+-]?[0-9]++ )
        | (?P<integer> 0(?![0-9]) | [1-9][0-9]*+L? )
        | (?P<string>  '(?:''|[^'])*+' )
        | (?P<name>    [A-Z_$][A-Z0-9_$]*+ )
        | (?P<symbol>  <> | >= | <= | [=<>(),+-] ) )
        """,
        re.VERBOSE | re.IGNORECASE | re.ASCII,
    )


_TOKEN: Final = _pattern(r"--[^\n\r]*+(?:\r\n?|\n) |")
_TOKEN_OF_LAST_LINE: Final = _pattern("")
"""Without an end of line, two dashes are two signs, and the search does not scan ahead."""


class ExpressionInvalid(UsageError):
    """An invalid expression."""


class Token(NamedTuple):
    """A token of an SQL92 expression."""

    kind: str
    """Integer, float, string, name, word (text in capitals), symbol, or end."""
    text: str
    at: int
    """Position from 0."""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of an expression and an end, in linear time. Lazy, so an early error is cheap.

    Raises ExpressionInvalid with the position.
    """
    at = 0
    last_line = max(text.rfind("\n"), text.rfind("\r"))
    while at < len(text):
        match = (_TOKEN if at < last_line else _TOKEN_OF_LAST_LINE).match(text, at)
        if match is None:
            raise ExpressionInvalid(f"expression: {text[at : at + 20]!r} at {at} is invalid")
        kind = match.lastgroup or ""
        if kind != "space":
            yield _token(kind, match[kind], match.start(kind))
        at = match.end()
    yield Token("end", "", at)


def _token(kind: str, text: str, at: int) -> Token:
    if kind == "name" and text.upper() in _WORDS:
        return Token("word", text.upper(), at)
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), at)
    return Token(kind, text, at)
