"""Writes the pages of the papers, with figures of benchmarks/results: make pages

An item of a paper's YAML file names results under ``here``. A result is the name of a file of benchmarks/results.
A name without a date is the newest file of that name. ``papers/STUDY`` is one of the sweeps of a result.

    here:
      nli:
        cells: [sbert, joint]          # rows of the table; the default is all cells of the result
        scores: {mean: mean of STS}    # score in the result -> heading of its column
        finds: [joint > sbert]         # the paper's findings, which the first score confirms or contradicts
        note: a sentence on the difference from the paper's table
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.metrics.bootstrap import paired_difference
from contrastive_text.recipes import papers
from contrastive_text.recipes.layers import read_yaml
from contrastive_text.recipes.papers import Item, paper_names, read_paper

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "benchmarks" / "results"
Cells = dict[str, dict[str, dict[int, float]]]
"""Cell -> score -> seed -> figure; the seed is 0 if the result has none, such as for an untrained encoder."""
HEADS = ("**Contrary to the paper**,", "As in the paper,", "Not decided:")
KEYS = ("cells", "scores", "finds", "note")
LEGEND = """\
Figures under "Here" are read from files of `benchmarks/results`. A mean over several seeds has a standard
deviation. A finding is decided if the 95 % interval of the difference, paired by seed, excludes 0. In "Not
decided: A against B", the paper has A above B. `minilm-mlm` is a stand-in for a plain pretrained encoder:
all-MiniLM-L6-v2, which was trained contrastively, after 300 steps of masked language modeling. Runs are far
shorter than the paper's, so they don't refute it."""


def pages() -> dict[Path, str]:
    """Returns the text of each page."""
    texts = {}
    for name in paper_names():
        paper, results = read_paper(name), Shown(name)
        text = paper.markdown(results)
        head = f"{results.counts(paper.items)}\n\n{LEGEND}"
        texts[FOLDER / f"{name}.md"] = text.replace("\n\n## ", f"\n\n{head}\n\n## ", 1) + "\n"
    return texts


class Shown:
    """Text of an item's results, for one paper.

    Args:
        paper: Name of the paper. Its YAML file has a sentence about the runs of each result, under ``results``.
    """

    def __init__(self, paper: str) -> None:
        content = read_yaml(Path(papers.__file__).parent / f"{paper}.yaml", "paper")
        self.paper, self.runs = paper, content.get("results", {})
        self.found: Counter[str] = Counter()

    def __call__(self, item: Item) -> str:
        """Returns the paragraphs and tables of an item's results, first those that contradict the paper."""
        parts = [self._part(f"{self.paper}, {item.name}, {name}", name, show) for name, show in item.here.items()]
        return "\n\n".join(sorted(parts, key=lambda part: not part.startswith("**Contrary")))

    def counts(self, items: Sequence[Item]) -> str:
        """Returns the numbers of findings by their outcome, and of items that were not run."""
        contrary, agreed, undecided = (self.found[head] for head in HEADS)
        missing = sum(bool(item.commands) and not item.here for item in items)
        tables = sum(bool(item.commands) for item in items)
        return (
            f"Of {self.found.total()} findings of the paper that were tried here, {contrary} came out contrary, "
            f"{agreed} as in the paper, and {undecided} are not decided. {missing} of {tables} tables and "
            "figures with commands were not run."
        )

    def _part(self, place: str, result: str, show: Mapping[str, Any]) -> str:  # Any: what YAML holds
        for key in show:
            expect(f"{place}: key", key, KEYS)
        cells, scores = read_cells(result), show["scores"]
        names = show.get("cells", list(cells))
        for name in names:
            expect(f"{place}: cell", name, cells)
        for score in scores:
            expect(f"{place}: score", score, [each for name in names for each in cells[name]])
        path, heading = result_file(result), result.partition("/")[0]
        findings = verdicts(place, cells, next(iter(scores)), show.get("finds", []))
        self.found.update({head: len(group) for head, group in findings.items()})
        text = " ".join(
            [
                *(f"{head} {'; '.join(group)}." for head, group in findings.items() if group),
                start_of(path),
                self.runs[heading],
            ]
            + ([show["note"]] if "note" in show else [])
        )
        header = ["", *scores.values(), "seeds"]
        rows = [
            [name, *(shown(cells[name].get(score, {})) for score in scores), seeds(cells[name])] for name in names
        ]
        table = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
        return "\n".join([f"{text} (`benchmarks/results/{path.stem}.md`)", "", *table])


def expect(place: str, name: str, names: Sequence[str] | Mapping[str, object]) -> None:
    """Raises ValueError if a name is unknown."""
    if name not in names:
        raise InvalidValueError(f"{place}: expected one of {', '.join(dict.fromkeys(names))}, got {name!r}")


def result_file(result: str) -> Path:
    """Returns the JSON file of a result, the newest of its name.

    Raises:
        ValueError: There is no such file.
    """
    name = result.partition("/")[0]
    files = sorted(RESULTS.glob(f"????-??-??-{name}.json")) or [*RESULTS.glob(f"{name}.json")]
    if not files:
        raise InvalidValueError(f"{result}: expected the name of a file in benchmarks/results, got {name!r}")
    return files[-1]


