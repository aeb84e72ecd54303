"""Draws what each part does to one sentence, with the part itself: python docs/parts/draw.py"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from of_vectors import adversarial, embedding_view, fixed_dropout
from of_words import SENTENCE, WORDS, masked_lm_objective, pairing, spans, text_view, token_view
from sheet import Sheet
from stand_ins import masked_lm, synonym_file

from contrastive_text import pairings, views

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
    "Neighbours": lambda: pairing(pairings.Neighbours(), {"text": SENTENCE, "next": "people stop to watch him"}),
    "Spans": lambda: spans(key=5),
    "SwapWords": lambda: text_view(views.SwapWords(rate=0.3), key=3),
    "SubstituteSynonyms": lambda: with_folder(
        lambda folder: text_view(views.SubstituteSynonyms(source=views.SynonymFile(synonym_file(folder))), key=1)
    ),
    "ContextualSubstitute": lambda: with_folder(
        lambda folder: text_view(
            views.ContextualSubstitute(masked_lm(folder / "toy-bert", WORDS), rate=0.3, top_k=2), key=1
        )
    ),
    "NlpaugView": lambda: text_view(views.NlpaugView("nlpaug.augmenter.char.KeyboardAug"), key=1),
    "Prompt": lambda: text_view(views.Prompt("This sentence: {text} means"), key=1),
    "DeleteTokens": lambda: token_view(views.DeleteTokens(rate=0.4, mark="[DEL]"), key=10),
    "DeleteSpans": lambda: token_view(views.DeleteSpans(spans=2, rate=0.2), key=7),
    "DeleteOneWord": lambda: token_view(views.DeleteOneWord(), key=1),
    "CropTokens": lambda: token_view(views.CropTokens(rate=0.3), key=10),
    "ReorderSpans": lambda: token_view(views.ReorderSpans(pairs=1, rate=0.2), key=9),
    "MaskTokens": lambda: token_view(views.MaskTokens(rate=0.3), key=10),
    "ShufflePositions": lambda: token_view(views.ShufflePositions(), key=1),
    "FeatureCutoff": lambda: embedding_view(views.FeatureCutoff(), key=1),
    "TokenCutoff": lambda: embedding_view(views.TokenCutoff(), key=1),
    "SpanCutoff": lambda: embedding_view(views.SpanCutoff(rate=0.3), key=1),
    "EmbeddingDropout": lambda: embedding_view(views.EmbeddingDropout(), key=1),
    "GaussianNoise": lambda: embedding_view(views.GaussianNoise(scale=0.5), key=1),
    "Adversarial": lambda: adversarial(views.Adversarial(), key=1),
    "FixedDropout": lambda: fixed_dropout(views.FixedDropout()),
    "MaskedLM": lambda: masked_lm_objective(views.MaskTokens(rate=0.3), key=10),
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        try:
            (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
        except ImportError as error:
            print(f"{name}.svg is left as it is: {error}")
