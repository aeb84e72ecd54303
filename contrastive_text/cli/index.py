"""Commands ``index build``, ``add``, ``remove`` and ``info``: an index of documents that grows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from contrastive_text.cli.options import (
    Backend,
    Column,
    Dtype,
    EncodingCommand,
    Header,
    Separator,
    Split,
    Texts,
    TextsCommand,
)
from contrastive_text.cli.paths import ReadPath, WrittenFolder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_json, print_message

if TYPE_CHECKING:
    from contrastive_text.data.files.readers import TextStream
    from contrastive_text.inference.index import Index
    from contrastive_text.inference.index_documents import Document

Folder = Annotated[Path, WrittenFolder(key="index.sqlite"), "Folder of the index."]
IdColumn = Annotated[
    str | None,
    {"metavar": "NAME"},
    "Column of the ids, which must be unique. Default: in add the column of build, in build numbers.",
]
MetadataColumns = Annotated[
    Sequence[str],
    {"metavar": "NAME"},
    "Columns to store with each text, which searches return. Default: in add the columns of build.",
]


@dataclass(frozen=True)
class IndexBuild(EncodingCommand):
    """Build an index from a file of texts. If the command is stopped or killed, the same command resumes."""

    texts: Texts
    folder: Folder
    _: KW_ONLY
    id_column: IdColumn = None
    metadata_columns: MetadataColumns = ()
    passages: Annotated[
        str | None,
        {"metavar": "TOKENS/OVERLAP"},
        "Split texts into passages of this many tokens, such as 128/32. A hit names its best passage. With "
        "128/32/late they are pooled from one pass over the text.",
    ] = None
    approximate: Annotated[
        Literal["hnsw", "ivf"] | None,
        "Approximate search by faiss, for large indexes; prints its recall. Default: exact search.",
    ] = None
    vectors: Annotated[
        Path | None, ReadPath(), "Vectors of the texts that embed wrote (.npy). Default: the texts are encoded."
    ] = None


@dataclass(frozen=True)
class IndexAdd(TextsCommand):
    """Add the texts of a file to an index. The other texts are not encoded again."""

    folder: Folder
    texts: Texts
    _: KW_ONLY
    model: Annotated[
        str | None, ReadPath(model=True), "Model of the index. Default: the folder that the index names."
    ] = None
    id_column: IdColumn = None
    metadata_columns: MetadataColumns = ()
    column: Column = None
    header: Header = None
    separator: Separator = None
    split: Split = None
    backend: Backend = "torch"
    dtype: Dtype = "float32"


@dataclass(frozen=True)
class IndexRemove:
    """Remove documents from an index. Later searches don't find them."""

    folder: Folder
    names: Annotated[Sequence[str], "Ids of documents."] = ()
    _: KW_ONLY
    ids: Annotated[Path | None, ReadPath(), {"metavar": "FILE"}, "File of ids, one per line."] = None


@dataclass(frozen=True)
class IndexInfo:
    """Print the number of documents of an index, its model and other facts."""

    folder: Annotated[Path, ReadPath(), "Folder of the index."]
    _: KW_ONLY
    format: Annotated[Literal["text", "json"], "Format of the facts."] = "text"


def index_build(options: IndexBuild) -> None:
    """Encodes the texts of a file, or reads their vectors, and writes an index of them.

    Raises:
        FileExistsError: The folder has an index or other files.
        ValueError: Options contradict each other; see also ``Index.create`` and ``read_documents``.
    """
    from contrastive_text.cli.models import document_vectors, encoder_of, read_document_vectors
    from contrastive_text.inference.index import facts_of, model_name
    from contrastive_text.inference.index_documents import (
        PassageStream,
        Window,
        late_chunk_rows,
        read_documents,
        split_documents,
    )
    from contrastive_text.inference.index_files import IndexFolder
    from contrastive_text.inference.index_writer import WORKING, check_new_folder, create_folder

    start = time.perf_counter()
    check_new_folder(options.folder)
    window = None if options.passages is None else Window.parse(options.passages)
    if window is not None and options.vectors is not None:
        raise InvalidValueError(
            "--passages: expected it without --vectors, whose vectors are of whole texts, got both; remove one"
        )
    texts, has_ids = _texts_of(options), options.id_column is not None
    for _ in read_documents(texts, has_ids):
        pass  # errors are found before texts are encoded
    _print_description(texts)
    model, devices = encoder_of(options)
    facts = facts_of(model, model_name(options.model), window, options.approximate)
    facts = replace(facts, id_column=options.id_column, metadata_columns=options.metadata_columns)
    passages = texts if window is None else PassageStream(texts, window, model.tokenizer)
    if options.vectors is not None:
        parts = read_document_vectors(model, passages, options.vectors)
        facts = replace(facts, features=parts[0].shape[1])
    else:
        options.folder.mkdir(parents=True, exist_ok=True)

        def split() -> Iterator[Document]:
            return split_documents(read_documents(texts, has_ids), window, model.tokenizer)

        if window is not None and window.late:
            parts = [late_chunk_rows(model, split, options.folder / WORKING, options.batch_size)]
        else:
            parts = document_vectors(options, model, devices, passages, options.folder / WORKING)
    documents = split_documents(read_documents(texts, has_ids), window, model.tokenizer)
    count = create_folder(options.folder, facts, documents, parts)
    with closing(IndexFolder(options.folder)) as files:
        info = files.info()
    in_passages = "" if window is None else f" in {info['vectors']:,} passages"
    note = f"{count:,} documents{in_passages} written to {options.folder}"
    print_message(f"{note} ({_seconds(start)}){_recall(info)}")


