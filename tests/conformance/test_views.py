"""Properties that every public view has: draws by key alone, valid and aligned results, untouched inputs."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import parts
import pytest
import tiny
import torch
import wordnet_files
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, split

from contrastive_text import views
from contrastive_text.core.random import RowRandom, generator
from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens, Vocabulary
from contrastive_text.data import Collator, KeyedRow, TextTokenizer, learn_vocabulary
from contrastive_text.pairings import SameText

PAGES = Path(__file__).parents[2] / "docs" / "parts"
SEEDS = st.integers(0, 2**31)
RATES = st.floats(0, 1)

# Entries: name -> a view of a strength from 0 to 1; a name begins with its class.
TEXT_VIEWS: dict[str, Callable[[Path, float], views.TextView]] = {
    "Prompt": lambda _, rate: views.Prompt("It says: {text}." if rate else "{text}"),
    "SwapWords": lambda _, rate: views.SwapWords(rate),
    "SubstituteSynonyms": lambda files, rate: views.SubstituteSynonyms(
        rate, views.SynonymFile(str(files / "words.tsv"))
    ),
    "SubstituteSynonyms by WordNet": lambda files, rate: views.SubstituteSynonyms(
        rate, views.WordNetSynonyms(str(files / "nltk_data")), of="all"
    ),
    "ContextualSubstitute": lambda files, rate: views.ContextualSubstitute(
        str(files / "model"), rate, batch_size=3
    ),
    "NlpaugView": lambda _, rate: views.NlpaugView(
        "nlpaug.augmenter.word.RandomWordAug", {"action": "swap", "aug_p": rate}
    ),
    "NlpaugView that crops": lambda _, rate: views.NlpaugView(  # fails on short texts in nlpaug 1.1.11
        "nlpaug.augmenter.word.RandomWordAug", {"action": "crop", "aug_p": rate}
    ),
    "TextsFromFile": lambda files, rate: views.TextsFromFile(
        str(files / ("written.tsv" if rate else "none.tsv")), missing="keep"
    ),
}
TOKEN_VIEWS: dict[str, Callable[[float], views.TokenView]] = {
    "CropTokens": views.CropTokens,
    "DeleteOneWord": lambda rate: views.DeleteOneWord() if rate else views.DeleteTokens(0.0),
    "DeleteSpans": lambda rate: views.DeleteSpans(rate=rate),
    "DeleteSpans of words": lambda rate: views.DeleteSpans(rate=rate, mark=None, unit="word"),
    "DeleteTokens": views.DeleteTokens,
    "DeleteTokens with a mark": partial(views.DeleteTokens, mark="[DEL]"),
    "DeleteTokens of words": partial(views.DeleteTokens, exact=False, unit="word"),
    "MaskTokens": views.MaskTokens,
    "MaskTokens of words": partial(views.MaskTokens, whole_word=True),
    "ReorderSpans": lambda rate: views.ReorderSpans(rate=rate),
    "ReorderSpans of words": lambda rate: views.ReorderSpans(rate=rate, unit="word"),
    "RepeatTokens": views.RepeatTokens,
    "RepeatTokens of words": partial(views.RepeatTokens, unit="word"),
    "ShufflePositions": lambda rate: views.ShufflePositions() if rate else views.ShufflePositions(specials=False),
}
ERASERS: dict[str, Callable[[float], views.EmbeddingView]] = {
    "FeatureCutoff": views.FeatureCutoff,
    **{
        f"{cls.__name__}{name}": partial(cls, specials=specials)
        for cls in (views.TokenCutoff, views.SpanCutoff, views.EmbeddingDropout)
        for name, specials in (("", True), (" between specials", False))
    },
}
EMBEDDING_VIEWS: dict[str, Callable[[float], views.EmbeddingView]] = {
    **ERASERS,
    "GaussianNoise": views.GaussianNoise,
    "GaussianNoise between specials": partial(views.GaussianNoise, specials=False),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "Adversarial": lambda _: views.Adversarial(2.0, "nli", same_dropout=True),
    "FixedDropout": lambda _: views.FixedDropout(),
    "SynonymFile": lambda files: views.SynonymFile(str(files / "words.tsv")),
    "WordNetSynonyms": lambda files: views.WordNetSynonyms(str(files / "nltk_data"), senses=None),
}
text_views = pytest.mark.parametrize("name", TEXT_VIEWS)
token_views = pytest.mark.parametrize("make", TOKEN_VIEWS.values(), ids=TOKEN_VIEWS)
embedding_views = pytest.mark.parametrize("make", EMBEDDING_VIEWS.values(), ids=EMBEDDING_VIEWS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the files and the model that text views read."""
    folder = tmp_path_factory.mktemp("views")
    tiny.save_masked_lm(folder / "model")
    wordnet_files.write_wordnet(folder / "nltk_data")
    (folder / "words.tsv").write_text("word\tsynonyms\nold\taged|elderly\nbird\tfowl\n")
    (folder / "none.tsv").write_text("text\talternative\n")
    rows = [f"{text}\t{other}" for text in TEXTS if text.strip() for other in (f"{text} too", f"again {text}")]
    (folder / "written.tsv").write_text("\n".join(["text\talternative", *rows, ""]))
    return folder


