"""Around the training: which weights are kept (S13), what is exported, what is said at the start."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn

from contrastive_text.cli import run as shell
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Prompts
from contrastive_text.encoders import Encoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.metrics import SpearmanSimilarity
from contrastive_text.objectives import Contrastive, Duplicates, Matryoshka, Siblings
from contrastive_text.pairings import Given
from contrastive_text.poolers import CLSPooler
from contrastive_text.training import AdamW, ConstantSchedule, LinearSchedule
from contrastive_text.training.callbacks import BestCheckpoint, ExportModel, RunSummary
from contrastive_text.training.callbacks.best_checkpoint import _validation_interval
from contrastive_text.training.callbacks.run_summary import _peak, model_facts
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, FeatureCutoff


class Told(SpearmanSimilarity):
    """Gives the scores of a list, one after the other."""

    scores: ClassVar[list[float]] = []

    def compute(self) -> Tensor:
        return torch.tensor(Told.scores.pop(0))


class Bag(Encoder):
    """An encoder of one's own that no model folder can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)
        self.tokenizer = self.max_length = self.limit = None
        self.features, self.vocabulary_size, self.takes_embedding_views = 4, 5, False
        self.dropout_in_effect: dict[str, float] = {}

    def forward(self, batch: Any, alter: Any = None, layers: Any = (-1,)) -> Any:
        raise NotImplementedError


class Weights(pl.Callback):
    """Keeps the weights after every step."""

    def __init__(self) -> None:
        self.after: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # the base's signature
        self.after.append(flat(pl_module))


