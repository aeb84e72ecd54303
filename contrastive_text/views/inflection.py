"""English inflection of WordNet's words: plural, third person, -ing form and past."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SIBILANTS = ("s", "x", "z", "ch", "sh")

# Endings of irregular plurals of WordNet that are in common use: wolves, heroes, theses, indices, women, ...
_ENGLISH_PLURALS = ("ves", "oes", "ses", "ices", "men", "children", "people", "feet", "teeth", "mice")

# English verbs whose past equals their base form, and which WordNet's list of exceptions doesn't distinguish from
# regular verbs.
_UNCHANGED = frozenset(
    """
    bet broadcast burst bust cast cost forecast hurt miscast misread proofread quit read recast reread rid shed
    spread sweat telecast thrust typecast wed wet
    """.split()  # noqa: SIM905  # a list of many quoted words is hard to read
)


class Form(NamedTuple):
    """Inflected form of an English word, such as its plural, with all spellings.

    Args:
        spellings: All spellings of the form.
        safe: Spelling to insert into a text; None if the correct spelling is uncertain.
    """

    spellings: tuple[str, ...]
    safe: str | None


def group_irregular_forms(exceptions: Iterable[str]) -> dict[str, list[str]]:
    """Returns the irregular forms of each lemma, from the lines of a WordNet file such as ``noun.exc``.

    Example:
        >>> group_irregular_forms(["geese goose", "axes ax axis"])
        {'goose': ['geese'], 'ax': ['axes'], 'axis': ['axes']}
    """
    forms: dict[str, list[str]] = {}
    for line in exceptions:
        form, *lemmas = line.split()
        for lemma in lemmas:
            if lemma != form:  # feed is listed as a form of feed
                forms.setdefault(lemma, []).append(form)
    return forms


def base_forms(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:  # noqa: ARG001  # common signature
    """Returns only the base form of a word, for adjectives and adverbs, which are not inflected."""
    return (Form((lemma,), lemma),)


def noun_forms(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:
    """Returns the base form and the plural of a noun.

    The plural is safe if it is regular, or if the only irregular form has an English ending. Latin, Greek and old
    plurals, such as brethren, often have a more common regular form.

    Args:
        lemma: Base form of the noun.
        irregular: Lemma -> irregular forms.

    Example:
        >>> noun_forms("city", {})[1], noun_forms("trauma", {"trauma": ["traumata"]})[1]
        (Form(spellings=('cities',), safe='cities'), Form(spellings=('traumas', 'traumata'), safe=None))
    """
    regular, irregular_forms = _add_s(lemma), tuple(irregular.get(lemma, ()))
    safe: str | None
    if irregular_forms:
        is_english = irregular_forms == (regular,) or (
            len(irregular_forms) == 1 and irregular_forms[0].endswith(_ENGLISH_PLURALS)
        )
        safe = irregular_forms[0] if is_english else None
    else:
        is_plural = lemma.endswith("s") and not lemma.endswith(("ss", "us"))
        safe = None if is_plural else regular
    return (Form((lemma,), lemma), Form((regular, *irregular_forms), safe))


def verb_forms(lemma: str, irregular: Mapping[str, Sequence[str]]) -> tuple[Form, ...]:
    """Returns the base form, the third person, the -ing form, and the past with the participle of a verb.

    The past is safe if it is regular, because past and participle are then equal. Doubled consonants are taken
    from the irregular forms.

    Args:
        lemma: Base form of the verb.
        irregular: Lemma -> irregular forms.

    Example:
        >>> [form.safe for form in verb_forms("stop", {"stop": ["stopped", "stopping"]})]
        ['stop', 'stops', 'stopping', 'stopped']
        >>> [form.safe for form in verb_forms("go", {"go": ["went", "gone"]})]
        ['go', 'goes', 'going', None]
    """
    forms = irregular.get(lemma, ())
    third = tuple(form for form in forms if form.endswith("s"))
    ing = tuple(form for form in forms if form.endswith("ing") and len(form) > len(lemma))
    past = tuple(form for form in forms if not form.endswith(("ing", "s")))
    if past:
        safe = past[0] if len(past) == 1 and past[0].endswith("ed") else None
    else:  # WordNet lists cutting with a doubled consonant, but no cutted: the past is cut
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