def test_every_public_view_has_an_entry() -> None:
    kinds: list[tuple[type, dict[str, Any]]] = [
        (views.TextView, TEXT_VIEWS),
        (views.TokenView, TOKEN_VIEWS),
        (views.EmbeddingView, EMBEDDING_VIEWS),
        (views.View, {**TEXT_VIEWS, **TOKEN_VIEWS, **EMBEDDING_VIEWS, "Adversarial": None, "FixedDropout": None}),
        (views.SynonymSource, {"SynonymFile": None, "WordNetSynonyms": None}),
    ]
    for base, entries in kinds:
        assert {cls.__name__ for cls in parts.public_parts(views, base)} == {name.split()[0] for name in entries}


def made(name: str, files: Path, rate: float = 0.5) -> object:
    if name.startswith("NlpaugView"):
        pytest.importorskip("nlpaug", reason="needs nlpaug: pip install 'contrastive-text[augment]'")
    if name in TEXT_VIEWS:
        return TEXT_VIEWS[name](files, rate)
    return OTHERS[name](files) if name in OTHERS else {**TOKEN_VIEWS, **EMBEDDING_VIEWS}[name](rate)


@pytest.mark.parametrize("name", [*TEXT_VIEWS, *TOKEN_VIEWS, *EMBEDDING_VIEWS, *OTHERS])
def test_a_view_is_documented_and_is_made_again_from_its_arguments(name: str, files: Path) -> None:
    view = made(name, files)
    parts.check_part(view)
    if isinstance(view, views.View):
        page = (PAGES / f"{type(view).__name__}.md").read_text(encoding="utf-8")
        assert f"]({type(view).__name__}.svg)" in page
        assert view.words in (None, "blanks", "letters", "tokenizer")


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", [*TEXT_VIEWS, *TOKEN_VIEWS, *EMBEDDING_VIEWS])
def test_a_rate_that_is_not_a_share_is_refused(name: str, rate: float, files: Path) -> None:
    if "rate" in vars(made(name, files)):
        words = [f"{name.split()[0]}.rate: expected a share from 0 to 1", f"{rate}"]
        parts.check_refused(lambda: made(name, files, rate), ValueError, words)


# Text views

TEXTS = [
    "",
    " ",
    "word",
    "7 8!",
    "an old bird sings",
    "dogs found china, dogs stopped",
    "The OLD bird, (sang) in  a   tall tree 7 times!",
    "naïve 東京 😀",
]


def text_view(name: str, files: Path, rate: float) -> views.TextView:
    view = made(name, files, rate)
    assert isinstance(view, views.TextView)
    return view


def global_states() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), torch.get_rng_state().tolist()


@text_views
def test_a_text_view_gives_a_text_by_its_generator_alone(name: str, files: Path) -> None:
    before, changed = global_states(), 0
    for rate in (0.5, 1.0):
        view, other = text_view(name, files, rate), text_view(name, files, rate)
        other.build(Vocabulary(size=1))
        together = [view.alter_all(TEXTS, [generator(seed + i) for i in range(len(TEXTS))]) for seed in (0, 7)]
        copy = pickle.loads(pickle.dumps(view))
        for seed, texts in zip((0, 7), together, strict=True):
            for i, (text, altered) in enumerate(zip(TEXTS, texts, strict=True)):
                assert copy(text, generator(seed + i)) == other(text, generator(seed + i)) == altered
                assert altered.strip() or not text.strip()
                changed += altered != text
    assert changed > 2
    assert global_states() == before


@pytest.mark.parametrize(
    "name", [name for name in TEXT_VIEWS if not name.startswith("NlpaugView")]
)  # augmenters alter a word or more
def test_a_text_view_at_rate_zero_changes_nothing(name: str, files: Path) -> None:
    view = text_view(name, files, 0.0)
    assert view.alter_all(TEXTS, [generator(i) for i in range(len(TEXTS))]) == TEXTS


# Token views

VOCABULARY = Vocabulary(size=90, prefix=1, suffix=1, mask_id=3, special_ids=frozenset({3, 4}), added={"[DEL]": 4})


def built(view: views.TokenView) -> views.TokenView:
    view.build(VOCABULARY)
    return view


