"""Predictions of tasks from the shell, and options that lead into a dictionary of chosen names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

from contrastive_text.cli import run
from contrastive_text.cli.train import write_predictions
from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Role, Slot
from contrastive_text.recipes.layers import merge, option_over
from contrastive_text.training.module import ContrastiveModule

Answer = Callable[[Sequence[str]], str]


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
    """The folder of a run over labelled texts and scored pairs, which holds their files too."""
    folder = tmp_path_factory.mktemp("trained")
    lines = [f"{text}\t{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "sst.tsv").write_text("".join(["text\tlabel\n", *lines]))
    asked = [f"{text}\t{tiny.TEXTS[i - 9]}\t{'yes' if i % 3 else 'no'}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "rte.tsv").write_text("".join(["sentence1\tsentence2\tlabel\n", *asked]))
    (folder / "run.yaml").write_text(RUN.format(bert=files["bert"], pairs=files["pairs"], folder=folder))
    assert run(["fit", "--config", str(folder / "run.yaml")]) == 0
    return folder


@pytest.fixture
def predict(trained: Path) -> list[str]:
    (checkpoint,) = trained.rglob("*.ckpt")
    words = ["predict", "--ckpt_path", str(checkpoint), "--trainer.accelerator", "cpu"]
    return [*words, "--trainer.enable_progress_bar", "false", "--data.eval_batch_size", "7"]


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


# Files of predictions


def test_predict_writes_a_table_for_each_task_and_says_so(
    trained: Path, predict: list[str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data.tasks.sst.predict", files["texts"], "--data.tasks.sts.predict", files["pairs"]]
    capsys.readouterr()
    assert run([*predict, *words, "--data.predict", files["texts"]]) == 0
    said = capsys.readouterr().out
    (folder,) = here.glob("runs/*/predictions")
    place = folder.relative_to(here)
    assert f"40 predictions of sst written to {place / 'sst.tsv'}\n" in said
    assert f"12 predictions of sts written to {place / 'sts.tsv'}\n" in said
    assert np.load(folder.parent / "predictions.npy").shape == (40, 16)
    (checkpoint,) = trained.rglob("*.ckpt")
    module = ContrastiveModule.load_from_checkpoint(checkpoint).eval()
    with torch.no_grad():
        sentiment = module.objective_parts()["sentiment"].predict(encoded(module, tiny.TEXTS, ["anchor"]))
        odds = sentiment.double().exp()
        shares = odds / odds.sum(dim=1, keepdim=True)
    lines = [line.split("\t") for line in (folder / "sst.tsv").read_text().splitlines()]
    assert lines[0] == ["text", "prediction", "probability"]
    assert [line[0] for line in lines[1:]] == list(tiny.TEXTS)
    assert [line[1] for line in lines[1:]] == [("bad", "good")[int(row.argmax())] for row in shares]
    written = torch.tensor([float(line[2]) for line in lines[1:]], dtype=torch.float64)
    # six digits, of float32 sums in another order
    torch.testing.assert_close(written, shares.amax(dim=1), rtol=0, atol=2e-6)
    pairs = [line.split("\t") for line in Path(files["pairs"]).read_text().splitlines()[1:]]
    texts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    with torch.no_grad():
        vectors = encoded(module, texts, ["anchor", "positive"]).embeddings.double()
    cosines = torch.cosine_similarity(vectors[:12], vectors[12:])
    lines = [line.split("\t") for line in (folder / "sts.tsv").read_text().splitlines()]
    assert lines[0] == ["anchor", "positive", "prediction"]
    assert [line[:2] for line in lines[1:]] == [pair[:2] for pair in pairs]
    written = torch.tensor([float(line[2]) for line in lines[1:]], dtype=torch.float64)
    torch.testing.assert_close(written, 5 * cosines, rtol=0, atol=1e-4)  # four digits are written


def test_one_task_alone_is_predicted_its_pairs_as_one_sequence(
    trained: Path, predict: list[str], here: Path
) -> None:
    assert run([*predict, "--data.tasks.rte.predict", str(trained / "rte.tsv")]) == 0
    (folder,) = here.glob("runs/*/predictions")
    assert [path.name for path in folder.iterdir()] == ["rte.tsv"]  # the other tasks have no file
    assert not (folder.parent / "predictions.npy").exists()
    header, *lines = (line.split("\t") for line in (folder / "rte.tsv").read_text().splitlines())
    assert header == ["anchor", "positive", "prediction", "probability"]
    (saved,) = trained.glob("*/model")
    tokenizer, model = AutoTokenizer.from_pretrained(saved), AutoModel.from_pretrained(saved).eval()
    module = ContrastiveModule.load_from_checkpoint(next(trained.rglob("*.ckpt"))).eval()
    answers = []
    with torch.no_grad():
        for first, second, _, _ in lines:
            inputs = tokenizer(first, second, return_token_type_ids=True, return_tensors="pt")
            assert inputs["token_type_ids"].max() == 1
            read = Encoded(model(**inputs)[0].mean(dim=1), (Slot("anchor", 0),), torch.arange(1))
            answers.append(module.objective_parts()["entailment"].predict(read)[0].softmax(dim=0))
    assert [line[2] for line in lines] == [("no", "yes")[int(answer.argmax())] for answer in answers]
    written = torch.tensor([float(line[3]) for line in lines])
    torch.testing.assert_close(written, torch.stack(answers).amax(dim=1), rtol=0, atol=1e-5)
    assert len({*written.tolist()}) > 30


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


def test_options_name_tasks_labels_and_objectives_that_no_file_has(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["contrastive-text"])
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", files["bert"]]
    words += ["--data.tasks.nli.train", str(here / "3"), "--data.tasks.nli.labels.3", "entailment"]
    words += ["--data.tasks.nli.pairing", "Given", "--data.tasks.nli.batch_size", "4"]
    words += ["--data.tasks.nli.columns.anchor", "premise", "--data.tasks.nli.validation", "null"]
    words += ["--model.objectives.nli", "PairClassification", "--model.objectives.nli.classes", "2"]
    words += ["--model.objectives.nli.task", "nli", "--model.weights.nli", "0.5"]
    words += ["--model.views.anchor", "SwapWords"]
    with pytest.raises(SystemExit) as left:
        run([*words, "--print_config"])
    assert left.value.code in (0, None)
    config = yaml.safe_load(capsys.readouterr().out)
    task = config["data"]["tasks"]["nli"]
    task = task.get("init_args", task)
    assert task["train"] == str(here / "3")
    assert task["labels"] == {"3": "entailment"}
    assert task["columns"] == {"anchor": "premise"}
    assert (task["batch_size"], task["validation"]) == (4, None)
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
