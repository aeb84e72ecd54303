"""Upload of a saved model to the Hugging Face hub, by the hub's own library."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # lazy there

from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.manifests import MANIFEST, MODULES, TODO, Manifest
from contrastive_text.inference.model_card import CARD

_FAILURES: tuple[type[BaseException], ...] = (*HfHubHTTPError.__mro__[1:-3], RuntimeError)
"""Errors of the hub's library: of the HTTP library that its version uses, and of a part of an upload."""


def files_to_share(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Reads every byte of a saved model. Returns the files to upload with their bytes, and the files left out.

    Uploaded are the files of the manifest, the manifest itself, and the card.

    Raises:
        ValueError: No saved model of this library, an unfinished one, changed files, or links among them.
    """
    manifest = Manifest.read(folder, TODO)
    if manifest is None or MODULES not in manifest.files:
        raise InvalidValueError(
            f"{folder}: expected a model that this library has saved, with {MANIFEST}, got none; save it "
            "with SentenceEncoder.from_pretrained(FOLDER).save_pretrained(ANOTHER), or, of a run, with "
            "contrastive-text export RUN ANOTHER"
        )
    if damage := manifest.damage(folder, whole=True):
        more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
        raise InvalidValueError(
            f"{folder}: expected the files as they were saved, got others ({'; '.join(damage[:3])}{more}); {TODO}"
        )
    ours = [*manifest.files, MANIFEST, *([CARD] if (folder / CARD).is_file() else [])]
    for name in ours:
        linked = [place for place in (folder / name, *(folder / name).parents) if place.is_symlink()]
        if inner := [place for place in linked if folder in place.parents]:
            raise InvalidValueError(
                f"{inner[0]}: expected a file or a folder to upload, got a link to "
                f"{os.path.realpath(inner[0])}; links aren't followed, so put a copy in its place"
            )
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    sizes = {name: (folder / name).stat().st_size for name in sorted(ours)}
    return sizes, [name for name in every if name not in ours]


def check_name(to: str) -> None:
    """Checks that a name is one that a model can have on the hub.

    Raises:
        ValueError: It isn't ``user/name``.

    Example:
        >>> check_name("me/my-model")
        >>> check_name("my-model")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: --to: expected USER/NAME, got 'my-model'; ...
    """
    try:
        validate_repo_id(to)
        known = to.count("/") == 1
    except HFValidationError:
        known = False
    if not known:
        raise InvalidValueError(
            f"--to: expected USER/NAME, got {to!r}; name yourself or your organization, then the model, in "
            "letters, digits, '-', '_' and '.'"
        )


def share(folder: Path, files: Iterable[str], to: str, public: bool = False) -> str:
    """Uploads a model to the hub in one commit. Creates the repository if it doesn't exist.

    An existing repository keeps its visibility. If that differs from ``public``, nothing is uploaded.

    Args:
        folder: The folder of a saved model.
        files: Names of the files to upload, from ``files_to_share``.
        to: Name of the repository, ``user/name``.
        public: Whether everyone may read it; otherwise it is private.

    Returns:
        Address of the commit.

    Raises:
        RuntimeError: No token, no connection to the hub, or an error that the hub reports.
        ValueError: A name of another form, or an existing model of another visibility.
    """
    check_name(to)
    if constants.is_offline_mode():
        raise RunError("share: expected a way to the hub, got HF_HUB_OFFLINE=1; unset it for this command")
    api = HfApi()
    if not (api.token or get_token()):
        raise RunError("share: expected a token of the hub, got none; log in with hf auth login, or set HF_TOKEN")
    try:
        _open_to(api, to, public)  # before anything leaves
        commit = api.upload_folder(
            repo_id=to,
            folder_path=folder,
            allow_patterns=[glob.escape(name) for name in files],
            commit_message="A model of contrastive-text",
        )
    except _FAILURES as error:
        said = " ".join(str(error).split())
        raise RunError(
            f"share: expected {api.endpoint} to take {to}, got {type(error).__name__}: {said}; check the name "
            "and that the token may write there, and share it again"
        ) from error
    return str(commit.commit_url)


def _open_to(api: HfApi, to: str, public: bool) -> None:
    """Creates the repository, or checks the visibility of an existing one."""
    try:
        private = api.repo_info(to).private
    except RepositoryNotFoundError:
        api.create_repo(to, private=not public)
        return
    if bool(private) is public:
        there, asked = ("private", "public") if private else ("public", "private")
        todo = "leave out --public" if public else "add --public"
        raise InvalidValueError(
            f"--to: expected a {asked} model, got {to}, which is there and {there}; {todo}, change it on the "
            "hub, or name another"
        )
