"""The crates that native/ is built from: their versions and hashes are those of native/crates.txt.

    python -m tools.crates lock            writes native/Cargo.lock with exactly these crates
    python -m tools.crates keep            writes crates.txt after `cargo update` has changed Cargo.lock
    python -m tools.crates sbom FILE       adds the crates to an SBOM in CycloneDX

Cargo.lock is not in git: it names the index that each checkout uses. Exit status 1: the crates that cargo
finds differ from crates.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.import_map import ROOT

_MANIFEST: Final = ROOT / "native/Cargo.toml"
_LOCK: Final = ROOT / "native/Cargo.lock"
CRATES: Final = ROOT / "native/crates.txt"


class Crate(NamedTuple):
    """One crate in one version. sha256: of its archive, in hexadecimal digits."""

    name: str
    version: str
    sha256: str


class CratesDiffer(Exception):
    """Cargo cannot use the crates of crates.txt; the text says why."""


def read_crates(text: str) -> list[Crate]:
    """Return the crates that crates.txt names."""
    return [Crate(*line.split()) for line in text.splitlines() if not line.startswith("#")]


def locked_crates() -> list[Crate]:
    """Return the crates that Cargo.lock names; none if it does not exist."""
    if not _LOCK.exists():
        return []
    packages = tomllib.loads(_LOCK.read_text("utf-8"))["package"]
    # The crate of native/ itself has no checksum.
    return sorted(
        Crate(one["name"], one["version"], one["checksum"]) for one in packages if "checksum" in one
    )


def lock() -> None:
    """Write Cargo.lock with the crates of crates.txt. Raises CratesDiffer."""
    wanted = read_crates(CRATES.read_text("utf-8"))
    if locked_crates() == wanted:
        return
    _LOCK.unlink(missing_ok=True)
    _cargo("generate-lockfile")  # of the newest versions that Cargo.toml allows
    while others := _other_versions(wanted):
        # One version may be possible only after that of another crate was chosen.
        for crate in others:
            _cargo("update", "--package", crate.name, "--precise", crate.version, must_succeed=False)
        if _other_versions(wanted) == others:
            break
    found = locked_crates()
    if found != wanted:
        _LOCK.unlink()
        differing = ", ".join(sorted({crate.name for crate in {*found} ^ {*wanted}}))
        raise CratesDiffer(
            f"cargo finds other crates than {CRATES.relative_to(ROOT)} names: {differing}. If Cargo.toml has "
            "changed, run: cargo update --manifest-path native/Cargo.toml, then python -m tools.crates keep"
        )


def _other_versions(wanted: Iterable[Crate]) -> list[Crate]:
    """Return the wanted crates that Cargo.lock has in another version."""
    versions = {crate.name: crate.version for crate in locked_crates()}
    return [crate for crate in wanted if versions.get(crate.name, crate.version) != crate.version]


def _cargo(*arguments: str, must_succeed: bool = True) -> None:
    command = ["cargo", *arguments, "--quiet", "--manifest-path", str(_MANIFEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if must_succeed and done.returncode != 0:
        raise CratesDiffer(f"{' '.join(command)} failed:\n{done.stderr}")


def components(crates: Iterable[Crate]) -> list[dict[str, Any]]:
    """Return crates as components of CycloneDX."""
    return [
        {
            "type": "library",
            "bom-ref": f"cargo:{crate.name}=={crate.version}",
            "name": crate.name,
            "version": crate.version,
            "purl": f"pkg:cargo/{crate.name}@{crate.version}",
            "hashes": [{"alg": "SHA-256", "content": crate.sha256}],
        }
        for crate in crates
    ]


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    match arguments:
        case ["lock"]:
            try:
                lock()
            except CratesDiffer as error:
                print(f"crates: {error}", file=sys.stderr)
                return 1
        case ["keep"]:
            head = "# Name, version and SHA-256 of the crates of native/; see tools/crates.py.\n"
            CRATES.write_text(head + "".join(f"{' '.join(crate)}\n" for crate in locked_crates()), "utf-8")
        case ["sbom", path]:
            document = json.loads(Path(path).read_text("utf-8"))
            document["components"] += components(read_crates(CRATES.read_text("utf-8")))
            Path(path).write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
