"""How the vectors of runs lie: cosines of pairs, gold scores, the spectrum, and figures with a verdict."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from contrastive_text.core.random import generator
from contrastive_text.data import Table
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import Diagnosis, diagnose
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import exact_similarity, pair_similarity, positive_pairs, spearman
from contrastive_text.runs.report.charts import Chart, draw, legend, line_of
from contrastive_text.runs.report.markup import TIMES_100, Html, Note, missing, number, table, tag
from contrastive_text.runs.report.material import SEED, Material
from contrastive_text.runs.report.plane import plane
from contrastive_text.runs.report.runs import MODEL, RunRecord
from contrastive_text.runs.report.section import Section
from contrastive_text.runs.report.style import LIGHT, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 40
_BOXES = 5
_REMEDY = "--pairs PAIRS.tsv and --texts TEXTS.txt name files that are there"


class Space(NamedTuple):
    """The vectors of a run.

    Args:
        run: The run.
        texts: Of the texts, on the unit sphere, (N, D).
        cosines: Of the pairs, (P,); empty without pairs.
        random: Of as many pairs of texts that were drawn, (N,).
        diagnosis: Its figures; None if they couldn't be measured.
        lacks: Why not.
    """

    run: RunRecord
    texts: Tensor
    cosines: Tensor
    random: Tensor
    diagnosis: Diagnosis | None
    lacks: str


def embed(run: RunRecord, material: Material, device: str | None = None) -> Space | Note:
    """Embeds the material with a run's saved model; a note says why that isn't possible."""
    what = run.says("vectors")
    if run.model is None:
        return missing(what, f"there is no saved model in {run.folder / MODEL}", "fit leaves one when it ends")
    if len(material.texts) < 2:
        return missing(what, material.lacks or "no run names texts", _REMEDY)
    sides = (
        [] if material.pairs is None else [side_texts(material.pairs, side) for side in ("anchor", "positive")]
    )
    try:
        encoder = CachedEncoder(SentenceEncoder.from_pretrained(run.model, device=device))
        texts = normalize(encoder(material.texts), dim=1)
        cosines = exact_similarity(*map(encoder, sides)) if sides else torch.empty(0)
    except ValueError as error:  # a damaged model, or one that diverged
        return missing(what, str(error), "train it anew, or take an earlier checkpoint")
    order = torch.from_numpy(generator(SEED).permutation(len(texts)))
    random = pair_similarity(texts[order], texts[order.roll(1)])
    try:
        return Space(run, texts, cosines, random, diagnose(encoder, material.texts, material.pairs), lacks="")
    except ValueError as error:
        return Space(run, texts, cosines, random, diagnosis=None, lacks=str(error))


def pairs(spaces: Sequence[Space], notes: Sequence[Note], material: Material) -> Section:
    """Returns the cosines of pairs that belong together, of those that don't, of any, and against gold scores."""
    parts: list[Chart | Html] = [_ridges(spaces, material.pairs)] if spaces else []
    if spaces and material.pairs is not None and len(material.pairs) > 1:
        parts.append(_boxes(spaces, material.pairs))
    elif spaces:
        parts.append(missing("Cosine against gold score", material.lacks or "no run names scored pairs", _REMEDY))
    parts += notes
    lead = f"How well cosine similarity tells pairs apart: {material.said or 'nothing to compare'}."
    return Section("pairs", "Similarity", lead, parts)


def geometry(spaces: Sequence[Space], notes: Sequence[Note]) -> Section:
    """Returns the spectrum of singular values and the figures of ``diagnose`` with its verdicts."""
    found = [(space.run, space.diagnosis) for space in spaces if space.diagnosis is not None]
    lead = "Which directions the vectors fill, and whether anything is off with them."
    lacking = [missing(space.run.says("figures"), space.lacks, _REMEDY) for space in spaces if space.lacks]
    if not found:
        return Section("geometry", "Geometry", lead, lacking or notes)
    verdicts = [tag("li", run.says(words)) for run, diagnosis in found for words in diagnosis.warnings]
    nothing = tag("p", "Nothing is off with these vectors, as far as these figures tell.", class_="fine")
    said = tag("ul", *verdicts, class_="verdicts") if verdicts else nothing
    charts = [_spectrum(found)]
    charts += plane(found)
    charts += [_frequency(found)] if any(diagnosis.frequency for _, diagnosis in found) else []
    return Section(
        "geometry", "Geometry", lead, [*charts, tag("div", _figures(found), said, class_="pair"), *notes]
    )


