"""Prompts and templates around texts: which role reads which, what is cut, what views alter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Row, Template, Tokens
from contrastive_text.data import Collator, KeyedRow, TextTokenizer
from contrastive_text.data.files.mapped import tokenize_documents
from contrastive_text.data.prompts import Prompts
from contrastive_text.pairings import Given, OneSequence, Pairing, SameText, Spans
from contrastive_text.views import DeleteTokens, MaskTokens, Prompt, SwapWords, View, ViewPlan

NAMED = {"query": "an old bird ", "document": "the tall man "}
ROW: Row = {"anchor": "a small dog sings", "positive": "a small bird", "negative": "the young woman"}


def batch_of(
    tokenizer: PreTrainedTokenizerFast,
    prompts: Prompts,
    views: dict[str, list[View]] | None = None,
    rows: tuple[Row, ...] = (ROW,),
    limit: int | None = None,
    task: str = "train",
    pairing: Pairing | None = None,
) -> Batch:
    ours = TextTokenizer(tokenizer, limit)
    plan = ViewPlan(views or {})
    plan.build(ours.vocabulary(plan.new_tokens))
    collator = Collator(ours, pairing or Given(), plan, seed=0, task=task, prompts=prompts)
    return collator([KeyedRow(0, number, row, task) for number, row in enumerate(rows)])


def texts_of(batch: Batch, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    rows = torch.split(batch.ids, batch.lengths.tolist())
    return [str(tokenizer.decode(row.tolist()[1:-1])).replace(" ##", "") for row in rows]


@pytest.mark.parametrize(
    ("named", "task", "query", "document"),
    [
        (NAMED, "train", "an old bird ", "the tall man "),
        ({"query": "an old bird "}, "train", "an old bird ", ""),
        ({"default": "the "}, "train", "the ", "the "),
        ({**NAMED, "news": "the "}, "news", "the ", "the "),
        ({**NAMED, "news-document": "the "}, "news", "an old bird ", "the "),
        ({**NAMED, "news": ""}, "news", "", ""),
    ],
)
def test_each_role_has_its_prompt(
    learned_tokenizer: PreTrainedTokenizerFast, named: dict[str, str], task: str, query: str, document: str
) -> None:
    found = texts_of(
        batch_of(learned_tokenizer, Prompts(named).with_training_defaults(), task=task), learned_tokenizer
    )
    assert found == [f"{query}{ROW['anchor']}", f"{document}{ROW['positive']}", f"{document}{ROW['negative']}"]


def test_texts_are_known_without_their_prompt(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    rows = ({**ROW, "positive": ROW["anchor"]},)
    plain, prompted = (batch_of(learned_tokenizer, each, rows=rows) for each in (Prompts(), Prompts(NAMED)))
    assert torch.equal(plain.text_ids, prompted.text_ids)
    # edited alike, a query and a document are one text too
    edited = batch_of(learned_tokenizer, Prompts(NAMED), {"anchor": [MaskTokens(rate=0.5)]}, rows=rows)
    untouched = batch_of(learned_tokenizer, Prompts(NAMED), {"anchor": [DeleteTokens(rate=0.0)]}, rows=rows)
    assert len(set(untouched.text_ids[:2, 1].tolist())) == 1
    assert len(set(edited.text_ids[:2, 1].tolist())) == 2


@pytest.mark.parametrize(
    "views",
    [[DeleteTokens(rate=0.9)], [SwapWords(rate=1.0)], [MaskTokens(rate=0.9)]],
    ids=["delete", "swap", "mask"],
)
def test_no_text_or_token_view_alters_a_prompt_or_a_template(
    learned_tokenizer: PreTrainedTokenizerFast, views: list[View]
) -> None:
    template = Prompt("a dog {text} sings")
    texts = [view for view in views if isinstance(view, SwapWords)]
    tokens = [view for view in views if view not in texts]
    for chain in ([template, *texts, *tokens], [*texts, template, *tokens]):
        batch = batch_of(learned_tokenizer, Prompts(NAMED), {"anchor": chain}, rows=(ROW,) * 20)
        found = texts_of(batch, learned_tokenizer)[:20]
        assert all(each.startswith("an old bird a dog") and each.endswith("sings") for each in found)
        inside = {each.removeprefix("an old bird a dog ").removesuffix(" sings") for each in found}
        assert inside != {ROW["anchor"]}
        if batch.labels is not None:
            of_first = torch.split(batch.labels, batch.lengths.tolist())[0].tolist()
            assert set(of_first[:6] + of_first[-2:]) == {-100}


def test_the_text_is_cut_and_neither_prompt_nor_template(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    rows = ({**ROW, "anchor": " ".join(tiny.TEXTS[:6])},)
    views: dict[str, list[View]] = {"anchor": [Prompt("a dog {text} sings")]}
    batch = batch_of(learned_tokenizer, Prompts(NAMED), views, rows=rows, limit=16)
    (anchor, *_) = texts_of(batch, learned_tokenizer)
    assert anchor.startswith("an old bird a dog ")
    assert anchor.endswith(" sings")
    assert str(rows[0]["anchor"]).startswith(anchor.removeprefix("an old bird a dog ").removesuffix(" sings"))
    assert (int(batch.lengths[0]), batch.truncated) == (16, 1)


def test_prompts_stand_before_spans_whose_tokens_are_cached_without_them(
    learned_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer = TextTokenizer(learned_tokenizer, None)
    document = " ".join(tiny.TEXTS)
    tokens = tokenize_documents([document], tokenizer, tmp_path)[0]["text"]
    assert isinstance(tokens, Tokens)
    pairing = Spans(anchors=1, positives=1, max_length=16, min_length=8)
    plain, prompted = (
        batch_of(learned_tokenizer, each, rows=({"text": tokens},), pairing=pairing)
        for each in (Prompts(), Prompts(NAMED))
    )
    texts = zip(NAMED.values(), texts_of(plain, learned_tokenizer), strict=True)
    assert [each.replace("##", "") for each in texts_of(prompted, learned_tokenizer)] == [
        f"{before}{text}".replace(" ##", "").replace("##", "") for before, text in texts
    ]
    assert torch.equal(plain.text_ids, prompted.text_ids)


def test_what_the_pooler_leaves_out_is_told_row_by_row(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    batch = batch_of(learned_tokenizer, Prompts({"query": "an old bird "}, pooled=False))
    assert batch.unpooled is not None
    assert batch.unpooled.tolist() == [4, 0, 0]  # [CLS] an old bird
    assert batch.split(torch.tensor([1, 0])).unpooled is not None
    assert batch_of(learned_tokenizer, Prompts(NAMED)).unpooled is None


def test_prompts_without_a_place_are_refused(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    templates: dict[str, Any] = {"limit": 7, "views": {"anchor": [Prompt("a dog {text}")]}}
    for options, message in (
        ({"limit": 5}, r"model.prompts, anchor: expected fewer tokens than the 3 that max_length 5 .*got 3"),
        (templates, r"views.anchor: expected fewer tokens than the 5.*got 7"),
        ({"pairing": OneSequence()}, "expected none before two texts in one sequence, got 'an old bird '"),
    ):
        with pytest.raises(ValueError, match=message):
            batch_of(learned_tokenizer, Prompts(NAMED), **options)


def test_a_name_that_no_text_has_is_refused() -> None:
    prompts = Prompts({"query": "query: ", "passage": "passage: "}).with_training_defaults()
    with pytest.raises(ValueError, match=r"model.prompts.named.passage: expected one of query, document, de"):
        prompts.check_names([])
    Prompts({"news-query": "q "}).with_training_defaults().check_names(["news"])
    with pytest.raises(TypeError, match=r"prompts.query: expected a text, got 5"):
        Prompts({"query": 5}).with_training_defaults()  # type: ignore[dict-item]  # on purpose


def test_tokens_split_where_the_prompt_ends(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer = TextTokenizer(learned_tokenizer, None)
    for text in (*tiny.TEXTS[:5], ""):
        (framed,) = tokenizer.tokenize_with_template([text], Template("the old ", " sings"))
        assert framed.tokens.ids == tokenizer([text])[0].ids
        assert framed.tokens.words == tokenizer([text])[0].words
        (bare,) = tokenizer.tokenize_with_template([text], Template("the old ", " sings"), with_words=False)
        assert (bare.before, bare.tokens.ids, bare.after) == (framed.before, framed.tokens.ids, framed.after)
        whole = [*framed.before, *framed.tokens.ids, *framed.after]
        assert whole == tokenizer.ids([f"the old {text} sings"])[0]


LONG = " ".join(tiny.TEXTS[:9])


@pytest.mark.parametrize(
    ("counted", "spare", "beyond"),
    [(True, None, 0), (False, None, 99), (False, 48, 99), (False, 2, 2)],
    ids=["counted", "no limit", "room beyond", "little room beyond"],
)
def test_a_template_is_counted_by_the_limit_or_stands_beside_it_as_far_as_the_network_goes(
    learned_tokenizer: PreTrainedTokenizerFast, counted: bool, spare: int | None, beyond: int
) -> None:
    ours = TextTokenizer(learned_tokenizer, 16, spare)
    prompts = Prompts({"default": "a dog {text} sings"}, counted=counted).with_training_defaults()
    batch = Collator(ours, SameText(), ViewPlan(), seed=0, prompts=prompts)([KeyedRow(0, 0, {"text": LONG})])
    taken = sum(len(learned_tokenizer.tokenize(part)) for part in ("a dog", "sings"))
    assert batch.lengths.tolist() == [16 + min(taken, beyond)] * 2
    for row in texts_of(batch, learned_tokenizer):
        assert row.startswith("a dog ") and row.endswith(" sings")
    if spare == 2:
        full = Prompts({"default": f"{LONG} {{text}}"}, counted=False).with_training_defaults()
        with pytest.raises(
            ValueError, match="expected fewer tokens than the 16 that max_length 16 and the 2 beyond it leaves"
        ):
            Collator(ours, SameText(), ViewPlan(), seed=0, prompts=full)


def test_a_view_s_template_takes_the_place_of_the_model_s(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    views: dict[str, list[View]] = {"positive": [Prompt("the {text} sings")]}
    named = {"default": "a dog {text} the man"}
    found = texts_of(
        batch_of(learned_tokenizer, Prompts(named).with_training_defaults(), views), learned_tokenizer
    )
    assert found == [
        f"a dog {ROW['anchor']} the man", f"the {ROW['positive']} sings", f"a dog {ROW['negative']} the man"
    ]  # fmt: skip
    before = texts_of(
        batch_of(learned_tokenizer, Prompts({"default": "a "}).with_training_defaults(), views), learned_tokenizer
    )
    assert before[1] == f"a the {ROW['positive']} sings"


def test_the_batch_says_how_much_stands_around_each_text(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    views: dict[str, list[View]] = {"positive": [Prompt("the old {text} the")]}
    batch = batch_of(learned_tokenizer, Prompts({"query": "a "}), views, rows=(ROW,) * 2)
    assert batch.template_lengths is not None
    assert batch.template_lengths.tolist() == [[2, 1]] * 2 + [[3, 2]] * 2 + [[1, 1]] * 2  # with [CLS] and [SEP]
    part = batch.split(torch.tensor([4, 0])).template_lengths
    assert part is not None and part.tolist() == [[1, 1], [2, 1]]
    assert batch_of(learned_tokenizer, Prompts()).template_lengths is None


def test_what_no_template_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prompts.default: expected \{text\} once at most"):
        Prompts({"default": "{text} {text}"})
    with pytest.raises(ValueError, match="expected nothing after the text where the pooler"):
        Prompts({"default": "a {text} b"}, pooled=False)


def test_the_mask_token_of_a_template_is_the_tokenizer_s(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    batch = batch_of(learned_tokenizer, Prompts({"default": "a {mask} {text}"}).with_training_defaults())
    assert texts_of(batch, learned_tokenizer)[0] == f"a [MASK] {ROW['anchor']}"
    bare = PreTrainedTokenizerFast(tokenizer_object=learned_tokenizer.backend_tokenizer, unk_token="[UNK]")
    with pytest.raises(ValueError, match=r"'a \{mask\} ': expected a vocabulary with a mask token"):
        batch_of(bare, Prompts({"default": "a {mask} {text}"}).with_training_defaults())
