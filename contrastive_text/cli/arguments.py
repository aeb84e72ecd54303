"""Arguments and options that several commands have: each a type with the path or the help that goes with it.

Nothing here imports torch; see ``commands``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from contrastive_text.cli.paths import ReadPath, WrittenFile, WrittenFolder
from contrastive_text.core.storage.text_files import USUAL

FILES = ".txt, .tsv, .csv, .jsonl or .json, each also .gz"
_BOUNDS = (
    f"of data files: line={USUAL.line} bytes, depth={USUAL.depth} levels of JSON, ratio={USUAL.ratio} bytes out "
    "of one of a .gz; raise them for files that you trust"
)
Model = Annotated[str, ReadPath(model=True), "folder or hub name"]
Texts = Annotated[str, ReadPath(), FILES]
Column = Annotated[str | None, "column of the text, where its name isn't a usual one"]
Header = Annotated[
    str | None,
    {"metavar": "NAMES"},
    "names of the columns of a file whose first line is a row, such as anchor,positive,score",
]
Separator = Annotated[
    str | None,
    {"metavar": "CHARACTER"},
    "between the fields of a .tsv or .csv, such as ';' or tab, where its header leaves it open",
]
Columns = Annotated[
    Mapping[str, str] | None,
    {"metavar": "NAME=COLUMN"},
    "anchor=..., positive=..., target=..., where the names in the file aren't usual ones",
]
Ranked = Annotated[
    str | None,
    ReadPath(),
    {"metavar": "FILE"},
    "further texts to rank in retrieval, where --data is a file of pairs",
]
Output = Annotated[Path | None, WrittenFile(), "file to write to; the terminal without it"]
Cache = Annotated[Path | None, WrittenFolder(), "folder where vectors stay for the next run"]
Backend = Annotated[
    Literal["torch", "onnx", "openvino"], "what runs the network; the last two on the CPU, from a graph made once"
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    "what the network computes in; int8 with onnx or openvino, bfloat16 with torch or openvino",
]
Device = Annotated[str | None, "cpu, cuda, ...; the GPU if there is one"]


@dataclass(frozen=True, kw_only=True)
class TextsCommand:
    """The options of every command that reads files of texts and encodes them."""

    bounds: Annotated[Mapping[str, int] | None, {"metavar": "NAME=N"}, _BOUNDS] = None
    batch_size: Annotated[int, "texts that are encoded at once"] = 64
    device: Device = None
