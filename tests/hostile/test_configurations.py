"""Odd configurations of the commands that build a run, and parts in them that run code."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from hostile.cases import FIT, RAN, SWEEP, VIEWS, Case, answer, fifo, folder, link, over_files, right, sparse
from hostile.judging import judge
from hostile.sound import Sound

CONFIGURED = FIT.replace("--recipe simcse", "--recipe simcse --config c.yaml")
CALL = f"{{class_path: subprocess.Popen, init_args: {{args: touch {RAN}, shell: true}}}}"
AT_A_COLUMN = f"data: {{task: {{columns: {{text: {CALL}}}}}}}\n"
LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
)

BROKEN = over_files(
    "answer",
    CONFIGURED,
    {
        "a folder": ("c.yaml", folder),
        "a named pipe": ("c.yaml", fifo),
        "/dev/zero": ("c.yaml", link("/dev/zero")),
        "1 GiB": ("c.yaml", sparse(1 << 30)),
        "a link to itself": ("c.yaml", link("c.yaml")),
        "no UTF-8": ("c.yaml", b"data: {train: gr\xfcn}\n"),
        "UTF-16 without a mark": ("c.yaml", "data: {batch_size: 8}\n".encode("utf-16-le")),
        "a NUL": ("c.yaml", "data: {train: a\0b}\n"),
        "aliases without end": ("c.yaml", LAUGHS),
        "10,000 levels": ("c.yaml", "a: " + "[" * 10_000 + "]" * 10_000 + "\n"),
        "100,000 levels that aren't closed": ("c.yaml", "{a: " * 100_000),
        "two documents": ("c.yaml", "data: {batch_size: 8}\n---\ndata: {batch_size: 9}\n"),
    },
)
# A configuration -> a word of the error beside the file's name.
TEXTS = {
    "data: {train: [a, b\n": "",
    "data:\n\ttrain: a\n": "",
    "- data\n- model\n": "",
    "5\n": "",
    "data: {batch_size: 8}\ndata: {batch_size: 9}\n": "data",
    "data: {batch_size: 8, batch_size: 9}\n": "batch_size",
    "data: &d {tasks: *d}\n": "",
    "data: *nothing\n": "",
    "? [a, b]\n: 1\n": "",
    "5: 1\n": "5",
    f"data: !!python/object/apply:os.system ['touch {RAN}']\n": "",
    f"data: !!python/object/new:os.system ['touch {RAN}']\n": "",
    "data: {train: !!python/module:evil }\n": "",
    "data: {train: !!python/name:os.system }\n": "",
    "data: {train: !evil a}\n": "",
}
# A configuration that can be read -> words of the error.
WRONG = {
    "mdoel: {pooler: CLSPooler}\n": "model",
    "model: [1, 2]\n": "model",
    "data: texts\n": "data",
    "data: {batch_size: {a: 1}}\n": "batch_size",
    "data: {validation: {a: b}}\n": "validation",
    "data: {validation: 5}\n": "validation",
    "model: {pooler: {class_path: CLSPooler, args: {}}}\n": "pooler",
    "model: {head: {init_args: {a: 1}}}\n": "head",
    "model: {pooler: {class_path: 5}}\n": "pooler",
    "model: {pooler: {class_path: CLSPooler, init_args: [1]}}\n": "pooler",
    "model: {pooler: {class_path: InfoNCE}}\n": "InfoNCE",
    "model: {views: {positive: [5]}}\n": "views",
    "model: {views: [DeleteTokens]}\n": "views",
    "model: {objectives: [Contrastive]}\n": "objectives",
    "data: {tasks: {a: 5}}\n": "tasks",
    "data: {tasks: [a]}\n": "tasks",
    "trainer: {callbacks: [{class_path: no.Such}]}\n": "no.Such",
    "trainer: {logger: {class_path: pytorch_lightning.loggers.CometLogger}}\n": "comet",
    "model: {schedule: {class_path: torch.nn.Linear}}\n": "Linear",
}
VIEW = (
    "{class_path: NlpaugView, init_args: {augmenter: nlpaug.augmenter.char.RandomCharAug, arguments: {a: CALL}}}"
)
# A configuration with a command at a place -> the place.
MALICIOUS = {
    "model: {pooler: CALL}\n": "pooler",
    "model: {encoder: {class_path: TransformerEncoder, init_args: {config: CALL}}}\n": "config",
    "data: {task: {columns: {text: CALL}}}\n": "columns",
    "data: {task: {columns: CALL}}\n": "columns",
    "data: {task: {labels: CALL}}\n": "labels",
    "data: {tasks: {a: CALL}}\n": "tasks",
    "model: {weights: CALL}\n": "weights",
    f"model: {{views: {{positive: [{VIEW}]}}}}\n": "arguments",
    "trainer: {precision: CALL}\n": "precision",
    "trainer: {devices: CALL}\n": "devices",
    "trainer: {callbacks: [CALL]}\n": "callbacks",
    "trainer: {logger: CALL}\n": "logger",
    "trainer: {profiler: CALL}\n": "profiler",
    "trainer: {plugins: [CALL]}\n": "plugins",
    "trainer: {strategy: CALL}\n": "strategy",
    "seed_everything: CALL\n": "seed_everything",
    "checkpoint: {dirpath: CALL}\n": "dirpath",
}
BY_TEXT = tuple(
    answer(text, CONFIGURED, {"c.yaml": text.replace("CALL", CALL)}, says or "c.yaml")
    for text, says in (TEXTS | WRONG | MALICIOUS).items()
)
OTHERS = (
    *(
        answer(f"subprocess.Popen at a column in {name}", command, {"c.yaml": AT_A_COLUMN}, "columns")
        for name, command in (
            ("views", f"{VIEWS} --config c.yaml"),
            ("a sweep", f"{SWEEP} --config c.yaml --vary model.pooler=CLSPooler,MeanPooler"),
        )
    ),
    answer(
        "subprocess.Popen as a value of a sweep",
        f"{SWEEP} --grid c.yaml",
        {"c.yaml": f"data.task.columns: [{{text: {CALL}}}, null]\n"},
        "columns",
    ),
    answer("subprocess.Popen in an option", f"{VIEWS} --data.task.columns '{{text: {CALL}}}'", {}, "columns"),
    *(
        right(name, f"{VIEWS} --config c.yaml --n 1", {"d.yaml": "model: {}\n", "c.yaml": content}, *says)
        for name, content, *says in (
            ("an empty configuration", ""),
            ("a configuration of comments", "# nothing\n"),
            ("a configuration with a mark of UTF-8", "\ufeff{}\n"),
            ("an alias", "model: {views: {anchor: &v [SwapWords], positive: *v}}\n", "SwapWords"),
            ("a configuration after a link", link("d.yaml")),
        )
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*BROKEN, *BY_TEXT, *OTHERS], ids=attrgetter("name"))
def test_an_odd_configuration_is_refused_or_understood(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
