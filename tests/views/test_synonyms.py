"""Synonyms: which words are replaced, by what, and where the words come from."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wordnet_files
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.config.specs import describe
from contrastive_text.core.random import generator
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.inflection import noun_forms, verb_forms
from contrastive_text.views.synonyms import (
    SubstituteSynonyms,
    SynonymFile,
    SynonymSource,
    SynonymTable,
    WordNetSynonyms,
)
from contrastive_text.views.text import split_words

LISTS = {"bird": ("fowl", "flyer"), "sings": ("chants",), "tall": ("high", "lofty", "towering"), "Rex": ()}
SEEDS = st.integers(0, 2**31)
TEXTS = st.lists(
    st.sampled_from(
        ["bird", "Bird", "BIRD", "sings", "tall", "Rex", "and", "so-so", "7", "é", " ", ", ", "\n\t", "!"]
    )
).map("".join)


class Lists(SynonymSource):
    """The synonyms above."""

    def table(self) -> SynonymTable:
        return {"": LISTS}


def view(rate: float = 0.3, of: Any = "replaceable") -> SubstituteSynonyms:
    return SubstituteSynonyms(rate, source=Lists(), of=of)


def synonyms(word: str) -> tuple[str, ...]:
    return LISTS.get(word, LISTS.get(word.lower(), ()))


@given(text=TEXTS, rate=st.floats(0, 1), of=st.sampled_from(["replaceable", "all"]), seed=SEEDS)
def test_c7_as_many_words_change_as_asked_for_or_can_each_to_one_of_its_synonyms(
    text: str, rate: float, of: str, seed: int
) -> None:
    before, after = split_words(text), split_words(view(rate, of)(text, generator(seed)))
    assert after[::2] == before[::2]
    assert len(after) == len(before)
    changed = [(old, new) for old, new in zip(before[1::2], after[1::2], strict=True) if old != new]
    assert all(new.lower() in synonyms(old) for old, new in changed)
    able = sum(bool(synonyms(word)) for word in before[1::2])
    assert len(changed) == (
        round(rate * able) if of == "replaceable" else min(round(rate * (len(before) // 2)), able)
    )


def test_every_substitutable_word_and_every_synonym_is_drawn_equally_often() -> None:
    rng = np.random.default_rng(0)
    found = Counter(view(0.3)("tall bird sings Rex", rng) for _ in range(6000))
    # One of four words; each of three in 2,000 of 6,000 draws, its synonyms evenly. Five standard deviations.
    for word, place in (("bird", 1), ("sings", 2), ("tall", 0)):
        for synonym in LISTS[word]:
            share = 1 / 3 / len(LISTS[word])
            count = sum(n for text, n in found.items() if text.split()[place] == synonym)
            assert abs(count - 6000 * share) < 5 * (6000 * share * (1 - share)) ** 0.5


def test_a_synonym_gets_the_capitals_of_the_word_whose_own_case_goes_before_its_lower_case() -> None:
    class Names(SynonymSource):
        def table(self) -> SynonymTable:
            return {"": {"turkey": ("gobbler",), "Turkey": (), "sings": ("chants",)}}

    altered = SubstituteSynonyms(1.0, source=Names())("Turkey TURKEY turkey Sings SINGS", generator(0))
    assert altered == "Turkey GOBBLER gobbler Chants CHANTS"


def test_a_source_may_tell_parts_of_speech() -> None:
    class Tagged(SynonymSource):
        def table(self) -> SynonymTable:
            return {"noun": {"run": ("race",)}, "verb": {"run": ("flow",)}}

        def parts_of_speech(self, words: Sequence[str]) -> Sequence[str]:
            return ["noun" if words[i - 1 : i] == ["a"] else "verb" for i in range(len(words))]

    assert (
        SubstituteSynonyms(1.0, source=Tagged())("rivers run in a run", generator(0)) == "rivers flow in a race"
    )


def test_the_table_is_made_once_before_workers_start() -> None:
    class Once(Lists):
        calls = 0

        def table(self) -> SynonymTable:
            type(self).calls += 1
            return super().table()

    built = SubstituteSynonyms(1.0, source=Once())
    built.build(Vocabulary(size=1))
    assert [built("bird", generator(seed)) for seed in range(3)] != ["bird"] * 3
    assert Once.calls == 1


# Files


ROWS = (
    "word\tpos\tsynonyms\nbig\tadj\tlarge|grown up|BIG|h2o\n"
    'big\tadv\tlarge|boastfully\n"\tnoun\tquote\nodd\tadj\t7\n'
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("words.tsv", ROWS, {"big": ("large", "boastfully"), '"': ("quote",)}),
        ("words.tsv.gz", ROWS, {"big": ("large", "boastfully"), '"': ("quote",)}),
        ("pairs.tsv", "word1\tword2\nbig\tlarge\nbig\thuge\n", {"big": ("large", "huge")}),
        (
            "a.json",
            '{"big": ["large", "grown up", "huge"], "the": [], "odd": ["odd"]}',
            {"big": ("large", "huge")},
        ),
        ("a.json.gz", '{"big": ["large"]}', {"big": ("large",)}),
    ],
)
def test_a_file_joins_the_rows_of_a_word_and_keeps_single_words_of_letters_only(
    name: str, text: str, expected: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    written = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(written) if name.endswith("gz") else written)
    source = SynonymFile(str(tmp_path / name))
    assert source.table() == {"": expected}
    assert describe(source) == f"SynonymFile(path={str(tmp_path / name)!r})"


# Inflection


def test_a_regular_plural_is_safe() -> None:
    regular = "dog dogs, box boxes, city cities, day days, church churches, bus buses"
    for lemma, plural in map(str.split, regular.split(", ")):
        assert noun_forms(lemma, {})[1].safe == plural


def test_a_plural_that_is_not_certain_is_not_written() -> None:
    irregular: dict[str, tuple[list[str], str | None]] = {
        "woman": (["women"], "women"),
        "hero": (["heroes"], "heroes"),
        "brother": (["brethren"], None),
        "pes": (["pedes"], None),
        "quay": (["keys", "quays"], None),
        "physics": ([], None),
        "metropolis": ([], None),
    }
    for lemma, (forms, safe) in irregular.items():
        form = noun_forms(lemma, {lemma: forms})[1]
        assert form.safe == safe
        assert {*forms, noun_forms(lemma, {})[1].spellings[0]} == set(form.spellings)  # any may stand in a text


def test_a_verb_s_past_is_safe_where_it_is_the_participle_too() -> None:
    # A verb's irregular forms -> its form for the third person, its participle and, where it is safe, its past.
    forms: dict[tuple[str, ...], list[str | None]] = {
        ("walk",): ["walks", "walking", "walked"],
        ("carry",): ["carries", "carrying", "carried"],
        ("play",): ["plays", "playing", "played"],
        ("love",): ["loves", "loving", "loved"],
        ("agree",): ["agrees", "agreeing", "agreed"],
        ("watch",): ["watches", "watching", "watched"],
        ("stop", "stopped", "stopping"): ["stops", "stopping", "stopped"],
        ("die", "dying"): ["dies", "dying", None],
        ("cut", "cutting"): ["cuts", "cutting", None],
        ("hurt",): ["hurts", "hurting", None],
        ("go", "gone", "went"): ["goes", "going", None],
        ("say", "said"): ["says", "saying", None],
    }
    for (lemma, *irregular), expected in forms.items():
        assert [form.safe for form in verb_forms(lemma, {lemma: irregular})] == [lemma, *expected]


# WordNet


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A WordNet of a few senses."""
    return wordnet_files.write_wordnet(tmp_path / "nltk_data")


