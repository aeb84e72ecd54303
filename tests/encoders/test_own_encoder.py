"""The encoder of docs/own_encoder.md: one gradient, views of its own slot, a checkpoint."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import tiny
import torch
from architectures import ROWS, ragged
from torch import Tensor

from contrastive_text.encoders import Encoder
from contrastive_text.objectives import MaskedLM
from contrastive_text.training import BestCheckpoint, ContrastiveModule, ExportModel
from contrastive_text.views import EmbeddingView, FeatureCutoff, MaskTokens, ShufflePositions

PAGE = (Path(__file__).parents[2] / "docs" / "own_encoder.md").read_text(encoding="utf-8")


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    block = re.search(r"^```python\n# my_encoders.py\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert block and len(block[1].splitlines()) <= 40
    (tmp_path / "own_encoders.py").write_text(block[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_encoders", raising=False)
    torch.manual_seed(0)
    own: Encoder = importlib.import_module("own_encoders").GRUEncoder(
        tiny.save_bert(tmp_path / "bert"), features=8, dropout=0.0
    )
    return own


def encoded(
    encoder: Encoder, view: EmbeddingView | None, chunk_tokens: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Returns the vectors of three pairs, and the gradient of their squares."""
    module = ContrastiveModule(encoder, views={"positive": [view] if view else []}, chunk_tokens=chunk_tokens)
    vectors = module.double().encode(ragged(*ROWS)).embeddings
    gradients = torch.autograd.grad(vectors.pow(3).sum(), list(encoder.parameters()))
    return vectors, list(gradients)


def test_chunks_give_the_gradient_of_the_whole_batch(encoder: Encoder) -> None:
    (whole, expected), (parts, reached) = (encoded(encoder, FeatureCutoff(0.5), bound) for bound in (None, 6))
    # float64: sums in another order
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    torch.testing.assert_close(reached, expected, rtol=0, atol=1e-10 * scale)


def test_a_view_of_embeddings_alters_its_own_slot(encoder: Encoder) -> None:
    (plain, _), (altered, _) = (encoded(encoder, view, None) for view in (None, FeatureCutoff(0.5)))
    torch.testing.assert_close(altered[:3], plain[:3], rtol=0, atol=1e-12)
    assert float((altered - plain)[3:].detach().abs().amax(dim=1).min()) > 1e-3


def test_what_it_lacks_is_refused_when_the_module_is_built(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"views\.positive\[0\]: .*GRUEncoder"):
        ContrastiveModule(encoder, views={"positive": [ShufflePositions()]})
    with pytest.raises(ValueError, match=r"GRUEncoder: expected a network with a masked-language-model head"):
        ContrastiveModule(encoder, views={"anchor": [MaskTokens()]}, objectives={"mlm": MaskedLM()})


def test_a_checkpoint_holds_it_and_the_start_of_a_run_says_that_no_folder_does(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny.trainer(tmp_path, enable_checkpointing=True, callbacks=[BestCheckpoint(), ExportModel()])
    module = ContrastiveModule(encoder)
    trainer.fit(module, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    assert "No model folder will be written:" in capsys.readouterr().out
    assert {path.parent.name for path in tmp_path.rglob("*.safetensors")} == {"bert"}
    (path,) = tmp_path.rglob("*.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(path, trust=["own_encoders"])
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ragged(*ROWS)), module.eval()(ragged(*ROWS)))
