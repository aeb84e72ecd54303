"""Files in the forms in which people have them, each read as pandas or datasets reads it."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from data_files import PAIR, SCORED

from contrastive_text.core.targets import NLI, Classes, Scores, Target
from contrastive_text.data import read_rows
from contrastive_text.data.files.formats import FileForm

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

TEXTS = [
    ("What is a cat?", "It is a small animal."),
    ('What is "MVP"?', 'The "most valuable player", they say.'),
    ("Is 1 < 2; or not?", "Yes, it is."),
]
FRAME = pandas.DataFrame(TEXTS, columns=["query", "answer"])
SCORES = [4.5, 0.0, 2.0]


class Form(NamedTuple):
    """A file, what is read of it, and the rows that another library reads.

    Args:
        name: Of the file.
        write: Writes it.
        wanted: Reads its rows with another library, each a list of cells.
        reads: Library columns.
        form: Options for what the file leaves open.
        columns: Library column -> column.
        target: Reads labels.
        said: Part of the line about the file.
    """

    name: str
    write: Callable[[Path], object]
    wanted: Callable[[Path], list[list[Any]]]
    reads: Sequence[str] = PAIR
    form: FileForm | None = None
    columns: dict[str, str] | None = None
    target: Target | None = None
    said: str = ""


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


def lines(*values: object) -> Callable[[Path], object]:
    return text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def frame(data: Any = FRAME, **options: Any) -> Callable[[Path], object]:
    return lambda path: data.to_csv(path, index=False, **options)


def table(**options: Any) -> Callable[[Path], list[list[Any]]]:
    """Reads with pandas; a missing cell is an empty text."""
    return lambda path: pandas.read_csv(path, **{"keep_default_na": False, **options}).values.tolist()


def json_table(names: Sequence[str], **options: Any) -> Callable[[Path], list[list[Any]]]:
    return lambda path: pandas.read_json(path, **options)[list(names)].values.tolist()


def passages(path: Path, positive: str, negative: str, query: str, **options: Any) -> list[list[Any]]:
    found = []
    for row in pandas.read_json(path, **options).to_dict("records"):
        texts = [
            [f"{each['title']} {each['text']}".strip() for each in row[name]] for name in (positive, negative)
        ]
        found += [[row[query], one, *texts[1]] for one in texts[0]]
    return found


def with_classes(path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        premise=datasets.Value("string"),
        hypothesis=datasets.Value("string"),
        label=datasets.ClassLabel(names=["contradiction", "entailment", "neutral"]),  # not the hub's order
    )
    rows = {"premise": ["p", "q", "r"], "hypothesis": ["s", "t", "u"], "label": [0, 1, 2]}
    data = datasets.Dataset.from_dict(rows, features=features)
    if path.suffix == ".parquet":
        data.to_parquet(str(path))
        return
    writer = datasets.arrow_writer.ArrowWriter(features=features, path=str(path))
    for row in data:
        writer.write(features.encode_example(row))
    writer.finalize()


def class_names(path: Path) -> list[list[Any]]:
    datasets = pytest.importorskip("datasets")
    data = (
        datasets.Dataset.from_parquet(str(path))
        if path.suffix == ".parquet"
        else datasets.Dataset.from_file(str(path))
    )
    names = data.features["label"].int2str
    return [[row["premise"], row["hypothesis"], float(NLI.index(names(row["label"])))] for row in data]


def rows_of(path: Path) -> list[list[Any]]:
    """Reads arrays with the standard library."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


TEVATRON = {
    "query_id": "1",
    "query": "who?",
    "positive_passages": [{"docid": "7", "title": "Me", "text": "myself"}],
    "negative_passages": [{"docid": "8", "title": "", "text": "you"}, {"docid": "9", "title": "A", "text": "b"}],
}
DPR = [
    {
        "question": f"who {i}?",
        "answers": ["me"],
        "positive_ctxs": [{"title": "T", "text": "it is me"}],
        "hard_negative_ctxs": [{"title": "U", "text": "it is you"}],
    }
    for i in range(2)
]
STS_B = 'main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane is "taking off.\tAn air plane is taking off.\n'
STS_NAMES = "corpus,file,year,id,score,sentence1,sentence2"
RELEASE = "gold_label\tsentence1\tsentence2\tlabel1\nneutral\tA man sings.\tHe is old.\tneutral\n"
DUPLICATES = pandas.DataFrame({"question1": list("abc"), "question2": list("def"), "is_duplicate": [1, 0, 1]})

