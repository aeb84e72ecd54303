"""Tests of the end of a run: limits on its length, the kept checkpoint, and the last lines of output."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
import tiny
import torch
from covering import rest_slow
from shells import Shell

from contrastive_text import Run
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.metrics.verdict import verdicts

VALIDATED = "FIT TINY --data.validation PAIRS"


def kept_step(folder: str = "runs/version_0") -> int:
    return read_checkpoint(best_checkpoint(folder, "test")).step


# Epochs have five steps.
BOUNDS = [
    ("--trainer.max_steps 8", "8 steps, seed"),
    ("--epochs 2", "10 steps, seed"),
    ("--trainer.max_steps 8 --trainer.max_epochs 1", "5 steps (trainer.max_epochs 1 ends the run,"),
    ("--trainer.max_epochs 2 --trainer.max_steps 4", "4 steps (trainer.max_steps 4 ends the run,"),
    ("--trainer.max_time 01:00:00:00", "5 steps (trainer.max_epochs 1 or trainer.max_time ends the run)"),
    ("--config bound.yaml", "8 steps, seed"),
    ("--config bound.yaml --epochs 1", "5 steps, seed"),
]


@pytest.mark.parametrize("options, said", rest_slow(BOUNDS))
def test_the_bound_that_is_given_replaces_the_recipes_and_two_are_both_shown(
    shell: Shell, here: Path, options: str, said: str
) -> None:
    (here / "bound.yaml").write_text("trainer: {max_steps: 8}\n")
    assert said in shell(f"FIT TINY {options}").out
    assert kept_step() == int(said.split()[0])


@pytest.mark.slow
def test_a_bound_from_python_replaces_the_recipes(files: dict[str, str], tmp_path: Path) -> None:
    for bounds, steps in (({"max_steps": 8}, 8), ({"max_steps": 8, "max_epochs": 1}, 5)):
        options = {"num_workers": 0, "accelerator": "cpu", "enable_progress_bar": False, **bounds}
        options["default_root_dir"] = str(tmp_path)
        run = Run.from_recipe("simcse", files["bert"], train=files["texts"], batch_size=8, **options)
        run.fit()
        assert run.trainer.global_step == steps


@pytest.mark.slow
def test_a_finished_run_trains_on_as_the_page_says(shell: Shell) -> None:
    """The commands of "A longer run", with a bound of either kind."""
    shell("FIT TINY --trainer.max_steps 6")
    given = "fit --config runs/version_0/config.yaml --ckpt_path runs/version_0/checkpoints/step=6.ckpt"
    shell(f"{given} --trainer.max_steps 9")
    shell(f"{given} --trainer.max_epochs 3")
    assert [kept_step(f"runs/version_{number}") for number in (1, 2)] == [9, 15]


UNSCORED = [
    ("--trainer.limit_val_batches 0", "trainer.limit_val_batches is 0"),
    ("--trainer.check_val_every_n_epoch 9", "no validation was reached"),
    ("--trainer.val_check_interval 01:00:00:00", "no validation was reached"),
    ("--data.validation null", "there are no validation data"),
]


@pytest.mark.parametrize("options, why", rest_slow(UNSCORED, quick=0))
def test_a_run_without_a_score_keeps_its_last_checkpoint_and_says_why(
    shell: Shell, options: str, why: str
) -> None:
    said = shell(f"{VALIDATED} {options}").out
    kept = "runs/version_0/checkpoints/step=5.ckpt"
    assert f"No score chose a checkpoint, because {why}: the last one is kept, {kept}" in said
    assert kept_step() == 5


@pytest.mark.slow
def test_a_last_checkpoint_without_a_score_is_gone_on_with(shell: Shell) -> None:
    words = f"{VALIDATED} --trainer.limit_val_batches 0 --model.schedule ConstantSchedule --trainer.max_steps"
    for rest in ("8", "3", "8 --ckpt_path runs/version_1/checkpoints/step=3.ckpt"):
        shell(f"{words} {rest}")
    once, again = (read_checkpoint(best_checkpoint(f"runs/version_{n}", "test")).weights for n in (0, 2))
    assert all(torch.equal(weight, again[name]) for name, weight in once.items())


LABELS = {
    "val/spearman": "data: {validation: pairs.tsv}",
    "val/contrastive/loss": "data: {task: {held_out: held.txt}}",
    "val/ndcg@10": "data: {retrieval: {files: [search.tsv]}}",
    "val/overall": """
