"""Command ``mine``: writes hard negatives of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain

import numpy as np

from contrastive_text.cli.commands import Mine
from contrastive_text.cli.files import form_of, further_texts, read_table
from contrastive_text.cli.models import encoder_of, load_model, load_reranker, resumable
from contrastive_text.core.terminal import print_message
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.head_models import Reranker, folder_kind
from contrastive_text.inference.mining import Mining, PairTexts
from contrastive_text.inference.mining_run import MiningReport, MiningRun
from contrastive_text.inference.sentence_encoder import SentenceEncoder

_REASONS = {
    "siblings": "another positive of the query",
    "equal": "equal to the query",
    "near": "near a positive: --same {same}",
    "absolute_margin": "--absolute_margin {absolute_margin}",
    "relative_margin": "--relative_margin {relative_margin}",
    "max_score": "--max_score {max_score}",
    "min_score": "--min_score {min_score}",
}
"""Name of a reason in ``MiningReport.removed`` -> description of the removed candidates."""
_BINS = 16
"""Number of bins of a histogram of scores, and of characters of its longest bar."""


def mine(options: Mine) -> None:
    """Writes hard negatives of pairs, and prints how many candidates were removed for which reason."""
    mining = Mining(**{field.name: getattr(options, field.name) for field in fields(Mining)})
    texts = _read(options)
    model, devices = encoder_of(options)
    encoding = Encoding(block_size=options.block_size, batch_size=options.batch_size, device=devices)
    rescore = None if options.rescore is None else _load_second(options.rescore, str(model.device))
    run = MiningRun(
        model, texts, options.output, mining, options.form, rescore, encoding, restart=options.restart
    )
    with resumable(lambda: "the vectors so far are saved; the same command resumes after them"):
        report = run.finish(show_progress_bar=True)
    for line in _summary(report, mining, "score" if isinstance(rescore, Reranker) else "cosine"):
        print_message(line)
    print_message(f"{report.rows:,} rows written to {options.output}")


def _load_second(path: str, device: str) -> SentenceEncoder | Reranker:
    """Loads the model of ``--rescore`` and prints its kind: a reranker or an embedding model."""
    if folder_kind(path) is not None:
        return load_reranker(path, device)
    print_message(f"{path}: an embedding model, whose cosines score the candidates")
    return load_model(path, device)


def _read(options: Mine) -> PairTexts:
    """Reads the pairs and the corpus, and prints how their columns were understood."""
    pairs = read_table(options, ("anchor", "positive"), form_of(options))
    further: Iterable[str] = ()
    if options.corpus is not None:
        further = further_texts(options, options.corpus, "column", distinct=True)
        print_message(further.scan().description)
    # Second texts of pairs with label 0 may become negatives, like texts of the corpus.
    labeled_negatives = [str(row["positive"]) for row in pairs if row.get("target") == 0.0]
    positives = [(str(row["anchor"]), str(row["positive"])) for row in pairs if row.get("target") != 0.0]
    texts = PairTexts(positives, chain(further, labeled_negatives))
    print_message(
        f"{len(positives):,} pairs of {len(texts.queries):,} queries; a corpus of {len(texts.corpus):,} texts"
    )
    return texts


def _summary(report: MiningReport, mining: Mining, score: str) -> Iterator[str]:
    """Yields the lines of the mining summary: removed candidates, queries with few negatives, and scores."""
    settings = asdict(mining)
    yield f"{report.removed['candidates']:,} candidates of {report.queries:,} queries; no negatives:"
    for name, reason in _REASONS.items():
        if report.removed[name]:
            yield f"  {report.removed[name]:>12,}  {reason.format(**settings)}"
    if mining.range_min:
        ranked = "all candidates" if mining.ranks == "before" else "the remaining candidates"
        yield f"  the nearest {mining.range_min} of {ranked} were skipped"
    if report.short:
        became = "dropped" if mining.short == "drop" else "kept with their negatives"
        if mining.negatives == 1:
            yield f"{report.short:,} queries have no negative: {became}"
        else:
            without = f", {report.none:,} of them none" if report.none else ""
            yield f"{report.short:,} queries have fewer than {mining.negatives} negatives{without}: {became}"
    scores = {name: np.asarray(cosines) for name, cosines in report.scores.items()}
    if not len(scores["negative"]):
        return
    yield f"{score:<8}" + "".join(f"{name:>12}" for name in scores)
    yield f"{'count':<8}" + "".join(f"{len(cosines):>12,}" for cosines in scores.values())
    yield f"{'mean':<8}" + "".join(f"{cosines.mean():>12.3f}" for cosines in scores.values())
    for share in (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0):
        yield f"{share:<8.0%}" + "".join(f"{np.quantile(cosines, share):>12.3f}" for cosines in scores.values())
    yield histogram({name: report.scores[name] for name in ("positive", "negative")})


def histogram(scores: Mapping[str, Sequence[float]]) -> str:
    """Draws histograms of several kinds of scores as text: a line for each bin, a column of bars for each kind.

    Example:
        >>> print(histogram({"negative": [0.0, 0.0, 0.1], "positive": [0.7]}).splitlines()[1])
           0.000  ################
    """
    ends = [end for values in scores.values() if values for end in (min(values), max(values))]
    counts, edges = {}, np.empty(0)
    for name, values in scores.items():
        counts[name], edges = np.histogram(values, bins=_BINS, range=(min(ends), max(ends)))
    lines = ["          " + "".join(f"{name:<18}" for name in counts)]
    for i in range(_BINS):
        bars = "".join(f"{'#' * -(-_BINS * bins[i] // max(bins.max(), 1)):<18}" for bins in counts.values())
        lines.append(f"{edges[i]:>8.3f}  {bars}")
    return "\n".join(line.rstrip() for line in lines)
