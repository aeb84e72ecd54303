"""``python -m contrastive_text`` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the shell command with the process's arguments."""
    from contrastive_text.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
