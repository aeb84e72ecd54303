"""Odd arguments and outputs of the commands; tests/cli has the plainly wrong ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import pytest
from hostile.cases import (
    EMBED_TEXTS,
    FIT,
    SWEEP,
    TWO,
    VIEWS,
    Case,
    answer,
    counted,
    fifo,
    folder,
    link,
    refusals,
    right,
    vectors,
)
from hostile.judging import judge
from hostile.sound import Sound

SEARCH = "search $texts 'an old bird' --model $bert --device cpu"
DUPLICATES = "duplicates $texts d.tsv --model $bert --device cpu"
DIAGNOSE = "diagnose $bert $texts --device cpu"
COMPARE = "compare $bert $bert --data $pairs --resamples 10 --device cpu"
POSTPROCESS = "postprocess $bert $texts out --device cpu"
REPORT = "report $run --output page"
LEFT = "--ckpt_path $checkpoint --trainer.accelerator cpu"
ONE_REMOVED = "postprocess $bert in.txt out --remove_components 1"
VIEWS_OF_MARKUP = f"{VIEWS} --data.train './[red]x.txt' --n 2"
CALLBACK = "--trainer.callbacks=pytorch_lightning.callbacks."
CONFIG, ARGUMENTS = "runs/version_0/config.yaml", "runs/version_0/hparams.yaml"
EIGHT = "".join(f"a dog and {i}\n" for i in range(8))
MARKUP = "x[/bold]y\n[red]\n\x1b]0;t\x07\n\x1b[2J\n\\[a]\n[b\n]c[\nd\n"
ONE_VIEW = "model.views.positive=DeleteTokens(rate=0.1)"

# Command -> option -> values that it must refuse by the option's name.
VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    EMBED_TEXTS: {
        "--batch_size": ("0", "1.5", "nan", "", "1e3"),
        "--block_size": ("-1", "inf"),
        "--truncate_dim": ("0", "1e400"),
        "--device": ("nope", "cpu,,cpu", ":", "cpu:-1"),
        "--dtype": ("float8", ""),
        "--precision": ("",),
    },
    SEARCH: {"--top_k": ("-1", "nan"), "--batch_size": ("0",)},
    DUPLICATES: {"--threshold": ("nan", "-inf", "2", "0", "1e400", "")},
    DIAGNOSE: {"--limit": ("0", "1", "1e3"), "--batch_size": ("-1",), "--seed": ("x", "1.5")},
    COMPARE: {"--resamples": ("-1", "9" * 20), "--batch_size": ("0",), "--seed": ("1.5",)},
    "evaluate $bert $pairs --device cpu": {"--batch_size": ("0", "x"), "--device": ("tpu9", "cuda:-5")},
    POSTPROCESS: {"--remove_components": ("0", "17", "nan")},
    f"{POSTPROCESS} --whiten": {"--features": ("0", "9" * 20), "--batch_size": ("0",)},
    "onnx $bert out": {"--opset": ("x", "-1", "99")},
    REPORT: {"--limit": ("0", "x"), "--device": ("nope",)},
    f"validate --data.validation $pairs {LEFT}": {"--trainer.limit_val_batches": ("0",)},
    f"test --data.test $pairs {LEFT}": {"--trainer.limit_test_batches": ("0",)},
    f"predict --data.predict $texts {LEFT}": {"--trainer.limit_predict_batches": ("0",)},
    VIEWS: {"--n": ("0", "-1")},
    FIT: {
        "--data.batch_size": ("-1", "nan", "1e400", "", "9223372036854775808", "[8]"),
        "--data.num_workers": ("-1", "1.5"),
        "--data.eval_batch_size": ("0",),
        "--trainer.max_steps": ("0", "nan"),
        "--trainer.max_epochs": ("0", "1.5", "-2"),
        "--trainer.limit_train_batches": ("0", "0.0", "-1"),
        "--trainer.log_every_n_steps": ("0",),
        "--trainer.devices": ("0", "-2", "x", "[7]"),
        "--trainer.accelerator": ("",),
        "--trainer.precision": ("bf17",),
        "--trainer.accumulate_grad_batches": ("0",),
        "--trainer.gradient_clip_val": ("-1", "x"),
        "--trainer.val_check_interval": ("0", "0.0", "nan", "1.5"),
        "--seed_everything": ("-1", "18446744073709551616"),
        "--chunk": ("0", "1.5"),
        "--model.optimizer.lr": ("nan", "inf", "-1", "1e400"),
        "--model.optimizer.weight_decay": ("nan", "-1"),
        "--model.optimizer.eps": ("inf", "-1"),
        "--model.optimizer.betas": ("[0.9]", "[0.9, 1.0]", "x"),
        "--model.objectives.contrastive.loss.temperature": ("nan", "inf"),
        "--model.objectives.contrastive.columns": ("-1", "[{class_path: Queue, init_args: {size: 0}}]"),
        "--model.encoder.max_length": ("0", "33", "2"),
        "--model.encoder.dropout": ("nan", "1"),
        "--model.inference.max_length": ("-1", "2"),
        "--model.inference.similarity_fn_name": ("x",),
        "--model.chunk_tokens": ("0",),
        "--checkpoint.mode": ("most",),
    },
}


def out_of_range() -> Iterator[Case]:
    """Yields a case for each value of an option."""
    for command, options in VALUES.items():
        for option, values in options.items():
            for value in values:
                words = f"{option}='{value}'"
                says = option.rpartition(".")[2].lstrip("-").removeprefix("remove_")
                yield answer(f"{command.partition(' ')[0]} {words}", f"{command} {words}", {}, says)


WORDS = (
    *refusals(
        "",
        {
            "Embed": "expected one of",
            "''": "expected one of",
            "--recipe simcse": "expected one of",
            "../fit": "expected one of",
            "main": "expected one of",
            "'fit '": "did you mean fit?",
            "compare": "required",
            "fit": "model",
            "fit --recipe ../simcse": "recipe",
            "fit --recipe /etc/passwd": "recipe",
            "fit --recipe": "recipe",
            "embed $texts v.npy --model": "--model",
            "embed '' v.npy --model $bert": "expected",
            "embed $texts v.npy --model ''": "model",
            "embed $texts '' --model $bert": "expected",
            "embed $texts v.npy --model $texts": "texts.txt",
            "embed $texts v.npy --model a/b/c/d": "a/b/c/d",
            "embed $texts v.npy --model ../../../../../../../../../../nowhere": "nowhere",
            "embed hub: v.npy --model $bert": "hub:",
            "search $texts '' --model $bert": "query",
            "search $texts '\u200b' --model $bert": "query",
            "evaluate $bert $pairs --suite sts --data .": "files",
            "evaluate $bert --suite transfer --data $pairs": "pairs.tsv",
            "evaluate $bert $pairs --columns =": "columns",
            "validate --data.validation $pairs": "model.encoder",
            "validate --init_from $checkpoint --data.validation $pairs": "--init_from",
            "test --ckpt_path last --data.test $pairs": "--ckpt_path",
            "predict --ckpt_path $checkpoint --data.predict no.txt": "no.txt",
            "views --recipe simcse --model.encoder.model_name_or_path $bert": "--data.train",
            "ensemble out --runs nowhere": "nowhere",
            "ensemble out --runs": "--runs",
            "ensemble out --runs $run": "val/TASK",
            "report $run $run --output page": "different runs",
        },
    ),
    *refusals(
        EMBED_TEXTS,
        {
            " more.txt": "more.txt",
            " --batch 3": "--batch_size",
            " -batch_size 3": "batch_size",
            " --threshold 0.5": "--threshold",
            " --precision int8 --ranges r.npy": "r.npy",
        },
    ),
    *refusals(
        FIT,
        {
            " --config": "--config",
            " --data.batch_size 0": "batch_size",  # a second time
            " more": "more",
            " --model.pooler os.system": "os.system",
            " --model.pooler subprocess.Popen": "subprocess.Popen",
            " --model.pooler no_such_module.Pooler": "no_such_module",
            " --model.pooler ../evil.Pooler": "evil",
            " --model.pooler Pooler": "Pooler",
            " --model.views '{a: ['": "views",
            " --model.objectives.contrastive.columns '[Queue]'": "expected the argument size of Queue",
            " --model.objectives.contrastive.columns '[{class_path: Queue, init_args: {}}]'": "size of Queue",
            " --model.objectives.contrastive.task other": "other",
            " --model.weights '{\"contrastive\": .nan}'": "weights",
            " --data.train in": "in: expected",
            " --data.validation nowhere.tsv": "nowhere.tsv",
            " --data.validation $texts": "texts.txt",
            " --data.validation '[$pairs, $pairs]'": "pairs",
            " --data.tasks.a.train nowhere.tsv": "tasks",
            " --data.tasks..train $texts": "tasks",
            " --init_from $run --ckpt_path $checkpoint": "--init_from",
            " --ckpt_path in": "in",
        },
        {"in": folder},
    ),
    *refusals(
        SWEEP,
        {
            " --vary model.pooler=": "model.pooler",
            " --vary pooler": "--vary",
            " --vary model.pooler=CLSPooler,CLSPooler": "model.pooler",
            " --vary model.pooler=CLSPoolr,MeanPooler": "CLSPooler",
            " --vary 'model.pooler=subprocess.Popen(args=ls)'": "subprocess.Popen",
            " --vary \"model.pooler=MeanPooler(a=__import__('os').getcwd())\"": "no option",
            " --vary 'model.pooler=A(a=1'": "--vary",
            f" --vary {ONE_VIEW} --seeds 1 -1": "--seeds",
            f" --vary {ONE_VIEW} --seeds 1000000000000": "--seeds",
            " --grid no.yaml": "no.yaml",
            " --grid list.yaml": "list.yaml",
            " --grid broken.yaml": "broken.yaml",
        },
        {"list.yaml": "[lr]\n", "broken.yaml": "{a: ["},
    ),
    answer("1,000 brackets", f"{SWEEP} --vary 'model.pooler=A{'(a=B' * 1000}{')' * 1000}'", {}, "--vary"),
    answer("one text many times to diagnose", "diagnose $bert in.txt", {"in.txt": "a dog\n" * 50}, "in.txt"),
    answer("one text many times to whiten", ONE_REMOVED, {"in.txt": "a dog\n" * 50}, "in.txt"),
    answer("an ensemble under a file", "ensemble f/out --runs $task_run", {"f": "x"}, "f"),
    answer("an ensemble of an empty folder", "ensemble out --runs r", {"r": folder}, "r"),
    answer("a report of a file", "report in.txt", {"in.txt": "x"}, "in.txt"),
    answer("a suite over an empty folder", "evaluate $bert --suite sts --data d", {"d": folder}, "d"),
    *(
        answer(f"known when the run has begun: {words}", f"{FIT} {words}", {}, says, may_change=tuple(written))
        for words, says, *written in (
            ("--trainer.precision 16-true", "precision", CONFIG),
            # Lightning looks at it after it has written the arguments of the module.
            ("--trainer.limit_train_batches 0.0001", "limit_train_batches", CONFIG, ARGUMENTS),
            (f"{CALLBACK}DeviceStatsMonitor --trainer.logger false", "logger", CONFIG),
            (
                f"--data.validation $pairs {CALLBACK}EarlyStopping --trainer.callbacks.monitor val/no",
                "`val/no` which is not available",
                "runs/version_0/",
            ),
        )
    ),
)
ODD_AND_RIGHT = (
    *(
        right(f"{command.partition(' ')[0]} {words}", f"{command} {words}", {}, *says, check=check)
        for command, words, check, *says in (
            (EMBED_TEXTS, "--batch_size 1000000000000", vectors(40)),
            (EMBED_TEXTS, "--batch_size ' 5'", vectors(40)),
            (EMBED_TEXTS, "--block_size 13", vectors(40)),
            (EMBED_TEXTS, "--truncate_dim 1", vectors(40, width=1)),
            (SEARCH, f"--top_k {'9' * 30}", None, "line 40"),
            (DUPLICATES, "--threshold 1e-9", None, "780 pairs"),
            (DUPLICATES, "--threshold 1", None, "0 pairs"),
            (DIAGNOSE, f"--seed {'9' * 40}", None, "isotropy"),
            (DIAGNOSE, "--limit 1000000000000", None, "40 different texts"),
            (COMPARE, "--seed -1", None, "pairs.tsv"),
            ("search --model $bert", "-- $texts '--model of a --query'", None, "--model of a --query", "line "),
            ("search $texts -", "--model $bert", None, "line "),
        )
    ),
    counted("a query that is cut", f"search $texts --model $bert '{'bird ' * 100}'", {}, "1 of 1 texts exceed"),
    right(
        "views of more rows than there are",
        f"{VIEWS} --data.train in.txt --n 1000000",
        {"in.txt": EIGHT},
        "a dog",
    ),
    right("views of texts with markup", f"{VIEWS} --data.train in.txt --n 20", {"in.txt": MARKUP}),
    right("views of a file whose name is markup", VIEWS_OF_MARKUP, {"[red]x.txt": TWO * 8}, "[red]x.txt"),
)

# Command with {} for what it writes -> the name of that; tests/cli has every command and every input.
PIPES = {
    "embed $texts {} --model $bert": "v.npy",
    "duplicates $texts d.tsv --keep {} --model $bert": "k.txt",
    "diagnose $bert $texts --output {}": "d",
    "evaluate $bert $pairs --cache {}": "c",
    f"{FIT} --checkpoint.dirpath {{}}": "c",
}
THROUGH_LINKS = ("embed in.txt v.npy --model $bert",)
NO_PLACE = (
    *(
        answer(f"{words.partition(' ')[0]} into a pipe", words.replace("{}", name), {name: fifo}, name)
        for words, name in PIPES.items()
    ),
    *(answer(words, words, {"in.txt": TWO, "v.npy": link("in.txt")}, "v.npy") for words in THROUGH_LINKS),
    answer("embed to /dev/full", "embed $texts /dev/full --model $bert", {}, "/dev/full"),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*out_of_range(), *WORDS, *ODD_AND_RIGHT, *NO_PLACE], ids=attrgetter("name"))
def test_odd_arguments_and_outputs_are_refused_or_understood(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
