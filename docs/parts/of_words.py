"""Pictures of pairings, of text and token views and of masked language modeling: words in boxes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import get_args

import torch
from sheet import BOX, GAP, LABELS, LINE, MARGIN, PAD, ROW, SMALL, WIDTH, Box, Kind, Sheet, box_width, text_width
from torch.nn.functional import one_hot

from contrastive_text.core.batch import Encoded
from contrastive_text.core.random import RowRandom, generator
from contrastive_text.core.types import NO_LABEL, NO_WORD, Row, TextPair, Tokens, Vocabulary
from contrastive_text.objectives import MaskedLM, Terms
from contrastive_text.pairings import Pairing, Spans
from contrastive_text.pairings.spans import Strategy
from contrastive_text.views import MaskTokens, TextView, TokenView

SENTENCE = "a man with a hard hat is dancing in the street"
WORDS = SENTENCE.split()
ROWS = ["[CLS]", *WORDS, "[SEP]"]
TABLE = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[DEL]", *dict.fromkeys(WORDS), "bird", "green", "river", "seven"]
VOCABULARY = Vocabulary(
    size=len(TABLE), mask_id=3, special_ids=frozenset(range(5)), prefix=1, suffix=1, added={"[DEL]": 4}
)


def call(part: object) -> str:
    """Returns a part as Python, without the arguments left at their defaults."""
    parameters = inspect.signature(type(part)).parameters.values()
    given = {each: vars(part)[each.name] for each in parameters if vars(part)[each.name] != each.default}
    said = [
        said_value(value) if each.default is each.empty else f"{each.name}={said_value(value)}"
        for each, value in given.items()
    ]
    return f"{type(part).__name__}({', '.join(said)})"


def said_value(value: object) -> str:
    """Returns an argument as Python; a part of its own, or a folder, by its name only."""
    if isinstance(value, str):
        return repr(Path(value).name if Path(value).is_absolute() else value)
    plain = value is None or isinstance(value, bool | int | float)
    return repr(value) if plain else f"{type(value).__name__}(...)"


def tokens(words: Sequence[str]) -> Tokens:
    """Returns words as tokens, one each."""
    numbers = [NO_WORD if word in ("[CLS]", "[SEP]") else i for i, word in enumerate(words)]
    return Tokens(ids=tuple(map(TABLE.index, words)), words=tuple(numbers))


def compared(before: Sequence[str], after: Sequence[str]) -> tuple[list[Box], list[Box], list[tuple[int, int]]]:
    """Returns both texts as boxes with what happened to each word, and from where to where words moved."""
    old: list[Kind] = ["kept"] * len(before)
    new: list[Kind] = ["kept"] * len(after)
    for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            old[i:j], new[k:m] = ["gone"] * (j - i), ["new"] * (m - k)
    moves = []
    for i, word in enumerate(before):
        there = [k for k, other in enumerate(after) if other == word and new[k] == "new"]
        if old[i] == "gone" and there:
            old[i] = new[there[0]] = "moved"
            moves.append((i, there[0]))
    return list(map(Box, before, old)), list(map(Box, after, new)), moves


def two_rows(part: object, before: list[Box], after: list[Box], moves: Sequence[tuple[int, int]] = ()) -> Sheet:
    """Draws a text before and after a part, word under word where no word went or came."""
    said = [
        " ".join(f"{box.text} ({box.note})" if box.note else box.text for box in boxes)
        for boxes in (before, after)
    ]
    sheet = Sheet(f"{type(part).__name__}: “{said[0]}” becomes “{said[1]}”", call(part))
    widths = [max(map(box_width, pair)) for pair in zip(before, after, strict=False)]
    aligned = len(before) == len(after) and sum(widths) + GAP * len(widths) <= WIDTH - 2 * MARGIN
    sheet.label("before")
    old = sheet.boxes(before, widths=widths if aligned else None)
    sheet.label("after")
    new = sheet.boxes(after, widths=widths if aligned else None)
    for i, k in moves:
        sheet.path([(old[i].middle, old[i].bottom), (new[k].middle, new[k].top)], kind="moved")
    return sheet


def text_view(view: TextView, key: int) -> Sheet:
    """Draws what a text view does to the sentence."""
    return two_rows(view, *compared(WORDS, view(SENTENCE, generator(key)).split()))


def token_view(view: TokenView, key: int) -> Sheet:
    """Draws what a token view does to the sentence, with positions or labels below where it sets them."""
    view.build(VOCABULARY)
    words = ROWS if view.after_specials else WORDS
    altered = view(tokens(words), generator(key))
    before, after, moves = compared(words, [TABLE[i] for i in altered.ids])
    if altered.positions is not None:
        before = [box._replace(note=str(place)) for place, box in enumerate(before)]
        after = [
            box._replace(note=str(place), note_kind="kept" if place == i else "new")
            for i, (box, place) in enumerate(zip(after, altered.positions, strict=True))
        ]
    if altered.labels is not None:
        wanted = ["" if label == NO_LABEL else TABLE[label] for label in altered.labels]
        after = [box._replace(note=word) for box, word in zip(after, wanted, strict=True)]
    return two_rows(view, before, after, moves)


def pairing(part: Pairing, row: Row) -> Sheet:
    """Draws a row of the data and the example that a pairing makes of it."""
    (example,) = part(row, generator(0))
    anchor = " [SEP] ".join(example.anchor) if isinstance(example.anchor, TextPair) else example.anchor
    roles = [("anchor", anchor), *(("positive", text) for text in example.positives)]
    roles += [("negative", text) for text in example.negatives]
    said = "; ".join(f"{role}: {text}" for role, text in roles)
    sheet = Sheet(f"{type(part).__name__}: {said}", call(part))
    x = MARGIN + LABELS
    for title, texts in (("row of the data", list(row.items())), ("example", roles)):
        sheet.label(title)
        top = sheet.y
        for name, text in texts:
            sheet.text(x - 10, sheet.y + BOX - 8, name, size=SMALL, anchor="end")
            sheet.boxes([Box(str(text))], x=x)
    edge, above = x + text_width(SENTENCE) + 2 * PAD + 6, top + BOX // 2
    for i, (role, _) in enumerate(roles[1:], start=1):
        below = above + i * LINE
        if role == "positive":
            bracket(sheet, edge, edge + 10, above, below, kind="moved")
            sheet.text(edge + 16, below - LINE // 2 + 5, "together", kind="soft", size=SMALL)
        else:
            end = WIDTH - MARGIN - 8
            bracket(sheet, edge, end, above - 6, below, kind="gone faint")
            sheet.text(end - 6, below - 6, "apart", kind="soft", size=SMALL, anchor="end")
    return sheet


def bracket(sheet: Sheet, left: float, right: float, top: float, bottom: float, kind: str) -> None:
    """Draws a bracket that is open to the left."""
    sheet.path([(left, top), (right, top), (right, bottom), (left, bottom)], kind)


def spans(key: int) -> Sheet:
    """Draws anchors and positives of a document as bars, by strategy; one key gives the same anchors to all."""
    length, x, kinds = 2048, MARGIN + LABELS, ("moved", "new")
    strategies: tuple[Strategy, ...] = get_args(Strategy)
    placed = {strategy: Spans(strategy=strategy).draw_spans(length, generator(key)) for strategy in strategies}
    anchors = [anchor for anchor, _ in placed["any"]]
    longest = Spans().max_length
    sheet = Sheet("Spans: where anchors and positives of a document lie", call(Spans()))

    def at(token: int) -> int:
        return round(x + token * (WIDTH - MARGIN - x) / length)

    def bars(name: str, spans: Sequence[range], kinds: Sequence[str] = kinds) -> None:
        sheet.names([name])
        for span, kind in zip(spans, kinds, strict=True):
            sheet.rectangle(at(span.start), sheet.y, at(span.stop) - at(span.start), ROW - 4, kind=kind)
        sheet.y += ROW

    sheet.label(f"{length:,} tokens in blocks of {longest}; positives have their anchor's color")
    blocks = [range(start, start + longest) for start in range(0, length, longest)]
    bars("document", blocks, kinds=["kept"] * len(blocks))
    bars("anchors", anchors)
    top = sheet.y - 4
    for strategy, examples in placed.items():
        sheet.y += PAD
        for number, lane in enumerate(zip(*(positives for _, positives in examples), strict=True)):
            bars("" if number else strategy, lane)
    for anchor, kind in zip(anchors, kinds, strict=True):
        for edge in (at(anchor.start), at(anchor.stop)):
            sheet.path([(edge, top), (edge, sheet.y)], kind=f"{kind} faint")
    sheet.y += PAD
    return sheet


def masked_lm_objective(view: MaskTokens, key: int) -> Sheet:
    """Draws the hidden tokens of the sentence, what is wanted there, and what each costs."""
    view.build(VOCABULARY)
    altered = view(tokens(WORDS), generator(key))
    assert altered.labels is not None
    labels = torch.tensor([label for label in altered.labels if label != NO_LABEL])
    # Scores in place of vectors: a made-up network that is more or less sure of the right word.
    scores = RowRandom(torch.tensor([key])).randn(len(labels), len(TABLE))[0]
    scores += 4 * one_hot(labels, len(TABLE))

    def loss(rows: slice) -> float:
        terms: Terms = MaskedLM()(Encoded(
            torch.zeros(1, 1), slots=(), text_ids=torch.zeros(1), masked_hidden=scores[rows],
            masked_labels=labels[rows], token_logits=lambda hidden: hidden,
        ))  # fmt: skip
        return float(terms.total) / terms.count

    costs = iter([f"{loss(slice(i, i + 1)):.2f}" for i in range(len(labels))])
    _, read, _ = compared(WORDS, [TABLE[i] for i in altered.ids])
    wanted = [
        Box("") if label == NO_LABEL else Box(TABLE[label], "moved", note=next(costs)) for label in altered.labels
    ]
    widths = [max(map(box_width, pair)) for pair in zip(read, wanted, strict=True)]
    sheet = Sheet("MaskedLM: only hidden places are predicted, and cost", call(MaskedLM()))
    sheet.label("what the network reads")
    places = sheet.boxes(read, widths)
    for place, box in zip(places, wanted, strict=True):
        if box.text:
            sheet.arrow(place.middle, place.bottom + 2, 0, LINE - BOX + 16, kind="moved")
    sheet.y += 20
    sheet.boxes(wanted, widths)
    sheet.label(f"what is wanted, and the cross entropy of each; the loss is their mean, {loss(slice(None)):.2f}")
    return sheet
