"""The recipes of the CS224N system: heads that are shared, losses, and the order of its steps."""

from __future__ import annotations

import math
import re

import pytest
from covering import rest_slow
from jsonargparse import ArgumentParser
from recipe_options import built, first_and_second_layers

from contrastive_text.core.config.specs import describe
from contrastive_text.data.mixture import Mixture, TaskSize
from contrastive_text.losses import CosineMSE
from contrastive_text.objectives import BilinearScorer, PairLabels
from contrastive_text.poolers import CLSPooler
from contrastive_text.recipes import recipe_names
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training import ConstantSchedule

MULTI_TASK = [
    name
    for name in recipe_names()
    if name.startswith("cs224n") and not re.search("pretrain|fusion|vanilla|no_heads", name)
]


@pytest.mark.parametrize("name", rest_slow(MULTI_TASK))
def test_m8_heads_share_what_the_recipe_says(name: str, bert: str) -> None:
    heads = first_and_second_layers(built(name, bert))
    expected = {"cs224n/separate_heads": [False, False], "cs224n/shared_head": [True, True]}
    pairs = zip(heads["paraphrase"], heads["similarity"], strict=True)
    assert [one is other for one, other in pairs] == expected.get(name, [True, False])
    others = {*heads["paraphrase"], *heads["similarity"]}
    assert not others & {*heads["sentiment"]}


@pytest.mark.parametrize("name", rest_slow(MULTI_TASK, quick=2))
def test_a_multi_task_recipe_has_the_report_s_heads_and_losses(name: str, bert: str) -> None:
    module = built(name, bert)
    sentiment, paraphrase, similarity = module.objectives.values()
    assert [part.task for part in module.objectives.values()] == ["sentiment", "paraphrase", "similarity"]
    assert sentiment.head.out_features == sentiment.classes == 5
    assert {part.head.dropout for part in module.objectives.values()} == {0.3}
    assert isinstance(paraphrase.scorer, BilinearScorer) and paraphrase.classes == 2
    assert isinstance(similarity.loss, CosineMSE) and (similarity.low, similarity.high) == (0, 5)
    combine = "PCGrad(scope='shared', reduction='sum', seed=42)" if name == "cs224n/pcgrad" else None
    assert describe(module.combine) == (combine or "WeightedSum(reduction='mean')")
    assert (module.optimizer.lr, type(module.schedule)) == (1e-5, ConstantSchedule)
    assert isinstance(module.pooler, CLSPooler)


def test_m10_m11_m13_the_steps_of_an_epoch() -> None:
    sizes = {
        "sentiment": TaskSize(8544, 16),
        "paraphrase": TaskSize(141506, 16),
        "similarity": TaskSize(6041, 16),
    }
    average, batches, epochs = (
        mixture_of(name).steps(sizes, drop_last=read_recipe(name)["data"]["drop_last"])
        for name in ("cs224n/multitask_average", "cs224n/batch_round_robin", "cs224n/epoch_round_robin")
    )
    assert len(average) == 378 == math.ceil(6041 / read_recipe("cs224n")["data"]["batch_size"])
    assert all(list(step.parts) == list(sizes) for step in average)
    assert [list(step.parts) for step in batches] == [[task] for _ in range(378) for task in sizes]
    turns = [task for task, size in sizes.items() for _ in range(math.ceil(size.rows / 16))]
    assert [list(step.parts) for step in epochs] == [[task] for task in turns]
    fusion = mixture_of("cs224n/fusion").steps({"sentiment": TaskSize(32, 16)}, drop_last=False)
    assert [step.objectives for step in fusion] == [("sentiment",), ("contrastive",)] * 2
    assert fusion[0].parts == fusion[1].parts


def mixture_of(name: str) -> Mixture:
    """A recipe's mixture."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixture", type=Mixture)
    mixture: Mixture = parser.instantiate(
        parser.parse_object({"mixture": read_recipe(name)["data"]["mixture"]})
    ).mixture
    return mixture


@pytest.mark.slow
def test_m9_m14_pretraining_on_three_sets_signs_labeled_pairs_and_throws_its_one_head_away(
    bert: str,
) -> None:
    module = built("cs224n/pretrain_3sets", bert)
    parts = module.objective_parts()
    assert {part.loss.temperature for part in parts.values()} == {0.05}
    assert {name: describe(found) for name, part in parts.items() if (found := part.part(PairLabels))} == {
        "paraphrase": "SignedPairs(weight=1.0, bound=None)"
    }
    one, other, third = first_and_second_layers(module).values()
    assert all(a is b is c for a, b, c in zip(one, other, third, strict=True))
    assert module.sentence_encoder().head is None and module.optimizer.lr == 2e-5
    sizes = {name: TaskSize(32, 16) for name in read_recipe("cs224n/pretrain_3sets")["data"]["tasks"]}
    steps = mixture_of("cs224n/pretrain_3sets").steps(sizes, drop_last=False)
    assert [list(step.parts) for step in steps] == [
        [task] for task in ("paraphrase", "sentiment", "similarity") for _ in range(2)
    ]


def test_pre_training_takes_the_three_sets_in_turn_and_a_part_of_quora_s_pairs() -> None:
    tasks = read_recipe("cs224n/pretrain")["data"]["tasks"]
    sizes = {f"{name}_texts": TaskSize(32, 16) for name in ("sst", "quora", "sts")}
    assert [*tasks] == [*sizes, "paraphrase", "similarity"]
    assert [tasks[name].get("fraction") for name in sizes] == [None, 0.06, None]
    assert round(0.06 * 141506) == 8490  # the report's pairs
    steps = mixture_of("cs224n/pretrain").steps(sizes, drop_last=False)
    assert [task for step in steps for task in step.parts] == [task for task in sizes for _ in range(2)]
