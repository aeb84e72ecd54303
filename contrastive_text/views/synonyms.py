"""View that replaces words by synonyms, and the sources of synonyms: files and WordNet.

WordNet is read from a data folder of NLTK's layout; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from contrastive_text.core.checks import at_least, one_of, share
from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.storage.text_files import decoded_lines
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import TextView, Words
from contrastive_text.views.inflection import base_form, invert, noun_forms, verb_forms
from contrastive_text.views.text import is_word, match_case, split_words, tab_fields

if TYPE_CHECKING:
    from nltk.tag.perceptron import PerceptronTagger  # type: ignore[import-untyped]  # theirs

RateOf = Literal["replaceable", "all"]
"""Words of which a rate is a share: the words that have a synonym, or all words."""

SynonymTable: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Part of speech -> word -> its synonyms; the part of speech "" holds what needs no agreement.

A word is looked up as it is written, then in lower case; an entry without synonyms ends the search.
"""


class SynonymSource(ABC):
    """Base class of sources of synonyms.

    Example:
        >>> class Animals(SynonymSource):
        ...     def table(self):
        ...         return {"": {"dog": ("hound",)}}  # of every part of speech
        >>> Animals().table()[""]["dog"]
        ('hound',)
    """

    @abstractmethod
    def table(self) -> SynonymTable:
        """Returns all synonyms; called once, before the first text."""

    def parts_of_speech(self, words: Sequence[str]) -> Sequence[str] | None:  # noqa: ARG002  # the contract
        """Returns the part of speech of each word of a text; None where "" holds for all."""
        return None


