"""Writes a folder in GLUE's form from data sets at hand, for ``evaluate --suite glue`` where GLUE itself isn't.

    python benchmarks/glue_like.py DATA GLUE/

DATA has ``paraphrase/mrpc.{train,dev}.tsv``, ``paraphrase/quora.{train,dev}.tsv``, ``sts/stsb.{train,dev}.tsv``,
``classification/sst2.{train.tsv.gz,dev.tsv}``, ``nli/snli_sample.train.tsv`` and ``nli/snli.dev.tsv``; what isn't
there is left out. None of the tasks but SST-2 and STS-B is GLUE's: MRPC is the official training part cut in two,
QQP some 20,000 of 404,290 pairs, and SNLI stands in MNLI's place, each development file a half of its own. So the
results are no results on GLUE.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Row = dict[str, str]


def rows(path: Path) -> list[Row]:
    """The rows of a table with a header, split at tabs."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = content.decode().splitlines()
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def write(path: Path, header: str, lines: Iterator[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = ["\t".join(line) for line in lines]
    path.write_text("\n".join([header.replace(" | ", "\t"), *written]) + "\n", encoding="utf-8")
    print(f"{path}: {len(written):,} rows")


def main(data: Path, glue: Path) -> None:
    for split in ("train", "dev"):
        if (file := data / f"paraphrase/mrpc.{split}.tsv").exists():
            header = "Quality | #1 ID | #2 ID | #1 String | #2 String"
            lines = ((r["label"], "0", "0", r["sentence1"], r["sentence2"]) for r in rows(file))
            write(glue / f"MRPC/{split}.tsv", header, lines)
        if (file := data / f"paraphrase/quora.{split}.tsv").exists():
            header = "id | qid1 | qid2 | question1 | question2 | is_duplicate"
            lines = ((r["id"], "0", "0", r["sentence1"], r["sentence2"], r["label"]) for r in rows(file))
            write(glue / f"QQP/{split}.tsv", header, lines)
        if (file := data / f"sts/stsb.{split}.tsv").exists():
            header = "index | genre | sentence1 | sentence2 | score"
            lines = ((r["id"], r["subset"], r["sentence1"], r["sentence2"], r["score"]) for r in rows(file))
            write(glue / f"STS-B/{split}.tsv", header, lines)
        if (file := data / f"classification/sst2.{split}.tsv{'.gz' * (split == 'train')}").exists():
            write(glue / f"SST-2/{split}.tsv", "sentence | label", ((r["text"], r["label"]) for r in rows(file)))
    header = "index | sentence1 | sentence2 | gold_label"
    if (file := data / "nli/snli_sample.train.tsv").exists():
        lines = ((r["id"], r["premise"], r["hypothesis"], r["label"]) for r in rows(file))
        write(glue / "MNLI/train.tsv", header, lines)
    if (file := data / "nli/snli.dev.tsv").exists():
        every = [(r["id"], r["premise"], r["hypothesis"], r["label"]) for r in rows(file)]
        write(glue / "MNLI/dev_matched.tsv", header, iter(every[: len(every) // 2]))
        write(glue / "MNLI/dev_mismatched.tsv", header, iter(every[len(every) // 2 :]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
