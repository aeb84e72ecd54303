"""Command ``share``: uploads a saved model to the hub."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.paths import ReadPath
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Share:
    """Upload a saved model to the hub, as a private model by default."""

    folder: Annotated[Path, ReadPath(), "Model folder to upload."]
    _: KW_ONLY
    to: Annotated[str, {"metavar": "USER/NAME"}, "Name of the model on the hub."]
    public: Annotated[bool, "Make the model public."] = False
    dry_run: Annotated[bool, "List the files without uploading them."] = False


def share(options: Share) -> None:
    """Lists the files of a model folder that are shared, and uploads them unless ``--dry_run`` is given."""
    from contrastive_text.inference.sharing import check_name, files_to_share
    from contrastive_text.inference.sharing import share as upload

    check_name(options.to)
    files, foreign_files = files_to_share(options.folder)
    for name, size in files.items():
        print_message(f"{size:>15,} bytes  {name}")
    total = f"{len(files)} files, {sum(files.values()):,} bytes"
    if foreign_files:
        names = ", ".join(foreign_files[:4]) + f" and {len(foreign_files) - 4} more" * (len(foreign_files) > 4)
        print_message(f"not uploaded, because this library didn't write them: {names}")
    target = f"{options.to} ({'public' if options.public else 'private'})"
    if options.dry_run:
        print_message(f"{total} would be uploaded to {target}; nothing was uploaded")
        return
    print_message(f"uploading {total} to {target}")
    print_message(f"uploaded: {upload(options.folder, files, options.to, options.public)}")
