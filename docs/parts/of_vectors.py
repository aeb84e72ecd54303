"""Pictures of views of the embedding output and of dropout: grids of features, and arrows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from of_words import ROWS, VOCABULARY, WORDS, call, tokens
from sheet import LABELS, LINE, MARGIN, PAD, ROW, SMALL, WIDTH, Sheet
from stand_ins import Noisy
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Slot
from contrastive_text.poolers import MeanPooler
from contrastive_text.training.forward_pass import Embedder, encode_views
from contrastive_text.views import Adversarial, EmbeddingView, FixedDropout, ViewPlan


def embedding_view(view: EmbeddingView, key: int) -> Sheet:
    """Draws twelve features of each token, padding too, before and after an embedding view."""
    view.build(VOCABULARY)
    names = [*ROWS, "[PAD]"]
    embeddings = RowRandom(torch.tensor([1])).randn(len(names), 12)
    mask = torch.tensor([[name != "[PAD]" for name in names]])
    altered = view(embeddings, mask, RowRandom(torch.tensor([key])))
    sheet = Sheet(f"{type(view).__name__}: tokens by features, before and after", call(view))
    draw_grids(sheet, names, [("before", embeddings[0]), ("after", altered[0])])
    return sheet


def draw_grids(sheet: Sheet, names: Sequence[str], grids: Sequence[tuple[str, Tensor]]) -> None:
    """Draws grids of twelve features side by side, with the names of their rows."""
    room = (WIDTH - 2 * MARGIN - LABELS) // len(grids)
    places = [MARGIN + LABELS + i * room for i in range(len(grids))]
    for x, (title, _) in zip(places, grids, strict=True):
        sheet.text(x, sheet.y + SMALL, title, kind="soft", size=SMALL)
    sheet.y += SMALL + 9
    sheet.names(names)
    for x, (_, numbers) in zip(places, grids, strict=True):
        sheet.grid(x, cell=(room - 8) // 12, rows=numbers.tolist())
    sheet.y += ROW * len(names)


def fixed_dropout(view: FixedDropout) -> Sheet:
    """Draws the holes of dropout in anchor and positive, without and with the marker."""
    rows = tokens(ROWS)
    batch = Batch(
        ids=torch.tensor(2 * rows.ids),
        lengths=torch.tensor(2 * [len(rows)]),
        slots=(Slot("anchor", 0), Slot("positive", 0)),
        row_slots=torch.arange(2),
        draw_keys=torch.arange(2),
        text_ids=torch.zeros(2, dtype=torch.long),
    )
    sheet = Sheet(
        "FixedDropout: anchor and positive have different holes of dropout without it, the same with it",
        call(view),
    )
    encoder = Noisy(features=12)
    for chains in ({}, {"positive": [view]}):
        encode_views(batch, Embedder(encoder, MeanPooler()), ViewPlan(chains))
    titles = ("anchor", "positive, without", "anchor", "positive, with")
    draw_grids(sheet, ROWS, list(zip(titles, encoder.seen, strict=True)))
    return sheet


def adversarial(view: Adversarial, key: int) -> Sheet:
    """Draws the gradient of each word in a plane of two features, and the step that the view takes."""
    gradient = RowRandom(torch.tensor([key])).randn(len(WORDS), 2)
    mask = torch.ones(1, len(WORDS), dtype=torch.bool)
    steps = view(torch.zeros_like(gradient), gradient, mask, RowRandom(torch.tensor([key])))
    sheet = Sheet("Adversarial: gradients of any length become steps of one length", call(view))
    column, radius = (WIDTH - 2 * MARGIN) / len(WORDS), 21
    for title, arrows, kind, scale in (
        ("gradient of the loss, two features of each word", gradient, "moved", 0.5 * radius),
        ("step", steps, "new", radius / view.norm),
    ):
        sheet.label(title)
        for i, (dx, dy) in enumerate(arrows[0].tolist()):
            x, y = MARGIN + (i + 0.5) * column, sheet.y + radius + PAD
            sheet.circle(x, y, radius)
            sheet.arrow(x, y, scale * dx, scale * dy, kind=kind)
        sheet.y += 2 * radius + 3 * PAD
    for i, word in enumerate(WORDS):
        sheet.text(MARGIN + (i + 0.5) * column, sheet.y + SMALL, word, size=SMALL, anchor="middle")
    sheet.y += LINE
    return sheet
