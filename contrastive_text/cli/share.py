"""The command that uploads a saved model to the hub."""

from __future__ import annotations

from contrastive_text.cli.commands import Share
from contrastive_text.core.terminal import say
from contrastive_text.inference.sharing import Parcel, check_name
from contrastive_text.inference.sharing import share as upload


def share(options: Share) -> None:
    """Says what of a folder is uploaded, and uploads it, unless it is a dry run."""
    check_name(options.to)
    parcel = Parcel.of(options.folder)
    for name, size in parcel.files.items():
        say(f"{size:>15,} bytes  {name}")
    said = f"{len(parcel.files)} files, {sum(parcel.files.values()):,} bytes"
    if parcel.left:
        few = ", ".join(parcel.left[:4]) + f" and {len(parcel.left) - 4} more" * (len(parcel.left) > 4)
        say(f"left out, for this library didn't write them: {few}")
    whom = "public" if options.public else "private"
    if options.dry_run:
        say(f"{said} would go to {options.to} ({whom}); nothing was uploaded")
        return
    say(f"{said} go to {options.to} ({whom})")
    say(f"uploaded: {upload(parcel, options.to, options.public)}")
