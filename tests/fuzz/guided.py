"""Coverage-guided runs: ``python -m tests.fuzz.guided --target "SQL92 filter" --seconds 60``.

libFuzzer, by way of atheris (the extra `fuzz`), changes inputs that have reached new code. Those stay below
`--corpus`, so that the next run goes on from there. An input that breaks a promise is written beside them as
``…-crash-…``, and read again with ``--input FILE``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

_SEEDS = 300
_LENGTH_MAX = 65_536


def main() -> None:
    """Run one target, or all in turns; libFuzzer ends the process."""
    with atheris.instrument_imports(include=["rocketpy", "rocketpy_broker", "pyspark_rocketmq"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - what is imported here is watched
    options = _options([target.name for target in TARGETS])
    target = next(target for target in TARGETS if target.name == options.target)
    if options.input is not None:
        _read(target, options.input.read_bytes())
        return
    place = options.corpus / "".join(char if char.isalnum() else "-" for char in target.name)
    _plant(target, place)
    given = [f"-max_total_time={options.seconds}", f"-max_len={_LENGTH_MAX}", "-timeout=5"]
    arguments = [sys.argv[0], str(place), *given, f"-artifact_prefix={place}-", "-print_final_stats=1"]
    atheris.Setup(arguments, lambda data: _read(target, data))
    atheris.Fuzz()


def _options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--target", choices=names, required=True)
    parser.add_argument("--seconds", type=int, default=60, help="(default: %(default)s)")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/fuzz"), help="(default: %(default)s)")
    parser.add_argument("--input", type=Path, help="read this one input only")
    return parser.parse_args()


def _plant(target: Target, place: Path) -> None:
    """Fill an empty corpus with inputs of the seeded engine."""
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        return
    for number in range(_SEEDS):
        (place / f"seed-{number}").write_bytes(target.make(Random(number)))


def _read(target: Target, data: bytes) -> None:
    try:
        target.check(data, Random(len(data)))
    except target.allowed:
        return


if __name__ == "__main__":
    main()
