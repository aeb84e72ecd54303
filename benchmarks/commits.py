"""Times a benchmark as two commits have it, in turns: whether a change has made the library faster.

    python benchmarks/commits.py --before 39960cf4 -- train_step.py --sts FOLDER --rounds 1 --only ours

What follows ``--`` is a script of ``benchmarks`` with its options; paths are absolute ones. Each commit is
checked out into a folder of its own, and runs its own script with its own package there. All figures in seconds
that both results have are compared. A round is one run of each; the script's own rounds are medians within it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import history
from machines import machine
from runs import RESULTS, ROOT, markdown, publish
from timing import ratio_and_range, take_turns

Figures = dict[str, float]


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yields a folder with the files of a commit, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / commit
        add = ["git", "worktree", "add", "--quiet", "--detach", str(folder), commit]
        subprocess.run(add, check=True, cwd=ROOT)
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], check=True, cwd=ROOT)


def run_of(folder: Path, words: Sequence[str]) -> Figures:
    """Returns the figures in seconds of a benchmark that a commit's files run."""
    with tempfile.TemporaryDirectory() as out:
        script = [sys.executable, str(folder / "benchmarks" / words[0]), *words[1:], "--out", out]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run(script, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        known = history.read(Path(out))
    return {
        name: value
        for name, columns in known.items()
        if "seconds" in name.split()
        for value in columns.values()  # a new folder has one column
    }


def table(before: Sequence[Figures], after: Sequence[Figures]) -> list[str]:
    """Returns the figures that every run has, with the ratio of before to after.

    Example:
        >>> before = [{"a seconds": 4.0}, {"a seconds": 6.0}]
        >>> print(*table(before, [{"a seconds": 2.0}, {"a seconds": 2.0, "b seconds": 1.0}]), sep="\\n")
        |  | before, seconds (lowest to highest) | after | after is faster by |
        | --- | --- | --- | --- |
        | a seconds | 5 (4 to 6) | 2 (2 to 2) | 2.50 (2.00 to 3.00) |
    """

    def said(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"

    cells = []
    for name in before[0]:
        if all(name in run for run in (*before, *after)):
            old, new = ([run[name] for run in runs] for runs in (before, after))
            cells.append([name, said(old), said(new), ratio_and_range(old, new)])
    return markdown(["", "before, seconds (lowest to highest)", "after", "after is faster by"], cells)


def main() -> None:
    """Runs both commits in turns and writes the table."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--before", required=True, help="a commit")
    own.add_argument("--after", default="HEAD", help="another commit")
    own.add_argument("--rounds", type=int, default=5)
    own.add_argument("--name", help="of the result, after `commits-`; the script's if left out")
    own.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    own.add_argument("words", nargs="+", help="script of the benchmarks and its options")
    options = own.parse_args()
    git = ["git", "rev-parse", options.before, options.after]
    commits = subprocess.run(git, check=True, cwd=ROOT, capture_output=True, text=True).stdout.split()
    names = [commit[:8] for commit in commits]
    with checked_out(names[0]) as before, checked_out(names[1]) as after:
        folders = {"before": before, "after": after}
        works = {when: partial(run_of, folder, options.words) for when, folder in folders.items()}
        found = take_turns(works, options.rounds)
    lines = [
        f"# `{options.words[0]}` as of {names[0]} and as of {names[1]}",
        "",
        f"{machine(os.cpu_count() or 1, 'cpu')}.",
        f"{options.rounds} rounds in turns, each a run of both; ratios are medians of the rounds' ratios",
        "(lowest to highest). Written by `benchmarks/commits.py`.",
        "",
        *table(found["before"], found["after"]),
    ]
    what = f"commits-{options.name or Path(options.words[0]).stem}"
    rows = [
        {"commit": name, "round": number, **run}
        for name, runs in zip(names, found.values(), strict=True)
        for number, run in enumerate(runs)
    ]
    print(publish(what, lines, rows, vars(options), folder=options.out).name)


if __name__ == "__main__":
    main()
