"""The collator: order of rows, keys of draws, alignment, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import text_id
from contrastive_text.core.types import NO_LABEL, Example, Row, Slot, Tokens
from contrastive_text.data import Collator, KeyedRow, TextTokenizer
from contrastive_text.data.batching import collate_texts
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.pairings import Given, Pairing, SameText
from contrastive_text.views import DeleteTokens, SwapWords, TokenView, ViewPlan

ROWS: tuple[Row, ...] = (
    {"text": "the old bird sings in the tall green tree"},
    {"text": "a young bird flies over the cold river"},
    {"text": "two people walk along the river in the rain"},
)
TRIPLES: tuple[Row, ...] = tuple(
    {"anchor": f"the bird {word}", "positive": f"a bird {word}", "negative": f"the dog {word}", "target": i}
    for i, word in enumerate(("sings", "flies", "walks"))
)


class Label(TokenView):
    """Predicts every token and numbers positions from the end."""

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:  # noqa: ARG002  # the base's signature
        n = len(tokens)
        return Tokens(tokens.ids, tokens.words, positions=tuple(reversed(range(n))), labels=tokens.ids)


class Reverse(TokenView):
    """Turns the whole row round, special tokens too."""

    after_specials: ClassVar[bool] = True

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:  # noqa: ARG002  # the base's signature
        return tokens.take(range(len(tokens) - 1, -1, -1))


class Double(TokenView):
    """Gives every token twice."""

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:  # noqa: ARG002  # the base's signature
        return tokens.take([i for i in range(len(tokens)) for _ in range(2)])


class Fixed(Pairing):
    """Gives the examples it was given, one list per row number."""

    reads = ("number",)

    def __init__(self, examples: list[list[Example]]) -> None:
        self.examples = examples

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the base's signature
        return self.examples[int(row["number"])]


@pytest.fixture
def tokenizer(learned_tokenizer: PreTrainedTokenizerFast) -> TextTokenizer:
    """The learned tokenizer, rows of at most twelve tokens."""
    return TextTokenizer(learned_tokenizer, max_length=12)


def keyed(rows: tuple[Row, ...], epoch: int = 0) -> list[KeyedRow]:
    return [KeyedRow(epoch=epoch, number=i, row=row) for i, row in enumerate(rows)]


def row_ids(batch: Batch) -> list[list[int]]:
    return [part.tolist() for part in batch.ids.split(batch.lengths.tolist())]


def same(a: Batch, b: Batch) -> bool:
    pairs = [(vars(a)[name], vars(b)[name]) for name in vars(a)]
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in pairs
    )


NOISY = ViewPlan({"anchor": [SwapWords(0.5), DeleteTokens(0.3)], "positive": [DeleteTokens(0.3)]})


def test_s7_row_is_slot_times_n_plus_example(tokenizer: TextTokenizer) -> None:
    batch = Collator(tokenizer, Given(), ViewPlan(), seed=0)(keyed(TRIPLES))
    roles = ("anchor", "positive", "negative")
    texts = [str(row[role]) for role in roles for row in TRIPLES]
    assert row_ids(batch) == [tokenizer.tokenizer(text)["input_ids"] for text in texts]
    assert batch.text_ids.tolist() == [text_id(text) for text in texts]
    assert batch.slots == tuple(Slot(role, 0) for role in roles)
    assert batch.row_slots.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    # The authors' order is item by item, row b * V + v: the same rows, permuted.
    theirs = torch.arange(9).reshape(3, 3).T.flatten()
    item_by_item = [str(row[role]) for row in TRIPLES for role in roles]
    assert batch.split(theirs).text_ids.tolist() == [text_id(text) for text in item_by_item]


class Halved(Given):
    """Gives its examples a target of their own."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        return [replace(each, target=float(row["target"]) / 2) for each in super().__call__(row, rng)]


def test_targets_are_the_rows_or_the_pairing_s_or_none(tokenizer: TextTokenizer) -> None:
    labeled = tuple({**row, "target": 0.25} for row in ROWS)
    for pairing, rows, expected in (
        (Given(), TRIPLES, [0.0, 1.0, 2.0]),
        (Halved(), TRIPLES, [0.0, 0.5, 1.0]),
        (SameText(), labeled, [0.25] * 3),
        (SameText(), ROWS, None),
    ):
        found = Collator(tokenizer, pairing, ViewPlan(), seed=0)(keyed(rows)).target
        assert (None if found is None else found.tolist()) == expected