def flat(module: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    return {
        "train": tiny.write_texts(folder / "texts.txt"),
        "validation": tiny.write_pairs(folder / "pairs.tsv"),
    }


def run(
    bert: str, folder: Path, files: dict[str, str], callbacks: tuple[pl.Callback, ...] = (), **options: Any
) -> tuple[pl.Trainer, ContrastiveModule, list[Tensor]]:
    """Trains with the callbacks of a run; gives the weights after every step too."""
    weights = Weights()
    trainer = tiny.trainer(
        folder,
        **{
            "enable_checkpointing": True,
            "logger": CSVLogger(folder, name=""),
            "callbacks": [*callbacks, weights, BestCheckpoint(), ExportModel()],
            "max_steps": 4,
            "log_every_n_steps": 1,
            **options,
        },
    )
    module = tiny.module(bert, optimizer=AdamW(lr=1e-2))
    trainer.fit(module, datamodule=tiny.data(**files, batch_size=4))  # ten steps an epoch
    return trainer, module, weights.after


@pytest.mark.parametrize(
    ("scores", "best", "interval"),
    rest_slow(
        [
            ([10.0, 30.0, 30.0, 20.0], 2, 1),
            ([30.0, 20.0, 10.0, 30.0], 1, 2),
            ([-40.0, -30.0, -10.0, -20.0], 3, 1),
        ]
    ),
    ids=["a tie keeps the first", "the first of all", "all below zero"],
)
def test_s13_the_best_validation_score_is_kept_and_reloaded_at_the_end(
    bert: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scores: list[float],
    best: int,
    interval: int,
) -> None:
    monkeypatch.setattr("contrastive_text.training.held_out.SpearmanSimilarity", Told)
    monkeypatch.setattr(Told, "scores", list(scores))
    trainer, module, after = run(bert, tmp_path, files, val_check_interval=interval, max_steps=4 * interval)
    assert not Told.scores
    kept = trainer.checkpoint_callback
    assert isinstance(kept, BestCheckpoint)
    step = best * interval
    assert [path.name for path in Path(kept.best_model_path).parent.iterdir()] == [f"step={step}.ckpt"]
    assert float(kept.best_model_score) == max(scores)
    assert [number + 1 for number, weights in enumerate(after) if torch.equal(flat(module), weights)] == [step]
    saved = SentenceEncoder.from_pretrained(Path(trainer.log_dir) / "model")
    assert torch.equal(flat(saved), after[step - 1])


def test_early_stopping_ends_the_run_and_the_best_is_still_kept(
    bert: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.training.held_out.SpearmanSimilarity", Told)
    monkeypatch.setattr(Told, "scores", [50.0, 40.0, 30.0, 60.0, 70.0])
    stop = EarlyStopping(monitor="val/spearman", mode="max", patience=2)
    trainer, module, after = run(bert, tmp_path, files, (stop,), val_check_interval=2, max_steps=10)
    assert trainer.global_step == 6
    assert torch.equal(flat(module), after[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_without_validation_the_last_weights_are_kept_and_a_second_run_in_named_folders_leaves_its_own(
    bert: str, files: dict[str, str], tmp_path: Path
) -> None:
    trained = []
    for rate in (1e-2, 2e-2):
        module, weights = tiny.module(bert, optimizer=AdamW(lr=rate)), Weights()
        callbacks = [BestCheckpoint(str(tmp_path / "kept")), ExportModel(str(tmp_path / "model")), weights]
        trainer = tiny.trainer(tmp_path, enable_checkpointing=True, callbacks=callbacks)
        trainer.fit(module, datamodule=tiny.data(files["train"]))
        assert Path(trainer.checkpoint_callback.best_model_path).name.startswith("step=2")
        trained.append(weights.after[-1])
        for each in (module, SentenceEncoder.from_pretrained(tmp_path / "model")):
            assert torch.equal(flat(each), trained[-1])
    assert not torch.equal(*trained)


# What is left for use


def test_the_export_has_the_kept_head_and_no_train_only_one(
    bert: str, files: dict[str, str], tmp_path: Path
) -> None:
    kept = tiny.module(
        bert, pooler=CLSPooler(), head=MLPHead(hidden_features=5, out_features=3, train_only=False)
    )
    dropped = tiny.module(bert, pooler=CLSPooler(), objectives={"c": Contrastive(head=TanhHead())})
    for module, width in ((kept, 3), (dropped, 16)):
        vectors = tiny.trainer(tmp_path).predict(
            module, datamodule=tiny.data(files["train"], predict=files["train"])
        )
        encoded = module.sentence_encoder().encode(tiny.TEXTS, batch_size=len(tiny.TEXTS), convert_to_tensor=True)
        assert encoded.shape == (40, width)
        # float32: rows in another order, so other sums inside a matrix product
        torch.testing.assert_close(encoded, torch.cat(vectors), rtol=0, atol=1e-5)
    assert dropped.sentence_encoder().head is None


def test_an_encoder_that_no_folder_holds_is_told_of_before_training_and_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = ContrastiveModule(Bag())
    ExportModel().on_fit_start(pl.Trainer(logger=False, accelerator="cpu"), module)
    told = " ".join(capsys.readouterr().out.split())
    assert "No model folder will be written:" in told and "this is a Bag. ContrastiveModule.load_from_ch" in told
    with pytest.raises(TypeError, match=r"expected a TransformerEncoder, .*got Bag"):
        module.sentence_encoder()


# What is said


def test_the_summary_tells_all_that_changes_the_result(
    bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeated = tiny.write_texts(tmp_path / "repeated.txt", (*tiny.TEXTS, tiny.TEXTS[0]))
    module = tiny.module(
        bert,
        dropout=0.2,
        pooler=CLSPooler(),
        views={"positive": [DeleteTokens(rate=0.15), FeatureCutoff(rate=0.3)]},
        objectives={"pull": Contrastive(NTXent(temperature=0.07))},
        weights={"pull": 0.5},
    )
    summary = RunSummary()
    trainer = tiny.trainer(
        tmp_path, max_steps=1, callbacks=[summary, BestCheckpoint(dirpath=str(tmp_path / "kept"))],
        enable_checkpointing=True,
    )  # fmt: skip
    trainer.fit(module, datamodule=tiny.data(repeated))
    facts = summary.facts
    assert facts["views"] == (
        "positive: DeleteTokens(rate=0.15, mark=None, exact=True, unit='token') -> FeatureCutoff(rate=0.3)"
    )
    assert facts["dropout"] == "hidden_dropout_prob 0.2, attention_probs_dropout_prob 0.2"
    assert facts["negatives"].startswith("pull: 14 per anchor: 7 other positives, 7 other anchors")
    assert facts["pooler"] == "CLSPooler() in training, CLSPooler() in use"
    assert facts["duplicates"] == "1 of 41 rows repeat the text of another"
    assert facts["objectives"].startswith("pull: 0.5 x Contrastive(loss=NTXent(temperature=0.07")
    printed = capsys.readouterr().out
    assert all(name in printed for name in facts)
    (checkpoint,) = (tmp_path / "kept").iterdir()
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["callbacks"]["RunSummary"] == facts


@pytest.mark.parametrize(
    ("precision", "faster", "told"),
    [("32-true", True, True), ("32-true", False, False), ("bf16-mixed", True, False)],
)
def test_a_run_that_bfloat16_would_make_faster_is_told_so_and_what_is_absent_is_said_in_words(
    bert: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    faster: bool,
    told: bool,
) -> None:
    place = "contrastive_text.training.callbacks.run_summary"
    monkeypatch.setattr(f"{place}.is_faster_in_bfloat16", lambda _: faster)
    monkeypatch.setattr(f"{place}.get_datamodule", lambda _: None)
    summary, trainer = RunSummary(), SimpleNamespace(is_global_zero=True, precision=precision)
    summary.on_fit_start(trainer, tiny.module(bert, dropout=0.0))  # type: ignore[arg-type]  # what it reads of one
    assert ("--trainer.precision bf16-mixed" in capsys.readouterr().out) == told
    assert {summary.facts[name] for name in ("dropout", "views", "head in use")} == {"none"}


def test_prompts_of_the_encoder_s_folder_that_a_run_leaves_out_are_said(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path)
    assert "prompts" not in model_facts(tiny.module(folder))
    settings = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    said = model_facts(tiny.module(folder))["prompts"]
    assert said.startswith(
        f"none, though {folder} names some (query: 'query: '; document: none; other texts: none"
    )
    own = model_facts(tiny.module(folder, prompts=Prompts({"query": "q: "})))["prompts"]
    assert own == "query: 'q: '; document: none; other texts as query; in the pooler"


def test_rows_that_meet_siblings_are_counted(bert: str, tmp_path: Path) -> None:
    summary, path = RunSummary(), tmp_path / "pairs.jsonl"
    rows = [{"query": f"the bird {i}", "pos": [f"it sings {i}", f"it flies {i}"]} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, [*rows, {"query": "a dog", "pos": ["it runs"]}])))
    trainer = tiny.trainer(tmp_path, max_steps=1, callbacks=[summary])
    inside = Matryoshka(Contrastive(columns=[Duplicates()]), dims=[16, 8])
    parts = {
        "c": Contrastive(InfoNCE()),
        "d": Contrastive(columns=[Duplicates(), Siblings("positive")]),
        "e": inside,
    }
    trainer.fit(tiny.module(bert, objectives=parts), datamodule=tiny.data(str(path), pairing=Given()))
    said = "16 of 17 rows have an anchor with other positives, some 41.2% meet one in a step; "
    assert summary.facts["siblings"].splitlines() == [
        f"c: {said}masked", f"d: {said}positives too, joined by the mean", f"e: {said}negatives",
    ]  # fmt: skip


def test_the_summary_takes_a_run_without_a_known_end(bert: str, files: dict[str, str], tmp_path: Path) -> None:
    summary = RunSummary()
    trainer = tiny.trainer(
        tmp_path,
        max_steps=-1,
        max_epochs=-1,
        max_time={"seconds": 0},
        enable_checkpointing=True,
        callbacks=[summary, BestCheckpoint()],
    )
    trainer.fit(tiny.module(bert, schedule=ConstantSchedule()), datamodule=tiny.data(files["train"]))
    assert summary.facts["run"].startswith("an unknown number of steps")


@pytest.mark.parametrize(
    ("interval", "options", "wanted"),
    [
        # Epochs of ten batches.
        (0.5, {}, 0.5),
        (2, {}, 2),
        (125, {}, 10),
        (125, {"limit_train_batches": 2}, 2),
        (125, {"limit_train_batches": 0.5}, 5),
        (125, {"check_val_every_n_epoch": None}, 125),
    ],
)
def test_an_interval_between_validations_is_at_most_an_epoch(
    interval: int | float, options: dict[str, Any], wanted: int | float
) -> None:
    trainer: Any = {"limit_train_batches": 1.0, "check_val_every_n_epoch": 1, **options}
    trainer = SimpleNamespace(**trainer, val_check_interval=interval)
    data: Any = SimpleNamespace(training=SimpleNamespace(steps=range(10)))
    assert _validation_interval(trainer, data) == wanted


@pytest.mark.parametrize(
    "options", [{"max_steps": 3}, {"max_steps": -1, "max_epochs": 1, "limit_train_batches": 2}]
)
def test_a_run_or_an_epoch_shorter_than_the_interval_is_validated(
    bert: str, files: dict[str, str], tmp_path: Path, options: dict[str, Any]
) -> None:
    best = BestCheckpoint(dirpath=str(tmp_path / "kept"))
    trainer = tiny.trainer(
        tmp_path, val_check_interval=125, callbacks=[best], enable_checkpointing=True, **options
    )
    trainer.fit(tiny.module(bert), datamodule=tiny.data(**files))
    assert best.best_model_score is not None


def test_a_score_that_no_validation_gives_is_answered_at_the_first_one(
    bert: str, files: dict[str, str], tmp_path: Path
) -> None:
    best = BestCheckpoint(dirpath=str(tmp_path / "kept"), monitor="val/none")
    trainer = tiny.trainer(tmp_path, val_check_interval=1, callbacks=[best], enable_checkpointing=True)
    with pytest.raises(InvalidValueError, match=r"checkpoint\.monitor: .*val/spearman.*got val/none"):
        trainer.fit(tiny.module(bert), datamodule=tiny.data(**files))
    assert trainer.global_step == 1


def test_a_best_checkpoint_that_is_gone_is_forgotten_with_a_warning(tmp_path: Path) -> None:
    first, second = BestCheckpoint(dirpath=str(tmp_path / "a")), BestCheckpoint(dirpath=str(tmp_path / "b"))
    first.best_model_score, first.best_model_path = torch.tensor(70.0), str(tmp_path / "a" / "step=5.ckpt")
    with pytest.warns(UserWarning, match="the best checkpoint so far is gone"):
        second.load_state_dict(first.state_dict())
    assert second.best_model_score is None
    assert second.best_model_path == ""


@pytest.mark.slow
def test_a_resumed_run_that_finds_no_better_checkpoint_takes_the_best_along(
    bert: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.training.held_out.SpearmanSimilarity", Told)
    monkeypatch.setattr(Told, "scores", [10.0, 60.0, 50.0, 40.0, 30.0])  # first of the start
    monkeypatch.chdir(tmp_path)
    options = {
        "data.train": files["train"], "data.validation": files["validation"], "data.batch_size": 8,
        "data.num_workers": 0, "model.encoder.model_name_or_path": bert, "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false", "trainer.val_check_interval": 1,
    }  # fmt: skip
    words = ["fit", "--recipe", "simcse", *(f"--{name}={value}" for name, value in options.items())]
    assert shell([*words, "--trainer.max_steps", "2"]) == 0
    (kept,) = tmp_path.glob("runs/version_0/checkpoints/*.ckpt")
    assert shell([*words, "--trainer.max_steps", "3", "--ckpt_path", str(kept)]) == 0
    (taken,) = tmp_path.glob("runs/version_1/checkpoints/*.ckpt")
    assert taken.read_bytes() == kept.read_bytes()


def test_a_warm_up_longer_than_the_run_is_told() -> None:
    assert _peak(LinearSchedule(warmup_steps=24_000), 2_000) == pytest.approx(1_998 / 24_000)
    assert _peak(LinearSchedule(warmup_ratio=0.1), 40) == 1.0
    assert _peak(LinearSchedule(), 15_625) == 1.0


class Wrapped(nn.Module):
    """As adapters are put around a layer by hand."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Linear(16, 2, bias=False)
        self.lora_B = nn.Linear(2, 16, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.base_layer(vectors) + self.lora_B(self.lora_A(vectors))


def test_adapters_put_in_by_hand_are_refused_by_name_before_the_first_step(tmp_path: Path) -> None:
    module = tiny.module(tiny.save_bert(tmp_path / "bert"))
    attention = module.encoder.model.encoder.layer[1].attention.self
    attention.query = Wrapped(attention.query)
    trainer = tiny.trainer(tmp_path, callbacks=[ExportModel(str(tmp_path / "model"))])
    with pytest.raises(
        ValueError, match=r"ExportModel: expected .* got other weights \(.*lora_A.*merge_and_unload"
    ) as told:
        trainer.fit(module, tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    assert "encoder.layer.1.attention.self.query." in str(told.value)
    assert trainer.global_step == 0
    assert not (tmp_path / "model").exists()
    with pytest.raises(ValueError, match="save_pretrained: expected an encoder with the weights of bert"):
        module.sentence_encoder().save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
