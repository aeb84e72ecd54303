"""View that replaces words by synonyms, and sources of synonyms: files and WordNet.

WordNet is read from a data folder with NLTK's layout, and is not downloaded.
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

from contrastive_text.core.errors import InvalidValueError, at_least, first_line, fraction, one_of
from contrastive_text.core.libraries import require
from contrastive_text.core.storage.text_files import decoded_lines
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import TextView, Words
from contrastive_text.views.inflection import base_forms, group_irregular_forms, noun_forms, verb_forms
from contrastive_text.views.text import is_word, match_case, split_words, tab_fields

if TYPE_CHECKING:
    from nltk.tag.perceptron import PerceptronTagger  # type: ignore[import-untyped]  # theirs

RateOf = Literal["replaceable", "all"]
"""Name of the set of words that a rate of replacement refers to: words that have a synonym, or all words."""

SynonymTable: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Part of speech -> word -> its synonyms; "" for synonyms that don't depend on the part of speech.

A word is looked up unchanged, then in lower case. An entry without synonyms ends the search.
"""


class SynonymSource(ABC):
    """Base class of sources of synonyms for ``SubstituteSynonyms``. A subclass implements ``table``.

    Example:
        >>> class Animals(SynonymSource):
        ...     def table(self):
        ...         return {"": {"dog": ("hound",)}}  # for every part of speech
        >>> Animals().table()[""]["dog"]
        ('hound',)
    """

    @abstractmethod
    def table(self) -> SynonymTable:
        """Returns the table of all synonyms. Called once, before the first text."""

    def parts_of_speech(self, words: Sequence[str]) -> Sequence[str] | None:  # noqa: ARG002  # the base's signature
        """Returns the part of speech of each word of a text; None if synonyms don't depend on it."""
        return None


