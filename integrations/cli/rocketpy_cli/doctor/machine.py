"""Checks of this machine: installed packages, and the file with profiles."""

from __future__ import annotations

import os
import platform
import stat
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import rocketpy
from rocketpy._version import __version__
from rocketpy.native import native_form
from rocketpy_cli.doctor.findings import Findings
from rocketpy_cli.profiles import profiles_path

_NAMESAKE: Final = "rocketpy"
"""A flight simulator on PyPI whose module has the same name. The distribution here is rocketpy-mq."""
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def check_machine(findings: Findings, environment: Mapping[str, str]) -> None:
    """Check the installed packages and the file with profiles. No server is needed."""
    _check_module(findings)
    _check_profiles(findings, profiles_path(environment))


def _check_module(findings: Findings) -> None:
    directory = Path(rocketpy.__file__).parent
    try:
        version = metadata.version(_NAMESAKE)
    except metadata.PackageNotFoundError:
        text = (
            f"rocketpy-mq {__version__} in {directory}, Python {platform.python_version()}, {native_form()}"
        )
        findings.ok("module", "this environment", text)
        return
    findings.problem(
        "module",
        "this environment",
        f"PyPI's package rocketpy {version}, a flight simulator, is installed too. Both have the module "
        "rocketpy, and each replaces files of the other",
        "Run: pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq; give the simulator an "
        "environment of its own",
    )


def _check_profiles(findings: Findings, path: Path) -> None:
    subject = f"profiles in {path}"
    try:
        mode = path.stat().st_mode
        profiles = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        findings.ok(
            "profile", subject, "there is no such file; options and environment variables choose the cluster"
        )
        return
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        findings.problem("profile", subject, f"it cannot be read: {error}", "Correct or remove the file")
        return
    secret = sorted(name for name, table in profiles.items() if "secret_key" in _as_table(table))
    if secret and mode & _GROUP_AND_OTHERS and os.name == "posix":
        findings.problem(
            "profile",
            subject,
            f"others can read the secret key of {', '.join(secret)} (mode {stat.S_IMODE(mode):o})",
            f"Run: chmod 600 {path}; replace the key if others use this machine",
        )
        return
    findings.ok("profile", subject, f"{len(profiles)} profiles, no secret key that others can read")


def _as_table(value: object) -> dict[object, object]:
    """Return a table of a TOML file as it is, and an empty table for any other value."""
    return value if isinstance(value, dict) else {}
