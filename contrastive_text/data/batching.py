"""Batches from texts: tokens, templates and special tokens of each row, without padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, Context
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, generator, hash_rows, text_id
from contrastive_text.core.types import (
    NO_LABEL,
    Example,
    Role,
    Slot,
    Template,
    Text,
    TextPair,
    Tokens,
)
from contrastive_text.data.tokenizing import TemplatedText, TextRow, TextTokenizer
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.views import ViewPlan


class BatchTexts:
    """Tokens of the texts of a batch that share a template; each distinct text is tokenized once.

    Args:
        texts: The texts.
        tokenizer: Tokenizer, which sets special tokens and lengths.
        template: Template of each text.
        with_words: Whether views read the word numbers of tokens.
    """

    def __init__(
        self, texts: Iterable[Text], tokenizer: TextTokenizer, template: Template, with_words: bool
    ) -> None:
        self.tokenizer = tokenizer
        distinct = list(dict.fromkeys(texts))
        strings = [text for text in distinct if isinstance(text, str)]
        pairs = [text for text in distinct if isinstance(text, TextPair)]
        self._templated_texts = dict(
            zip(strings, tokenizer.tokenize_with_template(strings, template, with_words), strict=True)
        )
        self._empty_template = (
            tokenizer.tokenize_with_template(["a"], template)[0] if template else TemplatedText(Tokens((), ()))
        )
        self._plain_rows: dict[Text, TextRow] = dict(zip(pairs, tokenizer.pair_rows(pairs), strict=True))

    def plain(self, text: Text) -> TextRow:
        """Returns the token ids of the row of a text that no token view alters."""
        if text not in self._plain_rows:
            self._plain_rows[text] = build_row(self.templated(text), self.tokenizer)
        return self._plain_rows[text]

    def templated(self, text: Text) -> TemplatedText:
        """Returns the tokens of a text and of its template, uncut and without special tokens."""
        assert not isinstance(text, TextPair)  # ``check_roles`` refuses views on text pairs
        return (
            self._templated_texts[text] if isinstance(text, str) else self._empty_template._replace(tokens=text)
        )


class Alteration(Protocol):
    """Function that alters the tokens of a text or, with ``after_specials``, the tokens of its whole row."""

    def __call__(self, tokens: Tokens, *, after_specials: bool = False) -> Tokens: ...


def build_row(templated: TemplatedText, tokenizer: TextTokenizer, alter: Alteration | None = None) -> TextRow:
    """Builds the row of a text with its template and special tokens. Only the text is truncated.

    Args:
        templated: Tokens of the text and of its template.
        tokenizer: Tokenizer, which sets special tokens and lengths.
        alter: Alters the tokens of the text after truncation, and then the tokens of the whole row. Tokens that
            it adds are cut only at the network's limit.
    """
    taken = tokenizer.template_length(templated)
    around = len(tokenizer.prefix) + len(templated.before), len(templated.after) + len(tokenizer.suffix)
    has_template = bool(templated.before or templated.after)
    if alter is None:  # fast path for most texts
        ids = templated.tokens.ids
        cut_ids = ids if tokenizer.room is None else ids[: max(tokenizer.room - taken, 0)]
        ids_with_specials = [*tokenizer.prefix, *templated.before, *cut_ids, *templated.after, *tokenizer.suffix]
        return TextRow(
            ids_with_specials,
            len(cut_ids) < len(ids),
            text_ids=cut_ids if has_template else None,
            template_lengths=around,
        )
    tokens = tokenizer.truncate(templated.tokens, taken)
    altered = tokenizer.truncate(alter(tokens), len(templated.before) + len(templated.after), altered=True)
    row = alter(tokenizer.with_specials(altered, templated.before, templated.after), after_specials=True)
    return TextRow(
        row.ids,
        truncated=len(tokens) < len(templated.tokens),
        text_ids=altered.ids if has_template else None,
        positions=row.positions,
        labels=row.labels,
        template_lengths=around,
    )


def build_batch(
    rows: Sequence[TextRow], tokenizer: TextTokenizer, slots: tuple[Slot, ...], keys: Tensor, text_ids: Tensor
) -> Batch:
    """Joins rows to a batch without padding and without targets.

    Args:
        rows: Rows, slot by slot.
        tokenizer: Tokenizer, which sets special tokens.
        slots: The slots.
        keys: Key of the random draws of each row, (S,).
        text_ids: Hashes of the texts; see ``Batch``.
    """
    types = [row.types or tokenizer.types(len(row.ids)) for row in rows]
    examples, specials = len(rows) // len(slots), (len(tokenizer.prefix), len(tokenizer.suffix))
    return Batch(
        ids=concatenate([row.ids for row in rows]),
        lengths=concatenate([[len(row.ids) for row in rows]]),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(examples),
        draw_keys=keys,
        text_ids=text_ids,
        seed=fold_key(*keys[:examples].tolist()),
        positions=concatenate([row.positions or range(len(row.ids)) for row in rows])
        if any(row.positions is not None for row in rows)
        else None,
        types=concatenate([row_types or (0,) * len(row.ids) for row_types, row in zip(types, rows, strict=True)])
        if any(types)
        else None,
        labels=concatenate([row.labels or (NO_LABEL,) * len(row.ids) for row in rows])
        if any(row.labels is not None for row in rows)
        else None,
        template_lengths=torch.tensor([row.template_lengths or specials for row in rows])
        if any(row.text_ids is not None for row in rows)
        else None,
        truncated=sum(row.truncated for row in rows),
    )


def collate_texts(
    tokenizer: TextTokenizer,
    texts: Sequence[TemplatedText],
    unpooled: int = 0,
    with_empty: bool = False,
    role: Role = "anchor",
) -> Batch:
    """Builds a batch of unaltered texts from tokenized texts, for encoding outside of training.

    Args:
        tokenizer: Tokenizer, which sets special tokens and lengths.
        texts: Tokens of each text and of its template, from ``tokenizer.tokenize_with_template``.
        unpooled: Number of tokens at the start of each row that the pooler skips.
        with_empty: Whether rows may have no tokens.
        role: Role of the texts. An ``AsymmetricEncoder`` has a network for queries (``anchor``) and another.

    Raises:
        ValueError: A text without a token, if the tokenizer adds no special tokens.
    """
    text_ids = concatenate([[text_id(np.array(text.tokens.ids).tobytes()) for text in texts]])
    rows = [build_row(text, tokenizer) for text in texts]
    return collate_rows(tokenizer, rows, unpooled, text_ids, with_empty, role)


def collate_rows(
    tokenizer: TextTokenizer,
    rows: Sequence[TextRow],
    unpooled: int = 0,
    text_ids: Tensor | None = None,
    with_empty: bool = False,
    role: Role = "anchor",
) -> Batch:
    """Builds a batch of one slot from rows of tokens, such as two texts in one sequence.

    Args:
        tokenizer: Tokenizer, which sets special tokens.
        rows: Rows from ``build_row`` or ``tokenizer.pair_rows``.
        unpooled: Number of tokens at the start of each row that the pooler skips.
        text_ids: Hashes of the texts; see ``Batch``. None for zeros.
        with_empty: Whether rows may have no tokens.
        role: Role of the texts.

    Raises:
        ValueError: A row without a token, if the tokenizer adds no special tokens.
    """
    lengths = [len(row.ids) for row in rows]
    if 0 in lengths and not with_empty:
        raise InvalidValueError(
            f"texts[{lengths.index(0)}]: expected at least one token, got ''; this tokenizer adds no special "
            "tokens, so leave empty texts out"
        )
    keys = torch.zeros(len(rows), dtype=torch.long)
    batch = build_batch(rows, tokenizer, (Slot(role, 0),), keys, keys if text_ids is None else text_ids)
    return batch.replace(unpooled=torch.full_like(batch.lengths, unpooled)) if unpooled else batch


def collate_context(examples: Sequence[Example], tokenizer: TextTokenizer, batch: Batch) -> Context:
    """Builds the longer rows of a batch: for each example its document, or the part around its spans.

    Args:
        examples: N examples with ``context`` and ``spans``.
        tokenizer: Tokenizer, which sets special tokens and lengths.
        batch: Batch of the spans, slot by slot.
    """
    rows, starts = [], []
    for example in examples:
        assert example.context is not None
        first, end = min(span.start for span in example.spans), max(span.stop for span in example.spans)
        spare = 0 if tokenizer.room is None else max(len(example.context) - tokenizer.room, 0)
        room = len(example.context) - spare
        start = min(max(first - (room - (end - first)) // 2, 0), spare)
        window = example.context.take(range(start, start + room))
        rows.append(build_row(TemplatedText(window), tokenizer))
        starts.append([span.start - start + len(tokenizer.prefix) for span in example.spans])
    count = len(rows)
    return Context(
        rows=build_batch(rows, tokenizer, batch.slots[:1], batch.draw_keys[:count], batch.text_ids[:count]),
        numbers=torch.arange(count).repeat(len(batch.slots)),
        starts=torch.tensor(starts).T.flatten(),
        lengths=torch.tensor([[len(span) for span in example.spans] for example in examples]).T.flatten(),
    )


def hash_edited_rows(rows: Sequence[TextRow], tokenizer: TextTokenizer) -> Tensor:
    """Returns a hash of the token ids of each row, (S,). With templates only the ids of texts are hashed."""
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    if all(row.text_ids is None for row in rows):
        id_lists: list[Sequence[int]] = [row.ids for row in rows]
    else:
        id_lists = [
            row.ids[before : len(row.ids) - after] if row.text_ids is None else row.text_ids for row in rows
        ]
    return hash_rows(concatenate(id_lists), concatenate([[len(row_ids) for row_ids in id_lists]]))


def concatenate(rows: Sequence[Sequence[int]]) -> Tensor:
    """Concatenates the integers of all rows to one array, (T,), int64."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows))))


