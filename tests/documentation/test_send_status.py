"""Programs that users copy from guides and the tutorial notice messages that are stored less durably."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS
from tools.import_map import ROOT

PAGES = [
    ROOT / "README.md",
    *(page for part in ("tutorial", "guides", "coming-from") for page in sorted((DOCS / part).glob("*.md"))),
]
WITHOUT = {"request-reply"}
"""A request that got its reply does not raise, whatever its status was."""


def sending_programs(page: Path) -> list[str]:
    """The Python blocks of a page that import Producer and send messages."""
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [
        block
        for block in blocks
        if re.search(r"^from rocketpy(\.sync)? import .*\bProducer\b", block, re.MULTILINE)
        and re.search(r"\.send(_nowait|_batch|_async|_in_transaction)?\(", block)
    ]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem) for page in PAGES if sending_programs(page)]
)
def test_programs_check_the_status_or_require_send_ok(page: Path) -> None:
    """A program copied from here would lose messages with a broker that has no slave, without a word."""
    if page.stem not in WITHOUT:
        for program in sending_programs(page):
            assert re.search(r"require_send_ok|\.status\b", program), program


def test_there_are_programs() -> None:
    """A change of the pages' form could leave every program unchecked."""
    assert len([page for page in PAGES if sending_programs(page)]) > 10
