"""``StaticEncoder``: its table, one gradient in any layout and chunks, refusals, and the saved model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
import yaml
from architectures import ROWS, ragged
from executions import Execution, compare, execute
from processes import free_ports, meeting, start_all
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from test_combinations import PAIRINGS, VIEWS, part
from torch import Tensor

from contrastive_text import SentenceEncoder, StaticEncoder
from contrastive_text.cli import run
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.encoders.static import TABLE, distill_table
from contrastive_text.objectives import Contrastive, MaskedLM, Matryoshka, Quantized, VectorDistillation
from contrastive_text.poolers import MaxPooler, MeanPooler
from contrastive_text.training import BestCheckpoint, ContrastiveModule, ExportModel
from contrastive_text.training.module import Inference
from contrastive_text.training.optim import ConstantSchedule
from contrastive_text.views import (
    Adversarial,
    FeatureCutoff,
    FixedDropout,
    GaussianNoise,
    MaskTokens,
    ShufflePositions,
)

TEXTS = ("an old bird sings", "a dog, a dog and a cat", "", "zebra!", "the tall man reads a long book")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def encoder(bert: str) -> StaticEncoder:
    torch.manual_seed(0)
    return StaticEncoder(tokenizer_name_or_path=bert, features=16)


def saved(encoder: StaticEncoder, folder: Path, **options: object) -> SentenceEncoder:
    model = SentenceEncoder(encoder, MeanPooler(), **options)  # type: ignore[arg-type]  # of the constructor
    model.save_pretrained(folder)
    return model


# Table


def test_a_text_is_the_mean_of_its_rows_of_the_table(encoder: StaticEncoder) -> None:
    vectors = SentenceEncoder(encoder, MeanPooler()).encode(list(TEXTS), convert_to_tensor=True)
    assert encoder.tokenizer is not None
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = encoder.tokenizer(text)["input_ids"]
        expected = encoder.model.weight[ids].mean(dim=0) if ids else torch.zeros(16)
        torch.testing.assert_close(vector, expected.detach(), rtol=0, atol=1e-6)
    model = SentenceEncoder(encoder, MeanPooler())
    assert not model.encode(["", ""]).any()
    assert [len(tokens) for tokens in model.encode(TEXTS[:2], output_value="token_embeddings")] == [4, 10]
    with pytest.raises(ValueError, match=r"expected at least one token"):
        model.encode([""], output_value="token_embeddings")


def test_a_table_from_a_transformer_has_principal_components_with_weights_by_zipfs_law(bert: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    table = distill_table(bert, 4, 0.01).double()
    tokenizer, network = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()
    names = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    ids = [i for i, name in enumerate(names) if name not in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")]
    with torch.no_grad():
        rows = torch.tensor([[tokenizer.cls_token_id, i, tokenizer.sep_token_id] for i in ids])
        outputs = network(rows).last_hidden_state.mean(dim=1).double()
    centered = outputs - outputs.mean(dim=0)
    components = centered @ torch.linalg.svd(centered, full_matrices=False)[2][:4].T
    frequency = 1 / torch.arange(2, len(ids) + 2)
    frequency /= frequency.sum()
    expected = components * (0.01 / (0.01 + frequency)).unsqueeze(1)
    torch.testing.assert_close(table[ids].abs(), expected.abs(), rtol=0, atol=1e-5)  # directions have no sign
    raw = table[ids] / (0.01 / (0.01 + frequency)).unsqueeze(1)
    assert (raw.amax(dim=0) == raw.abs().amax(dim=0)).all()
    assert not table[tokenizer.cls_token_id].any()
    assert distill_table(bert, 16, None).shape == (300, 16)


# One gradient


def gradient(encoder: StaticEncoder, layout: str, chunk_tokens: int | None) -> tuple[Tensor, Tensor]:
    encoder.layout = layout  # type: ignore[assignment]  # one of them
    module = ContrastiveModule(encoder, views={"positive": [FeatureCutoff(0.5)]}, chunk_tokens=chunk_tokens)
    vectors = module.double().encode(ragged(*ROWS)).embeddings
    (of_table,) = torch.autograd.grad(vectors.pow(3).sum(), [encoder.model.weight])
    return vectors, of_table


@pytest.mark.parametrize("chunk_tokens", [None, 6])
@pytest.mark.parametrize("layout", ["packed", "bucketed", "padded"])
def test_any_layout_and_chunks_give_one_gradient(
    encoder: StaticEncoder, layout: str, chunk_tokens: int | None
) -> None:
    expected = gradient(encoder, "padded", None)
    found = gradient(encoder, layout, chunk_tokens)
    # float64: sums in another order
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_every_kind_of_objective_trains_it(encoder: StaticEncoder, tmp_path: Path) -> None:
    from contrastive_text.training.guides import GuideModel

    saved(encoder, tmp_path / "guide")
    objectives = {
        "contrastive": Quantized(Matryoshka(Contrastive(), [8, 16]), ["binary"]),
        "distillation": VectorDistillation("teacher"),
    }
    teacher = GuideModel(str(tmp_path / "guide"))
    module = ContrastiveModule(encoder, objectives=objectives, guides={"teacher": teacher})
    before = encoder.model.weight.detach().clone()
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    tiny.trainer(tmp_path).fit(module, datamodule=data)
    assert not torch.equal(encoder.model.weight, before) and encoder.model.weight.isfinite().all()


# Refusals


def test_sources_that_do_not_fit_are_refused(bert: str, encoder: StaticEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    encoder.save_network(folder)
    other = tiny.save_bert(tmp_path / "other", texts=("quite other words of a corpus",))
    with pytest.raises(ValueError, match=r"expected a source of the table, got null"):
        StaticEncoder()
    with pytest.raises(ValueError, match=r"tokenizer_name_or_path: expected the vocabulary of .*static"):
        StaticEncoder(str(folder), tokenizer_name_or_path=other)
    with pytest.raises(ValueError, match=r"features: expected at most the 16 features"):
        StaticEncoder(bert, features=17)
    with pytest.raises(ValueError, match=r"features: expected 16, the width of"):
        StaticEncoder(str(folder), features=8)
    with pytest.raises(ValueError, match=r"expected a static model .*got no weights; name a static model, or a"):
        StaticEncoder(str(tmp_path))
    with pytest.raises(ValueError, match=r"expected a local model folder or a name"):
        StaticEncoder("no/such")
    save_file({TABLE: encoder.model.weight.detach()[:20].clone()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"a row of embeddings for each of the tokenizer's 171 token ids"):
        StaticEncoder(str(folder))


def test_fewer_tokens_than_features_are_refused(tmp_path: Path) -> None:
    few = tiny.save_bert(tmp_path / "few", texts=("a b",), hidden_size=32)
    with pytest.raises(ValueError, match=r"fewer than its 5 tokens, got 8"):
        StaticEncoder(few, features=8)


def test_parts_that_a_table_lacks_are_refused(encoder: StaticEncoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"views\.positive\[0\]: .*StaticEncoder"):
        ContrastiveModule(encoder, views={"positive": [ShufflePositions()]})
    with pytest.raises(ValueError, match=r"expected an encoder with dropout for FixedDropout, got StaticEncoder"):
        ContrastiveModule(encoder, views={"positive": [FixedDropout()]})
    with pytest.raises(ValueError, match=r"StaticEncoder: expected a network with a masked-language-model head"):
        ContrastiveModule(encoder, views={"anchor": [MaskTokens()]}, objectives={"mlm": MaskedLM()})
    module = ContrastiveModule(encoder, inference=Inference(query_length=8))
    trainer = tiny.trainer(tmp_path, callbacks=[ExportModel()])
    with pytest.raises(ValueError, match=r"ExportModel: expected one length limit .*8 and None"):
        trainer.fit(module, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    saved(encoder, tmp_path / "model")
    with pytest.raises(ValueError, match=r"backend: expected a TransformerEncoder, got StaticEncoder"):
        SentenceEncoder.from_pretrained(tmp_path / "model", backend="onnx")


# Saved model


@pytest.mark.parametrize("normalize", [False, True])
def test_a_saved_model_has_equal_vectors_in_sentence_transformers(
    encoder: StaticEncoder, normalize: bool, tmp_path: Path
) -> None:
    model = saved(encoder, tmp_path, normalize=normalize, max_length=4)
    expected = model.encode(list(TEXTS))
    theirs, again = SentenceTransformer(str(tmp_path)), SentenceEncoder.from_pretrained(tmp_path)
    assert isinstance(theirs[0], StaticEmbedding)
    assert abs(theirs.encode(list(TEXTS)) - expected).max() <= 1e-6
    assert abs(again.encode(list(TEXTS)) - expected).max() == 0
    assert (again.identity, again.max_length) == (model.identity, 4)
    names = [Path(module["path"]).name for module in json.loads((tmp_path / MODULES).read_text())]
    assert names == ["0_StaticEmbedding", "1_Normalize"][: 1 + normalize]
    assert [*load_file(tmp_path / "0_StaticEmbedding" / "model.safetensors")] == [TABLE]


def test_models_of_sentence_transformers_have_equal_vectors_here(encoder: StaticEncoder, tmp_path: Path) -> None:
    assert encoder.tokenizer is not None
    table = encoder.model.weight.detach()
    theirs = SentenceTransformer(modules=[StaticEmbedding(encoder.tokenizer, embedding_weights=table)])
    theirs.save(str(tmp_path / "theirs"))
    here = SentenceEncoder.from_pretrained(tmp_path / "theirs")
    assert abs(here.encode(list(TEXTS)) - theirs.encode(list(TEXTS))).max() <= 1e-6
    # The files of model2vec: vectors, and the row and the weight of each token.
    (place,) = (path.parent for path in (tmp_path / "theirs").rglob("model.safetensors"))
    mapping, weights = torch.arange(300) % 7, torch.rand(300)
    content = {"embeddings": table[:7].clone(), "mapping": mapping, "weights": weights}
    save_file(content, place / "model.safetensors")
    here = SentenceEncoder.from_pretrained(tmp_path / "theirs")
    theirs = SentenceTransformer(str(tmp_path / "theirs"))
    assert abs(here.encode(list(TEXTS)) - theirs.encode(list(TEXTS))).max() <= 1e-6
    assert StaticEncoder(str(tmp_path / "theirs")).features == 16


def test_another_pooler_is_saved_for_this_library_only(encoder: StaticEncoder, tmp_path: Path) -> None:
    model = SentenceEncoder(encoder, MaxPooler())
    model.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path)
    texts = [text for text in TEXTS if text]
    assert abs(again.encode(texts) - model.encode(texts)).max() == 0 and again.identity == model.identity
    with pytest.raises(Exception, match=r"."):  # theirs
        SentenceTransformer(str(tmp_path)).encode(texts)


def test_a_run_writes_a_folder_from_which_the_next_run_starts(encoder: StaticEncoder, tmp_path: Path) -> None:
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    callbacks = [BestCheckpoint(), ExportModel(str(tmp_path / "model"))]
    module = ContrastiveModule(encoder)
    tiny.trainer(tmp_path, enable_checkpointing=True, callbacks=callbacks).fit(module, datamodule=data)
    model = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert torch.equal(model.encoder.model.weight, module.encoder.model.weight)  # type: ignore[union-attr]  # tables
    start = ContrastiveModule(StaticEncoder(str(tmp_path / "model")))
    with torch.no_grad():
        batch = ragged(*ROWS)
        assert torch.equal(start.eval()(batch), module.eval()(batch))
    (path,) = tmp_path.rglob("*.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(path)
    assert torch.equal(loaded.encoder.model.weight, module.encoder.model.weight)  # type: ignore[union-attr, arg-type]  # tables


# Ranks, resumed runs and combinations

EXECUTIONS = [
    Execution("NTXent, between views", "no views", layout, parts, "dense", ranks)
    for layout, parts, ranks in (
        ("packed", "whole", "two uneven ranks"),
        ("bucketed", "chunked", "two uneven ranks"),
    )
]


def module_of_a_table(bert: str) -> ContrastiveModule:
    encoder = StaticEncoder(bert)
    torch.manual_seed(0)
    torch.nn.init.normal_(encoder.model.weight)
    views = [FeatureCutoff(0.3), Adversarial(norm=0.5, objective="contrastive")]
    return ContrastiveModule(encoder, views={"positive": views}).double()


def take_steps(number: int, port: int, folder: str, bert: str) -> None:
    """One of two ranks: takes steps in each way, with whole weights and with split weights."""
    plain = torch.load(Path(folder) / "plain.pt", weights_only=False)
    wrong = []
    with meeting(number, world=2, port=port):
        for execution in EXECUTIONS:
            for split in (False, True):
                module = module_of_a_table(bert)
                module.encoder.layout = execution.layout  # type: ignore[assignment]  # a layout
                wrong.append(compare(execute(execution, module, split), plain).wrong)
    torch.save(wrong, Path(folder) / f"{number}.pt")


@pytest.mark.slow
def test_ranks_with_whole_and_split_weights_give_one_gradient(bert: str, tmp_path: Path) -> None:
    torch.save(execute(EXECUTIONS[0].plain, module_of_a_table(bert)), tmp_path / "plain.pt")
    start_all(take_steps, 2, free_ports(1)[0], str(tmp_path), bert)
    for number in range(2):
        assert torch.load(tmp_path / f"{number}.pt", weights_only=True) == [""] * 4


@pytest.mark.slow
def test_a_resumed_run_has_the_weights_of_a_run_without_a_stop(bert: str, tmp_path: Path) -> None:
    def weights(folder: Path, steps: int, resume: str | None = None) -> Tensor:
        module = ContrastiveModule(
            StaticEncoder(bert),
            views={"anchor": [MaskTokens()], "positive": [GaussianNoise(0.1)]},
            chunk_tokens=40,
            schedule=ConstantSchedule(),  # the linear one depends on the number of steps
        )
        trainer = tiny.trainer(folder, max_steps=steps)
        data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        trainer.save_checkpoint(folder / "last.ckpt")
        return module.encoder.get_parameter("model.weight").detach()

    expected = weights(tmp_path / "whole", 4)
    weights(tmp_path / "stopped", 2)
    assert torch.equal(weights(tmp_path / "stopped", 4, str(tmp_path / "stopped" / "last.ckpt")), expected)


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["same", "given", "neighbors"])
@pytest.mark.parametrize("views", ["none", "text", "embeddings", "gradient"])
def test_any_pairing_and_views_train_a_table(pairing: str, views: str, bert: str, tmp_path: Path) -> None:
    config = {
        "model": {
            "encoder": part("StaticEncoder", model_name_or_path=bert),
            "views": VIEWS[views],
            "objectives": {"contrastive": part("Contrastive")},
        },
        "data": {"task": PAIRINGS[pairing]},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    file = tiny.write_triples(tmp_path / "triples.jsonl")
    if pairing != "given":
        file = tiny.write_texts(tmp_path / "texts.txt")
    words = ["fit", "--config", str(tmp_path / "run.yaml"), "--data.train", file, "--data.batch_size", "8"]
    words += ["--data.num_workers", "0", "--trainer.max_steps", "2", "--trainer.accelerator", "cpu"]
    assert run([*words, "--folder", str(tmp_path / "run")]) == 0
    assert SentenceEncoder.from_pretrained(tmp_path / "run" / "model").encode(["a bird"]).shape == (1, 16)