def test_two_views_of_each_text_stand_in_slots_of_their_own(tokenizer: TextTokenizer) -> None:
    plan = ViewPlan({"anchor_2": [SwapWords(rate=1.0)], "positive": [SwapWords(rate=0.0)]})
    batch = Collator(tokenizer, Given(views_per_text=2), plan, seed=0)(keyed(TRIPLES))
    roles = [(slot.role, slot.number) for slot in batch.slots]
    assert roles == [(role, number) for role in ("anchor", "positive", "negative") for number in (0, 1)]
    texts = batch.ids.split(batch.lengths.tolist())
    assert [texts[i].tolist() for i in (6, 12)] == [texts[i].tolist() for i in (9, 15)]  # both views alike
    assert texts[0].tolist() != texts[3].tolist()
    assert sorted(texts[0].tolist()) == sorted(texts[3].tolist())


@pytest.mark.parametrize("what", ["epoch", "seed", "task", "number"])
def test_another_epoch_seed_task_or_row_number_gives_other_views_of_the_same_texts(
    tokenizer: TextTokenizer, what: str
) -> None:
    first = Collator(tokenizer, SameText(), NOISY, seed=3)(keyed(ROWS))
    items = keyed(ROWS, epoch=1 if what == "epoch" else 0)
    if what == "number":
        items = [item._replace(number=item.number + 100) for item in items]
    task = "other" if what == "task" else "train"
    other = Collator(tokenizer, SameText(), NOISY, seed=4 if what == "seed" else 3, task=task)(items)
    assert row_ids(other) != row_ids(first)
    assert not set(other.draw_keys.tolist()) & set(first.draw_keys.tolist())
    assert other.seed != first.seed
    assert torch.equal(other.text_ids[:, 0], first.text_ids[:, 0])
    assert not torch.equal(other.text_ids[:, 1], first.text_ids[:, 1])


def test_a_rows_views_do_not_depend_on_the_rest_of_the_batch(tokenizer: TextTokenizer) -> None:
    collate = Collator(tokenizer, SameText(), NOISY, seed=3)
    whole = collate(keyed(ROWS))
    alone = collate(keyed(ROWS)[1:2])
    picked = whole.split(torch.tensor([1, 4]))
    assert row_ids(alone) == row_ids(picked)
    assert torch.equal(alone.draw_keys, picked.draw_keys)


def test_the_original_is_an_unaltered_copy_of_the_anchor(tokenizer: TextTokenizer) -> None:
    plan = ViewPlan({"anchor": [DeleteTokens(0.5)], "original": []})
    batch = Collator(tokenizer, SameText(), plan, seed=0)(keyed(ROWS))
    plain = Collator(tokenizer, SameText(), ViewPlan(), seed=0)(keyed(ROWS))
    originals, anchors = batch.by_role("original"), batch.by_role("anchor")
    untouched = row_ids(plain.split(plain.by_role("anchor")))
    assert batch.slots[-1] == Slot("original", 0)
    assert row_ids(batch.split(originals)) == untouched
    assert row_ids(batch.split(anchors)) != untouched
    assert torch.equal(batch.text_ids[originals, 0], batch.text_ids[anchors, 0])
    # No role asks for it: no copy is made.
    assert len(plain.by_role("original")) == 0


def test_labels_and_positions_stay_aligned_with_the_special_tokens(tokenizer: TextTokenizer) -> None:
    batch = Collator(tokenizer, SameText(), ViewPlan({"positive": [Label()]}), seed=0)(keyed(ROWS))
    assert batch.labels is not None
    assert batch.positions is not None
    lengths = batch.lengths.tolist()
    labels, positions = batch.labels.split(lengths), batch.positions.split(lengths)
    for i, ids in enumerate(row_ids(batch)):
        n = len(ids)
        if i < 3:
            assert labels[i].tolist() == [NO_LABEL] * n
            assert positions[i].tolist() == list(range(n))
        else:
            assert labels[i].tolist() == [NO_LABEL, *ids[1:-1], NO_LABEL]
            assert positions[i].tolist() == [0, *range(n - 2, 0, -1), n - 1]


def test_a_view_after_special_tokens_sees_them_and_others_do_not(tokenizer: TextTokenizer) -> None:
    plan = ViewPlan({"anchor": [DeleteTokens(1.0)], "positive": [Reverse()]})
    batch = Collator(tokenizer, SameText(), plan, seed=0)(keyed(ROWS))
    cls, sep = tokenizer.prefix[0], tokenizer.suffix[0]
    for ids in row_ids(batch)[:3]:
        assert (ids[0], ids[2], len(ids)) == (cls, sep, 3)
    plain = row_ids(Collator(tokenizer, SameText(), ViewPlan(), seed=0)(keyed(ROWS)))
    assert row_ids(batch)[3:] == [row[::-1] for row in plain[3:]]