@st.composite
def token_lists(draw: st.DrawFn) -> Tokens:
    """Ids above those of the vocabulary, in words of one to three; every list shows a token's first place."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    words = tuple(word for word, size in enumerate(sizes) for _ in range(size))
    n = len(words)
    return Tokens(
        ids=tuple(range(100, 100 + n)),
        words=words,
        positions=tuple(range(n)) if draw(st.booleans()) else None,
        labels=tuple(NO_LABEL if i % 2 else i for i in range(n)) if draw(st.booleans()) else None,
    )


@token_views
@given(tokens=token_lists(), rate=RATES, seed=SEEDS)
def test_a_token_view_repeats_itself_and_leaves_its_input(
    make: Callable[[float], views.TokenView], tokens: Tokens, rate: float, seed: int
) -> None:
    before, view = deepcopy(tokens), built(make(rate))
    first = view(tokens, generator(seed))
    assert view(tokens, generator(seed)) == pickle.loads(pickle.dumps(view))(tokens, generator(seed)) == first
    assert tokens == before


@token_views
def test_a_token_view_draws_by_the_key(make: Callable[[float], views.TokenView]) -> None:
    tokens, view = Tokens(ids=tuple(range(100, 130)), words=tuple(range(30))), built(make(0.3))
    assert len({view(tokens, generator(seed)) for seed in range(10)}) > 3


@token_views
@given(tokens=token_lists(), seed=SEEDS)
def test_a_token_view_at_rate_zero_changes_no_token(
    make: Callable[[float], views.TokenView], tokens: Tokens, seed: int
) -> None:
    view = built(make(0.0))
    altered = view(tokens, generator(seed))
    assert (altered.ids, altered.words) == (tokens.ids, tokens.words)
    assert view.sets_positions or altered.positions == tokens.positions
    assert altered.labels == tokens.labels or (view.sets_labels and {*(altered.labels or ())} == {NO_LABEL})


@token_views
@given(tokens=token_lists(), rate=st.sampled_from([0.3, 1.0]), seed=SEEDS)
def test_a_token_view_leaves_a_token_and_every_list_follows_the_ids(
    make: Callable[[float], views.TokenView], tokens: Tokens, rate: float, seed: int
) -> None:
    view = built(make(rate))
    altered = view(tokens, generator(seed))
    assert len(altered) >= 1
    assert (altered.positions is None) == (tokens.positions is None and not view.sets_positions)
    assert (altered.labels is None) == (tokens.labels is None and not view.sets_labels)
    for place, i in enumerate(altered.ids):
        if i < VOCABULARY.size:  # a mark, a mask or a random token
            continue
        old = i - 100
        assert altered.words[place] == tokens.words[old]
        assert view.sets_positions or altered.positions is None or altered.positions[place] == old
        if altered.labels is not None:
            hidden = {i} if view.sets_labels else set()
            assert altered.labels[place] in {NO_LABEL if tokens.labels is None else tokens.labels[old]} | hidden


@token_views
@pytest.mark.parametrize("words", [(), (NO_WORD,), (NO_WORD, NO_WORD)])
def test_a_token_view_takes_a_text_without_words(
    make: Callable[[float], views.TokenView], words: tuple[int, ...]
) -> None:
    view = built(make(1.0))
    if not words or view.after_specials:
        assert len(view(Tokens(ids=words, words=words), generator(0))) == len(words)


@token_views
def test_a_view_that_needs_the_vocabulary_says_so(make: Callable[[float], views.TokenView]) -> None:
    view, tokens = make(0.5), Tokens(ids=tuple(range(100, 120)), words=tuple(range(20)))
    if view.new_tokens or isinstance(view, views.MaskTokens):
        with pytest.raises(RuntimeError, match=rf"{type(view).__name__}: expected build\(vocabulary\) before"):
            view(tokens, generator(0))
    else:
        view(tokens, generator(0))


@token_views
def test_c8_and_s12_special_tokens_are_never_touched(
    make: Callable[[float], views.TokenView], corpus: tuple[str, ...]
) -> None:
    tokenizer = TextTokenizer(learn_vocabulary(corpus, 90, new_tokens=("[DEL]",)), max_length=16, spare=8)
    plan = views.ViewPlan({"anchor": [make(0.5)]})
    vocabulary = tokenizer.vocabulary(plan.new_tokens)
    plan.build(vocabulary)
    collate = Collator(tokenizer, SameText(), plan, seed=0)
    put_in = {*vocabulary.added.values(), vocabulary.mask_id}
    for epoch in range(5):
        batch = collate([KeyedRow(epoch, i, {"text": sentence}) for i, sentence in enumerate(corpus)])
        labels = torch.full_like(batch.ids, NO_LABEL) if batch.labels is None else batch.labels
        assert not {*labels.tolist()} & vocabulary.special_ids
        for row, marked in zip(
            *(split(each, batch.lengths.tolist()) for each in (batch.ids, labels)), strict=True
        ):
            first, *inner, last = row.tolist()
            assert ([first], [last]) == ([*tokenizer.prefix], [*tokenizer.suffix])
            assert marked[[0, -1]].tolist() == [NO_LABEL, NO_LABEL]
            assert inner and not {*inner} & (vocabulary.special_ids - put_in)


# Embedding views


class Block(NamedTuple):
    """Right-padded rows; no entry is zero by itself."""

    values: Tensor
    mask: Tensor
    keys: Tensor

    def altered(self, view: views.EmbeddingView) -> Tensor:
        plan = views.ViewPlan({"anchor": [view]})
        plan.build(VOCABULARY)
        return view(self.values, plan.alterable_mask(view, self.mask), RowRandom(self.keys))


def block(lengths: list[int], features: int, padding: int = 0, dtype: torch.dtype = torch.float32) -> Block:
    longest = max(lengths) + padding
    values = torch.rand(len(lengths), longest, features, generator=torch.Generator().manual_seed(0)) + 0.5
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    return Block(values.to(dtype), mask, torch.arange(len(lengths)) * 7919)


BLOCKS = st.builds(
    block,
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    features=st.integers(1, 6),
    padding=st.integers(0, 3),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)


@embedding_views
@given(rows=BLOCKS, rate=RATES)
def test_k6_an_embedding_view_repeats_itself_and_leaves_embeddings_mask_and_keys(
    make: Callable[[float], views.EmbeddingView], rows: Block, rate: float
) -> None:
    before = Block(*(tensor.clone() for tensor in rows))
    first = rows.altered(make(rate))
    assert torch.equal(rows.altered(make(rate)), first)
    assert all(torch.equal(now, then) for now, then in zip(rows, before, strict=True))


@embedding_views
@given(rows=BLOCKS)
def test_an_embedding_view_changes_nothing_at_rate_zero_and_is_finite_at_rate_one(
    make: Callable[[float], views.EmbeddingView], rows: Block
) -> None:
    assert torch.equal(rows.altered(make(0.0)), rows.values)
    view = rows.altered(make(1.0))
    assert torch.isfinite(view).all()
    assert (view.shape, view.dtype) == (rows.values.shape, rows.values.dtype)


@embedding_views
@given(rows=BLOCKS, rate=RATES)
def test_a_row_depends_on_no_other_row_no_padding_and_no_order(
    make: Callable[[float], views.EmbeddingView], rows: Block, rate: float
) -> None:
    whole = rows.altered(make(rate))
    backwards = Block(*(tensor.flip(0) for tensor in rows)).altered(make(rate))
    assert torch.equal(backwards.flip(0), whole)
    for i, n in enumerate(rows.mask.sum(dim=1).tolist()):
        alone = Block(rows.values[i : i + 1, :n], rows.mask[i : i + 1, :n], rows.keys[i : i + 1])
        assert torch.equal(alone.altered(make(rate))[0], whole[i, :n])


@pytest.mark.parametrize("name", [name for name in EMBEDDING_VIEWS if name != "FeatureCutoff"])
@given(rows=BLOCKS, rate=RATES)
def test_an_embedding_view_leaves_padding_and_on_request_special_tokens(
    name: str, rows: Block, rate: float
) -> None:
    view, kept = rows.altered(EMBEDDING_VIEWS[name](rate)), ~rows.mask
    if name.endswith("between specials"):
        kept[:, 0] = True
        kept[torch.arange(len(kept)), rows.mask.sum(dim=1) - 1] = True
    assert torch.equal(view[kept], rows.values[kept])


@pytest.mark.parametrize("make", ERASERS.values(), ids=ERASERS)
@given(rows=BLOCKS, rate=RATES)
def test_what_is_not_erased_is_unchanged_and_has_the_gradient_alone(
    make: Callable[[float], views.EmbeddingView], rows: Block, rate: float
) -> None:
    values = rows.values.clone().requires_grad_()
    view = rows._replace(values=values).altered(make(rate))
    kept = view != 0
    assert torch.equal(view[kept], values[kept])
    (gradient,) = torch.autograd.grad(view.sum(), values)
    assert torch.equal(gradient, kept.to(gradient.dtype))


@embedding_views
@pytest.mark.parametrize("shape", [(0, 4, 3), (0, 0, 3), (2, 0, 3)])
def test_a_block_without_tokens_is_taken(
    make: Callable[[float], views.EmbeddingView], shape: tuple[int, int, int]
) -> None:
    rows = Block(torch.ones(shape), torch.ones(shape[:2], dtype=torch.bool), torch.arange(shape[0]))
    assert rows.altered(make(0.5)).shape == shape
