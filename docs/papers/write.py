"""Writes the pages of the papers from the files behind ``contrastive-text paper``: make pages"""

from pathlib import Path

from contrastive_text.recipes.papers import paper_names, read_paper

FOLDER = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Returns the text of each page."""
    return {FOLDER / f"{name}.md": f"{read_paper(name).markdown()}\n" for name in paper_names()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
