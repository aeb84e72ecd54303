"""Caches on disk, whose entries are made once by one of several processes; and tokens of documents in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
import tokenizers
from rich.progress import track
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.errors import DiskError, InvalidTypeError
from contrastive_text.core.storage.disk import held, remove_abandoned
from contrastive_text.core.storage.manifests import MANIFEST, Manifest, whole_folder
from contrastive_text.core.types import Row, Tokens
from contrastive_text.data.tokenizing import TextTokenizer

_FORMAT = 2
"""Raised when the files mean something else than before."""

_INT32, _INT64 = "<i4", "<i8"
_FILES = ("ids", "words", "offsets")

_BLOCK = 1 << 20
"""Characters that are tokenised at once: the tokenizers library keeps some 200 bytes for each of their tokens."""

_MANY = 2000
"""Documents from which on there is a progress bar."""


def cached(
    folder: Path, key: str, what: str, names: Sequence[str], make: Callable[[Path], None]
) -> tuple[Path, bool]:
    """Returns an entry of a cache, and whether this call has made it.

    An entry whose bytes aren't those of its manifest is told of and made anew. Of two processes that want the
    same one, the second waits for the first and takes what that has made.

    Args:
        folder: Of all entries.
        key: Name of the entry, which stands for all that it is made of.
        what: What the entry holds, for messages.
        names: Its files.
        make: Writes them into a folder; what it raises leaves nothing.

    Warns:
        UserWarning: A damaged entry.

    Raises:
        OSError: The folder can't be written.
    """
    entry = folder / key
    if not _damage(entry, names):
        return entry, False
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            stack.enter_context(held(entry, wait=True))
        except OSError as error:
            raise DiskError(
                f"cache_dir: expected a folder that can be written, got {folder} ({error}); name another one"
            ) from None
        if not (damage := _damage(entry, names)):
            return entry, False
        if os.path.lexists(entry):
            warnings.warn(f"{entry}: damaged {what} ({'; '.join(damage)}); they are made anew", stacklevel=3)
        if not entry.is_dir():
            entry.unlink(missing_ok=True)
        with whole_folder(entry, last=names[-1]) as made:
            make(made)
    return entry, True


def cache_folder(given: Path | None, kind: str) -> Path:
    """Returns the folder of a cache: the given one, or ``contrastive_text/KIND`` in the user's cache folder.

    That is in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if given is not None:
        return given.expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "contrastive_text", kind).absolute()


def _damage(entry: Path, names: Sequence[str]) -> list[str]:
    """Returns what is wrong with an entry; nothing for a whole one."""
    try:
        manifest = Manifest.read(entry)
    except (OSError, ValueError):
        return [f"{MANIFEST}: changed"]
    if manifest is None or not set(names) <= set(manifest.files):
        return [f"{MANIFEST}: none of these files"]
    return manifest.damage(entry, whole=False)


