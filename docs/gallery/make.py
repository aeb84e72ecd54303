"""Writes the gallery: trains SimCSE and ConSERT from a small encoder, and runs the other commands on both models.

    python docs/gallery/make.py --encoder FOLDER --data FOLDER

``--encoder`` is a plain pretrained encoder, ``--data`` a folder with ``sts/stsb.dev.tsv`` and the other STS sets,
and ``unlabeled/wikitext2_sentences.tsv.gz``. The script writes the output of the commands, the reports and the
pictures into its own folder. The runs are in ``--work``; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contrastive_text.cli import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TRAIN = "data/unlabeled/wikitext2_sentences.tsv.gz"
DEV = "data/sts/stsb.dev.tsv"
WIDTH = "118"


class Shown(NamedTuple):
    """A command of the gallery.

    Args:
        title: The heading.
        why: Sentence about the output.
        words: Arguments of ``contrastive-text``.
        files: Path of an output file -> its name in the gallery.
    """

    title: str
    why: str
    words: Sequence[str]
    files: dict[str, str]


def typed(words: Sequence[str]) -> str:
    """Returns a command, split into lines of at most 100 characters if possible."""
    lines = ["contrastive-text"]
    for option in re.findall(r"\S+(?: (?!--)\S+)*", " ".join(map(shlex.quote, words))):
        if len(lines[-1]) + len(option) > 97:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {option}"
    return "\n".join(lines)


def without_missing(text: str) -> str:
    """Removes the columns and messages of tasks without data from the output of a command."""
    lines = [line for line in text.splitlines() if not re.match(r"STS\d\d: expected ", line)]
    for start in [i for i, line in enumerate(lines) if re.fullmatch(r"[-+]+", line)]:
        end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
        rows = [lines[i].split("+" if i == start else "|") for i in range(start - 1, end)]
        kept = [n for n in range(len(rows[0])) if not all(row[n].strip() == "n/a" for row in rows[2:])]
        for i, row in enumerate(rows):
            lines[start - 1 + i] = ("+" if i == 1 else "|").join(row[n] for n in kept).rstrip()
    return "\n".join(lines)


def fit(recipe: str, config: str, steps: int, every: int) -> list[str]:
    """Returns the arguments of a training run."""
    return [
        "fit", "--recipe", recipe, "--config", config, "--model.encoder.model_name_or_path", "encoder",
        "--data.train", TRAIN, "--data.validation", DEV, "--trainer.max_steps", str(steps),
        "--trainer.val_check_interval", str(every), "--trainer.log_every_n_steps", "1",
        "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", recipe, "--data.num_workers", "0",
    ]  # fmt: skip


def commands(cells: int) -> list[Shown]:
    """Returns the commands that evaluate the two runs."""
    models = [f"{recipe}/version_0/model" for recipe in ("simcse", "consert")]
    views = "none,ShufflePositions,TokenCutoff(rate=0.15),FeatureCutoff(rate=0.2),EmbeddingDropout(rate=0.2)"
    grid = fit("consert", "consert.yaml", cells, cells)[1:-4]
    return [
        Shown(
            "evaluate",
            "The STS table of the papers, without STS13 and STS16, which are not in the data folder.",
            ["evaluate", models[0], "--suite", "sts", "--data", "data", "--cache", "vectors"],
            {},
        ),
        *(
            Shown(
                f"diagnose: {name}",
                "The geometry of the vectors.",
                ["diagnose", model, DEV, "--pairs", DEV],
                {},
            )
            for name, model in zip(("SimCSE", "ConSERT"), models, strict=True)
        ),
        Shown(
            "compare",
            "The difference of each task with its 95 % interval, and how similar the vectors of both models are.",
            ["compare", *models, "--data", "data", "--cache", "vectors"],
            {},
        ),
        Shown(
            "report",
            "A page that shows both runs.",
            ["report", "simcse/version_0", "consert/version_0", "--output", "report"],
            {"report": "report"},
        ),
        Shown(
            "sweep",
            f"ConSERT's grid of views, with {cells} steps per cell and one seed.",
            ["sweep", *grid, "--vary", f"model.views.anchor={views}", "--vary", f"model.views.positive={views}",
             "--seeds", "1", "--output", "sweep"],
            {"sweep/table.md": "sweep.md", "sweep/heat_map.png": "sweep.png"},
        ),
    ]  # fmt: skip


def said(words: Sequence[str]) -> str:
    """Runs a command and returns its standard output.

    Raises:
        SystemExit: The command failed.
    """
    print(shlex.join(["contrastive-text", *words]), flush=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run(list(words))
    print(out.getvalue(), flush=True)
    if status != 0:
        raise SystemExit(f"the command failed: {shlex.join(words)}")
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    return "\n".join(line.rstrip() for line in lines if not re.search(r"━ +\d+/\d+ ", line))  # no bars


def work(options: argparse.Namespace) -> None:
    """Creates the working folder, with links to the data and the encoder, and changes to it."""
    options.work.mkdir(parents=True, exist_ok=True)
    links = {"data": options.data, "encoder": options.encoder, "consert.yaml": HERE / "consert.yaml"}
    for name, place in {**links, "minilm.yaml": ROOT / "examples" / "minilm.yaml"}.items():
        link = options.work / name
        link.unlink(missing_ok=True)
        link.symlink_to(place.resolve())
    os.chdir(options.work)
    os.environ["COLUMNS"] = WIDTH


def main() -> None:
    """Trains missing models, runs the commands and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--cells", type=int, default=20, help="steps of a cell of the sweep")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gallery")
    options = parser.parse_args()
    work(options)
    lines = [(HERE / "head.md").read_text(encoding="utf-8").rstrip(), ""]
    for recipe, config in (("simcse", "minilm.yaml"), ("consert", "consert.yaml")):
        words = fit(recipe, config, options.steps, options.steps // 5)
        if not Path(recipe, "version_0", "model", "modules.json").exists():
            shutil.rmtree(recipe, ignore_errors=True)
            said(words)
        lines += [f"## {recipe}", "", "```text", typed(words), "```", ""]
    for shown in commands(options.cells):
        printed = said(shown.words)
        lines += [f"## {shown.title}", "", shown.why, "", "```text", typed(shown.words), ""]
        lines += [without_missing(printed).strip("\n"), "```", ""]
        for source, name in shown.files.items():
            copy(Path(source), HERE / name)
            if name.endswith(".md"):
                lines += [f"The table of the sweep: [{name}]({name}).", ""]
            elif not name.endswith(".png"):  # the heat map is at the top of the page
                lines += [f"The report of both runs: [{name}/report.html]({name}/report.html).", ""]
    (HERE / "index.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copies a file or a folder, replacing an older copy."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


if __name__ == "__main__":
    sys.exit(main())
