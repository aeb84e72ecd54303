"""Views that are refused: by their arguments, by what they read, and by their place in a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts
import pytest
import tiny
import torch
import wordnet_files
from transformers import GPT2Config

from contrastive_text.core.types import Vocabulary
from contrastive_text.views import (
    Adversarial,
    ContextualSubstitute,
    DeleteSpans,
    DeleteTokens,
    GaussianNoise,
    MaskTokens,
    NlpaugView,
    Prompt,
    ReorderSpans,
    RepeatTokens,
    SubstituteSynonyms,
    SwapWords,
    SynonymFile,
    TextsFromFile,
    View,
    ViewPlan,
    WordNetSynonyms,
)

OTHER: Any = "other"  # what YAML may hold and the types forbid
NAN = float("nan")


class Levelless(View):
    pass


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        *[(lambda view=view: view(unit=OTHER), [f"{view.__name__}.unit", "token or word", "'other'"])
          for view in (DeleteTokens, DeleteSpans, ReorderSpans, RepeatTokens)],
        *[(lambda view=view: view(mark=""), [f"{view.__name__}.mark", "such as [DEL]", "''"])
          for view in (DeleteTokens, DeleteSpans)],
        (lambda: DeleteSpans(spans=-1), ["DeleteSpans.spans", "0 or more", "-1"]),
        (lambda: ReorderSpans(pairs=-1), ["ReorderSpans.pairs", "0 or more", "-1"]),
        (lambda: RepeatTokens(most=0), ["RepeatTokens.most", "1 or more", "got 0"]),
        *[(lambda scale=scale: GaussianNoise(scale), ["GaussianNoise.scale", f"{scale}"])
          for scale in (-0.1, NAN, float("inf"))],
        *[(lambda norm=norm: Adversarial(norm), ["Adversarial.norm", f"{norm}"])
          for norm in (-0.1, NAN, float("inf"))],
        *[(lambda shares=shares: MaskTokens(mask=shares[0], random=shares[1]),
           ["MaskTokens", "mask and random", f"{shares[0]} and {shares[1]}"])
          for shares in ((-0.1, 0.1), (0.8, -0.1), (0.8, 0.3), (NAN, 0.1))],
        (lambda: MaskTokens().build(Vocabulary(size=10)), ["MaskTokens", "a mask token", "add_special_tokens"]),
        *[(lambda template=template: Prompt(template), ["Prompt.template", "{text}", repr(template)])
          for template in ("", "{ text }", "{text}{text}")],
        (lambda: SubstituteSynonyms(0.5, SynonymFile(__file__), OTHER), ["SubstituteSynonyms.of", "'other'"]),
        (lambda: SynonymFile("none.tsv"), ["SynonymFile.path", "a tab-separated file or a .json", "none.tsv"]),
        (lambda: TextsFromFile("a.tsv", missing=OTHER), ["TextsFromFile.missing", "error or keep", "'other'"]),
        (lambda: TextsFromFile("a.csv"), ["TextsFromFile.path", ".tsv or .jsonl", "'a.csv'"]),
        (lambda: ViewPlan({"positives": [SwapWords()]}), ["views.positives", "anchor, positive", "'positives'"]),
    ],
)  # fmt: skip
def test_values_that_a_view_can_not_use_are_refused(refused: Callable[[], object], words: list[str]) -> None:
    parts.check_refused(refused, ValueError, words)


@pytest.mark.parametrize("other", [str.lower, "SwapWords", torch.nn.Dropout(0.1), Levelless()])
def test_what_is_not_a_view_of_a_level_is_refused_with_its_place(other: Any) -> None:
    words = ["views.anchor[1]", "expected a TextView, TokenView", type(other).__name__, "derive the class"]
    parts.check_refused(lambda: ViewPlan({"anchor": [SwapWords(), other]}), TypeError, words)


@pytest.mark.parametrize(
    ("augmenter", "arguments", "error", "words"),
    [
        ("nlpaug.augmenter.word.Nothing", {}, ValueError, ["NlpaugView.augmenter", "a subclass of Augmenter"]),
        ("nowhere.Nothing", {}, ValueError, ["a module that you trust", "nowhere.Nothing"]),
        ("Nothing", {}, ValueError, ["got Nothing", "there is no such class"]),
        ("nlpaug.util.Action", {}, ValueError, ["a subclass of Augmenter", "nlpaug.util.Action"]),
        ("nlpaug.augmenter.word.SplitAug", {"rate": 1}, TypeError, ["NlpaugView.arguments", "aug_p", "got rate"]),
    ],
)
def test_a_class_that_is_not_an_augmenter_or_takes_other_arguments_is_refused(
    augmenter: str, arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    pytest.importorskip("nlpaug", reason="needs nlpaug: pip install 'contrastive-text[augment]'")
    parts.check_refused(lambda: NlpaugView(augmenter, arguments), error, words)


def test_a_model_that_can_not_fill_gaps_is_refused(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    model = tiny.save_masked_lm(tmp_path / "model")
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        ("gpt2", {}, ["model_name_or_path", "masked-language-model head", "gpt2"]),
        ("nothing", {}, ["model_name_or_path", "a model folder", "nothing"]),
        (model, {"top_k": 0}, ["top_k", "1 or more", "got 0"]),
        (model, {"batch_size": 0}, ["batch_size", "1 or more", "got 0"]),
        (model, {"temperature": 0.0}, ["temperature", "above 0", "got 0"]),
        (model, {"temperature": NAN}, ["temperature", "above 0", "got nan"]),
    ]
    for folder, arguments, words in cases:
        parts.check_refused(
            lambda f=folder, a=arguments: ContextualSubstitute(str(tmp_path / f), **a), ValueError, words
        )  # type: ignore[misc]  # defaults of a lambda


@pytest.mark.parametrize(
    ("view", "name", "content", "words"),
    [
        (TextsFromFile, "a.tsv", "text\tother\n", ["a.tsv:1", "one column alternative", "text, other"]),
        (TextsFromFile, "a.tsv", "text\talternative\na\tb\tc\n", ["a.tsv:2", "2 fields", "got 3"]),
        (TextsFromFile, "a.tsv", "text\talternative\na\t\n", ["a.tsv:2", "a text under alternative", "got ''"]),
        (TextsFromFile, "a.jsonl", '{"text": "a"}\n', ["a.jsonl:1", "a text under alternative", "got None"]),
        (TextsFromFile, "a.jsonl", '{"text": "a", "alternative": ["b", 3]}\n', ["a.jsonl:1", "got 3"]),
        (TextsFromFile, "a.jsonl", "{\n", ["a.jsonl:1", "a JSON object", "invalid JSON"]),
        (TextsFromFile, "a.jsonl", "[]\n", ["a.jsonl:1", "a text under text", "got None"]),
        (SynonymFile, "a.tsv", "a\tb\nbig\tlarge\n", ["SynonymFile.path", "word and synonyms", "got a, b"]),
        (SynonymFile, "a.tsv", "", ["SynonymFile.path", "word and synonyms", "got no columns"]),
        (SynonymFile, "a.tsv", "word\tsynonyms\nbig\n", ["SynonymFile.path", "2 columns in line 2", "got 1"]),
        (SynonymFile, "a.json", "[]", ["SynonymFile.path", "a JSON object", "got a list"]),
        (SynonymFile, "a.json", json.dumps({"big": "large"}), ["a JSON object", "got 'large' for 'big'"]),
        (SynonymFile, "a.json", json.dumps({"big": [1]}), ["a JSON object", "got [1] for 'big'"]),
        (SynonymFile, "a.json", '{"big"', ["a JSON object", "got no JSON: Expecting"]),
    ],
)
def test_a_file_of_another_form_is_refused(
    view: Callable[[str], Any], name: str, content: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    read = view(str(tmp_path / name))
    parts.check_refused(
        read.table if view is SynonymFile else lambda: read.build(Vocabulary(size=1)), ValueError, words
    )


def test_a_file_of_texts_may_be_gone_where_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    view = TextsFromFile(str(tmp_path / "gone.tsv"))
    words = ["gone.tsv: expected a file, got nothing there"]
    parts.check_refused(lambda: view.build(Vocabulary(size=1)), FileNotFoundError, words)


def test_less_than_one_sense_is_refused(tmp_path: Path) -> None:
    folder = wordnet_files.write_wordnet(tmp_path / "nltk_data")
    words = ["WordNetSynonyms.senses", "1 or more", "got 0"]
    parts.check_refused(lambda: WordNetSynonyms(folder, senses=0), ValueError, words)
