"""Command ``share``: uploads a saved model to the hub."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.paths import ReadPath
from contrastive_text.core.terminal import say


@dataclass(frozen=True)
class Share:
    """Upload a saved model to the hub, where it is private."""

    folder: Annotated[Path, ReadPath(), "Model folder to upload."]
    _: KW_ONLY
    to: Annotated[str, {"metavar": "USER/NAME"}, "Name of the model on the hub."]
    public: Annotated[bool, "Make the model public."] = False
    dry_run: Annotated[bool, "List the files without uploading them."] = False


def share(options: Share) -> None:
    """Says what of a folder is uploaded, and uploads it, unless it is a dry run."""
    from contrastive_text.inference.sharing import check_name, files_to_share
    from contrastive_text.inference.sharing import share as upload

    check_name(options.to)
    files, left = files_to_share(options.folder)
    for name, size in files.items():
        say(f"{size:>15,} bytes  {name}")
    said = f"{len(files)} files, {sum(files.values()):,} bytes"
    if left:
        few = ", ".join(left[:4]) + f" and {len(left) - 4} more" * (len(left) > 4)
        say(f"left out, for this library didn't write them: {few}")
    whom = "public" if options.public else "private"
    if options.dry_run:
        say(f"{said} would go to {options.to} ({whom}); nothing was uploaded")
        return
    say(f"{said} go to {options.to} ({whom})")
    say(f"uploaded: {upload(options.folder, files, options.to, options.public)}")