@final
class TokenTable:
    """Rows ``{"text": Tokens}``, with their targets if they have any, read from disk when they are asked for.

    The folder has three flat arrays: ``ids`` and ``words`` of all tokens (int32), and ``offsets`` (int64), of
    which text i has the places from the i-th to the next. A pickled table is its folder's name: a worker
    process maps the same files. A row of 10,000 tokens takes 0.2 ms.

    Args:
        folder: An entry of the cache.
        source: Where the tokens came from, for a reader of the run.
        targets: The label or score of each text; None for texts without.

    Attributes:
        lengths: Tokens of each text, (N,), int64.

    Raises:
        FileNotFoundError: The entry was deleted.
    """

    def __init__(self, folder: Path, source: str, targets: Sequence[float] | None = None) -> None:
        self.folder = folder
        self.source = source
        self.targets = targets
        self._ids, self._words = (_mapped(folder / name, _INT32) for name in ("ids", "words"))
        self._offsets = _mapped(folder / "offsets", _INT64)
        self.lengths: npt.NDArray[np.int64] = np.diff(self._offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        start = range(len(self))[index]  # negative numbers too
        place = slice(self._offsets[start], self._offsets[start + 1])
        tokens = Tokens(ids=tuple(self._ids[place].tolist()), words=tuple(self._words[place].tolist()))
        return {"text": tokens} if self.targets is None else {"text": tokens, "target": self.targets[start]}

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[type[TokenTable], tuple[Path, str, Sequence[float] | None]]:
        return TokenTable, (self.folder, self.source, self.targets)


def tokenize_documents(
    texts: Sequence[str], tokenizer: TextTokenizer, cache_dir: Path | None = None
) -> TokenTable:
    """Tokenises texts, uncut and without special tokens, or finds their tokens of an earlier call.

    The key is BLAKE2b over the texts in their order and the description of the tokenizer. An entry is there as a
    whole or not at all; one whose bytes aren't those of its manifest is told of and made anew. Of two processes
    that want the same one, the second waits for the first and takes what that has made. On one slow core
    BERT's tokenizer makes a million tokens in 3.5 s; to find them, with 5 MB of text to hash and 8 MB of files to
    check, takes 0.02 s.

    Args:
        texts: The documents.
        tokenizer: Its length limit doesn't count here.
        cache_dir: Folder of all entries; None for ``contrastive_text/tokens`` in the user's.

    Returns:
        The tokens; ``source`` says whether they were made or found.

    Warns:
        UserWarning: A damaged entry.

    Raises:
        TypeError: A tokenizer that can't be described, because it is none of the tokenizers library.
        OSError: The folder can't be written.

    Example:
        >>> from contrastive_text.data import learn_vocabulary
        >>> from tempfile import TemporaryDirectory
        >>> tokenizer = TextTokenizer(learn_vocabulary(["a bird sings"], vocabulary_size=40), max_length=None)
        >>> with TemporaryDirectory() as folder:
        ...     table = tokenize_documents(["a bird sings", "a bird"], tokenizer, Path(folder))
        >>> table.lengths.tolist(), table.source.split()[0]
        ([3, 2], 'tokenised')
    """
    folder = cache_folder(cache_dir, "tokens")
    entry, made = cached(
        folder, _key(texts, tokenizer), "tokens", _FILES, lambda made: _write(made, texts, tokenizer)
    )
    return TokenTable(entry, source=f"tokenised and cached in {entry}" if made else f"tokens read from {entry}")


def _key(texts: Sequence[str], tokenizer: TextTokenizer) -> str:
    fast = tokenizer.tokenizer
    if not isinstance(fast, PreTrainedTokenizerFast):
        raise InvalidTypeError(
            f"tokenizer: expected a fast tokenizer, which can be told from others, got {type(fast).__name__}; "
            "convert it to a tokenizer.json"
        )
    backend = fast.backend_tokenizer
    description = json.loads(backend.to_str())
    # Cutting and padding are set by whoever called last, and never for these tokens.
    kept = {name: part for name, part in description.items() if name not in ("truncation", "padding")}
    settings = (_FORMAT, tokenizers.__version__, backend.encode_special_tokens, json.dumps(kept))
    digest = hashlib.blake2b(digest_size=16)
    for part in chain(map(str, settings), texts):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _write(folder: Path, texts: Sequence[str], tokenizer: TextTokenizer) -> None:
    lengths = [0]
    # A text that passes a multiple of the size begins a block: those after it are shorter in all than the size.
    passed = np.cumsum([len(text) for text in texts]) // _BLOCK
    bounds = [0, *(np.flatnonzero(np.diff(passed)) + 1).tolist(), len(texts)]
    blocks = list(pairwise(bounds)) if texts else []
    with (folder / "ids").open("wb") as ids, (folder / "words").open("wb") as words:
        for start, stop in track(blocks, description="Tokenising", disable=len(texts) < _MANY):
            tokens = tokenizer(texts[start:stop])
            lengths += map(len, tokens)
            np.fromiter(chain.from_iterable(each.ids for each in tokens), dtype=_INT32).tofile(ids)
            np.fromiter(chain.from_iterable(each.words for each in tokens), dtype=_INT32).tofile(words)
    np.cumsum(lengths, dtype=_INT64).tofile(folder / "offsets")


def _mapped(path: Path, kind: str) -> npt.NDArray[np.int64]:
    """Returns a file as an array that is read where it is indexed."""
    if not path.stat().st_size:
        return np.empty(0, dtype=kind)  # nothing can't be mapped
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))
