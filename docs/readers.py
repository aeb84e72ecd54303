"""Measures how easily the words of the package and of its pages are understood.

``python docs/readers.py SEED`` draws sentences at random and writes two files to ``build/readers/SEED``:
``sentences.md`` for a reader, who sees each sentence alone, and ``places.md``, which says where each one is from.
``python docs/readers.py counts`` prints phrases to avoid, names of local variables and lengths of sentences.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "contrastive_text"
SAMPLE = {"docstring": 100, "message": 40, "help": 40, "paragraph": 20}
"""Kind of sentence -> how many of them a reader sees."""
PATTERNS = {
    "a docstring that begins with What, How or Where": r"^(What|How|Where|Whether)\b",
    "stands, lies, goes": r"\b(stands?|lies|goes)\b",
    "those that, that of, what is": r"\b(those (that|of)|that of|what is)\b",
    "as it is, as they were, as ever": r"\bas (it is|it was|they (are|were)|ever)\b",
    "beside": r"\bbeside\b",
    "anew, but for, so many, of its own, in words": r"\b(anew|but for|so many|of (its|your) own|in words)\b",
    "goes on, takes up": r"\b(goes on|takes? up|going on)\b",
    "hears, is told, heeds, meets": r"\b(hears?|(is|are) told|heeds?|meets?)\b",
    "got none, got another": r"\bgot (none|another|others)\b",
    "lay over, laid over": r"\b(lay|laid|lies) over\b",
    "take away, take out, leave out": r"\b(take|taken|leave|left|leaves) (away|out)\b",
    "make of, made of": r"\b(make|makes|made) of\b",
}
"""Phrase to avoid -> the expression that finds it."""
NO_NOUNS = {
    "each", "every", "some", "other", "others", "found", "said", "known", "kept", "wanted", "given",
    "made", "told", "handed", "taken", "left", "seen", "asked", "chosen", "shown", "written", "read",
    "drawn", "held", "put", "meant", "called", "counted", "named", "gone", "done", "both", "own",
    "same", "such", "one",
}  # fmt: skip
"""Names that say nothing about a variable: participles and determiners."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Yields each module of the package with its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def docstrings() -> Iterator[tuple[str, str]]:
    """Yields the place and the text of every docstring, those of constants and fields included."""
    for path, tree in sources():
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                text = getattr(child.value, "value", None) if isinstance(child, ast.Expr) else None
                if isinstance(text, str):
                    yield f"{path}:{child.lineno}", text.strip()


def first_lines() -> Iterator[tuple[str, str]]:
    """Yields the first sentence of every docstring, with the name of what it documents."""
    for place, text in docstrings():
        yield place, re.sub(r"\s+", " ", re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)[0])


def messages() -> Iterator[tuple[str, str]]:
    """Yields the message of every ``raise``, with its placeholders in braces.

    A call of a helper such as ``reading_error`` counts as the message that the helper builds from its arguments.
    """
    helpers = {name: helper for _, tree in reversed([*sources()]) for name, helper in _helpers(tree).items()}
    constants = {name: text for _, tree in sources() for name, text in _constants(tree).items()}
    for path, tree in sources():
        known_helpers = helpers | _helpers(tree)
        for node in ast.walk(tree):
            call = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(call, ast.Call) or not call.args:
                continue
            message = _literal(call.args[0])
            name = ast.unparse(call.func).rpartition(".")[2]
            if name in known_helpers:
                names, message = known_helpers[name]
                arguments = dict(zip(names, map(_literal, call.args), strict=False))
                arguments |= {word.arg: _literal(word.value) for word in call.keywords if word.arg}
                message = _filled(message, arguments)
            message = _filled(message, constants | _constants(tree))
            if not re.fullmatch(r"\{[^{}]*\}", message):
                yield f"{path}:{node.lineno}", message


