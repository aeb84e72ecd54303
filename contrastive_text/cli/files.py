"""Options of a command that say how its files are read."""

from __future__ import annotations

from contrastive_text.data.files.formats import PYTHON, FileForm, options_of


def form_of(options: object) -> FileForm:
    """Returns how the main file of a command is read; messages name the options that the command has.

    Args:
        options: The record of the command.
    """
    given = vars(options)
    return FileForm(
        header=given.get("header"),
        separator=given.get("separator"),
        pair_labels=given.get("pair_labels"),
        options=options_of(*(name for name in PYTHON if name in given)),
    )


def plain_form(**spelled: str) -> FileForm:
    """Returns how a further file of a command is read: by its content, and by the named options alone.

    Args:
        spelled: Setting -> the option of the command that has it for this file.
    """
    return FileForm(options=spelled)