model: {objectives: {alike: {class_path: PairRegression, init_args: {task: scored}}}}
data: {tasks: {scored: {train: pairs.tsv, validation: pairs.tsv, pairing: Given}}}
""",
}


@pytest.mark.parametrize("score", rest_slow(LABELS, quick=0))
def test_a_best_that_is_worse_than_the_start_is_said_at_the_end_and_on_the_page(
    shell: Shell, here: Path, score: str
) -> None:
    """Whichever way the score went: with one of the modes the best is worse than the start."""
    tiny.write_pairs(here / "pairs.tsv")
    tiny.write_texts(here / "held.txt")
    pairs = [f"{tiny.TEXTS[i]}\t{tiny.TEXTS[i + 8]}" for i in range(24)]
    (here / "search.tsv").write_text("\n".join(["query\tpositive", *pairs]) + "\n")
    (here / "scored.yaml").write_text(LABELS[score])
    words = shell.words("FIT TINY --config scored.yaml --model.optimizer.lr 0.3")
    if score == "val/overall":
        del words[(train := words.index("--data.train")) : train + 2]
    said = []
    for number, mode in enumerate(("max", "min")):
        out = shell([*words, "--checkpoint.monitor", score, "--checkpoint.mode", mode]).out
        lines = verdicts(read_checkpoint(best_checkpoint(f"runs/version_{number}", "test")).best)
        verdict = next(line for line in lines if line.name == score)
        said.append(verdict)
        assert f"{verdict}\n" in out and out.index(str(verdict)) < out.index("Model saved to")
        assert f"before the first step: {score} " in out
        assert ("Try a lower learning rate" in out) == any(line.is_worse for line in lines)
    first, second = said
    assert first.after - first.before == pytest.approx(second.after - second.before)
    assert first.change == -second.change and (first.difference is None) == (score == "val/overall")
    if score != "val/spearman":  # the page takes longer than the runs
        return
    shell("report runs/version_0")
    (page,) = (here / "runs/version_0").rglob("*.html")
    content = html.unescape(page.read_text())
    assert f"{first.answer}: " in content and f"{first.scores()} {first.interval}" in content


@pytest.mark.slow
def test_validation_and_evaluate_give_one_score(shell: Shell, here: Path) -> None:
    """To the last digit: ranks of float64 cosines, which no order of sums changes here."""
    shell(f"{VALIDATED} --trainer.max_steps 1")
    best = read_checkpoint(best_checkpoint("runs/version_0", "test")).best
    shell("evaluate runs/version_0/model PAIRS --format json --output scores.json")
    read = json.loads((here / "scores.json").read_text())
    score = {name: each["models"]["runs/version_0/model"]["average"] for name, each in read.items()}
    assert score["spearman"] == best.figures["val/spearman"]
    assert score["pearson"] == pytest.approx(best.figures["val/pearson"], rel=1e-5)  # vectors are float32


ORDER = "{order: {class_path: PairRegression, init_args: {loss: CoSENT, low: 0, high: 5}}}"
GIVEN = "data: {task: {pairing: Given}}\n"
DEGENERATE = {
    "equal texts": ("text", ["the same text"] * 40, "{}", "contrastive has loss 0"),
    "one anchor": (
        "anchor\tpositive",
        [f"a bird\t{text}" for text in tiny.TEXTS],
        GIVEN,
        "contrastive has loss 0",
    ),
    "equal scores": (
        "sentence1\tsentence2\tscore",
        [f"{text}\ta dog\t3" for text in tiny.TEXTS],
        f"model: {{objectives: {ORDER}}}\n{GIVEN}",
        "order has loss 0",
    ),
}


@pytest.mark.parametrize(
    ("name", "steps"), rest_slow([("equal texts", 4), ("one anchor", 12), ("equal scores", 12)], quick=0)
)
def test_a_run_whose_losses_are_constant_is_warned_of_once(
    shell: Shell, here: Path, name: str, steps: int
) -> None:
    header, rows, config, said = DEGENERATE[name]
    (here / "rows.tsv").write_text("\n".join([header, *rows]) + "\n")
    (here / "rows.yaml").write_text(config)
    with pytest.warns(UserWarning, match=f"{said} in each of the first {min(steps, 10)} batches") as warned:
        shell(f"FIT TINY --config rows.yaml --data.train rows.tsv --trainer.max_steps {steps}")
    assert len([each for each in warned if "in each of the first" in str(each.message)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--data.validation PAIRS --lr 1e-5", "Held out at step 5, the space has not collapsed (mean_cosine"),
        (
            "--data.validation PAIRS --lr 0.9",
            "Held out at step 5, the space has collapsed: two texts have cosine 1",
        ),
        ("--lr 1e-5", "Contrastive: the space has not collapsed at step 5: positives have cosine"),
    ],
)
def test_a_short_run_ends_with_a_verdict_on_its_space(shell: Shell, options: str, said: str) -> None:
    assert said in shell(f"FIT TINY {options}").out
