"""Collects the browser's tests only when they are asked for: other runs need no Playwright."""

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without Playwright these files cannot be imported."""
    chosen = str(config.getoption("markexpr"))
    return True if "browser" not in chosen or "not browser" in chosen else None