def _ridges(spaces: Sequence[Space], scored: Table | None) -> Chart:
    """Draws a row of histograms for each kind of pair; all rows share the axis of cosines."""
    rows: list[tuple[str, list[Tensor]]] = []
    if scored is not None:
        gold = gold_scores(scored)
        kinds = (("positive", positive_pairs(gold)), ("negative", gold <= 0.2 * gold.max()))
        rows = [(name, [space.cosines[kind] for space in spaces]) for name, kind in kinds if kind.any()]
    rows.append(("random", [space.random for space in spaces]))
    least = min(float(cosines.min()) for _, group in rows for cosines in group)
    edges = np.linspace(min(0.0, least), 1.0, _BINS + 1)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        for height, (_, group) in enumerate(reversed(rows)):
            counted = [np.histogram(cosines.numpy(), edges)[0] / len(cosines) for cosines in group]
            top = max(float(shares.max()) for shares in counted)
            for space, shares, cosines in zip(spaces, counted, group, strict=True):
                line, colour = height + 0.86 * shares / top, series(space.run.number)
                axes.stairs(line, edges, baseline=height, fill=True, color=colour, alpha=0.25)
                axes.stairs(line, edges, baseline=height, color=colour, linewidth=1.4)
                mean = float(cosines.mean())
                axes.plot([mean, mean], [height - 0.08, height], color=colour, linewidth=2.4)
        axes.set_yticks([height + 0.12 for height in range(len(rows))], [name for name, _ in reversed(rows)])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set(xlabel="cosine similarity", ylim=(-0.15, len(rows)))
        legend(axes, [space.run for space in spaces])

    means = [
        space.run.says(", ".join(f"{name} {number(float(group[place].mean()), '.2f')}" for name, group in rows))
        for place, space in enumerate(spaces)
    ]
    note = (
        "Positive pairs are those above four fifths of the highest gold score, negative ones have at most a "
        f"fifth of it, random ones were drawn from the texts. Means, marked below: {'; '.join(means)}."
    )
    if scored is None:
        note = f"Random pairs of the texts; there are no scored pairs. Means, marked below: {'; '.join(means)}."
    return draw("cosines", "Cosines of pairs", note, paint, height=300)


def _boxes(spaces: Sequence[Space], scored: Table) -> Chart:
    """Draws the cosines in each fifth of the gold scale, runs beside each other."""
    gold = gold_scores(scored)
    low, high = float(gold.min()), float(gold.max())
    width = (high - low) / _BOXES or 1.0
    places = ((gold - low) / width).long().clamp(max=_BOXES - 1)
    names = [f"{low + i * width:.3g}\u2013{low + (i + 1) * width:.3g}" for i in range(_BOXES)]
    slot = 0.8 / len(spaces)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(visible=False, axis="x")
        for turn, space in enumerate(spaces):
            colour, shift = series(space.run.number), (turn + 0.5) * slot - 0.4
            groups = {i: space.cosines[places == i].numpy() for i in range(_BOXES) if (places == i).any()}
            if len(spaces) == 1:
                for i, group in groups.items():
                    spread = generator(SEED + i).uniform(-0.3, 0.3, size=len(group))
                    axes.plot(i + spread[:150], group[:150], ".", color=colour, alpha=0.3, markersize=3)
            axes.boxplot(
                list(groups.values()),
                positions=[i + shift for i in groups],
                widths=slot * 0.72,
                whis=(5, 95),
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": LIGHT["paper"], "edgecolor": colour, "linewidth": 1.4},
                whiskerprops={"color": colour, "linewidth": 1.2},
                capprops={"color": colour, "linewidth": 1.2},
                medianprops={"color": colour, "linewidth": 2.6},
            )
        axes.set_xticks(range(_BOXES), names)
        axes.set(xlabel="gold score", ylabel="cosine similarity")
        axes.margins(x=0.02)
        legend(axes, [space.run for space in spaces])

    figures = [space.run.says(_spearman(space.cosines, gold)) for space in spaces]
    note = (
        f"Spearman {TIMES_100} over these {len(gold):,} pairs: {'; '.join(figures)}. Boxes hold the middle half "
        "of the pairs, whiskers nine tenths; the bar is the median."
    )
    return draw("gold", "Cosine against gold score", note, paint, height=300)


