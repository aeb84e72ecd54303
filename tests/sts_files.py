"""The seven STS tasks with a few pairs of the tiny texts, as plain tables and in SentEval's layout."""

from __future__ import annotations

from pathlib import Path

import tiny

YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Task -> the names of SentEval's files."""
SPLITS = {"train": 40, "dev": 20, "test": 20}
"""Split of STS-B and SICK-R -> its pairs."""
PER_SUBSET = 5
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
LABELS = ("entailment", "neutral", "contradiction")

Pair = tuple[str, str, str]


def some_pairs(count: int, start: int = 0, least: int = 0) -> list[Pair]:
    """Returns scores as written, and two texts."""
    scores = [least + (7 * i + start) % (11 - 2 * least) / 2 for i in range(count)]
    return [
        (f"{score:g}", tiny.TEXTS[(start + i) % 40], tiny.TEXTS[5 * i % 40]) for i, score in enumerate(scores)
    ]


def year_pairs(task: str) -> dict[str, list[Pair]]:
    """Returns the pairs of each file of a year; the last pair of each has no score."""
    start = 3 * int(task[-2:])
    parts = {name: some_pairs(PER_SUBSET, start + 11 * i) for i, name in enumerate(YEARS[task])}
    return {name: [*pairs, ("", "a bird", "no one scored")] for name, pairs in parts.items()}


def write_tables(folder: Path) -> Path:
    """Writes all seven as the library's own tables; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in YEARS:
        rows = [
            (name.removeprefix("surprise."), *pair) for name, pairs in year_pairs(task).items() for pair in pairs
        ]
        write_rows(folder / f"{task.lower()}.test.tsv", ("subset", "score", "sentence1", "sentence2"), rows)
    names = ("score", "sentence1", "sentence2")
    for start, (split, count) in enumerate(SPLITS.items()):
        write_rows(folder / f"stsb.{split}.tsv", names, some_pairs(count, start))
        sick = [(*pair, LABELS[i % 3]) for i, pair in enumerate(some_pairs(count, start, least=1))]
        write_rows(folder / f"sick.{split}.tsv", (*names, "entailment"), sick)
    return folder


def write_senteval(folder: Path) -> Path:
    """Writes all seven as SentEval's script downloads them; gives the folder."""
    for task in YEARS:
        place = folder / "STS" / f"{task}-en-test"
        for name, pairs in year_pairs(task).items():
            write_rows(place / f"STS.gs.{name}.txt", (), [pair[:1] for pair in pairs])
            write_rows(place / f"STS.input.{name}.txt", (), [pair[1:] for pair in pairs])
    for start, (split, count) in enumerate(SPLITS.items()):
        rows = [("news", "MSRpar", "2012", f"{i}", *pair) for i, pair in enumerate(some_pairs(count, start))]
        write_rows(folder / "STS" / "STSBenchmark" / f"sts-{split}.csv", (), rows)
        names = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")
        scored = enumerate(some_pairs(count, start, least=1))
        sick = [(f"{i}", first, second, score, LABELS[i % 3].upper()) for i, (score, first, second) in scored]
        write_rows(folder / "SICK" / SICK_FILES[split], names, sick)
    return folder


def write_rows(path: Path, names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Writes lines of cells between tabs, below a header if there are names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*([names] if names else []), *rows]
    path.write_text("".join("\t".join(cells) + "\n" for cells in lines), encoding="utf-8")
