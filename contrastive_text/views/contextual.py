"""View that replaces words by words that a masked language model expects in their place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.checks import above, at_least, share
from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import quiet
from contrastive_text.views.base import TextView, Words
from contrastive_text.views.text import is_word, match_case, split_words

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.modeling_outputs import BaseModelOutput


class ContextualSubstitute(TextView):
    """Replaces a share of the words by words that a masked language model expects there.

    Of n words ``round(rate * n)`` are chosen at random among those of letters. One pass sees the text with a
    mask token for each of them, as masked language models are trained; each gets a draw from the model's
    distribution over the words that are one token, its own word left out. One pass for each word would
    condition the draws on each other, at several times the cost. Source: the MLM row of Gao et al. 2021, SimCSE
    (https://arxiv.org/abs/2104.08821), table 1 (15 % of the words, by BERT); Kobayashi 2018
    (https://arxiv.org/abs/1805.06201) for drawing in place of taking the best.

    A draw depends on its text and generator only; the other texts of a batch change scores by rounding alone.
    The model is loaded by each process that uses the view. Words beyond its length limit stay.

    Args:
        model_name_or_path: Hub name or folder of a model with a masked-language-model head.
        rate: Share of the words to replace.
        top_k: Number of most probable words to draw from; None for all.
        temperature: Divides the scores; above 1 for more variety.
        batch_size: Texts in one pass of the model.
        device: Where the model runs; with worker processes, the CPU.

    Raises:
        ValueError: A rate outside [0, 1], a temperature of 0 or less, another number below 1, a model that can't
            be found or an architecture without such a head; in use, a checkpoint without its weights.
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
        self.rate = share("ContextualSubstitute.rate", rate)
        self.top_k = at_least("ContextualSubstitute.top_k", top_k, 1)
        self.temperature = above("ContextualSubstitute.temperature", temperature)
        self.batch_size = at_least("ContextualSubstitute.batch_size", batch_size, 1)
        self.device = device
        self._filler: _Filler | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the state without the model."""
        return {**self.__dict__, "_filler": None}

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced."""
        return self.alter_all([text], [rng])[0]

    def alter_all(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the texts with some words replaced, by passes over texts of similar length."""
        altered = list(texts)
        gaps = [self._gaps(text, rng) for text, rng in zip(texts, rngs, strict=True)]
        by_length = sorted((i for i, each in enumerate(gaps) if each.places), key=lambda i: len(texts[i]))
        for start in range(0, len(by_length), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            for row, text in zip(rows, self._fill([gaps[row] for row in rows]), strict=True):
                altered[row] = text
        return altered

    def _gaps(self, text: str, rng: np.random.Generator) -> _Gaps:
        pieces = split_words(text)
        eligible = [place for place in range(1, len(pieces), 2) if is_word(pieces[place])]
        count = min(round(self.rate * (len(pieces) // 2)), len(eligible))
        places = [eligible[i] for i in rng.permutation(len(eligible))[:count].tolist()]
        return _Gaps(pieces, dict(zip(places, rng.random(count).tolist(), strict=True)))

    def _fill(self, texts: Sequence[_Gaps]) -> list[str]:
        if self._filler is None:
            self._filler = _Filler(self.model_name_or_path, self.device)
        places, scores = self._filler.score(texts)
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            cut = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < cut, -torch.inf)
        # In the order of the vocabulary, not of the scores: rounding can't exchange two neighbours.
        shares = scores.softmax(dim=1).cumsum(dim=1)
        draws = torch.tensor([texts[row].places[place] for row, place in places], dtype=torch.float64)
        drawn = torch.searchsorted(shares, draws.unsqueeze(1) * shares[:, -1:], right=True).flatten().tolist()
        altered = [list(text.pieces) for text in texts]
        for (row, place), choice in zip(places, drawn, strict=True):
            altered[row][place] = match_case(self._filler.words[choice], model=altered[row][place])
        return ["".join(pieces) for pieces in altered]


class _Gaps(NamedTuple):
    """A text in pieces, and a uniform draw for each piece to replace."""

    pieces: list[str]
    places: dict[int, float]


class _Filler:
    """A masked language model, and the words that are one token of it."""

    def __init__(self, name: str, device: str) -> None:
        model, self._tokenizer = _load(name)
        self._model = model.to(device)  # type: ignore[arg-type]  # theirs; in eval mode, as it is loaded
        ids, self.words = _whole_words(self._tokenizer)
        self._ids = torch.tensor(ids, device=device)
        # Tokens of a word's lower-case form -> the words that the model takes for that one.
        self._same: dict[tuple[int, ...], list[int]] = {}
        for column, word in enumerate(_tokens(self._tokenizer, [word.lower() for word in self.words])):
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

    def score(self, texts: Sequence[_Gaps]) -> tuple[list[tuple[int, int]], Tensor]:
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
        own = _tokens(self._tokenizer, [texts[row].pieces[place].lower() for row, place in gaps])
        for i, word in enumerate(own):
            scores[i, self._same.get(word, [])] = -torch.inf
        return gaps, scores

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
