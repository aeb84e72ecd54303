"""Model folders of others: nothing that they name or bring along is imported, nor read outside of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contrastive_text import SentenceEncoder
from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.runs.ensemble import TaskEnsemble


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_folder_has_nothing_imported(
    inside: bool, foreign: Path, finished: dict[str, str], files: dict[str, str],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shutil.copytree(finished["model"], foreign / "model")
    listed = json.loads((foreign / "model" / "modules.json").read_text())
    for kind in ("evil.Evil", "evil.sub.Evil", "subprocess.Popen"):
        listed[1]["type"] = kind
        (foreign / "model" / "modules.json").write_text(json.dumps(listed))
        name = "model"
        if inside:  # cd foreign-model; embed ... --model .
            shutil.copy(foreign / "evil.py", foreign / "model" / "evil.py")
            monkeypatch.chdir(foreign / "model")
            name = "."
        with pytest.raises(ContrastiveTextError):
            SentenceEncoder.from_pretrained(name)
        for words in (
            ["embed", files["texts"], "out.npy", "--model", name],
            ["evaluate", name, files["pairs"]],
            ["search", files["texts"], "a dog", "--model", name],
            ["fit", "--recipe", "simcse", "--data.train", files["texts"], "--init_from", name],
        ):
            assert run(words) == 2, words
        assert not Path("RUN").exists()
        monkeypatch.chdir(foreign)
    capsys.readouterr()


@pytest.mark.parametrize("away", ["../model", "{here}/model", "..", "link"])
def test_what_a_folder_names_stays_inside_of_it(
    away: str, here: Path, finished: dict[str, str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished["model"], here / "model")
    shutil.copytree(finished["model"], here / "foreign")
    for manifest in here.glob("*/*manifest*"):
        manifest.unlink()  # theirs knows nothing of ours
    (here / "foreign" / "link").symlink_to(here / "model")
    listed = json.loads((here / "foreign" / "modules.json").read_text())
    for module in listed[:2]:
        module["path"] = away.format(here=here)
        (here / "foreign" / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ContrastiveTextError, match="expected a path inside"):
            SentenceEncoder.from_pretrained("foreign")
    (here / "ensemble").mkdir()
    (here / "model" / "a.ckpt").write_bytes(Path(finished["checkpoint"]).read_bytes())
    (here / "ensemble" / "link").symlink_to(here / "model")
    choice = {"member": f"{away.format(here=here)}/a.ckpt", "metric": "m", "score": 1, "validation": []}
    choice["source"] = ""
    (here / "ensemble" / "ensemble.json").write_text(json.dumps({"tasks": {"a": choice}}))
    with pytest.raises(ContrastiveTextError, match="expected a path inside"):
        TaskEnsemble.load("ensemble", device="cpu")
    assert run(["validate", "--ckpt_path", "ensemble", "--data.tasks.a.validation", files["pairs"]]) == 2
    assert "expected a path inside" in capsys.readouterr().err


@pytest.mark.parametrize("auto", ["AutoConfig", "AutoModel", "AutoTokenizer"])
def test_code_that_a_model_brings_along_is_not_run(
    auto: str, foreign: Path, finished: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished["model"], foreign / "model")
    for manifest in (foreign / "model").glob("*manifest*"):
        manifest.unlink()
    shutil.copy(foreign / "evil.py", foreign / "model" / "evil.py")
    for file in ("config.json", "tokenizer_config.json"):
        config = json.loads((foreign / "model" / file).read_text())
        named = ["evil.Evil", "evil.Evil"] if auto == "AutoTokenizer" else "evil.Evil"
        config |= {"auto_map": {auto: named}} | ({"model_type": "evil"} if auto == "AutoConfig" else {})
        (foreign / "model" / file).write_text(json.dumps(config))
    if auto == "AutoConfig":
        with pytest.raises(ContrastiveTextError):
            SentenceEncoder.from_pretrained("model")
    else:
        SentenceEncoder.from_pretrained("model")  # the architecture is known; the code beside it isn't asked for
    capsys.readouterr()
