from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.kill import Rounds


@pytest.mark.slow
async def test_a_killed_broker_has_its_acknowledged_messages(tmp_path: Path) -> None:
    """A broker killed under load would lose acknowledged messages, or not start."""
    rounds = Rounds(tmp_path, Random(1))
    for _ in range(5):
        await rounds.run()
    assert not rounds.problems
    assert rounds.stored > 5, "the load never arrived"