FORMS = [
    Form("plain.tsv", text("query\tanswer\n" + "".join("\t".join(row) + "\n" for row in TEXTS)),
         table(sep="\t", quoting=csv.QUOTE_NONE)),
    Form("pandas.tsv", frame(sep="\t"), table(sep="\t"), said="quoted fields unquoted"),
    Form("texts quoted.tsv", frame(FRAME.assign(score=SCORES), sep="\t", quoting=csv.QUOTE_NONNUMERIC),
         lambda path: [[*row[:2], row[2] / 5] for row in table(sep="\t")(path)], SCORED, target=Scores()),
    Form("whole quotes.tsv", text('query\tanswer\n"Yes."\tno\nwhy\t"so"\n'),
         table(sep="\t", quoting=csv.QUOTE_NONE)),
    Form("lines.tsv", frame(pandas.DataFrame([["one\ntwo", "a\tb"]], columns=["query", "answer"]), sep="\t"),
         table(sep="\t")),
    Form("rfc.csv", frame(pandas.DataFrame([["one\ntwo", 'a, "b"']], columns=["query", "answer"])), table()),
    Form("excel.csv", frame(sep=";", encoding="utf-8-sig"), table(sep=";", encoding="utf-8-sig"),
         said="separated by semicolons"),
    Form("bars.csv.gz", frame(sep="|"), table(sep="|"), said="separated by vertical bars"),
    Form("commas.tsv", frame(), table(), said="separated by commas"),
    Form("own separator.csv", frame(FRAME.set_axis(["frage", "antwort"], axis=1), sep="^"), table(sep="^"),
         form=FileForm(separator="^"), columns={"anchor": "frage", "positive": "antwort"}),
    Form("headerless pairs.tsv", frame(sep="\t", header=False), table(sep="\t", header=None),
         said="no header: anchor, positive"),
    Form("headerless scores.csv", frame(FRAME.assign(score=SCORES), header=False),
         lambda path: [[*row[:2], row[2] / 5] for row in table(header=None)(path)], SCORED, target=Scores()),
    Form("headerless triples.csv", frame(FRAME.assign(n=["no cats here", "none", "x"]), header=False),
         table(header=None), said="no header: anchor, positive, negative"),
    Form("headerless texts.csv", frame(FRAME[["query"]], header=False), table(header=None), ("text",)),
    Form("sts-train.tsv", text(STS_B),
         lambda path: [[row[5], row[6], row[4] / 5] for row in table(sep="\t", header=None, quoting=3)(path)],
         SCORED, FileForm(header=STS_NAMES), target=Scores()),
    Form("snli.txt", text(RELEASE),
         lambda path: [[row[1], row[2], float(NLI.index(row[0]))] for row in table(sep="\t")(path)],
         SCORED, target=Classes(NLI)),
    Form("quora.tsv", frame(DUPLICATES, sep="\t"),
         lambda path: [row[:2] for row in table(sep="\t")(path) if row[2] == 1],
         form=FileForm(pair_labels="positives"), said="is_duplicate: 1 (2), 0 (1) -> 2 positives, 1 left out"),
    Form("objects.jsonl", lines(*FRAME.to_dict("records")), json_table(["query", "answer"], lines=True)),
    Form("lines.json", lines(*FRAME.to_dict("records")), json_table(["query", "answer"], lines=True)),
    Form("records.json", lambda path: FRAME.to_json(path, orient="records"), json_table(["query", "answer"]),
         said="one JSON array"),
    Form("dpr.json", text(json.dumps(DPR, indent=2)),
         lambda path: passages(path, "positive_ctxs", "hard_negative_ctxs", "question")),
    Form("pairs.jsonl", lines(*map(list, TEXTS)), rows_of, said="arrays: anchor, positive"),
    Form("triplets.jsonl", lines(["a", "p", "n"], ["b", "q", "m"]), rows_of),
    Form("scored pairs.jsonl", lines(["a", "p", 5.0], ["b", "q", 2.5]),
         lambda path: [[*row[:2], row[2] / 5] for row in rows_of(path)], SCORED, target=Scores()),
    Form("sets.jsonl.gz",
         lambda path: path.write_bytes(gzip.compress(b'{"set": ["a", "b", "c"]}\n{"set": ["d", "e"]}\n')),
         lambda path: [[row[0], other] for row in pandas.read_json(path, lines=True)["set"] for other in row[1:]],
         said="sets: the first text with each other one"),
    Form("tevatron.jsonl", lines(TEVATRON),
         lambda path: passages(path, "positive_passages", "negative_passages", "query", lines=True)),
    Form("classes.parquet", with_classes, class_names, SCORED, target=Classes(NLI)),
    Form("classes.arrow", with_classes, class_names, SCORED, target=Classes(NLI)),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_real_form_is_read_as_another_library_reads_it(tmp_path: Path, form: Form) -> None:
    path = tmp_path / form.name
    form.write(path)
    found = read_rows(path, form.reads, form.columns, target=form.target, form=form.form)
    assert [list(row.values()) for row in found] == form.wanted(path)
    assert len(found) > 0
    assert form.said in found.description
