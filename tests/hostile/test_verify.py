"""Files and folders that ``verify`` compares with their digests."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest
from hostile.cases import (
    Case,
    answer,
    fifo,
    folder,
    halved,
    link,
    over_files,
    over_words,
    right,
    sparse,
    unix_socket,
)
from hostile.judging import judge
from hostile.sound import Sound

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.training import AtomicCheckpointIO

X = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
"""The digest of a file that holds an x."""
NOTHING = "expected a digest of what was written, got none"
OUTSIDE = "expected names of files in this folder"
NO_JSON = "expected JSON"


def manifest(*names: str, **other: object) -> str:
    """Returns a manifest of files that hold an x, or something else."""
    return json.dumps({"files": {name: {**X, **other} for name in names}}, indent=1)


def checkpoint(path: Path, _: Mapping[str, str]) -> None:
    """Makes a checkpoint."""
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, path)


def cut_checkpoint(path: Path, sound: Mapping[str, str]) -> None:
    """Makes the first half of one."""
    checkpoint(path, sound)
    path.write_bytes(halved(path.read_bytes()))


def deep_folder(path: Path, sound: Mapping[str, str]) -> None:
    """Makes more folders inside each other than Python's calls can be, and a checkpoint in the last of them."""
    here = os.getcwd()
    try:
        for name in (path, *["d"] * 500):
            os.mkdir(name)
            os.chdir(name)
        checkpoint(Path("c.ckpt"), sound)
    finally:
        os.chdir(here)


def bomb() -> bytes:
    """Returns an archive with 1 MiB in it, which its directory lists 10,000 times."""
    with zipfile.ZipFile(out := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1 << 20))
        archive.filelist *= 10_000
    return out.getvalue()


def of_manifest(name: str, content: object, *says: str) -> Case:
    """Returns a case of a folder with a manifest and a file x, which holds an x."""
    files = {f"m/{MANIFEST}": content, "m/x": "x"}
    return answer(f"verify {name}", "verify m", files, *says)


PATHS = (
    *over_words(
        "answer",
        "",
        {
            "verify of no path": ("verify", "path"),
            "verify with a misspelt option": ("verify --modle m", "--modle"),
            "verify of nothing": ("verify nowhere", "nowhere: expected a file or a folder"),
            "verify of a name with a NUL": ("verify 'a\0b'", r"a\x00b: expected a file or a folder"),
            "verify of a name with escapes": ("verify '\x1b[2J'", r"\x1b[2J: expected a file or a folder"),
            "verify of the working directory with nothing in it": ("verify .", NOTHING),
        },
    ),
    answer("verify of two paths", "verify a b", {"a": "x", "b": "x"}, "b"),
    answer(
        "verify of a name of 300 letters", f"verify {'v' * 300}", {}, "expected a file or a folder", "too long"
    ),
    answer("verify of a file inside of a file", "verify a/b", {"a": "x"}, "a/b: expected a file or a folder"),
    answer("verify of a link to itself", "verify l", {"l": link("l")}, "l: expected a file or a folder"),
    answer("verify of an empty folder", "verify m", {"m": folder}, "m: ", NOTHING),
    answer("verify of a folder without a manifest", "verify m", {"m/config.json": "{}"}, "m: ", NOTHING),
    answer("verify of a named pipe", "verify p", {"p": fifo}, "p: ", NOTHING),
    answer("verify of a named pipe for a checkpoint", "verify p.ckpt", {"p.ckpt": fifo}, "p.ckpt: ", NOTHING),
    answer("verify of a folder of pipes and sockets", "verify m", {"m/p": fifo, "m/s": unix_socket}, NOTHING),
    answer("verify of /dev/zero for a checkpoint", "verify c.ckpt", {"c.ckpt": link("/dev/zero")}, NOTHING),
    answer(
        "verify of a record that is a named pipe", "verify m", {"m/v.npy": "x", "m/v.npy.json": fifo}, NOTHING
    ),
    right("verify of folders 500 levels deep", "verify m", {"m": deep_folder}, "c.ckpt: ok by the checksums"),
    right(
        "verify of a file whose name would pass for a line",
        "verify m",
        {f"m/{MANIFEST}": manifest("x\nm/weights: ok"), "m/x\nm/weights: ok": "x"},
        r"m/x\nm/weights: ok: ok",
    ),
)

MANIFESTS = (
    of_manifest("of a manifest of words", "all is well\n", "damaged: ", NO_JSON),
    of_manifest("of a manifest of no bytes", b"", NO_JSON),
    of_manifest("of a manifest cut short", halved(manifest("x").encode()), NO_JSON),
    of_manifest("of a manifest with one digit changed", manifest("x").replace('"size": 1', '"size": 2'), "m/x: "),
    of_manifest("of a manifest 100,000 levels deep", "[" * 100_000, "levels"),
    of_manifest("of a manifest of a number of 5,000 digits", f'{{"a": {"9" * 5000}}}', NO_JSON),
    of_manifest("of a manifest of 1 TiB", sparse(1 << 40), "at most"),
    of_manifest("of a manifest that is a named pipe", fifo, NOTHING),
    of_manifest("of a manifest that is a folder", folder, NOTHING),
    of_manifest("of a manifest that names a file above it", manifest("../x"), OUTSIDE),
    of_manifest("of a manifest that names /etc/passwd", manifest("/etc/passwd"), OUTSIDE),
    of_manifest(
        "of a manifest that names a file of a size below 0", manifest("x", size=-1), "expected an integer"
    ),
    of_manifest("of a manifest that names a file of 2^70 bytes", manifest("x", size=2**70), "bytes instead of"),
    of_manifest(
        "of a manifest without a digest",
        manifest("x", sha256=None),
        "sha256: expected a text",
    ),
    of_manifest("of a manifest that names a NUL", manifest("a\0b"), r"m/a\x00b: damaged: no file"),
    of_manifest("of a manifest that names half a character", manifest("a\udcff"), r"m/a\udcff: damaged: no file"),
    of_manifest(
        "of a manifest that names 1,000 files that aren't there",
        manifest(*(f"file_{i}" for i in range(1000))),
        "m/file_99: damaged: no file",
        "900 more are damaged",
        "1,000 damaged of 1,001 files",
    ),
)

CHECKPOINTS = (
    *over_files(
        "answer",
        "verify c.ckpt",
        {
            "verify of a checkpoint cut short": ("c.ckpt", cut_checkpoint, "c.ckpt: damaged"),
            "verify of a checkpoint of no bytes": ("c.ckpt", b"", "c.ckpt: damaged"),
            "verify of a checkpoint of 10 GiB in 500 KB": ("c.ckpt", bomb(), "more bytes than"),
        },
    ),
    answer(
        "verify of a checkpoint of 1 TiB of zeros", "verify m", {"m/c.ckpt": sparse(1 << 40)}, "c.ckpt: damaged"
    ),
)

VERIFIED = (*PATHS, *MANIFESTS, *CHECKPOINTS)


@pytest.mark.parametrize("case", [*VERIFIED], ids=attrgetter("name"))
def test_verify_names_what_is_damaged(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
