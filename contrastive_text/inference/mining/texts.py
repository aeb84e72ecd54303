"""The texts that negatives are mined from, each once."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.storage.text_files import lone_surrogate


class PairTexts:
    """Distinct queries with their positives, which are places in a corpus of distinct texts.

    All rows of one query are its positives. The corpus has the given texts, then the positives of all queries.

    Args:
        pairs: Query and positive of each row.
        corpus: Further texts; none for the positives alone.

    Raises:
        TypeError: Something that is not text.
        ValueError: No pair, or a text with the character U+0000 or half a surrogate pair.

    Example:
        >>> texts = PairTexts([("who?", "me"), ("who?", "you"), ("why?", "so")], corpus=["so", "who?"])
        >>> texts.queries, texts.corpus, texts.positives, texts.own
        (['who?', 'why?'], ['so', 'who?', 'me', 'you'], [[2, 3], [0]], [1, -1])
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], corpus: Iterable[str] = ()) -> None:
        places: dict[str, int] = {}
        for number, text in enumerate(corpus):
            places.setdefault(_text(text, f"text {number} of the corpus"), len(places))
        found: dict[str, dict[int, None]] = {}
        for number, (query, positive) in enumerate(pairs):
            place = places.setdefault(_text(positive, f"pair {number}"), len(places))
            found.setdefault(_text(query, f"pair {number}"), {})[place] = None
        if not found:
            raise InvalidValueError("mine: expected pairs of a query and a positive, got none")
        self.queries = list(found)
        self.corpus = list(places)
        self.positives = [list(each) for each in found.values()]
        self.own = [places.get(query, -1) for query in found]

    @property
    def digest(self) -> str:
        """32 hex digits that are the same for the same queries, positives and corpus in the same order."""
        return digest_of([*map(digest_of, (self.queries, self.corpus)), repr(self.positives)])


def digest_of(texts: Iterable[str]) -> str:
    """Returns 32 hex digits that are the same for the same texts in the same order."""
    digest = blake2b(digest_size=16)
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content) + content)  # the length, or "ab", "c" would be "a", "bc"
    return digest.hexdigest()


def _text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidTypeError(f"mine: expected texts, got {type(text).__name__} in {where}")
    if "\0" in text:
        raise InvalidValueError(
            f"mine: expected texts without the character U+0000, which training refuses, got "
            f"{text[:60]!r} in {where}; take it out"
        )
    if (found := lone_surrogate(text)) is not None:
        raise InvalidValueError(
            f"mine: expected texts that UTF-8 can hold, got {found} of a text in {where}; mend or drop the text"
        )
    return text
