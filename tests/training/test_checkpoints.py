"""Whole checkpoints pass; a byte too few or another one is always noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contrastive_text.core.storage.checkpoints import check_resumable, verify_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"weight": torch.arange(300.0)}, "epoch": 3}, path)
    return path


def loads_as_before(path: Path) -> bool:
    loaded = torch.load(path, weights_only=True)
    return loaded["epoch"] == 3 and torch.equal(loaded["state_dict"]["weight"], torch.arange(300.0))


def test_a_whole_checkpoint_passes(checkpoint: Path) -> None:
    verify_checkpoint(checkpoint)
    verify_checkpoint(str(checkpoint))


def test_torch_itself_reads_a_flipped_byte_of_a_tensor_without_a_word(checkpoint: Path) -> None:
    content = bytearray(checkpoint.read_bytes())
    place = content.find(torch.arange(300.0).numpy().tobytes())
    assert place > 0
    content[place + 41] ^= 0x40
    checkpoint.write_bytes(content)
    assert not loads_as_before(checkpoint)  # the reason for the check
    with pytest.raises(ValueError, match=r"a\.ckpt: expected a whole checkpoint, got damaged bytes in .*data/0"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(checkpoint: Path, bit: int) -> None:
    content = checkpoint.read_bytes()
    places = range(0, len(content), 13)
    refused = 0
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        checkpoint.write_bytes(changed)
        try:
            verify_checkpoint(checkpoint)
            assert loads_as_before(checkpoint), place
        except ValueError as error:
            assert f"{checkpoint}: expected a whole checkpoint" in str(error)
            refused += 1
        except RuntimeError as error:  # a few bytes of the zip's directory that only torch reads
            assert "archive" in str(error)
    assert refused > 0.3 * len(places)  # the tensor alone is a third of the file


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_checkpoint_that_was_cut_short_is_refused(checkpoint: Path, left: float) -> None:
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(left * len(content))])
    with pytest.raises(
        ValueError, match=r"a\.ckpt: expected a whole checkpoint, .*; it was cut short or changed"
    ):
        verify_checkpoint(checkpoint)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.ckpt"
    path.write_text("shopping list\n" * 100)
    with pytest.raises(ValueError, match=r"notes\.ckpt: expected a whole checkpoint"):
        verify_checkpoint(path)


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
