"""Prints what came of every hostile case, as a table of commands and outcomes.

Run it as ``python tests/hostile/outcomes.py``, or with parts of the names of cases after it.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="contrastive_text_cache_")  # never the user's
sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile.cases import CASES  # found by the path above
from hostile.judging import judge
from hostile.sound import Sound

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
OUTCOMES = ("answer", "counted", "right", "wrong")


def main(words: list[str]) -> int:
    """Runs the cases whose names hold one of the words, all without words; gives 1 if one is wrong."""
    counts: Counter[tuple[str, str]] = Counter()
    began, slowest = time.perf_counter(), (0.0, "")
    with tempfile.TemporaryDirectory(prefix="hostile_") as made:
        sound = Sound(Path(made, "sound"))
        for number, case in enumerate(CASES):
            if words and not any(word in case.name for word in words):
                continue
            place = Path(made, f"{number}")
            place.mkdir()
            start = time.perf_counter()
            wrong = judge(case, place, sound)
            slowest = max(slowest, (time.perf_counter() - start, case.name))
            if wrong:
                print(f"WRONG {case.name}\n  " + "\n".join(wrong).replace("\n", "\n  "), flush=True)
            command = (shlex.split(case.command) or ["none"])[0]
            counts[command if command.isalpha() else "none", "wrong" if wrong else case.outcome] += 1
    commands = sorted({command for command, _ in counts})
    print("| command |", " | ".join(OUTCOMES), "| all |\n|---|", "---:|" * (len(OUTCOMES) + 1), sep="")
    for command in (*commands, "all"):
        row = [sum(n for (c, o), n in counts.items() if command in (c, "all") and o == out) for out in OUTCOMES]
        print(f"| {command} | {' | '.join(map(str, row))} | {sum(row)} |")
    print(f"{time.perf_counter() - began:.0f} s; the longest took {slowest[0]:.1f} s: {slowest[1]}")
    return int(any(outcome == "wrong" for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
