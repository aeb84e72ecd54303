"""The tasks of SentEval with a few rows, as plain tables and as its own download lays them out."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

PROBING_FILES = {
    "Length": "sentence_length.txt",
    "WordContent": "word_content.txt",
    "Depth": "tree_depth.txt",
    "TopConstituents": "top_constituents.txt",
    "BigramShift": "bigram_shift.txt",
    "Tense": "past_present.txt",
    "SubjNumber": "subj_number.txt",
    "ObjNumber": "obj_number.txt",
    "OddManOut": "odd_man_out.txt",
    "CoordinationInversion": "coordination_inversion.txt",
}
"""As data/probing of SentEval has them."""
WORDS = ("bad", "good", "fine")
SIX = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
THREE = ("contradiction", "entailment", "neutral")
Rows = Sequence[tuple[str, ...]]


def texts(count: int, classes: int = 2, start: int = 0) -> list[tuple[str, ...]]:
    """Labels and texts that name their class, each different."""
    return [(str(i % classes), f"{WORDS[i % classes]} film number {i}") for i in range(start, start + count)]


def pairs(count: int, labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Labels and pairs of texts whose words say their class."""
    return [(labels[i % len(labels)], f"text {i}", f"{WORDS[i % len(labels)]} text {i}") for i in range(count)]


def write(path: Path, lines: Sequence[str], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def table(path: Path, rows: Rows, *columns: str) -> None:
    write(path, ["\t".join(row) for row in (columns, *rows)])


SST = {"train": (12, 0), "dev": (6, 20), "test": (8, 40)}
ROWS: Mapping[str, Mapping[str, Rows]] = {
    **{task: {"": texts(12)} for task in ("MR", "CR", "SUBJ", "MPQA")},
    "SST2": {part: texts(count, 2, start) for part, (count, start) in SST.items()},
    "SST5": {part: texts(count, 3, start) for part, (count, start) in SST.items()},
    "TREC": {
        part: [(SIX[i % 6], f"what is {i} ?") for i in range(count)]
        for part, count in (("train", 18), ("test", 6))
    },
    "MRPC": {"train": pairs(18, "01"), "test": pairs(6, "01")},
    "SICK": {part: pairs(count, THREE) for part, count in (("train", 12), ("dev", 6), ("test", 9))},
    "SNLI": {part: pairs(count, THREE) for part, count in (("train", 12), ("dev", 6), ("test", 9))},
}
"""Task -> part -> label and texts; each task of another size."""
_TABLES = {
    "MRPC": ("paraphrase", ("label", "sentence1", "sentence2")),
    "SICK": ("sts", ("entailment", "sentence1", "sentence2")),
    "SNLI": ("nli", ("label", "premise", "hypothesis")),
}


def write_tables(folder: Path) -> None:
    """Writes all ten tasks as plain tables in sub-folders, one of them packed."""
    for task, parts in ROWS.items():
        place, columns = _TABLES.get(task, ("classification", ("label", "text")))
        for part, rows in parts.items():
            table(folder / place / f"{task.lower()}.{part}.tsv".replace("..", "."), rows, *columns)
    packed = folder / "classification" / "sst2.train.tsv"
    packed.with_name("sst2.train.tsv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()


_OPPOSITES = {
    "MR": ("rt-polarity.neg", "rt-polarity.pos"),
    "CR": ("custrev.neg", "custrev.pos"),
    "SUBJ": ("subj.subjective", "subj.objective"),
    "MPQA": ("mpqa.neg", "mpqa.pos"),
}
_LINES = (
    ("SST2", "SST/binary/sentiment-{}", "", "{1}\t{0}"),
    ("SST5", "SST/fine/sentiment-{}", "", "{0} {1}"),
    ("TREC", "TREC/{}.label", "", "{0}:fine {1}"),
    (
        "MRPC", "MRPC/msr_paraphrase_{}.txt",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{0}\t7\t8\t{1}\t{2}",
    ),
    ("SICK", "SICK/SICK_{}.txt", "pair_ID\tsentence_A\tsentence_B\tscore\tjudgment", "1\t{1}\t{2}\t3.5\t{0}"),
    ("SNLI", "SNLI/labels.{}", "", "{0}"), ("SNLI", "SNLI/s1.{}", "", "{1}"), ("SNLI", "SNLI/s2.{}", "", "{2}"),
)  # fmt: skip
"""Task, file, header and form of a line."""
_PARTS = {
    "TREC": {"train": "train_5500", "test": "TREC_10"},
    "SICK": {"train": "train", "dev": "trial", "test": "test_annotated"},
}


def write_senteval(folder: Path) -> None:
    """Writes the same rows as SentEval's download lays them out."""
    for task, files in _OPPOSITES.items():
        for label, name in enumerate(files):
            write(folder / task / name, [text for own, text in ROWS[task][""] if own == str(label)], "latin-1")
    for task, file, header, form in _LINES:
        for part, rows in ROWS[task].items():
            lines = [form.format(label.upper() if task == "SICK" else label, *own) for label, *own in rows]
            name = _PARTS.get(task, {}).get(part, part)
            write(folder / file.format(name), [*([header] if header else []), *lines])


PROBED = ("I saw it .", "I see it .")


def probing_line(part: str, number: int) -> str:
    return f"{part}\t{('PAST', 'PRES')[number % 2]}\tno. {number} {PROBED[number % 2]}"


def write_probing(path: Path, test: int = 10) -> None:
    """Writes a file whose parts are mixed, as no reader may take their order for granted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [probing_line(part, n) for n in range(test) for part in ("te", "tr", "va", "tr")]
    write(path, lines)
