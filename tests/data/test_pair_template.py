"""Two texts in one row: equal to Transformers' own tokenizers, cut alike, and encoded alike in every layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from tokenizers import processors
from transformers import BertModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import TextPair
from contrastive_text.data import TextTask
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.tokenizing import TextTokenizer, learn_vocabulary
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.packing import FixedLayout
from contrastive_text.objectives import TextClassification
from contrastive_text.pairings import OneSequence
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, View, ViewPlan

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


@pytest.mark.parametrize("layout", ["packed", "bucketed", "padded"])
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


def test_tokenizers_and_limits_that_cant_hold_two_texts_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"max_length: expected room for a token of each text beside the 3 .* got 4"
    ):
        _ = TextTokenizer(learned(), 4).pair_template
    joined = learned()
    joined.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    with pytest.raises(ValueError, match=r"pairing OneSequence: expected a tokenizer that puts special tokens"):
        _ = TextTokenizer(joined, None).pair_template


def run_on(folder: Path, views: dict[str, list[View]]) -> tuple[ContrastiveModule, TextDataModule]:
    """Returns a module and its data, set up, that classify pairs in one sequence of at most 16 tokens."""
    lines = ["sentence1\tsentence2\tlabel", *("\t".join([*pair, str(i % 2)]) for i, pair in enumerate(PAIRS))]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = TransformerEncoder(tiny.save_bert(folder / "bert"), max_length=16)
    module = ContrastiveModule(encoder, objectives={"pairs": TextClassification(2)}, views=views)
    data = TextDataModule(train=str(folder / "pairs.tsv"), task=TextTask(pairing=OneSequence()), batch_size=4)
    data.attach(module)
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
