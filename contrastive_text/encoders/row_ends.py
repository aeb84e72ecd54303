"""What stands at the end of each row: tokenizers of decoders put nothing there, and a pooler may read it."""

from __future__ import annotations

from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.errors import InvalidValueError


def end_rows(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Puts a tokenizer's end token after each text, where it puts no special token there.

    Its vector has seen the whole text, whatever word that ends with. Source: Wang et al. 2024, "Improving Text
    Embeddings with Large Language Models" (https://arxiv.org/abs/2401.00368), section 3.2. It becomes a step of
    the tokenizer's post-processor, which ``tokenizer.json`` holds: whatever loads a saved model has these tokens.

    Args:
        tokenizer: A fast tokenizer, which is changed.

    Returns:
        The end token; None where rows end with a special token already.

    Raises:
        ValueError: A tokenizer without an end token, or one that doesn't take the step.

    Example:
        >>> from contrastive_text.data import learn_vocabulary
        >>> tokenizer = learn_vocabulary(["a bird sings"], 40)
        >>> end_rows(tokenizer) is None  # [SEP] stands there
        True
        >>> tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
        >>> tokenizer.eos_token = "[SEP]"
        >>> end_rows(tokenizer), tokenizer.tokenize("a bird", add_special_tokens=True)
        ('[SEP]', ['a', 'bird', '[SEP]'])
    """
    ids, texts = _row(tokenizer)
    if texts[-1] is None:
        return None
    end: str | None = tokenizer.eos_token
    if end is None:
        raise InvalidValueError(
            "encoder.append_eos: expected a tokenizer with an end token for rows to end with, got none; set "
            "eos_token in its tokenizer_config.json, or append_eos: false to read the last token of texts"
        )
    begin = tokenizer.convert_ids_to_tokens(ids[: texts.index(0)])
    backend = tokenizer.backend_tokenizer
    template = processors.TemplateProcessing(
        single=[*begin, "$A", end],
        pair=[*begin, "$A", end, *(f"{token}:1" for token in begin), "$B:1", f"{end}:1"],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin, end}],
    )
    # Two templates in a sequence know nothing of each other: the tokenizer's own is written anew.
    own = backend.post_processor
    parts = list(own) if isinstance(own, processors.Sequence) else [own]  # type: ignore[call-overload]  # it has items
    kept = [part for part in parts if isinstance(part, processors.ByteLevel)]
    backend.post_processor = processors.Sequence([*kept, template]) if kept else template
    if _row(tokenizer)[0] != [*ids, tokenizer.eos_token_id]:
        raise InvalidValueError(
            f"encoder.append_eos: expected a tokenizer that can end rows with {end}, got "
            f"{type(tokenizer).__name__}, which doesn't; save it with such a post-processor, or set append_eos: "
            "false"
        )
    return end


def _row(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int | None]]:
    """Returns the ids of a short row, and of each whether it is of the text, 0, or special, None."""
    encoding = tokenizer("a", return_attention_mask=False)
    return encoding["input_ids"], encoding.sequence_ids(0)
