"""Command ``share``: uploads a saved model to the hub with ``huggingface_hub``."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.paths import ReadPath
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.manifests import MANIFEST, MANIFEST_ADVICE, MODULES, Manifest
from contrastive_text.core.terminal import print_message

_CARD = "README.md"


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
    print_message(f"uploaded: {_upload(options.folder, files, options.to, options.public)}")


def files_to_share(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Checks every byte of a saved model and lists its files for an upload.

    The files of the manifest, the manifest itself and the model card are uploaded.

    Returns:
        Name of each file to upload -> its size in bytes; and the names of the files that aren't uploaded.

    Raises:
        ValueError: The folder holds no complete saved model of this library, files were changed, or a file is a
            link.
    """
    manifest = Manifest.read(folder, MANIFEST_ADVICE)
    if manifest is None or MODULES not in manifest.files:
        raise InvalidValueError(
            f"{folder}: expected a model that this library has saved, got no {MANIFEST}; save the model "
            "with SentenceEncoder.from_pretrained(FOLDER).save_pretrained(ANOTHER), or, of a run, with "
            "contrastive-text export RUN ANOTHER"
        )
    manifest.check(folder, whole=True)
    names = [*manifest.files, MANIFEST, *([_CARD] if (folder / _CARD).is_file() else [])]
    for name in names:
        links = [path for path in (folder / name, *(folder / name).parents) if path.is_symlink()]
        if inner := [path for path in links if folder in path.parents]:
            raise InvalidValueError(
                f"{inner[0]}: expected a file or a folder to upload, got a link to "
                f"{os.path.realpath(inner[0])}; links aren't followed, so put a copy in its place"
            )
    all_names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    sizes = {name: (folder / name).stat().st_size for name in sorted(names)}
    return sizes, [name for name in all_names if name not in names]


def check_name(to: str) -> None:
    """Checks that a model can have a name on the hub, which must be ``user/name``.

    Raises:
        ValueError: The name has another form.

    Example:
        >>> check_name("me/my-model")
        >>> check_name("my-model")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: --to: expected USER/NAME, got 'my-model'; ...
    """
    from huggingface_hub.errors import HFValidationError  # here: the library takes a while to import
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # lazy there

    try:
        validate_repo_id(to)
        is_valid = to.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise InvalidValueError(
            f"--to: expected USER/NAME, got {to!r}; name yourself or your organization, then the model, in "
            "letters, digits, '-', '_' and '.'"
        )


def _upload(folder: Path, files: Iterable[str], to: str, public: bool) -> str:
    """Uploads a saved model to the hub in one commit. Creates the repository if it doesn't exist.

    Nothing is uploaded to an existing repository whose visibility differs from ``public``.

    Args:
        folder: Folder of the saved model.
        files: Names of the files to upload, from ``files_to_share``.
        to: Name of the repository, ``user/name``.
        public: Whether everyone may read the repository; otherwise it is private.

    Returns:
        URL of the commit.

    Raises:
        RuntimeError: There is no token or no connection to the hub, or the hub reports an error.
        ValueError: An existing repository has another visibility.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if constants.is_offline_mode():
        raise RunError("share: expected a way to the hub, got HF_HUB_OFFLINE=1; unset it for this command")
    # The errors of the hub's HTTP library, which depends on its version, and of an upload.
    failures: tuple[type[BaseException], ...] = (*HfHubHTTPError.__mro__[1:-3], RuntimeError)
    api = HfApi()
    if not (api.token or get_token()):
        raise RunError(
            "share: expected a token of the hub, got no token; log in with hf auth login, or set HF_TOKEN"
        )
    try:
        try:  # before a file is uploaded
            private = api.repo_info(to).private
        except RepositoryNotFoundError:
            private = not public
            api.create_repo(to, private=private)
        if bool(private) is public:
            current, requested = ("private", "public") if private else ("public", "private")
            todo = "leave out --public" if public else "add --public"
            raise InvalidValueError(
                f"--to: expected a {requested} model, got {to}, which exists and is {current}; {todo}, change it "
                "on the hub, or name another"
            )
        commit = api.upload_folder(
            repo_id=to,
            folder_path=folder,
            allow_patterns=[glob.escape(name) for name in files],
            commit_message="A model of contrastive-text",
        )
    except failures as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"share: expected {api.endpoint} to take {to}, got {type(error).__name__}: {reason}; check the name "
            "and that the token may write there, and share it again"
        ) from error
    return str(commit.commit_url)
