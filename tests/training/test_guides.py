"""Guides: vectors of another model for a batch's texts as written, found by id or encoded beside."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from contrastive_text.core.batch import Encoded
from contrastive_text.data import Prompts
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import NTXent
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    FalseNegatives,
    Matryoshka,
    Objective,
    Queue,
    Siblings,
    Terms,
    VectorDistillation,
)
from contrastive_text.pairings import Given, OneSequence, Spans
from contrastive_text.poolers import MeanPooler
from contrastive_text.training import GuideFile, GuideModel
from contrastive_text.training.callbacks import RunSummary
from contrastive_text.training.guides import check_guides_at_start, check_same_guides, describe_guides
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, SwapWords

OLD_TEXTS = tuple(f"{text} today" for text in tiny.TEXTS)


class Follow(Objective):
    """Pulls cosines of anchor and positive to those that the guides have, and keeps what it read."""

    guides = ("file", "model")

    def __init__(self, task: str | None = None) -> None:
        super().__init__(task)
        self.seen: list[Encoded] = []

    def forward(self, encoded: Encoded) -> Terms:
        self.seen.append(encoded)
        (anchor, positive), wanted = (encoded.role(role)[:, 0] for role in ("anchor", "positive")), 0.0
        for name in self.guides:
            u, v = (encoded.role_guide(name, role)[:, 0] for role in ("anchor", "positive"))
            wanted = wanted + torch.cosine_similarity(u, v)
        found = torch.cosine_similarity(anchor, positive)
        return Terms((found - wanted / len(self.guides)).square().sum(), count=len(anchor))


class FollowFile(Follow):
    guides = ("file",)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    """A model with a tokenizer of its own, and a folder that says how it is read."""
    folder = tmp_path_factory.mktemp("teacher")
    bert = tiny.save_bert(folder / "bert", texts=OLD_TEXTS, seed=3, hidden_size=24)
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
    model.save_pretrained(folder / "model")
    return model


@pytest.fixture(scope="module")
def made(teacher: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Triples, the teacher's vectors of their texts, its folder, and a student."""
    folder = tmp_path_factory.mktemp("made")
    triples = tiny.write_triples(folder / "triples.jsonl")
    EmbeddingRun(teacher, TextStream(triples, distinct=True), folder / "teacher.npy", with_ids=True).finish()
    teacher.save_pretrained(folder / "teacher")
    return {
        "triples": triples,
        "file": str(folder / "teacher.npy"),
        "model": str(folder / "teacher"),
        "bert": tiny.save_bert(folder / "bert"),
    }


def module_of(made: dict[str, str], objective: Objective, **parts: Any) -> ContrastiveModule:
    guides = {"file": GuideFile(made["file"]), "model": GuideModel(made["model"])}
    guides = {name: guide for name, guide in guides.items() if name in objective.guides}
    return tiny.module(made["bert"], objectives={"follow": objective}, guides=guides, **parts)


def set_up(module: ContrastiveModule, train: Any, **options: Any) -> TextDataModule:
    data = tiny.data(train, **options)
    data.set_module(module)
    data.setup("fit")
    return data


def test_both_guides_give_the_vectors_of_texts_as_written(made: dict[str, str], teacher: SentenceEncoder) -> None:
    objective = Follow()
    views = {"anchor": [SwapWords(0.5), FeatureCutoff(0.2)]}
    module = module_of(made, objective, views=views, prompts=Prompts({"query": "an old "}), chunk_tokens=40)
    batch = next(iter(set_up(module, made["triples"], pairing=Given()).train_dataloader()))
    assert batch.texts is not None and batch.text_ids.ndim == 2
    asked: list[str] = []
    guide = module.by_task.guides["model"]
    assert isinstance(guide, GuideModel)
    encode = guide.model.encode
    guide.model.encode = lambda texts, **options: asked.extend(texts) or encode(texts, **options)  # type: ignore[method-assign]  # counts
    module.step_losses(batch)["follow"].backward()  # type: ignore[no-untyped-call]  # torch's
    (encoded,) = objective.seen
    assert len(encoded.slots) == 3
    expected = torch.as_tensor(teacher.encode(batch.texts))
    for name in ("file", "model"):
        torch.testing.assert_close(encoded.guides[name], expected, rtol=0, atol=1e-6)
        assert not encoded.guides[name].requires_grad
    assert asked == list(dict.fromkeys(batch.texts))  # each text once
    kept = batch.keep(batch.slots[1:])
    assert kept.texts == batch.texts[8:] and batch.to("cpu").texts == batch.texts
    assert batch.split(torch.tensor([5, 2])).texts == (batch.texts[5], batch.texts[2])


