"""The tasks of SentEval with a few rows, as plain tables and as its own download lays them out."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
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


def texts(count: int, classes: int = 2, start: int = 0) -> list[tuple[str, str]]:
    """Texts that name their class, each different."""
    return [(str(i % classes), f"{WORDS[i % classes]} film number {i}") for i in range(start, start + count)]


def pairs(count: int, labels: Sequence[str], start: int = 0) -> list[tuple[str, str, str]]:
    """Pairs of texts whose words say their class."""
    return [
        (labels[i % len(labels)], f"text {i}", f"{WORDS[i % len(labels)]} text {i}")
        for i in range(start, start + count)
    ]


def write(path: Path, lines: Sequence[str], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def table(path: Path, rows: Sequence[Sequence[str]], *columns: str) -> None:
    write(path, ["\t".join(row) for row in (columns, *rows)])


SIX = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
THREE = ("contradiction", "entailment", "neutral")


def write_tables(folder: Path) -> None:
    """Writes all ten tasks as plain tables in sub-folders; each of another size, one packed."""
    for task in ("mr", "cr", "subj", "mpqa"):
        table(folder / "classification" / f"{task}.tsv", texts(12), "label", "text")
    for task, classes in (("sst2", 2), ("sst5", 3)):
        for part, count, start in (("train", 12, 0), ("dev", 6, 20), ("test", 8, 40)):
            rows = texts(count, classes, start)
            table(folder / "classification" / f"{task}.{part}.tsv", rows, "label", "text")
    packed = folder / "classification" / "sst2.train.tsv"
    packed.with_name("sst2.train.tsv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    for part, count in (("train", 18), ("test", 6)):
        trec = [(SIX[i % 6], f"{SIX[i % 6]}:fine", f"what is {i} ?") for i in range(count)]
        table(folder / "classification" / f"trec.{part}.tsv", trec, "label", "fine_label", "text")
        table(folder / "paraphrase" / f"mrpc.{part}.tsv", pairs(count, "01"), "label", "sentence1", "sentence2")
    for part, count in (("train", 12), ("dev", 6), ("test", 9)):
        rows = pairs(count, THREE)
        table(folder / "nli" / f"snli.{part}.tsv", rows, "label", "premise", "hypothesis")
        sick = [("3.5", *row) for row in rows]
        table(folder / "sts" / f"sick.{part}.tsv", sick, "score", "entailment", "sentence1", "sentence2")


def write_senteval(folder: Path) -> None:
    """Writes the same rows as SentEval's download lays them out."""
    for task, no, yes in (
        ("MR", "rt-polarity.neg", "rt-polarity.pos"),
        ("CR", "custrev.neg", "custrev.pos"),
        ("SUBJ", "subj.subjective", "subj.objective"),
        ("MPQA", "mpqa.neg", "mpqa.pos"),
    ):
        for name, label in ((no, "0"), (yes, "1")):
            write(folder / task / name, [text for own, text in texts(12) if own == label], "latin-1")
    for part, count, start in (("train", 12, 0), ("dev", 6, 20), ("test", 8, 40)):
        write(folder / f"SST/binary/sentiment-{part}", [f"{text}\t{own}" for own, text in texts(count, 2, start)])
        write(folder / f"SST/fine/sentiment-{part}", [f"{own} {text}" for own, text in texts(count, 3, start)])
    for part, name, count in (("train", "train_5500", 18), ("test", "TREC_10", 6)):
        write(
            folder / f"TREC/{name}.label", [f"{SIX[i % 6]}:fine what is {i} ?" for i in range(count)], "latin-1"
        )
        lines = [f"{own}\t{7 * i}\t{7 * i + 1}\t{a}\t{b}" for i, (own, a, b) in enumerate(pairs(count, "01"))]
        write(
            folder / f"MRPC/msr_paraphrase_{part}.txt",
            ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines],
        )
    for part, name, count in (("train", "train", 12), ("dev", "trial", 6), ("test", "test_annotated", 9)):
        rows = pairs(count, THREE)
        lines = [f"{i}\t{a}\t{b}\t3.5\t{own.upper()}" for i, (own, a, b) in enumerate(rows)]
        write(folder / f"SICK/SICK_{name}.txt", ["pair_ID\tsentence_A\tsentence_B\tscore\tjudgment", *lines])
        for file, place in (("labels", 0), ("s1", 1), ("s2", 2)):
            write(folder / f"SNLI/{file}.{part}", [row[place] for row in rows], "latin-1")


PROBED = ("I saw it .", "I see it .")


def probing_line(part: str, number: int) -> str:
    return f"{part}\t{('PAST', 'PRES')[number % 2]}\tno. {number} {PROBED[number % 2]}"


def write_probing(path: Path, test: int = 10) -> None:
    """Writes a file whose parts are mixed, as no reader may take their order for granted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [probing_line(part, n) for n in range(test) for part in ("te", "tr", "va", "tr")]
    path.write_text("".join(f"{each}\n" for each in lines), encoding="utf-8")
