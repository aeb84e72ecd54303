"""Workflows, hooks, templates and citation: what they repeat of the project is what the project says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import contrastive_text

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}


def steps(workflow: str) -> Iterator[dict[str, Any]]:
    for job in WORKFLOWS[workflow]["jobs"].values():
        yield from job.get("steps", [])


def made(command: str) -> list[str]:
    """Returns the targets that a command has make build; settings such as ``CONSTRAINTS=`` are none."""
    return [word for word in command.split()[1:] if "=" not in word] if command.startswith("make ") else []


def test_the_workflows_try_the_promised_python_versions() -> None:
    matrix = WORKFLOWS["tests"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    named = [
        step["with"]["python-version"]
        for workflow in WORKFLOWS
        for step in steps(workflow)
        if step.get("uses", "").startswith("actions/setup-python@")
    ]
    assert named and {*named} <= {*PYTHONS, "${{ matrix.python }}"}
    assert {*WORKFLOWS["nightly"]["jobs"]["newest"]["strategy"]["matrix"]["python"]} == {PYTHONS[0], PYTHONS[-1]}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_target_that_a_workflow_calls_is_in_the_makefile(workflow: str) -> None:
    called = [target for step in steps(workflow) for target in made(step.get("run", ""))]
    there = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert there and called and {*called} <= {*there[1].split()}
    assert all(re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE) for target in called)


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="the archive of sources leaves .ci out")
def test_what_ci_runs_is_run_by_a_workflow() -> None:
    stages = re.search(r"for stage in ([\w \"-]+);", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    called = {
        target for workflow in WORKFLOWS for step in steps(workflow) for target in made(step.get("run", ""))
    }
    assert stages and {stage.removesuffix("-turn") for stage in stages[1].replace('"', "").split()} <= called


def test_the_hooks_call_what_the_environment_has() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    entries = [hook["entry"].split()[:2] for hook in local["hooks"]]
    assert entries == [[".venv/bin/ruff", "check"], [".venv/bin/ruff", "format"], ["make", "types"]]


def test_the_citation_has_the_name_version_and_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["title"] == PROJECT["name"]
    assert citation["version"] == PROJECT["version"] == contrastive_text.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_substitution_for_the_package_index_leaves_no_relative_link() -> None:
    page = (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    hook = tomllib.loads(block)["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = r"\]\((?!https?:|#)([^)]+)\)"
    found = re.findall(relative, shown)
    for each in hook["substitutions"]:
        whole = each["replacement"].replace("ADDRESS", "https://a.example").replace("RAW", "https://raw.example")
        shown = re.sub(each["pattern"], whole, shown)
    assert found and not re.findall(relative, shown)
    pictures = [link for link in found if link.endswith(".svg")]
    assert pictures and all(f"](https://raw.example/v$HFPR_VERSION/{link})" in shown for link in pictures)
    pages = [link for link in found if link not in pictures]
    assert all(f"](https://a.example/blob/v$HFPR_VERSION/{link})" in shown for link in pages)
    assert all((ROOT / link.partition("#")[0]).exists() for link in found)
