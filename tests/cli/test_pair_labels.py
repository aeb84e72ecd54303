"""Labels of pairs that no objective reads: refused before the first step, or read by one option everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from covering import rest_slow
from shells import Shell

from contrastive_text import Run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.objectives import Contrastive, NegativesAsHard

QUORA = "question1\tquestion2\tis_duplicate\n" + "".join(
    f"{text}\t{tiny.TEXTS[i - 1]}\t{int(i % 4 > 0)}\n" for i, text in enumerate(tiny.TEXTS[:24])
)
SNLI = "sentence1\tsentence2\tgold_label\n" + "".join(
    f"{text}\t{tiny.TEXTS[i - 1]}\t{('entailment', 'neutral', 'contradiction', 'entailment')[i % 4]}\n"
    for i, text in enumerate(tiny.TEXTS[:24])
)


FIT = "FIT TINY --data.task.pairing Given --data.batch_size 4 --trainer.max_steps 1 --data.train"
MINE = "--model BERT --device cpu"


@pytest.fixture(autouse=True)
def labeled(here: Path) -> None:
    """Files of labeled pairs."""
    (here / "quora.tsv").write_text(QUORA)
    (here / "snli.tsv").write_text(SNLI)


@pytest.mark.parametrize("name", rest_slow(["quora.tsv", "snli.tsv"]))
def test_labels_that_no_objective_reads_are_refused_with_the_remedies(
    shell: Shell, here: Path, name: str
) -> None:
    said = shell.refused(f"{FIT} {name}")
    assert f"{name}: expected pairs that all belong together, or an objective that reads " in said
    for remedy in ("positives", "hard", "all"):
        assert f"--data.task.pair_labels {remedy}" in said
    assert "(--pair_labels hard)" in shell.refused(f"mine {name} out.tsv {MINE}")
    assert not (here / "out.tsv").exists()


def built_run(files: dict[str, str], name: str, choice: str, **config: object) -> Run:
    """Returns a run of pairs as a choice has them, before its data are read."""
    config = {"data.task.pairing": "Given", "data.batch_size": 4, **config}
    run = Run.from_recipe("simcse", files["bert"], config, train=name, pair_labels=choice, accelerator="cpu")
    run.data.set_module(run.module)
    return run


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
    files: dict[str, str], name: str, choice: str, rows: int, said: str
) -> None:
    built = built_run(files, name, choice)
    built.data.setup("fit")
    table = built.data.table("train")["train"]
    assert len(table) == rows
    assert said in table.description
    assert {row.get("target") for row in table} == ({0.0, 1.0} if choice == "hard" else {None})
    objective = built.module.objective_parts()["contrastive"]
    assert isinstance(objective, Contrastive)
    assert (objective.part(NegativesAsHard) is not None) == (choice == "hard")


@pytest.mark.parametrize(("choice", "pairs"), [("positives", 18), ("hard", 18), ("all", 24)])
@pytest.mark.slow
def test_mining_takes_the_rows_that_the_option_says(shell: Shell, here: Path, choice: str, pairs: int) -> None:
    words = f"mine quora.tsv out.jsonl {MINE} --same 1 --form tuples --negatives 2"
    corpus = 24 if choice != "positives" else 18
    said = shell(f"{words} --pair_labels {choice}").out
    assert f"{pairs} pairs of {pairs} queries; a corpus of {corpus} texts" in said
    rows = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    # Every fourth text, which follows one that is labeled 0, is a candidate if it is a pair's or taken as hard.
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
    files: dict[str, str], choice: str, objective: dict[str, object], said: str
) -> None:
    built = built_run(files, "quora.tsv", choice, **{"model.objectives": {"other": objective}})
    with pytest.raises(ContrastiveTextError, match=said):
        built.data.setup("fit")


def test_retrieval_by_labeled_pairs_takes_those_labeled_0_for_no_answers(tmp_path: Path) -> None:
    from contrastive_text.data import read_pair_corpus

    path = tmp_path / "a.tsv"
    path.write_text("query\tanswer\tlabel\na\tb\t1\na\tc\t0\nd\te\t1\n")
    data = read_pair_corpus(path)
    assert (data.queries, data.documents) == (("a", "d"), ("b", "c", "e"))
    assert data.relevance == ({0: 1.0}, {2: 1.0})


@pytest.mark.slow
def test_rows_with_fewer_hard_negatives_train_and_the_summary_counts_them(shell: Shell, here: Path) -> None:
    rows = [
        {"query": text, "pos": [tiny.TEXTS[i - 1]], "neg": tiny.TEXTS[20 : 20 + i % 3]}
        for i, text in enumerate(tiny.TEXTS[:16])
    ]
    (here / "triples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = " ".join(shell(f"{FIT} triples.jsonl").out.replace("│", " ").split())
    assert "at most 11 per anchor: 3 other positives, 8 hard negatives" in said
    assert "rows have 0 to 2 hard negatives, 0.938 on average" in said
    one = shell(f"{FIT} triples.jsonl --data.task.pairing.init_args.negatives 1 --dry_run").out
    assert "at most 7 per anchor: 3 other positives, 4 hard negatives" in " ".join(one.replace("│", " ").split())