def test_rows_that_were_cut_are_counted_and_none_is_longer_than_the_limit(
    learned_tokenizer: PreTrainedTokenizerFast,
) -> None:
    short = TextTokenizer(learned_tokenizer, max_length=7)
    rows: tuple[Row, ...] = ({"text": "the bird"}, {"text": "the bird " * 9}, {"text": "the bird the bird"})
    batch = Collator(short, SameText(), ViewPlan({"positive": [Double()]}), seed=0)(keyed(rows))
    # One text of three is too long, in two slots; what a view adds is cut and not counted.
    assert batch.truncated == 2
    assert batch.lengths.tolist() == [4, 7, 6, 6, 7, 7]


def test_a_row_may_give_several_examples(tokenizer: TextTokenizer) -> None:
    pairing = Fixed([[Example("the bird", ("a bird",)), Example("the dog", ("a dog",))]])
    (row,) = keyed(({"number": 0},))
    batch = Collator(tokenizer, pairing, ViewPlan(), seed=0)([row._replace(shares=(3, 1))])
    assert batch.rank_sizes == (6, 2)
    texts = ("the bird", "the dog", "a bird", "a dog")
    assert batch.text_ids.tolist() == [text_id(text) for text in texts]
    assert len(set(batch.draw_keys.tolist())) == 4


def test_examples_of_different_sizes_are_refused(tokenizer: TextTokenizer) -> None:
    for other in (Example("a", ("b",)), Example("a", ("b",), ("c",)), Example("a", (), ("b", "c"))):
        pairing = Fixed([[Example("a", ("b", "c"))], [other]])
        with pytest.raises(
            ValueError, match=r"pairing Fixed: .*the same number of examples, positives and negatives"
        ):
            Collator(tokenizer, pairing, ViewPlan(), seed=0)(keyed(({"number": 0}, {"number": 1})))


def test_a_text_without_a_token_is_refused_with_its_place(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=learned_tokenizer.backend_tokenizer, unk_token="[UNK]")
    bare.backend_tokenizer.post_processor = None
    ours = TextTokenizer(bare, max_length=None)
    with pytest.raises(
        ValueError, match=r"texts\[1\]: expected at least one token, got ''; .*leave empty texts out"
    ):
        collate_texts(ours, ours.tokenize_with_template(["the bird", ""]))


@pytest.mark.parametrize("plan", [ViewPlan(), ViewPlan({"positive": [DeleteTokens(0.3)]})], ids=["plain", "view"])
def test_a_text_of_two_slots_is_tokenized_once(
    tokenizer: TextTokenizer, plan: ViewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    encode = tokenizer._encode
    monkeypatch.setattr(tokenizer, "_encode", lambda texts: seen.extend(texts) or encode(texts))
    Collator(tokenizer, SameText(), plan, seed=0)(keyed((*ROWS, ROWS[0])))
    assert seen == [row["text"] for row in ROWS]


@pytest.mark.parametrize("words", [3, 30], ids=["short", "cut"])
def test_a_row_is_the_same_with_words_and_without(tokenizer: TextTokenizer, words: int) -> None:
    rows = tuple({"text": " ".join(["bird"] * (words + i))} for i in range(3))
    plain, worded = (
        Collator(tokenizer, SameText(), plan, seed=0)(keyed(rows))
        for plan in (ViewPlan(), ViewPlan({"anchor": [DeleteTokens(0.0)], "positive": [DeleteTokens(0.0)]}))
    )
    assert same(plain, worded.replace(text_ids=worded.text_ids[:, 0]))
    # What is read tells rows apart: of rows cut to one length, none.
    assert len(set(worded.text_ids[:, 1].tolist())) == len(set(map(tuple, row_ids(worded))))
    assert plain.truncated == (6 if words > 10 else 0)


def test_a_missing_hard_negative_is_hidden_and_no_view_alters_it(tokenizer: TextTokenizer) -> None:
    rows = [{**TRIPLES[0], "negative_2": ""}, {**TRIPLES[1], "negative_2": "the cat sleeps"}]
    plan = ViewPlan({"negative": [SwapWords(1.0), Double()]})
    plan.build(tokenizer.vocabulary(plan.new_tokens))
    batch = Collator(tokenizer, Given(), plan, seed=1)([KeyedRow(0, i, row) for i, row in enumerate(rows)])
    first, second = batch.slots.index(Slot("negative", 0)) * 2, batch.slots.index(Slot("negative", 1)) * 2
    assert batch.text_ids.tolist()[second] == [MASKED_ID, MASKED_ID]
    assert MASKED_ID not in batch.text_ids[second + 1]
    assert not (batch.text_ids[: first + 2] == MASKED_ID).any()
    assert batch.lengths[second] == 2  # special tokens alone