class SynonymFile(SynonymSource):
    """Synonyms from a file, tab-separated or ``.json``, plain or ``.gz``.

    The first line of a tab-separated one names the columns: ``word`` and ``synonyms``, these joined by ``|``, or
    ``word1`` and ``word2``, one pair a line and read in that direction. Rows of one word are put together; other
    columns, such as ``pos``, are left out. A ``.json`` is one object, from words to lists of synonyms: the form
    of the counter-fitted lists of Jia et al. 2019 (https://arxiv.org/abs/1909.00986), which CLEAR takes. Words
    stand in the file as in a text: nothing is inflected, and synonyms that are not single words are left out, so
    that a text keeps its number of words.

    Args:
        path: The file.

    Raises:
        ValueError: No such file, other columns, a row of another length, or JSON of another form.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "words.tsv")
        ...     _ = path.write_text("word\\tsynonyms\\nbig\\tlarge|grown up\\n")
        ...     SynonymFile(str(path)).table()
        {'': {'big': ('large',)}}
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not Path(path).is_file():
            raise InvalidValueError(
                f"SynonymFile.path: expected a tab-separated file or a .json, got {path!r}, which is no file"
            )

    def table(self) -> SynonymTable:
        """Returns the synonyms of the file, in its order."""
        read = self._json() if Path(self.path.removesuffix(".gz")).suffix == ".json" else self._rows()
        return {"": {word: kept for word, each in read.items() if (kept := _usable(word, each))}}

    def _json(self) -> Mapping[str, Iterable[str]]:
        wanted = "SynonymFile.path: expected a JSON object from words to lists of words"
        try:
            content = json.loads("".join(decoded_lines(Path(self.path))))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidValueError(f"{wanted} in {self.path}, got no JSON: {first_line(error)}") from error
        if not isinstance(content, dict):
            raise InvalidValueError(f"{wanted} in {self.path}, got a {type(content).__name__}")
        for word, synonyms in content.items():
            if not (isinstance(synonyms, list) and all(isinstance(each, str) for each in synonyms)):
                raise InvalidValueError(f"{wanted} in {self.path}, got {synonyms!r:.60} for {word!r}")
        return content

    def _rows(self) -> Mapping[str, Iterable[str]]:
        found: dict[str, dict[str, None]] = {}
        rows = map(tab_fields, decoded_lines(Path(self.path)))
        header = next(rows, [])
        columns = next((pair for pair in _COLUMNS if set(pair) <= set(header)), None)
        if columns is None:
            raise InvalidValueError(
                f"SynonymFile.path: expected columns word and synonyms, or word1 and word2, in {self.path}, "
                f"got {', '.join(header) or 'nothing'}"
            )
        if twice := [name for name in columns if header.count(name) > 1]:
            raise InvalidValueError(
                f"SynonymFile.path: expected one column {twice[0]} in {self.path}, got two; rename one"
            )
        word, synonyms = (header.index(name) for name in columns)
        for number, row in enumerate(rows, start=2):
            if row == [""]:
                continue
            if len(row) != len(header):
                raise InvalidValueError(
                    f"SynonymFile.path: expected {len(header)} columns in line {number} of "
                    f"{self.path}, got {len(row)}"
                )
            found.setdefault(row[word], {}).update(dict.fromkeys(row[synonyms].split("|")))
        return found


_COLUMNS = (("word", "synonyms"), ("word1", "word2"))


def _usable(word: str, synonyms: Iterable[str]) -> tuple[str, ...]:
    """Returns the synonyms that are one word of letters, and another one than the word itself.

    Example:
        >>> _usable("big", ["large", "Big", "grown up", "h2o", "large"])
        ('large',)
    """
    return tuple(s for s in dict.fromkeys(synonyms) if is_word(s) and s.lower() != word.lower())


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
        self.folder = folder
        self.same_part_of_speech = same_part_of_speech
        self.senses = at_least("WordNetSynonyms.senses", senses, 1, "leave it out for all")
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


class SubstituteSynonyms(TextView):
    """Puts a synonym in the place of a share of the words.

    Of the m words that have a synonym ``round(rate * m)`` are chosen at random; each gets one of its synonyms,
    all equally likely, with its capitals. Everything else, the number of words and the white space included,
    stays. Source: synonym substitution of Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3,
    which takes 30 % and leaves open of which words. 30 % of all (``of: all``) is nearly every word that has a
    synonym: two views then change the same places, and such words are hardly ever seen as they are. Here it is
    30 % of those that have one.

    Args:
        rate: Share of the words to replace.
        source: Where synonyms come from; None for ``WordNetSynonyms()``.
        of: What the rate is a share of: the words that have a synonym, ``replaceable``, or ``all`` words, where
            those with a synonym are taken until there are so many.

    Raises:
        ValueError: A rate outside [0, 1], something else that it is a share of, or no WordNet for the default
            source.

    Example:
        >>> class Two(SynonymSource):
        ...     def table(self):
        ...         return {"": {"big": ("large",), "dog": ("hound",)}}
        >>> SubstituteSynonyms(rate=1.0, source=Two())("Big dogs, a big dog!", np.random.default_rng(0))
        'Large dogs, a large hound!'
    """

    words: Words | None = "letters"

    def __init__(
        self,
        rate: float = 0.3,
        source: SynonymSource | None = None,
        of: RateOf = "replaceable",
    ) -> None:
        self.rate = share("SubstituteSynonyms.rate", rate)
        self.source = source
        self.of: RateOf = one_of("SubstituteSynonyms.of", of, RateOf)
        self._source = WordNetSynonyms() if source is None else source
        self._table: SynonymTable | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the contract
        """Makes the table of synonyms, so that workers get it ready-made."""
        self._table = self._source.table()

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced."""
        if self._table is None:
            self._table = self._source.table()
        pieces = split_words(text)
        words = pieces[1::2]
        tags = self._source.parts_of_speech(words) or [""] * len(words)
        found = []
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            synonyms_of = self._table.get(tag, {})
            if synonyms := synonyms_of.get(word, synonyms_of.get(word.lower())):
                found.append((place, synonyms))
        count = min(round(self.rate * len(words if self.of == "all" else found)), len(found))
        if count == 0:
            return text
        draws = rng.random(count).tolist()
        for i, draw in zip(rng.permutation(len(found))[:count].tolist(), draws, strict=True):
            place, synonyms = found[i]
            pieces[2 * place + 1] = match_case(synonyms[int(draw * len(synonyms))], model=words[place])
        return "".join(pieces)
