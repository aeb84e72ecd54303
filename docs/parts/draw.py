"""Draws what each part does to one sentence, with the part itself, and lists the parts: make pages"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from inspect import isabstract
from pathlib import Path

from of_vectors import adversarial, embedding_view, fixed_dropout
from of_words import SENTENCE, WORDS, masked_lm_objective, pairing, spans, text_view, token_view
from sheet import Sheet
from stand_ins import masked_lm, synonym_file, written_file

from contrastive_text import pairings, views
from contrastive_text.objectives import MaskedLM
from contrastive_text.pairings import Pairing
from contrastive_text.views import EmbeddingView, GradientView, TextView, TokenView, View

FOLDER = Path(__file__).parent
GIVEN = {
    "anchor": SENTENCE,
    "positive": "somebody in a helmet dances outside",
    "negative": "a man with a hard hat sleeps in the street",
}


def with_folder(draw: Callable[[Path], Sheet]) -> Sheet:
    """Draws a part that reads a file or a model."""
    with tempfile.TemporaryDirectory() as folder:
        return draw(Path(folder))


# Each key is one whose draws show much.
PICTURES: dict[str, Callable[[], Sheet]] = {
    "SameText": lambda: pairing(pairings.SameText(), {"text": SENTENCE}),
    "Given": lambda: pairing(pairings.Given(), GIVEN),
    "NLITriples": lambda: pairing(pairings.NLITriples(), GIVEN),
    "OneSequence": lambda: pairing(
        pairings.OneSequence(), {"anchor": "a man dances", "positive": "somebody is dancing"}
    ),
    "Neighbors": lambda: pairing(pairings.Neighbors(), {"text": SENTENCE, "next": "people stop to watch him"}),
    "Spans": lambda: spans(key=5),
    "SwapWords": lambda: text_view(views.SwapWords(rate=0.3), key=3),
    "SubstituteSynonyms": lambda: with_folder(
        lambda folder: text_view(views.SubstituteSynonyms(0.7, views.SynonymFile(synonym_file(folder))), key=1)
    ),
    "ContextualSubstitute": lambda: with_folder(
        lambda folder: text_view(
            views.ContextualSubstitute(masked_lm(folder / "toy-bert", WORDS), rate=0.3, top_k=2), key=1
        )
    ),
    "NlpaugView": lambda: text_view(views.NlpaugView("nlpaug.augmenter.char.KeyboardAug"), key=1),
    "TextsFromFile": lambda: with_folder(
        lambda folder: text_view(views.TextsFromFile(written_file(folder, SENTENCE)), key=1)
    ),
    "Prompt": lambda: text_view(views.Prompt("This sentence: {text} means"), key=1),
    "DeleteTokens": lambda: token_view(views.DeleteTokens(rate=0.4, mark="[DEL]"), key=10),
    "DeleteSpans": lambda: token_view(views.DeleteSpans(spans=2, rate=0.2), key=7),
    "CropTokens": lambda: token_view(views.CropTokens(rate=0.3), key=10),
    "ReorderSpans": lambda: token_view(views.ReorderSpans(pairs=1, rate=0.2), key=9),
    "RepeatTokens": lambda: token_view(views.RepeatTokens(rate=0.6), key=1),
    "MaskTokens": lambda: token_view(views.MaskTokens(rate=0.3), key=10),
    "SpanCutoff": lambda: embedding_view(views.SpanCutoff(rate=0.3), key=1),
    "GaussianNoise": lambda: embedding_view(views.GaussianNoise(scale=0.5), key=1),
    "Adversarial": lambda: adversarial(views.Adversarial(), key=1),
    "FixedDropout": lambda: fixed_dropout(views.FixedDropout()),
    "MaskedLM": lambda: masked_lm_objective(views.MaskTokens(rate=0.3), key=10),
}

"""Parts that are drawn with other arguments than their defaults, or another key than 1."""


def parts() -> dict[str, type]:
    """Returns the pairings and views by name, and the objective that has a page, level by level."""
    every = [getattr(package, name) for package in (pairings, views) for name in package.__all__]
    named = {part.__name__: part for part in (*every, MaskedLM) if isinstance(part, type)}
    levels = (Pairing, TextView, TokenView, EmbeddingView, GradientView, View, MaskedLM)
    ours = {name: part for name, part in named.items() if issubclass(part, levels) and not isabstract(part)}
    del ours["View"]
    return dict(sorted(ours.items(), key=lambda item: [not issubclass(item[1], level) for level in levels]))


def picture(name: str) -> Sheet:
    """Draws a part: as ``PICTURES`` says, or with its defaults."""
    if name in PICTURES:
        return PICTURES[name]()
    view = parts()[name]()
    if isinstance(view, EmbeddingView):
        return embedding_view(view, key=1)
    return text_view(view, key=1) if isinstance(view, TextView) else token_view(view, key=1)


def index() -> str:
    """Returns the page of all parts, with the table that their own pages make: level, deed and source."""
    rows = ["| part | level | what it does | from |", "| --- | --- | --- | --- |"]
    for name in parts():
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        level, deed = re.findall(r"^An? (\w+)(?: view)?: (.+)\.$", page, re.MULTILINE)[0]
        source = re.split(r",? [<(]|;|(?<!al)\.\s", page.partition("## Source\n\n")[2])[0]
        rows.append(f"| [{name}]({name}.md) | {level} | {deed} | {' '.join(source.split())} |")
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    return re.sub(r"(?<=\n\n)(\|.*\n)+", lambda _: "\n".join(rows) + "\n", page, count=1)


if __name__ == "__main__":
    for name in parts():
        try:
            (FOLDER / f"{name}.svg").write_text(picture(name).svg(), encoding="utf-8")
        except ImportError as error:
            print(f"{name}.svg is left as it is: {error}")
    (FOLDER / "index.md").write_text(index(), encoding="utf-8")
