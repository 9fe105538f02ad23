from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.ha_kill import HaRounds


@pytest.mark.slow
async def test_a_slave_has_the_messages_that_a_killed_sync_master_acknowledged(tmp_path: Path) -> None:
    """SEND_OK of a SYNC_MASTER would not survive the loss of its machine."""
    acked = 0
    for number in range(2):
        root = tmp_path / str(number)
        root.mkdir()
        rounds = HaRounds(root, Random(number))
        await rounds.run()
        assert not rounds.problems
        acked += rounds.acked
    assert acked > 0, "the load never arrived"
