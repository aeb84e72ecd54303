"""Command ``diagnose``: measures the geometry of a model's vectors and warns of problems."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from contrastive_text.cli.commands import Diagnose
from contrastive_text.cli.files import plain_form, print_or_write
from contrastive_text.cli.models import load_model, say_truncated
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import make_console, print_message
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import Diagnosis, takes_mean
from contrastive_text.evaluation.diagnosis import diagnose as measure
from contrastive_text.inference.vector_files import TextVectors


def diagnose(options: Diagnose) -> None:
    """Prints the geometry metrics of the vectors of a file's texts, with a warning for each unusual value."""
    bounds = SizeLimits.of(options.bounds)
    table = read_rows(options.texts, reads=("text",), bounds=bounds, form=plain_form())
    pairs = None if options.pairs is None else read_pairs(options.pairs, bounds=bounds, form=plain_form())
    as_json = options.format == "json"
    if not as_json:
        print_message("\n".join(rows.description for rows in (table, pairs) if rows is not None))
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # standard output has JSON only
        model = load_model(options.model, device=options.device, pooler=options.pooler)
        embed = CachedEncoder(model, batch_size=options.batch_size, show_progress_bar=not as_json)
        texts = [str(row["text"]) for row in table]
        guide = None if options.guide is None else _guide(options.guide, options)
        diagnosis = measure(embed, texts, pairs=pairs, limit=options.limit, seed=options.seed, guide=guide)
        say_truncated(embed.truncated, embed.encoded, model)
    if as_json:
        report = json.dumps(diagnosis.to_dict(), indent=2)
    else:
        head = f"{options.model}: {model.pooling}, {diagnosis.texts:,} different texts of {len(texts):,}"
        report = _as_text(head, diagnosis, mean=takes_mean(model))
    print_or_write(report, options.output, "Diagnosis", as_json)


def _guide(path: str, options: Diagnose) -> Callable[[Sequence[str]], Tensor]:
    """Returns a function from texts to the vectors of a guide, which is a vector file or a model."""
    if path.endswith(".npy"):
        vectors = TextVectors(path)
        return lambda texts: at_least_float32(torch.from_numpy(vectors.vectors_of_texts(texts)))
    model = load_model(path, device=options.device)
    return CachedEncoder(model, batch_size=options.batch_size, show_progress_bar=options.format != "json")


def _as_text(head: str, diagnosis: Diagnosis, mean: bool) -> str:
    """Returns the geometry metrics as a table, followed by the warnings."""
    table = Table("figure", "value", "range", "meaning", title="geometry of the vectors", title_justify="left")
    for row in _rows(diagnosis, mean):
        table.add_row(*map(Text, row))
    screen = io.StringIO()
    make_console(file=screen).print(table)
    verdicts = [f"warning: {warning}" for warning in diagnosis.warnings] or ["no warnings"]
    return "\n".join([head, screen.getvalue().rstrip(), *verdicts])


def _rows(diagnosis: Diagnosis, mean: bool) -> list[tuple[str, str, str, str]]:
    """Returns the name, value, range and meaning of each geometry metric."""
    max_rank = min(diagnosis.texts, diagnosis.features)
    rank = f"{diagnosis.effective_rank:.1f}"
    rows = [
        ("mean cosine", f"{diagnosis.mean_cosine:.3f}", "-1 to 1", "of two texts; 0 is spread out, 1 collapsed"),
        ("uniformity", f"{diagnosis.uniformity:.3f}", "-4 to 0", "lower is more evenly spread; 0 is collapsed"),
        ("effective rank", rank, f"1 to {max_rank}", "number of directions that the vectors use"),
        ("isotropy", f"{diagnosis.isotropy:.3f}", "0 to 1", "how evenly the directions are used (IsoScore)"),
        ("off-diagonal", f"{diagnosis.off_diagonal:.3f}", "0 to 1", "correlation of different features"),
        ("hubness", f"{diagnosis.hubness:.2f}", "0 upward", "skewness; high if a few texts are near many others"),
        (
            "orphans",
            f"{diagnosis.orphans:.1%}",
            "0% to 100%",
            "texts that no other text has among its 10 nearest",
        ),
    ]
    if diagnosis.guide_agreement is not None:
        agreement = f"{diagnosis.guide_agreement:.1%}"
        meaning = "texts with the same nearest neighbor in both models"
        rows.append(("guide agreement", agreement, "0% to 100%", meaning))
    if diagnosis.alignment is None:
        return rows
    rows.append(("alignment", f"{diagnosis.alignment:.3f}", "0 to 4", "distance of positives; lower is nearer"))
    if diagnosis.spearman is None:
        return [*rows, ("Spearman x 100", "n/a", "-100 to 100", "all pairs have the same score")]
    rows.append(("Spearman x 100", f"{diagnosis.spearman:.2f}", "-100 to 100", "of cosine and gold score"))
    if not mean:
        return [*rows, ("frequency bias", "n/a", "", "the pooler takes no mean over tokens")]
    return rows + [
        (f"  without {number} tokens", f"{score:.2f}", "", "the most frequent tokens are not in the mean")
        for number, score in diagnosis.frequency or ()
        if number
    ]
