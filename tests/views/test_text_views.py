"""Views of the string that ask a template, nlpaug, a masked language model or a file of texts."""

from __future__ import annotations

import importlib
import json
import pickle
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import parts
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from contrastive_text.core.random import generator
from contrastive_text.core.types import Vocabulary
from contrastive_text.data import learn_vocabulary
from contrastive_text.pairings import Given
from contrastive_text.views import TextsFromFile
from contrastive_text.views.contextual import ContextualSubstitute
from contrastive_text.views.text import NlpaugView, Prompt, SwapWords, match_case, split_words

SEEDS = st.integers(0, 2**31)
RATES = st.floats(0, 1)
# Of each kind; to draw from all of Unicode takes half a minute where its tables aren't there yet.
CHARACTERS = "aZéßǅʰ東٣7½_-\u2013({})»'¨^+€©😀,! \t\n\r\u2028\u00a0\u200b\u0301\u0000"
SENTENCES = st.lists(st.text("abcdé", min_size=1, max_size=3), min_size=1, max_size=8).map(" ".join)


# Words and prompts


@given(text=st.text(CHARACTERS))
def test_the_pieces_of_a_text_make_the_text_again_with_words_at_the_odd_places(text: str) -> None:
    pieces = split_words(text)
    assert "".join(pieces) == text
    assert all(word and not word.isspace() for word in pieces[1::2])
    assert not any(character.isalnum() for piece in pieces[::2] for character in piece)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Big", "Large"),
        ("BIG", "LARGE"),
        ("big", "large"),
        ("I", "Large"),
        ("iPod", "large"),
        ("O'Neill", "Large"),
    ],
)
def test_a_word_gets_the_capitals_of_another(model: str, expected: str) -> None:
    assert match_case("large", model) == expected


@given(text=st.text(CHARACTERS))
def test_a_prompt_puts_any_text_into_its_template(text: str) -> None:
    assert Prompt()(text, generator(0)) == text
    assert Prompt("{x} {text}: {")(text, generator(0)) == "{x} " + text + ": {"


@given(text=SENTENCES, rate=RATES, seed=SEEDS)
def test_swap_words_keeps_every_word_and_moves_each_left_by_at_most_one(
    text: str, rate: float, seed: int
) -> None:
    swapped = SwapWords(rate)(text, generator(seed)).split()
    assert Counter(swapped) == Counter(text.split())
    words = [f"{i}" for i in range(len(text.split()))]
    moved = SwapWords(rate)(" ".join(words), generator(seed)).split()
    # A swap carries one word to the right and lets those it passes step one to the left.
    assert all(int(word) - place <= 1 for place, word in enumerate(moved))


def test_swap_words_swaps_at_its_rate() -> None:
    text = " ".join(str(i) for i in range(10_001))
    moved = SwapWords(0.3)(text, generator(5)).split()
    left = sum(int(word) == place + 1 for place, word in enumerate(moved))
    # A word steps left for each swap: 3,000 of 10,000, standard deviation 46; five of them.
    assert abs(left - 3000) < 5 * 46


# nlpaug

