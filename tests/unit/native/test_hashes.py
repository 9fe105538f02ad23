"""Hashes of index keys in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.native import FORMS
from rocketpy_broker.store.index.index_hash import key_hashes
from tests.native_forms import both, needs_native

pytestmark = needs_native
ROWS = st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.text(max_size=40)), max_size=70)


@given(ROWS)
def test_both_forms_have_the_same_hashes(rows: list[tuple[int, str]]) -> None:
    """An index would have entries that no query finds."""
    both(key_hashes)([topic for topic, _ in rows], [key.encode() for _, key in rows])


def test_usual_keys_are_hashed_by_the_native_form() -> None:
    """It might leave everything to Python."""
    native = FORMS["key_hashes"].native
    assert native is not None
    assert native([0], [b"0A1B2C3D"]) is not None


@pytest.mark.parametrize("keys", [["text"], [None], [1]])
def test_other_types_are_an_error_and_no_panic(keys: list[object]) -> None:
    """A panic would be reported as a defect of the package."""
    native = FORMS["key_hashes"].native
    assert native is not None
    with pytest.raises(TypeError):
        native([0], keys)
