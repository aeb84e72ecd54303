"""From a corpus to a vocabulary of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.errors import InvalidValueError

_SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def learn_vocabulary(
    texts: Iterable[str], vocabulary_size: int, new_tokens: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Learns a lower-casing WordPiece vocabulary from a corpus, laid out as BERT's.

    The same corpus gives the same vocabulary in every process.

    Args:
        texts: The corpus.
        vocabulary_size: Largest number of entries, the five special tokens included.
        new_tokens: More special tokens, such as ``[DEL]``.

    Raises:
        ValueError: A size that the characters alone exceed.

    Returns:
        A tokenizer that puts [CLS] before and [SEP] after a text, and another [SEP] after a second one, whose
        tokens have type 1.

    Example:
        >>> tokenizer = learn_vocabulary(["a bird sings", "a bird flies"], vocabulary_size=40)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("Bird").input_ids)
        ['[CLS]', 'bird', '[SEP]']
    """
    specials = [*_SPECIALS.values(), *new_tokens]
    normalizer, words = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    corpus = list(texts)
    counts = Counter(
        character
        for text in corpus
        for word, _ in words.pre_tokenize_str(normalizer.normalize_str(text))
        for character in word
    )
    # WordPiece keeps its whole alphabet, each character twice (at the start of a word and inside one).
    room = max((vocabulary_size - len(specials)) // 3, 1)
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:room])
    # The trainer numbers what is inside a word in the order of a hash map, different in every process, and breaks
    # ties by number: as special tokens they are numbered here.
    numbered = [*specials, *alphabet, *(f"##{character}" for character in alphabet)]
    learning = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learning.normalizer, learning.pre_tokenizer = normalizer, words
    learning.train_from_iterator(
        corpus,
        trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=numbered,
            show_progress=False,
        ),
    )
    tokenizer = Tokenizer(models.WordPiece(learning.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    tokenizer.add_special_tokens(specials)
    if tokenizer.get_vocab_size() > vocabulary_size:
        raise InvalidValueError(
            f"encoder.config.vocab_size: expected room for the corpus's characters, at least "
            f"{tokenizer.get_vocab_size()}, got {vocabulary_size}; give a larger vocab_size"
        )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return wrap_tokenizer(tokenizer.to_str())


def wrap_tokenizer(description: str) -> PreTrainedTokenizerFast:
    """Returns a learned tokenizer from its JSON, as a checkpoint keeps it."""
    tokenizer = Tokenizer.from_str(description)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIALS)  # type: ignore[no-untyped-call]  # theirs
