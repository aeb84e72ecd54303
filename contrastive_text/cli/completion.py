"""Command ``completion``: prints a completion script of static words, so that the tab key starts no Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from contrastive_text.cli.commands import RECORDS, Completion
from contrastive_text.cli.options import option_words
from contrastive_text.cli.words import RUN_COMMANDS
from contrastive_text.core.terminal import print_message
from contrastive_text.recipes import recipe_names

_ZSH = "autoload -Uz bashcompinit && bashcompinit\n"  # lets zsh read a completion script for bash
_SCRIPT = """_contrastive_text() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    case "${{COMP_WORDS[1]}} $before" in
{values}
        *) case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
    esac
    [ "$COMP_CWORD" -gt 1 ] || words={commands}
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _contrastive_text contrastive-text"""


def completion(options: Completion) -> None:
    """Prints the tab-completion script of a shell. The shell offers files where the script has no words."""
    print_message((_ZSH if options.shell == "zsh" else "") + script())


def script() -> str:
    """Returns the bash function that completes commands, options, recipes and values with choices."""
    from contrastive_text.cli.main import COMMANDS, SCREENS  # main.py imports this module

    recipes = recipe_names()
    words_of = {command: option_words(RECORDS[command]) if command in RECORDS else {} for command in COMMANDS}
    for command in RUN_COMMANDS:
        words_of[command] = {**words_of[command], **dict.fromkeys(SCREENS, ()), "--recipe": recipes}
    words_of["recipes"] |= {"": recipes}
    values = {
        f"{command} {option}": choices
        for command, words in words_of.items()
        for option, choices in words.items()
        if option and choices
    }
    options = {
        command: [*words.get("", ()), *filter(None, words)] for command, words in words_of.items() if words
    }
    return _SCRIPT.format(
        values=_cases(values), options=_cases(options), commands=shlex.quote(" ".join(COMMANDS))
    )


def _cases(words: Mapping[str, Sequence[str]]) -> str:
    """Returns the branches of a bash ``case`` statement. Patterns with equal words share a branch."""
    branches: dict[str, list[str]] = {}
    for pattern, completions in words.items():
        branches.setdefault(" ".join(completions), []).append(shlex.quote(pattern))
    return "\n".join(
        f"        {'|'.join(patterns)}) words={shlex.quote(text)} ;;" for text, patterns in branches.items()
    )
