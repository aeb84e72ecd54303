"""The package is imported on systems that lack what others have."""

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None  # as where the system has none
import contrastive_text
for module in pkgutil.walk_packages(contrastive_text.__path__, "contrastive_text."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.slow  # a process that imports everything
def test_every_module_is_imported_without_the_modules_of_unix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