def index_add(options: IndexAdd) -> None:
    """Encodes the texts of a file and adds them to an index, by default with the columns of ``index build``.

    Raises:
        ValueError: An id is in the index; see also ``Index.add``.
    """
    from contrastive_text.cli.models import say_truncated
    from contrastive_text.inference.index_documents import parse_metadata, read_documents

    start = time.perf_counter()
    index = open_index(options.folder, options.model, options.device, options.backend, options.dtype)
    with closing(index):
        options = replace(
            options,
            id_column=options.id_column or index.facts.id_column,
            metadata_columns=options.metadata_columns or index.facts.metadata_columns,
        )
        texts = _texts_of(options)
        documents = list(read_documents(texts, options.id_column is not None))
        _print_description(texts)
        ids = None if options.id_column is None else [document.id for document in documents]
        metadata = [parse_metadata(document) or None for document in documents]
        index.add([document.text for document in documents], ids, metadata, True, options.batch_size)
        say_truncated(index.model.truncated, len(documents), index.model)
        note = f"{len(documents):,} documents added to {options.folder}, which now has {len(index):,}"
        print_message(f"{note} ({_seconds(start)})")


def index_remove(options: IndexRemove) -> None:
    """Removes documents from an index by their ids.

    Raises:
        ValueError: There is no id, or the index does not have an id.
    """
    from contrastive_text.core.storage.text_files import decoded_lines
    from contrastive_text.inference.index_files import IndexFolder
    from contrastive_text.inference.index_writer import remove_documents

    start = time.perf_counter()
    names = list(options.names)
    if options.ids is not None:
        names += filter(None, (line.strip() for line in decoded_lines(options.ids)))
    with closing(IndexFolder(options.folder)) as files:
        count = remove_documents(files, names)
        note = f"{count:,} documents removed from {options.folder}, which now has {files.state().documents:,}"
        print_message(f"{note} ({_seconds(start)})")


def index_info(options: IndexInfo) -> None:
    """Prints facts of an index."""
    from contrastive_text.inference.index_files import IndexFolder

    with closing(IndexFolder(options.folder)) as files:
        info = files.info()
    if options.format == "json":
        print_json(json.dumps(info, ensure_ascii=False))
        return
    for name, value in info.items():
        if value is not None:
            number = (
                f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else value
            )
            print_message(f"{name:<20}{number}")


def open_index(folder: Path, model: str | None, device: str | None, backend: str, dtype: str) -> Index:
    """Opens an index with a model that is loaded by the options of a command.

    Args:
        folder: Folder of the index.
        model: Model folder or hub name; empty or None for the model that the index names.
        device: Device of the model.
        backend: Library that runs the network.
        dtype: Number type of the network.

    Raises:
        ValueError: The index names no model, or has another one.
    """
    from contrastive_text.cli.models import load_model
    from contrastive_text.inference.index import Index
    from contrastive_text.inference.index_files import IndexFolder

    if not model:
        with closing(IndexFolder(folder)) as files:
            model = files.facts.model
    if model is None:
        raise InvalidValueError(
            f"--model: expected the model of {folder}, which names none, got nothing; give it"
        )
    return Index.open(folder, load_model(model, device, backend=backend, dtype=dtype))


def _texts_of(options: IndexBuild | IndexAdd) -> TextStream:
    """Returns the texts of a file with the columns of their ids and metadata."""
    from contrastive_text.cli.files import text_stream

    ids = () if options.id_column is None else (options.id_column,)
    return text_stream(options, options.texts, columns=(*ids, *options.metadata_columns))


def _print_description(texts: TextStream) -> None:
    """Prints how the file of texts was read."""
    assert texts.summary is not None
    print_message(texts.summary.description)


def _seconds(start: float) -> str:
    return f"{time.perf_counter() - start:.1f} s"


def _recall(info: Mapping[str, object]) -> str:
    """Describes the recall of the approximate search of an index; empty without approximate search."""
    if info["approximate"] is None:
        return ""
    if info["recall"] is None:
        return "; small indexes are searched exactly"
    return f"; {info['approximate']} finds {info['recall']:.1%} of the nearest 10 vectors"