def test_a_run_neither_trains_nor_keeps_its_guides_but_knows_them_again(
    made: dict[str, str], tmp_path: Path
) -> None:
    module = module_of(made, Follow())
    held_out = tiny.write_triples(tmp_path / "held_out.jsonl")
    data = tiny.data(made["triples"], pairing=Given(), held_out=held_out)
    trainer = tiny.trainer(tmp_path, val_check_interval=2, limit_val_batches=1)
    trainer.fit(module, data)
    assert trainer.callback_metrics["val/follow/loss"] > 0
    names = [name for name, _ in module.named_parameters()]
    assert all(name.startswith("encoder.") for name in names)
    trainer.save_checkpoint(path := tmp_path / "kept.ckpt")
    kept = torch.load(path, weights_only=True)
    assert all(name.startswith("encoder.") for name in kept["state_dict"])
    guides = module.by_task.guides
    assert kept["guides"] == {name: guide.identity for name, guide in guides.items()}
    arguments = kept["hyper_parameters"]["guides"]["model"]
    assert arguments["class_path"] == "contrastive_text.training.GuideModel"
    assert arguments["init_args"] == {"folder": made["model"], "batch_size": 64}
    check_same_guides(guides, kept["guides"], path)
    other = r"model.guides.file: expected the guide with which the run of .* began \(x"
    with pytest.raises(ValueError, match=other):
        check_same_guides(guides, {**kept["guides"], "file": "x"}, path)
    # What is in use needs no guide: the file may be gone.
    kept["hyper_parameters"]["guides"]["file"]["init_args"]["path"] = "gone.npy"
    torch.save(kept, path)
    ContrastiveModule.load_from_checkpoint(path)


def test_a_text_without_a_vector_is_found_before_the_run_says_what_it_is(
    made: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(tiny.TEXTS[i], tiny.TEXTS[i + 8]) for i in range(23)] + [(tiny.TEXTS[23], "a new text")]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in [("anchor", "positive"), *rows]))
    module = module_of(made, FollowFile())
    with pytest.raises(ValueError, match=r"data.task: expected a vector in .*teacher.npy .* 'a new text'; embed"):
        tiny.trainer(tmp_path, callbacks=[RunSummary()]).fit(module, tiny.data(str(file), pairing=Given()))
    assert "What makes the result" not in capsys.readouterr().out


@pytest.mark.parametrize(("options", "said"), [
    ({"pairing": Spans(anchors=1, positives=1, min_length=2, max_length=3)}, "data.task.pairing: .* got Spans"),
    ({"join": 12}, "data.task.join: .* got texts that are joined; use GuideModel"),
    ({"pairing": OneSequence()}, "data.task.pairing: expected single texts for GuideFile.* set pairing: Given"),
])  # fmt: skip
def test_rows_that_are_no_texts_of_a_file_are_refused(
    made: dict[str, str], texts: str, options: dict[str, Any], said: str
) -> None:
    module = module_of(made, FollowFile())
    joins = isinstance(options.get("pairing"), OneSequence)
    data = set_up(module, made["triples"] if joins else texts, **options)
    with pytest.raises(ValueError, match=said):
        module.by_task.guides["file"].check(data.training.of())


def test_names_of_guides_and_their_width_are_checked_before_the_first_step(made: dict[str, str]) -> None:
    none = r"objectives.follow: expected one of the guides of the module \(none\), got file"
    with pytest.raises(ValueError, match=none):
        tiny.module(made["bert"], objectives={"follow": Follow()})
    idle = "model.guides.idle: expected an objective that reads this guide, got c; name the guide"
    with pytest.raises(ValueError, match=idle):
        tiny.module(made["bert"], objectives={"c": Contrastive()}, guides={"idle": GuideFile("v.npy")})
    guides, trainer = {"file": GuideFile(made["file"])}, tiny.trainer(Path())  # without data
    for width in (None, 24):
        distils = {"v": VectorDistillation("file", guide_features=width)}
        parts = tiny.module(made["bert"], objectives=distils, guides=guides).objective_parts()
        refused = pytest.raises(ValueError, match="expected 24, the width of the vectors of file, got 16")
        with refused if width is None else nullcontext():
            check_guides_at_start(guides, parts, trainer)


