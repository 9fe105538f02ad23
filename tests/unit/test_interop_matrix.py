"""The page on compatibility says what ran, and hides no case that failed."""

from __future__ import annotations

from tests.interop.matrix import page


def test_a_feature_has_a_cell_for_each_version() -> None:
    """A version that a feature failed with, or never ran with, would look supported."""
    ours = "our SDK -> java namesrv + java broker"
    text = page(
        {
            "tests/interop/cases/test_mqproducer.py::a": (ours, "passed"),
            "tests/interop/cases/test_mqproducer.py::b": (f"{ours} (binary)", "passed"),
            "tests/interop/cases/test_mqproducer.py::c": (f"{ours} of 4.9.7", "passed"),
            "tests/interop/cases/test_mqproducer.py::d": (f"{ours} of 4.9.7", "failed"),
            "tests/interop/cases/test_ha.py::e": ("java master -> our slave", "passed"),
        }
    )
    (producer,) = (line for line in text.splitlines() if line.startswith("| Producer"))
    assert producer.endswith(" | 2 | 1 of 2 | not run |")
    assert "| java master -> our slave | 1 |" in text
