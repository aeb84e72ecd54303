"""What a word is in languages without blanks, said by the summary and by ``views``."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.cli import run
from contrastive_text.data import TextTokenizer, learn_vocabulary
from contrastive_text.data.training_set import words_without_blanks
from contrastive_text.views import (
    CropTokens,
    DeleteOneWord,
    DeleteTokens,
    MaskTokens,
    ReorderSpans,
    RepeatTokens,
    SwapWords,
    View,
    ViewPlan,
)

TEXTS = ("東京はれる。", "ฝนตกที่นี่", "a bird sings")


def byte_level() -> PreTrainedTokenizerBase:
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(TEXTS, vocab_size=300, special_tokens=["<unk>"])
    return PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, unk_token="<unk>")


def said(tokenizer: PreTrainedTokenizerBase, *views: View, texts: tuple[str, ...] = TEXTS) -> str | None:
    return words_without_blanks([ViewPlan({"positive": views})], texts, TextTokenizer(tokenizer, None))


def test_words_are_what_each_view_and_tokenizer_takes_for_them() -> None:
    pieces = learn_vocabulary(TEXTS, 120)
    found = said(pieces, SwapWords(), DeleteOneWord(), texts=TEXTS[::2])
    assert found is not None
    assert found.startswith("50.0% of 2 sampled texts are of languages without blanks; ")
    assert "東京はれる is to SwapWords(rate=0.1) one word" in found
    # BERT parts Chinese characters, and no kana.
    assert "東京はれる is to DeleteOneWord() 3 words: 東 | 京 | はれる" in found.replace(" ##", "")
    found = said(byte_level(), DeleteOneWord(), texts=TEXTS[::2])
    assert found is not None and "東京はれる is to DeleteOneWord() one word" in found
    thai = said(pieces, DeleteOneWord(), texts=TEXTS[1:])
    assert thai is not None and "is to DeleteOneWord() one word" in thai


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (DeleteTokens(), False), (DeleteTokens(unit="word"), True), (MaskTokens(), False),
        (MaskTokens(whole_word=True), True), (CropTokens(), False), (ReorderSpans(unit="word"), True),
        (RepeatTokens(unit="word"), True), (SwapWords(), True),
    ],
)  # fmt: skip
def test_views_of_words_are_named_and_no_others(view: View, expected: bool) -> None:
    pieces = learn_vocabulary(TEXTS, 120)
    assert (said(pieces, view) is not None) is expected
    assert said(pieces, view, texts=TEXTS[2:]) is None


def test_the_views_command_and_a_run_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tiny.write_texts(tmp_path / "texts.txt", TEXTS * 6)
    (tmp_path / "views.yaml").write_text("model: {views: {positive: [{class_path: SwapWords}]}}")
    words = [
        "--recipe",
        "simcse",
        "--config",
        str(tmp_path / "views.yaml"),
        "--data.train",
        texts,
        "--data.batch_size",
        "8",
    ]
    words += ["--model.encoder.model_name_or_path", tiny.save_bert(tmp_path / "bert")]
    assert run(["views", *words]) == 0
    assert "is to SwapWords(rate=0.1) one word" in " ".join(capsys.readouterr().out.split())
    module = tiny.module(str(tmp_path / "bert"), views={"positive": [SwapWords()]})
    data = tiny.data(texts)
    data.attach(module)
    data.setup("fit")
    assert "SwapWords(rate=0.1) one word" in data.facts()["words"]
