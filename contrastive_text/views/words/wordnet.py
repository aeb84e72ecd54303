"""Synonyms from WordNet, read from a data folder of NLTK's layout; nothing is downloaded."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.views.text import is_word
from contrastive_text.views.words.inflection import base_form, invert, noun_forms, verb_forms
from contrastive_text.views.words.lexicon import SynonymSource, SynonymTable

if TYPE_CHECKING:
    from nltk.tag.perceptron import PerceptronTagger  # type: ignore[import-untyped]  # theirs

_Folder: TypeAlias = Path | zipfile.Path
_Sense: TypeAlias = tuple[int, int, tuple[str, ...]]  # minus its count, its rank, synonyms: sorts by frequency

_FORMS = {"noun": noun_forms, "verb": verb_forms, "adj": base_form, "adv": base_form}
_KINDS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}  # by senseidx(5)
_PARTS = {  # of the Penn Treebank's tags, those with synonyms; names (NNP, NNPS) have none
    **dict.fromkeys(("NN", "NNS"), "noun"),
    **dict.fromkeys(("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), "verb"),
    **dict.fromkeys(("JJ", "JJR", "JJS"), "adj"),
    **dict.fromkeys(("RB", "RBR", "RBS"), "adv"),
}
_TAGGER = "averaged_perceptron_tagger_eng"

# WordNet holds nouns, verbs, adjectives and adverbs only, so a function word is found there as something else
# (can: tin; but: merely), or its synonym breaks the sentence (have: feature; two: deuce). Words of one or two
# letters are left out in any case; function words without an entry needn't stand here.
_FUNCTION_WORDS = frozenset(
    """
    about above across after all any around before behind being below beneath between but can despite done down
    each even ever had has have having here inside just like may might most much must near not nothing off only
    other out outside over own same some there through throughout till under whatever while why will within yet
    one two three four five six seven eight nine ten hundred thousand million billion
    """.split()  # noqa: SIM905  # a list of so many quoted words is hard to read
)


_TABLES: dict[tuple[str, bool, int | None], SynonymTable] = {}
"""The tables that this process has made, 2 seconds each: anchor and positive share one."""


class WordNetSynonyms(SynonymSource):
    """The words that share a sense with a word in WordNet, inflected as the word is.

    Only a word's most frequent senses count, over all its parts of speech: a text about water is not to be
    about urine. Left out are synonyms of several words, so that a text keeps its number of words; names, and
    words that WordNet has as names where a text writes them so (Turkey); words of one or two letters, most of
    them symbols in WordNet (in: indium, inch); function words and small numbers.

    A plural, a third person, an -ing form or a past form counts as a sense of its base form (found: to find, then
    to found), and its synonyms take the same form; those whose form can't be told for certain are left out.
    Comparatives have the synonyms that WordNet gives them.

    Source: Fellbaum 1998, WordNet (https://wordnet.princeton.edu), for the synonyms of Wu et al. 2020, CLEAR
    (https://arxiv.org/abs/2012.15466), section 3.3. Differs: theirs are the lists of Jia et al. 2019
    (https://arxiv.org/abs/1909.00986), neighbours of word vectors, for about 40 % of the words of a corpus. Of
    WordNet's, 1, 2 or all senses give 22, 30 or 37 % of the words of WikiText-2 a synonym.

    Args:
        folder: Folder with ``corpora/wordnet`` or ``corpora/wordnet.zip``; None for those that NLTK searches.
        same_part_of_speech: Whether a word gets only synonyms of the part of speech that it has in its text,
            told by NLTK's perceptron tagger from the same folder; some 20 times slower.
        senses: Number of senses that count; None for all, however rare. With ``same_part_of_speech``, of the
            word as this part of speech.

    Raises:
        ValueError: No WordNet, or no tagger, in the folder, or a number of senses below 1.
    """

    def __init__(
        self, folder: str | None = None, same_part_of_speech: bool = False, senses: int | None = 2
    ) -> None:
        if senses is not None and senses < 1:
            raise InvalidValueError(f"WordNetSynonyms.senses: expected 1 or more, or null for all, got {senses}")
        self.folder = folder
        self.same_part_of_speech = same_part_of_speech
        self.senses = senses
        self._tagger: PerceptronTagger | None = None
        _find(folder, "corpora", "wordnet")
        if same_part_of_speech:
            _find(folder, "taggers", _TAGGER)

    def table(self) -> SynonymTable:
        """Returns the synonyms of all base and inflected forms."""
        root = _find(self.folder, "corpora", "wordnet")
        key = (str(root), self.same_part_of_speech, self.senses)
        if key not in _TABLES:
            _TABLES[key] = self._read(root)
        return _TABLES[key]

    def _read(self, root: _Folder) -> SynonymTable:
        index = _senses(root / "index.sense")
        senses: dict[str, dict[str, list[_Sense]]] = {}
        names: set[str] = set()
        for pos, forms in _FORMS.items():
            synsets = {}
            for offset, words in _synsets(root / f"data.{pos}"):
                names.update(word for word in words if not word.islower())
                synsets[offset] = [word for word in words if _takes_part(word)]
            found = senses.setdefault(pos if self.same_part_of_speech else "", {})
            inflect = cache(partial(forms, irregular=invert(_lines(root / f"{pos}.exc"))))
            for lemma, count, number, offset in index[pos]:
                # The index is in lower case throughout, so that senses of names stand in it too.
                if lemma not in synsets[offset]:
                    continue
                others = [inflect(other) for other in synsets[offset] if other != lemma]
                for i, form in enumerate(inflect(lemma)):
                    fitting = tuple(safe for other in others if (safe := other[i].safe) is not None)
                    for spelling in form.spellings:
                        if spelling not in _FUNCTION_WORDS:
                            found.setdefault(spelling, []).append((-count, number, fitting))
        lists = {pos: self._most_frequent(found) for pos, found in senses.items()}
        for each in lists.values():
            each.update({name: () for name in names if name.lower() in each})
        return lists

    def _most_frequent(self, senses: Mapping[str, list[_Sense]]) -> dict[str, tuple[str, ...]]:
        found = {}
        for word, each in senses.items():
            synonyms = chain.from_iterable(of_sense for *_, of_sense in sorted(each)[: self.senses])
            if others := tuple(dict.fromkeys(synonym for synonym in synonyms if synonym != word)):
                found[word] = others
        return found

    def parts_of_speech(self, words: Sequence[str]) -> Sequence[str] | None:
        """Returns each word's part of speech: noun, verb, adj, adv or ""; None without agreement."""
        if not self.same_part_of_speech:
            return None
        if self._tagger is None:
            self._tagger = _load_tagger(_find(self.folder, "taggers", _TAGGER))
        return [_PARTS.get(tag, "") for _, tag in self._tagger.tag(words)]


def _takes_part(word: str) -> bool:
    return len(word) > 2 and word.islower() and is_word(word) and word not in _FUNCTION_WORDS


def _find(folder: str | None, kind: str, name: str) -> _Folder:
    """Returns the folder of a resource, which may lie in a zip file, as NLTK's downloader leaves it."""
    for place in _folders(folder):
        plain, zipped = Path(place, kind, name), Path(place, kind, f"{name}.zip")
        if plain.is_dir():
            return plain
        if zipped.is_file():
            return zipfile.Path(zipped, f"{name}/")
    where = "one of the folders that NLTK searches" if folder is None else folder
    option = "" if folder is None else f"-d {folder} "
    raise InvalidValueError(
        f"WordNetSynonyms.folder: expected {kind}/{name} in {where}, got none; fetch it once with: "
        f"python -m nltk.downloader {option}{name}"
    )


def _folders(folder: str | None) -> Iterator[str]:
    if folder is not None:
        yield folder
        return
    # What NLTK takes from the environment when it is first imported, so that a later change counts too.
    yield from filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    import nltk.data  # type: ignore[import-untyped]  # theirs

    yield from nltk.data.path


def _lines(file: _Folder) -> Iterator[str]:
    # The licence stands before the entries, indented.
    return (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(" "))


def _synsets(file: _Folder) -> Iterator[tuple[str, list[str]]]:
    """Yields offset and words of every set of synonyms, by the format of WordNet's manual page wndb(5)."""
    for line in _lines(file):
        offset, _, _, number, rest = line.split(" ", 4)
        pairs = 2 * int(number, base=16)  # word and number of the sense
        yield offset, [word.partition("(")[0] for word in rest.split(" ", pairs)[:pairs:2]]


def _senses(file: _Folder) -> dict[str, list[tuple[str, int, int, str]]]:
    """Returns lemma, count in tagged text, rank and offset of every sense of a part of speech, by senseidx(5)."""
    found: dict[str, list[tuple[str, int, int, str]]] = {pos: [] for pos in _FORMS}
    for line in _lines(file):
        key, offset, number, count = line.split()
        lemma, _, kind = key.partition("%")
        found[_KINDS[kind[0]]].append((lemma, int(count), int(number), offset))
    return found


def _load_tagger(folder: _Folder) -> PerceptronTagger:
    from nltk.tag.perceptron import PerceptronTagger

    tagger = PerceptronTagger(load=False)
    # Read here, because NLTK opens no file outside its own search path.
    tagger.decode_json_params(
        json.loads((folder / f"{_TAGGER}.{part}.json").read_text(encoding="utf-8"))
        for part in ("weights", "tagdict", "classes")
    )
    return tagger
