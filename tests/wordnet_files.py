"""A WordNet of a few senses, in the files of the real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

Senses = Mapping[str, Sequence[tuple[str, int]]]
"""Part of speech -> words of a sense, joined by blanks, and how often each is used so."""

SMALL: Senses = {
    "noun": [
        ("dog hound domestic_dog", 42),
        ("dog frump", 1),
        ("dog pawl", 0),
        ("city metropolis", 9),
        ("box carton", 9),
        ("China Taiwan", 5),
        ("china porcelain chinaware", 3),
        ("found casting", 1),
        ("can tin", 9),
        ("in inch", 9),
        ("water H2O", 20),
        ("baseball ball", 2),
    ],
    "verb": [
        ("find discover go", 50),
        ("found establish", 3),
        ("stop halt", 9),
        ("water irrigate", 3),
        ("run flow scat", 9),
    ],
    "adj": [("big large", 9), ("good(p) fine", 9), ("better improved", 2)],
    "adv": [("quickly rapidly", 9)],
}
IRREGULAR = {
    "noun": "",
    "verb": "found find\nwent go\ngone go\nstopped stop\nstopping stop\nran run\n",
    "adj": "",
    "adv": "",
}


def write_wordnet(folder: Path, senses: Senses = SMALL) -> str:
    """Writes senses as WordNet's files, in a folder of NLTK's layout; gives its name."""
    root = folder / "corpora" / "wordnet"
    root.mkdir(parents=True)
    index, ranks = [], Counter[str]()
    kinds = {"noun": ("n", 1), "verb": ("v", 2), "adj": ("s", 5), "adv": ("r", 4)}
    for pos, (letter, number) in kinds.items():
        lines = ["  1 a license stands first"]
        for i, (words, count) in enumerate(senses[pos]):
            each = words.split()
            pairs = " ".join(f"{word} 0" for word in each)
            lines.append(f"{i:08d} 03 {letter} {len(each):02x} {pairs} 001 @ 00000000 n 0000 | a gloss  ")
            for word in (word.partition("(")[0].lower() for word in each):
                ranks[f"{word}{pos}"] += 1
                index.append(f"{word}%{number}:03:00:: {i:08d} {ranks[f'{word}{pos}']} {count}")
        (root / f"data.{pos}").write_text("\n".join(lines) + "\n")
        (root / f"{pos}.exc").write_text(IRREGULAR[pos])
    (root / "index.sense").write_text("\n".join(sorted(index)) + "\n")
    return str(folder)
