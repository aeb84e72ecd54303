"""Facts of the training data that the summary states: texts that are cut, words, and siblings."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
import tiny
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.cli import run
from contrastive_text.core.types import Row
from contrastive_text.data import TextTask, TextTokenizer, learn_vocabulary
from contrastive_text.data import training_set as cuts
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.training_set import sibling_rows, words_without_blanks
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.pairings import Spans
from contrastive_text.training.module import ContrastiveModule
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


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=64)


@pytest.fixture
def documents(tmp_path: Path) -> str:
    return tiny.write_texts(tmp_path / "documents.txt", tuple(" ".join(tiny.TEXTS[i : i + 5]) for i in range(30)))


def spans(bert: str, documents: str, cache: Path, room: int, **options: str) -> TextDataModule:
    """Spans of 4 to 8 tokens, in an encoder with room for so many."""
    pairing = Spans(anchors=1, positives=2, min_length=4, max_length=8, **options)  # type: ignore[arg-type]  # words
    made = TextDataModule(
        documents, task=TextTask(pairing=pairing), batch_size=8, drop_last=False, cache_dir=str(cache)
    )
    made.set_module(ContrastiveModule(TransformerEncoder(bert, max_length=room + 2)))
    made.setup("fit")
    return made


def test_spans_that_are_said_to_be_cut_are_those_that_the_first_epoch_cuts(
    bert: str, documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = spans(bert, documents, tmp_path, room=6, too_long="cut")
    cut = sum(batch.truncated for batch in data.train_dataloader())
    assert 0 < cut < 90
    assert data.facts()["length limit"] == (
        f"8 tokens with special ones; {cut} of the 90 spans of a first pass are longer "
        f"({cut / 90:.1%}) and will be cut at their end, the longest has 7"
    )
    facts = spans(bert, documents, tmp_path, room=8).facts()
    assert facts["length limit"].endswith("; 0 of the 90 spans of a first pass are longer")
    monkeypatch.setattr(cuts, "_SAMPLE_SIZE", 10)
    sampled = re.search(r"; (\d+) of the 30 spans of a sample of 10 documents", data.facts()["length limit"])
    assert sampled is not None and 0 < int(sampled[1]) < cut
    monkeypatch.setattr(cuts, "_SAMPLE_SIZE", 29)
    nearly_all = re.search(r"; (\d+) of the 87 spans", data.facts()["length limit"])
    assert nearly_all is not None and cut - 3 <= int(nearly_all[1]) <= cut


TEXTS = ("東京はれる。", "ฝนตกที่นี่", "a bird sings")


def byte_level() -> PreTrainedTokenizerBase:
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(TEXTS, vocab_size=300, special_tokens=["<unk>"])
    return PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, unk_token="<unk>")


class Letters(SwapWords):
    """Takes runs of letters for words."""

    words = "letters"


def said(tokenizer: PreTrainedTokenizerBase, *views: View, texts: tuple[str, ...] = TEXTS) -> str | None:
    return words_without_blanks([ViewPlan({"positive": views})], texts, TextTokenizer(tokenizer, None))


def test_words_are_what_each_view_and_tokenizer_takes_for_them() -> None:
    pieces = learn_vocabulary(TEXTS, 120)
    found = said(pieces, SwapWords(), DeleteOneWord(), texts=TEXTS[::2])
    assert found is not None
    assert found.startswith("50.0% of 2 sampled texts are of languages without blanks; ")
    assert "for SwapWords(rate=0.1), 東京はれる is one word" in found
    # BERT parts Chinese characters, and no kana.
    assert "for DeleteOneWord(), 東京はれる is 3 words: 東 | 京 | はれる" in found.replace(" ##", "")
    found = said(byte_level(), DeleteOneWord(), texts=TEXTS[::2])
    assert found is not None and "for DeleteOneWord(), 東京はれる is one word" in found
    found = said(pieces, Letters(), texts=TEXTS[::2])
    assert found is not None and "for Letters(rate=0.1), 東京はれる is one word" in found
    thai = said(pieces, DeleteOneWord(), texts=TEXTS[1:])
    assert thai is not None and re.search(r"for DeleteOneWord\(\), \S+ is one word", thai)


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


@pytest.mark.slow
def test_the_views_command_and_a_run_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tiny.write_texts(tmp_path / "texts.txt", TEXTS * 6)
    (tmp_path / "views.yaml").write_text("model: {views: {positive: [{class_path: SwapWords}]}}")
    words = ["--recipe", "simcse", "--config", str(tmp_path / "views.yaml")]
    words += ["--data.train", texts, "--data.batch_size", "8"]
    words += ["--model.encoder.model_name_or_path", tiny.save_bert(tmp_path / "bert")]
    assert run(["views", *words]) == 0
    assert re.search(r"for SwapWords\(rate=0.1\), \S+ is one word", " ".join(capsys.readouterr().out.split()))
    module = tiny.module(str(tmp_path / "bert"), views={"positive": [SwapWords()]})
    data = tiny.data(texts)
    data.set_module(module)
    data.setup("fit")
    assert "for SwapWords(rate=0.1), " in data.facts()["words"]


def row(anchor: str, positive: str, target: float = 1.0) -> Row:
    return {"anchor": anchor, "positive": positive, "target": target}


PAIRS = [row("a", "b"), row("a", "c"), row("a", "d"), row("e", "f"), row("g", "h"), row("g", "h"), row("i", "c")]


def test_an_estimate_is_near_the_share_over_all_batches() -> None:
    having, met, looked_at = sibling_rows(PAIRS, batch_size=3)
    assert (having, looked_at) == (3, 7)  # a copy of a pair is no sibling, nor another anchor's pair
    batches = [batch for batch in combinations(range(7), 3) for _ in batch]
    meets = sum(len({0, 1, 2} & {*batch}) for batch in combinations(range(7), 3) if len({0, 1, 2} & {*batch}) > 1)
    assert met == pytest.approx(meets / len(batches), abs=0.03)


def test_all_siblings_meet_in_a_batch_of_all_rows_and_none_in_one_of_one() -> None:
    assert sibling_rows(PAIRS, batch_size=7)[1] == pytest.approx(3 / 7)
    assert sibling_rows(PAIRS, batch_size=1)[1] == 0.0


def test_pairs_that_do_not_belong_together_and_rows_without_pairs_count_as_none() -> None:
    rows = [row("a", "b"), row("a", "c", target=0.0)]
    assert sibling_rows(rows, batch_size=2) == (2, 1.0, 2)
    assert sibling_rows(rows, batch_size=2, labeled=True) == (0, 0.0, 1)
    assert sibling_rows([{"text": "a"}, {"text": "a"}], batch_size=2) == (0, 0.0, 0)
