"""Adds the crates of native/ to an SBOM in CycloneDX: python -m tools.crates sbom.json."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from tools.import_map import ROOT


def crates(lock: str) -> list[dict[str, Any]]:
    """Return the crates that a Cargo.lock names, as components of CycloneDX."""
    return [
        {
            "type": "library",
            "bom-ref": f"cargo:{package['name']}=={package['version']}",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "hashes": [{"alg": "SHA-256", "content": package["checksum"]}],
        }
        for package in tomllib.loads(lock)["package"]
        if "checksum" in package  # the crate of native/ itself has none
    ]


def main(path: Path) -> None:
    """Add the crates to the file."""
    document = json.loads(path.read_text("utf-8"))
    document["components"] += crates((ROOT / "native/Cargo.lock").read_text("utf-8"))
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
