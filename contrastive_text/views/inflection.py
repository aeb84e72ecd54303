"""English inflection: plurals, third persons, -ing forms and pasts of the words of WordNet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SIBILANTS = ("s", "x", "z", "ch", "sh")

# Endings of WordNet's irregular plurals that are in common use: wolves, heroes, theses, indices, women, ...
_ENGLISH_PLURALS = ("ves", "oes", "ses", "ices", "men", "children", "people", "feet", "teeth", "mice")

# English verbs whose past is like their base form and that WordNet's list of exceptions doesn't tell apart from
# regular ones.
_UNCHANGED = frozenset(
    """
    bet broadcast burst bust cast cost forecast hurt miscast misread proofread quit read recast reread rid shed
    spread sweat telecast thrust typecast wed wet
    """.split()  # noqa: SIM905  # a list of so many quoted words is hard to read
)


class Form(NamedTuple):
    """One inflected form of a word.

    Args:
        spellings: Everything that a text may have in its place.
        safe: The spelling to write; None where the form, or which of several it is, can't be told.
    """

    spellings: tuple[str, ...]
    safe: str | None


def invert(exceptions: Iterable[str]) -> dict[str, list[str]]:
    """Returns lemma -> irregular forms from the lines of a WordNet file such as ``noun.exc``.

    Example:
        >>> invert(["geese goose", "axes ax axis"])
        {'goose': ['geese'], 'ax': ['axes'], 'axis': ['axes']}
    """
    found: dict[str, list[str]] = {}
    for line in exceptions:
        form, *lemmas = line.split()
        for lemma in lemmas:
            if lemma != form:  # feed is listed as a form of feed
                found.setdefault(lemma, []).append(form)
    return found


def base_form(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:  # noqa: ARG001  # as its neighbours
    """Returns the word as it is, for parts of speech that aren't inflected here."""
    return (Form((lemma,), lemma),)


def noun_forms(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:
    """Returns the base form and the plural.

    The plural is safe where it is regular, or where the one irregular form is an English one: Latin and Greek
    plurals, and old ones such as brethren, often stand beside a more common regular form.

    Example:
        >>> noun_forms("city", {})[1], noun_forms("trauma", {"trauma": ["traumata"]})[1]
        (Form(spellings=('cities',), safe='cities'), Form(spellings=('traumas', 'traumata'), safe=None))
    """
    regular, others = _add_s(lemma), tuple(irregular.get(lemma, ()))
    safe: str | None
    if others:
        english = others == (regular,) or (len(others) == 1 and others[0].endswith(_ENGLISH_PLURALS))
        safe = others[0] if english else None
    else:
        plural_already = lemma.endswith("s") and not lemma.endswith(("ss", "us"))
        safe = None if plural_already else regular
    return (Form((lemma,), lemma), Form((regular, *others), safe))


def verb_forms(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:
    """Returns the base form, the third person, the -ing form, and the past with the participle.

    The past is safe where it is regular, because past and participle are then alike; the exceptions tell
    which consonants are doubled.

    Example:
        >>> [form.safe for form in verb_forms("stop", {"stop": ["stopped", "stopping"]})]
        ['stop', 'stops', 'stopping', 'stopped']
        >>> [form.safe for form in verb_forms("go", {"go": ["went", "gone"]})]
        ['go', 'goes', 'going', None]
    """
    others = irregular.get(lemma, ())
    third = tuple(form for form in others if form.endswith("s"))
    ing = tuple(form for form in others if form.endswith("ing") and len(form) > len(lemma))
    past = tuple(form for form in others if not form.endswith(("ing", "s")))
    if past:
        safe = past[0] if len(past) == 1 and past[0].endswith("ed") else None
    else:  # cutting has a doubled consonant, and no cutted stands beside it: the past is cut
        safe = None if ing else _add_ed(lemma)
    if lemma in _UNCHANGED:
        safe = None
    return (
        Form((lemma,), lemma),
        Form((_third(lemma), *third), (*third, _third(lemma))[0]),
        Form((_add_ing(lemma), *ing), (*ing, _add_ing(lemma))[0]),
        Form((_add_ed(lemma), *past), safe),
    )


def _after_consonant(lemma: str, letter: str) -> bool:
    return lemma.endswith(letter) and lemma[-2:-1] not in set("aeiou")


def _add_s(lemma: str) -> str:
    if _after_consonant(lemma, "y"):
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(_SIBILANTS) else "s")


def _third(lemma: str) -> str:
    return lemma + "es" if _after_consonant(lemma, "o") else _add_s(lemma)


def _add_ed(lemma: str) -> str:
    if _after_consonant(lemma, "y"):
        return lemma[:-1] + "ied"
    return lemma + ("d" if lemma.endswith("e") else "ed")


def _add_ing(lemma: str) -> str:
    silent = lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye"))
    return (lemma[:-1] if silent else lemma) + "ing"
