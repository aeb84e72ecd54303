"""The command that uploads a model: through the hub's own library, to a hub on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hub_stub
import pytest
from huggingface_hub import constants

from contrastive_text.cli.main import run

Answer = Callable[[Sequence[str]], str]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_stub.Hub]:
    """A hub that the library takes for the usual one, and a token."""
    with hub_stub.serving() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        yield served


@pytest.fixture
def model(finished: dict[str, str], here: Path) -> Path:
    """The folder of a run's model, with a file of the user's own."""
    shutil.copytree(finished["model"], here / "model")
    (here / "model" / "notes.txt").write_text("mine", encoding="utf-8")
    return here / "model"


def test_a_model_arrives_private_with_its_card_and_without_a_user_s_own_files(
    hub: hub_stub.Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "README.md").write_text("---\nlicense: mit\n---\nMy model.\n", encoding="utf-8")  # edited
    assert run(["share", "model", "--to", "me/mine"]) == 0
    said = capsys.readouterr().out
    assert hub.private == {"me/mine": True}
    assert hub.tokens == {"Bearer hf_mine"}
    written = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert set(hub.files) == written - {"notes.txt"}
    assert all((model / name).read_bytes() == content for name, content in hub.files.items())
    assert f"{(model / 'model.safetensors').stat().st_size:,} bytes  model.safetensors" in said
    assert "didn't write them: notes.txt" in said and f"uploaded: {hub.endpoint}/me/mine/commit/111" in said


def test_whom_it_is_open_to_is_what_was_asked_for(hub: hub_stub.Hub, model: Path, answer: Answer) -> None:
    assert run(["share", "model", "--to", "me/mine", "--public"]) == 0
    assert hub.private == {"me/mine": False}
    hub.files.clear()
    assert "which is there and public; add --public" in answer(["share", str(model), "--to", "me/mine"])
    hub.private["me/mine"] = True
    said = answer(["share", "model", "--to", "me/mine", "--public"])
    assert "which is there and private; leave out --public" in said
    assert not hub.files


def test_a_dry_run_asks_nobody(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody is
    assert run(["share", str(model), "--to", "me/mine", "--dry_run"]) == 0
    assert "would go to me/mine (private); nothing was uploaded" in capsys.readouterr().out


def test_what_stands_in_the_way_is_said(
    hub: hub_stub.Hub, model: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    words = ["share", str(model), "--to", "me/mine"]
    hub.refuses = 403
    said = answer(words)
    assert f"expected {hub.endpoint} to take me/mine" in said and "403" in said
    hub.refuses = None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "got HF_HUB_OFFLINE=1; unset it" in answer(words)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(model / "no-token"))
    assert "expected a token of the hub, got none" in answer(words)
    (model / "config.json").write_text("{}", encoding="utf-8")
    assert "config.json: 2 bytes instead of" in answer(words)
    (model / "contrastive_text.manifest.json").unlink()
    assert "expected a model that this library has saved" in answer(words)
    assert not hub.files and not hub.private
