"""Small inputs of some parts: a file of synonyms, a masked language model, an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch, Hidden
from contrastive_text.core.libraries import silence_transformers
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.packing import token_mask

SYNONYMS = {"man": ("bloke", "chap"), "hard": ("solid", "stiff"), "hat": ("helmet", "lid"), "street": ("road",)}
FITTING = {
    "a": ("the", "one"),
    "man": ("woman", "boy"),
    "with": ("in", "without"),
    "hard": ("yellow", "red"),
    "hat": ("helmet", "suit"),
    "is": ("was", "keeps"),
    "dancing": ("walking", "standing"),
    "in": ("near", "on"),
    "the": ("our", "that"),
    "street": ("garden", "park"),
}
"""Words that fit where a word of the sentence stood."""


def synonym_file(folder: Path) -> str:
    """Writes a file of synonyms; gives its name."""
    path = folder / "synonyms.tsv"
    lines = ["word\tsynonyms", *(f"{word}\t{'|'.join(others)}" for word, others in SYNONYMS.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def written_file(folder: Path, text: str) -> str:
    """Writes a file with a paraphrase of a text; gives its name."""
    path = folder / "paraphrases.tsv"
    words = text.split()
    other = " ".join(["somewhere", *words[:2], "is", "seen", *words[2:]])
    path.write_text(f"text\talternative\n{text}\t{other}\n", encoding="utf-8")
    return str(path)


def masked_lm(folder: Path, words: Sequence[str], fitting: Mapping[str, Iterable[str]] = FITTING) -> str:
    """Saves a BERT without blocks that expects certain words at each place; gives the folder's name.

    Args:
        folder: Where to save it.
        words: The sentence.
        fitting: Word of the sentence -> what the model expects where it stands.
    """
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = list(dict.fromkeys([*specials, *words, *(word for each in fitting.values() for word in each)]))
    tokenizer = Tokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", mask_token="[MASK]")  # type: ignore[no-untyped-call]  # theirs
    wrapped.save_pretrained(folder)
    width = len(words) + 5
    config = BertConfig(
        vocab_size=len(entries), hidden_size=width, num_hidden_layers=0, num_attention_heads=1,
        intermediate_size=1, max_position_embeddings=width, tie_word_embeddings=False,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    head = model.cls.predictions
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in (model.bert.embeddings.LayerNorm, head.transform.LayerNorm):
            norm.weight.fill_(1)
        for table in (model.bert.embeddings.position_embeddings, head.transform.dense):
            table.weight.copy_(torch.eye(width))
        for place, word in enumerate(words):
            head.decoder.weight[[entries.index(other) for other in fitting[word]], place] = 5
    with silence_transformers():
        model.save_pretrained(folder)
    return str(folder)


class Noisy(Encoder):
    """An encoder that is one layer of dropout, and keeps what it has given."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.seen: list[Tensor] = []

    def forward(
        self,
        batch: Batch,
        alter: EmbeddingChange | None = None,  # noqa: ARG002  # the signature of Encoder
        layers: tuple[int, ...] = (-1,),  # noqa: ARG002
    ) -> Hidden:
        """Returns the same vectors for each text, under dropout."""
        mask = token_mask(batch.lengths)
        vectors = RowRandom(torch.ones(len(batch), dtype=torch.long)).randn(mask.shape[1], self.features)
        # By rand, because the bits of torch's own dropout differ between processors.
        hidden = vectors.masked_fill(torch.rand_like(vectors) < 0.2, 0.0)
        self.seen += list(hidden)
        return Hidden({-1: hidden}, mask)
