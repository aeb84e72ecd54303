"""The command that prints a shell's completion: static words, so that the tab key starts no Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from contrastive_text.cli.commands import RECORDS, Completion
from contrastive_text.cli.options import option_words
from contrastive_text.cli.words import RUN_COMMANDS
from contrastive_text.core.terminal import say
from contrastive_text.recipes import recipe_names

_ZSH = "autoload -Uz bashcompinit && bashcompinit\n"  # with it, zsh reads what is written for bash
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
    """Prints the script. Where it knows no word, the shell offers files."""
    say((_ZSH if options.shell == "zsh" else "") + script())


def script() -> str:
    """Returns a function of bash that completes commands, options, recipes and values to choose from."""
    from contrastive_text.cli.main import COMMANDS, SCREENS  # which imports this

    recipes = recipe_names()
    known = {command: option_words(RECORDS[command]) if command in RECORDS else {} for command in COMMANDS}
    for command in RUN_COMMANDS:
        known[command] = {**known[command], **dict.fromkeys(SCREENS, ()), "--recipe": recipes}
    known["recipes"] |= {"": recipes}
    values = {
        f"{command} {option}": choices
        for command, words in known.items()
        for option, choices in words.items()
        if option and choices
    }
    options = {command: [*words.get("", ()), *filter(None, words)] for command, words in known.items() if words}
    return _SCRIPT.format(
        values=_cases(values), options=_cases(options), commands=shlex.quote(" ".join(COMMANDS))
    )


def _cases(words: Mapping[str, Sequence[str]]) -> str:
    """Returns the branches of a ``case``, one for all patterns of the same words."""
    patterns: dict[str, list[str]] = {}
    for pattern, each in words.items():
        patterns.setdefault(" ".join(each), []).append(shlex.quote(pattern))
    return "\n".join(f"        {'|'.join(some)}) words={shlex.quote(each)} ;;" for each, some in patterns.items())
