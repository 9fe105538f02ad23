"""The output of a push consumer of RocketMQ (java/Push.java), read while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JavaMember:
    """A running push consumer of RocketMQ's."""

    console: Path

    def messages(self) -> list[dict[str, Any]]:
        """The messages that it has received so far."""
        lines = self.console.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [one for one in found if "body" in one]

    def bodies(self) -> list[bytes]:
        """Return the bodies of the messages that it has received so far."""
        return [bytes.fromhex(one["body"]) for one in self.messages()]
