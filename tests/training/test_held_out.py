"""Validation by a loss on held-out rows and by ranking: to choose and to stop by, over ranks."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from processes import of_two_ranks
from pytorch_lightning.callbacks import EarlyStopping
from retrieval_files import write_beir

from contrastive_text.data import RetrievalSet, TextDataModule, TextTask, read_beir
from contrastive_text.data.retrieval import Retrieval
from contrastive_text.data.run_tables import PlainLoaders, RunTables
from contrastive_text.evaluation import CachedEncoder, score_retrieval
from contrastive_text.losses import InfoNCE
from contrastive_text.metrics import RETRIEVAL_METRICS
from contrastive_text.objectives import Contrastive, MaskedLM
from contrastive_text.pairings import Given, Spans
from contrastive_text.training.callbacks import BestCheckpoint
from contrastive_text.training.callbacks.run_summary import RunSummary
from contrastive_text.training.held_out import HeldOutScores
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.optim import AdamW
from contrastive_text.views import DeleteTokens, MaskTokens

# The loss of whole batches, without views and dropout


HELD_OUT = [
    {"anchor": tiny.TEXTS[i], "positive": tiny.TEXTS[i + 17], "negative": tiny.TEXTS[(i + 26) % 40]}
    for i in range(19)
]
"""Two batches of eight rows, in each of which all texts differ, and three more."""


def module_of(bert: str, **parts: Any) -> ContrastiveModule:
    """A module whose views and dropout would show in the loss."""
    torch.manual_seed(0)
    objectives = {"mlm": MaskedLM(), "pairs": Contrastive(InfoNCE(temperature=0.05))}
    views = {"anchor": [DeleteTokens(0.5), MaskTokens()]}
    return tiny.module(bert, dropout=0.3, **{"objectives": objectives, "views": views, **parts})


def data_of(folder: Path, **options: Any) -> TextDataModule:
    path = folder / "held_out.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in HELD_OUT))
    train = tiny.write_triples(folder / "train.jsonl")
    return tiny.data(train, **{"pairing": Given(), "held_out": str(path), **options})


def by_hand(module: ContrastiveModule) -> float:
    """The mean over the batches of InfoNCE of the vectors in use, each row against the texts of its batch."""
    encoder = module.sentence_encoder()
    losses = []
    for start in (0, 8):
        rows = HELD_OUT[start : start + 8]
        anchor, positive, negative = (
            torch.nn.functional.normalize(torch.as_tensor(encoder.encode([row[name] for row in rows])))
            for name in ("anchor", "positive", "negative")
        )
        logits = anchor @ torch.cat([positive, negative]).T / 0.05
        losses.append(torch.nn.functional.cross_entropy(logits, torch.arange(8)))
    return float(torch.stack(losses).mean())


def losses_over(module: ContrastiveModule, data: TextDataModule) -> dict[str, torch.Tensor]:
    """Returns the figures of a validation without a trainer."""
    data.set_module(module)
    data.setup("validate")
    loaders = data.val_dataloader()
    scores = HeldOutScores(loaders, module.by_task, torch.device("cpu"))
    module.eval()
    with torch.no_grad():
        for number, loader in enumerate(loaders):
            loader.order.set_epoch(3)  # as Lightning does; what is drawn doesn't follow
            for batch in loader:
                scores.add(batch, number, embed=module, embedder=module.embedder)
    return scores.figures()


def test_a_run_keeps_the_weights_of_the_lowest_loss_and_stops_by_it(bert: str, tmp_path: Path) -> None:
    # no loss falls by 1000: the first validation is the best, the third ends the run
    stop = EarlyStopping("val/pairs/loss", mode="min", patience=2, min_delta=1000)
    seen: list[float] = []

    class Seen(BestCheckpoint):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(float(trainer.callback_metrics["val/pairs/loss"]))
            super().on_validation_end(trainer, pl_module)

    best, summary = Seen(dirpath=str(tmp_path / "best")), RunSummary()
    module = module_of(bert, optimizer=AdamW(lr=1e-2))
    trainer = tiny.trainer(
        tmp_path, callbacks=[best, stop, summary], enable_checkpointing=True, max_steps=9, val_check_interval=1,
        check_val_every_n_epoch=None,
    )  # fmt: skip
    trainer.fit(module, data_of(tmp_path))
    assert trainer.global_step == len(seen) == 3 and len(set(seen)) == 3
    assert (best.monitor, best.mode) == ("val/pairs/loss", "min")
    assert float(best.best_model_score) == min(seen)
    assert seen[-1] == pytest.approx(by_hand(module), abs=1e-4)
    assert "val/mlm/loss" not in trainer.callback_metrics and "val/spearman" not in trainer.callback_metrics
    said = summary.facts["validation data"]
    assert "the loss of pairs is taken of 2 batches of 8 rows, 3 rows after them left out" in said
    assert "mlm has none without views" in said and "chosen by val/pairs/loss" in summary.facts["validated"]


def test_what_a_pairing_draws_and_a_small_file_are_the_same_each_time(bert: str, tmp_path: Path) -> None:
    module = module_of(bert, objectives={"pairs": Contrastive()}, views=None)
    whole = losses_over(module, data_of(tmp_path, batch_size=500))
    assert float(whole["pairs/loss"]) == float(
        losses_over(module, data_of(tmp_path, batch_size=19))["pairs/loss"]
    )
    documents = tiny.write_texts(
        tmp_path / "documents.txt", tuple(" ".join(tiny.TEXTS[i : i + 6]) for i in range(30))
    )
    spans = {"held_out": documents, "pairing": Spans(anchors=1, positives=1, max_length=4, min_length=2)}
    found = [losses_over(module, data_of(tmp_path, **spans, cache_dir=str(tmp_path))) for _ in range(2)]
    assert float(found[0]["pairs/loss"]) == float(found[1]["pairs/loss"])


def test_what_gives_no_loss_is_refused_before_training(bert: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data.task.held_out: expected an objective that reads unaltered texts, got mlm"
    ):
        losses_over(module_of(bert, objectives={"mlm": MaskedLM()}), data_of(tmp_path))
    with pytest.raises(ValueError, match=r"data.task.held_out: expected no option of one data set"):
        TextDataModule(task=TextTask(held_out="a.tsv"), tasks={"a": TextTask("b.tsv")})
    texts = tiny.write_texts(tmp_path / "texts.txt")
    with pytest.raises(ValueError, match="anchor"):
        losses_over(module_of(bert), data_of(tmp_path, held_out=texts))


def shared(rank: int, bert: str, folder: str) -> dict[str, torch.Tensor]:
    """Returns the loss on rows of which each rank has encoded a part."""
    own = Path(folder, f"of_{rank}")  # files that the other one doesn't write
    own.mkdir()
    return losses_over(module_of(bert), data_of(own))


@pytest.mark.slow  # two processes that import torch
def test_two_ranks_have_the_loss_of_one(bert: str, tmp_path: Path) -> None:
    one = losses_over(module_of(bert), data_of(tmp_path))
    for each in of_two_ranks(shared, tmp_path, bert, str(tmp_path)):
        assert float(each["pairs/loss"]) == pytest.approx(float(one["pairs/loss"]), abs=1e-5)


# Ranking: figures of the model in use, bounded


def write_set(folder: Path, documents: int = 30) -> Path:
    """Writes a set of the tiny texts: seven queries, of which each has one or two documents of another text."""
    texts = {f"d{number:02}": ("", tiny.TEXTS[number]) for number in range(documents)}
    queries = {f"q{number}": tiny.TEXTS[39 - number] for number in range(7)}
    judged = [(f"q{number}", f"d{number * step % 7:02}", 1) for number in range(7) for step in (1, 3)]
    return write_beir(folder, texts, queries, sorted(set(judged)))


def simcse_of(bert: str) -> ContrastiveModule:
    torch.manual_seed(0)
    return ContrastiveModule.from_recipe("simcse", bert)


def expected_of(module: ContrastiveModule, data: RetrievalSet) -> dict[str, float]:
    """The figures by the road of ``evaluate``."""
    (score,) = score_retrieval(CachedEncoder(module.sentence_encoder()), {"set": data})
    return {RETRIEVAL_METRICS[0]: score.score, **score.parts}


@pytest.mark.slow
def test_a_run_is_validated_by_ranking_and_keeps_the_best(bert: str, tmp_path: Path) -> None:
    write_set(tmp_path / "small")
    pairs = tmp_path / "mine.tsv"
    rows = [("searched", "answer"), *zip(tiny.TEXTS[:6], tiny.TEXTS[3:9], strict=True)]
    pairs.write_text("".join(f"{query}\t{answer}\n" for query, answer in rows))
    module, best, summary = simcse_of(bert), BestCheckpoint(dirpath=str(tmp_path / "best")), RunSummary()
    data = tiny.data(
        tiny.write_texts(tmp_path / "texts.txt"), eval_batch_size=4, retrieval=Retrieval(
            [str(tmp_path / "small"), str(pairs)], documents=20, columns={"anchor": "searched"},
            corpus=tiny.write_texts(tmp_path / "more.txt", tiny.TEXTS[20:]),
        ),
    )  # fmt: skip
    trainer = tiny.trainer(
        tmp_path, max_steps=1, val_check_interval=1, num_sanity_val_steps=1, callbacks=[best, summary],
        enable_checkpointing=True, check_val_every_n_epoch=None,
    )  # fmt: skip
    trainer.fit(module, data)
    found = {name: float(figure) for name, figure in trainer.callback_metrics.items() if name.startswith("val/")}
    assert {f"val/{name}/{figure}" for name in ("small", "mine") for figure in RETRIEVAL_METRICS} < found.keys()
    assert best.monitor == "val/ndcg@10"
    assert found["val/ndcg@10"] == pytest.approx((found["val/small/ndcg@10"] + found["val/mine/ndcg@10"]) / 2)
    checked = expected_of(module, read_beir(tmp_path / "small", "test").limit_documents(20))
    assert {name: found[f"val/small/{name}"] for name in RETRIEVAL_METRICS} == pytest.approx(checked, abs=1e-4)
    assert "20 documents of them ranked: 7 judged and 13 drawn" in summary.facts["validation data"]
    assert "chosen by val/ndcg@10" in summary.facts["validated"]
    assert set(torch.load(best.best_model_path)["callbacks"][best.state_key]["validated"]) == {"small", "mine"}


def test_names_and_bounds_are_checked(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_set(tmp_path / name / "small")
    one = str(tmp_path / "a/small")
    for options, taken, words in (
        (
            {"files": [one, str(tmp_path / "b/small")]},
            [],
            "folders and files of different names, got small twice",
        ),
        ({"files": one}, ["small"], "got small twice"),
        ({"files": one, "corpus": "more.txt"}, [], r"retrieval\.corpus: expected a file of pairs"),
        ({"files": one, "columns": {"anchor": "searched"}}, [], r"retrieval\.columns: expected a file of pairs"),
        ({"files": one, "documents": 0}, [], r"retrieval\.documents: expected 1 or more, got 0"),
        ({"files": str(tmp_path / "nowhere.tsv")}, [], "nowhere"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            Retrieval(**options).read(taken=taken)


def scores_over(
    module: ContrastiveModule, folder: str, most: int | None = None, pairs: str | None = None
) -> HeldOutScores:
    """Returns the scores of a set, and of a file of pairs, after so many batches of each loader."""
    tables = RunTables({}, False, {"validation": pairs}, None, retrieval=Retrieval(folder))
    tables.read("validation", {})
    tokenizer = module.text_tokenizer(training=False)
    assert tokenizer is not None
    loaders = PlainLoaders(tables, {}, tokenizer, batch_size=4, seed=0).scored("validation")
    scores = HeldOutScores(loaders, module.by_task, torch.device("cpu"))
    with torch.no_grad():
        for number, loader in enumerate(loaders):
            for batch in islice(loader, most):
                scores.add(batch, number, embed=module, embedder=module.embedder)
    return scores


def test_part_of_a_corpus_is_no_score(bert: str, tmp_path: Path) -> None:
    scores = scores_over(simcse_of(bert).eval(), str(write_set(tmp_path / "small")), most=2)
    assert scores.figures(partial=True) == {}
    with pytest.raises(ValueError, match="limit_val_batches: expected all 7 queries and 30 documents of small"):
        scores.figures()


def ranked(rank: int, bert: str, folder: str) -> dict[str, torch.Tensor]:
    """Returns the figures of a set of which each rank has encoded a part, and the values of its rows."""
    del rank
    scores = scores_over(simcse_of(bert).eval(), folder, pairs=f"{folder}/pairs.tsv")
    figures = scores.figures()
    rows = {
        f"{name} {part}": side.values for name, files in scores.rows().items() for part, side in files.items()
    }
    return figures | rows


@pytest.mark.slow  # two processes that import torch
def test_two_ranks_have_the_figures_of_one(bert: str, tmp_path: Path) -> None:
    folder = str(write_set(tmp_path / "small"))
    tiny.write_pairs(Path(folder, "pairs.tsv"))
    one = ranked(0, bert, folder)
    assert float(one["ndcg@10 small"].mean()) == pytest.approx(float(one["ndcg@10"]), abs=1e-4)
    (pairs,) = (values for name, values in one.items() if name.startswith("spearman "))
    assert len(pairs) > len(one["ndcg@10 small"]) == 7
    for each in of_two_ranks(ranked, tmp_path, bert, folder):
        for name, figure in one.items():
            torch.testing.assert_close(each[name], figure, atol=1e-4, rtol=0, check_dtype=False)
