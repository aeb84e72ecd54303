"""``python -m contrastive_text`` and the console script."""

# The first lines import nothing that Python hasn't loaded by itself: the working directory is still first.
import os
import sys


def main() -> None:
    """Runs the shell command with the process's arguments."""
    leave_working_directory(sys.path)
    from contrastive_text.cli import run
    from contrastive_text.core.terminal import show_warnings

    show_warnings()
    sys.exit(run(sys.argv[1:]))


def leave_working_directory(path: list[str]) -> None:
    """Takes the working directory away from where Python looks for modules; named on purpose, it comes last.

    ``python -m`` puts it first. A ``csv.py`` there would take the place of the library that is meant.

    Args:
        path: ``sys.path``, which is changed.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    named = [place for place in path[1:] if place == here and place]
    path[:] = [place for place in path if place not in ("", ".", here)] + named[:1]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if home not in path:
        path.append(home)  # of a clone that isn't installed


if __name__ == "__main__":
    main()