def _helpers(tree: ast.Module) -> dict[str, tuple[list[str], str]]:
    """Returns the parameters and the message of each function that returns an error, by its name."""
    helpers: dict[str, tuple[list[str], str]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = [argument.arg for argument in function.args.args if argument.arg != "self"]
            for node in ast.walk(function):
                error = node.value if isinstance(node, ast.Return) else None
                if isinstance(error, ast.Call) and error.args and ast.unparse(error.func).endswith("Error"):
                    helpers[function.name] = names, _literal(error.args[0])
    return helpers


def _constants(tree: ast.Module) -> dict[str, str]:
    """Returns the string constants of a module, by their names."""
    return {
        node.targets[0].id: _literal(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.JoinedStr | ast.Constant) and not node.targets[0].id.islower()
    }


def _filled(message: str, values: Mapping[str, str]) -> str:
    """Replaces the placeholders of a message that have a value."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), message)


def _literal(node: ast.expr) -> str:
    """Returns the text of a string literal without quotes; of another expression its source in braces."""
    text = ast.unparse(node)
    is_text = isinstance(node, ast.JoinedStr | ast.Constant)
    return re.sub(r"^f?(['\"])(.*)\1$", r"\2", text) if is_text else f"{{{text}}}"


def helps() -> Iterator[tuple[str, str]]:
    """Yields the help of every option of every command."""
    from contrastive_text.cli.commands import RECORDS
    from contrastive_text.cli.main import _FIT
    from contrastive_text.cli.options import _parser_of

    for command, record in RECORDS.items():
        for action in _parser_of(record)._actions:
            if action.help and action.dest != "help":
                yield f"{command} {'/'.join(action.option_strings) or action.dest}", action.help
    for name, text in re.findall(r"^ +(--\w+.*?)  +(.*)$", _FIT, flags=re.MULTILINE):
        yield f"fit {name}", text


def pages() -> list[Path]:
    """Returns the README and the pages that people write, without those that scripts generate."""
    folders = (ROOT / "docs", ROOT / "docs" / "lightning", ROOT / "docs" / "design")
    return [ROOT / "README.md", *(path for folder in folders for path in sorted(folder.glob("*.md")))]


def paragraphs(path: Path, with_leads: bool = False) -> Iterator[tuple[str, str]]:
    """Yields each paragraph and list item of a page, without code, tables and headings.

    ``with_leads`` puts the paragraph that introduces a list before each item that continues its sentence.
    """
    lead = ""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*] |\d+\. )", text):
        if re.match(r"    |\s*([|#<!]|$)", block) is None:
            item = re.sub(r"\s+", " ", re.sub(r"^\s*[-*] ", "", block)).strip()
            lead = item if re.match(r"\s*[-*] ", block) is None else lead
            is_part = with_leads and item[:1].islower() and item != lead
            yield str(path.relative_to(ROOT)), f"{lead} {item}" if is_part else item


def sentences(paragraph: str) -> list[str]:
    """Splits a paragraph at the ends of its sentences; a link counts as its text."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
    return [part for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\"(0-9])", plain) if len(part.split()) > 1]


KINDS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "docstring": first_lines,
    "message": messages,
    "help": helps,
    "paragraph": lambda: (pair for path in pages() for pair in paragraphs(path, with_leads=True)),
}


def write_sample(seed: int) -> Path:
    """Draws the sentences of a seed and returns the folder that holds them."""
    folder = ROOT / "build" / "readers" / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    shown, places = [f"# Sample {seed}\n"], [f"# Places of sample {seed}\n"]
    number = 0
    for kind, count in SAMPLE.items():
        unique = {text: place for place, text in KINDS[kind]() if len(text.split()) > 1}
        shown.append(f"\n## {kind}s\n")
        for text in random.Random(f"{seed} {kind}").sample(sorted(unique), count):
            number += 1
            shown.append(f"{number}. {text}")
            places.append(f"{number}. {unique[text]}")
    (folder / "sentences.md").write_text("\n".join(shown) + "\n", encoding="utf-8")
    (folder / "places.md").write_text("\n".join(places) + "\n", encoding="utf-8")
    return folder


def assigned_names() -> Iterator[str]:
    """Yields the name of every assignment and loop variable inside a function."""
    for _, tree in sources():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id


def print_counts() -> None:
    """Prints the phrases in docstrings, comments and pages, the names, and the sentence lengths of each page."""
    package = [text for _, text in docstrings()]
    package += [
        line.split("#", 1)[1].strip()
        for path, _ in sources()
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()
        if re.search(r"(^|\s\s)\s*# ", line)
    ]
    package += [text for _, text in messages()]
    docs = [text for path in pages() for _, text in paragraphs(path)]
    print(f"{'phrase':<60} package  docs")
    for name, pattern in PATTERNS.items():
        found = [sum(len(re.findall(pattern, text)) for text in texts) for texts in (package, docs)]
        print(f"{name:<60} {found[0]:>7} {found[1]:>5}")
    names = list(assigned_names())
    share = sum(name in NO_NOUNS for name in names) / len(names)
    print(f"{'local variables named by a participle or determiner':<60} {share:>7.1%}")
    print(f"\n{'page':<34} words  median and longest sentence in words")
    for path in pages():
        lengths = [len(part.split()) for _, text in paragraphs(path) for part in sentences(text)]
        if lengths:
            words = len(path.read_text(encoding="utf-8").split())
            place = str(path.relative_to(ROOT))
            print(f"{place:<34} {words:>5} {statistics.median(lengths):>7.1f} {max(lengths):>5}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", metavar="SEED", help="A whole number, or `counts`.")
    sample = parser.parse_args().sample
    if sample == "counts":
        print_counts()
    else:
        print(write_sample(int(sample)), file=sys.stderr)


if __name__ == "__main__":
    main()
