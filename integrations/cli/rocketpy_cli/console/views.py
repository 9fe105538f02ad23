"""Renders the templates, and converts values from and to text.

All values are escaped, so that no part of a message is interpreted as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse

from rocketpy.errors import ConfigInvalid
from rocketpy_cli.console.charts import HEIGHT, WIDTH
from rocketpy_cli.console.settings import ConsoleSettings

T = TypeVar("T")

CONSOLE_DIRECTORY: Final = Path(__file__).parent
"""Directory of `templates` and `static`."""
PAGE_SIZE: Final = 50


class Page(NamedTuple, Generic[T]):
    """One page of a list."""

    items: Sequence[T]
    number: int
    """Of this page, from 1."""
    pages: int
    """Number of pages."""
    total: int
    """Length of the list."""


class Views:
    """Renders templates for one console.

    Args:
        settings: The console's settings.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self.csrf_token = ""
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(CONSOLE_DIRECTORY / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"ms": time_text, "number": number_text, "bytes": bytes_text}
        self._environment.globals |= {
            "cluster": settings.cluster,
            "allow_changes": settings.allow_changes,
            "interval": f"{settings.interval_s:g}",
            "link": link,
            "chart_width": WIDTH,
            "chart_height": HEIGHT,
        }

    def page(self, template: str, values: Mapping[str, Any] | None = None, status: int = 200) -> HTMLResponse:
        """Return a response with the rendered template. status: the HTTP status."""
        text = self._environment.get_template(template).render(csrf=self.csrf_token, **(values or {}))
        return HTMLResponse(text, status)


def link(path: str, **parameters: object) -> str:
    """Return a link with parameters; those that are None or empty are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def page_of(items: Sequence[T], number: str) -> Page[T]:
    """Return one page of a list. Raises ConfigInvalid.

    number: the number in the URL; empty for the first page. A number beyond the last page selects the last.
    """
    pages = max(1, -(-len(items) // PAGE_SIZE))
    wanted = min(max(whole_number("page", number or "1"), 1), pages)
    return Page(items[(wanted - 1) * PAGE_SIZE : wanted * PAGE_SIZE], wanted, pages, len(items))


def whole_number(name: str, text: str) -> int:
    """Return the whole number in a text, 0 or more. Raises ConfigInvalid. name: for the error text."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ConfigInvalid(f"{name} is {text!r}; a whole number is expected")
    return int(text)


def parse_time(name: str, text: str) -> int:
    """Return a time in UTC such as 2026-01-31T12:00, in ms since 1970. Raises ConfigInvalid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigInvalid(f"{name} is {text!r}; a time such as 2026-01-31T12:00 is expected") from None
    milliseconds = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    if milliseconds < 0:
        raise ConfigInvalid(f"{name} is {text!r}; a time after 1970 is expected")
    return milliseconds


def time_text(milliseconds: float | None) -> str:
    """Return a time as text in UTC; None or 0 becomes a dash. milliseconds: since 1970."""
    if milliseconds is None or milliseconds <= 0:
        return "–"
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a producer may claim any time
        return f"{milliseconds} ms"
    return f"{time:%Y-%m-%d %H:%M:%S}.{int(milliseconds) % 1000:03}"


def number_text(value: float | None) -> str:
    """Return a number with thousands separators; a float has one decimal. None becomes a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def bytes_text(value: float) -> str:
    """Return a number of bytes as text, in a unit from B to TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
