"""A client or broker that meets wrong bytes would crash, hang or fill its memory instead of refusing them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rocketpy.errors import RemoteProtocolError
from tests.fuzz.engine import Failure, run_offline
from tests.fuzz.live import LIVE_TARGETS, fuzz_port
from tests.fuzz.targets import TARGETS, Target

SEED = 1
READER_INPUTS = 5000
PORT_INPUTS = 3000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_reader_refuses_wrong_bytes_with_its_own_error(target: Target) -> None:
    """Wrong bytes from a peer or a disk would reach applications as a KeyError, or never come back."""
    result = run_offline(target, READER_INPUTS, SEED)
    assert result.inputs == READER_INPUTS
    assert result.outcomes["accepted"] > READER_INPUTS // 200, "the inputs are too wrong to reach anything"


@pytest.mark.parametrize("target", LIVE_TARGETS)
async def test_port_serves_others_while_it_is_fuzzed(target: str, tmp_path: Path) -> None:
    """One hostile client would stop a broker or a name server for everybody."""
    result = await fuzz_port(target, tmp_path, inputs=PORT_INPUTS, seed=SEED)
    assert result.inputs == PORT_INPUTS
    assert result.outcomes["SUCCESS"] > PORT_INPUTS // 50, "the inputs are too wrong to reach a handler"


# -- the fuzzer itself --------------------------------------------------------------------------


def _reader_with_a_bug(data: bytes, _: Random) -> None:
    if data.startswith(b"\x03"):
        raise KeyError(data)
    raise RemoteProtocolError("refused")


def test_an_unexpected_exception_is_found_and_can_be_replayed() -> None:
    """A bug found in a night's run could not be looked at again in the morning."""
    target = Target("planted", lambda draw: draw.randbytes(4), _reader_with_a_bug, (RemoteProtocolError,))
    with pytest.raises(Failure, match=r"KeyError.*\n.*--first (\d+) --inputs 1") as caught:
        run_offline(target, 100_000, SEED)
    index = int(str(caught.value).partition("--first ")[2].split()[0])
    with pytest.raises(Failure, match="KeyError"):
        run_offline(target, 1, SEED, first=index)


def test_a_reader_that_takes_too_much_memory_is_found() -> None:
    """A few bytes that make a reader allocate a gigabyte would pass unseen."""
    kept: list[bytearray] = []
    target = Target("greedy", lambda draw: draw.randbytes(4), lambda *_: kept.append(bytearray(1 << 20)), ())
    with pytest.raises(Failure, match="memory grew by"):
        run_offline(target, 100, SEED)
