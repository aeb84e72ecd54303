"""A hub on this machine, with as much of its HTTP interface as an upload of small files needs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Hub:
    """What was sent to it.

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
