"""Predictions of tasks from the shell, and options that lead into a dictionary of chosen names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from shells import Shell
from transformers import AutoModel, AutoTokenizer

from contrastive_text.cli import run
from contrastive_text.cli.files import write_predictions
from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Role, Slot
from contrastive_text.recipes.layers import merge, option_over
from contrastive_text.training.module import ContrastiveModule

RUN = """
model:
  encoder: {{class_path: TransformerEncoder, init_args: {{model_name_or_path: {bert}}}}}
  objectives:
    sentiment: {{class_path: TextClassification, init_args: {{classes: ["bad", "good"], task: sst}}}}
    similarity: {{class_path: PairRegression, init_args: {{task: sts}}}}
    entailment: {{class_path: TextClassification, init_args: {{classes: ["no", "yes"], task: rte}}}}
  optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-2}}}}
data:
  tasks:
    sst: {{train: {folder}/sst.tsv}}
    sts: {{train: {pairs}, pairing: Given}}
    rte: {{train: {folder}/rte.tsv, pairing: OneSequence}}
  batch_size: 4
  num_workers: 0
trainer:
  {{accelerator: cpu, enable_progress_bar: false, log_every_n_steps: 1, max_steps: 2, default_root_dir: {folder}}}
"""


@pytest.fixture(scope="module")
def trained(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run over labeled texts and scored pairs, which holds their files too."""
    folder = tmp_path_factory.mktemp("trained")
    lines = [f"{text}\t{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "sst.tsv").write_text("".join(["text\tlabel\n", *lines]))
    asked = [f"{text}\t{tiny.TEXTS[i - 9]}\t{'yes' if i % 3 else 'no'}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "rte.tsv").write_text("".join(["sentence1\tsentence2\tlabel\n", *asked]))
    (folder / "run.yaml").write_text(RUN.format(bert=files["bert"], pairs=files["pairs"], folder=folder))
    assert run(["fit", "--config", str(folder / "run.yaml")]) == 0
    return folder


@pytest.fixture
def checkpoint(trained: Path) -> Path:
    return next(trained.rglob("*.ckpt"))


@pytest.fixture
def predict(checkpoint: Path) -> str:
    words = f"predict --ckpt_path {checkpoint} --trainer.accelerator cpu"
    return f"{words} --trainer.enable_progress_bar false --data.eval_batch_size 7"


def encoded(module: ContrastiveModule, texts: Sequence[str], roles: Sequence[Role]) -> Encoded:
    """Texts that stand role by role, encoded one by one, without padding."""
    tokenizer = module.text_tokenizer(training=False)
    assert tokenizer is not None
    rows = [tokenizer.with_specials(tokens) for tokens in tokenizer(list(texts))]
    vectors = []
    for row in rows:
        batch = Batch(
            ids=torch.tensor(row.ids),
            lengths=torch.tensor([len(row)]),
            slots=(Slot("anchor", 0),),
            row_slots=torch.zeros(1, dtype=torch.long),
            draw_keys=torch.zeros(1, dtype=torch.long),
            text_ids=torch.zeros(1, dtype=torch.long),
            seed=0,
        )
        vectors.append(module.embedder.pool(batch))
    slots = tuple(Slot(role, 0) for role in roles)
    return Encoded(torch.cat(vectors), slots, torch.arange(len(texts)))


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def numbers(lines: Sequence[Sequence[str]]) -> torch.Tensor:
    """Returns those of the last column."""
    return torch.tensor([float(line[-1]) for line in lines], dtype=torch.float64)


# Files of predictions


@pytest.mark.slow
def test_predict_writes_a_table_for_each_task_and_says_so(
    shell: Shell, checkpoint: Path, predict: str, files: dict[str, str], here: Path
) -> None:
    tasks = "--data.tasks.sst.predict TEXTS --data.tasks.sts.predict PAIRS"
    said = shell(f"{predict} {tasks} --data.predict TEXTS").out
    (folder,) = here.glob("runs/*/predictions")
    place = folder.relative_to(here)
    assert f"40 predictions of sst written to {place / 'sst.tsv'}\n" in said
    assert f"12 predictions of sts written to {place / 'sts.tsv'}\n" in said
    assert np.load(folder.parent / "predictions.npy").shape == (40, 16)
    module = ContrastiveModule.load_from_checkpoint(checkpoint).eval()
    with torch.no_grad():
        sentiment = module.objective_parts()["sentiment"].predict(encoded(module, tiny.TEXTS, ["anchor"]))
        odds = sentiment.double().exp()
        shares = odds / odds.sum(dim=1, keepdim=True)
    names, *lines = table(folder / "sst.tsv")
    assert names == ["text", "prediction", "probability"]
    assert [line[0] for line in lines] == list(tiny.TEXTS)
    assert [line[1] for line in lines] == [("bad", "good")[int(row.argmax())] for row in shares]
    # six digits, of float32 sums in another order
    torch.testing.assert_close(numbers(lines), shares.amax(dim=1), rtol=0, atol=2e-6)
    pairs = table(Path(files["pairs"]))[1:]
    texts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    with torch.no_grad():
        vectors = encoded(module, texts, ["anchor", "positive"]).embeddings.double()
    cosines = torch.cosine_similarity(vectors[:12], vectors[12:])
    names, *lines = table(folder / "sts.tsv")
    assert names == ["anchor", "positive", "prediction"]
    assert [line[:2] for line in lines] == [pair[:2] for pair in pairs]
    torch.testing.assert_close(numbers(lines), 5 * cosines, rtol=0, atol=1e-4)  # four digits are written


@pytest.mark.slow
def test_one_task_alone_is_predicted_its_pairs_as_one_sequence(
    shell: Shell, trained: Path, checkpoint: Path, predict: str, here: Path
) -> None:
    shell(f"{predict} --data.tasks.rte.predict {trained / 'rte.tsv'}")
    (folder,) = here.glob("runs/*/predictions")
    assert [path.name for path in folder.iterdir()] == ["rte.tsv"]  # the other tasks have no file
    assert not (folder.parent / "predictions.npy").exists()
    names, *lines = table(folder / "rte.tsv")
    assert names == ["anchor", "positive", "prediction", "probability"]
    (saved,) = trained.glob("*/model")
    tokenizer, model = AutoTokenizer.from_pretrained(saved), AutoModel.from_pretrained(saved).eval()
    module = ContrastiveModule.load_from_checkpoint(checkpoint).eval()
    answers = []
    with torch.no_grad():
        for first, second, _, _ in lines:
            inputs = tokenizer(first, second, return_token_type_ids=True, return_tensors="pt")
            assert inputs["token_type_ids"].max() == 1
            read = Encoded(model(**inputs)[0].mean(dim=1), (Slot("anchor", 0),), torch.arange(1))
            answers.append(module.objective_parts()["entailment"].predict(read)[0].softmax(dim=0))
    assert [line[2] for line in lines] == [("no", "yes")[int(answer.argmax())] for answer in answers]
    expected = torch.stack(answers).amax(dim=1).double()
    torch.testing.assert_close(numbers(lines), expected, rtol=0, atol=1e-5)
    assert len({*numbers(lines).tolist()}) > 30


def test_a_table_has_a_line_for_each_row_whatever_the_texts_hold(tmp_path: Path) -> None:
    rows = [{"text": "a\tb\nc"}, {"text": 'he said "no"'}]
    scores = torch.tensor([[0.0, 3.0], [1.0, 0.0]])
    assert write_predictions(tmp_path / "new" / "t.tsv", rows, scores, Classes(("no", "yes"))) == 1
    assert (tmp_path / "new" / "t.tsv").read_text() == (
        'text\tprediction\tprobability\na b c\tyes\t0.952574\nhe said "no"\tno\t0.731059\n'
    )
    assert write_predictions(tmp_path / "s.tsv", rows[1:], torch.tensor([0.5]), Scores(low=1, high=5)) == 0
    assert (tmp_path / "s.tsv").read_text() == 'text\tprediction\nhe said "no"\t3.0000\n'


# Options that open an entry


def test_options_name_tasks_labels_and_objectives_that_no_file_has(shell: Shell) -> None:
    task = "train=folder/3 labels.3=entailment pairing=Given batch_size=4 columns.anchor=premise validation=null"
    objective = "=PairClassification .classes=2 .task=nli"
    words = [f"--data.tasks.nli.{option}" for option in task.split()]
    words += [f"--model.objectives.nli{option}" for option in objective.split()]
    config = shell.config(f"FIT {' '.join(words)} --model.weights.nli 0.5 --model.views.anchor SwapWords")
    task = config["data"]["tasks"]["nli"]
    task = task.get("init_args", task)
    assert (task["train"], task["batch_size"], task["validation"]) == ("folder/3", 4, None)
    assert task["labels"] == {"3": "entailment"}
    assert task["columns"] == {"anchor": "premise"}
    assert task["pairing"]["class_path"].endswith(".Given")
    objectives = config["model"]["objectives"]
    assert set(objectives) == {"contrastive", "nli"}
    assert objectives["nli"]["init_args"]["classes"] == 2
    assert objectives["nli"]["init_args"]["task"] == "nli"
    assert config["model"]["weights"] == {"nli": 0.5}
    (view,) = config["model"]["views"]["anchor"]
    assert view["class_path"].endswith(".SwapWords")


def test_a_file_that_names_tasks_names_all_of_them_and_merges_inside_each() -> None:
    below = {"data": {"tasks": {"a": {"train": "a", "labels": {"0": "x"}}, "b": {"train": "b"}}}}
    above = {"data": {"tasks": {"a": {"test": "t", "labels": {"1": "y"}}}}}
    assert merge([below, above]) == {"data": {"tasks": {"a": {"train": "a", "test": "t", "labels": {"1": "y"}}}}}
    laid = option_over(below, "data.tasks.a.test", "t")
    assert laid is not None
    assert laid["data"]["tasks"] == {**below["data"]["tasks"], "a": {**below["data"]["tasks"]["a"], "test": "t"}}


def test_an_option_inside_a_part_that_is_there_is_left_to_the_parser() -> None:
    part = {"class_path": "PairRegression", "init_args": {"high": 5.0}}
    assert option_over({"model": {"objectives": {"sts": part}}}, "model.objectives.sts.high", "4") is None
    named = {"model": {"objectives": {"sts": "PairRegression"}}}  # which the parser would lose
    part = {"class_path": "PairRegression", "init_args": {"high": "4"}}
    assert option_over(named, "model.objectives.sts.high", "4") == {"model": {"objectives": {"sts": part}}}
