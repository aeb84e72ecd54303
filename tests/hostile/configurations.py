"""Hostile YAML: broken, deep, of other types, of aliases without end, that names what isn't a part."""

from __future__ import annotations

from hostile.case import Case, answer, right
from hostile.commands import SWEEP, VIEWS
from hostile.makers import fifo, folder, link, sparse
from hostile.models import RAN

FIT = (
    "fit --recipe simcse --config c.yaml --model.encoder.model_name_or_path $bert --data.train $texts "
    "--data.batch_size 8 --data.num_workers 0 --trainer.accelerator cpu --trainer.enable_progress_bar false "
    "--trainer.max_steps 1"
)
CALL = f"{{class_path: subprocess.Popen, init_args: {{args: touch {RAN}, shell: true}}}}"
LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
)


def refused(name: str, text: str | bytes, *says: str) -> Case:
    """Returns a case of a configuration of fit that is refused."""
    return answer(name, FIT, {"c.yaml": text}, *(says or ("c.yaml",)))


BROKEN = (
    refused("YAML with an open bracket", "data: {train: [a, b\n"),
    refused("YAML with a tab for an indent", "data:\n\ttrain: a\n"),
    refused("YAML that is no UTF-8", b"data: {train: gr\xfcn}\n"),
    refused("YAML in UTF-16 without a mark", "data: {batch_size: 8}\n".encode("utf-16-le")),
    refused("YAML with a NUL", "data: {train: a\0b}\n"),
    refused("YAML that is a list", "- data\n- model\n"),
    refused("YAML that is a word", "data\n"),
    refused("YAML that is a number", "5\n"),
    refused("YAML of two documents", "data: {batch_size: 8}\n---\ndata: {batch_size: 9}\n"),
    refused("YAML with a key twice", "data: {batch_size: 8}\ndata: {batch_size: 9}\n", "data"),
    refused("YAML with a key twice inside", "data: {batch_size: 8, batch_size: 9}\n", "batch_size"),
    refused("YAML with aliases without end", LAUGHS),
    refused("YAML that holds itself", "data: &d {tasks: *d}\n"),
    refused("YAML 10,000 levels deep", "a: " + "[" * 10_000 + "]" * 10_000 + "\n"),
    refused("YAML 100,000 levels deep that isn't closed", "{a: " * 100_000),
    refused("YAML with an alias of nothing", "data: *nothing\n"),
    refused("YAML with a list for a key", "? [a, b]\n: 1\n"),
    refused("YAML with a number for a key", "5: 1\n", "5"),
    refused("YAML with an object of Python", f"data: !!python/object/apply:os.system ['touch {RAN}']\n"),
    refused("YAML with a new object of Python", f"data: !!python/object/new:os.system ['touch {RAN}']\n"),
    refused("YAML with a module of Python", "data: {train: !!python/module:evil }\n"),
    refused("YAML with a name of Python", "data: {train: !!python/name:os.system }\n"),
    refused("YAML with a tag of nobody", "data: {train: !evil a}\n"),
    answer("a configuration that is a folder", FIT, {"c.yaml": folder}, "c.yaml"),
    answer("a configuration that is a named pipe", FIT, {"c.yaml": fifo}, "c.yaml"),
    answer("a configuration that is /dev/zero", FIT, {"c.yaml": link("/dev/zero")}, "c.yaml"),
    answer("a configuration of 1 GiB", FIT, {"c.yaml": sparse(1 << 30)}, "c.yaml"),
    answer("a configuration that is a link to itself", FIT, {"c.yaml": link("c.yaml")}, "c.yaml"),
    answer("no configuration", FIT, {}, "c.yaml"),
)
WRONG = (
    refused("a key that nobody knows", "mdoel: {pooler: CLSPooler}\n", "model"),
    refused("a key that nobody knows, inside", "model: {poler: CLSPooler}\n", "pooler"),
    refused("a list for a mapping", "model: [1, 2]\n", "model"),
    refused("a word for a mapping", "data: texts\n", "data"),
    refused("a mapping for a number", "data: {batch_size: {a: 1}}\n", "batch_size"),
    refused("a list for a number", "data: {batch_size: [8]}\n", "batch_size"),
    refused("a mapping for a file", "data: {validation: {a: b}}\n", "validation"),
    refused("a number for a file", "data: {validation: 5}\n", "validation"),
    refused(
        "a part with a class and nothing else known",
        "model: {pooler: {class_path: CLSPooler, args: {}}}\n",
        "pooler",
    ),
    refused("a part without a class", "model: {head: {init_args: {a: 1}}}\n", "head"),
    refused("a part with a number for its class", "model: {pooler: {class_path: 5}}\n", "pooler"),
    refused(
        "a part with a list for its arguments",
        "model: {pooler: {class_path: CLSPooler, init_args: [1]}}\n",
        "pooler",
    ),
    refused("a part of another kind", "model: {pooler: {class_path: InfoNCE}}\n", "InfoNCE"),
    refused("a view that is a number", "model: {views: {positive: [5]}}\n", "views"),
    refused("views that are a list", "model: {views: [DeleteTokens]}\n", "views"),
    refused("objectives that are a list", "model: {objectives: [Contrastive]}\n", "objectives"),
    refused("a task that is a number", "data: {tasks: {a: 5}}\n", "tasks"),
    refused("tasks that are a list", "data: {tasks: [a]}\n", "tasks"),
    refused("a task with an unknown key", "data: {tasks: {a: {train: x.tsv, tran: y.tsv}}}\n", "tran"),
    refused("a callback of no class", "trainer: {callbacks: [{class_path: no.Such}]}\n", "no.Such"),
    refused(
        "a logger of a package that isn't here",
        "trainer: {logger: {class_path: pytorch_lightning.loggers.CometLogger}}\n",
        "comet",
    ),
    refused("a schedule of another library", "model: {schedule: {class_path: torch.nn.Linear}}\n", "Linear"),
)
MALICIOUS = tuple(
    refused(f"subprocess.Popen at {place}", text.replace("CALL", CALL), says)
    for place, text, says in (
        ("the pooler", "model: {pooler: CALL}\n", "pooler"),
        (
            "the encoder's config",
            "model: {encoder: {class_path: TransformerEncoder, init_args: {config: CALL}}}\n",
            "config",
        ),
        ("a column", "data: {task: {columns: {text: CALL}}}\n", "columns"),
        ("columns", "data: {task: {columns: CALL}}\n", "columns"),
        ("labels", "data: {task: {labels: CALL}}\n", "labels"),
        ("a task", "data: {tasks: {a: CALL}}\n", "tasks"),
        ("weights", "model: {weights: CALL}\n", "weights"),
        (
            "a view's arguments",
            "model: {views: {positive: [{class_path: NlpaugView, init_args: {augmenter: "
            "nlpaug.augmenter.char.RandomCharAug, arguments: {a: CALL}}}]}}\n",
            "arguments",
        ),
        ("the precision", "trainer: {precision: CALL}\n", "precision"),
        ("the devices", "trainer: {devices: CALL}\n", "devices"),
        ("a callback", "trainer: {callbacks: [CALL]}\n", "callbacks"),
        ("the logger", "trainer: {logger: CALL}\n", "logger"),
        ("the profiler", "trainer: {profiler: CALL}\n", "profiler"),
        ("a plugin", "trainer: {plugins: [CALL]}\n", "plugins"),
        ("the strategy", "trainer: {strategy: CALL}\n", "strategy"),
        ("the seed", "seed_everything: CALL\n", "seed_everything"),
        ("the checkpoint's folder", "checkpoint: {dirpath: CALL}\n", "dirpath"),
    )
)
OTHERS = (
    answer(
        "subprocess.Popen at a column in views",
        f"{VIEWS} --config c.yaml",
        {"c.yaml": f"data: {{task: {{columns: {{text: {CALL}}}}}}}\n"},
        "columns",
    ),
    answer(
        "subprocess.Popen at a column in a sweep",
        f"{SWEEP} --config c.yaml --vary model.pooler=CLSPooler,MeanPooler",
        {"c.yaml": f"data: {{task: {{columns: {{text: {CALL}}}}}}}\n"},
        "columns",
    ),
    answer(
        "subprocess.Popen as a value of a sweep",
        f"{SWEEP} --grid c.yaml",
        {"c.yaml": f"data.task.columns: [{{text: {CALL}}}, null]\n"},
        "columns",
    ),
    answer("subprocess.Popen in an option", f"{VIEWS} --data.task.columns '{{text: {CALL}}}'", {}, "columns"),
    right("an empty configuration", f"{VIEWS} --config c.yaml --n 1", {"c.yaml": ""}),
    right("a configuration of comments", f"{VIEWS} --config c.yaml --n 1", {"c.yaml": "# nothing\n"}),
    right(
        "a configuration with a mark of UTF-8",
        f"{VIEWS} --config c.yaml --n 1",
        {"c.yaml": b"\xef\xbb\xbfdata: {seed: 42}\n".replace(b"data: {seed: 42}", b"{}")},
    ),
    right(
        "a configuration with an alias",
        f"{VIEWS} --config c.yaml --n 1",
        {"c.yaml": "model: {views: {anchor: &v [SwapWords], positive: *v}}\n"},
        "SwapWords",
    ),
    right(
        "a configuration after a link",
        f"{VIEWS} --config c.yaml --n 1",
        {"c.yaml": link("d.yaml"), "d.yaml": "model: {pooler: MeanPooler}\n"},
    ),
)

CASES = (*BROKEN, *WRONG, *MALICIOUS, *OTHERS)
