"""GLUE's folder in miniature: each task's files with the columns and quirks of its own."""

from __future__ import annotations

from pathlib import Path

import tiny

_HEADS = {
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "QNLI": "index\tquestion\tsentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "WNLI": "index\tsentence1\tsentence2\tlabel",
    "STS-B": "index\tgenre\tsentence1\tsentence2\tscore",
    "MNLI": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label",
    "SST-2": "sentence\tlabel",
    "CoLA": "",
}
NLI = ("entailment", "neutral", "contradiction")


def _line(task: str, i: int, first: str, second: str) -> str:
    yes = ("not_entailment", "entailment")[i % 2]
    lines = {
        "MRPC": f"{i % 2}\t{i}\t{i}\t{first}\t{second}",
        "QQP": f"{i}\t1\t2\t{first}\t{second}\t{i % 2}",
        "QNLI": f"{i}\t{first}\t{second}\t{yes}",
        "RTE": f"{i}\t{first}\t{second}\t{yes}",
        "WNLI": f"{i}\t{first}\t{second}\t{i % 2}",
        "STS-B": f"{i}\tnews\t{first}\t{second}\t{i % 6 / 1:.3f}",
        "MNLI": f"{i}\tp{i}\t{first}\t{second}\tneutral\t{NLI[i % 3]}",
        "SST-2": f"{first} \t{i % 2}",
        "CoLA": f"gj04\t{i % 2}\t{'' if i % 2 else '*'}\t{first}",
    }
    return lines[task]


def write_glue(folder: Path, rows: int = 24) -> Path:
    """Writes train and development files of all nine tasks; QQP's has a row cut short, as GLUE's."""
    for task, head in _HEADS.items():
        for name in ("train", *(("dev_matched", "dev_mismatched") if task == "MNLI" else ("dev",))):
            lines = [_line(task, i, tiny.TEXTS[i], tiny.TEXTS[(i + 9) % 40]) for i in range(rows)]
            if task == "QQP":
                lines.insert(3, "9\t1\t2\tIs it")
            path = folder / task / f"{name}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            tiny.write_texts(path, tuple(([head] if head else []) + lines))
    return folder


def write_short(folder: Path) -> list[str]:
    """Writes a grid of one cell and a configuration of two steps, and returns the options that name them."""
    (folder / "short_grid.yaml").write_text("model.optimizer.lr: [1e-3]\ndata.batch_size: [8]\n")
    (folder / "short_steps.yaml").write_text(
        "data: {num_workers: 0}\ntrainer: {accelerator: cpu, max_steps: 2, max_epochs: -1}\n"
    )
    grid, steps = (str(folder / f"short_{name}.yaml") for name in ("grid", "steps"))
    return ["--grid", grid, "--config", steps, "--seeds", "1"]
