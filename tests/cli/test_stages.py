"""Two stages are two runs of one command: what ``--init_from`` loads, says and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny
import torch
from shells import Shell
from torch import Tensor

from contrastive_text.core.storage.checkpoints import best_checkpoint
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.objectives import Contrastive, MaskedLM, Objective, TextClassification
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens


def weights(checkpoint: str | Path) -> dict[str, Tensor]:
    saved: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return saved


def start_of(checkpoint: Path) -> str:
    """Returns what a checkpoint says of where its run started from."""
    return str(torch.load(checkpoint, weights_only=True)["callbacks"]["RunSummary"]["starts from"])


def assert_same_encoder(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    encoder = [name for name in other if name.startswith("encoder.")]
    assert encoder
    for name in encoder:
        # one step at the rate 1e-20, which moves nothing but zeros
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-15)


def trained(module: ContrastiveModule, train: str, checkpoint: Path) -> Path:
    """Trains a module for a step and saves it; gives the checkpoint."""
    trainer = tiny.trainer(checkpoint.parent, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(train))
    trainer.save_checkpoint(checkpoint)
    return checkpoint


@pytest.fixture(scope="module")
def sst(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Labeled texts."""
    file = tmp_path_factory.mktemp("sst") / "sst.tsv"
    lines = [f"{text}\t{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(tiny.TEXTS)]
    file.write_text("".join(["text\tlabel\n", *lines]))
    return str(file)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder of other weights than the one that the first stage began with."""
    return tiny.save_bert(tmp_path_factory.mktemp("other"), seed=7)


@pytest.fixture
def second(sst: str, other: str) -> str:
    """A second stage of one task, of one step that is as good as none."""
    data = f"--data.tasks.sst.train {sst} --data.batch_size 8 --data.num_workers 0"
    objective = "--model.objectives.sentiment"
    return (
        f"fit --model.encoder TransformerEncoder --model.encoder.model_name_or_path {other} {data} "
        f"{objective} TextClassification {objective}.classes '[bad, good]' --model.optimizer AdamW "
        "--model.optimizer.lr 1e-20 --trainer.accelerator cpu --trainer.enable_progress_bar false "
        "--trainer.log_every_n_steps 1 --trainer.max_steps 1"
    )


# What is loaded, and what is said


def test_a_second_stage_starts_from_the_best_checkpoint_of_the_first_and_says_so(
    shell: Shell, finished: dict[str, str], second: str, here: Path
) -> None:
    printed = shell(f"{second} --init_from FOLDER").out
    (checkpoint,) = here.rglob("*.ckpt")
    assert_same_encoder(weights(finished["checkpoint"]), weights(checkpoint))
    first, *lines = start_of(checkpoint).splitlines()
    assert first.startswith(f"{finished['checkpoint']}: step 5, val/spearman ")
    assert lines == [
        "loaded: encoder",
        "starts from scratch: objective sentiment",
        "left out of it: objective contrastive",
    ]
    assert "starts from" in printed
    assert "left out of it: objective contrastive" in printed
    assert f"init_from: {finished['folder']}" in next(here.rglob("config.yaml")).read_text()


@pytest.mark.slow
def test_a_saved_model_is_a_first_stage_too(
    shell: Shell, finished: dict[str, str], second: str, here: Path
) -> None:
    shell(f"{second} --init_from MODEL")
    (checkpoint,) = here.rglob("*.ckpt")
    assert_same_encoder(weights(finished["checkpoint"]), weights(checkpoint))
    assert start_of(checkpoint).startswith(f"{finished['model']}: a saved model\nloaded: encoder")


@pytest.mark.slow
def test_a_resumed_second_stage_still_says_what_it_began_with(shell: Shell, second: str, here: Path) -> None:
    shell(f"{second} --init_from CHECKPOINT")
    (checkpoint,) = here.rglob("*.ckpt")
    said = start_of(checkpoint)
    shell(f"{second} --trainer.max_steps 2 --trainer.max_epochs 2 --ckpt_path {checkpoint}")
    (resumed,) = here.rglob("step=2.ckpt")
    assert start_of(resumed) == said


def test_m14_the_first_stage_s_contrastive_head_is_neither_exported_nor_used_unless_that_is_asked_for(
    finished: dict[str, str], other: str
) -> None:
    saved = weights(finished["checkpoint"])
    heads = [name for name in saved if name.startswith("objectives.contrastive.head.")]
    assert heads and not (Path(finished["model"]) / "2_Dense").exists()
    objectives = {"contrastive": Contrastive(head=TanhHead()), "new": TextClassification(classes=2)}
    module = tiny.module(other, objectives=objectives)
    before = {name: module.state_dict()[name].clone() for name in heads}
    said = load_initial_weights(module, finished["folder"])
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
    assert "starts from scratch: objective contrastive" in said
    assert "left out of it: objective contrastive" in said
    said = load_initial_weights(module, finished["folder"], keep_heads=True)
    assert said.splitlines()[1:] == [
        "loaded: encoder, objective contrastive",
        "starts from scratch: objective new",
    ]
    assert all(torch.equal(module.state_dict()[name], saved[name]) for name in heads)


@pytest.mark.slow
def test_a_head_that_inference_keeps_comes_along_and_one_that_only_one_stage_has_does_not(
    other: str, files: dict[str, str], tmp_path: Path
) -> None:
    def with_head(out_features: int) -> ContrastiveModule:
        return tiny.module(other, head=MLPHead(out_features=out_features, train_only=False))

    file = trained(with_head(4), files["texts"], tmp_path / "first.ckpt")
    same, none, wider = with_head(4), tiny.module(other), with_head(5)
    assert "loaded: encoder, head in use" in load_initial_weights(same, file)
    assert all(torch.equal(p, weights(file)[f"head.{name}"]) for name, p in same.head.named_parameters())
    assert "left out of it: head in use" in load_initial_weights(none, file)
    with pytest.raises(ValueError, match=r"--init_from: expected head\.network\.2\.weight of shape \(5, 16\)"):
        load_initial_weights(wider, file)
    plain = trained(tiny.module(other), files["texts"], tmp_path / "plain.ckpt")
    assert "starts from scratch: head in use" in load_initial_weights(with_head(4), plain)


@pytest.mark.slow
def test_the_head_that_predicts_tokens_comes_along_where_both_stages_have_one(
    other: str, files: dict[str, str], tmp_path: Path
) -> None:
    def masked() -> ContrastiveModule:
        objectives = {"c": Contrastive(), "mlm": MaskedLM()}
        return tiny.module(other, views={"anchor": [MaskTokens()]}, objectives=objectives)

    first = masked()
    file = trained(first, files["texts"], tmp_path / "first.ckpt")
    first.sentence_encoder().save_pretrained(tmp_path / "model")  # a saved model has it too
    saved = weights(file)
    for path in (file, tmp_path / "model"):
        second = masked()
        assert "loaded: encoder, token head" in load_initial_weights(second, path)
        names = [name for name in second.state_dict() if name.startswith("encoder.token_head.")]
        assert names
        assert all(torch.equal(second.state_dict()[name], saved[name]) for name in names)
        assert "left out of it: token head" in load_initial_weights(tiny.module(other), path)


@pytest.mark.slow
def test_a_learned_vocabulary_comes_along_and_no_other_is_learned(files: dict[str, str], tmp_path: Path) -> None:
    others = tiny.write_texts(tmp_path / "others.txt", tuple(text.replace("a", "o") for text in tiny.TEXTS))
    first, module = (ContrastiveModule(TransformerEncoder(config=tiny.CONFIG)) for _ in range(2))
    file = trained(first, files["texts"], tmp_path / "first.ckpt")
    assert "loaded: encoder, its vocabulary" in load_initial_weights(module, file)
    second = trained(module, others, tmp_path / "second.ckpt")
    assert first.encoder.tokenizer is not None and module.encoder.tokenizer is not None
    assert module.encoder.tokenizer.get_vocab() == first.encoder.tokenizer.get_vocab()
    assert "tokenizer" in torch.load(second, weights_only=True)


# What is refused


@pytest.mark.slow
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


@pytest.mark.slow
def test_heads_of_other_classes_and_shapes_are_refused(other: str, sst: str, tmp_path: Path) -> None:
    def kinds(*names: str, width: int | None = None) -> ContrastiveModule:
        head = None if width is None else MLPHead(hidden_features=width, out_features=2)
        return tiny.module(other, objectives={"kind": TextClassification(list(names), head=head)})

    path = trained(kinds("good", "bad"), sst, tmp_path / "first.ckpt")
    load_initial_weights(kinds("good", "bad"), path, keep_heads=True)
    load_initial_weights(kinds("bad", "good"), path)
    with pytest.raises(ValueError, match=r"classes of objective kind in .* \('good', 'bad'\), got \('b"):
        load_initial_weights(kinds("bad", "good"), path, keep_heads=True)
    with pytest.raises(ValueError, match="only one of the two has"):
        load_initial_weights(kinds("good", "bad", width=5), path, keep_heads=True)


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


@pytest.mark.slow
def test_two_sources_of_weights_and_other_commands_are_answered(
    shell: Shell, finished: dict[str, str], second: str
) -> None:
    both = "--init_from FOLDER --ckpt_path CHECKPOINT --trainer.accelerator cpu"
    assert "--init_from: expected no --init_from with --ckpt_path" in shell.refused(f"fit {both}")
    assert "--init_from: expected it with fit, got it with test" in shell.refused(f"test {both}")
    said = shell.refused(f"{second} --keep_heads")
    assert "--keep_heads: expected it with --init_from, got it alone" in said
    said = shell.refused(f"{second} --init_from {Path(finished['folder']).parent}")
    assert f"got a folder of runs ({finished['folder']}); name one of them" in said


def test_another_architecture_width_or_vocabulary_is_refused_by_name(
    finished: dict[str, str], tmp_path: Path
) -> None:
    def refused(said: str, module: ContrastiveModule) -> None:
        with pytest.raises(ValueError, match=said):
            load_initial_weights(module, finished["folder"])

    def saved(name: str, *texts: tuple[str, ...], **changes: int) -> ContrastiveModule:
        return tiny.module(tiny.save_bert(tmp_path / name, *texts, **changes))

    wide, deep = saved("wide", hidden_size=32), saved("deep", num_hidden_layers=3)
    refused(r"expected encoder\.model\..* of shape \(\d+, 32\), got \(\d+, 16\)", wide)
    refused(r"only one of the two has \(encoder\.model\.encoder\.layer\.2\.", deep)
    shuffled = saved("shuffled", tuple(reversed(tiny.TEXTS)))
    assert load_initial_weights(shuffled, finished["folder"])  # the same vocabulary, wherever it lies
    foreign = saved("foreign", tuple(text.replace("a", "o") for text in tiny.TEXTS))
    refused("expected the vocabulary that the weights were trained with", foreign)
    new = ContrastiveModule(TransformerEncoder(config=tiny.CONFIG))
    refused(r"expected a tokenizer .* set --model.encoder.tokenizer_name_or_path", new)


def test_a_token_that_only_one_stage_s_views_add_is_refused_with_what_to_do(
    files: dict[str, str], tmp_path: Path
) -> None:
    entries = len(tiny.module(files["bert"]).encoder.tokenizer)
    exact = tiny.save_bert(tmp_path / "exact", vocab_size=entries)
    plain = trained(tiny.module(exact), files["texts"], tmp_path / "plain.ckpt")
    marked = tiny.module(exact, views={"anchor": [DeleteTokens(mark="[DEL]")]})
    with pytest.raises(ValueError, match=rf"of shape \({entries + 1}, 16\), got \({entries}, 16\).*add tokens"):
        load_initial_weights(marked, plain)
