"""Labels of pairs that no objective reads: refused before the first step, or read by one option everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from covering import rest_slow

from contrastive_text import Run
from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.objectives import Contrastive, NegativesAsHard

QUORA = "question1\tquestion2\tis_duplicate\n" + "".join(
    f"{text}\t{tiny.TEXTS[i - 1]}\t{int(i % 4 > 0)}\n" for i, text in enumerate(tiny.TEXTS[:24])
)
SNLI = "sentence1\tsentence2\tgold_label\n" + "".join(
    f"{text}\t{tiny.TEXTS[i - 1]}\t{('entailment', 'neutral', 'contradiction', 'entailment')[i % 4]}\n"
    for i, text in enumerate(tiny.TEXTS[:24])
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, with labelled pairs and an encoder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quora.tsv").write_text(QUORA)
    (tmp_path / "snli.tsv").write_text(SNLI)
    tiny.save_bert(tmp_path / "model")
    return tmp_path


def trains(*words: str) -> list[str]:
    fit = "fit --recipe simcse --encoder model --data.task.pairing Given --batch_size 4 --data.num_workers 0"
    quick = "--trainer.max_steps 1 --trainer.accelerator cpu --trainer.enable_progress_bar false"
    return [*fit.split(), *quick.split(), *words]


@pytest.mark.parametrize("name", rest_slow(["quora.tsv", "snli.tsv"]))
def test_labels_that_no_objective_reads_are_refused_with_the_remedies(
    files: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(trains("--train", name)) == 2
    said = capsys.readouterr().err
    assert f"{name}: expected pairs that all belong together, or an objective that reads " in said
    for remedy in ("positives", "hard", "all"):
        assert f"--data.task.pair_labels {remedy}" in said
    assert run(["mine", name, "out.tsv", "--model", "model", "--device", "cpu"]) == 2
    assert "(--pair_labels hard)" in capsys.readouterr().err
    assert not (files / "out.tsv").exists()


@pytest.mark.parametrize(
    ("name", "choice", "rows", "said"),
    rest_slow(
        [
            ("quora.tsv", "positives", 18, "is_duplicate: 1 (18), 0 (6) -> 18 positives, 6 left out"),
            ("quora.tsv", "hard", 24, "is_duplicate: 1 (18), 0 (6) -> 18 positives, 6 hard negatives"),
            ("quora.tsv", "all", 24, "is_duplicate ignored"),
            ("snli.tsv", "positives", 12, "contradiction (6) -> 12 left out, 12 positives"),
            ("snli.tsv", "hard", 18, "contradiction (6) -> 6 left out, 12 positives, 6 hard negatives"),
        ],
        quick=2,
    ),
)
def test_a_run_takes_the_rows_that_the_option_says(
    files: Path, name: str, choice: str, rows: int, said: str
) -> None:
    config, train = {"data.task.pairing": "Given", "data.batch_size": 4}, str(files / name)
    built = Run.from_recipe("simcse", "model", config, train=train, pair_labels=choice, accelerator="cpu")
    built.data.attach(built.module)
    built.data.setup("fit")
    table = built.data.table("train")["train"]
    assert len(table) == rows
    assert said in table.understood
    assert {row.get("target") for row in table} == ({0.0, 1.0} if choice == "hard" else {None})
    objective = built.module.objective_parts()["contrastive"]
    assert isinstance(objective, Contrastive)
    assert (objective.part(NegativesAsHard) is not None) == (choice == "hard")


@pytest.mark.parametrize(("choice", "pairs"), [("positives", 18), ("hard", 18), ("all", 24)])
@pytest.mark.slow
def test_mining_takes_the_rows_that_the_option_says(
    files: Path, capsys: pytest.CaptureFixture[str], choice: str, pairs: int
) -> None:
    words = ["mine", "quora.tsv", "out.jsonl", "--model", "model", "--device", "cpu", "--same", "1"]
    assert run([*words, "--pair_labels", choice, "--form", "tuples", "--negatives", "2"]) == 0
    assert f"{pairs} pairs of {pairs} queries; a corpus of {24 if choice != 'positives' else 18} texts" in (
        capsys.readouterr().out
    )
    rows = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    # Every fourth text, which follows one that is labelled 0, is a candidate if it is a pair's or taken as hard.
    apart = {tiny.TEXTS[i - 1] for i in range(0, 24, 4)}
    assert bool(apart & {text for row in rows for text in row["negative"]}) == (choice != "positives")


CLASSES = {"class_path": "PairClassification", "init_args": {"classes": 2}}
SPREAD = {"class_path": "WholeBatch", "init_args": {"loss": {"class_path": "AlignmentUniformity"}}}


@pytest.mark.parametrize(
    ("choice", "objective", "said"),
    [
        ("positives", CLASSES, "--data.task.pair_labels: expected labels that no objective reads, got positives"),
        ("hard", SPREAD, "data.task.pair_labels: expected a Contrastive objective for hard, got WholeBatch"),
    ],
)
@pytest.mark.slow
def test_a_choice_that_clashes_with_the_objective_is_refused(
    files: Path, choice: str, objective: dict[str, object], said: str
) -> None:
    config = {"data.task.pairing": "Given", "model.objectives": {"other": objective}}
    train = str(files / "quora.tsv")
    built = Run.from_recipe("simcse", "model", config, train=train, pair_labels=choice, accelerator="cpu")
    built.data.attach(built.module)
    with pytest.raises(ContrastiveTextError, match=said):
        built.data.setup("fit")


def test_retrieval_by_labelled_pairs_takes_those_labelled_0_for_no_answers(tmp_path: Path) -> None:
    from contrastive_text.data import read_pair_corpus

    path = tmp_path / "a.tsv"
    path.write_text("query\tanswer\tlabel\na\tb\t1\na\tc\t0\nd\te\t1\n")
    data = read_pair_corpus(path)
    assert (data.queries, data.documents) == (("a", "d"), ("b", "c", "e"))
    assert data.relevance == ({0: 1.0}, {2: 1.0})


def test_rows_with_fewer_hard_negatives_train_and_the_summary_counts_them(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"query": text, "pos": [tiny.TEXTS[i - 1]], "neg": tiny.TEXTS[20 : 20 + i % 3]}
        for i, text in enumerate(tiny.TEXTS[:16])
    ]
    path = files / "triples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(trains("--train", str(path))) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "at most 11 per anchor: 3 other positives, 8 hard negatives" in said
    assert "rows have 0 to 2 hard negatives, 0.938 on average" in said
    words = trains("--train", str(path), "--data.task.pairing.init_args.negatives", "1")
    assert run([*words, "--dry_run"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "at most 7 per anchor: 3 other positives, 4 hard negatives" in said
