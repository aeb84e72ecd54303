"""The vector of a template alone, at the places that it has around a text, against the authors' way to it."""

from __future__ import annotations

from pathlib import Path

import architectures
import pytest
import tiny
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.data.batching import collate_texts
from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.base import Embedder, with_templates
from contrastive_text.inference.model_parts import with_pooler
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import vectors_by_pooler
from contrastive_text.poolers import MaskTokenPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import MaskTokens

TEMPLATES = Prompts({"one": 'the old "{text}" sings [MASK].', "two": "a [MASK] {text} dog"}, "one", apart=True)
TEXTS = ("", "a bird", "a dog", "the old dog sings", "a tall man", "bird")
EQUAL = 1e-5
"""Other kernels add in another order; vectors have entries of size 1."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


def batch_of(model: SentenceEncoder, names: tuple[str, ...] = ("one", "two")) -> Batch:
    """The texts in each template, one after another."""
    framed = [
        text
        for name in names
        for text in model.tokenizer.tokenize_with_template(
            TEXTS, model.prompts.template(model.prompts.named[name], model.tokenizer)
        )
    ]
    return collate_texts(model.tokenizer, framed)


def their_way(model: SentenceEncoder, batch: Batch) -> Tensor:
    """Their get_delta, row by row: the template's ids, places behind the slot shifted by the text's length."""
    encoder, vectors = model.encoder, []
    assert batch.template_lengths is not None and encoder.tokenizer is not None
    for ids, (before, after) in zip(
        torch.split(batch.ids, batch.lengths.tolist()), batch.template_lengths.tolist(), strict=True
    ):
        length = len(ids) - before - after
        alone = torch.cat([ids[:before], ids[len(ids) - after :]])[None]
        places = torch.arange(before + after)[None]
        places[:, before:] += length
        both = []
        for row, position in ((ids[None], torch.arange(len(ids))[None]), (alone, places)):
            hidden = encoder.model(input_ids=row, position_ids=position + encoder._first_position)
            both.append(hidden.last_hidden_state[row == encoder.tokenizer.mask_token_id][0])
        vectors.append(both[0] - both[1])
    return torch.stack(vectors)


@pytest.mark.parametrize("layout", ["padded", "bucketed", "packed"])
def test_it_is_taken_off_as_by_the_authors_in_every_layout_and_chunk(bert: str, layout: str) -> None:
    encoder = TransformerEncoder(bert, layout=layout)  # type: ignore[arg-type]  # one of them
    model = SentenceEncoder(encoder, MaskTokenPooler(template_bias=True), prompts=TEMPLATES).eval()
    batch = batch_of(model)
    expected = their_way(model, batch)
    for chunk_tokens in (None, 20):
        found = Embedder(encoder, model.pooler, chunk_tokens=chunk_tokens).pool(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=EQUAL)
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(model.encode(TEXTS)), expected[: len(TEXTS)], rtol=0, atol=EQUAL)
    plain = SentenceEncoder(encoder, MaskTokenPooler(), prompts=TEMPLATES)
    assert plain.identity != model.identity
    assert (torch.tensor(plain.encode(TEXTS)) - expected[: len(TEXTS)]).abs().max() > 0.1


def other(architecture: str, bert: str) -> TransformerEncoder:
    """Another architecture with the same tokenizer."""
    config = {**architectures.CONFIGS[architecture], "vocab_size": 300, "initializer_range": 0.3}
    return TransformerEncoder(config=config, tokenizer_name_or_path=bert)


def test_it_is_taken_off_at_the_text_s_own_places_where_they_begin_late(bert: str) -> None:
    encoder = other("roberta", bert)
    assert encoder._first_position == 2
    model = SentenceEncoder(encoder, MaskTokenPooler(template_bias=True), prompts=TEMPLATES).eval()
    batch = batch_of(model)
    torch.testing.assert_close(model(batch), their_way(model, batch), rtol=0, atol=EQUAL)


def test_there_is_one_row_and_one_dropout_mask_for_a_template_and_a_length(bert: str) -> None:
    encoder = TransformerEncoder(bert).train()
    model = SentenceEncoder(encoder, MaskTokenPooler(template_bias=True), prompts=TEMPLATES)
    batch = batch_of(model)
    whole, template_of = with_templates(batch)
    lengths = [len(ids) for ids in model.tokenizer.ids(TEXTS)]
    assert lengths[1] == lengths[2]
    assert template_of[1] == template_of[2] != template_of[3]
    assert len(whole) - len(batch) == 2 * len(set(lengths)) == len(template_of.unique())
    assert whole.row_slots[len(batch) :].tolist() == [-1] * (len(whole) - len(batch))
    # By a pooler that gives zeros for the texts, what is left is the templates' own.
    vectors = Embedder(encoder, _TemplatesAlone(len(batch))).pool(batch)
    assert torch.equal(vectors[1], vectors[2])
    assert not torch.equal(vectors[1], vectors[3])
    vectors.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in _attention(encoder))


class _TemplatesAlone(MaskTokenPooler):
    def __init__(self, texts: int) -> None:
        super().__init__(template_bias=True)
        self.left = texts

    def forward(self, hidden):  # type: ignore[no-untyped-def]  # as the base's
        """Returns zeros for the first rows that are asked for."""
        pooled = super().forward(hidden)
        zeros = min(self.left, len(pooled))
        self.left -= zeros
        return torch.cat([torch.zeros_like(pooled[:zeros]), pooled[zeros:]])


def _attention(encoder: TransformerEncoder) -> list[Tensor]:
    return [weight for name, weight in encoder.named_parameters() if "query.weight" in name]


def test_without_a_template_or_places_it_is_refused(bert: str, tmp_path: Path) -> None:
    model = SentenceEncoder(TransformerEncoder(bert), MaskTokenPooler(template_bias=True))
    with pytest.raises(ValueError, match="expected a template around texts, got texts without one"):
        model.encode("a [MASK]")
    model.prompts = TEMPLATES
    with pytest.raises(ValueError, match="without template_bias to read one pass with several"):
        vectors_by_pooler(model, ["MaskTokenPooler(template_bias=true)", "MeanPooler"], ["a"])
    deberta = other("deberta-v2", bert)
    parts = SentenceEncoder(deberta, MaskTokenPooler(), prompts=TEMPLATES).parts
    expected = r"MaskTokenPooler\.template_bias: expected an architecture that reads positions"
    with pytest.raises(ValueError, match=expected):
        with_pooler(parts, "MaskTokenPooler(template_bias=true)", "deberta")
    texts = tiny.write_texts(tmp_path / "texts.txt")
    for refusing, options in (
        (expected, {"encoder": deberta, "pooler": MaskTokenPooler(template_bias=True)}),
        (r"model\.views\.anchor\[0\]: expected no view that hides tokens with MaskTokenPooler",
         {"encoder": TransformerEncoder(bert), "pooler": MaskTokenPooler(), "views": {"anchor": [MaskTokens()]}}),
    ):  # fmt: skip
        module = ContrastiveModule(prompts=Prompts({"default": TEMPLATES.text()}), **options)
        with pytest.raises(ValueError, match=refusing):
            tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(texts))
