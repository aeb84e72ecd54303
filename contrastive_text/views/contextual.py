"""View that replaces words of a text by predictions of a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError, above, at_least, first_line, fraction
from contrastive_text.core.libraries import silence_transformers
from contrastive_text.views.base import TextView, Words
from contrastive_text.views.text import is_word, match_case, split_words

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.modeling_outputs import BaseModelOutput


class ContextualSubstitute(TextView):
    """Replaces a share of the words by words that a masked language model predicts in their place.

    ``round(rate * n)`` of n words are selected at random from the words of letters. The model reads the text with
    a mask token for each selected word, as in its training. Each word is replaced by a draw from the model's
    distribution over the words that are one token, without the original word. One pass for each word would
    condition the draws on each other, at several times the cost. Source: the MLM row of Gao et al. 2021, SimCSE
    (https://arxiv.org/abs/2104.08821), table 1 (15 % of the words, by BERT); Kobayashi 2018
    (https://arxiv.org/abs/1805.06201) for drawing instead of using the most probable word.

    A draw depends on its text and generator only; other texts of a batch change scores only by rounding. Each
    process that uses the view loads the model. Words beyond the model's length limit are not replaced.

    Args:
        model_name_or_path: Hub name or folder of a model with a masked language modeling head.
        rate: Share of the words to replace.
        top_k: Number of most probable words to draw from; None for all.
        temperature: Divisor of the logits; above 1 for more variety.
        batch_size: Number of texts in a pass of the model.
        device: Device of the model. With worker processes it must be the CPU.

    Raises:
        ValueError: ``rate`` is outside [0, 1], ``temperature`` is 0 or less, ``top_k`` or ``batch_size`` is below
            1. The model is not found, or its architecture has no such head. Raised on first use: the checkpoint
            lacks weights of the head.
    """

    words: Words | None = "letters"

    def __init__(
        self,
        model_name_or_path: str,
        rate: float = 0.15,
        top_k: int | None = 50,
        temperature: float = 1.0,
        batch_size: int = 32,
        device: str = "cpu",
    ) -> None:
        _check_architecture(model_name_or_path)
        self.model_name_or_path = model_name_or_path
        self.rate = fraction("ContextualSubstitute.rate", rate)
        self.top_k = at_least("ContextualSubstitute.top_k", top_k, 1)
        self.temperature = above("ContextualSubstitute.temperature", temperature)
        self.batch_size = at_least("ContextualSubstitute.batch_size", batch_size, 1)
        self.device = device
        self._filler: _Filler | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the state for pickling without the masked language model."""
        return {**self.__dict__, "_filler": None}

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced by predicted words."""
        return self.alter_all([text], [rng])[0]

    def alter_all(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the texts with some words replaced by predicted words. Texts of similar length share a pass."""
        altered_texts = list(texts)
        gaps = [self._draw_gaps(text, rng) for text, rng in zip(texts, rngs, strict=True)]
        by_length = sorted((i for i, gap in enumerate(gaps) if gap.draws), key=lambda i: len(texts[i]))
        for start in range(0, len(by_length), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            for row, text in zip(rows, self._fill([gaps[row] for row in rows]), strict=True):
                altered_texts[row] = text
        return altered_texts

    def _draw_gaps(self, text: str, rng: np.random.Generator) -> _Gaps:
        pieces = split_words(text)
        eligible = [index for index in range(1, len(pieces), 2) if is_word(pieces[index])]
        count = min(round(self.rate * (len(pieces) // 2)), len(eligible))
        indices = [eligible[i] for i in rng.permutation(len(eligible))[:count].tolist()]
        return _Gaps(pieces, dict(zip(indices, rng.random(count).tolist(), strict=True)))

    def _fill(self, texts: Sequence[_Gaps]) -> list[str]:
        if self._filler is None:
            self._filler = _Filler(self.model_name_or_path, self.device)
        gaps, scores = self._filler.score(texts)
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            threshold = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < threshold, -torch.inf)
        # In the order of the vocabulary, not of the scores, so that rounding can't exchange two words.
        shares = scores.softmax(dim=1).cumsum(dim=1)
        draws = torch.tensor([texts[row].draws[index] for row, index in gaps], dtype=torch.float64)
        choices = torch.searchsorted(shares, draws.unsqueeze(1) * shares[:, -1:], right=True).flatten().tolist()
        new_pieces = [list(text.pieces) for text in texts]
        for (row, index), choice in zip(gaps, choices, strict=True):
            new_pieces[row][index] = match_case(self._filler.words[choice], model=new_pieces[row][index])
        return ["".join(pieces) for pieces in new_pieces]


class _Gaps(NamedTuple):
    """Text split into pieces, with the indices of pieces to replace and a uniform random number for each."""

    pieces: list[str]
    draws: dict[int, float]


class _Filler:
    """Masked language model with the words of its vocabulary that are one token."""

    def __init__(self, name: str, device: str) -> None:
        model, self._tokenizer = _load(name)
        self._model = model.to(device)  # type: ignore[arg-type]  # theirs; loaded in eval mode
        ids, self.words = _whole_words(self._tokenizer)
        self._ids = torch.tensor(ids, device=device)
        # Tokens of a word's lower-case form -> indices of the words with these tokens.
        self._same: dict[tuple[int, ...], list[int]] = {}
        for column, word in enumerate(_tokens(self._tokenizer, [word.lower() for word in self.words])):
            self._same.setdefault(word, []).append(column)
        if len(self._same) < 2:
            raise InvalidValueError(
                "ContextualSubstitute.model_name_or_path: expected a vocabulary with words of letters, got "
                f"{len(ids)} such words in {name}"
            )
        # RoBERTa and similar models reserve two positions; tokenizers without a limit have a huge limit.
        positions = self._model.config.to_dict().get("max_position_embeddings") or 10**9
        limit = min(self._tokenizer.model_max_length, positions - 2)
        self._cut = {"truncation": True, "max_length": limit} if limit < 10**8 else {}

    def score(self, texts: Sequence[_Gaps]) -> tuple[list[tuple[int, int]], Tensor]:
        """Returns the gaps of a text within the length limit, and the logits of all words for each gap.

        Returns:
            M gaps as (text, piece), and logits in float64 on the CPU, (M, words); -inf for the original word.
        """
        mask = self._tokenizer.mask_token
        masked = [[mask if i in text.draws else piece for i, piece in enumerate(text.pieces)] for text in texts]
        encoding = self._tokenizer(
            ["".join(pieces) for pieces in masked], padding=True, return_tensors="pt", **self._cut
        )
        starts = [list(accumulate(map(len, pieces), initial=0)) for pieces in masked]
        gaps = [(row, index) for row, text in enumerate(texts) for index in text.draws]
        tokens = {gap: encoding.char_to_token(gap[0], starts[gap[0]][gap[1]]) for gap in gaps}
        gaps = [gap for gap in gaps if tokens[gap] is not None]
        positions = [(row, tokens[row, index]) for row, index in gaps]
        indices = torch.tensor(positions, dtype=torch.long).reshape(-1, 2)
        scores = self._logits(encoding, indices)[:, self._ids].double().cpu()
        originals = _tokens(self._tokenizer, [texts[row].pieces[index].lower() for row, index in gaps])
        for i, word in enumerate(originals):
            scores[i, self._same.get(word, [])] = -torch.inf
        return gaps, scores

    def _logits(self, encoding: BatchEncoding, indices: Tensor) -> Tensor:
        """Returns the logits at some (row, token) indices only, because all logits would take too much memory."""

        def keep_gaps(module: nn.Module, inputs: object, output: BaseModelOutput) -> BaseModelOutput:  # noqa: ARG001  # torch's signature
            assert output.last_hidden_state is not None
            output.last_hidden_state = output.last_hidden_state[tuple(indices.T)].unsqueeze(0)
            return output

        hook = self._model.base_model.register_forward_hook(keep_gaps)
        try:
            with torch.inference_mode():
                logits: Tensor = self._model(**encoding.to(self._model.device)).logits
        finally:
            hook.remove()
        return logits.squeeze(0)


def _check_architecture(name: str) -> None:
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

    with silence_transformers():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model, report = AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise InvalidValueError(
            "ContextualSubstitute.model_name_or_path: expected all weights of a masked language model, got "
            f"{name} without {len(missing)} ({', '.join(missing[:3])}, ...). Its words would be random; use a "
            "checkpoint that was saved with its head"
        )
    if tokenizer.mask_token is None or not tokenizer.is_fast:
        raise InvalidValueError(
            f"ContextualSubstitute.model_name_or_path: expected a fast tokenizer with a mask token, got "
            f"{type(tokenizer).__name__} with {tokenizer.mask_token} in {name}"
        )
    return model, tokenizer


def _whole_words(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[str]]:
    """Returns the ids and texts of the vocabulary's tokens that are whole words of letters.

    Each token is decoded and encoded again, because tokenizers mark pieces of words in different ways.
    """
    ordinary = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    texts = {i: str(tokenizer.decode([i])).strip() for i in ordinary}
    words = {i: text for i, text in texts.items() if is_word(text)}
    encodings = _tokens(tokenizer, list(words.values()))
    word_ids = [i for i, ids in zip(words, encodings, strict=True) if ids == (i,)]
    return word_ids, [words[i] for i in word_ids]


def _tokens(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the token ids of each word inside a text, after a blank."""
    if not words:
        return []
    return [
        tuple(ids) for ids in tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    ]