def test_the_most_frequent_senses_of_all_parts_of_speech_count(small: str) -> None:
    def of(word: str, senses: int | None) -> tuple[str, ...] | None:
        return WordNetSynonyms(small, senses=senses).table()[""].get(word)

    assert of("dog", 1) == ("hound",)
    assert of("dog", 2) == ("hound", "frump")
    assert of("dog", None) == ("hound", "frump", "pawl")
    assert of("water", 1) is None  # its first sense has no other word of letters
    assert of("water", 2) == ("irrigate",)


def test_synonyms_are_single_words_of_letters_and_no_names_or_function_words(small: str) -> None:
    table = WordNetSynonyms(small, senses=None).table()[""]
    assert all(word.islower() and "_" not in word for each in table.values() for word in each)
    assert table["China"] == ()  # a name: not replaced, not even by porcelain
    assert table["china"] == ("porcelain", "chinaware")
    assert not {"in", "inch", "can", "tin", "domestic_dog", "Taiwan"} & {*table, *table["dog"]}
    assert table["good"] == ("fine",)  # without the mark of its place in a sentence


def test_an_inflected_word_has_the_synonyms_of_its_base_form_inflected_alike(small: str) -> None:
    table = WordNetSynonyms(small, senses=None).table()[""]
    assert table["dogs"] == ("hounds", "frumps", "pawls")
    assert table["boxes"] == ("cartons",)
    assert "cities" not in table  # no certain plural of metropolis
    assert table["stopped"] == ("halted",)
    assert table["stopping"] == ("halting",)
    assert table["halted"] == ("stopped",)
    assert table["ran"] == ("flowed", "scated")
    assert table["better"] == ("improved",)