def _spectrum(found: Sequence[tuple[RunRecord, Diagnosis]]) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_yscale("log")
        for run, diagnosis in found:
            values = np.asarray(diagnosis.spectrum)
            values = values[values > values[0] * 1e-7]  # below is rounding
            axes.plot(np.arange(1, len(values) + 1), values, **line_of(run))
            axes.axvline(diagnosis.effective_rank, color=series(run.number), linestyle=":", linewidth=1.3)
        axes.set(xlabel="singular value, by size", ylabel="share of their sum")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda *_: "")
        legend(axes, [run for run, _ in found])

    ranks = [run.says(f"{diagnosis.effective_rank:.1f} of {diagnosis.features}") for run, diagnosis in found]
    note = (
        "A curve that falls at once means that a few directions hold everything. Dotted: the effective rank, "
        f"{'; '.join(ranks)}."
    )
    return draw("spectrum", "Spectrum", note, paint, height=270)


def _frequency(found: Sequence[tuple[RunRecord, Diagnosis]]) -> Chart:
    curves = [(run, diagnosis.frequency) for run, diagnosis in found if diagnosis.frequency]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for run, points in curves:
            axes.plot([score for _, score in points], marker=".", markersize=6, **line_of(run))
        axes.set_xticks(range(len(curves[0][1])), [str(removed) for removed, _ in curves[0][1]])
        axes.set(xlabel="tokens left out", ylabel=f"Spearman {TIMES_100}")
        legend(axes, [run for run, _ in found])

    note = (
        "Correlation when the mean leaves out the most frequent tokens: a curve that rises means that tokens "
        "which say little pull the vectors (Yan et al. 2021, section 5.1)."
    )
    return draw("frequency", "Frequent tokens", note, paint, height=270)


def _figures(found: Sequence[tuple[RunRecord, Diagnosis]]) -> Html:
    each = [diagnosis for _, diagnosis in found]
    rows = [
        ("texts", [f"{d.texts:,}" for d in each]),
        ("features", [f"{d.features:,}" for d in each]),
        (f"Spearman {TIMES_100}", [number(d.spearman, ".2f") for d in each]),
        ("alignment", [number(d.alignment, ".3f") for d in each]),
        ("uniformity", [number(d.uniformity, ".3f") for d in each]),
        ("mean cosine", [number(d.mean_cosine, ".3f") for d in each]),
        ("effective rank", [number(d.effective_rank, ".1f") for d in each]),
        ("isotropy (IsoScore)", [number(d.isotropy, ".3f") for d in each]),
        ("correlation of features", [number(d.off_diagonal, ".3f") for d in each]),
        ("hubness (skewness)", [number(d.hubness, ".2f") for d in each]),
        ("orphans", [f"{d.orphans:.1%}" for d in each]),
    ]
    head = ["figure", *("value" if run.alone else run.name for run, _ in found)]
    return table(head, rows, caption="Figures of the vectors", class_="figures")


def _spearman(cosines: Tensor, gold: Tensor) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are all equal: the result is 0, as everywhere
        return number(100 * float(spearman(cosines, gold)), ".2f")


def gold_scores(scored: Table) -> Tensor:
    """Returns the gold score of each pair, (P,)."""
    return torch.tensor([float(str(row["target"])) for row in scored])


def side_texts(scored: Table, side: str) -> list[str]:
    """Returns the texts of one side of pairs: ``anchor`` or ``positive``."""
    return [str(row[side]) for row in scored]
