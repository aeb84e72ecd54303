"""Odd arguments of the commands that build a run: fit, validate, test, predict, views, sweep, ensemble."""

from __future__ import annotations

import json

from hostile.case import Case, answer, right
from hostile.commands import FIT, SWEEP, TABLE, TWO, VIEWS
from hostile.makers import folder

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
# Known when the run starts, which has written its configuration.
_CONFIG, _ARGUMENTS = "runs/version_0/config.yaml", "runs/version_0/hparams.yaml"
_STARTED = tuple(
    Case(f"fit {words}", f"{FIT} {words}", {}, "answer", (says,), may_change=tuple(written))
    for words, says, *written in (
        ("--trainer.precision 16-true", "precision", _CONFIG),
        # Lightning looks at it after it has written the arguments of the module.
        ("--trainer.limit_train_batches 0.0001", "limit_train_batches", _CONFIG, _ARGUMENTS),
        (f"{_CALLBACK}DeviceStatsMonitor --trainer.logger false", "logger", _CONFIG),
    )
)
# Known when the first validation is over.
_STOPPING = Case(
    "fit that stops by a figure that isn't there",
    f"{FIT} --data.validation $pairs {_CALLBACK}EarlyStopping --trainer.callbacks.monitor val/no",
    {},
    "answer",
    ("`val/no` which is not available",),
    may_change=("runs/version_0/",),
)
_UNREAD = tuple(
    answer(
        f"{command} of no batch",
        f"{command} --ckpt_path $checkpoint --trainer.accelerator cpu {options} 0",
        {},
        options.rpartition(".")[2],
    )
    for command, options in (
        ("validate", "--data.validation $pairs --trainer.limit_val_batches"),
        ("test", "--data.test $pairs --trainer.limit_test_batches"),
        ("predict", "--data.predict $texts --trainer.limit_predict_batches"),
    )
)
NUMBERS = (
    *_STARTED,
    _STOPPING,
    *refused("--data.batch_size", "0", "-1", "1", "nan", "1e400", "", "9223372036854775808", "1.5", "[8]"),
    *refused("--data.num_workers", "-1", "1.5", "99999"),
    *refused("--data.eval_batch_size", "0", "-3"),
    *refused("--trainer.max_steps", "0", "nan", "x", "-2"),
    *refused("--trainer.max_epochs", "0", "1.5", "-2"),
    *refused("--trainer.limit_train_batches", "0", "0.0", "-1"),
    *refused("--trainer.log_every_n_steps", "0"),
    *_UNREAD,
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
    answer("fit of nothing", "fit", {}, "model"),
    answer("fit of an unknown recipe", "fit --recipe ../simcse", {}, "recipe"),
    answer("fit of a recipe that is a path", "fit --recipe /etc/passwd", {}, "recipe"),
    answer("fit of a recipe without a name", "fit --recipe", {}, "recipe"),
    answer("fit with a configuration without a name", f"{FIT} --config", {}, "--config"),
    answer("fit with an option twice, the second one wrong", f"{FIT} --data.batch_size 0", {}, "batch_size"),
    answer("fit with a word after its options", f"{FIT} more", {}, "more"),
    answer("fit with a misspelt group", f"{FIT} --tariner.max_steps 1", {}, "trainer"),
    answer("fit with a misspelt option", f"{FIT} --data.bacth_size 1", {}, "batch_size"),
    answer("fit with a misspelt part", f"{FIT} --model.pooler CLSPoolr", {}, "CLSPooler"),
    answer("fit with a part of another kind", f"{FIT} --model.pooler InfoNCE", {}, "InfoNCE"),
    answer("fit with a module's function for a part", f"{FIT} --model.pooler os.system", {}, "os.system"),
    answer(
        "fit with a class of another library for a part",
        f"{FIT} --model.pooler subprocess.Popen",
        {},
        "subprocess.Popen",
    ),
    answer("fit with a part of no module", f"{FIT} --model.pooler no_such_module.Pooler", {}, "no_such_module"),
    answer("fit with a part that is a path", f"{FIT} --model.pooler ../evil.Pooler", {}, "evil"),
    answer("fit with the abstract class of a part", f"{FIT} --model.pooler Pooler", {}, "Pooler"),
    answer("fit with a misspelt argument of a view", _with_view({"rat": 1}), {}, "rate"),
    answer("fit with a view's rate above 1", _with_view({"rate": 7}), {}, "rate"),
    answer(
        "fit with a part in a list without its argument",
        f"{FIT} --model.objectives.contrastive.columns [Queue]",
        {},
        "model.objectives.columns: expected size for Queue, got none; write it under init_args",
    ),
    answer(
        "fit with a part in a list and empty arguments",
        f"{FIT} --model.objectives.contrastive.columns '[{{class_path: Queue, init_args: {{}}}}]'",
        {},
        "model.objectives.columns: expected size for Queue, got none; write it under init_args",
    ),
    answer("fit with views for no role", f"""{FIT} --model.views '{{"other": ["DeleteTokens"]}}'""", {}, "other"),
    answer("fit with YAML that is broken in an option", f"{FIT} --model.views '{{a: ['", {}, "views"),
    answer("fit with texts that aren't there", f"{FIT} --data.train nowhere.txt", {}, "nowhere.txt"),
    answer("fit with pairs that aren't there", f"{FIT} --data.validation nowhere.tsv", {}, "nowhere.tsv"),
    answer("fit with an empty text file", f"{FIT} --data.train in.txt", {"in.txt": b""}, "in.txt"),
    answer("fit with a folder without texts", f"{FIT} --data.train in", {"in": folder}, "in: expected"),
    answer("fit with fewer texts than a batch", f"{FIT} --data.train in.txt", {"in.txt": TWO}, "batch_size"),
    answer("fit with texts for validation", f"{FIT} --data.validation $texts", {}, "texts.txt"),
    answer("fit with one file twice for validation", f"{FIT} --data.validation '[$pairs, $pairs]'", {}, "pairs"),
    answer("fit from a checkpoint that isn't there", f"{FIT} --ckpt_path no.ckpt", {}, "no.ckpt"),
    answer("fit from a folder for a checkpoint", f"{FIT} --ckpt_path d", {"d": folder}, "d"),
    answer("fit from a text for a checkpoint", f"{FIT} --ckpt_path in.ckpt", {"in.ckpt": TWO}, "in.ckpt"),
    answer("fit from the weights of nothing", f"{FIT} --init_from nowhere", {}, "nowhere"),
    answer("fit from the weights of a text", f"{FIT} --init_from in.ckpt", {"in.ckpt": TWO}, "in.ckpt"),
    answer(
        "fit from weights and from a checkpoint",
        f"{FIT} --init_from $run --ckpt_path $checkpoint",
        {},
        "--init_from",
    ),
    answer("fit with an objective of no task", f"{FIT} --model.objectives.contrastive.task other", {}, "other"),
    answer("fit with a weight for no objective", f"""{FIT} --model.weights '{{"other": 1}}'""", {}, "other"),
    answer(
        "fit with a weight that is no number",
        f"""{FIT} --model.weights '{{"contrastive": .nan}}'""",
        {},
        "weights",
    ),
    answer("fit with a task's file that isn't there", f"{FIT} --data.tasks.a.train nowhere.tsv", {}, "tasks"),
    answer("fit with a task of an empty name", f"{FIT} --data.tasks..train $texts", {}, "tasks"),
    answer("fit that chooses by an odd mode", f"{FIT} --checkpoint.mode most", {}, "mode"),
    answer("validate without a checkpoint", "validate --data.validation $pairs", {}, "model.encoder"),
    answer("test without a file", "test --ckpt_path $checkpoint --trainer.accelerator cpu", {}, "--data.test"),
    answer(
        "predict without a file",
        "predict --ckpt_path $checkpoint --trainer.accelerator cpu",
        {},
        "--data.predict",
    ),
    answer(
        "predict of a file that isn't there",
        "predict --ckpt_path $checkpoint --data.predict no.txt",
        {},
        "no.txt",
    ),
    answer(
        "validate on a file of NULs",
        "validate --ckpt_path $checkpoint --data.validation in.tsv",
        {"in.tsv": bytes(50)},
        "in.tsv",
    ),
    answer(
        "validate with --init_from",
        "validate --init_from $checkpoint --data.validation $pairs",
        {},
        "--init_from",
    ),
    answer(
        "validate with a misspelt option",
        "validate --ckpt_path $checkpoint --data.validaton $pairs",
        {},
        "validation",
    ),
    answer(
        "test of the last checkpoint of nothing", "test --ckpt_path last --data.test $pairs", {}, "--ckpt_path"
    ),
    answer(
        "views of no texts", "views --recipe simcse --model.encoder.model_name_or_path $bert", {}, "--data.train"
    ),
    answer("views of 0 rows", f"{VIEWS} --n 0", {}, "--n"),
    answer("views of -1 rows", f"{VIEWS} --n -1", {}, "--n"),
    answer("views of texts that aren't there", f"{VIEWS} --data.train no.txt", {}, "no.txt"),
    answer("views with a misspelt option", f"{VIEWS} --data.trian $texts", {}, "train"),
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
    answer("a sweep over a key without values", f"{SWEEP} --vary model.pooler=", {}, "model.pooler"),
    answer("a sweep over a word", f"{SWEEP} --vary pooler", {}, "--vary"),
    answer("a sweep over a value twice", f"{SWEEP} --vary model.pooler=CLSPooler,CLSPooler", {}, "model.pooler"),
    answer("a sweep over a misspelt class", f"{SWEEP} --vary model.pooler=CLSPoolr,MeanPooler", {}, "CLSPooler"),
    answer("a sweep over a misspelt key", f"{SWEEP} --vary model.poler=CLSPooler,MeanPooler", {}, "pooler"),
    answer(
        "a sweep over a class of another library",
        f"{SWEEP} --vary 'model.pooler=subprocess.Popen(args=ls)'",
        {},
        "subprocess.Popen",
    ),
    answer("a sweep over a file that isn't there", f"{SWEEP} --grid no.yaml", {}, "no.yaml"),
    answer(
        "a sweep over a file of broken YAML",
        f"{SWEEP} --grid in.yaml",
        {"in.yaml": "{a: ["},
        "in.yaml",
    ),
    answer(
        "a sweep over code",
        f"{SWEEP} --vary \"model.pooler=MeanPooler(a=__import__('os').getcwd())\"",
        {},
        "no option",
    ),
    answer(
        "a sweep over 1,000 brackets", f"{SWEEP} --vary 'model.pooler=A{'(a=B' * 1000}{')' * 1000}'", {}, "--vary"
    ),
    answer("a sweep over an open bracket", f"{SWEEP} --vary 'model.pooler=A(a=1'", {}, "--vary"),
    answer("a sweep under no seed", f"{SWEEP} --vary model.pooler=CLSPooler,MeanPooler --seeds 0", {}, "--seeds"),
    answer(
        "a sweep under a seed of -1",
        f"{SWEEP} --vary model.pooler=CLSPooler,MeanPooler --seeds 1 -1",
        {},
        "--seeds",
    ),
    answer(
        "a sweep under one seed twice",
        f"{SWEEP} --vary model.pooler=CLSPooler,MeanPooler --seeds 4 4",
        {},
        "--seeds",
    ),
    answer(
        "a sweep under 10^12 seeds",
        f"{SWEEP} --vary model.pooler=CLSPooler,MeanPooler --seeds 1000000000000",
        {},
        "--seeds",
    ),
    answer(
        "a sweep that sets the seed itself",
        f"{SWEEP} --vary {RATED} --seed_everything 3",
        {},
        "--seed_everything",
    ),
    answer("a sweep by a figure of the training", f"{SWEEP} --vary {RATED} --select train/loss", {}, "--select"),
    answer(
        "a sweep into a file", f"{SWEEP} --vary {RATED} --output f".replace("--dry_run ", ""), {"f": "x"}, "f"
    ),
    answer("an ensemble of nothing", "ensemble out --runs nowhere", {}, "nowhere"),
    answer("an ensemble of no runs", "ensemble out --runs", {}, "--runs"),
    answer("an ensemble of a run without tasks", "ensemble out --runs $run", {}, "val/TASK"),
    answer("an ensemble in a folder that holds something", "ensemble out --runs $run", {"out/a": "x"}, "out"),
    answer("an ensemble in a file", "ensemble out --runs $run", {"out": "x"}, "out"),
    answer("an ensemble under a file", "ensemble f/out --runs $task_run", {"f": "x"}, "f"),
    answer("an ensemble of a text", "ensemble out --runs in.ckpt", {"in.ckpt": TABLE}, "in.ckpt"),
    answer("an ensemble of an empty folder", "ensemble out --runs r", {"r": folder}, "r"),
)

CASES = (*NUMBERS, *WORDS)