OWN = '''
import random
import numpy as np
import torch
from nlpaug import Augmenter

class Gives(Augmenter):
    """Gives what it is told to."""

    def __init__(self, found):
        self.found = found

    def augment(self, data, n=1, num_thread=1):
        return self.found

class Draws(Gives):
    """Gives a draw of every global generator."""

    def __init__(self):
        pass

    def augment(self, data, n=1, num_thread=1):
        return [f"{random.random()} {np.random.random()} {torch.rand(())}"]

class Fails(Gives):
    def __init__(self):
        pass

    def augment(self, data, n=1, num_thread=1):
        raise ValueError("no such thing")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of augmenters made for these tests."""
    pytest.importorskip("nlpaug", reason="needs nlpaug: pip install 'contrastive-text[augment]'")
    name = f"own_augmenters_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(name)  # as the program does whose augmenters they are
    return name


def nlpaug_view(name: str, **arguments: Any) -> NlpaugView:
    pytest.importorskip("nlpaug", reason="needs nlpaug: pip install 'contrastive-text[augment]'")
    return NlpaugView(f"nlpaug.augmenter.{name}", arguments or None)


def states() -> tuple[object, list[int], list[int]]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]  # a tuple, without legacy=False


def test_a_text_of_one_sentence_passes_an_augmenter_of_sentences(
    nltk_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nltk_data.is_dir():
        pytest.skip(f"needs NLTK's punkt_tab, and {nltk_data} isn't there")
    monkeypatch.setattr("nltk.data.path", [str(nltk_data)])
    view = nlpaug_view("sentence.RandomSentAug", mode="random")
    assert view("It rains.", generator(0)) == "It rains."  # nlpaug 1.1.11 fails
    assert view("It rains. We stay.", generator(0)) == "We stay. It rains."


def test_all_three_global_generators_follow_the_text_s_own(own: str) -> None:
    view = NlpaugView(f"{own}.Draws")
    first, second, again = (view("a text", generator(seed)).split() for seed in (1, 2, 1))
    assert first == again
    assert all(one != other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("found", ["new", ["new", "other"], [], "", [""], [" "], None, [None]])
def test_whatever_an_augmenter_gives_a_text_comes_out(own: str, found: object) -> None:
    expected = "new" if "new" in (found or "") else "old"  # type: ignore[operator]  # a text or a list
    assert NlpaugView(f"{own}.Gives", {"found": found})("old", generator(0)) == expected


def test_an_augmenter_s_own_error_is_not_hidden_and_the_generators_are_put_back(own: str) -> None:
    before = states()
    with pytest.raises(ValueError, match="no such thing"):
        NlpaugView(f"{own}.Fails")("old", generator(0))
    assert states() == before


def test_without_nlpaug_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nlpaug", None)  # what import takes as "not there"
    with pytest.raises(ImportError, match=r"pip install 'contrastive-text\[augment\]'"):
        NlpaugView("nlpaug.augmenter.word.SplitAug")


# A masked language model


# Weights of standard deviation 0.3: with BERT's 0.02 all words would have nearly the same score.
SIZES = {"num_hidden_layers": 1, "max_position_embeddings": 40, "initializer_range": 0.3}


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory, corpus: tuple[str, ...]) -> str:
    """Folder of a tiny masked language model."""
    return tiny.save_masked_lm(tmp_path_factory.mktemp("masked_lm"), corpus, **SIZES)


@pytest.fixture(scope="module")
def vocabulary(corpus: tuple[str, ...]) -> set[str]:
    """Words of letters that are one token of it."""
    tokens = learn_vocabulary(corpus, vocabulary_size=300).get_vocab()
    return {token for token in tokens if token.isalpha()}


TEXT = "The OLD bird, (sings) in the   tall green tree 7 times!"


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_share_of_the_words_becomes_other_whole_words_and_nothing_else_changes(
    masked_lm: str, vocabulary: set[str], rate: float
) -> None:
    view, before = ContextualSubstitute(masked_lm, rate=rate), split_words(TEXT)
    for seed in range(10):
        after = split_words(view(TEXT, generator(seed)))
        assert after[::2] == before[::2]
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == min(round(rate * 11), 10)  # eleven words, the number never
        assert all(new.lower() in vocabulary and new.lower() != old.lower() for old, new in changed)
        assert all(new == match_case(new.lower(), model=old) for old, new in changed)


def test_draws_follow_the_model_s_distribution_over_other_whole_words(
    masked_lm: str, vocabulary: set[str], corpus: tuple[str, ...]
) -> None:
    view = ContextualSubstitute(masked_lm, rate=1.0, top_k=4, temperature=0.7, batch_size=100)
    draws = 2000
    found = Counter(view.alter_all(["bird"] * draws, [generator(i) for i in range(draws)]))
    tokenizer = learn_vocabulary(corpus, vocabulary_size=300)
    model = BertForMaskedLM.from_pretrained(masked_lm)
    with torch.no_grad():
        scores = model(**tokenizer("[MASK]", return_tensors="pt")).logits[0, 1].double() / 0.7
    words = {i: word for word, i in tokenizer.get_vocab().items() if word in vocabulary - {"bird"}}
    best = sorted(words, key=lambda i: -float(scores[i]))[:4]
    assert set(found) <= {words[i] for i in best}
    for i, share in zip(best, scores[best].softmax(dim=0).tolist(), strict=True):
        assert abs(found[words[i]] - draws * share) < 5 * (draws * share * (1 - share)) ** 0.5


def test_draws_come_from_all_words_without_top_k_and_the_best_at_temperature_zero(masked_lm: str) -> None:
    rngs = [generator(i) for i in range(300)]
    every = set(
        ContextualSubstitute(masked_lm, 1.0, top_k=None, temperature=100.0).alter_all(["bird"] * 300, rngs)
    )
    best = set(ContextualSubstitute(masked_lm, 1.0, temperature=1e-6).alter_all(["bird"] * 300, rngs))
    assert len(every) > 20
    assert len(best) == 1
    assert best == set(ContextualSubstitute(masked_lm, 1.0, top_k=1).alter_all(["bird"] * 300, rngs))


def test_words_behind_the_length_limit_stay(masked_lm: str) -> None:
    words = ["bird"] * 60
    altered = ContextualSubstitute(masked_lm, rate=1.0)(" ".join(words), generator(0)).split()
    # 40 positions, two of which RoBERTa would keep for padding, and two special tokens.
    assert "bird" not in altered[:36]
    assert altered[36:] == words[36:]


def test_a_byte_level_vocabulary_gives_whole_words_too(tmp_path: Path, corpus: tuple[str, ...]) -> None:
    learned = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learned.train_from_iterator([*corpus] * 3, vocab_size=600, min_frequency=2, special_tokens=specials)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # theirs
        tokenizer_object=learned._tokenizer, pad_token="<pad>", mask_token=AddedToken("<mask>", lstrip=True)
    )
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=30)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    text = "the old bird, (sings) in the tall tree"
    altered = ContextualSubstitute(str(tmp_path), rate=1.0)(text, generator(0))
    before, after = split_words(text), split_words(altered)
    assert after[::2] == before[::2]
    # The start of a word may be a token too, and can't be told from a word.
    assert all(f" {new}" in f" {' '.join(corpus)}" for new in after[1::2])
    assert all(new != old for old, new in zip(before[1::2], after[1::2], strict=True))


def test_a_checkpoint_without_the_head_and_a_tokenizer_without_a_mask_token_are_refused(
    tmp_path: Path, corpus: tuple[str, ...]
) -> None:
    folder = tiny.save_masked_lm(tmp_path / "model", corpus, **SIZES)
    headless = learn_vocabulary(corpus, vocabulary_size=300).save_pretrained(tmp_path / "headless")
    BertModel(BertConfig(**tiny.CONFIG)).save_pretrained(tmp_path / "headless")
    bare = PreTrainedTokenizerFast(tokenizer_file=headless[0].replace("_config", ""), pad_token="[PAD]")  # type: ignore[no-untyped-call]  # theirs
    bare.save_pretrained(folder)
    for name, words in (
        ("headless", ["expected all weights of a masked language model", "cls.predictions"]),
        ("model", ["expected a fast tokenizer with a mask token", "with None"]),
    ):
        view = ContextualSubstitute(str(tmp_path / name), rate=1.0)
        parts.check_refused(lambda view=view: view("a bird", generator(0)), ValueError, words)  # type: ignore[misc]  # a default of a lambda


ROWS = [("a big dog", "a large dog"), ("näh", "nein"), ("a big dog", "a huge dog"), ("x", 'a "quote"')]


@pytest.fixture(params=["tsv", "jsonl", "marked.tsv"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The rows in each format: a text twice in a table, once with a list in JSON."""
    path = tmp_path / f"written.{request.param}"
    if request.param.endswith("tsv"):
        mark = "\ufeff" if "marked" in request.param else ""
        lines = ["alternative\tscore\ttext", *(f"{other}\t1\t{text}" for text, other in ROWS), ""]
        path.write_text(mark + "\r\n".join(lines), encoding="utf-8", newline="")
    else:
        listed: dict[str, list[str]] = {}
        for text, other in ROWS:
            listed.setdefault(text, []).append(other)
        rows = [
            {"alternative": each if len(each) > 1 else each[0], "text": text} for text, each in listed.items()
        ]
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n\n" for row in rows), encoding="utf-8")
    return str(path)


def test_each_text_has_its_alternatives_and_one_is_drawn(file: str) -> None:
    view = TextsFromFile(file)
    view.build(Vocabulary(size=1))
    for each in (view, pickle.loads(pickle.dumps(view))):
        assert each.alternatives("a big dog") == ["a large dog", "a huge dog"]
        assert each("näh", generator(0)) == "nein"
        assert each("x", generator(0)) == 'a "quote"'
    drawn = Counter(view("a big dog", generator(seed)) for seed in range(400))
    assert abs(drawn["a large dog"] - 200) < 60  # six standard deviations


def test_a_text_that_is_not_there_is_an_error_or_stays(file: str) -> None:
    with pytest.raises(
        ValueError, match=r"an alternative of every text, got no alternative of the text 'else'; .* keep"
    ):
        TextsFromFile(file)("else", generator(0))
    assert [TextsFromFile(file, missing="keep")(text, generator(0)) for text in ("else", "näh")] == [
        "else",
        "nein",
    ]


def test_a_file_that_was_changed_is_an_error_and_no_other_text(file: str) -> None:
    view = TextsFromFile(file)
    view.build(Vocabulary(size=1))
    content = Path(file).read_bytes()
    Path(file).write_bytes(content.replace("näh".encode(), "nöh".encode()))
    with pytest.raises(OSError, match="expected the file of the start of the run"):
        view("näh", generator(0))


def test_memory_is_sixteen_bytes_a_line(tmp_path: Path) -> None:
    path = tmp_path / "many.tsv"
    path.write_text("text\talternative\n" + "".join(f"text {i}\tother {i}\n" for i in range(2000)))
    view = TextsFromFile(str(path))
    assert len(pickle.dumps(view)) < 1000
    assert view("text 1234", np.random.default_rng(0)) == "other 1234"
    assert len(pickle.dumps(view)) < 16 * 2000 + 1500


def test_a_missing_text_is_found_before_the_first_step_and_only_where_the_view_stands(
    bert: str, tmp_path: Path
) -> None:
    path, triples = tmp_path / "short.tsv", tmp_path / "pairs.tsv"
    path.write_text(f"text\talternative\n{tiny.TEXTS[0]}\tbird\n")
    triples.write_text("anchor\tpositive\n" + f"else\t{tiny.TEXTS[0]}\n" * 8)
    module = tiny.module(bert, views={"positive": [TextsFromFile(str(path))]})
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    with pytest.raises(ValueError, match=rf"data.task: .*short.tsv: .* of the text '{tiny.TEXTS[1][:20]}"):
        tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=data)
    tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(str(triples), pairing=Given()))
