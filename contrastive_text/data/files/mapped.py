"""Rows and tokens that are written to disk once, under a lock, and mapped by all processes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple, final, overload

import numpy as np
import numpy.typing as npt
import tokenizers
from rich.progress import track
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.errors import DiskError, InvalidTypeError
from contrastive_text.core.libraries import require
from contrastive_text.core.random import generator
from contrastive_text.core.storage.disk import hold_lock, remove_abandoned
from contrastive_text.core.storage.manifests import MANIFEST, Manifest, folder_with_manifest
from contrastive_text.core.types import Row, Tokens
from contrastive_text.data.files.formats import negative_names, reading_error
from contrastive_text.data.files.rows import FileRows
from contrastive_text.data.tokenizing import TextTokenizer

_TOKENS_FORMAT = 2
"""Version of the format of cached tokens. It is part of the key of an entry and changes with their meaning."""

_INT32, _INT64 = "<i4", "<i8"
_FILES = ("ids", "words", "offsets")

_BLOCK_CHARACTERS = 1 << 20
"""Number of characters that are tokenized at once. The tokenizers library uses about 200 bytes per token."""

_PROGRESS_DOCUMENTS = 2000
"""Smallest number of documents whose tokenization shows a progress bar."""


def get_cache_entry(
    folder: Path, key: str, what: str, names: Sequence[str], make: Callable[[Path], None]
) -> tuple[Path, bool]:
    """Returns the folder of a cache entry, and whether this call created it.

    An entry that doesn't match its manifest is reported and created again. If two processes want the same entry,
    the second waits for the first and uses its result.

    Args:
        folder: Folder of all entries.
        key: Name of the entry: a hash of everything it depends on.
        what: Content of the entry, for messages.
        names: Names of its files.
        make: Writes these files to a folder. If it raises an error, no entry is created.

    Warns:
        UserWarning: A damaged entry.

    Raises:
        OSError: The folder can't be written to.
    """
    entry = folder / key
    if not _damage(entry, names):
        return entry, False
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            stack.enter_context(hold_lock(entry, wait=True))
        except OSError as error:
            raise DiskError(
                f"cache_dir: expected a folder that can be written, got {folder} ({error}); name another one"
            ) from None
        if not (damage := _damage(entry, names)):
            return entry, False
        if os.path.lexists(entry):
            warnings.warn(f"{entry}: damaged {what} ({'; '.join(damage)}); they are created again", stacklevel=3)
        if not entry.is_dir():
            entry.unlink(missing_ok=True)
        with folder_with_manifest(entry, last=names[-1]) as temporary:
            make(temporary)
    return entry, True


def cache_folder(folder: Path | None, kind: str) -> Path:
    """Returns the folder of a cache: the given folder, or ``contrastive_text/KIND`` in the user's cache folder.

    The user's cache folder is ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if folder is not None:
        return folder.expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "contrastive_text", kind).absolute()


def _damage(entry: Path, names: Sequence[str]) -> list[str]:
    """Compares a cache entry with its manifest. Returns a line for each difference; empty if they match."""
    try:
        manifest = Manifest.read(entry)
    except (OSError, ValueError):
        return [f"{MANIFEST}: changed"]
    if manifest is None or not set(names) <= set(manifest.files):
        return [f"{MANIFEST}: none of these files"]
    return manifest.damage(entry, whole=False)


