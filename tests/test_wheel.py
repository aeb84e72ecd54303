"""The wheel, and the one that the archive of sources makes: the README works from them, without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRY_OUT = """
import sys
from pathlib import Path
import contrastive_text
assert Path(contrastive_text.__file__).is_relative_to(sys.prefix), contrastive_text.__file__
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1], "-k", "README"]))
"""


def pip(python: Path | str, *words: str) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_the_readme_s_blocks_run_from_what_a_release_uploads(form: str, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is of the extra dev")
    source = ROOT
    if form == "sdist":
        command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
        (archive,) = tmp_path.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path / "sources", filter="data")
        (source,) = (tmp_path / "sources").iterdir()
    pip(sys.executable, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source))
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    pip(sys.executable, "install", "-q", "--no-deps", "--target", str(packages), str(wheel))
    # What the library needs, after the wheel itself; what that folder's own .pth files name is not taken.
    needed = str(Path(pytest.__file__).parents[1])
    (packages / "needed.pth").write_text(f"import sys; sys.path.append({needed!r})\n", encoding="utf-8")
    # Only the tests and the page that they read: a checkout's package isn't found beside them.
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "README.md").write_bytes((source / "README.md").read_bytes())
    for name in ("tests", "docs", "pyproject.toml"):
        (tmp_path / "copy" / name).symlink_to(ROOT / name)
    tried = subprocess.run(
        [str(python), "-c", TRY_OUT, str(tmp_path / "copy" / "tests" / "test_docs.py")],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert tried.returncode == 0 and "1 passed" in tried.stdout, tried.stdout + tried.stderr
