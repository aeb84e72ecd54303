"""Collation of rows, or of texts alone, to a batch: pairing, views, tokenization and truncation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, Context, StepBatch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, fold_keys, generator, hash_rows, text_id
from contrastive_text.core.types import (
    NO_LABEL,
    ROLES,
    Example,
    Role,
    Row,
    Slot,
    Template,
    Text,
    TextPair,
    Tokens,
)
from contrastive_text.data.files.labels import collate_scores
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import TemplatedText, TextRow, TextTokenizer
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan
from contrastive_text.views.plan import role_of


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


PAIRING = -1
"""Number in place of an example's number in the key of a pairing's random draws."""


def row_keys(
    seed: int, task: str, epochs: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the keys of rows of a task, from which all their random draws derive."""
    return fold_keys(seed, text_id(task), epochs, numbers)


_NO_ROW: Row = {}


class KeyedRow(NamedTuple):
    """A row of a task, or only its key, with everything that its random draws depend on.

    Args:
        epoch: Number of the epoch.
        number: Number of the row in its task.
        row: The row's cells; empty for a key.
        task: Name of the data set.
        objectives: Names of the objectives that read it; None for all objectives.
        shares: Number of rows of the task that each rank has in the step; empty if unknown.
    """

    epoch: int
    number: int
    row: Row = _NO_ROW
    task: str = "train"
    objectives: tuple[str, ...] | None = None
    shares: tuple[int, ...] = ()


def example_texts(example: Example, originals: int = 0) -> list[Text]:
    """Returns the texts of an example in row order, as in ``example_slots``."""
    texts = [example.anchor, *example.positives, *example.negatives]
    if example.views_per_text > 1:
        texts = [text for text in texts for _ in range(example.views_per_text)]
    return texts + [example.anchor] * originals


def example_slots(example: Example, originals: int = 0) -> list[tuple[Slot, Text]]:
    """Returns the texts of an example with their slots, in row order.

    Args:
        example: Example from a pairing.
        originals: Number of unaltered copies of the anchor.
    """
    counts: tuple[tuple[Role, int], ...] = (
        ("anchor", example.views_per_text),
        ("positive", example.views_per_text * len(example.positives)),
        ("negative", example.views_per_text * len(example.negatives)),
        ("original", originals),
    )
    slots = [Slot(role, number) for role, count in counts for number in range(count)]
    return list(zip(slots, example_texts(example, originals), strict=True))