def test_a_guide_is_said_with_its_identity_and_one_that_is_not_there_with_its_option(
    made: dict[str, str],
) -> None:
    guide = GuideFile(made["file"])
    said = (
        f"file: GuideFile(path={made['file']!r}); 24 features; identity {guide.identity}, as a resumed run must"
    )
    assert describe_guides({"file": guide}).startswith(said)
    absent = r"model\.guides\.file: .*gone.* nothing|no such"
    for gone in (GuideFile("gone.npy"), GuideModel("gone/")):
        with pytest.raises((ValueError, FileNotFoundError), match=absent):
            check_guides_at_start({"file": gone}, {"follow": FollowFile()}, tiny.trainer(Path()))


@pytest.mark.parametrize(
    ("margin", "last", "refused"),
    [(0.0, tiny.TEXTS[8], True), (0.1, tiny.TEXTS[8], False), (0.0, tiny.TEXTS[9], False)],
)
def test_a_guide_that_would_remove_nothing_of_one_text_twice_is_refused(
    made: dict[str, str], margin: float, last: str, refused: bool
) -> None:
    columns = [Duplicates(), Siblings(), FalseNegatives("file", relative_margin=margin)]
    module = module_of(made, Matryoshka(Contrastive(columns=columns), dims=[16, 4]))
    pairs = [(text, text) for text in tiny.TEXTS[:8]] + [(tiny.TEXTS[8], last)]  # any early row may differ
    rows = [{"anchor": anchor, "positive": positive} for anchor, positive in pairs]
    with pytest.raises(ValueError, match="got one text twice") if refused else nullcontext():
        set_up(module, rows, pairing=Given())


def test_single_texts_are_refused_for_such_a_guide_and_a_batch_that_a_guide_can_not_read(
    made: dict[str, str],
) -> None:
    removes = module_of(made, Contrastive(columns=[Duplicates(), Siblings(), FalseNegatives("file")]))
    with pytest.raises(ValueError, match="pairing SameText: expected two texts for FalseNegatives without a"):
        set_up(removes, [{"text": text} for text in tiny.TEXTS])
    module = module_of(made, Follow())
    batch = next(iter(set_up(module, made["triples"], pairing=Given()).train_dataloader()))
    guides = module.by_task.guides
    with pytest.raises(ValueError, match=r"GuideModel\(.*: expected a batch with its texts, got a batch without"):
        guides["model"](batch.replace(texts=None))
    unknown = batch.replace(text_ids=torch.cat([batch.text_ids[:-1], torch.tensor([7])]))
    with pytest.raises(ValueError, match="every text of the batch, got no vector of 1 of its 24 rows"):
        guides["file"](unknown)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own
def test_a_resumed_run_ends_with_the_same_weights_and_past_vectors(made: dict[str, str], tmp_path: Path) -> None:
    def fit(name: str, resume: Path | None = None) -> dict[str, Any]:
        objective = Contrastive(
            NTXent(0.1), columns=[Duplicates(), Siblings(), Queue(25), FalseNegatives("file")]
        )
        module = module_of(made, objective, dropout=0.1, views={"positive": [SwapWords(0.3)]})
        keep = ModelCheckpoint(tmp_path / name, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        options = {"accumulate_grad_batches": 2, "enable_checkpointing": True, "callbacks": [keep]}
        trainer = tiny.trainer(tmp_path, max_steps=4, **options)
        trainer.fit(module, tiny.data(made["triples"], pairing=Given()), ckpt_path=resume, weights_only=True)
        return dict(module.state_dict())

    whole, again = fit("whole"), fit("again", resume=tmp_path / "whole" / "step=1.ckpt")
    name = "objectives.follow.column_modules.Queue._extra_state"
    past, same = whole.pop(name)["texts"], again.pop(name)["texts"]
    assert past["guide"].shape == (25, 24)
    assert all(torch.equal(past[kind], same[kind]) for kind in past)
    assert all(torch.equal(weight, again[name]) for name, weight in whole.items())
