"""pytest plugin: which cases go to one process when pytest-xdist spreads them over several."""

from __future__ import annotations

import re

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_DIRECTION = re.compile(r"[^-\[\]]+ -> [^-\[\]]+")  # in a case's id
_ONE_AT_A_TIME = "test_java_examples.py"  # some examples have their name server's port in their source


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Cases of one module and direction share their servers, so one process runs them all, in turn."""

    def _split_scope(self, nodeid: str) -> str:
        """The group of a case."""
        module, _, case = nodeid.partition("::")
        direction = _DIRECTION.search(case)
        return module if direction is None or module.endswith(_ONE_AT_A_TIME) else f"{module} {direction[0]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    """Return the scheduler; a hook that pytest-xdist calls."""
    return Groups(config, log)
