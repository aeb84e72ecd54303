"""Output that isn't UTF-8 never ends a command: every command in a process whose locale or pipe lacks letters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

_FIT = (
    "--recipe simcse --encoder {bert} --train texts.txt --batch_size 8 --data.num_workers 0 "
    "--trainer.accelerator cpu --trainer.max_steps 2"
)
ENVIRONMENTS = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
    "cp1252": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "cp1252"},
}
COMMANDS = {
    "fit": f"fit {_FIT} --validation pairs.tsv --trainer.val_check_interval 2",
    "help": "--help",
    "help of fit": "fit --help",
    "views": f"views {_FIT} --model.views.positive DeleteTokens",
    "sweep": f"sweep {_FIT} --vary model.pooler=CLSPooler --seeds 1 --data.validation pairs.tsv",
    "recipes": "recipes simcse",
    "paper": "paper simcse",
    "evaluate": "evaluate {bert} pairs.tsv",
    "diagnose": "diagnose {bert} texts.txt",
    "compare": "compare {bert} {bert} --data pairs.tsv --resamples 10",
    "embed": "embed texts.txt v.npy --model {bert}",
    "search": "search texts.txt \U0001f642 --model {bert}",
    "duplicates": "duplicates texts.txt d.tsv --model {bert}",
    "mine": "mine anchors.tsv t.tsv --model {bert}",
    "postprocess": "postprocess {bert} texts.txt w --remove_components 1",
    "merge": "merge m {bert} {bert}",
    "completion": "completion bash",
    "json": "search texts.txt \U0001f642 --model {bert} --format json --top_k 1",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with texts, pairs and names of sub-sets whose letters no 8-bit encoding has."""
    texts = [f"{text} \U0001f642 \u6771\u4eac na\u00efve" for text in tiny.TEXTS]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    genres = ("\U0001f642", "\u00df")
    rows = [f"{text}\ta bird {i}\t{i % 5}\t{genres[i % 2]}\n" for i, text in enumerate(texts)]
    head = "sentence1\tsentence2\tscore\tgenre\n"
    (tmp_path / "pairs.tsv").write_text("".join([head, *rows]), encoding="utf-8")
    anchors = [f"{text}\ta bird {i}\n" for i, text in enumerate(texts)]
    (tmp_path / "anchors.tsv").write_text("".join(["anchor\tpositive\n", *anchors]), encoding="utf-8")
    return tmp_path


PROGRAM = """
import json, os
from contrastive_text.cli import run

statuses = {}
with open("commands.json", encoding="utf-8") as file:
    for name, words in json.load(file).items():
        try:
            statuses[name] = run([os.fsdecode(word.encode()) for word in words])  # as they come from a shell
        except SystemExit as left:
            statuses[name] = left.code or 0
with open("statuses.json", "w", encoding="utf-8") as file:
    json.dump(statuses, file)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "names"),
    [("ascii", tuple(COMMANDS)), *((other, ("fit", "evaluate", "json")) for other in ("latin-1", "cp1252"))],
    ids=ENVIRONMENTS,
)
def test_commands_end_well_and_json_stays_json_where_output_lacks_letters(
    environment: str, names: tuple[str, ...], place: Path, files: dict[str, str]
) -> None:
    # All in one process, for to import takes longer than a command.
    words = {name: COMMANDS[name].format(bert=files["bert"]).split() for name in names}
    (place / "commands.json").write_text(json.dumps(words), encoding="utf-8")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    surroundings = {**ours, **ENVIRONMENTS[environment], "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=place, env=surroundings, capture_output=True)
    assert done.returncode == 0, done.stderr.decode("latin-1")
    statuses = json.loads((place / "statuses.json").read_text())
    assert statuses == dict.fromkeys(names, 0), done.stderr.decode("latin-1")
    assert b"UnicodeEncodeError" not in done.stdout + done.stderr
    run = place / "runs" / "version_0"
    assert "texts.txt" in (run / "config.yaml").read_text(encoding="utf-8")
    assert (run / "metrics.csv").is_file()
    found = json.loads(done.stdout.splitlines()[-1].decode(environment))
    assert found["query"] == "\U0001f642" and "\u6771\u4eac" in found["hits"][0]["text"]
