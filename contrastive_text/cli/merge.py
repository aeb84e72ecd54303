"""Command ``merge``: saves the mean of the weights of several models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.options import Model, Texts, TextsCommand
from contrastive_text.cli.paths import WrittenFolder
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.terminal import as_markdown, print_message


@dataclass(frozen=True)
class Merge(TextsCommand):
    """Save the mean of the weights of models that were trained from the same weights (Wortsman et al. 2022)."""

    output: Annotated[Path, WrittenFolder(key=MODULES), "Folder of the new model."]
    models: Annotated[Sequence[Model], "Two or more model folders or names on the hub."]
    _: KW_ONLY
    weights: Annotated[
        Sequence[float], {"metavar": "W"}, "Weight of each model, above 0. Default: equal weights."
    ] = ()
    pairs: Annotated[
        Texts | None,
        "File of scored pairs, to print the Spearman correlation of the merged model and its members.",
    ] = None


def merge(options: Merge) -> None:
    """Saves the mean of the weights of models. With ``--pairs``, scores the merged model and its members."""
    from contrastive_text.cli.files import plain_form
    from contrastive_text.cli.models import load_model, warnings_as_notes
    from contrastive_text.core.storage.disk import lock_output
    from contrastive_text.core.storage.text_files import SizeLimits
    from contrastive_text.data import read_pairs
    from contrastive_text.evaluation import evaluate_pairs
    from contrastive_text.inference.postprocessing import merge as merged
    from contrastive_text.inference.postprocessing import merged_card, short_names

    bounds = SizeLimits.of(options.bounds)
    pairs = read_pairs(options.pairs, bounds=bounds, form=plain_form()) if options.pairs else None
    weights = options.weights or None
    with lock_output(options.output):
        with warnings_as_notes():
            model = merged(options.models, weights)
        if pairs is not None:
            scores = {}
            for name, path in zip(short_names(options.models), options.models, strict=True):
                member = load_model(path, options.device)
                scores[f"{name}, Spearman"] = evaluate_pairs(member, pairs, options.batch_size)[0].spearman
            model.to(member.device)
            scores["this model, Spearman"] = evaluate_pairs(model, pairs, options.batch_size)[0].spearman
            setting = f"Correlation of cosine and score, times 100, of the {len(pairs):,} pairs of"
            file_name = str(options.pairs).replace("\\", "/").rpartition("/")[2]
            setting = f"{setting} {as_markdown(file_name)}."
            model.card = merged_card(model, options.models, weights, scores, setting)
            for name, score in scores.items():
                print_message(f"{score:6.2f}  {name} x 100 on {options.pairs}")
        model.save_pretrained(options.output)
    print_message(f"Mean of {len(options.models)} models saved to {options.output}. Next:")
    print_message(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {options.output}")
