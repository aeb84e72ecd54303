"""From rows of a data set, or from texts alone, to one ragged batch: choose, alter, tokenise and cut."""

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

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, fold_each, generator, hash_rows, text_id
from contrastive_text.core.types import NO_LABEL, ROLES, Example, Frame, Role, Row, Slot, Text, TextPair, Tokens
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import Framed, TextRow, TextTokenizer
from contrastive_text.losses.comparison import HIDDEN_ID
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan
from contrastive_text.views.plan import role_of


class Tokenised:
    """Texts of a batch that have one frame, each distinct text tokenised once.

    Args:
        texts: The texts.
        tokenizer: Owner of special tokens and lengths.
        frame: What stands around each text.
        with_words: Whether views read the words of tokens.
    """

    def __init__(self, texts: Iterable[Text], tokenizer: TextTokenizer, frame: Frame, with_words: bool) -> None:
        self.tokenizer = tokenizer
        distinct = list(dict.fromkeys(texts))
        strings = [text for text in distinct if isinstance(text, str)]
        pairs = [text for text in distinct if isinstance(text, TextPair)]
        self._framed = dict(zip(strings, tokenizer.framed(strings, frame, with_words), strict=True))
        self._around = tokenizer.framed(["a"], frame)[0] if frame else Framed(Tokens((), ()))
        self._plain: dict[Text, TextRow] = dict(zip(pairs, tokenizer.pair_rows(pairs), strict=True))

    def plain(self, text: Text) -> TextRow:
        """Returns the row of a text that no view alters."""
        if text not in self._plain:
            self._plain[text] = framed_row(self.framed(text), self.tokenizer)
        return self._plain[text]

    def framed(self, text: Text) -> Framed:
        """Returns the tokens of a text, uncut and without special ones, between those of its frame."""
        assert not isinstance(text, TextPair)  # refused with the pairing
        return self._framed[text] if isinstance(text, str) else self._around._replace(tokens=text)


class Alteration(Protocol):
    """Alters the tokens of a text; or, told that they are after special tokens, those of its whole row."""

    def __call__(self, tokens: Tokens, *, after_specials: bool = False) -> Tokens: ...


def framed_row(framed: Framed, tokenizer: TextTokenizer, alter: Alteration | None = None) -> TextRow:
    """Returns the row of a text between what stands around it, of which nothing is cut.

    Args:
        framed: The text's tokens and those around them.
        tokenizer: Owner of special tokens and lengths.
        alter: What is done to the tokens of the text, cut to the room there is, and then to those of the row.
            What it makes longer is cut to the network's limit alone.
    """
    taken = tokenizer.taken(framed)
    around = len(tokenizer.prefix) + len(framed.before), len(framed.after) + len(tokenizer.suffix)
    has_frame = bool(framed.before or framed.after)
    if alter is None:  # nearly all in use
        ids = framed.tokens.ids
        kept = ids if tokenizer.room is None else ids[: max(tokenizer.room - taken, 0)]
        whole = [*tokenizer.prefix, *framed.before, *kept, *framed.after, *tokenizer.suffix]
        return TextRow(whole, len(kept) < len(ids), bare=kept if has_frame else None, around=around)
    tokens = tokenizer.cut(framed.tokens, taken)
    altered = tokenizer.cut(alter(tokens), len(framed.before) + len(framed.after), altered=True)
    row = alter(tokenizer.with_specials(altered, framed.before, framed.after), after_specials=True)
    return TextRow(
        row.ids,
        truncated=len(tokens) < len(framed.tokens),
        bare=altered.ids if has_frame else None,
        positions=row.positions,
        labels=row.labels,
        around=around,
    )


def batch_of(
    rows: Sequence[TextRow], tokenizer: TextTokenizer, slots: tuple[Slot, ...], keys: Tensor, text_ids: Tensor
) -> Batch:
    """Returns rows as a ragged batch, without targets.

    Args:
        rows: Slot by slot.
        tokenizer: Owner of special tokens.
        slots: The slots.
        keys: Key of the draws of each row, (S,).
        text_ids: As ``Batch`` has them.
    """
    types = [row.types or tokenizer.types(len(row.ids)) for row in rows]
    examples, specials = len(rows) // len(slots), (len(tokenizer.prefix), len(tokenizer.suffix))
    return Batch(
        ids=flat([row.ids for row in rows]),
        lengths=flat([[len(row.ids) for row in rows]]),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(examples),
        draw_keys=keys,
        text_ids=text_ids,
        seed=fold(*keys[:examples].tolist()),
        positions=flat([row.positions or range(len(row.ids)) for row in rows])
        if any(row.positions is not None for row in rows)
        else None,
        types=flat([own or (0,) * len(row.ids) for own, row in zip(types, rows, strict=True)])
        if any(types)
        else None,
        labels=flat([row.labels or (NO_LABEL,) * len(row.ids) for row in rows])
        if any(row.labels is not None for row in rows)
        else None,
        around=torch.tensor([row.around or specials for row in rows])
        if any(row.bare is not None for row in rows)
        else None,
        truncated=sum(row.truncated for row in rows),
    )