@final
class TokenTable:
    """Rows ``{"text": Tokens}`` of cached token ids, with targets if they have any, read from disk on access.

    The folder has three flat arrays: ``ids`` and ``words`` of all tokens (int32), and ``offsets`` (int64). Text i
    has the tokens from the i-th offset to the next. A table is pickled as its folder's name, and a worker process
    maps the same files. Reading a row of 10,000 tokens takes 0.2 ms.

    Args:
        folder: Folder of a cache entry.
        source: Origin of the tokens, for the run's summary.
        targets: Label or score of each text; None for texts without any.

    Attributes:
        lengths: Number of tokens of each text, (N,), int64.

    Raises:
        FileNotFoundError: The entry was deleted.
    """

    def __init__(self, folder: Path, source: str, targets: Sequence[float] | None = None) -> None:
        self.folder = folder
        self.source = source
        self.targets = targets
        self._ids, self._words = (_open_array(folder / name, _INT32) for name in ("ids", "words"))
        self._offsets = _open_array(folder / "offsets", _INT64)
        self.lengths: npt.NDArray[np.int64] = np.diff(self._offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        start = range(len(self))[index]  # supports negative numbers
        span = slice(self._offsets[start], self._offsets[start + 1])
        tokens = Tokens(ids=tuple(self._ids[span].tolist()), words=tuple(self._words[span].tolist()))
        return {"text": tokens} if self.targets is None else {"text": tokens, "target": self.targets[start]}

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[type[TokenTable], tuple[Path, str, Sequence[float] | None]]:
        return TokenTable, (self.folder, self.source, self.targets)


def tokenize_documents(
    texts: Sequence[str], tokenizer: TextTokenizer, cache_dir: Path | None = None
) -> TokenTable:
    """Tokenizes texts, uncut and without special tokens, or reads their cached tokens.

    The cache key is BLAKE2b of the texts in their order and of the tokenizer's description. An entry is complete
    or absent. An entry that doesn't match its manifest is reported and created again. If two processes want the
    same entry, the second waits for the first and uses its result. On one slow core BERT's tokenizer takes 3.5 s
    for a million tokens. Finding them in the cache takes 0.02 s: 5 MB of text to hash and 8 MB of files to check.

    Args:
        texts: The documents.
        tokenizer: Tokenizer, whose length limit is ignored here.
        cache_dir: Folder of all entries; None for ``contrastive_text/tokens`` in the user's cache folder.

    Returns:
        The tokens; ``source`` says whether they were read from the cache.

    Warns:
        UserWarning: A damaged entry.

    Raises:
        TypeError: The tokenizer isn't of the tokenizers library, so that it has no description.
        OSError: The folder can't be written to.

    Example:
        >>> from contrastive_text.data import learn_vocabulary
        >>> from tempfile import TemporaryDirectory
        >>> tokenizer = TextTokenizer(learn_vocabulary(["a bird sings"], vocabulary_size=40), max_length=None)
        >>> with TemporaryDirectory() as folder:
        ...     table = tokenize_documents(["a bird sings", "a bird"], tokenizer, Path(folder))
        >>> table.lengths.tolist(), table.source.split()[0]
        ([3, 2], 'tokenized')
    """
    folder = cache_folder(cache_dir, "tokens")
    entry, is_new = get_cache_entry(
        folder, _key(texts, tokenizer), "tokens", _FILES, lambda is_new: _write(is_new, texts, tokenizer)
    )
    return TokenTable(entry, source=f"tokenized and cached in {entry}" if is_new else f"tokens read from {entry}")


def _key(texts: Sequence[str], tokenizer: TextTokenizer) -> str:
    fast = tokenizer.tokenizer
    if not isinstance(fast, PreTrainedTokenizerFast):
        raise InvalidTypeError(
            f"tokenizer: expected a fast tokenizer, whose identity is known, got {type(fast).__name__}; "
            "convert it to a tokenizer.json"
        )
    backend = fast.backend_tokenizer
    description = json.loads(backend.to_str())
    # Every caller may set truncation and padding. They don't apply to these tokens.
    description_parts = {
        name: part for name, part in description.items() if name not in ("truncation", "padding")
    }
    settings = (
        _TOKENS_FORMAT,
        tokenizers.__version__,
        backend.encode_special_tokens,
        json.dumps(description_parts),
    )
    digest = hashlib.blake2b(digest_size=16)
    for part in chain(map(str, settings), texts):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _write(folder: Path, texts: Sequence[str], tokenizer: TextTokenizer) -> None:
    lengths = [0]
    # A text whose end passes a multiple of the block size begins a new block, so the texts after it fit in the
    # block.
    block_numbers = np.cumsum([len(text) for text in texts]) // _BLOCK_CHARACTERS
    bounds = [0, *(np.flatnonzero(np.diff(block_numbers)) + 1).tolist(), len(texts)]
    blocks = list(pairwise(bounds)) if texts else []
    with (folder / "ids").open("wb") as ids, (folder / "words").open("wb") as words:
        for start, stop in track(blocks, description="Tokenizing", disable=len(texts) < _PROGRESS_DOCUMENTS):
            tokens = tokenizer(texts[start:stop])
            lengths += map(len, tokens)
            np.fromiter(chain.from_iterable(row.ids for row in tokens), dtype=_INT32).tofile(ids)
            np.fromiter(chain.from_iterable(row.words for row in tokens), dtype=_INT32).tofile(words)
    np.cumsum(lengths, dtype=_INT64).tofile(folder / "offsets")


def _open_array(path: Path, kind: str) -> npt.NDArray[np.int64]:
    """Opens a file of numbers as an array that is read from disk on access."""
    if not path.stat().st_size:
        return np.empty(0, dtype=kind)  # an empty file can't be mapped
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))


