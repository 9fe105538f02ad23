from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.kill import Rounds


@pytest.mark.slow
async def test_a_killed_broker_has_what_it_acknowledged(tmp_path: Path) -> None:
    """A broker killed under load would lose messages it had said are stored, or not start again."""
    rounds = Rounds(tmp_path, Random(1))
    for _ in range(5):
        await rounds.run()
    assert not rounds.problems
    assert rounds.stored > 5, "the load never arrived"
