"""SentEval's tasks: both layouts, what is missing or broken, features, and accuracies on real data."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import parts
import pytest
import torch
from torch import Tensor

from contrastive_text.evaluation import senteval
from contrastive_text.evaluation.classifiers import FAST, Outcome, SklearnClassifier
from contrastive_text.evaluation.senteval import SIMCSE_TASKS, transfer_correct, transfer_scores
from contrastive_text.evaluation.senteval_data import (
    PROBING_TASKS,
    TRANSFER_TASKS,
    LabeledTexts,
    probing_data,
    transfer_data,
)

# The tasks with a few rows, as plain tables and as SentEval lays them out

PROBING_FILES = {
    "Length": "sentence_length.txt", "WordContent": "word_content.txt", "Depth": "tree_depth.txt",
    "TopConstituents": "top_constituents.txt", "BigramShift": "bigram_shift.txt", "Tense": "past_present.txt",
    "SubjNumber": "subj_number.txt", "ObjNumber": "obj_number.txt", "OddManOut": "odd_man_out.txt",
    "CoordinationInversion": "coordination_inversion.txt",
}  # fmt: skip
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
    for task, of_task in ROWS.items():
        place, columns = _TABLES.get(task, ("classification", ("label", "text")))
        for part, rows in of_task.items():
            table(folder / place / f"{task.lower()}.{part}.tsv".replace("..", "."), rows, *columns)
    packed = folder / "classification" / "sst2.train.tsv"
    packed.with_name("sst2.train.tsv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()


_OPPOSITES = {
    "MR": ("rt-polarity.neg", "rt-polarity.pos"), "CR": ("custrev.neg", "custrev.pos"),
    "SUBJ": ("subj.subjective", "subj.objective"), "MPQA": ("mpqa.neg", "mpqa.pos"),
}  # fmt: skip
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
}  # fmt: skip


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


# The tests

SMALL = replace(FAST, folds=3, max_epochs=4)


class Bag:
    """Gives the mean of random vectors of a text's words, and counts the distinct texts that it has seen."""

    def __init__(self, features: int = 16) -> None:
        self.features = features
        self.vectors: dict[str, Tensor] = {}
        self.seen: set[str] = set()

    def __call__(self, given: Sequence[str]) -> Tensor:
        self.seen |= set(given)
        return torch.stack([torch.stack([self._vector(word) for word in text.split()]).mean(0) for text in given])

    def _vector(self, word: str) -> Tensor:
        if word not in self.vectors:
            seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")
            random = torch.Generator().manual_seed(seed)
            self.vectors[word] = torch.randn(self.features, generator=random)
        return self.vectors[word]


def labeled(task: str, folder: Path) -> LabeledTexts:
    found = transfer_data(task, folder)
    assert isinstance(found, LabeledTexts), found
    return found


@pytest.mark.parametrize("task", TRANSFER_TASKS)
def test_both_layouts_hold_the_same_rows(task: str, tmp_path: Path) -> None:
    write_tables(tmp_path / "tables")
    write_senteval(tmp_path / "SentEval" / "data" / "downstream")
    plain = labeled(task, tmp_path / "tables")
    for folder in ("", "data", "data/downstream"):
        theirs = labeled(task, tmp_path / "SentEval" / folder)
        assert plain.sizes == theirs.sizes
        assert sorted(zip(plain.labels, *plain.sides, strict=True)) == sorted(
            zip(
                (label if task != "SICK-E" else label.lower() for label in theirs.labels),
                *theirs.sides,
                strict=True,
            )
        )
    assert len(plain.sides) == (2 if task in ("MRPC", "SICK-E", "SNLI") else 1)
    assert plain.empty == 0
    beside = labeled(task, Path(plain.source.split(", ")[0]).parent)  # the sub-folder itself is found too
    assert beside.labels == plain.labels


