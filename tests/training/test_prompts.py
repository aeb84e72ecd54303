"""Prompts of a run: the same strings in training, validation, checkpoint, saved model and scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from contrastive_text import ContrastiveModule, SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.sts import evaluate_pairs
from contrastive_text.pairings import Given
from contrastive_text.poolers import MeanPooler
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.run import Run
from contrastive_text.training.stored_module import check_resumed

NAMED = {"query": "an old bird ", "document": "the tall man "}


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [True, False])
def test_a_run_reads_the_same_prompts_everywhere(tmp_path: Path, pooled: bool) -> None:
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    run = Run.from_recipe(
        "simcse",
        train=tiny.write_triples(tmp_path / "triples.jsonl"), pairing=Given(), validation=pairs, batch_size=8,
        num_workers=0, prompts=Prompts(NAMED, pooled=pooled), pooler=MeanPooler(), head=None,
        config={"model.encoder.model_name_or_path": tiny.save_bert(tmp_path / "bert")},
        accelerator="cpu", max_steps=2, val_check_interval=1.0, default_root_dir=str(tmp_path / "runs"),
        enable_progress_bar=False,
    )  # fmt: skip
    run.fit()
    place = tmp_path / "runs" / "version_0"
    (checkpoint,) = (place / "checkpoints").iterdir()
    module = ContrastiveModule.load_from_checkpoint(checkpoint, map_location="cpu").eval()
    saved = SentenceEncoder.from_pretrained(place / "model", device="cpu")
    assert module.by_task.prompts == saved.prompts == Prompts(NAMED, "query", pooled)
    assert model_facts(module)["prompts"].startswith("query: 'an old bird '; document: 'the tall man '; other")

    # a batch of training, encoded by the trained module, has the vectors of the saved model
    data = run.data
    batch = next(iter(data.train_dataloader()))
    with torch.no_grad():
        found = module(batch).reshape(3, 8, -1)
    decode = module.encoder.tokenizer.decode  # type: ignore[union-attr]  # loaded
    texts = [decode(row.tolist()[1:-1]) for row in torch.split(batch.ids, batch.lengths.tolist())]
    assert all(text.startswith("an old bird") for text in texts[:8])
    anchors = [row["anchor"] for row in data.table("train")["train"]]
    others = [row[name] for name in ("positive", "negative") for row in data.table("train")["train"]]
    queries, documents = saved.encode_query(anchors), saved.encode_document(others)
    for vectors, known in ((found[0], queries), (found[1:].flatten(0, 1), documents)):
        apart = (vectors.unsqueeze(1) - torch.as_tensor(known)).abs().amax(dim=2)
        assert float(apart.min(dim=1).values.max()) < 1e-5

    # a run goes on with its prompts alone
    kept = torch.load(checkpoint, weights_only=True)
    check_resumed(kept, run.trainer, module.by_task.prompts)
    for changed in (Prompts(), Prompts({**NAMED, "query": "a "}, pooled=pooled).with_training_defaults()):
        with pytest.raises(ValueError, match=r"model.prompts: expected the prompts .*'an old bird '.* got "):
            check_resumed(kept, run.trainer, changed)

    # validation, and evaluate on the same file
    (scores,) = run.trainer.validate(module, data, verbose=False)
    (whole, *_) = evaluate_pairs(saved, read_pairs(pairs))
    assert scores["val/spearman"] == pytest.approx(whole.spearman, abs=1e-4)
    theirs = pytest.importorskip("sentence_transformers", reason="needs the dev extra")
    peer = theirs.SentenceTransformer(str(place / "model"), device="cpu")
    np.testing.assert_allclose(peer.encode_query(anchors), queries, rtol=0, atol=1e-5)
    np.testing.assert_allclose(peer.encode_document(others), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(peer.encode(anchors), saved.encode(anchors), rtol=0, atol=1e-5)
