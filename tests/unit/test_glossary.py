"""The glossary names existing classes, and retired words do not return."""

import ast
import importlib
import re

import pytest

from tools.import_map import ROOT, SOURCES

PAGE = ROOT / "docs/internals/glossary.md"
ROWS = re.findall(
    r"^\| (?!Word|--)(.+?) \| (.+?) \| (.+?) \| `([\w.]+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE
)
# What the code called things before; each has a better name in the glossary.
RETIRED = frozenset(
    [
        "Answers",
        "Asked",
        "Asker",
        "Asking",
        "Callee",
        "Consumption",
        "Demand",
        "Doubt",
        "Engine",
        "Gathered",
        "Held",
        "Ledgers",
        "Links",
        "Preparer",
        "Publisher",
        "Questions",
        "Room",
        "Settlers",
        "Submitter",
        "Taker",
        "Takers",
        "Verdict",
    ]
)
_NAMES_RETIRED = re.compile(rf"\bclass \w*({'|'.join(sorted(RETIRED))})")
ALLOWED = {
    "AllocateByMachineRoom": "RocketMQ's AllocateMessageQueueByMachineRoom",
    "ByMachineRoom": "RocketMQ's SelectMessageQueueByMachineRoom",
    "HeldPull": "a pull that is held, as in PullRequestHoldService",
}


@pytest.mark.parametrize(("word", "place"), [(row[0], row[3]) for row in ROWS])
def test_each_word_names_a_class(word: str, place: str) -> None:
    """A reader who searches the code for the word would find nothing."""
    module, _, name = place.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type), word


def test_each_word_has_one_meaning() -> None:
    """Two rows for one word would be two meanings."""
    words = [row[0] for row in ROWS]
    assert len(words) > 50
    assert len(set(words)) == len(words)


def test_no_class_has_a_retired_word() -> None:
    """A reader would meet a word that no documentation explains."""
    found = {
        node.name
        for source in SOURCES.values()
        for path in source.rglob("*.py")
        if _NAMES_RETIRED.search(text := path.read_text("utf-8"))  # parsing all modules takes a second
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and set(re.findall(r"[A-Z][a-z]+", node.name)) & RETIRED
    }
    assert found == set(ALLOWED)