def collate_texts(tokenizer: TextTokenizer, texts: Sequence[Framed], unpooled: int = 0) -> Batch:
    """Returns tokenised texts as a batch of unaltered anchors: the way to the encoder outside training.

    Args:
        tokenizer: Owner of special tokens and lengths.
        texts: The texts with what stands around each, as ``tokenizer.framed`` gives them.
        unpooled: Tokens that the pooler leaves out at the start of each row.

    Raises:
        ValueError: A text without a token, for a tokenizer that adds no special tokens.
    """
    rows = [framed_row(text, tokenizer) for text in texts]
    lengths = [len(row.ids) for row in rows]
    if 0 in lengths:
        raise InvalidValueError(
            f"texts[{lengths.index(0)}]: expected at least one token, got ''; this tokenizer adds no special "
            "tokens, so leave empty texts out"
        )
    text_ids = flat([[text_id(np.array(text.tokens.ids).tobytes()) for text in texts]])
    keys = torch.zeros(len(rows), dtype=torch.long)
    batch = batch_of(rows, tokenizer, (Slot("anchor", 0),), keys, text_ids)
    return batch.replace(unpooled=torch.full_like(batch.lengths, unpooled)) if unpooled else batch


def edited_ids(rows: Sequence[TextRow], tokenizer: TextTokenizer) -> Tensor:
    """Returns a hash of each row's ids, (S,); where some texts have a frame, of the ids of all texts alone."""
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    if all(row.bare is None for row in rows):
        kept: list[Sequence[int]] = [row.ids for row in rows]
    else:
        kept = [row.ids[before : len(row.ids) - after] if row.bare is None else row.bare for row in rows]
    return hash_rows(flat(kept), flat([[len(each) for each in kept]]))


def flat(rows: Sequence[Sequence[int]]) -> Tensor:
    """Returns the numbers of all rows one after another, (T,), int64."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows))))


PAIRING = -1
"""Takes the place of the example's number in the key of a pairing's draws."""


def row_keys(
    seed: int, task: str, epochs: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the keys of rows of a task, on which all their draws depend."""
    return fold_each(seed, text_id(task), epochs, numbers)


_NO_ROW: Row = {}


class KeyedRow(NamedTuple):
    """A row, or its key alone, and what its random draws depend on.

    Args:
        epoch: Number of the epoch.
        number: Place of the row in its task.
        row: Its cells; none in a key.
        task: Name of the data set.
        objectives: Names of the objectives that read it; None for all.
        shares: Rows of its task that each rank has in the step; none where that isn't known.
    """

    epoch: int
    number: int
    row: Row = _NO_ROW
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


@dataclass(eq=False)
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
            counts = sorted({(len(row), len(example_texts(each))) for row in rows for each in row})
            got = ", ".join(f"{number} of {of} texts" for number, of in counts) or "none at all"
            raise InvalidValueError(
                f"pairing {type(self.pairing).__name__}: expected every row to give as many examples with "
                f"the same number of positives and negatives, got {got}; leave out rows that can't give them"
            )
        slots = tuple(slot for slot, _ in example_slots(examples[0], self.originals))
        places = np.arange(len(slots))[:, np.newaxis, np.newaxis]
        keys = fold_each(of_rows[:, np.newaxis], np.arange(len(rows[0])), places)
        own = [each if isinstance(each := item.row.get("target"), int | float) else None for item in items]
        targets = [
            target if example.target is None else example.target
            for target, row in zip(own, rows, strict=True)
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


@dataclass(frozen=True)
class StepCollator:
    """Makes what one step is trained on from rows of several tasks.

    Args:
        collators: Task -> its collator.
        file: Name of the file that all rows are of, where a task has several; for scores of each.
    """

    collators: Mapping[str, Collator]
    file: str = ""

    def __call__(self, items: Sequence[KeyedRow]) -> StepBatch:
        """Returns a batch for each task among the rows; see ``Collator``."""
        tasks = dict.fromkeys(item.task for item in items)
        return StepBatch(
            {task: self.collators[task]([item for item in items if item.task == task]) for task in tasks},
            objectives=items[0].objectives,
        )


def _content_id(text: Text) -> int:
    if isinstance(text, Tokens):
        return text_id(np.array(text.ids).tobytes())
    return text_id(text) if isinstance(text, str) else fold(*map(text_id, text))


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
    ids = {text: _content_id(text) for text in dict.fromkeys(texts)}
    text_ids = flat([[ids[text] for text in texts]])
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
