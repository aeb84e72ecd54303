"""Odd arguments and configurations of the commands that build a run."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest
from hostile.cases import (
    FIT,
    RAN,
    SWEEP,
    TABLE,
    TWO,
    VIEWS,
    Case,
    answer,
    fifo,
    folder,
    link,
    over_files,
    over_words,
    right,
    sparse,
)
from hostile.judging import judge
from hostile.sound import Sound

RATED = "model.views.positive=DeleteTokens(rate=0.1)"


def _with_view(arguments: dict[str, float]) -> str:
    views = {"positive": [{"class_path": "DeleteTokens", "init_args": arguments}]}
    return f"{FIT} --model.views '{json.dumps(views)}'"


def refused(option: str, *values: str) -> tuple[Case, ...]:
    """Returns a case for each value of an option of fit that must be refused by its name."""
    name = option.rpartition(".")[2].lstrip("-")
    return tuple(
        answer(f"fit {option} {value or 'empty'}", f"{FIT} {option}='{value}'", {}, name) for value in values
    )


_CALLBACK = "--trainer.callbacks=pytorch_lightning.callbacks."
_CONFIG, _ARGUMENTS = "runs/version_0/config.yaml", "runs/version_0/hparams.yaml"
NUMBERS = (
    # Known when the run starts, which has written its configuration.
    *(
        answer(f"fit {words}", f"{FIT} {words}", {}, says, may_change=tuple(written))
        for words, says, *written in (
            ("--trainer.precision 16-true", "precision", _CONFIG),
            # Lightning looks at it after it has written the arguments of the module.
            ("--trainer.limit_train_batches 0.0001", "limit_train_batches", _CONFIG, _ARGUMENTS),
            (f"{_CALLBACK}DeviceStatsMonitor --trainer.logger false", "logger", _CONFIG),
        )
    ),
    # Known when the first validation is over.
    answer(
        "fit that stops by a figure that isn't there",
        f"{FIT} --data.validation $pairs {_CALLBACK}EarlyStopping --trainer.callbacks.monitor val/no",
        {},
        "`val/no` which is not available",
        may_change=("runs/version_0/",),
    ),
    *(
        answer(
            f"{words.partition(' ')[0]} of no batch",
            f"{words} 0 --ckpt_path $checkpoint --trainer.accelerator cpu",
            {},
            words.rpartition(".")[2],
        )
        for words in (
            "validate --data.validation $pairs --trainer.limit_val_batches",
            "test --data.test $pairs --trainer.limit_test_batches",
            "predict --data.predict $texts --trainer.limit_predict_batches",
        )
    ),
    *refused("--data.batch_size", "0", "-1", "1", "nan", "1e400", "", "9223372036854775808", "1.5", "[8]"),
    *refused("--data.num_workers", "-1", "1.5", "99999"),
    *refused("--data.eval_batch_size", "0", "-3"),
    *refused("--trainer.max_steps", "0", "nan", "x", "-2"),
    *refused("--trainer.max_epochs", "0", "1.5", "-2"),
    *refused("--trainer.limit_train_batches", "0", "0.0", "-1"),
    *refused("--trainer.log_every_n_steps", "0"),
    *refused("--trainer.devices", "99", "0", "-2", "x", "[7]"),
    *refused("--trainer.accelerator", "tpuu", ""),
    *refused("--trainer.precision", "8", "bf17"),
    *refused("--trainer.accumulate_grad_batches", "0", "-1"),
    *refused("--trainer.gradient_clip_val", "nan", "-1", "x"),
    *refused("--trainer.val_check_interval", "0", "0.0", "nan", "-1", "1.5"),
    *refused("--seed_everything", "-1", "x", "18446744073709551616"),
    *refused("--chunk", "-1", "0", "x", "1.5"),
    *refused("--model.optimizer.lr", "nan", "inf", "-1", "0", "1e400", "x"),
    *refused("--model.optimizer.weight_decay", "nan", "-1", "inf"),
    *refused("--model.optimizer.eps", "nan", "-1", "inf"),
    *refused("--model.optimizer.betas", "[0.9]", "[0.9, 1.0]", "[0.9, -1]", "x"),
    *refused("--model.objectives.contrastive.loss.temperature", "nan", "inf", "0", "-1", "x"),
    *refused("--model.objectives.contrastive.columns", "-1", "[{class_path: Queue, init_args: {size: 0}}]"),
    *refused("--model.encoder.max_length", "0", "-1", "33", "2", "x"),
    *refused("--model.encoder.dropout", "nan", "-1", "1.5", "1"),
    *refused("--model.inference.max_length", "-1", "2", "x"),
    *refused("--model.inference.similarity_fn_name", "x"),
    *refused("--model.chunk_tokens", "0", "-1"),
)

WORDS = (
    *over_words(
        "answer",
        "",
        {
            "fit of nothing": ("fit", "model"),
            "fit of an unknown recipe": ("fit --recipe ../simcse", "recipe"),
            "fit of a recipe that is a path": ("fit --recipe /etc/passwd", "recipe"),
            "fit of a recipe without a name": ("fit --recipe", "recipe"),
            "validate without a checkpoint": ("validate --data.validation $pairs", "model.encoder"),
            "test without a file": ("test --ckpt_path $checkpoint --trainer.accelerator cpu", "--data.test"),
            "predict without a file": (
                "predict --ckpt_path $checkpoint --trainer.accelerator cpu",
                "--data.predict",
            ),
            "predict of a file that isn't there": (
                "predict --ckpt_path $checkpoint --data.predict no.txt",
                "no.txt",
            ),
            "validate with --init_from": (
                "validate --init_from $checkpoint --data.validation $pairs",
                "--init_from",
            ),
            "validate with a misspelt option": (
                "validate --ckpt_path $checkpoint --data.validaton $pairs",
                "validation",
            ),
            "test of the last checkpoint of nothing": ("test --ckpt_path last --data.test $pairs", "--ckpt_path"),
            "views of no texts": (
                "views --recipe simcse --model.encoder.model_name_or_path $bert",
                "--data.train",
            ),
            "an ensemble of nothing": ("ensemble out --runs nowhere", "nowhere"),
            "an ensemble of no runs": ("ensemble out --runs", "--runs"),
            "an ensemble of a run without tasks": ("ensemble out --runs $run", "val/TASK"),
        },
    ),
    *over_words(
        "answer",
        FIT,
        {
            "fit with a configuration without a name": (" --config", "--config"),
            "fit with an option twice, the second one wrong": (" --data.batch_size 0", "batch_size"),
            "fit with a word after its options": (" more", "more"),
            "fit with a misspelt group": (" --tariner.max_steps 1", "trainer"),
            "fit with a misspelt option": (" --data.bacth_size 1", "batch_size"),
            "fit with a misspelt part": (" --model.pooler CLSPoolr", "CLSPooler"),
            "fit with a part of another kind": (" --model.pooler InfoNCE", "InfoNCE"),
            "fit with a module's function for a part": (" --model.pooler os.system", "os.system"),
            "fit with a class of another library for a part": (
                " --model.pooler subprocess.Popen",
                "subprocess.Popen",
            ),
            "fit with a part of no module": (" --model.pooler no_such_module.Pooler", "no_such_module"),
            "fit with a part that is a path": (" --model.pooler ../evil.Pooler", "evil"),
            "fit with the abstract class of a part": (" --model.pooler Pooler", "Pooler"),
            "fit with views for no role": (' --model.views \'{"other": ["DeleteTokens"]}\'', "other"),
            "fit with YAML that is broken in an option": (" --model.views '{a: ['", "views"),
            "fit with texts that aren't there": (" --data.train nowhere.txt", "nowhere.txt"),
            "fit with pairs that aren't there": (" --data.validation nowhere.tsv", "nowhere.tsv"),
            "fit with texts for validation": (" --data.validation $texts", "texts.txt"),
            "fit with one file twice for validation": (" --data.validation '[$pairs, $pairs]'", "pairs"),
            "fit from a checkpoint that isn't there": (" --ckpt_path no.ckpt", "no.ckpt"),
            "fit from the weights of nothing": (" --init_from nowhere", "nowhere"),
            "fit from weights and from a checkpoint": (
                " --init_from $run --ckpt_path $checkpoint",
                "--init_from",
            ),
            "fit with an objective of no task": (" --model.objectives.contrastive.task other", "other"),
            "fit with a weight for no objective": (" --model.weights '{\"other\": 1}'", "other"),
            "fit with a weight that is no number": (" --model.weights '{\"contrastive\": .nan}'", "weights"),
            "fit with a task's file that isn't there": (" --data.tasks.a.train nowhere.tsv", "tasks"),
            "fit with a task of an empty name": (" --data.tasks..train $texts", "tasks"),
            "fit that chooses by an odd mode": (" --checkpoint.mode most", "mode"),
        },
    ),
    *(
        answer(
            f"fit with a part in a list {name}",
            f"{FIT} --model.objectives.contrastive.columns '{columns}'",
            {},
            "model.objectives.columns: expected size for Queue, got none; write it under init_args",
        )
        for name, columns in (
            ("without its argument", "[Queue]"),
            ("and empty arguments", "[{class_path: Queue, init_args: {}}]"),
        )
    ),
    answer("fit with a misspelt argument of a view", _with_view({"rat": 1}), {}, "rate"),
    answer("fit with a view's rate above 1", _with_view({"rate": 7}), {}, "rate"),
    answer("fit with an empty text file", f"{FIT} --data.train in.txt", {"in.txt": b""}, "in.txt"),
    answer("fit with a folder without texts", f"{FIT} --data.train in", {"in": folder}, "in: expected"),
    answer("fit with fewer texts than a batch", f"{FIT} --data.train in.txt", {"in.txt": TWO}, "batch_size"),
    answer("fit from a folder for a checkpoint", f"{FIT} --ckpt_path d", {"d": folder}, "d"),
    answer("fit from a text for a checkpoint", f"{FIT} --ckpt_path in.ckpt", {"in.ckpt": TWO}, "in.ckpt"),
    answer("fit from the weights of a text", f"{FIT} --init_from in.ckpt", {"in.ckpt": TWO}, "in.ckpt"),
    answer(
        "validate on a file of NULs",
        "validate --ckpt_path $checkpoint --data.validation in.tsv",
        {"in.tsv": bytes(50)},
        "in.tsv",
    ),
    *over_words(
        "answer",
        VIEWS,
        {
            "views of 0 rows": (" --n 0", "--n"),
            "views of -1 rows": (" --n -1", "--n"),
            "views of texts that aren't there": (" --data.train no.txt", "no.txt"),
            "views with a misspelt option": (" --data.trian $texts", "train"),
        },
    ),
    right(
        "views of more rows than there are",
        f"{VIEWS} --data.train in.txt --n 1000000",
        {"in.txt": "".join(f"a dog and {i}\n" for i in range(8))},
        "a dog and",
    ),
    right(
        "views of texts with markup and escapes",
        f"{VIEWS} --data.train in.txt --n 20",
        {"in.txt": "x[/bold]y\n[red]\n\x1b]0;t\x07\n\x1b[2J\n\\[a]\n[b\n]c[\nd\n"},
    ),
    right(
        "views of a file whose name is markup",
        f"{VIEWS} --data.train './[red]x.txt' --n 2",
        {"[red]x.txt": TWO * 8},
        "[red]x.txt",
    ),
    answer("a sweep over nothing in a file", f"{SWEEP} --grid g.yaml", {"g.yaml": "lr: []\n"}, "g.yaml"),
    answer("a sweep over a file of a list", f"{SWEEP} --grid g.yaml", {"g.yaml": "[lr]\n"}, "g.yaml"),
    *over_words(
        "answer",
        SWEEP,
        {
            "a sweep over a key without values": (" --vary model.pooler=", "model.pooler"),
            "a sweep over a word": (" --vary pooler", "--vary"),
            "a sweep over a value twice": (" --vary model.pooler=CLSPooler,CLSPooler", "model.pooler"),
            "a sweep over a misspelt class": (" --vary model.pooler=CLSPoolr,MeanPooler", "CLSPooler"),
            "a sweep over a misspelt key": (" --vary model.poler=CLSPooler,MeanPooler", "pooler"),
            "a sweep over a class of another library": (
                " --vary 'model.pooler=subprocess.Popen(args=ls)'",
                "subprocess.Popen",
            ),
            "a sweep over a file that isn't there": (" --grid no.yaml", "no.yaml"),
            "a sweep over code": (
                " --vary \"model.pooler=MeanPooler(a=__import__('os').getcwd())\"",
                "no option",
            ),
            "a sweep over 1,000 brackets": (f" --vary 'model.pooler=A{'(a=B' * 1000}{')' * 1000}'", "--vary"),
            "a sweep over an open bracket": (" --vary 'model.pooler=A(a=1'", "--vary"),
            "a sweep under no seed": (" --vary model.pooler=CLSPooler,MeanPooler --seeds 0", "--seeds"),
            "a sweep under a seed of -1": (" --vary model.pooler=CLSPooler,MeanPooler --seeds 1 -1", "--seeds"),
            "a sweep under one seed twice": (" --vary model.pooler=CLSPooler,MeanPooler --seeds 4 4", "--seeds"),
            "a sweep under 10^12 seeds": (
                " --vary model.pooler=CLSPooler,MeanPooler --seeds 1000000000000",
                "--seeds",
            ),
            "a sweep that sets the seed itself": (f" --vary {RATED} --seed_everything 3", "--seed_everything"),
            "a sweep by a figure of the training": (f" --vary {RATED} --select train/loss", "--select"),
        },
    ),
    answer("a sweep over a file of broken YAML", f"{SWEEP} --grid in.yaml", {"in.yaml": "{a: ["}, "in.yaml"),
    answer(
        "a sweep into a file", f"{SWEEP} --vary {RATED} --output f".replace("--dry_run ", ""), {"f": "x"}, "f"
    ),
    answer("an ensemble in a folder that holds something", "ensemble out --runs $run", {"out/a": "x"}, "out"),
    answer("an ensemble in a file", "ensemble out --runs $run", {"out": "x"}, "out"),
    answer("an ensemble under a file", "ensemble f/out --runs $task_run", {"f": "x"}, "f"),
    answer("an ensemble of a text", "ensemble out --runs in.ckpt", {"in.ckpt": TABLE}, "in.ckpt"),
    answer("an ensemble of an empty folder", "ensemble out --runs r", {"r": folder}, "r"),
)


CONFIGURED = FIT.replace("--recipe simcse", "--recipe simcse --config c.yaml")
CALL = f"{{class_path: subprocess.Popen, init_args: {{args: touch {RAN}, shell: true}}}}"
AT_A_COLUMN = f"data: {{task: {{columns: {{text: {CALL}}}}}}}\n"
LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
)


def configured(name: str, text: str | bytes, *says: str) -> Case:
    """Returns a case of a configuration of fit that is refused."""
    return answer(name, CONFIGURED, {"c.yaml": text}, *(says or ("c.yaml",)))


BROKEN = (
    configured("YAML with an open bracket", "data: {train: [a, b\n"),
    configured("YAML with a tab for an indent", "data:\n\ttrain: a\n"),
    configured("YAML that is no UTF-8", b"data: {train: gr\xfcn}\n"),
    configured("YAML in UTF-16 without a mark", "data: {batch_size: 8}\n".encode("utf-16-le")),
    configured("YAML with a NUL", "data: {train: a\0b}\n"),
    configured("YAML that is a list", "- data\n- model\n"),
    configured("YAML that is a word", "data\n"),
    configured("YAML that is a number", "5\n"),
    configured("YAML of two documents", "data: {batch_size: 8}\n---\ndata: {batch_size: 9}\n"),
    configured("YAML with a key twice", "data: {batch_size: 8}\ndata: {batch_size: 9}\n", "data"),
    configured("YAML with a key twice inside", "data: {batch_size: 8, batch_size: 9}\n", "batch_size"),
    configured("YAML with aliases without end", LAUGHS),
    configured("YAML that holds itself", "data: &d {tasks: *d}\n"),
    configured("YAML 10,000 levels deep", "a: " + "[" * 10_000 + "]" * 10_000 + "\n"),
    configured("YAML 100,000 levels deep that isn't closed", "{a: " * 100_000),
    configured("YAML with an alias of nothing", "data: *nothing\n"),
    configured("YAML with a list for a key", "? [a, b]\n: 1\n"),
    configured("YAML with a number for a key", "5: 1\n", "5"),
    configured("YAML with an object of Python", f"data: !!python/object/apply:os.system ['touch {RAN}']\n"),
    configured("YAML with a new object of Python", f"data: !!python/object/new:os.system ['touch {RAN}']\n"),
    configured("YAML with a module of Python", "data: {train: !!python/module:evil }\n"),
    configured("YAML with a name of Python", "data: {train: !!python/name:os.system }\n"),
    configured("YAML with a tag of nobody", "data: {train: !evil a}\n"),
    *over_files(
        "answer",
        CONFIGURED,
        {
            "a configuration that is a folder": ("c.yaml", folder),
            "a configuration that is a named pipe": ("c.yaml", fifo),
            "a configuration that is /dev/zero": ("c.yaml", link("/dev/zero")),
            "a configuration of 1 GiB": ("c.yaml", sparse(1 << 30)),
            "a configuration that is a link to itself": ("c.yaml", link("c.yaml")),
        },
    ),
    answer("no configuration", CONFIGURED, {}, "c.yaml"),
)
WRONG = (
    configured("a key that nobody knows", "mdoel: {pooler: CLSPooler}\n", "model"),
    configured("a key that nobody knows, inside", "model: {poler: CLSPooler}\n", "pooler"),
    configured("a list for a mapping", "model: [1, 2]\n", "model"),
    configured("a word for a mapping", "data: texts\n", "data"),
    configured("a mapping for a number", "data: {batch_size: {a: 1}}\n", "batch_size"),
    configured("a list for a number", "data: {batch_size: [8]}\n", "batch_size"),
    configured("a mapping for a file", "data: {validation: {a: b}}\n", "validation"),
    configured("a number for a file", "data: {validation: 5}\n", "validation"),
    configured(
        "a part with a class and nothing else known",
        "model: {pooler: {class_path: CLSPooler, args: {}}}\n",
        "pooler",
    ),
    configured("a part without a class", "model: {head: {init_args: {a: 1}}}\n", "head"),
    configured("a part with a number for its class", "model: {pooler: {class_path: 5}}\n", "pooler"),
    configured(
        "a part with a list for its arguments",
        "model: {pooler: {class_path: CLSPooler, init_args: [1]}}\n",
        "pooler",
    ),
    configured("a part of another kind", "model: {pooler: {class_path: InfoNCE}}\n", "InfoNCE"),
    configured("a view that is a number", "model: {views: {positive: [5]}}\n", "views"),
    configured("views that are a list", "model: {views: [DeleteTokens]}\n", "views"),
    configured("objectives that are a list", "model: {objectives: [Contrastive]}\n", "objectives"),
    configured("a task that is a number", "data: {tasks: {a: 5}}\n", "tasks"),
    configured("tasks that are a list", "data: {tasks: [a]}\n", "tasks"),
    configured("a task with an unknown key", "data: {tasks: {a: {train: x.tsv, tran: y.tsv}}}\n", "tran"),
    configured("a callback of no class", "trainer: {callbacks: [{class_path: no.Such}]}\n", "no.Such"),
    configured(
        "a logger of a package that isn't here",
        "trainer: {logger: {class_path: pytorch_lightning.loggers.CometLogger}}\n",
        "comet",
    ),
    configured("a schedule of another library", "model: {schedule: {class_path: torch.nn.Linear}}\n", "Linear"),
)
MALICIOUS = tuple(
    configured(f"subprocess.Popen at {place}", text.replace("CALL", CALL), says)
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
    *over_files(
        "right",
        f"{VIEWS} --config c.yaml --n 1",
        {
            "an empty configuration": ("c.yaml", ""),
            "a configuration of comments": ("c.yaml", "# nothing\n"),
            "a configuration with a mark of UTF-8": ("c.yaml", "\ufeff{}\n"),
            "a configuration with an alias": (
                "c.yaml",
                "model: {views: {anchor: &v [SwapWords], positive: *v}}\n",
                "SwapWords",
            ),
        },
    ),
    right(
        "a configuration after a link",
        f"{VIEWS} --config c.yaml --n 1",
        {"c.yaml": link("d.yaml"), "d.yaml": "model: {pooler: MeanPooler}\n"},
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*NUMBERS, *WORDS, *BROKEN, *WRONG, *MALICIOUS, *OTHERS], ids=attrgetter("name"))
def test_odd_options_and_configurations_are_refused_or_understood(
    case: Case, tmp_path: Path, sound: Sound
) -> None:
    judge(case, tmp_path, sound)