def test_every_task_is_scored_in_the_shape_that_its_parts_ask_for(tmp_path: Path) -> None:
    write_tables(tmp_path)
    scores = {score.task: score for score in transfer_scores(Bag(), tmp_path, SMALL)}  # type: ignore[arg-type]  # a stand-in for an encoder
    assert tuple(scores) == TRANSFER_TASKS
    sizes = {"SST2": 8, "SST5": 8, "TREC": 6, "MRPC": 6, "SICK-E": 9, "SNLI": 9}
    correct = transfer_correct(Bag(), tmp_path, SMALL)  # type: ignore[arg-type]  # a stand-in
    for task, score in scores.items():
        assert score.metric == "accuracy" and not score.missing
        assert 100 * float(correct[task].double().mean()) == pytest.approx(score.score, abs=1e-12)
        assert score.size == sizes.get(task, 12)
        assert 0 <= score.score <= 100 and 0 <= score.parts["dev"] <= 100
        assert set(score.parts) == ({"dev", "F1"} if task == "MRPC" else {"dev"})
    assert set(SIMCSE_TASKS) == {"MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"}


@pytest.mark.parametrize(
    ("task", "features"),
    [
        ("MR", lambda u, _: u),
        ("MRPC", lambda u, v: np.hstack([abs(u - v), u * v])),
        ("SNLI", lambda u, v: np.hstack([u, v, abs(u - v), u * v])),
    ],
)
def test_pairs_are_classified_by_these_features(
    task: str, features: Callable[[np.ndarray, np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    write_tables(tmp_path)
    found = labeled(task, tmp_path)
    u, v = (Bag()(side).numpy() for side in (found.sides * 2)[:2])
    np.testing.assert_array_equal(senteval._features(Bag(), found).numpy(), features(u, v))  # type: ignore[arg-type]  # a stand-in for an encoder


@pytest.mark.parametrize(("task", "width"), [("SNLI", 4), ("MRPC", 2)])
def test_features_of_pairs_are_made_without_copies(task: str, width: int) -> None:
    sides = {side: torch.rand(1000, 64, generator=torch.Generator().manual_seed(0)) for side in "uv"}
    rows = LabeledTexts(task, "", ["0", "1"], [["u"], ["v"]], {}, 0)
    with torch.profiler.profile(profile_memory=True) as profiled:
        features = senteval._features(lambda texts: sides[texts[0]], rows)  # type: ignore[arg-type]  # a stand-in
    assert features.shape == (1000, width * 64)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    taken = sum(max(0, event.nbytes()) for event in events)
    assert features.nbytes <= taken < 1.01 * features.nbytes


def test_f1_of_mrpc_is_of_the_paraphrases(tmp_path: Path) -> None:
    write_tables(tmp_path)
    outcome = Outcome(dev=70.0, predicted=torch.tensor([1, 1, 0, 0]), gold=torch.tensor([1, 0, 0, 0]))
    score = senteval._score(labeled("MRPC", tmp_path), outcome)
    assert (score.score, score.parts) == (75.0, {"dev": 70.0, "F1": pytest.approx(200 / 3)})


def test_blanks_around_a_label_make_no_class_of_their_own(tmp_path: Path) -> None:
    rows = [(label, f"a text {number}") for number, label in enumerate(["0", "1 ", " 0", "1"])]
    table(tmp_path / "mr.tsv", rows, "label", "text")
    assert set(labeled("MR", tmp_path).labels) == {"0", "1"}


def test_a_missing_task_says_which_files_were_looked_for_and_where_to_get_them(tmp_path: Path) -> None:
    table(tmp_path / "mrpc.train.tsv", pairs(6, "01"), "label", "sentence1", "sentence2")
    write(tmp_path / "SUBJ" / "subj.objective", ["a film"])
    scores = {score.task: score for score in transfer_scores(Bag(), tmp_path)}  # type: ignore[arg-type]  # a stand-in for an encoder
    assert all(np.isnan(score.score) and score.missing for score in scores.values())
    assert scores["MRPC"].missing.startswith(
        "expected mrpc.test.tsv, or MRPC/msr_paraphrase_train.txt, MRPC/msr_paraphrase_test.txt, in "
    )
    assert scores["SUBJ"].missing.startswith("expected subj.tsv, or SUBJ/subj.subjective, in ")
    assert all("https://github.com/facebookresearch/SentEval" in score.missing for score in scores.values())
    assert transfer_correct(Bag(), tmp_path) == {}  # type: ignore[arg-type]  # a stand-in


def test_empty_texts_become_a_full_stop_and_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "MR" / "rt-polarity.neg", ["bad", " ", "worse", ""], "latin-1")
    write(tmp_path / "MR" / "rt-polarity.pos", ["good", "caf\xe9", "better", "best"], "latin-1")
    found = labeled("MR", tmp_path)
    assert found.labels == [*"0000", *"1111"]
    assert found.sides == [["bad", ".", "worse", ".", "good", "caf\xe9", "better", "best"]]
    bag = Bag()
    with pytest.warns(UserWarning, match="a full stop stands for each empty text, as in SentEval: 2 in MR"):
        transfer_scores(bag, tmp_path, SMALL, tasks=("MR", "CR"))  # type: ignore[arg-type]  # a stand-in
    assert "." in bag.seen and "" not in bag.seen
    table(tmp_path / "trec.train.tsv", [("A", ""), ("B", "b")], "label", "text")
    table(tmp_path / "trec.test.tsv", [("A", "a")], "label", "text")
    assert labeled("TREC", tmp_path).sides == [[".", "b", "a"]]


HEAD, ROW, MRPC = "label\ttext", "0\ta film", ["label\tsentence1\tsentence2", "yes\ta\tb", "no\ta\tb"]
TENSE = [probing_line(part, n) for n, part in enumerate(("tr", "tr", "va", "te"))]
PARTS = "rows in train, dev, test"
UNSCORED: list[tuple[dict[str, list[str]], list[str]]] = [
    ({"mr.tsv": []}, ["mr.tsv: expected the columns label, text"]),
    ({"mr.tsv": [HEAD]}, ["mr.tsv: expected rows in all, got no rows in all"]),
    ({"mr.tsv": [HEAD, ROW, ROW]}, ["mr.tsv: expected two classes or more, got 0 alone"]),
    ({"mr.tsv": [HEAD, *[ROW] * 9, *["1\tb"] * 4]}, ["expected 5 rows or more of each class", "got 4 of 1"]),
    ({"mr.tsv": [HEAD, ROW, "\ta film"]}, ["mr.tsv:3: expected a label, got no label"]),
    ({"mr.tsv": ["label\tsentence", ROW]}, ["the columns label, text, got label, sentence", "a column text"]),
    ({"trec.train.tsv": [HEAD, ROW, "1\tb"], "trec.test.tsv": [HEAD, "2\tc"]},
     ["trec.test.tsv: expected a label of the training rows, 0, 1, got 2"]),
    ({"mrpc.train.tsv": MRPC, "mrpc.test.tsv": MRPC}, ["expected the labels 0 and 1, got no, yes"]),
    ({"mr.tsv": [HEAD, ROW], "copy/mr.tsv": [HEAD, ROW]}, ["mr.tsv: expected one copy of the data"]),
    ({"mr.tsv": [HEAD, ROW], "MR/rt-polarity.neg": ["bad"], "MR/rt-polarity.pos": ["good"]},
     ["expected one copy of the data"]),
    ({"past_present.txt": [*TENSE, "xx\tPAST\ta"]}, ["tr, va or te, a label and a text", "got xx"]),
    ({"past_present.txt": [*TENSE, "tr\ta text"]}, ["past_present.txt:5", "got tr"]),
    ({"past_present.txt": [*TENSE, "te\tFUTURE\ta"]}, ["a label of the training rows, PAST, PRES", "FUTURE"]),
    ({"past_present.txt": [*TENSE, "tr\t \ta text"]}, ["past_present.txt:5", "a label, got no label"]),
    ({"past_present.txt": [TENSE[0], TENSE[1], TENSE[3]]}, [PARTS, "no rows in dev"]),
    ({"past_present.txt": []}, [PARTS, "no rows in train"]),
]  # fmt: skip


@pytest.mark.parametrize(("files", "words"), UNSCORED)
def test_what_cannot_be_scored_names_task_and_file_before_a_text_is_encoded(
    files: dict[str, list[str]], words: list[str], tmp_path: Path
) -> None:
    for name, lines in files.items():
        write(tmp_path / name, lines)
    task, bag = next(iter(files)).partition(".")[0].upper().replace("PAST_PRESENT", "Tense"), Bag()
    parts.check_refused(
        lambda: transfer_scores(bag, tmp_path, FAST, tasks=(task,)), ValueError, [f"{task}: ", *words]
    )  # type: ignore[arg-type]  # a stand-in
    assert not bag.seen


@pytest.mark.parametrize(
    ("task", "name", "line", "expected"),
    [
        ("TREC", "TREC/train_5500.label", "DESC what", "train_5500.label:19: expected a label and ':'"),
        ("SST5", "SST/fine/sentiment-dev", "3", "sentiment-dev:7: expected a label and ' '"),
        ("SST2", "SST/binary/sentiment-test", "a film", "sentiment-test:9: expected 2 columns or more, got 1"),
        ("SICK-E", "SICK/SICK_trial.txt", "7\ta\tb", "SICK_trial.txt:8: expected 5 columns or more, got 3"),
        ("SNLI", "SNLI/s1.test", "a", "expected as many lines in each, got 9, 10, 9"),
        ("SST2", "SST/binary/sentiment-dev", "a film\t ", "sentiment-dev:7: expected a label, got no label"),
    ],
)
def test_a_broken_line_of_senteval_is_named(
    task: str, name: str, line: str, expected: str, tmp_path: Path
) -> None:
    write_senteval(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match="^" + task) as said:
        transfer_data(task, tmp_path)
    assert expected in str(said.value)


class Reader:
    """Gives vectors from which the tense can be read, and notes the texts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Tensor:
        self.seen += texts
        return torch.tensor([[10.0 * ("saw" in text), len(text) / 20, 1.0] for text in texts])


def test_the_ten_files_are_found_and_what_is_missing_is_said(tmp_path: Path) -> None:
    assert tuple(PROBING_FILES) == PROBING_TASKS
    for task, name in PROBING_FILES.items():
        missing = probing_data(task, tmp_path)
        assert isinstance(missing, str) and missing.startswith(f"expected {name} in {tmp_path}")
        assert "https://github.com/facebookresearch/SentEval" in missing
    for name in PROBING_FILES.values():
        write_probing(tmp_path / "data" / "probing" / name)
    for folder in ("", "data", "data/probing"):
        assert all(isinstance(probing_data(task, tmp_path / folder), LabeledTexts) for task in PROBING_TASKS)


@pytest.mark.parametrize("classifier", [None, SklearnClassifier()], ids=["torch", "sklearn"])
def test_a_property_that_can_be_read_is_found(classifier: SklearnClassifier | None, tmp_path: Path) -> None:
    write_probing(tmp_path / "past_present.txt", test=20)
    found = probing_data("Tense", tmp_path)
    assert isinstance(found, LabeledTexts)
    assert dict(found.sizes) == {"train": 40, "dev": 20, "test": 20}  # the parts of the file are mixed
    assert found.sides[0][40:42] == ["no. 0 I saw it .", "no. 1 I see it ."]
    scores = transfer_scores(Reader(), tmp_path, FAST, classifier, PROBING_TASKS)  # type: ignore[arg-type]  # a stand-in
    assert [score.task for score in scores] == list(PROBING_TASKS)
    for score in scores:
        if score.task == "Tense":
            assert (score.metric, score.score, score.size, score.parts) == ("accuracy", 100.0, 20, {"dev": 100.0})
        else:
            assert np.isnan(score.score) and score.missing


def test_folders_tasks_and_bytes_that_are_wrong_are_refused(tmp_path: Path) -> None:
    for name in ("past_present.txt", "probing/past_present.txt"):
        write_probing(tmp_path / name)
    write_senteval(tmp_path)
    (tmp_path / "SST/binary/sentiment-dev").write_bytes(b"caf\xe9\t1\n")
    bag = Bag()
    for call, error, words in (
        (lambda: probing_data("Tense", tmp_path), ValueError, ["Tense: ", "one copy of the data"]),
        (lambda: transfer_data("SST2", tmp_path), ValueError, ["SST2: ", "sentiment-dev:1", "UTF-8", "0xe9"]),
        (lambda: transfer_data("MR", tmp_path / "none"), FileNotFoundError, ["a folder of data sets", "none"]),
        (lambda: transfer_scores(bag, tmp_path, tasks=("Mood",)), ValueError, ["tasks", "MR", "Length", "Mood"]),  # type: ignore[arg-type]  # a stand-in
    ):
        parts.check_refused(call, error, words)
