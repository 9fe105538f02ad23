"""Findings: what `rocketpy doctor` prints, one for each check."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from rocketpy.errors import RocketError


class Level(StrEnum):
    """How bad a finding is. Only problems change the exit status."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    """The name of the check, for programs."""
    level: Level
    """How bad it is."""
    subject: str
    """What was checked, such as ``broker broker-a at 127.0.0.1:10911``."""
    text: str
    """What was found."""
    remedy: str = ""
    """What to do; empty if nothing."""


class Findings(list[Finding]):
    """The findings of a run, in the order of the checks."""

    def ok(self, check: str, subject: str, text: str, remedy: str = "") -> None:
        """Add a finding that needs no action."""
        self.append(Finding(check, Level.OK, subject, text, remedy))

    def warning(self, check: str, subject: str, text: str, remedy: str) -> None:
        """Add a finding that may need an action."""
        self.append(Finding(check, Level.WARNING, subject, text, remedy))

    def problem(self, check: str, subject: str, text: str, remedy: str) -> None:
        """Add a finding that needs an action."""
        self.append(Finding(check, Level.PROBLEM, subject, text, remedy))

    def not_checked(self, check: str, subject: str, error: RocketError) -> None:
        """Add the warning that a check was impossible."""
        remedy = "Solve the other problems first, then run the command again"
        self.warning(check, subject, f"not checked: {error}", remedy)

    def count(self, level: Level) -> int:  # type: ignore[override]  # list.count is not used
        """Return the number of findings of a level."""
        return sum(finding.level is level for finding in self)


_KEYS: Final = "Set access_key and secret_key in the profile, or ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY"
_KNOWN_REMARKS: Final = {
    "No accessKey is configured": ("it has access control, and no access key was given", _KEYS),
    "No acl config for": (
        "it does not know the access key",
        f"{_KEYS} to those of an account in its plain_acl.yml, or add the account there",
    ),
    "username cannot be null": ("it has access control, and no access key was given", _KEYS),
    "is not found.": (
        "it does not know the access key",
        f"{_KEYS} to those of a user, or add the user: rocketpy user put",
    ),
    "is disabled.": ("the user is disabled", f"{_KEYS} to those of another user, or enable it"),
    "check signature failed": ("the secret key is wrong", f"{_KEYS} to the name and password of a user"),
    "Check signature failed": ("the secret key is wrong", f"{_KEYS} to those of its plain_acl.yml"),
}
"""Remarks of brokers with access control, by a part of their text: what happened, and what helps."""


def add_error_response(findings: Findings, subject: str, remark: str | None) -> None:
    """Add the finding for an error response of a server."""
    text = remark or "no remark"
    for mark, (what, remedy) in _KNOWN_REMARKS.items():
        if mark in text:
            findings.problem("access", subject, f"{what}: {text}", remedy)
            return
    if "Need admin permission" in text or "has no permission to access Cluster" in text:
        remedy = (
            "Use the keys of an administrator (admin: true in plain_acl.yml, or a user of the type Super) to "
            "check the rest"
        )
        findings.warning("access", subject, f"the account may not read its state: {text}", remedy)
        return
    findings.problem("access", subject, f"it rejected the request: {text}", "See the log of that server")
