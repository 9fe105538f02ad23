"""For tests of functions that have a Python form and a native form; see rocketpy/native.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketpy.native import FORMS, native_form

needs_native = pytest.mark.skipif(
    native_form() != "native", reason=f"{native_form()}; `make native` installs native forms"
)


def both(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls both forms with the same arguments, and returns the Python form's result.

    The native form must have the same result or leave the input to Python by returning None. It must do that
    where the Python form raises an error, which is then raised here.
    """
    python, native = FORMS[function.__name__]
    assert native is not None

    def call(*arguments: Any) -> Any:
        answer = native(*arguments)
        try:
            expected = python(*arguments)
        except Exception:
            assert answer is None, f"{function.__name__} accepts in its native form what Python rejects"
            raise
        assert answer is None or answer == expected
        return expected

    return call