MAPPED_ROWS = 1_000_000
"""Largest number of records of a table that are kept in memory. Rows of larger tables are mapped."""
_ROWS_FORMAT = 3
"""Version of the format of mapped rows. It is part of their key and changes with their meaning."""
_BATCH_ROWS = 8192
_CHUNK_BYTES = 1 << 22


class ArrowRows(Sequence[Row]):
    """Sequence of rows that are read from a mapped Arrow file on access. It is pickled as the name of its file.

    Reading a row takes about 5 µs. Processes of a machine share the pages of the file.

    Args:
        path: An ``.arrow`` file with batches of equal size, of which the last is smaller.
        names: Columns of a row. Hard negatives are read from one list; a row with fewer has empty texts.
        places: Indices of the rows in the file; None for all rows.
        seen: Size and modification time of the file when it was first opened; None to read them now.

    Raises:
        OSError: The file has changed since, or doesn't exist.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        places: range | None = None,
        seen: tuple[int, int] | None = None,
    ) -> None:
        arrow = require("pyarrow", str(path))
        self.path = path
        self.names = tuple(names)
        self.seen = seen or _state(path)
        self._check()
        reader = arrow.ipc.open_file(arrow.memory_map(str(path)))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._negatives = [name for name in negative_names(len(names)) if name in self.names]
        # Columns of the file, without duplicates.
        self._columns = tuple(dict.fromkeys("negative" if n in self._negatives else n for n in self.names))
        self.places = range(sum(map(len, self._batches))) if places is None else places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowRows: ...

    def __getitem__(self, index: int | slice) -> Row | ArrowRows:
        if isinstance(index, slice):
            return ArrowRows(self.path, self.names, self.places[index], self.seen)
        self._check()
        batch, row = divmod(self.places[index], _BATCH_ROWS)
        return self._make_row([self._batches[batch].column(column)[row].as_py() for column in self._columns])

    def __iter__(self) -> Iterator[Row]:
        for cells in zip(*map(self.column, self._columns), strict=True):
            yield self._make_row(cells)

    def column(self, name: str) -> Iterator[Any]:  # Any: a text, a number or a list of negatives
        """Yields the cells of a column of the file, which takes a quarter of the time of reading rows."""
        for start in range(0, len(self), _BATCH_ROWS):
            self._check()
            places, count = self.places[start : start + _BATCH_ROWS], 0
            while count < len(places):
                batch, offset = divmod(places[count], _BATCH_ROWS)
                cells = self._batches[batch].column(name).slice(offset, len(places) - count)
                yield from cells.to_pylist()
                count += len(cells)

    def _make_row(self, cells: Sequence[Any]) -> Row:  # Any: as ``column``
        """Builds a row from the cells of the columns of the file."""
        row: dict[str, Any] = {}
        for column, cell in zip(self._columns, cells, strict=True):
            if column == "negative":
                row.update(zip(self._negatives, chain(cell or (), repeat("")), strict=False))
            else:
                row[column] = tuple(cell) if column == "scores" else cell
        return row

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[object, ...]]:
        return ArrowRows, (self.path, self.names, self.places, self.seen)

    def _check(self) -> None:
        if _state(self.path) != self.seen:
            raise DiskError(
                f"{self.path}: expected unchanged mapped rows, got a file that has changed since the run began; "
                "start "
                "or resume the run: the file is written again"
            )


def _state(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DiskError(
            f"{path}: expected mapped rows, found none ({error.strerror}); start the run again"
        ) from None
    return status.st_size, status.st_mtime_ns


def records_of(rows: FileRows) -> int:
    """Returns the number of records or lines of a source; 0 for a folder, a missing file or a small file."""
    content = rows.known_content()
    if content is not None:
        return content.record_count or 0
    path = rows.path
    assert isinstance(path, Path)
    if not path.is_file() or path.stat().st_size <= MAPPED_ROWS:
        return 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))


def hash_files(files: Sequence[FileRows], asked: object) -> str:
    """Returns a hash of the content of files and of the settings with which they are read."""
    digest = blake2b(repr((_ROWS_FORMAT, asked)).encode(), digest_size=16)
    for rows in files:
        content = rows.known_content()
        # Only the file name, which messages have, is hashed, so that a moved file is found again.
        digest.update(f"\0{rows.path.name}\0{content.identity if content else ''}\0".encode())
        if isinstance(rows.path, Path) and not (content and content.identity):
            with rows.path.open("rb") as file:
                for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
                    digest.update(chunk)
    return digest.hexdigest()


class ReadFile(NamedTuple):
    """Summary of a file whose rows have been read.

    Args:
        names: Columns of its rows.
        description: Description of how it was read.
        sizes: Number of rows of each of its documents.
    """

    names: list[str]
    description: str
    sizes: list[int]


def write_rows(path: Path, files: Sequence[FileRows], total: int) -> tuple[list[ReadFile], str]:
    """Writes the rows of files to an ``.arrow`` file; memory holds one batch at a time.

    Args:
        path: The file to write.
        files: The files to read.
        total: Expected number of rows, for the progress bar.

    Returns:
        A summary of each file, and a digest of all rows.

    Raises:
        ValueError: A file that ``read_rows`` refuses, or that changed while it was read.
    """
    arrow = require("pyarrow", str(path))
    digest, summaries = blake2b(digest_size=16), list[ReadFile]()

    def cells() -> Iterator[dict[str, Any]]:  # Any: texts, lists of them, or numbers
        for rows in files:
            source = rows.path if isinstance(rows.path, Path) and rows.path.is_file() else None
            state_before = source and _state(source)
            sizes, names, document = list[int](), [""], None
            for _, row in track(rows, description="Mapping rows", total=total, transient=True):
                if document != rows.document:
                    document = rows.document
                    names = names if sizes else list(row)
                    sizes.append(0)
                sizes[-1] += 1
                columns: dict[str, Any] = {n: cell for n, cell in row.items() if not n.startswith("negative")}
                if "anchor" in row:  # later rows may have negatives
                    columns["negative"] = [text for name, text in row.items() if name.startswith("negative")]
                digest.update(repr(columns).encode())
                yield columns
            if source is not None and _state(source) != state_before:
                got = "one that changed while it was read"
                raise reading_error(str(source), "a file that stays", got, "read it again")
            summaries.append(ReadFile(names, rows.describe(sum(sizes)), sizes))

    row_iterator = cells()
    first_row = next(row_iterator)
    types = {
        "target": arrow.float64(),
        "scores": arrow.list_(arrow.float64()),
        "negative": arrow.list_(arrow.large_string()),
    }
    schema = arrow.schema([(name, types.get(name, arrow.large_string())) for name in first_row])
    with arrow.ipc.new_file(str(path), schema) as writer:
        row_iterator = chain([first_row], row_iterator)
        while block := list(islice(row_iterator, _BATCH_ROWS)):
            writer.write_batch(arrow.RecordBatch.from_pylist(block, schema=schema))
    return summaries, digest.hexdigest()


SAMPLE = 100_000
"""Number of rows that are sampled for counts from more rows than ``MAPPED_ROWS``."""


def sample_if_large(rows: Sequence[Row], seed: int) -> Sequence[Row]:
    """Returns all rows or, for more than ``MAPPED_ROWS``, a sample in order: one row of each part of equal size.

    Example:
        >>> sample_if_large([{"text": "a"}], seed=0)
        [{'text': 'a'}]
    """
    if len(rows) <= MAPPED_ROWS:
        return rows
    count = min(SAMPLE, len(rows))
    starts = np.arange(count + 1) * len(rows) // count
    return [rows[number] for number in generator(seed).integers(starts[:-1], starts[1:]).tolist()]


def count_repeats(rows: Sequence[Row], column: str) -> int:
    """Counts rows whose text in a column occurs in an earlier row.

    For many rows it compares 64-bit hashes of the texts, which take 8 bytes a row. Two of ten million texts have
    the same hash with a probability of 3 in a million.

    Example:
        >>> count_repeats([{"text": "a"}, {"text": "b"}, {"text": "a"}], "text")
        1
    """
    if len(rows) <= MAPPED_ROWS:
        return len(rows) - len({row[column] for row in rows})
    ids = np.fromiter(map(hash, _cells(rows, column)), np.int64, count=len(rows))
    ids.sort()
    return int(np.count_nonzero(ids[1:] == ids[:-1]))


def _cells(rows: Sequence[Row], column: str) -> Iterator[object]:
    return rows.column(column) if isinstance(rows, ArrowRows) else (row[column] for row in rows)
