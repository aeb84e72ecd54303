"""Validation by ranking: figures of the model in use, over ranks, bounded, for the best checkpoint."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import tiny
import torch
from processes import of_two_ranks
from retrieval_files import write_beir

from contrastive_text.data import RetrievalSet, read_beir
from contrastive_text.data.retrieval import Retrieval
from contrastive_text.data.run_tables import PlainLoaders, RunTables
from contrastive_text.evaluation import CachedEncoder, score_retrieval
from contrastive_text.metrics import FIGURES
from contrastive_text.training.callbacks import BestCheckpoint
from contrastive_text.training.callbacks.run_summary import RunSummary
from contrastive_text.training.held_out import HeldOutScores
from contrastive_text.training.module import ContrastiveModule


def write_set(folder: Path, documents: int = 30) -> Path:
    """Writes a set of the tiny texts: seven queries, of which each has one or two documents of another text."""
    texts = {f"d{number:02}": ("", tiny.TEXTS[number]) for number in range(documents)}
    queries = {f"q{number}": tiny.TEXTS[39 - number] for number in range(7)}
    judged = [(f"q{number}", f"d{number * step % 7:02}", 1) for number in range(7) for step in (1, 3)]
    return write_beir(folder, texts, queries, sorted(set(judged)))


def module_of(bert: str) -> ContrastiveModule:
    torch.manual_seed(0)
    return ContrastiveModule.from_recipe("simcse", bert)


def expected_of(module: ContrastiveModule, data: RetrievalSet) -> dict[str, float]:
    """The figures by the road of ``evaluate``."""
    (score,) = score_retrieval(CachedEncoder(module.sentence_encoder()), {"set": data})
    return {FIGURES[0]: score.score, **score.parts}


def test_a_run_is_validated_by_ranking_and_keeps_the_best(bert: str, tmp_path: Path) -> None:
    write_set(tmp_path / "small")
    pairs = tmp_path / "mine.tsv"
    rows = [("searched", "answer"), *zip(tiny.TEXTS[:6], tiny.TEXTS[3:9], strict=True)]
    pairs.write_text("".join(f"{query}\t{answer}\n" for query, answer in rows))
    module, best, summary = module_of(bert), BestCheckpoint(dirpath=str(tmp_path / "best")), RunSummary()
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
    assert {f"val/{name}/{figure}" for name in ("small", "mine") for figure in FIGURES} < found.keys()
    assert best.monitor == "val/ndcg@10"
    assert found["val/ndcg@10"] == pytest.approx((found["val/small/ndcg@10"] + found["val/mine/ndcg@10"]) / 2)
    checked = expected_of(module, read_beir(tmp_path / "small", "test").bounded(20))
    assert {name: found[f"val/small/{name}"] for name in FIGURES} == pytest.approx(checked, abs=1e-4)
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


def scores_over(module: ContrastiveModule, folder: str, most: int | None = None) -> HeldOutScores:
    """Returns the scores of a set after so many batches of each loader."""
    tables = RunTables({}, False, {}, None, retrieval=Retrieval(folder))
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
    scores = scores_over(module_of(bert).eval(), str(write_set(tmp_path / "small")), most=2)
    assert scores.figures(partial=True) == {}
    with pytest.raises(ValueError, match="limit_val_batches: expected all 7 queries and 30 documents of small"):
        scores.figures()


def ranked(rank: int, bert: str, folder: str) -> dict[str, torch.Tensor]:
    """Returns the figures of a set of which each rank has encoded a part."""
    del rank
    return scores_over(module_of(bert).eval(), folder).figures()


@pytest.mark.slow  # two processes that import torch
def test_two_ranks_have_the_figures_of_one(bert: str, tmp_path: Path) -> None:
    folder = str(write_set(tmp_path / "small"))
    one = ranked(0, bert, folder)
    for each in of_two_ranks(ranked, tmp_path, bert, folder):
        assert {name: float(each[name]) for name in one} == pytest.approx(
            {name: float(figure) for name, figure in one.items()}, abs=1e-4
        )
