"""A client or broker that meets wrong bytes would crash, hang or fill its memory instead of refusing them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest

from rocketpy.errors import RemoteProtocolError
from tests.fuzz.__main__ import main
from tests.fuzz.engine import Failure, run_offline
from tests.fuzz.live import LIVE_TARGETS, fuzz_port
from tests.fuzz.targets import TARGETS, Target

SEED = 1
READER_INPUTS = 1500


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_reader_rejects_wrong_bytes_with_its_own_error(target: Target) -> None:
    """Wrong bytes from a peer or a disk would raise a KeyError in applications, or hang."""
    inputs = min(READER_INPUTS, target.rate)
    result = run_offline(target, inputs, SEED)
    assert result.inputs == inputs
    assert result.outcomes["accepted"] > inputs // 200, "the inputs are too wrong to reach anything"


def long_run(target: Target) -> int:
    """How many inputs the slow tests read."""
    return min(14_500, 3 * target.rate)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_reader_holds_its_promises_for_longer(target: Target) -> None:
    """Users would find the errors that only one input in some thousands causes."""
    assert run_offline(target, long_run(target), SEED, first=READER_INPUTS).inputs == long_run(target)


def test_the_slow_tests_read_200_000_inputs() -> None:
    """Slow targets could replace inputs without notice."""
    assert sum(map(long_run, TARGETS)) >= 200_000


@pytest.mark.parametrize("inputs", [800, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", LIVE_TARGETS)
async def test_port_serves_others_while_it_is_fuzzed(target: str, inputs: int, tmp_path: Path) -> None:
    """One hostile client would stop a broker or a name server for all others."""
    result = await fuzz_port(target, tmp_path, inputs=inputs, seed=SEED)
    assert result.inputs == inputs
    assert result.outcomes["SUCCESS"] > inputs // 50, "the inputs are too wrong to reach a handler"


# -- the fuzzer itself --------------------------------------------------------------------------


def _reader_with_a_bug(data: bytes, _: Random) -> None:
    if data.startswith(b"\x03"):
        raise KeyError(data)
    raise RemoteProtocolError("refused")


def test_an_unexpected_exception_is_found_and_can_be_replayed() -> None:
    """A bug found at night could not be reproduced in the morning."""
    target = Target("planted", lambda rng: rng.randbytes(4), _reader_with_a_bug, (RemoteProtocolError,))
    with pytest.raises(Failure, match=r"KeyError.*\n.*\n.*--first (\d+) --inputs 1") as caught:
        run_offline(target, 100_000, SEED)
    index = int(str(caught.value).partition("--first ")[2].split()[0])
    with pytest.raises(Failure, match="KeyError"):
        run_offline(target, 1, SEED, first=index)


def test_a_reader_that_takes_too_much_memory_is_found() -> None:
    """A few bytes that make a reader allocate a gigabyte would pass unseen."""
    kept: list[bytearray] = []  # so large that malloc cannot take it from what earlier tests have freed
    target = Target("greedy", lambda rng: rng.randbytes(4), lambda *_: kept.append(bytearray(64 << 20)), ())
    with pytest.raises(Failure, match="memory grew by"):
        run_offline(target, 2, SEED)


def test_a_run_continues_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long run that was stopped would have to start from the beginning."""
    state = tmp_path / "state.json"
    arguments = ["--target", "message id", "--target", "ACL address", "--state", str(state), "--inputs"]
    assert main([*arguments, "1000"]) == 0
    assert main([*arguments, "1500"]) == 0
    assert json.loads(state.read_text()) == {"1 message id": 1500, "1 ACL address": 1500}
    inputs = re.findall(r"^(?:message id|ACL address) +([0-9,]+)", capsys.readouterr().out, re.MULTILINE)
    assert inputs == ["1,000", "1,000", "500", "500"]
