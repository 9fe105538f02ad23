"""Collects the browser tests only on request, so that other runs do not need Playwright."""

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without Playwright these files cannot be imported."""
    chosen = str(config.getoption("markexpr"))
    return True if "browser" not in chosen or "not browser" in chosen else None
