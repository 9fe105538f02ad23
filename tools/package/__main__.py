"""Builds, checks and installs the distributions: python -m tools.package.

    --keep DIR        copies wheel and sdist to DIR
    --extras NAME...  tests only these extras; "none" is the wheel without extras

Exit status: 0 if all checks pass; 1 otherwise; stderr then says what failed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tools.package.archives import (
    PackageError,
    build,
    build_native,
    check_native,
    check_sdist,
    check_tag,
    check_wheel,
)
from tools.package.installed import CHECKS, CleanEnvironment


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--extras", nargs="*", default=list(CHECKS), metavar="NAME", choices=CHECKS)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="rocketpy-package-") as folder:
            _check(Path(folder), options.extras, options.keep)
    except PackageError as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    return 0


def _check(folder: Path, extras: list[str], keep: Path | None) -> None:
    wheel, sdist = build(folder / "dist")
    print(f"package: {check_tag(wheel)}", flush=True)
    print(f"package: {check_wheel(wheel)}", flush=True)
    print(f"package: {check_sdist(sdist, wheel, folder / 'sdist')}", flush=True)
    made = [wheel, sdist]
    if shutil.which("cargo") is None:
        print("package: native: not built, because cargo is not here", flush=True)
        extras = [extra for extra in extras if extra != "native"]
    else:
        native = build_native(folder / "dist")
        made += native
        print(f"package: {check_native(*native)}", flush=True)
    environment = CleanEnvironment(folder / "environment", wheel)
    for extra in extras:
        environment.install(extra)
        print(f"package: {extra}: {CHECKS[extra](environment)}", flush=True)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for path in made:
            shutil.copy(path, keep)
    print(f"package: {wheel.name} and {sdist.name} are in order")


if __name__ == "__main__":
    sys.exit(main())
