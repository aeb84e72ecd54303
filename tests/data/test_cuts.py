"""What is said before training of how much the length limit cuts is what training cuts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny

from contrastive_text.data import TextTask
from contrastive_text.data import training_set as cuts
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.pairings import Spans
from contrastive_text.training.module import ContrastiveModule


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
    made.attach(ContrastiveModule(TransformerEncoder(bert, max_length=room + 2)))
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
    monkeypatch.setattr(cuts, "_SAMPLE", 10)
    sampled = re.search(r"; (\d+) of the 30 spans of a sample of 10 documents", data.facts()["length limit"])
    assert sampled is not None
    assert 0 < int(sampled[1]) < cut
    monkeypatch.setattr(cuts, "_SAMPLE", 29)
    nearly_all = re.search(r"; (\d+) of the 87 spans", data.facts()["length limit"])
    assert nearly_all is not None
    assert cut - 3 <= int(nearly_all[1]) <= cut


def test_spans_longer_than_the_encoder_holds_are_refused_unless_they_may_be_cut(
    bert: str, documents: str, tmp_path: Path
) -> None:
    said = (
        r"Spans.max_length: expected spans that the encoder's max_length holds, 7 tokens .*, got up to 8; "
        r"raise model.encoder.max_length by 1, .*too_long: cut"
    )
    with pytest.raises(ValueError, match=said):
        spans(bert, documents, tmp_path, room=7)
    assert not list(tmp_path.glob("*/ids"))  # before anything is tokenised
    facts = spans(bert, documents, tmp_path, room=8).facts()
    assert facts["length limit"].endswith("; 0 of the 90 spans of a first pass are longer")
