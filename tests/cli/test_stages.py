"""Two stages are two runs of one command: what ``--init_from`` loads, says and refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from contrastive_text.cli import run
from contrastive_text.core.storage.checkpoints import best_checkpoint
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.objectives import Contrastive, MaskedLM, Objective, TextClassification
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens

Answer = Callable[[Sequence[str]], str]
SMALL = [
    "--data.batch_size", "8", "--data.num_workers", "0", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--trainer.log_every_n_steps", "1",
    "--trainer.max_steps", "1",
]  # fmt: skip


def weights(checkpoint: str | Path) -> dict[str, Tensor]:
    saved: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return saved


def facts(checkpoint: Path) -> dict[str, str]:
    said: dict[str, str] = torch.load(checkpoint, weights_only=True)["callbacks"]["RunSummary"]
    return said


def assert_same_encoder(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    encoder = [name for name in other if name.startswith("encoder.")]
    assert encoder
    for name in encoder:
        # one step at the rate 1e-20, which moves nothing but zeros
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-15)


@pytest.fixture(scope="module")
def sst(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Labelled texts."""
    file = tmp_path_factory.mktemp("sst") / "sst.tsv"
    lines = [f"{text}\t{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(tiny.TEXTS)]
    file.write_text("".join(["text\tlabel\n", *lines]))
    return str(file)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder of other weights than the one that the first stage began with."""
    return tiny.save_bert(tmp_path_factory.mktemp("other"), seed=7)


@pytest.fixture
def second(sst: str, other: str) -> list[str]:
    """A second stage of one task, of one step that is as good as none."""
    return [
        "fit", *SMALL, "--model.encoder", "TransformerEncoder", "--model.encoder.model_name_or_path", other,
        "--data.tasks.sst.train", sst, "--model.objectives.sentiment", "TextClassification",
        "--model.objectives.sentiment.classes", "[bad, good]", "--model.optimizer", "AdamW",
        "--model.optimizer.lr", "1e-20",
    ]  # fmt: skip


# What is loaded, and what is said


def test_a_second_stage_starts_from_the_best_checkpoint_of_the_first_and_says_so(
    finished: dict[str, str], second: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*second, "--init_from", finished["folder"]]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    before, after = weights(finished["checkpoint"]), weights(checkpoint)
    assert_same_encoder(before, after)
    said = facts(checkpoint)["starts from"]
    lines = said.splitlines()
    assert lines[0].startswith(f"{finished['checkpoint']}: step 5, val/spearman ")
    assert lines[1:] == [
        "loaded: encoder",
        "starts anew: objective sentiment",
        "left out of it: objective contrastive",
    ]
    printed = capsys.readouterr().out
    assert "starts from" in printed
    assert "left out of it: objective contrastive" in printed
    assert f"init_from: {finished['folder']}" in next(here.rglob("config.yaml")).read_text()


def test_a_saved_model_is_a_first_stage_too(finished: dict[str, str], second: list[str], here: Path) -> None:
    assert run([*second, "--init_from", finished["model"]]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    before, after = weights(finished["checkpoint"]), weights(checkpoint)
    assert_same_encoder(before, after)
    assert facts(checkpoint)["starts from"].startswith(f"{finished['model']}: a saved model\nloaded: encoder")


@pytest.mark.slow
def test_a_resumed_second_stage_still_says_what_it_began_with(
    finished: dict[str, str], second: list[str], here: Path
) -> None:
    assert run([*second, "--init_from", finished["checkpoint"]]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    longer = ["--trainer.max_steps", "2", "--trainer.max_epochs", "2", "--ckpt_path", str(checkpoint)]
    said = facts(checkpoint)["starts from"]
    assert run([*second, *longer]) == 0
    (resumed,) = here.rglob("step=2.ckpt")
    assert facts(resumed)["starts from"] == said


def test_m14_the_first_stage_s_contrastive_head_is_neither_exported_nor_used(
    finished: dict[str, str], other: str
) -> None:
    assert any(name.startswith("objectives.contrastive.head.") for name in weights(finished["checkpoint"]))
    assert not (Path(finished["model"]) / "2_Dense").exists()
    module = tiny.module(other, objectives={"contrastive": Contrastive(head=TanhHead())})
    head = {name: value.clone() for name, value in module.objectives.state_dict().items()}
    said = load_initial_weights(module, finished["folder"])
    assert head
    assert all(torch.equal(value, head[name]) for name, value in module.objectives.state_dict().items())
    assert "starts anew: objective contrastive" in said
    assert "left out of it: objective contrastive" in said


@pytest.mark.slow
def test_a_head_that_inference_keeps_comes_along_and_one_that_only_one_stage_has_does_not(
    other: str, tmp_path: Path
) -> None:
    def with_head(out_features: int) -> ContrastiveModule:
        return tiny.module(other, head=MLPHead(out_features=out_features, train_only=False))

    trainer = tiny.trainer(tmp_path, max_steps=1)
    first = with_head(4)
    trainer.fit(first, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    file = tmp_path / "first.ckpt"
    trainer.save_checkpoint(file)
    same, none, wider = with_head(4), tiny.module(other), with_head(5)
    assert "loaded: encoder, head in use" in load_initial_weights(same, file)
    assert all(torch.equal(p, weights(file)[f"head.{name}"]) for name, p in same.head.named_parameters())
    assert "left out of it: head in use" in load_initial_weights(none, file)
    with pytest.raises(ValueError, match=r"--init_from: expected head\.network\.2\.weight of shape \(5, 16\)"):
        load_initial_weights(wider, file)
    plain = tmp_path / "plain.ckpt"
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(tiny.module(other), datamodule=tiny.data(str(tmp_path / "texts.txt")))
    trainer.save_checkpoint(plain)
    assert "starts anew: head in use" in load_initial_weights(with_head(4), plain)


@pytest.mark.slow
def test_the_head_that_predicts_tokens_comes_along_where_both_stages_have_one(other: str, tmp_path: Path) -> None:
    def masked() -> ContrastiveModule:
        return tiny.module(
            other, views={"anchor": [MaskTokens()]}, objectives={"c": Contrastive(), "mlm": MaskedLM()}
        )

    trainer = tiny.trainer(tmp_path, max_steps=1)
    first = masked()
    trainer.fit(first, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    file = tmp_path / "first.ckpt"
    trainer.save_checkpoint(file)
    second = masked()
    assert "loaded: encoder, token head" in load_initial_weights(second, file)
    saved = weights(file)
    names = [name for name in second.state_dict() if name.startswith("encoder.token_head.")]
    assert names
    assert all(torch.equal(second.state_dict()[name], saved[name]) for name in names)
    assert "left out of it: token head" in load_initial_weights(tiny.module(other), file)
    first.sentence_encoder().save_pretrained(tmp_path / "model")  # a saved model has it too
    third = masked()
    assert "loaded: encoder, token head" in load_initial_weights(third, tmp_path / "model")
    assert all(torch.equal(third.state_dict()[name], saved[name]) for name in names)
    assert "left out of it: token head" in load_initial_weights(tiny.module(other), tmp_path / "model")


def test_a_learned_vocabulary_comes_along_and_no_other_is_learned(tmp_path: Path) -> None:
    texts = tiny.write_texts(tmp_path / "texts.txt")
    others = tiny.write_texts(tmp_path / "others.txt", tuple(text.replace("a", "o") for text in tiny.TEXTS))
    first = ContrastiveModule(TransformerEncoder(config=tiny.CONFIG))
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(first, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    module = ContrastiveModule(TransformerEncoder(config=tiny.CONFIG))
    assert "loaded: encoder, its vocabulary" in load_initial_weights(module, tmp_path / "first.ckpt")
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(others))
    assert first.encoder.tokenizer is not None and module.encoder.tokenizer is not None
    assert module.encoder.tokenizer.get_vocab() == first.encoder.tokenizer.get_vocab()
    trainer.save_checkpoint(tmp_path / "second.ckpt")
    assert "tokenizer" in torch.load(tmp_path / "second.ckpt", weights_only=True)


# Heads that are kept


def test_an_objective_of_the_same_name_keeps_its_head_where_that_is_asked_for(
    finished: dict[str, str], other: str
) -> None:
    objectives = {"contrastive": Contrastive(head=TanhHead()), "new": TextClassification(classes=2)}
    module = tiny.module(other, objectives=objectives)
    said = load_initial_weights(module, finished["folder"], keep_heads=True)
    assert said.splitlines()[1:] == ["loaded: encoder, objective contrastive", "starts anew: objective new"]
    saved = weights(finished["checkpoint"])
    heads = [name for name in saved if name.startswith("objectives.contrastive.head.")]
    assert heads
    assert all(torch.equal(module.state_dict()[name], saved[name]) for name in heads)


def test_heads_that_cannot_be_kept_are_refused_by_name(finished: dict[str, str], other: str) -> None:
    def refused(said: str, path: str = finished["folder"], **objectives: Objective) -> None:
        with pytest.raises(ValueError, match=said):
            load_initial_weights(tiny.module(other, objectives=objectives), path, keep_heads=True)

    head = Contrastive(head=MLPHead(out_features=4))
    refused(
        r"only one of the two has \(objectives\.contrastive.*build objective contrastive as it", contrastive=head
    )
    refused("got objective contrastive in .* and none here", contrastive=Contrastive())
    refused("and objective c here; name the run", c=Contrastive(head=TanhHead()))
    refused("a saved model and objective contrastive here", finished["model"], contrastive=head)


def test_heads_of_other_classes_and_shapes_are_refused(other: str, sst: str, tmp_path: Path) -> None:
    def kinds(*names: str, width: int | None = None) -> ContrastiveModule:
        head = None if width is None else MLPHead(hidden_features=width, out_features=2)
        return tiny.module(other, objectives={"kind": TextClassification(list(names), head=head)})

    trainer, path = tiny.trainer(tmp_path, max_steps=1), tmp_path / "first.ckpt"
    trainer.fit(kinds("good", "bad"), tiny.data(sst))
    trainer.save_checkpoint(path)
    load_initial_weights(kinds("good", "bad"), path, keep_heads=True)
    load_initial_weights(kinds("bad", "good"), path)
    with pytest.raises(ValueError, match=r"classes of objective kind as .* \('good', 'bad'\), got \('b"):
        load_initial_weights(kinds("bad", "good"), path, keep_heads=True)
    with pytest.raises(ValueError, match="only one of the two has"):
        load_initial_weights(kinds("good", "bad", width=5), path, keep_heads=True)


# The best checkpoint of a run


def test_the_best_of_several_checkpoints_is_the_one_that_the_latest_names(
    finished: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    best = folder / "step=5.ckpt"
    shutil.copy(finished["checkpoint"], best)
    later = torch.load(best, weights_only=True)
    later["global_step"] = 9
    torch.save(later, folder / "last.ckpt")
    assert best_checkpoint(tmp_path / "run", "--init_from") == best
    assert best_checkpoint(folder, "--init_from") == best
    best.rename(folder / "renamed.ckpt")
    later["callbacks"] = {}
    torch.save(later, folder / "last.ckpt")
    with pytest.raises(ValueError, match=r"which of the 2 checkpoints in .* is the best, got none"):
        best_checkpoint(tmp_path / "run", "--init_from")


# What is refused


def test_two_sources_of_weights_and_other_commands_are_answered(
    finished: dict[str, str], second: list[str], answer: Answer
) -> None:
    words = ["--init_from", finished["folder"], "--ckpt_path", finished["checkpoint"]]
    words += ["--trainer.accelerator", "cpu"]
    assert "--init_from: expected none beside --ckpt_path" in answer(["fit", *words])
    assert "--init_from: expected it with fit, got it with test" in answer(["test", *words])
    assert "--keep_heads: expected it with --init_from, got it alone" in answer([*second, "--keep_heads"])
    runs = str(Path(finished["folder"]).parent)
    said = answer([*second, "--init_from", runs])
    assert f"got a folder of runs ({finished['folder']}); name one of them" in said


def test_another_architecture_width_or_vocabulary_is_refused_by_name(
    finished: dict[str, str], tmp_path: Path
) -> None:
    run_folder = finished["folder"]
    wide = tiny.save_bert(tmp_path / "wide", hidden_size=32)
    with pytest.raises(ValueError, match=r"expected encoder\.model\..* of shape \(\d+, 32\), got \(\d+, 16\)"):
        load_initial_weights(tiny.module(wide), run_folder)
    deep = tiny.save_bert(tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"only one of the two has \(encoder\.model\.encoder\.layer\.2\."):
        load_initial_weights(tiny.module(deep), run_folder)
    shuffled = tiny.save_bert(tmp_path / "shuffled", tuple(reversed(tiny.TEXTS)))
    assert load_initial_weights(tiny.module(shuffled), run_folder)  # the same vocabulary, wherever it lies
    foreign = tiny.save_bert(tmp_path / "foreign", tuple(text.replace("a", "o") for text in tiny.TEXTS))
    with pytest.raises(ValueError, match="expected the vocabulary that the weights were trained with"):
        load_initial_weights(tiny.module(foreign), run_folder)
    with pytest.raises(ValueError, match=r"expected a tokenizer .* set --model.encoder.tokenizer_name_or_path"):
        load_initial_weights(ContrastiveModule(TransformerEncoder(config=tiny.CONFIG)), run_folder)


def test_a_token_that_only_one_stage_s_views_add_is_refused_with_what_to_do(tmp_path: Path) -> None:
    entries = len(tiny.module(tiny.save_bert(tmp_path / "loose")).encoder.tokenizer)
    exact = tiny.save_bert(tmp_path / "exact", vocab_size=entries)
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(tiny.module(exact), datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    marked = tiny.module(exact, views={"anchor": [DeleteTokens(mark="[DEL]")]})
    with pytest.raises(ValueError, match=rf"of shape \({entries + 1}, 16\), got \({entries}, 16\).*add tokens"):
        load_initial_weights(marked, tmp_path / "plain.ckpt")
