"""From rows to one ragged batch: choose, alter, tokenise; runs in the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, fold_each, generator, text_id
from contrastive_text.core.types import ROLES, Example, Frame, Role, Row, Slot, Text, TextPair, Tokens
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.token_rows import Tokenised, batch_of, edited_ids, flat, framed_row
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.losses.comparison import HIDDEN_ID
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan
from contrastive_text.views.plan import role_of

PAIRING = -1
"""Takes the place of the example's number in the key of a pairing's draws."""


def row_keys(
    seed: int, task: str, epochs: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the keys of rows of a task, on which all their draws depend."""
    return fold_each(seed, text_id(task), epochs, numbers)


class KeyedRow(NamedTuple):
    """A row with what its random draws depend on, and the objectives that it is for (None: all).

    ``shares`` are the rows of its task that each rank has in the step; none where that isn't known.
    """

    epoch: int
    number: int
    row: Row
    task: str = "train"
    objectives: tuple[str, ...] | None = None
    shares: tuple[int, ...] = ()


def example_texts(example: Example, originals: int = 0) -> list[Text]:
    """Returns the texts of an example in row order: those of ``example_slots``."""
    texts = [example.anchor, *example.positives, *example.negatives]
    if example.views_per_text > 1:
        texts = [text for text in texts for _ in range(example.views_per_text)]
    return texts + [example.anchor] * originals


def example_slots(example: Example, originals: int = 0) -> list[tuple[Slot, Text]]:
    """Returns the texts of an example with their slots, in row order.

    Args:
        example: What a pairing returned.
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


class Collator:
    """Makes a batch from keyed rows; the same rows with the same keys give the same batch anywhere.

    Args:
        tokenizer: Owner of special tokens and lengths.
        pairing: Which texts of a row belong together.
        plan: Which views run on which role.
        seed: Seed of every draw.
        task: Name of the data set, part of every draw's key.
        originals: Copies of the anchor in the role ``original``, where that has a chain or is read.
        prompts: What stands before the texts of each role; the task's own names come first.
        keep_texts: Whether batches hold the texts, for what has a tokenizer of its own.
        reads: The roles that objectives read.

    Raises:
        ValueError: A prompt or a template that leaves no room for a text, or two texts in one sequence with one.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        pairing: Pairing,
        plan: ViewPlan,
        seed: int,
        task: str = "train",
        originals: int = 1,
        prompts: Prompts = NO_PROMPTS,
        keep_texts: bool = False,
        reads: Sequence[Role] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.pairing = pairing
        self.plan = plan
        self.seed = seed
        self.task = task
        self.originals = originals if "original" in (*plan.roles, *reads) else 0
        self.prompts = prompts
        self.keep_texts = keep_texts
        self._check_frames()

    def _check_frames(self) -> None:
        for role in ROLES:
            prompt = self._prompt(role)
            if prompt and self.pairing.joins:
                raise InvalidValueError(
                    f"model.prompts: expected none before two texts in one sequence, got {prompt.before!r} for "
                    f"{type(self.pairing).__name__}; give the data set a prompt of its own that is empty: "
                    f"{self.task}: ''"
                )
            self.tokenizer.check_frame(prompt, f"model.prompts, {role}")
            for name in self.plan.chains:
                if role_of(name) == role and self.plan.around(name):
                    self.tokenizer.check_frame(self._frame(role, name), f"views.{name}")

    def _prompt(self, role: Role) -> Frame:
        return self.prompts.frame(self.prompts.of_role(role, self.task), self.tokenizer)

    def _frame(self, role: Role, chain_name: str | None) -> Frame:
        """Returns what stands around the texts of a role that a chain alters."""
        prompt, views = self._prompt(role), self.plan.around(chain_name)
        # One tail a text: a view's template takes the place of the model's, with what that has before the text.
        return views if prompt.after and views.after else prompt.around(views)

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows.

        Raises:
            ValueError: Rows that give different numbers of examples, positives or negatives, or none.
        """
        epochs, numbers = np.array([(item.epoch, item.number) for item in items], dtype=np.int64).T
        of_rows = row_keys(self.seed, self.task, epochs, numbers)
        drawn = zip(items, fold_each(of_rows, PAIRING).tolist(), strict=True)
        rows = [self.pairing(item.row, generator(key)) for item, key in drawn]
        examples = [example for row in rows for example in row]
        texts = [example_texts(example, self.originals) for example in examples]
        shapes = {(len(each.positives), len(each.negatives), each.views_per_text) for each in examples}
        if len(shapes) != 1 or len({len(row) for row in rows}) != 1:
            self._refuse(rows)
        slots = tuple(slot for slot, _ in example_slots(examples[0], self.originals))
        places = np.arange(len(slots))[:, np.newaxis, np.newaxis]
        keys = fold_each(of_rows[:, np.newaxis], np.arange(len(rows[0])), places)
        targets = [
            _target(item.row) if example.target is None else example.target
            for item, row in zip(items, rows, strict=True)
            for example in row
        ]
        in_order = [text for slot in zip(*texts, strict=True) for text in slot]
        batch = assemble(
            in_order,
            slots=slots,
            keys=keys.ravel(),
            tokenizer=self.tokenizer,
            plan=self.plan,
            targets=targets,
            frames=[self._frame(slot.role, self.plan.chain_name(slot)) for slot in slots],
        )
        kept = tuple(map(self.tokenizer.text, in_order)) if self.keep_texts else None
        # Every row gives as many examples.
        shares = tuple(each * len(rows[0]) for each in items[0].shares)
        return batch.replace(texts=kept, shares=shares or None)

    def _refuse(self, rows: Sequence[Sequence[Example]]) -> NoReturn:
        counts = sorted({(len(row), len(example_texts(each, self.originals))) for row in rows for each in row})
        got = ", ".join(f"{number} of {texts} texts" for number, texts in counts) or "none at all"
        raise InvalidValueError(
            f"pairing {type(self.pairing).__name__}: expected every row to give as many examples with "
            f"the same number of positives and negatives, got {got}; leave out rows that can't give them"
        )


def _target(row: Row) -> float | None:
    """Returns a row's own label or score, which its examples have unless the pairing gives them another."""
    target = row.get("target")
    return float(target) if isinstance(target, int | float) else None


