"""Types that a program's checker sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_encode_has_the_type_that_its_options_give() -> None:
    command = [sys.executable, "-m", "mypy", "--config-file=pyproject.toml", "tests/repository/typed_calls.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout
