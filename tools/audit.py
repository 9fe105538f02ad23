"""Asks a vulnerability service about every package in requirements.lock: python -m tools.audit PIP_AUDIT.

Exit status 0: no vulnerability is known, or no service was reached, which a line then says. Exit status 1: a
vulnerability is known, only some packages were audited, or pip-audit failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tools.locked import ROOT, read_lock

__all__ = ["NOT_RUN", "report", "rounds"]

NOT_RUN: Final = "audit: not run: no vulnerability service"


def report(found: dict[str, Any] | None) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print. found: pip-audit's JSON; None if it printed none."""
    dependencies = [] if found is None else found["dependencies"]
    skipped = [one["name"] for one in dependencies if "skip_reason" in one]
    if len(skipped) == len(dependencies):  # a mirror without advisories skips every package
        return 0, [NOT_RUN]
    lines = [f"audit: {name} was not audited" for name in skipped]
    for one in dependencies:
        for known in one.get("vulns", ()):
            fixed = ", ".join(known["fix_versions"]) or "no version"
            lines.append(f"audit: {one['name']} {one['version']}: {known['id']}, fixed in {fixed}")
    audited = len(dependencies) - len(skipped)
    lines.append(f"audit: {audited} packages audited, {len(lines)} problems")
    return int(len(lines) > 1), lines


def rounds(packages: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return names and versions for each run of pip-audit, which accepts each name only once.

    A name has several versions if the lock has different ones for different platforms.
    """
    found: list[dict[str, str]] = []
    for name, version in sorted(packages):
        place = next((one for one in found if name not in one), None)
        if place is None:
            found.append(place := {})
        place[name] = version
    return [list(one.items()) for one in found]


def main() -> int:
    """Run pip-audit; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pip_audit", type=Path)
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    options = parser.parse_args()
    lock = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    found: list[dict[str, Any]] = []
    for pinned in rounds({one[:2] for one in lock}):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("".join(f"{name}=={version}\n" for name, version in pinned))
            file.flush()
            command = [
                str(options.pip_audit), "--requirement", file.name, "--no-deps", "--disable-pip",
                "--format", "json", "--progress-spinner", "off", "--vulnerability-service", options.service,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if done.stdout.strip():
            found += json.loads(done.stdout)["dependencies"]
        elif _is_unreachable(done.stderr):
            found += [{"name": name, "skip_reason": "no service was reached"} for name, _ in pinned]
        else:
            sys.stderr.write(done.stderr)
            return 1
    status, lines = report({"dependencies": found})
    sys.stdout.write("\n".join(lines) + "\n")
    return status


def _is_unreachable(errors: str) -> bool:
    """Return whether pip-audit ended because no service could be reached."""
    return any(
        name in errors for name in ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ServiceError")
    )


if __name__ == "__main__":
    sys.exit(main())