class SynonymFile(SynonymSource):
    """Source of synonyms from a file, tab-separated or ``.json``, optionally compressed as ``.gz``.

    The first line of a tab-separated file names the columns: ``word`` and ``synonyms``, joined by ``|``, or
    ``word1`` and ``word2``, a pair per line that is read in this direction. Rows of the same word are merged;
    other columns, such as ``pos``, are ignored. A ``.json`` file has one object from words to lists of synonyms,
    as the counter-fitted lists of Jia et al. 2019 (https://arxiv.org/abs/1909.00986), which CLEAR uses. Words are
    not inflected. Synonyms that are not single words are ignored, so that a text keeps its number of words.

    Args:
        path: Path of the file.

    Raises:
        ValueError: The file doesn't exist, columns are missing, a row has the wrong length, or the JSON has
            another form.

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
                f"SynonymFile.path: expected a tab-separated file or a .json, got {path!r}, which doesn't exist"
            )

    def table(self) -> SynonymTable:
        """Returns the table of synonyms in the file, in the file's order."""
        lists = self._json() if Path(self.path.removesuffix(".gz")).suffix == ".json" else self._rows()
        return {"": {word: words for word, synonyms in lists.items() if (words := _usable(word, synonyms))}}

    def _json(self) -> Mapping[str, Iterable[str]]:
        expected = "SynonymFile.path: expected a JSON object from words to lists of words"
        try:
            content = json.loads("".join(decoded_lines(Path(self.path))))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidValueError(f"{expected} in {self.path}, got no JSON: {first_line(error)}") from error
        if not isinstance(content, dict):
            raise InvalidValueError(f"{expected} in {self.path}, got a {type(content).__name__}")
        for word, synonyms in content.items():
            if not (isinstance(synonyms, list) and all(isinstance(synonym, str) for synonym in synonyms)):
                raise InvalidValueError(f"{expected} in {self.path}, got {synonyms!r:.60} for {word!r}")
        return content

    def _rows(self) -> Mapping[str, Iterable[str]]:
        lists: dict[str, dict[str, None]] = {}
        rows = map(tab_fields, decoded_lines(Path(self.path)))
        header = next(rows, [])
        columns = next((pair for pair in _COLUMNS if set(pair) <= set(header)), None)
        if columns is None:
            raise InvalidValueError(
                f"SynonymFile.path: expected columns word and synonyms, or word1 and word2, in {self.path}, "
                f"got {', '.join(header) or 'no columns'}"
            )
        if repeats := [name for name in columns if header.count(name) > 1]:
            raise InvalidValueError(
                f"SynonymFile.path: expected one column {repeats[0]} in {self.path}, got two; rename one"
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
            lists.setdefault(row[word], {}).update(dict.fromkeys(row[synonyms].split("|")))
        return lists


_COLUMNS = (("word", "synonyms"), ("word1", "word2"))


def _usable(word: str, synonyms: Iterable[str]) -> tuple[str, ...]:
    """Returns the synonyms of a word that are single words of letters and differ from it.

    Example:
        >>> _usable("big", ["large", "Big", "grown up", "h2o", "large"])
        ('large',)
    """
    return tuple(s for s in dict.fromkeys(synonyms) if is_word(s) and s.lower() != word.lower())


_Folder: TypeAlias = Path | zipfile.Path
_Sense: TypeAlias = tuple[int, int, tuple[str, ...]]  # negative count, rank, synonyms: sorts by frequency

_FORMS = {"noun": noun_forms, "verb": verb_forms, "adj": base_forms, "adv": base_forms}
_KINDS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}  # by senseidx(5)
_PARTS = {  # Penn Treebank tags of words with synonyms; names (NNP, NNPS) have no synonyms
    **dict.fromkeys(("NN", "NNS"), "noun"),
    **dict.fromkeys(("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), "verb"),
    **dict.fromkeys(("JJ", "JJR", "JJS"), "adj"),
    **dict.fromkeys(("RB", "RBR", "RBS"), "adv"),
}
_TAGGER = "averaged_perceptron_tagger_eng"

# WordNet has nouns, verbs, adjectives and adverbs only. It has function words only in other senses (can: tin;
# but: merely), or their synonyms break the sentence (have: feature; two: deuce). Words of one or two letters are
# always excluded, and function words without an entry need not be listed.
_FUNCTION_WORDS = frozenset(
    """
    about above across after all any around before behind being below beneath between but can despite done down
    each even ever had has have having here inside just like may might most much must near not nothing off only
    other out outside over own same some there through throughout till under whatever while why will within yet
    one two three four five six seven eight nine ten hundred thousand million billion
    """.split()  # noqa: SIM905  # a list of many quoted words is hard to read
)


_TABLES: dict[tuple[str, bool, int | None], SynonymTable] = {}
"""Arguments of ``WordNetSynonyms`` -> table that this process has built, in 2 seconds: two views share it."""


class WordNetSynonyms(SynonymSource):
    """Source of synonyms from WordNet: words that share a sense with a word, in the same inflected form.

    Only the most frequent senses of a word are used, over all its parts of speech, so that a text about water
    doesn't become a text about urine. Synonyms of several words are excluded, so that a text keeps its number of
    words. Names, and words that a text capitalizes like a name of WordNet (Turkey), are not replaced. Neither are
    words of one or two letters, which are mostly symbols in WordNet (in: indium, inch), function words and small
    numbers.

    A plural, third person, -ing form or past form counts as a sense of its base form (found: to find, then to
    found). Its synonyms get the same form; synonyms whose form is uncertain are excluded. Comparatives have the
    synonyms that WordNet lists.

    Source: Fellbaum 1998, WordNet (https://wordnet.princeton.edu), for the synonyms of Wu et al. 2020, CLEAR
    (https://arxiv.org/abs/2012.15466), section 3.3.

    Differs: CLEAR uses the lists of Jia et al. 2019 (https://arxiv.org/abs/1909.00986), which are neighbors of
    word vectors, for about 40 % of the words of a corpus. With 1, 2 or all senses of WordNet, 22, 30 or 37 % of
    the words of WikiText-2 have a synonym.

    Args:
        folder: Folder with ``corpora/wordnet`` or ``corpora/wordnet.zip``; None for the folders that NLTK
            searches.
        same_part_of_speech: Whether a word gets only synonyms of its part of speech in the text. NLTK's
            perceptron tagger in the same folder determines it; this is about 20 times slower.
        senses: Number of senses that are used; None for all. With ``same_part_of_speech``, only senses of the
            word's part of speech are counted.

    Raises:
        ValueError: WordNet or the tagger is not in the folder, or ``senses`` is below 1.
        ImportError: NLTK (extra ``synonyms``) is missing, and a folder must be searched or a tagger is needed.
    """

    def __init__(
        self, folder: str | None = None, same_part_of_speech: bool = False, senses: int | None = 2
    ) -> None:
        self.folder = folder
        self.same_part_of_speech = same_part_of_speech
        self.senses = at_least("WordNetSynonyms.senses", senses, 1, "set null for all")
        self._tagger: PerceptronTagger | None = None
        _find_resource(folder, "corpora", "wordnet")
        if same_part_of_speech:
            require("nltk.tag.perceptron", "WordNetSynonyms.same_part_of_speech")
            _find_resource(folder, "taggers", _TAGGER)

    def table(self) -> SynonymTable:
        """Returns the table of WordNet's synonyms, for all base forms and inflected forms."""
        root = _find_resource(self.folder, "corpora", "wordnet")
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
                synsets[offset] = [word for word in words if _is_replaceable(word)]
            pos_senses = senses.setdefault(pos if self.same_part_of_speech else "", {})
            inflect = cache(partial(forms, irregular=group_irregular_forms(_lines(root / f"{pos}.exc"))))
            for lemma, count, number, offset in index[pos]:
                # The index has lower case only, so that it contains senses of names too.
                if lemma not in synsets[offset]:
                    continue
                synonym_forms = [inflect(synonym) for synonym in synsets[offset] if synonym != lemma]
                for i, form in enumerate(inflect(lemma)):
                    synonyms = tuple(
                        safe for inflected in synonym_forms if (safe := inflected[i].safe) is not None
                    )
                    for spelling in form.spellings:
                        if spelling not in _FUNCTION_WORDS:
                            pos_senses.setdefault(spelling, []).append((-count, number, synonyms))
        tables = {pos: self._most_frequent(pos_senses) for pos, pos_senses in senses.items()}
        for table in tables.values():
            table.update({name: () for name in names if name.lower() in table})
        return tables

    def _most_frequent(self, senses: Mapping[str, list[_Sense]]) -> dict[str, tuple[str, ...]]:
        table = {}
        for word, word_senses in senses.items():
            synonyms = chain.from_iterable(words for *_, words in sorted(word_senses)[: self.senses])
            if distinct := tuple(dict.fromkeys(synonym for synonym in synonyms if synonym != word)):
                table[word] = distinct
        return table

    def parts_of_speech(self, words: Sequence[str]) -> Sequence[str] | None:
        """Returns each word's part of speech: noun, verb, adj, adv or ""; None if it need not agree."""
        if not self.same_part_of_speech:
            return None
        if self._tagger is None:
            self._tagger = _load_tagger(_find_resource(self.folder, "taggers", _TAGGER))
        return [_PARTS.get(tag, "") for _, tag in self._tagger.tag(words)]


def _is_replaceable(word: str) -> bool:
    return len(word) > 2 and word.islower() and is_word(word) and word not in _FUNCTION_WORDS


def _find_resource(folder: str | None, kind: str, name: str) -> _Folder:
    """Returns the folder of a resource of NLTK, which may be in a zip file."""
    for root in _folders(folder):
        plain, zipped = Path(root, kind, name), Path(root, kind, f"{name}.zip")
        if plain.is_dir():
            return plain
        if zipped.is_file():
            return zipfile.Path(zipped, f"{name}/")
    where = "one of the folders that NLTK searches" if folder is None else folder
    option = "" if folder is None else f"-d {folder} "
    raise InvalidValueError(
        f"WordNetSynonyms.folder: expected {kind}/{name} in {where}, got a folder without it; download it with "
        f"the extra synonyms: python -m nltk.downloader {option}{name}"
    )


def _folders(folder: str | None) -> Iterator[str]:
    if folder is not None:
        yield folder
        return
    # Read here too, because NLTK reads the environment only when it is imported.
    yield from filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    yield from require("nltk.data", "WordNetSynonyms").path


def _lines(file: _Folder) -> Iterator[str]:
    # The indented lines before the entries are the license.
    return (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(" "))


def _synsets(file: _Folder) -> Iterator[tuple[str, list[str]]]:
    """Yields the offset and the words of every set of synonyms; see WordNet's manual page wndb(5)."""
    for line in _lines(file):
        offset, _, _, number, rest = line.split(" ", 4)
        pairs = 2 * int(number, base=16)  # each word has a number of its sense
        yield offset, [word.partition("(")[0] for word in rest.split(" ", pairs)[:pairs:2]]


def _senses(file: _Folder) -> dict[str, list[tuple[str, int, int, str]]]:
    """Returns lemma, count in tagged text, rank and offset of all senses by part of speech; see senseidx(5)."""
    senses: dict[str, list[tuple[str, int, int, str]]] = {pos: [] for pos in _FORMS}
    for line in _lines(file):
        key, offset, number, count = line.split()
        lemma, _, kind = key.partition("%")
        senses[_KINDS[kind[0]]].append((lemma, int(count), int(number), offset))
    return senses


def _load_tagger(folder: _Folder) -> PerceptronTagger:
    tagger: PerceptronTagger = require("nltk.tag.perceptron", "WordNetSynonyms").PerceptronTagger(load=False)
    # Read here, because NLTK opens no file outside its search path.
    tagger.decode_json_params(
        json.loads((folder / f"{_TAGGER}.{part}.json").read_text(encoding="utf-8"))
        for part in ("weights", "tagdict", "classes")
    )
    return tagger


class SubstituteSynonyms(TextView):
    """Replaces a share of the words of a text by synonyms.

    ``round(rate * m)`` of the m words that have a synonym are selected at random. Each is replaced by one of its
    synonyms, which are equally likely, with the same capitalization. The number of words and the white space
    don't change. Source: synonym substitution of Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466),
    section 3.3. CLEAR replaces 30 %, but doesn't define of which words. 30 % of all words (``of: all``) is nearly
    every word that has a synonym: two views then change the same words, which are hardly ever unchanged. The
    default is 30 % of the words that have a synonym.

    Args:
        rate: Share of the words to replace.
        source: Source of synonyms; None for ``WordNetSynonyms()``.
        of: Words that the rate refers to: ``replaceable`` for words that have a synonym, or ``all``. With
            ``all``, at most all words that have a synonym are replaced.

    Raises:
        ValueError: ``rate`` is outside [0, 1], ``of`` is unknown, or WordNet is missing for the default source.

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
        self.rate = fraction("SubstituteSynonyms.rate", rate)
        self.source = source
        self.of: RateOf = one_of("SubstituteSynonyms.of", of, RateOf)
        self._source = WordNetSynonyms() if source is None else source
        self._table: SynonymTable | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the base's signature
        """Builds the table of synonyms, before worker processes copy the view."""
        self._table = self._source.table()

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced by synonyms."""
        if self._table is None:
            self._table = self._source.table()
        pieces = split_words(text)
        words = pieces[1::2]
        tags = self._source.parts_of_speech(words) or [""] * len(words)
        candidates = []
        for index, (word, tag) in enumerate(zip(words, tags, strict=True)):
            table = self._table.get(tag, {})
            if synonyms := table.get(word, table.get(word.lower())):
                candidates.append((index, synonyms))
        count = min(round(self.rate * len(words if self.of == "all" else candidates)), len(candidates))
        if count == 0:
            return text
        draws = rng.random(count).tolist()
        for i, draw in zip(rng.permutation(len(candidates))[:count].tolist(), draws, strict=True):
            index, synonyms = candidates[i]
            pieces[2 * index + 1] = match_case(synonyms[int(draw * len(synonyms))], model=words[index])
        return "".join(pieces)
