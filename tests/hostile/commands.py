"""What the hostile cases share: the commands over a file, and small sound contents."""

from __future__ import annotations

from hostile.case import Case, answer

TWO = "a small dog\nthe cold river\n"
HEAD = "sentence1\tsentence2\tscore\n"
TABLE = HEAD + "a small dog\tthe cold river\t1\nthe man\tan old bird\t3\na dog\ta tree\t2\n"

_SMALL = (
    "--recipe simcse --model.encoder.model_name_or_path $bert --data.train $texts --data.batch_size 8 "
    "--data.num_workers 0 --trainer.accelerator cpu --trainer.enable_progress_bar false"
)
FIT = f"fit {_SMALL} --trainer.max_steps 1"
VIEWS = f"views {_SMALL}"
SWEPT = f"sweep {_SMALL} --trainer.max_steps 1 --data.validation $pairs --seeds 1"
SWEEP = f"{SWEPT} --dry_run"


def embedded(name: str, *options: str) -> str:
    """Returns the command that embeds a file."""
    return " ".join(["embed", name, "v.npy --model $bert --device cpu", *options])


def texts_file(name: str, content: str | bytes, *says: str) -> Case:
    """Returns a case of a file of texts that is refused."""
    return answer(name, embedded("in.txt"), {"in.txt": content}, "in.txt", *says)
