"""The command that says how a model's vectors lie in space."""

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
from contrastive_text.cli.models import load_model
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.terminal import console, say
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import Diagnosis, takes_mean
from contrastive_text.evaluation.diagnosis import diagnose as measure
from contrastive_text.inference.vector_index import TextVectors


def diagnose(options: Diagnose) -> None:
    """Prints how the vectors of a file's texts lie in space, and what is off, in words."""
    bounds = Bounds.of(options.bounds)
    table = read_rows(options.texts, reads=("text",), bounds=bounds, form=plain_form())
    pairs = None if options.pairs is None else read_pairs(options.pairs, bounds=bounds, form=plain_form())
    as_json = options.format == "json"
    if not as_json:
        say("\n".join(each.understood for each in (table, pairs) if each is not None))
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # standard output is JSON and nothing else
        model = load_model(options.model, device=options.device, pooler=options.pooler)
        embed = CachedEncoder(model, batch_size=options.batch_size, show_progress_bar=not as_json)
        texts = [str(row["text"]) for row in table]
        guide = None if options.guide is None else _guide(options.guide, options)
        found = measure(embed, texts, pairs=pairs, limit=options.limit, seed=options.seed, guide=guide)
        if embed.truncated:
            say(f"{embed.truncated:,} of {embed.encoded:,} texts were cut to {model.max_length} tokens")
    if as_json:
        said = json.dumps(found.to_dict(), indent=2)
    else:
        head = f"{options.model}: {model.pooling}, {found.texts:,} different texts of {len(texts):,}"
        said = _as_text(head, found, mean=takes_mean(model))
    print_or_write(said, options.output, "Diagnosis", as_json)


def _guide(path: str, options: Diagnose) -> Callable[[Sequence[str]], Tensor]:
    """Returns what gives a guide's vectors of texts: its file, or the model itself."""
    if path.endswith(".npy"):
        vectors = TextVectors(path)
        return lambda texts: at_least_float32(torch.from_numpy(vectors.of_texts(texts)))
    model = load_model(path, device=options.device)
    return CachedEncoder(model, batch_size=options.batch_size, show_progress_bar=options.format != "json")


def _as_text(head: str, found: Diagnosis, mean: bool) -> str:
    """Returns the figures as a table, and under it what is off."""
    table = Table("figure", "value", "range", "what it means", title="how the vectors lie", title_justify="left")
    for row in _rows(found, mean):
        table.add_row(*map(Text, row))
    shown = io.StringIO()
    console(file=shown).print(table)
    verdicts = [f"warning: {each}" for each in found.warnings] or ["nothing is off"]
    return "\n".join([head, shown.getvalue().rstrip(), *verdicts])


def _rows(found: Diagnosis, mean: bool) -> list[tuple[str, str, str, str]]:
    """Returns for each figure its name, value, range and meaning."""
    most = min(found.texts, found.features)
    orphans = f"{found.orphans:.1%}"
    rows = [
        ("mean cosine", f"{found.mean_cosine:.3f}", "-1 to 1", "of two texts; 0 is spread out, 1 collapsed"),
        ("uniformity", f"{found.uniformity:.3f}", "-4 to 0", "lower is more evenly spread; 0 is collapsed"),
        ("effective rank", f"{found.effective_rank:.1f}", f"1 to {most}", "directions that the vectors fill"),
        ("isotropy", f"{found.isotropy:.3f}", "0 to 1", "how evenly they are filled around the mean (IsoScore)"),
        (
            "off-diagonal",
            f"{found.off_diagonal:.3f}",
            "0 to 1",
            "correlation of features; high where they repeat",
        ),
        (
            "hubness",
            f"{found.hubness:.2f}",
            "0 upward",
            "skewness of neighbourhoods; high where few texts are hubs",
        ),
        ("orphans", orphans, "0% to 100%", "texts that are among no other's nearest neighbours"),
    ]
    if found.guide_agreement is not None:
        agreed = f"{found.guide_agreement:.1%}"
        rows.append(("guide agreement", agreed, "0% to 100%", "texts of which both models find the same nearest"))
    if found.alignment is None:
        return rows
    rows.append(("alignment", f"{found.alignment:.3f}", "0 to 4", "distance of positives; lower is nearer"))
    if found.spearman is None:
        return [*rows, ("Spearman x 100", "n/a", "-100 to 100", "all pairs have the same score")]
    rows.append(("Spearman x 100", f"{found.spearman:.2f}", "-100 to 100", "of cosine and gold score"))
    if not mean:
        return [*rows, ("frequency bias", "n/a", "", "the pooler takes no mean over tokens")]
    return rows + [
        (f"  without {number} tokens", f"{score:.2f}", "", "the most frequent ones are left out of the mean")
        for number, score in found.frequency or ()
        if number
    ]
