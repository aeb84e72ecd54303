"""Runs docs/retrieval.md as it stands, on a log of clicks for which Quora's duplicate questions stand in.

    python benchmarks/clicks.py --encoder FOLDER --pairs FOLDER_OF_QUORA

Two to four made-up users choose a question's duplicate, single ones choose one that is labeled as another
question, and bots choose anything. The corpus is all duplicates. Then every block of the page is run in a folder
of its own, and its evaluations are filed. ``--rows`` bounds the questions, for a trial or for less time.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shlex
import time
from pathlib import Path
from typing import Any

from runs import RESULTS, ROOT, configurations, do, machine, markdown, publish

PAGE = ROOT / "docs" / "retrieval.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
FIGURES = ("ndcg@10", "mrr@10", "recall@1", "recall@10")
STAGES = ("the encoder as it is", "trained on the pairs", "trained on with hard negatives")


def write_log(quora: Path, folder: Path, most: int) -> None:
    """Writes a log of a month, with what logs have of noise, and the corpus."""
    with (quora / "quora.train.tsv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[:most]
    draw = random.Random(0)
    clicks: list[tuple[str, str, str, str]] = []

    def click(user: str, query: str, document: str, day: int | None = None) -> None:
        on = draw.randint(1, 30) if day is None else day
        at = f"2026-11-{on:02}T{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:00"
        clicks.append((at, user, query, document))

    for row in rows:
        users = draw.sample(range(3000), draw.randint(2, 4) if row["label"] == "1" else draw.randint(0, 1))
        for user in users:
            click(f"u{user}", row["sentence1"], row["sentence2"])
    for bot in range(3):
        for _ in range(1000):
            click(f"bot{bot}", draw.choice(rows)["sentence1"], draw.choice(rows)["sentence2"], day=7)
    for _ in range(200):
        row = draw.choice(rows)
        query, document = draw.choice(((" ", row["sentence2"]), (row["sentence1"], "")))
        click(f"u{draw.randint(0, 2999)}", query, document)
    table = ["time\tuser\tquery\tdocument", *("\t".join(each) for each in sorted(clicks))]
    (folder / "clicks.tsv").write_text("\n".join([*table, ""]), encoding="utf-8")
    chosen = dict.fromkeys(row["sentence2"] for row in rows if row["label"] == "1")
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in chosen), encoding="utf-8")


def run_page(folder: Path) -> list[dict[str, Any]]:
    """Runs all blocks of the page in a folder; returns commands with their seconds, evaluations with figures."""
    told: list[dict[str, Any]] = []
    for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if named := re.match(r"# (\w+\.(?:py|yaml))", block):
            (folder / named[1]).write_text(block, encoding="utf-8")
        begun = time.perf_counter()
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
            told.append({"command": named and named[1], "seconds": round(time.perf_counter() - begun)})
        for line in block.replace("\\\n", "").splitlines() if language == "bash" else ():
            words = shlex.split(line)[1:]
            told.append({"command": line, "seconds": do(words)})
            if words[0] == "evaluate":  # its vectors are kept by now
                plain = [word for word in words if word != "--subsets"]  # which JSON holds anyway
                do([*plain, "--format", "json", "--output", "scores.json"])
                told[-1]["scores"] = json.loads((folder / "scores.json").read_text())
    return told


def main() -> None:
    """Writes the log, runs the page and files what it found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "clicks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    write_log(options.pairs.resolve(), options.out, options.rows)
    (options.out / "encoder").symlink_to(options.encoder.resolve())
    os.chdir(options.out)
    told = run_page(Path.cwd())
    print(json.dumps(told, indent=1))
    found = [each["scores"] for each in told if "scores" in each]
    lines = ["# docs/retrieval.md, run as it stands", ""]
    lines += ["Quora's duplicate questions stand in for clicks; x 100, one seed.", ""]
    table = [
        [stage, *(f"{figures_of(scores)[name]:.2f}" for name in FIGURES)]
        for stage, scores in zip(STAGES, found, strict=True)
    ]
    lines += [*markdown(["", *FIGURES], table), ""]
    lines += [f"- {each['seconds']} s: `{each['command']}`" for each in told]
    lines += ["", machine()]
    print("\n".join(lines))
    print(publish("clicks", lines, told, configurations(Path.cwd()), folder=options.results.resolve()))


def figures_of(scores: Any) -> dict[str, float]:  # Any: what the command writes
    """Returns the figures of the only task, by name."""
    while "tasks" not in scores:
        scores = scores.get("models") or next(iter(scores.values()))
    (task,) = scores["tasks"]
    return {"ndcg@10": task["score"], **task["parts"]}


if __name__ == "__main__":
    main()
