"""The command that uploads a model: through the hub's own library, to a hub on this machine."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants
from shells import Shell


@dataclass
class Hub:
    """Uploads that the stub of the hub received.

    Args:
        endpoint: Its address.
        private: Name of a model -> whether it is private.
        files: Name of a file -> content, of the last commit.
        tokens: What callers said who they are.
        refuses: Status that every answer has; None for none.
    """

    endpoint: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    refuses: int | None = None


@contextmanager
def serving() -> Iterator[Hub]:
    """Yields a hub that answers until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(*((hub.refuses, {}, "") if hub.refuses else _got(hub, self.path)))

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            hub.tokens.add(self.headers.get("authorization"))
            self._answer(*((hub.refuses, {}) if hub.refuses else _posted(hub, self.path, content)))

        def _answer(self, status: int, content: Any, error: str = "") -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            if error:
                self.send_header("x-error-code", error)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _got(hub: Hub, path: str) -> tuple[int, Any, str]:
    name = path.removeprefix("/api/models/").partition("?")[0]
    if name not in hub.private:
        return 404, {"error": "Repository not found"}, "RepoNotFound"
    return 200, {"id": name, "private": hub.private[name], "sha": "0" * 40, "siblings": [], "tags": []}, ""


def _posted(hub: Hub, path: str, content: bytes) -> tuple[int, Any]:
    if path.endswith("/commit/main"):
        return 200, _committed(hub, content)
    sent = json.loads(content)
    if path == "/api/repos/create":
        name = f"{sent['organization']}/{sent['name']}"
        hub.private[name] = sent["visibility"] == "private" if "visibility" in sent else sent["private"]
        return 200, {"url": f"{hub.endpoint}/{name}", "name": name}
    if path == "/api/validate-yaml":
        return 200, {"warnings": [], "errors": []}
    if "/preupload/" in path:
        files = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in sent["files"]]
        return 200, {"files": files}
    raise AssertionError(path)


def _committed(hub: Hub, content: bytes) -> dict[str, str]:
    hub.files.clear()
    for line in content.splitlines():
        record = json.loads(line)
        value = record["value"]
        if record["key"] == "file":
            hub.files[value["path"]] = base64.b64decode(value["content"])
    name = re.sub(r".*models/", "", next(iter(hub.private)))
    return {"commitUrl": f"{hub.endpoint}/{name}/commit/{'1' * 40}", "commitOid": "1" * 40}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the library takes for the usual one, and a token."""
    with serving() as served:
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


SHARE = "share model --to me/mine"


def test_a_model_arrives_private_with_its_card_and_without_a_user_s_own_files(
    shell: Shell, hub: Hub, model: Path
) -> None:
    (model / "README.md").write_text("---\nlicense: mit\n---\nMy model.\n", encoding="utf-8")  # edited
    said = shell(SHARE).out
    assert hub.private == {"me/mine": True}
    assert hub.tokens == {"Bearer hf_mine"}
    written = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert set(hub.files) == written - {"notes.txt"}
    assert all((model / name).read_bytes() == content for name, content in hub.files.items())
    assert f"{(model / 'model.safetensors').stat().st_size:,} bytes  model.safetensors" in said
    assert "didn't write them: notes.txt" in said and f"uploaded: {hub.endpoint}/me/mine/commit/111" in said


@pytest.mark.usefixtures("model")
def test_whom_it_is_open_to_is_what_was_asked_for(shell: Shell, hub: Hub) -> None:
    shell(f"{SHARE} --public")
    assert hub.private == {"me/mine": False}
    hub.files.clear()
    assert "which exists and is public; add --public" in shell.refused(SHARE)
    hub.private["me/mine"] = True
    assert "which exists and is private; leave out --public" in shell.refused(f"{SHARE} --public")
    assert not hub.files


@pytest.mark.usefixtures("model")
def test_a_dry_run_asks_nobody(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody is
    assert "would be uploaded to me/mine (private); nothing was uploaded" in shell(f"{SHARE} --dry_run").out


def test_what_stands_in_the_way_is_said(
    shell: Shell, hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refuses = 403
    said = shell.refused(SHARE)
    assert f"expected {hub.endpoint} to take me/mine" in said and "403" in said
    hub.refuses = None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "got HF_HUB_OFFLINE=1; unset it" in shell.refused(SHARE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(model / "no-token"))
    assert "expected a token of the hub, got no token" in shell.refused(SHARE)
    (model / "config.json").write_text("{}", encoding="utf-8")
    assert "config.json: 2 bytes instead of" in shell.refused(SHARE)
    (model / "contrastive_text.manifest.json").unlink()
    assert "expected a model that this library has saved" in shell.refused(SHARE)
    assert not hub.files and not hub.private
