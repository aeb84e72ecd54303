"""examples/embed_ray.py in a process of its own, in which a process is killed once, in the middle of a file.

    python ray_job.py MARK WHO IN OUT --model MODEL [options of the example]

WHO is ``worker`` or ``job``. MARK is the file that says that it has happened. Where the job comes to its end, the
same rows go through a pipeline of Ray Data too, into the folder pipeline beside OUT.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path

import ray

from contrastive_text.inference import BatchEncoder

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "embed_ray.py"))
MARK, WHO, *WORDS = sys.argv[1:]
JOB = os.getpid()


class Dying(EXAMPLE["FileEncoder"]):  # type: ignore[misc]  # a class of a script
    """Kills a process in the middle of the second file that it encodes."""

    rows = 100
    calls = 0

    def loaded(self):  # type: ignore[no-untyped-def]  # as the script's
        encode = super().loaded()

        def counted(table):  # type: ignore[no-untyped-def]  # as the script's
            self.calls += 1
            if self.calls == 9 and not Path(MARK).exists():  # a file is one of its schema and five of rows
                Path(MARK).touch()
                os.kill(os.getpid() if WHO == "worker" else JOB, signal.SIGKILL)
            if WHO == "job" and Path(MARK).exists():
                time.sleep(60)  # until it is ended too
            return encode(table)

        counted.model = encode.model  # type: ignore[attr-defined]  # the script reads it off what it calls
        return counted


def pipeline(source: str, target: Path, model: str) -> None:
    """Encodes as docs/shards.md has it for a pipeline of one's own."""
    vectors = ray.data.read_parquet(source).map_batches(
        BatchEncoder,
        fn_constructor_kwargs={"model": model, "column": "text"},
        batch_format="pyarrow",
        batch_size=4096,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    vectors.write_parquet(str(target))


def main(attempts: int = 5) -> int:
    """Runs the example, again where Ray gave up its own start after 30 seconds, as on a busy machine."""
    try:
        return EXAMPLE["main"](WORDS, Dying)
    except Exception as error:
        if attempts == 1 or "timed out during startup" not in str(error):
            raise
    return main(attempts - 1)


if __name__ == "__main__":
    if status := main():
        sys.exit(status)
    pipeline(WORDS[0], Path(WORDS[1]).with_name("pipeline"), WORDS[3])
