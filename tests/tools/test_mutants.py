"""`make mutants`: a changed module must be the one that tests import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import importlib

def test_the_module():
    assert importlib.import_module({module!r}).CHANGED
"""
TRIAL = """
from tools.mutants import trial

trial.prepare()
for source in ("CHANGED = True", "CHANGED = False"):
    running = trial.start(
        ["-p", "no:cov", "-p", "no:xdist", {test!r}],
        path={path!r},
        source=source,
        cpu_seconds=60,
        wall_seconds=60,
    )
    print(trial.wait([running])[2])
"""


@pytest.mark.parametrize(
    "path", ["rocketpy_broker/security/addresses.py", "integrations/otel/rocketpy_otel/names.py"]
)
def test_tests_import_the_changed_module(tmp_path: Path, path: str) -> None:
    """Every mutant would survive: a plugin of pytest that imports modules itself would load the original."""
    module = ".".join(Path(path).with_suffix("").parts[-3 if path.startswith("rocketpy") else -2 :])
    test = tmp_path / "test_changed.py"
    test.write_text(TEST.format(module=module))
    script = TRIAL.format(test=str(test), path=path)
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["passed", "failed"], ran.stderr
