"""The floors of the house: a room imports from lower floors only."""

import ast
import re
from pathlib import Path

import pytest

import contrastive_text

PACKAGE = Path(contrastive_text.__file__).parent
FLOORS = [
    {"core"},
    {"losses", "distributed", "random", "types", "targets", "specs", "recipes", "hub", "extras", "model_files"},
    {"views", "encoders", "poolers", "heads", "metrics", "training", "search", "quantization"},
    {"objectives", "network"},
    {"data", "encoding", "combination", "device_pool", "stopping"},
    {"scores", "sentence_encoder", "model_folder", "model_writing", "text_blocks", "divergence", "accumulation"},
    {"module", "postprocessing", "onnx_export", "vector_files"},
    {"evaluation", "callbacks", "collapse", "chunk_size", "stages", "ensemble"},
    {"report", "sweeps", "verification", "run_folders"},
    {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS, start=1) for room in rooms}
NEIGHBOURS = {
    ("model_writing", "model_folder"),
    ("sentence_encoder", "model_folder"),
    ("sentence_encoder", "model_writing"),
    ("sentence_encoder", "text_blocks"),
}
"""Rooms of one floor of which the first may import the second."""
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_")


def imports(path: Path) -> set[str]:
    """Gives the modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("contrastive_text"):
            names = [alias.name for alias in node.names] if node.module == "contrastive_text" else [""]
            found |= {f"{node.module}.{name}".rstrip(".") for name in names}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("contrastive_text")}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_design_has_the_same_floors() -> None:
    design = (Path(__file__).parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", design, flags=re.MULTILINE)
    assert {int(floor): {*re.findall(r"`(\w+)`", rooms)} for floor, rooms in rows} == dict(enumerate(FLOORS))


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} == set(FLOOR)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_from_lower_floors_only(path: Path) -> None:
    own = room(path)
    for module in imports(path):
        other = module.split(".")[1] if "." in module else None
        if other in (None, own, "__version__"):
            continue
        assert FLOOR[other] < FLOOR[own] or (own, other) in NEIGHBOURS, f"{own} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_training_knows_lightning(path: Path) -> None:
    allowed = {
        "module",
        "scores",
        "divergence",
        "accumulation",
        "callbacks",
        "collapse",
        "chunk_size",
        "run_folders",
        "stopping",
        "cli",
        "data",
    }
    text = path.read_text()
    assert "import lightning" not in text  # a second family of the same classes
    if room(path) not in allowed:
        assert "pytorch_lightning" not in text


def test_losses_know_nothing_of_the_package_but_its_errors() -> None:
    for path in (PACKAGE / "losses").glob("*.py"):
        known = ("contrastive_text.losses", "contrastive_text.core.errors")
        assert all(module.startswith(known) for module in imports(path)), path


def test_the_data_never_import_encoders_and_objectives_never_views() -> None:
    for own, other in (
        ("data", "encoders"),
        ("data", "objectives"),
        ("objectives", "views"),
        ("views", "encoders"),
    ):
        for path in (PACKAGE / own).glob("*.py"):
            assert not any(m.startswith(f"contrastive_text.{other}") for m in imports(path)), (path, other)
