"""Command ``postprocess``: adds a layer to a saved model that whitens vectors or removes their top components."""

from __future__ import annotations

import torch

from contrastive_text.cli.commands import Postprocess
from contrastive_text.cli.files import form_of, plain_form
from contrastive_text.cli.models import load_model, say_truncated
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import lock_output
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import print_message
from contrastive_text.data import Table, read_pairs, read_rows
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.inference.postprocessing import (
    fit_component_removal,
    fit_whitening,
    with_layer,
    without_normalization,
)
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import mean_cosine


def postprocess(options: Postprocess) -> None:
    """Fits an affine layer to the vectors of texts, and saves the model with this layer.

    Raises:
        ValueError: Both or neither of ``--whiten`` and ``--remove_components`` are given, or ``--features`` is
            given without ``--whiten``.
    """
    if options.whiten is (options.remove_components is not None):
        got, todo = ("both", "drop one") if options.whiten else ("neither", "give one")
        raise InvalidValueError(f"postprocess: expected --whiten or --remove_components, got {got}; {todo}")
    if options.features is not None and not options.whiten:
        raise InvalidValueError(
            "--features: expected it with --whiten, got it with --remove_components, which keeps all features; "
            "drop --features"
        )
    with lock_output(options.output):
        _postprocess(options)


def _postprocess(options: Postprocess) -> None:
    bounds = SizeLimits.of(options.bounds)
    table = read_rows(
        options.texts,
        reads=("text",),
        columns={"text": options.column} if options.column else None,
        bounds=bounds,
        form=form_of(options),
    )
    print_message(table.description)
    pairs = read_pairs(options.pairs, bounds=bounds, form=plain_form()) if options.pairs else None
    texts = list(dict.fromkeys(str(row["text"]) for row in table))
    model = load_model(options.model, device=options.device)
    model.require_dense("postprocess")
    plain = without_normalization(model)
    encoded = plain.encode(texts, batch_size=options.batch_size, show_progress_bar=True, convert_to_tensor=True)
    vectors = torch.as_tensor(encoded).cpu()
    say_truncated(plain.truncated, len(texts), plain)
    if options.whiten:
        layer, change = fit_whitening(vectors, options.features), "whitened"
    else:
        layer = fit_component_removal(vectors, options.remove_components)
        change = f"removed the mean and {options.remove_components} top components"
    processed = with_layer(model, layer)
    processed.save_pretrained(options.output)
    widths = f"{layer.in_features} -> {layer.out_features} features"
    print_message(f"{change}: {widths}, fitted on {len(texts):,} different texts")
    after = layer(vectors.double())
    print_message(f"mean cosine of two texts: {mean_cosine(vectors):.4f} before, {mean_cosine(after):.4f} after")
    if pairs is not None:
        old, new = (_score(scored, pairs, options.batch_size) for scored in (model, processed))
        print_message(f"Spearman x 100 on {options.pairs}: {old:.2f} before, {new:.2f} after")
    print_message(f"saved to {options.output}")


def _score(model: SentenceEncoder, pairs: Table, batch_size: int) -> float:
    """Returns the Spearman correlation of cosine and gold score on pairs, times 100."""
    return evaluate_pairs(model, pairs, batch_size=batch_size, show_progress_bar=True)[0].spearman