def read_cells(result: str) -> Cells:
    """Returns the figures of a result by cell, score and seed."""
    content = json.loads(result_file(result).read_text(encoding="utf-8"))
    rows = content["rows"] if isinstance(content, dict) else content
    if study := result.partition("/")[2]:
        expect(f"{result}: sweep", study, rows)
        rows = [rows[study]]
    rows = [cell for row in rows for cell in row.get("cells", [row])]
    has_columns = len({row.get("column") for row in rows}) > 1
    cells: Cells = {}
    for row in rows:
        labels = row.get("labels") or {"row": row.get("row") or row.get("name") or row.get("set-up")}
        labels |= {"column": row["column"]} if has_columns else {}
        cell = cells.setdefault(" + ".join(map(str, labels.values())), {})
        for run in row.get("runs", [row]):
            for score, figure in figures(run):
                cell.setdefault(score, {})[run["seed"] or 0] = figure
    return cells


def figures(run: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields name and value of each figure of a run, and the mean of the tasks of CS224N as ``overall``.

    Example:
        >>> list(figures({"seed": 1, "dev": {"sentiment": 25.0, "similarity": 71.0}, "seconds": 9}))
        [('dev sentiment', 25.0), ('dev similarity', 71.0), ('seconds', 9)]
    """
    for name, value in run.items():
        if isinstance(value, dict):
            yield from figures(value, "" if name in ("figures", "scores") else f"{name} ")
            if len(value) == 3 and "sentiment" in value:
                yield f"{name} overall", statistics.fmean(value.values())
        elif isinstance(value, int | float) and name != "seed":
            yield prefix + name, value


def start_of(path: Path) -> str:
    """Returns the start and the number of steps of a result's runs, which its table names."""
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    start = re.search(r"Start:? `?([\w -]+)", text)
    steps = re.search(r"(\d+)\s+(steps|batches)(?!\s+of\s+masked)", text)
    parts = [start[1].strip()] if start else []
    parts += [f"{steps[1]} {steps[2]}"] if steps else []
    return f"Start: {', '.join(parts)}." if parts else ""


def shown(by_seed: Mapping[int, float]) -> str:
    """Returns the mean over seeds and its standard deviation; nothing if there is no figure."""
    values = [*by_seed.values()]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return (
        f"{statistics.fmean(values):,.2f}".removesuffix(".00" if isinstance(values[0], int) else "") + spread
        if values
        else ""
    )


def seeds(cell: Mapping[str, Mapping[int, float]]) -> str:
    """Returns the number of seeds of a cell; a dash if it has none."""
    return "-" if any(0 in by_seed for by_seed in cell.values()) else str(max(map(len, cell.values())))


def verdicts(place: str, cells: Cells, score: str, finds: Sequence[str]) -> dict[str, list[str]]:
    """Returns the findings that the figures contradict, those that they confirm, and those not decided.

    Args:
        place: Beginning of error messages.
        cells: Figures.
        score: Score by which cells are compared, over the seeds that both have. A cell without seeds has the same
            score for every seed.
        finds: Findings of the paper; ``A > B`` says that cell A is better than cell B.

    Example:
        >>> figures = {"A": {"dev": {1: 70.0, 2: 71.1}}, "B": {"dev": {1: 72.0, 2: 73.0}}, "C": {"dev": {2: 1.0}}}
        >>> contrary, agreed, undecided = verdicts("page", figures, "dev", ["A > B", "B > C"]).values()
        >>> contrary, undecided
        (['A 70.55 is below B 72.50 (2 seeds)'], ['B 73.00 against C 1.00 (one seed)'])
    """
    sentences: dict[str, list[str]] = {head: [] for head in HEADS}
    contrary, agreed, undecided = sentences.values()
    for better, worse in (find.split(" > ") for find in finds):
        for name in (better, worse):
            expect(f"{place}: cell of a finding", name, cells)
        pair = [cells[name].get(score, {}) for name in (better, worse)]
        every = {*pair[0], *pair[1]} - {0} or {0}
        pair = [dict.fromkeys(every, each[0]) if 0 in each else each for each in pair]
        difference = paired_difference(*pair)
        if difference is None:
            raise InvalidValueError(
                f"{place}: expected two cells with {score} of one seed, got {better} and {worse}"
            )
        common = pair[0].keys() & pair[1].keys()
        first, second = (f"{statistics.fmean(each[seed] for seed in common):.2f}" for each in pair)
        is_decided, seeds_of_both = difference.exceeds_noise, f"{len(common)} seeds"
        if every == {0}:
            is_decided, seeds_of_both = True, "without training"
        elif len(common) == 1:
            is_decided, seeds_of_both = False, "one seed"
        elif not is_decided:
            seeds_of_both += ", within noise"
        verb = "against" if not is_decided else "is above" if difference.mean > 0 else "is below"
        group = undecided if not is_decided else agreed if difference.mean > 0 else contrary
        group.append(f"{better} {first} {verb} {worse} {second} ({seeds_of_both})")
    return sentences


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
