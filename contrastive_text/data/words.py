"""What views take for words in languages that are written without blanks: said before the first step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from contrastive_text.core.specs import describe
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.views import ViewPlan
from contrastive_text.views.base import Words
from contrastive_text.views.text import split_words

_WITHOUT_BLANKS = re.compile(
    # Thai and Lao, Tibetan, Burmese, Khmer, kana, and Chinese characters with their extensions and signs.
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
_SHOWN = 12
"""Letters of the example."""


def words_without_blanks(plans: Iterable[ViewPlan], texts: Sequence[str], tokenizer: TextTokenizer) -> str | None:
    """Returns what the views of some plans take for words in texts of languages that are written without blanks.

    Args:
        plans: Of the run.
        texts: A sample of its texts.
        tokenizer: The encoder's.

    Returns:
        An example of it for each kind of words; None where no view knows words, or no text is of such a language.
    """
    views = dict.fromkeys(
        (view.words, describe(view)) for plan in plans for _, view in plan.views_with_places() if view.words
    )
    found = [run[0] for text in texts if (run := _WITHOUT_BLANKS.search(text))]
    if not views or not found:
        return None
    example = max(found, key=len)[:_SHOWN]
    said = [f"{len(found) / len(texts):.1%} of {len(texts):,} sampled texts are of languages without blanks"]
    for kind, of_kind in groupby(sorted(views), key=itemgetter(0)):
        words = _PARTED[kind](example, tokenizer)
        names = ", ".join(name for _, name in of_kind)
        one = "one word" if len(words) == 1 else f"{len(words)} words: {' | '.join(words)}"
        said.append(f"{example} is to {names} {one}")
    return "; ".join(said)


def _tokenizer_words(text: str, tokenizer: TextTokenizer) -> list[str]:
    (tokens,) = tokenizer([text])
    words = groupby(zip(tokens.words, tokens.ids, strict=True), key=itemgetter(0))
    return [str(tokenizer.tokenizer.decode([number for _, number in pieces])).strip() for _, pieces in words]


_PARTED: Mapping[Words, Callable[[str, TextTokenizer], list[str]]] = {
    "blanks": lambda text, tokenizer: text.split(),  # noqa: ARG005  # as the others
    "letters": lambda text, tokenizer: split_words(text)[1::2],  # noqa: ARG005  # as the others
    "tokenizer": _tokenizer_words,
}
