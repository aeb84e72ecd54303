"""Upload of a saved model to the Hugging Face hub with ``huggingface_hub``."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # lazy there

from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.manifests import MANIFEST, MANIFEST_ADVICE, MODULES, Manifest
from contrastive_text.inference.model_card import CARD

_FAILURES: tuple[type[BaseException], ...] = (*HfHubHTTPError.__mro__[1:-3], RuntimeError)
"""Errors that ``huggingface_hub`` raises: of its HTTP library, which depends on its version, and of an upload."""


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
    if damage := manifest.damage(folder, whole=True):
        more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
        raise InvalidValueError(
            f"{folder}: expected unchanged files, got changes ({'; '.join(damage[:3])}{more}); {MANIFEST_ADVICE}"
        )
    names = [*manifest.files, MANIFEST, *([CARD] if (folder / CARD).is_file() else [])]
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


def share(folder: Path, files: Iterable[str], to: str, public: bool = False) -> str:
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
        ValueError: The name isn't ``user/name``, or an existing repository has another visibility.
    """
    check_name(to)
    if constants.is_offline_mode():
        raise RunError("share: expected a way to the hub, got HF_HUB_OFFLINE=1; unset it for this command")
    api = HfApi()
    if not (api.token or get_token()):
        raise RunError(
            "share: expected a token of the hub, got no token; log in with hf auth login, or set HF_TOKEN"
        )
    try:
        _prepare_repository(api, to, public)  # before a file is uploaded
        commit = api.upload_folder(
            repo_id=to,
            folder_path=folder,
            allow_patterns=[glob.escape(name) for name in files],
            commit_message="A model of contrastive-text",
        )
    except _FAILURES as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"share: expected {api.endpoint} to take {to}, got {type(error).__name__}: {reason}; check the name "
            "and that the token may write there, and share it again"
        ) from error
    return str(commit.commit_url)


def _prepare_repository(api: HfApi, to: str, public: bool) -> None:
    """Creates the repository on the hub, or checks the visibility of an existing repository."""
    try:
        private = api.repo_info(to).private
    except RepositoryNotFoundError:
        api.create_repo(to, private=not public)
        return
    if bool(private) is public:
        current, requested = ("private", "public") if private else ("public", "private")
        todo = "leave out --public" if public else "add --public"
        raise InvalidValueError(
            f"--to: expected a {requested} model, got {to}, which exists and is {current}; {todo}, change it on "
            "the hub, or name another"
        )
