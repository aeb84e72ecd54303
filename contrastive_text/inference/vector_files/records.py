"""What lies beside vectors: of what they were made, and a digest of every byte of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import BLOCK, FileDigest, read_sealed, write_sealed
from contrastive_text.inference.vector_files.formats import ids_of, ranges_of, record_of


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """Of what a file of vectors was made, and what its bytes are; it lies beside them as ``OUT.json``.

    Args:
        made_of: All that the vectors depend on.
        rows: How many there are.
        truncated: How many of their texts were cut to the model's limit.
        vectors: Of the file; of an unfinished one its bytes so far.
        ranges: Of the file of ranges; None where there is none.
        settings: Machine, versions and threads of each process that had a part in them.
        ids: Of the file that says which text each is of; None where there is none.
    """

    made_of: Mapping[str, object]
    rows: int
    truncated: int
    vectors: FileDigest
    ranges: FileDigest | None
    settings: Sequence[Mapping[str, str]]
    ids: FileDigest | None = None

    def write(self, path: Path) -> None:
        """Writes it beside a file of vectors."""
        content = {
            "made_of": dict(self.made_of),
            "rows": self.rows,
            "truncated": self.truncated,
            "settings": [dict(each) for each in self.settings],
            "block": BLOCK,
            "vectors": self.vectors.to_json(),
            "ranges": None if self.ranges is None else self.ranges.to_json(),
            "ids": None if self.ids is None else self.ids.to_json(),
        }
        write_sealed(record_of(path), content)

    @classmethod
    def read(cls, path: Path, todo: str) -> VectorRecord:
        """Reads what lies beside a file of vectors.

        Args:
            path: The vectors.
            todo: What to do about a damaged one, for the error.

        Raises:
            OSError: There is none.
            ValueError: It was changed.
        """
        place = record_of(path)
        kept = read_sealed(place, todo)
        try:
            if kept["block"] != BLOCK or not isinstance(kept["made_of"], dict):
                raise ValueError
            ranges, ids = (
                None if kept[name] is None else FileDigest.of_json(kept[name]) for name in ("ranges", "ids")
            )
            vectors = FileDigest.of_json(kept["vectors"])
            settings = [{str(name): str(value) for name, value in each.items()} for each in kept["settings"]]
            rows, truncated = int(kept["rows"]), int(kept["truncated"])
            return cls(kept["made_of"], rows, truncated, vectors, ranges, settings, ids)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidValueError(
                f"{place}: expected a record of vectors of this version's form, got another; {todo}"
            ) from None

    def digests(self, path: Path) -> dict[Path, FileDigest]:
        """Returns the digest of each file of the vectors at a path."""
        found = {path: self.vectors, ranges_of(path): self.ranges, ids_of(path): self.ids}
        return {file: digest for file, digest in found.items() if digest is not None}

    def damage(self, path: Path, grows: bool = False) -> list[str]:
        """Returns a line for each file that isn't what was written: the vectors, their ranges, their ids.

        All bytes are read of a file of up to ``READ_WHOLE`` bytes, a sample of blocks of a larger one.

        Args:
            path: The vectors.
            grows: Whether the vectors are unfinished, so that bytes may follow that nobody vouches for.
        """
        said = {
            file: digest.damage(file, whole=None, grows=grows and file == path)
            for file, digest in self.digests(path).items()
        }
        return [f"{file}: {line}" for file, line in said.items() if line is not None]
