"""Whole checkpoints pass; a byte too few or another one is always noticed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import rest_slow

from contrastive_text.core.storage.checkpoints import check_resumable, checksums, verify_checkpoint
from contrastive_text.training import AtomicCheckpointIO

CONTENT = {
    "state_dict": {"weight": torch.arange(300.0), "index": torch.arange(5)},
    "epoch": 3,
    "part": {"a": "b"},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint(CONTENT, tmp_path / "a.ckpt")
    verify_checkpoint(str(tmp_path / "a.ckpt"))
    return tmp_path / "a.ckpt"


def loads_equal(path: Path) -> bool:
    """Whether torch reads the content bit for bit, from a file and a mapped one; an error counts as equal."""
    for mmap in (False, True):
        try:
            read = torch.load(path, weights_only=True, mmap=mmap)
        except (RuntimeError, ValueError):  # a byte of the directory that only torch reads
            continue
        weights = read.pop("state_dict")
        equal = {name: torch.equal(weight, CONTENT["state_dict"][name]) for name, weight in weights.items()}
        if read != {name: CONTENT[name] for name in ("epoch", "part")} or equal != {
            "weight": True,
            "index": True,
        }:
            return False
    return True


def test_torch_itself_reads_a_flipped_byte_of_a_tensor_without_a_word(checkpoint: Path) -> None:
    content = bytearray(checkpoint.read_bytes())
    content[content.find(torch.arange(300.0).numpy().tobytes()) + 41] ^= 0x40
    checkpoint.write_bytes(content)
    assert not loads_equal(checkpoint)  # the reason for the check
    with pytest.raises(ValueError, match=r"a\.ckpt: expected a whole checkpoint, got damaged bytes in .*data/0"):
        AtomicCheckpointIO().load_checkpoint(checkpoint)


def parts(content: bytes) -> dict[str, range]:
    """Places of the tensors, of the pickle, of the names in headers, and of the archive's directory."""
    pickle, directory = content.find(b"\x80\x02"), content.find(b"PK\x01\x02")
    tensor = content.find(torch.arange(300.0).numpy().tobytes())
    return {
        "tensor": range(tensor, tensor + 1200, 29),
        "pickle": range(pickle, content.find(b"PK", pickle), 3),
        "header": range(4, 60),
        "directory": range(directory, len(content)),
    }


@pytest.mark.parametrize("part", ["tensor", "pickle", "header", "directory"])
@pytest.mark.parametrize(("every", "bits"), rest_slow([(7, [6]), (1, range(8))]))
def test_a_flipped_bit_is_refused_or_loads_bit_equal(
    checkpoint: Path, part: str, every: int, bits: Sequence[int]
) -> None:
    content, refused = checkpoint.read_bytes(), 0
    for place in parts(content)[part][::every]:
        for bit in bits:
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            checkpoint.write_bytes(changed)
            try:
                verify_checkpoint(checkpoint)
            except ValueError as error:
                assert f"{checkpoint}: expected a whole checkpoint" in str(error)
                refused += 1
            else:
                assert part in ("header", "directory"), (place, bit)
                assert loads_equal(checkpoint), (place, bit)
    assert refused > (20 if every == 1 else 0)


def test_cuts_at_any_length_and_bytes_too_many_are_refused(checkpoint: Path) -> None:
    content = checkpoint.read_bytes()
    size = len(content)
    cuts = [content[:length] for length in [*range(0, size - 130, 41), *range(size - 130, size)]]
    for damaged in (*cuts, content + b"\0", content + b"x", content + content, b"shopping list\n" * 100):
        checkpoint.write_bytes(damaged)
        try:
            verify_checkpoint(checkpoint)
        except ValueError as error:
            assert f"{checkpoint}: expected a whole checkpoint" in str(error)
            assert "; it was cut short or changed" in str(error)
        else:
            assert loads_equal(checkpoint)


def test_checksums_tell_checkpoints_of_one_size_apart(tmp_path: Path) -> None:
    for name, weight in (("a", 1.0), ("b", 2.0), ("same", 1.0)):
        torch.save({"state_dict": {"weight": torch.full((9,), weight)}}, tmp_path / "c.ckpt")
        (tmp_path / "c.ckpt").rename(tmp_path / name)
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    assert checksums(tmp_path / "a") == checksums(tmp_path / "same") != checksums(tmp_path / "b")
    (tmp_path / "none").write_bytes(b"no archive")
    assert checksums(tmp_path / "none") == b""


@pytest.mark.parametrize("name", ["nothing.ckpt", "."])
def test_no_file_and_a_folder_are_refused_with_the_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a file, found none at .*; check --ckpt_path"):
        verify_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"optimizer_states": None, "lr_schedulers": None}, "optimizer_states, lr_schedulers"),
        ({"optimizer_states": None}, "optimizer_states"),
        ({"optimizer_states": []}, "optimizer_states"),
        ({"optimizer_states": "state"}, "optimizer_states"),
        ({"lr_schedulers": None}, "lr_schedulers"),
        ({"loops": None}, "loops"),
        ({"loops": {}}, "loops"),
        ({"loops": {"fit_loop": {}}}, "loops"),
    ],
    ids=str,
)
def test_no_run_goes_on_from_a_checkpoint_without_its_state(changes: dict[str, Any], lacks: str) -> None:
    whole = {"state_dict": {}, "optimizer_states": [{}], "lr_schedulers": [], "loops": {"fit_loop": {"a": 1}}}
    check_resumable(whole, "a.ckpt")
    said = rf"^a\.ckpt: expected a checkpoint .*, got one with weights and without {lacks}; .* --init_from$"
    with pytest.raises(ValueError, match=said):
        check_resumable(
            {name: value for name, value in {**whole, **changes}.items() if value is not None}, "a.ckpt"
        )
