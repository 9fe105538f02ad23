"""The glossary and the reading tour name existing code, and retired words do not return."""

import ast
import importlib
import re
from functools import cache

import pytest

from tools.import_map import ROOT, SOURCES

PAGE = ROOT / "docs/internals/glossary.md"
ROWS = re.findall(
    r"^\| (?!Word|--)(.+?) \| (.+?) \| (.+?) \| `([\w.]+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE
)
TOUR = (
    (ROOT / "docs/internals/map.md").read_text("utf-8").partition("## Reading tours")[2].partition("\n## ")[0]
)
STEPS = re.findall(r"^\d+\. (?:.+\n)(?: {3}.+\n)*", TOUR, re.MULTILINE)
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
        "Taker",
        "Takers",
        "Verdict",
    ]
)
_NAMES_RETIRED = re.compile(rf"\bclass \w*({'|'.join(sorted(RETIRED))})")
ALLOWED = {
    "AllocateByMachineRoom": "RocketMQ's AllocateMessageQueueByMachineRoom",
    "ByMachineRoom": "RocketMQ's SelectMessageQueueByMachineRoom",
    "HeldGroup": "a group of held requests",
    "HeldRequest": "a request that is held, as in PullRequestHoldService",
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


@pytest.mark.parametrize("step", STEPS, ids=lambda step: " ".join(step.split()[1:3]))
def test_each_step_of_the_tour_names_code(step: str) -> None:
    """A reader who follows the tour would look for a file, class or function that does not exist."""
    quoted = re.findall(r"`([^`]+)`", step)
    files = [ROOT / name for name in quoted if name.endswith(".py")]
    assert files
    texts = [path.read_text("utf-8") for path in files]
    for name in quoted:
        if re.fullmatch(r"[a-z_]+", name):
            assert any(f"def {name}(" in text for text in texts), name
        elif re.fullmatch(r"[A-Z][A-Za-z]+(\.\w+)?", name):
            kind, _, method = name.partition(".")
            defined = [text for text in texts if f"class {kind}" in text] or _modules_with(kind)
            assert any(f"def {method}(" in text or not method for text in defined), name


@cache
def _modules_with(kind: str) -> list[str]:
    """Return the text of each module that defines a class."""
    return [text for text in _modules() if re.search(rf"^class {kind}\b", text, re.MULTILINE)]


@cache
def _modules() -> list[str]:
    return [path.read_text("utf-8") for source in SOURCES.values() for path in source.rglob("*.py")]