class StepCollator:
    """Makes what one step is trained on from rows of several tasks.

    Args:
        collators: Task -> its collator.
        file: Name of the file that all rows are of, where a task has several; for scores of each.
    """

    def __init__(self, collators: Mapping[str, Collator], file: str = "") -> None:
        self.collators = dict(collators)
        self.file = file

    def __call__(self, items: Sequence[KeyedRow]) -> StepBatch:
        """Returns a batch for each task among the rows; see ``Collator``."""
        tasks = dict.fromkeys(item.task for item in items)
        return StepBatch(
            {task: self.collators[task]([item for item in items if item.task == task]) for task in tasks},
            objectives=items[0].objectives,
        )


def assemble(
    texts: Sequence[Text],
    slots: tuple[Slot, ...],
    keys: npt.NDArray[np.int64],
    tokenizer: TextTokenizer,
    plan: ViewPlan,
    targets: Sequence[float | None] = (),
    frames: Sequence[Frame] = (),
) -> Batch:
    """Alters, tokenises and concatenates texts.

    Text views alter texts alone, and token views the tokens of texts alone; then what stands around them is put
    there. Token views after special tokens and embedding views see the whole row. An empty text in the role
    negative is a hard negative that the row lacks: no view alters it, and its id hides it from every row.

    Args:
        texts: The texts of all examples, slot by slot.
        slots: The slots.
        keys: Key of the draws for each text.
        tokenizer: Owner of special tokens and lengths.
        plan: Which views run on which slot.
        targets: Target of each example; none if one of them has none.
        frames: What stands around the texts of each slot; empty for nothing.
    """
    examples = len(texts) // len(slots)
    framed = [frame for frame in frames or [Frame()] * len(slots) for _ in range(examples)]
    draw_keys = keys.tolist()
    names = [name for name in map(plan.chain_name, slots) for _ in range(examples)]
    missing = [i for i, text in enumerate(texts) if text == "" and slots[i // examples].role == "negative"]
    for i in missing:
        names[i] = None
    altered = list(texts)
    rngs: dict[int, np.random.Generator] = {}
    for chain_name in plan.text_chains:
        own = {i: generator(draw_keys[i]) for i, name in enumerate(names) if name == chain_name}
        # A span that text views alter becomes text again.
        strings = plan.alter_texts(chain_name, [tokenizer.text(texts[i]) for i in own], list(own.values()))
        for i, string in zip(own, strings, strict=True):
            altered[i] = string
        rngs |= own
    read = {
        frame: Tokenised(
            (text for text, its in zip(altered, framed, strict=True) if its == frame),
            tokenizer,
            frame,
            with_words=bool(plan.token_chains),
        )
        for frame in dict.fromkeys(framed)
    }
    rows = [
        read[frame].plain(text)
        if name is None or name not in plan.token_chains
        # Each generator is given up before the next one is asked for, which then takes its place.
        else framed_row(
            read[frame].framed(text),
            tokenizer,
            partial(plan.alter_tokens, name, rng=rngs.pop(i) if i in rngs else generator(draw_keys[i])),
        )
        for i, (text, name, frame) in enumerate(zip(altered, names, framed, strict=True))
    ]
    ids = {text: _content_id(text) for text in dict.fromkeys(texts) if not isinstance(text, Tokens)}
    text_ids = flat([[_span_id(text) if isinstance(text, Tokens) else ids[text] for text in texts]])
    if plan.text_chains or plan.token_chains:  # editing can make other texts equal
        text_ids = torch.stack([text_ids, edited_ids(rows, tokenizer)], dim=1)
    if missing:
        text_ids[missing] = HIDDEN_ID
    batch = batch_of(rows, tokenizer, slots, torch.from_numpy(keys), text_ids)
    return batch.replace(
        target=torch.tensor(targets, dtype=torch.float64) if targets and None not in targets else None,
        unpooled=torch.tensor([frame.unpooled for frame in framed])
        if any(frame.unpooled for frame in frames)
        else None,
    )


def _content_id(text: str | TextPair) -> int:
    return text_id(text) if isinstance(text, str) else fold(*map(text_id, text))


def _span_id(span: Tokens) -> int:
    return text_id(np.array(span.ids).tobytes())
