"""A masked language model that tells which words fit into the gaps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import quiet
from contrastive_text.views.text import is_word

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.modeling_outputs import BaseModelOutput


class Gaps(NamedTuple):
    """A text in pieces, and a uniform draw for each piece to replace."""

    pieces: list[str]
    places: dict[int, float]


class Filler:
    """A masked language model, and the words that are one token of it."""

    def __init__(self, name: str, device: str) -> None:
        model, self._tokenizer = _load(name)
        self._model = model.to(device)  # type: ignore[arg-type]  # theirs; in eval mode, as it is loaded
        ids, self.words = _whole_words(self._tokenizer)
        self._ids = torch.tensor(ids, device=device)
        self._same: dict[tuple[int, ...], list[int]] = {}
        for column, word in enumerate(self._without_case(self.words)):
            self._same.setdefault(word, []).append(column)
        if len(self._same) < 2:
            raise InvalidValueError(
                "ContextualSubstitute.model_name_or_path: expected a vocabulary with words of letters, got "
                f"{len(ids)} of them in {name}"
            )
        # RoBERTa and its relatives keep two positions for padding; tokenizers without a limit have a huge one.
        positions = self._model.config.to_dict().get("max_position_embeddings") or 10**9
        limit = min(self._tokenizer.model_max_length, positions - 2)
        self._cut = {"truncation": True, "max_length": limit} if limit < 10**8 else {}

    def score(self, texts: Sequence[Gaps]) -> tuple[list[tuple[int, int]], Tensor]:
        """Returns the gaps within the length limit, and the score of each word in them.

        Returns:
            M gaps as (text, piece), and scores in float64 on the CPU, (M, words); a gap's own word has none.
        """
        mask = self._tokenizer.mask_token
        masked = [[mask if i in text.places else piece for i, piece in enumerate(text.pieces)] for text in texts]
        encoding = self._tokenizer(
            ["".join(pieces) for pieces in masked], padding=True, return_tensors="pt", **self._cut
        )
        starts = [list(accumulate(map(len, pieces), initial=0)) for pieces in masked]
        gaps = [(row, place) for row, text in enumerate(texts) for place in text.places]
        tokens = {gap: encoding.char_to_token(gap[0], starts[gap[0]][gap[1]]) for gap in gaps}
        gaps = [gap for gap in gaps if tokens[gap] is not None]
        where = torch.tensor([(row, tokens[row, place]) for row, place in gaps], dtype=torch.long).reshape(-1, 2)
        scores = self._logits(encoding, where)[:, self._ids].double().cpu()
        own = self._without_case([texts[row].pieces[place] for row, place in gaps])
        for i, word in enumerate(own):
            scores[i, self._same.get(word, [])] = -torch.inf
        return gaps, scores

    def _without_case(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns each word as the tokens of its lower-case form: equal for all that the model takes for one."""
        return _tokens(self._tokenizer, [word.lower() for word in words])

    def _logits(self, encoding: BatchEncoding, where: Tensor) -> Tensor:
        """Returns the head's scores at the given (row, token) only: all of them would take too much memory."""

        def keep_gaps(module: nn.Module, inputs: object, output: BaseModelOutput) -> BaseModelOutput:  # noqa: ARG001  # torch's signature
            assert output.last_hidden_state is not None
            output.last_hidden_state = output.last_hidden_state[tuple(where.T)].unsqueeze(0)
            return output

        hook = self._model.base_model.register_forward_hook(keep_gaps)
        try:
            with torch.inference_mode():
                logits: Tensor = self._model(**encoding.to(self._model.device)).logits
        finally:
            hook.remove()
        return logits.squeeze(0)


def check_architecture(name: str) -> None:
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

    try:
        architecture = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            "ContextualSubstitute.model_name_or_path: expected a model folder or a name on the Hugging Face hub, "
            f"got {name!r}: {first_line(error)}"
        ) from error
    if type(architecture) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise InvalidValueError(
            "ContextualSubstitute.model_name_or_path: expected an architecture with a masked-language-model "
            f"head, such as BERT's, got {architecture.model_type} in {name}"
        )


def _load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    with quiet():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model, report = AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    if lacking := sorted(report["missing_keys"]):
        raise InvalidValueError(
            "ContextualSubstitute.model_name_or_path: expected all weights of a masked language model, got "
            f"{name} without {len(lacking)} ({', '.join(lacking[:3])}, ...); its words would be random ones: use "
            "a checkpoint that was saved with its head"
        )
    if tokenizer.mask_token is None or not tokenizer.is_fast:
        raise InvalidValueError(
            f"ContextualSubstitute.model_name_or_path: expected a fast tokenizer with a mask token, got "
            f"{type(tokenizer).__name__} with {tokenizer.mask_token} in {name}"
        )
    return model, tokenizer


def _whole_words(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[str]]:
    """Returns the entries of the vocabulary that are a word of a running text by themselves.

    Found by going there and back, because every kind of tokenizer marks pieces of words in its own way.
    """
    ordinary = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    texts = {i: str(tokenizer.decode([i])).strip() for i in ordinary}
    words = {i: text for i, text in texts.items() if is_word(text)}
    back = _tokens(tokenizer, list(words.values()))
    kept = [i for i, ids in zip(words, back, strict=True) if ids == (i,)]
    return kept, [words[i] for i in kept]


def _tokens(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of each word as it stands inside a text, after a blank."""
    if not words:
        return []
    return [
        tuple(ids) for ids in tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    ]
