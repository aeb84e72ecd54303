"""The package is imported on systems that lack what others have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import contrastive_text

OF_UNIX = ("fcntl", "resource", "termios", "pwd", "grp")
IMPORT_ALL = f"""
import contextlib, importlib, pkgutil, sys
with contextlib.suppress(ImportError):
    import psutil  # it takes what this very system has, whichever that is
for name in {OF_UNIX}:
    sys.modules[name] = None  # as where the system has none
import contrastive_text.inference, contrastive_text.runs
for module in pkgutil.walk_packages(contrastive_text.__path__, "contrastive_text."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(contrastive_text.runs.SweepTable.__name__, contrastive_text.inference.VectorIndex.__name__)
"""


@pytest.mark.slow  # a process that imports everything
def test_every_module_is_imported_without_the_modules_of_unix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["SweepTable", "VectorIndex"]


def test_no_file_imports_the_modules_of_unix_when_it_is_read() -> None:
    files = Path(contrastive_text.__file__).parent.rglob("*.py")
    imports = re.compile(rf"^(?:import|from) ({'|'.join(OF_UNIX)})\b", re.MULTILINE)
    assert imports.search("import fcntl\n")
    assert not [file.name for file in files if imports.search(file.read_text(encoding="utf-8"))]