def _content_id(text: Text) -> int:
    if isinstance(text, Tokens):
        return text_id(np.array(text.ids).tobytes())
    return text_id(text) if isinstance(text, str) else fold_key(*map(text_id, text))


def build_altered_batch(
    texts: Sequence[Text],
    slots: tuple[Slot, ...],
    keys: npt.NDArray[np.int64],
    tokenizer: TextTokenizer,
    plan: ViewPlan,
    targets: Sequence[float | None] = (),
    templates: Sequence[Template] = (),
) -> Batch:
    """Applies the views to texts, tokenizes them, and joins them to a batch.

    Text views alter only the texts, and token views only the tokens of texts. Templates are added afterwards.
    Token views after special tokens, and embedding views, alter the whole row. An empty text in the role negative
    means that the example lacks this hard negative: no view alters it, and its text id masks it for every row.

    Args:
        texts: Texts of all examples, slot by slot.
        slots: The slots.
        keys: Key of the random draws for each text.
        tokenizer: Tokenizer, which sets special tokens and lengths.
        plan: Views of each slot.
        targets: Target of each example. If a target is None, the batch has no targets.
        templates: Template of the texts of each slot; empty for no templates.
    """
    examples = len(texts) // len(slots)
    row_templates = [template for template in templates or [Template()] * len(slots) for _ in range(examples)]
    draw_keys = keys.tolist()
    names = [name for name in map(plan.chain_name, slots) for _ in range(examples)]
    missing = [i for i, text in enumerate(texts) if text == "" and slots[i // examples].role == "negative"]
    for i in missing:
        names[i] = None
    altered_texts = list(texts)
    rngs: dict[int, np.random.Generator] = {}
    for chain_name in plan.text_chains:
        generators = {i: generator(draw_keys[i]) for i, name in enumerate(names) if name == chain_name}
        # A token span that text views alter is converted to a string first.
        strings = plan.alter_texts(
            chain_name, [tokenizer.text(texts[i]) for i in generators], list(generators.values())
        )
        for i, string in zip(generators, strings, strict=True):
            altered_texts[i] = string
        rngs |= generators
    tokenized = {
        template: BatchTexts(
            (
                text
                for text, text_template in zip(altered_texts, row_templates, strict=True)
                if text_template == template
            ),
            tokenizer,
            template,
            with_words=bool(plan.token_chains),
        )
        for template in dict.fromkeys(row_templates)
    }
    rows = [
        tokenized[template].plain(text)
        if name is None or name not in plan.token_chains
        # Each generator is released before the next one is requested, so that it can be reused.
        else build_row(
            tokenized[template].templated(text),
            tokenizer,
            partial(plan.alter_tokens, name, rng=rngs.pop(i) if i in rngs else generator(draw_keys[i])),
        )
        for i, (text, name, template) in enumerate(zip(altered_texts, names, row_templates, strict=True))
    ]
    ids = {text: _content_id(text) for text in dict.fromkeys(texts)}
    text_ids = concatenate([[ids[text] for text in texts]])
    if plan.text_chains or plan.token_chains:  # views can make different texts equal
        text_ids = torch.stack([text_ids, hash_edited_rows(rows, tokenizer)], dim=1)
    if missing:
        text_ids[missing] = MASKED_ID
    batch = build_batch(rows, tokenizer, slots, torch.from_numpy(keys), text_ids)
    return batch.replace(
        target=torch.tensor(targets, dtype=torch.float64) if targets and None not in targets else None,
        unpooled=torch.tensor([template.unpooled for template in row_templates])
        if any(template.unpooled for template in templates)
        else None,
    )
