"""The command that makes one model of several."""

from __future__ import annotations

from contrastive_text.cli.commands import Merge
from contrastive_text.cli.files import plain_form
from contrastive_text.cli.models import load_model, warnings_as_notes
from contrastive_text.core.markdown import as_markdown
from contrastive_text.core.storage.disk import alone_with
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.terminal import say
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.inference.merging import merge as merged
from contrastive_text.inference.merging import merged_card, short_names


def merge(options: Merge) -> None:
    """Saves the mean of the weights of models, and scores it beside its members where there are pairs."""
    bounds = Bounds.of(options.bounds)
    pairs = read_pairs(options.pairs, bounds=bounds, form=plain_form()) if options.pairs else None
    weights = options.weights or None
    with alone_with(options.output):
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
            last = str(options.pairs).replace("\\", "/").rpartition("/")[2]
            model.card = merged_card(model, options.models, weights, scores, f"{setting} {as_markdown(last)}.")
            for name, score in scores.items():
                say(f"{score:6.2f}  {name} x 100 on {options.pairs}")
        model.save_pretrained(options.output)
    say(f"Mean of {len(options.models)} models saved to {options.output}. Next:")
    say(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {options.output}")