@dataclass(eq=False)
class Collator:
    """Builds a batch from keyed rows. The same rows with the same keys give the same batch on every machine.

    Args:
        tokenizer: Tokenizer, which sets special tokens and lengths.
        pairing: Part that turns a row into examples.
        plan: Views of each role.
        seed: Seed of every random draw.
        task: Name of the data set, which is part of the key of every draw.
        originals: Number of unaltered copies of the anchor in the role ``original``, if a chain or an objective
            uses that role.
        prompts: Prompts of each role. Prompts named after the task take precedence.
        keep_texts: Whether batches keep the texts, for parts with their own tokenizer.
        reads: Roles that objectives read.

    Raises:
        ValueError: A prompt or template that leaves no room for a text, or a prompt for two texts in one
            sequence.
    """

    tokenizer: TextTokenizer
    pairing: Pairing
    plan: ViewPlan
    seed: int
    task: str = "train"
    originals: int = 1
    prompts: Prompts = NO_PROMPTS
    keep_texts: bool = False
    reads: Sequence[Role] = ()

    def __post_init__(self) -> None:
        if "original" not in (*self.plan.roles, *self.reads):
            self.originals = 0
        for role in ROLES:
            prompt = self._prompt(role)
            if prompt and self.pairing.joins_texts:
                raise InvalidValueError(
                    f"model.prompts: expected none before two texts in one sequence, got {prompt.before!r} for "
                    f"{type(self.pairing).__name__}; set empty prompts: "
                    """--model.prompts.named '{query: "", document: ""}'"""
                )
            self.tokenizer.check_template(prompt, f"model.prompts, {role}")
            for name in self.plan.chains:
                if role_of(name) == role and self.plan.combined_template(name):
                    self.tokenizer.check_template(self._template(role, name), f"views.{name}")

    def _prompt(self, role: Role) -> Template:
        return self.prompts.template(self.prompts.of_role(role, self.task), self.tokenizer)

    def _template(self, role: Role, chain_name: str | None) -> Template:
        """Returns the template of the texts of a role that a chain alters, from its views and the prompt."""
        prompt, views = self._prompt(role), self.plan.combined_template(chain_name)
        # Only one template may have a part after the text: a view's template then replaces the prompt.
        return views if prompt.after and views.after else prompt.wrap(views)

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Builds a batch from keyed rows: pairing, views, tokenization and truncation.

        Raises:
            ValueError: Rows that give no example, or different numbers of examples, positives or negatives.
        """
        epochs, numbers = np.array([(item.epoch, item.number) for item in items], dtype=np.int64).T
        keys_of_rows = row_keys(self.seed, self.task, epochs, numbers)
        row_draws = zip(items, fold_keys(keys_of_rows, PAIRING).tolist(), strict=True)
        rows = [self.pairing(item.row, generator(key)) for item, key in row_draws]
        examples = [example for row in rows for example in row]
        texts = [example_texts(example, self.originals) for example in examples]
        shapes = {
            (len(example.positives), len(example.negatives), example.views_per_text) for example in examples
        }
        if len(shapes) != 1 or len({len(row) for row in rows}) != 1:
            counts = sorted({(len(row), len(example_texts(example))) for row in rows for example in row})
            got = ", ".join(f"{number} of {size} texts" for number, size in counts) or "none at all"
            raise InvalidValueError(
                f"pairing {type(self.pairing).__name__}: expected the same number of examples, positives and "
                f"negatives from every row, got {got}; remove rows with fewer"
            )
        slots = tuple(slot for slot, _ in example_slots(examples[0], self.originals))
        slot_numbers = np.arange(len(slots))[:, np.newaxis, np.newaxis]
        keys = fold_keys(keys_of_rows[:, np.newaxis], np.arange(len(rows[0])), slot_numbers)
        row_targets = [
            cell if isinstance(cell := item.row.get("target"), int | float) else None for item in items
        ]
        targets = [
            target if example.target is None else example.target
            for target, row in zip(row_targets, rows, strict=True)
            for example in row
        ]
        ordered_texts = [text for slot in zip(*texts, strict=True) for text in slot]
        batch = build_altered_batch(
            ordered_texts,
            slots=slots,
            keys=keys.ravel(),
            tokenizer=self.tokenizer,
            plan=self.plan,
            targets=targets,
            templates=[self._template(slot.role, self.plan.chain_name(slot)) for slot in slots],
        )
        kept_texts = tuple(map(self.tokenizer.text, ordered_texts)) if self.keep_texts else None
        # Every row gives the same number of examples.
        shares = tuple(share * len(rows[0]) for share in items[0].shares)
        scores = collate_scores(examples, type(self.pairing).__name__)
        context = collate_context(examples, self.tokenizer, batch) if self.pairing.in_context else None
        return batch.replace(texts=kept_texts, rank_sizes=shares or None, scores=scores, context=context)


@dataclass(frozen=True)
class StepCollator:
    """Builds the batches of a training step from rows of several tasks.

    Args:
        collators: Task -> its collator.
        file: Name of the file of all rows, if a task has several files with separate scores.
    """

    collators: Mapping[str, Collator]
    file: str = ""

    def __call__(self, items: Sequence[KeyedRow]) -> StepBatch:
        """Builds a batch for each task among the rows; see ``Collator``."""
        tasks = dict.fromkeys(item.task for item in items)
        return StepBatch(
            {task: self.collators[task]([item for item in items if item.task == task]) for task in tasks},
            objectives=items[0].objectives,
        )


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
