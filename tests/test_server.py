"""A server under load: every answer of many clients at once is the one of a single thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from covering import turn_of

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "load.py"
LIBRARIES = {"torch": (), "onnx": ("onnxscript", "onnxruntime"), "openvino": ("onnxscript", "openvino")}
REQUESTS = {"torch": 2000, "onnx": 500, "openvino": 500}
# A leak of one file for each connection or call would be hundreds; eight clients and a log are some.
FILES = 16
# A leak of a tiny model's packed weights or activations, 100 kB a request, would be 180 MB after 2,000 requests.
# Arenas of new threads take some.
MEMORY = 120 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("backend", turn_of(LIBRARIES, 3))
def test_a_server_answers_many_clients_as_it_answers_one(backend: str, tmp_path: Path) -> None:
    for library in ("fastapi", "uvicorn", *LIBRARIES[backend]):
        pytest.importorskip(library, exc_type=ImportError)
    requests = REQUESTS[backend]
    words = ["--quick", "--packed", "--threads", "1", "--requests", str(requests), "--backends", backend]
    command = [sys.executable, str(SCRIPT), *words, "--out", str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=600)
    (result,) = tmp_path.glob("*.json")
    (row,) = json.loads(result.read_text())["rows"]
    assert (row["errors"], row["encode wrong"], row["search wrong"]) == (0, 0, 0), row["first error"]
    assert (row["encode right"], row["search right"]) == (requests * 4 // 5, requests // 5)
    assert row["files after"] <= row["files before"] + FILES
    assert row["memory after"] <= row["memory before"] + MEMORY
