"""Did it work, against what, and how sure: the kept weights beside those that a run started from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import PairedBootstrap, exact_similarity, paired_bootstrap_spearman, spearman
from contrastive_text.runs.report.markup import TIMES_100, Html, escaped, join, number, tag
from contrastive_text.runs.report.material import SEED, Material
from contrastive_text.runs.report.runs import RunRecord
from contrastive_text.runs.report.space import Space, gold_scores, side_texts

_SURE = (
    "Intervals are 95 % over resampled pairs (paired bootstrap). They say nothing about other seeds: "
    "contrastive-text sweep trains several."
)


class Gain(NamedTuple):
    """What training changed.

    Args:
        before: Spearman x 100 of the weights that the run started from.
        after: Of the weights that were kept.
        difference: After minus before, with its resamples; of the correlations, not x 100.
        start: Name of the weights before.
    """

    before: float
    after: float
    difference: PairedBootstrap
    start: str


def gain(space: Space, material: Material, device: str | None = None) -> Gain | str:
    """Scores the weights that a run started from on the same pairs, read with the pooler of the trained model.

    Returns:
        What training changed, or why that isn't known.
    """
    if material.pairs is None:
        return "no scored pairs are at hand"
    start = _start(space.run)
    if start is None:
        return "the run started from random weights, or doesn't say from which"
    try:
        trained = SentenceEncoder.from_pretrained(space.run.model or "", device="cpu")
        model = SentenceEncoder.from_pretrained(
            start, device=device, pooler=trained.pooler, max_length=trained.max_length, prompts=trained.prompts
        )
        encoder = CachedEncoder(model)
        before = exact_similarity(*(encoder(side_texts(material.pairs, side)) for side in ("anchor", "positive")))
    except (ValueError, OSError) as error:  # a folder that is gone, or weights that can't be read so
        return f"{_name(start)}, from which it started, can't be read now ({' '.join(str(error).split())[:200]})"
    target = gold_scores(material.pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vectors that are all equal, whose correlation is 0
        draws = torch.Generator().manual_seed(SEED)
        found = paired_bootstrap_spearman(before, space.cosines, target=target, generator=draws)
        return Gain(_score(before, target), _score(space.cosines, target), found, _name(start))


def verdict(spaces: Sequence[Space], material: Material, device: str | None = None) -> Html:
    """Returns the first paragraph of the page: what training changed on held-out pairs, and how sure that is."""
    if material.pairs is None or not spaces:
        return Html("")
    found = {space.run.name: gain(space, material, device) for space in spaces}
    lines = [tag("li", space.run.says(""), _said(found[space.run.name])) for space in spaces]
    lines += [tag("li", line) for line in _between(spaces, material)]
    known = any(isinstance(each, Gain) for each in found.values()) or len(spaces) > 1
    heading = tag("h2", f"Spearman {TIMES_100} on {material.said_pairs}")
    return tag(
        "div", heading, tag("ul", *lines), tag("p", _SURE, class_="small") if known else "", class_="verdict"
    )


def _said(found: Gain | str) -> Html:
    if isinstance(found, str):
        return escaped(f"What it gained is not known: {found}.")
    answer = _judged(found.difference, better="Training helped", worse="Training made it worse")
    figures = f"{number(found.before, '.2f')} before ({found.start}), {number(found.after, '.2f')} after"
    return join([tag("b", f"{answer}: "), f"{figures}, {_difference(found.difference)}."])


def _between(spaces: Sequence[Space], material: Material) -> list[str]:
    """Says how the runs after the first differ from it."""
    if material.pairs is None:
        return []
    target, (first, *others) = gold_scores(material.pairs), spaces
    said = []
    for other in others:
        draws = torch.Generator().manual_seed(SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            found = paired_bootstrap_spearman(first.cosines, other.cosines, target=target, generator=draws)
        answer = _judged(found, better="higher", worse="lower")
        said.append(f"{other.run.name} against {first.run.name}: {answer}, {_difference(found)}.")
    return said


def _judged(found: PairedBootstrap, better: str, worse: str) -> str:
    low, high = found.interval()
    return better if low > 0 else worse if high < 0 else "No difference that these pairs can show"


def _difference(found: PairedBootstrap) -> str:
    change, low, high = (number(100 * each, "+.2f") for each in (found.difference, *found.interval()))
    return f"{change} ({low} to {high})"


def _start(run: RunRecord) -> str | None:
    encoder: Any = (run.config.get("model") or {}).get("encoder")  # Any: a part of a configuration
    arguments = (encoder.get("init_args") or {}) if isinstance(encoder, dict) else {}
    start = arguments.get("model_name_or_path")
    return str(start) if start and not arguments.get("config") else None


def _name(start: str) -> str:
    return start.rstrip("/").rpartition("/")[2]


def _score(cosines: Tensor, gold: Tensor) -> float:
    return 100 * float(spearman(cosines, gold))
