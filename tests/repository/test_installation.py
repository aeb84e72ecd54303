"""Tests of installation: supported Python versions, lowest versions of dependencies, and the wheel.

torch is never downloaded: it is large, and tested as pinned alone. A stand-in of its name and version takes its
place where nothing is installed, and the running one where something is.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from covering import turn_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NEEDED = [Requirement(each) for each in PROJECT["dependencies"]]
ALL = [*NEEDED, *(Requirement(each) for extra in EXTRAS.values() for each in extra)]
CONSTRAINTS = ROOT / "constraints.txt"
PINNED = {
    canonicalize_name(pin.name): Version(str(pin.specifier).removeprefix("=="))
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}
SMALL_EXTRAS = ("augment", "synonyms", "parquet", "evaluation", "report")
"""Extras of a few wheels, which are installed at their lower bounds too."""


def lower_bound(needed: Requirement) -> str:
    (found,) = [each.version for each in needed.specifier if each.operator in (">=", "==")]
    return found


def test_every_requirement_has_a_lower_bound_that_the_tested_version_keeps() -> None:
    for needed in ALL:
        assert needed.marker is None, needed
        assert Version(lower_bound(needed)) <= PINNED.get(canonicalize_name(needed.name), Version("9999")), needed
        pinned = PINNED.get(canonicalize_name(needed.name))
        assert pinned is None or pinned in needed.specifier, needed
    assert all(canonicalize_name(needed.name) in PINNED for needed in NEEDED)


def test_the_python_versions_are_named_alike_everywhere() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    listed = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert PROJECT["requires-python"] == f">={listed[0]}"
    assert tools["mypy"]["python_version"] == listed[0]
    assert tools["ruff"]["target-version"] == f"py{listed[0].replace('.', '')}"
    *first, last = listed
    assert f"You need Python {', '.join(first)} or {last}, and make." in (ROOT / "README.md").read_text("utf-8")


def pip(python: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)


def execute(folder: Path, code: str, word: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Executes code in the folder's virtual environment."""
    command = [str(folder / "venv" / "bin" / "python"), "-c", code, word]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever package registry pip is set up for; without one, the test is skipped."""
    words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--target"]
    if pip(sys.executable, *words, str(tmp_path_factory.mktemp("probe")), "packaging").returncode:
        pytest.skip("no package registry is reachable")


def stand_in(folder: Path) -> Path:
    """Writes a wheel of torch's name and version that holds and needs nothing."""
    version = PINNED["torch"]
    path = folder / f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        inside = f"torch-{version}.dist-info"
        wheel.writestr(f"{inside}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{inside}/RECORD", "")
    return path


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("python", turn_of(["3.12", "3.13"], 2))
def test_what_is_pinned_resolves_for_the_other_python_versions(python: str, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("".join(f"{each}\n" for each in ALL if each.name != "torch"), encoding="utf-8")
    words = ["--dry-run", "--ignore-installed", "--python-version", python, "--only-binary=:all:"]
    places = ["--target", str(tmp_path / "none"), "--report", str(tmp_path / "report.json")]
    torch = f"torch @ {stand_in(tmp_path).as_uri()}"
    done = pip(sys.executable, "install", "-q", *words, *places, "-c", str(CONSTRAINTS), "-r", str(wanted), torch)
    assert done.returncode == 0, done.stderr
    found = {
        canonicalize_name(each["metadata"]["name"]): Version(each["metadata"]["version"])
        for each in json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["install"]
    }
    for needed in ALL:
        assert found[canonicalize_name(needed.name)] in needed.specifier
    assert all(version == PINNED[name] for name, version in found.items() if name in PINNED)


TRY_OUT = """
import importlib, pkgutil, sys
from pathlib import Path
import contrastive_text
for found in pkgutil.walk_packages(contrastive_text.__path__, "contrastive_text."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
import tiny
from contrastive_text.cli import run
folder = Path(sys.argv[1])
bert, texts = tiny.save_bert(folder / "bert"), tiny.write_texts(folder / "texts.txt")
tiny.trainer(folder).fit(tiny.module(bert), tiny.data(texts))
words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts]
words += ["--data.batch_size", "8", "--data.num_workers", "0", "--trainer.accelerator", "cpu"]
words += ["--trainer.max_steps", "2", "--trainer.default_root_dir", str(folder / "runs")]
assert run([*words, "--trainer.enable_progress_bar", "false"]) == 0
(model,) = (folder / "runs").rglob("model")
assert run(["embed", texts, str(folder / "vectors.parquet"), "--model", str(model), "--device", "cpu"]) == 0
"""


@pytest.mark.usefixtures("registry")
def test_the_lowest_versions_are_installed_imported_and_trained_with(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in ("torch", "contrastive-text"):
        installed = distribution(name)
        tops = {
            Path(file.parts[0]) for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            place = Path(str(installed.locate_file(top)))
            if place.suffix != ".pth":
                (packages / top).symlink_to(place)
    (packages / "here.pth").write_text(f"{ROOT}\n{ROOT / 'tests'}\n", encoding="utf-8")
    needed = [*NEEDED, *(Requirement(each) for name in SMALL_EXTRAS for each in EXTRAS[name])]
    lowest = [
        f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}=={lower_bound(each)}"
        for each in needed
        if each.name != "torch"
    ]
    done = pip(python, "install", "-q", *lowest, f"torch=={PINNED['torch']}")
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}  # of versions of today in those of then
    tried = execute(tmp_path, TRY_OUT, str(tmp_path), environment)
    assert tried.returncode == 0, tried.stderr


# What a release uploads

README = """
import sys
from pathlib import Path
import contrastive_text
assert Path(contrastive_text.__file__).is_relative_to(sys.prefix), contrastive_text.__file__
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1], "-m", "", "-k", "README"]))
"""


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
    done = pip(
        sys.executable, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")  # pure Python
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    done = pip(sys.executable, "install", "-q", "--no-deps", "--target", str(packages), str(wheel))
    assert done.returncode == 0, done.stderr
    # What the library needs, after the wheel itself; what that folder's own .pth files name is not taken.
    needed = str(Path(pytest.__file__).parents[1])
    (packages / "needed.pth").write_text(f"import sys; sys.path.append({needed!r})\n", encoding="utf-8")
    # Only the tests and the page that they read: a checkout's package isn't found beside them.
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "README.md").write_bytes((source / "README.md").read_bytes())
    for name in ("tests", "docs", "pyproject.toml"):
        (tmp_path / "copy" / name).symlink_to(ROOT / name)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    tried = execute(tmp_path, README, str(tmp_path / "copy" / "tests" / "test_docs.py"), environment)
    assert tried.returncode == 0 and "1 passed" in tried.stdout, tried.stdout + tried.stderr
