"""pytest plugin: selects the cases that pytest-xdist runs in the same process."""

from __future__ import annotations

import re

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_DIRECTION = re.compile(r"[^-\[\]]+ -> [^-\[\]]+")  # in a case's id
_ONE_AT_A_TIME = "test_java_examples.py"  # some examples use a fixed port of the name server


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Runs cases of one module and direction in one process, because they share their servers."""

    def _split_scope(self, nodeid: str) -> str:
        """The group of a case."""
        module, _, case = nodeid.partition("::")
        direction = _DIRECTION.search(case)
        return module if direction is None or module.endswith(_ONE_AT_A_TIME) else f"{module} {direction[0]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    """Return the scheduler; a hook that pytest-xdist calls."""
    return Groups(config, log)