def test_a_word_that_is_a_base_and_an_inflected_form_is_settled_by_frequency(small: str) -> None:
    assert WordNetSynonyms(small, senses=1).table()[""]["found"] == ("discovered",)
    assert WordNetSynonyms(small, senses=2).table()[""]["found"] == ("discovered", "establish")


def test_a_zip_file_as_the_downloader_leaves_it_reads_the_same(small: str, tmp_path: Path) -> None:
    corpora = tmp_path / "zipped" / "corpora"
    shutil.make_archive(str(corpora / "wordnet"), "zip", root_dir=Path(small) / "corpora", base_dir="wordnet")
    assert WordNetSynonyms(str(corpora.parent)).table() == WordNetSynonyms(small).table()


def test_without_a_folder_nltk_s_own_places_are_searched(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", small)
    assert SubstituteSynonyms(1.0)("Two dogs.", generator(0)) in ("Two hounds.", "Two frumps.")
    assert describe(SubstituteSynonyms()) == "SubstituteSynonyms(rate=0.3, source=None, of='replaceable')"


def test_a_missing_corpus_is_named_at_construction_with_the_command_that_fetches_it(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nltk = pytest.importorskip("nltk.data")
    monkeypatch.setattr(nltk, "path", [])
    monkeypatch.delenv("NLTK_DATA", raising=False)
    command = r"got a folder without it; download it with the extra synonyms: python -m nltk\.downloader"
    with pytest.raises(
        ValueError,
        match=rf"expected corpora/wordnet in {tmp_path}, {command} -d {tmp_path} wordnet$",
    ):
        WordNetSynonyms(str(tmp_path))
    with pytest.raises(ValueError, match=r"python -m nltk\.downloader wordnet$"):
        SubstituteSynonyms()
    with pytest.raises(ValueError, match=r"downloader -d .* averaged_perceptron_tagger_eng$"):
        WordNetSynonyms(small, same_part_of_speech=True)


def test_only_a_search_for_the_folder_and_a_tagger_need_nltk(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nltk.data", "nltk.tag.perceptron"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("NLTK_DATA", small)
    assert WordNetSynonyms().table() == WordNetSynonyms(small).table()
    monkeypatch.delenv("NLTK_DATA")
    command = r"expected nltk, found none .*; pip install 'contrastive-text\[synonyms\]'"
    with pytest.raises(ImportError, match=f"WordNetSynonyms: {command}"):
        SubstituteSynonyms()
    with pytest.raises(ImportError, match=rf"WordNetSynonyms\.same_part_of_speech: {command}"):
        WordNetSynonyms(small, same_part_of_speech=True)


@pytest.fixture(scope="module")
def wordnet(nltk_data: Path) -> Callable[..., WordNetSynonyms]:
    """The real WordNet."""
    if not nltk_data.is_dir():
        pytest.skip(f"needs WordNet, and {nltk_data} isn't there")
    return lambda **options: WordNetSynonyms(str(nltk_data), **options)


@pytest.mark.slow
def test_wordnet_is_read_whole(wordnet: Callable[..., WordNetSynonyms]) -> None:
    table = wordnet().table()[""]
    assert "automobile" in table["car"]
    assert "automobiles" in table["cars"]
    assert "discovered" in table["found"]
    assert "urine" not in table.get("water", ())
    assert table["Turkey"] == ()
    assert not {"in", "it", "a", "has", "can", "two"} & set(table)
    assert all(len(split_words(synonym)) == 3 for synonyms in table.values() for synonym in synonyms)


def test_with_agreement_a_word_gets_synonyms_of_its_part_of_speech_in_the_text(
    wordnet: Callable[..., WordNetSynonyms], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = wordnet(same_part_of_speech=True, senses=None)
    text = "We run a long run in Paris"
    table = {"noun": {"run": ("streak",)}, "verb": {"run": ("flow",)}, "adj": {"long": ("lengthy",)}, "adv": {}}
    monkeypatch.setattr(source, "table", lambda: table)  # WordNet's own takes seconds to make
    assert source.parts_of_speech(text.split()) == ["", "verb", "", "adj", "noun", "", ""]
    altered = SubstituteSynonyms(1.0, source=source)(text, generator(0))
    assert altered == "We flow a lengthy streak in Paris"
