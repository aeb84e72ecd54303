"""Wrong command lines: each is answered in a few lines that name the option or the file, and writes nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import rest_slow
from shells import Shell

# Lightning on the place of the best checkpoint, where validate, test and predict load one of another run
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed from")

NAMES = [
    ("fti", "did you mean fit?"),
    ("fit --recipe simsce", "did you mean simcse?"),
    ("FIT --data.trian x.txt", "--data.train?"),
    ("FIT --modl.pooler MeanPooler", "--model.pooler?"),
    ("FIT --model.poler MeanPooler", "--model.pooler?"),
    ("FIT --model.encoder.max_lenght 8", "'max_length'"),
    ("FIT --model.objectives.contrastive.loss.temprature 0.1", "'temperature'"),
    ("FIT --model.pooler MeanPoler", "did you mean MeanPooler?"),
    ("FIT --model.guides '{a: {class_path: GuideFil}}'", "did you mean GuideFile?"),
    ("FIT --model.pooler 'MeanPooler(2)'", "class_path: MeanPooler, and its arguments under init_args"),
    ("FIT --model.objectives.contrastive.loss InfoNec", "did you mean InfoNCE?"),
    ("FIT --model.views '{positive: [FeatureCutof]}'", "did you mean FeatureCutoff?"),
    ("FIT --checkpoint.dirpaht x", "--checkpoint.dirpath?"),
    ("FIT --data.tasks.sst.trian x", "'trian' at this place; did you mean 'train'"),
    ("FIT --model.objectives.sst.classes 2", "model.objectives: expected a class that can be made"),
    ("FIT --model.objectives.contrastive null", "of Objective under each name, got null; remove the name"),
    ("FIT --init_frm x", "did you mean --init_from?"),
    ("FIT --config poler.yaml", "'pooler'"),
    ("FIT --config lrr.yaml", "'lr'"),
    ("FIT --config views.yaml", "did you mean DeleteTokens?"),
    ("FIT --learning_rate 3", "no option 'learning_rate'; did you mean --lr?"),
    ("FIT --max_length 9", "no option 'max_length'; did you mean --model.encoder.max_length?"),
    ("FIT --temperature 1", "it is an argument of "),
    ("FIT --model.pooler Mean", "MaskTokenPooler, MaxPooler, MeanPooler"),
    (
        "FIT --model.objectives.contrastive.between view",
        "got view; there are BetweenTexts, BetweenViews ... or one of 'texts', 'views'",
    ),
    ("FIT --lr fast", "lr: expected float, got fast"),
    ("FIT --data.drop_last often", "data.drop_last: expected bool, got often"),
    ("FIT --data.task.columns 3", "columns: expected dict, got 3"),
    ("FIT --trainer.precision 8", "'bf16-mixed', '32-true', '64-true' or"),
    ("fit --lr 1e-3 --model.optimizer.lr=1e-4", "--lr: expected one spelling of model.optimizer.lr, got both"),
    ("recipes gits", "did you mean gist?"),
    ("embed in.txt out.npy --modl x", "did you mean --model?"),
    ("evaluate x y --batchsize 3", "did you mean --batch_size?"),
    ("report nowhere --pair z", "no option --pair"),
]
OWN_PARTS = [
    ("FIT --model.pooler mine.Missing", "mine.Missing"),
    ("FIT --model.views '{anchor: [mine.KeepFrist]}'", "has no attribute 'KeepFrist'; did you mean KeepFirst?"),
    (
        "FIT --model.views '{anchor: [{class_path: mine.KeepFirst, init_args: {shar: 0.7}}]}'",
        "no option 'shar' at this place; did you mean 'share'",
    ),
    (
        "FIT --model.views '{one: {anchor: [mine.KeepFrist]}}'",
        "model.views: expected a class, got mine.KeepFrist",
    ),
    ("FIT --model.views '{anchor: [mnie.KeepFirst]}'", "No module named 'mnie'; did you mean mine?"),
    ("FIT --model.views '{anchor: [no_syntax.A]}'", "invalid syntax (no_syntax.py, line 2)"),
    ("FIT --model.views '{anchor: [no_import.A]}'", "got no_import.A; No module named 'nothing_there'"),
    ("FIT --model.pooler mine.KeepFirst", "model.pooler: expected a subclass of Pooler, got mine.KeepFirst"),
    ("FIT --model.objectives.contrastive.loss mine.OwnLos", "loss: expected a class ... did you mean OwnLoss?"),
    (
        "FIT --model.objectives '{c: {class_path: Contrastive, init_args: {loss: {class_path: mine.OwnLoss, "
        "init_args: {a: 1}}}}}'",
        "no option 'a' at this place",
    ),
    ("FIT --trainer.callbacks '[mine.Callbak]'", "trainer.callbacks: expected a class, got mine.Callbak"),
    ("FIT --trainer.callbacks '[{class_path: EarlyStoping}]'", "did you mean EarlyStopping?"),
]
VALUES = [
    ("FIT TINY --model.objectives.contrastive.loss.temperature 0", "temperature: expected ... above 0, got 0"),
    ("FIT TINY --model.objectives.contrastive.head.train_only false", "set --model.head instead"),
    (
        "FIT TINY --model.views '{positive: [{class_path: SwapWords, init_args: {rate: 2}}]}'",
        "SwapWords.rate",
    ),
    ("FIT TINY --model.views '{positiv: [SwapWords]}'", "views.positiv: expected one of the roles anchor"),
    ("FIT TINY --model.weights '{other: 1}'", "model.weights.other"),
    ("FIT TINY --model.encoder.model_name_or_path /no/such/folder", "got '/no/such/folder'"),
    ("FIT TINY --model.encoder.max_length 99", "expected 3 to 32 tokens"),
    ("FIT TINY --data.batch_size 0", "data.batch_size: expected 1 or more, got 0"),
    ("FIT TINY --data.batch_size 1", "data.batch_size: expected 2 or more examples in a step for Contrastive"),
    (
        "FIT TINY --model.objectives.contrastive.columns [MaskBatch]",
        "expects examples with hard negatives, or a Queue",
    ),
    ("FIT TINY --ckpt_path nothing.ckpt", "expected a file, found none at nothing.ckpt; check --ckpt_path"),
    ("FIT TINY --config nothing.yaml", "nothing.yaml"),
    ("FIT TINY --trainer.accelerator tpuu", "accelerator"),
    ("FIT TINY --trainer.max_steps -2", "max_steps"),
    ("FIT TINY --trainer.check_val_every_n_epoch 0", "check_val_every_n_epoch"),
    ("FIT TINY --trainer.gradient_clip_val .nan", "gradient_clip_val"),
    ("FIT TINY --seed_everything 4294967296", "seed_everything"),
    ("FIT TINY --ckpt_path best", "ckpt_path"),
    ("FIT TINY --init_from none", "--init_from: expected a run's folder with checkpoints, or one run at none"),
    ("FIT TINY --trainer.devices 9999", "trainer.devices: expected at most ... --oversubscribe true"),
    ("FIT TINY --data.num_workers 99999", "data.num_workers: expected at most ... --oversubscribe true"),
    ("FIT --model.encoder.model_name_or_path BERT --trainer.accelerator cpu", "give --data.train FILE"),
    ("predict --ckpt_path CHECKPOINT --trainer.accelerator cpu", "give --data.predict FILE"),
    ("test --ckpt_path CHECKPOINT --trainer.accelerator cpu", "give --data.test FILE"),
    ("validate --ckpt_path CHECKPOINT --data.validation null", "give --data.validation FILE"),
]
TRAINING_FILES = [
    ("FIT TINY --data.train empty.txt", "empty.txt: expected at least one row with text, got an empty file"),
    ("FIT TINY --data.train other.tsv", "a column for text"),
    ("FIT TINY --data.train texts.pdf", "a name that ends in .txt"),
    ("FIT TINY --data.train corpos.txt", "did you mean corpus.txt?"),
    ("fit --ckpt_path cut.ckpt --data.train TEXTS", "cut.ckpt: expected a whole checkpoint"),
    ("test --ckpt_path flipped.ckpt --data.test PAIRS", "flipped.ckpt: expected a whole checkpoint"),
]
BOUNDS = [
    ("embed deep.jsonl o.npy --model x --bounds depth=2", "deep.jsonl:1: expected at most 2 lists"),
    ("embed deep.jsonl o.npy --model x --bounds width=2", "expected line, depth, ratio, got 'width'"),
    ("diagnose x deep.jsonl --bounds line=9", "deep.jsonl:1: expected a line of at most 9 bytes"),
    ("evaluate x deep.jsonl --bounds line", "--bounds: expected NAME=N, got line"),
    ("search deep.jsonl --model x --bounds line=9 -- -5", "deep.jsonl:1: expected a line"),
    ("embed --model x -- -a.txt --out.npy", "-a.txt: expected a file, got nothing there"),
    ("FIT -- deep.jsonl", "--: expected only options, got -- deep.jsonl"),
    ("FIT --model.encoder.model_name_or_path BERT --data.train -a.jsonl", "-a.jsonl: expected a file"),
    (
        "FIT --model.encoder.model_name_or_path BERT --data.train deep.jsonl --data.bounds.depth 2",
        "deep.jsonl:1: expected at most 2 lists",
    ),
]
EMBED = [
    ("embed in.tsv v.npy --model m --device cuda:99", "--device: expected a device of this machine"),
    ("embed in.tsv v.npy --model m --device cpu,gpu", "such as cpu, got 'gpu'"),
    ("embed a.txt v.csv --model m", "ends in .npy, .tsv or .parquet, got '.csv'"),
    ("embed a.txt no/such/v.npy --model m", "an existing folder, found none at no/such"),
    ("embed corpos.txt v.npy --model BERT", "did you mean corpus.txt?"),
    ("embed TEXTS v.npy --model no/such-model", "local folder or a name on the ... hub, got 'no/such-model'"),
    ("embed TEXTS v.npy --model cut", "expected"),
    (
        "embed in.tsv ./linked.tsv --model m",
        "linked.tsv: expected another file than the input in.tsv, got the same",
    ),
    (
        "embed in-00001-of-00002.tsv in.tsv --model m --shard 1/2",
        "in-00001-of-00002.tsv: expected another file than the input in-00001-of-00002.tsv, got the same",
    ),
    ("embed split.tsv v.npy --model m", "expected rows of one split, got train (1), dev (1); give --split train"),
    ("embed split.tsv v.npy --model m --split test", "expected rows of the split test, got train (1), dev (1)"),
    ("embed other.tsv v.npy --model m", "got title, date; give --column NAME"),
    ("embed TEXTS v.npy --model BERT --ranges q.npy --precision int8", "--ranges q.npy: expected a .npy file"),
    ("embed TEXTS v.npy --model BERT --ranges w.npy --precision int8", "expected a .npy file"),
    ("embed TEXTS v.npy --model BERT --ranges r.npy", "ranges: expected precision int8 or uint8, got float32"),
    ("embed TEXTS v.npy --model BERT --ranges r.npy --precision int8", "smallest and largest value of 16"),
    (
        "embed TEXTS v.npy --model BERT --shard 1/41",
        "shard 1/41: expected at most as many parts as texts, got 40 texts",
    ),
    ("embed TEXTS v.npy --model BERT --shard 0/4", "shard: expected 1/N to N/N ... got 0/4; add 1"),
    ("embed TEXTS v.npy --model BERT --shard 1/4 --precision int8", "ranges: expected ranges for int8"),
]
SEARCH = [
    ("search empty.txt q --model m --top_k 0", "--top_k: expected 1 or more, got 0"),
    ("duplicates empty.txt d.tsv --model m --threshold 1.5", "share above 0 to 1, got 1.5"),
    ("search empty.txt --model m", "expected a query after the corpus, or --queries FILE"),
    ("search empty.txt q --model m --query_column c", "--query_column: expected it with --queries FILE"),
    ("duplicates empty.txt d.csv --model m", "d.csv: expected a name that ends in .tsv, got '.csv'"),
    ("duplicates empty.txt d.tsv --model m --keep k.tsv", "k.tsv: expected ... .txt or .jsonl, got '.tsv'"),
]
EVALUATE = [
    ("evaluate m", "--suite sts sts-pearson trained-sts transfer probing ... mteb, got neither"),
    ("evaluate m one.tsv --suite sts", "expected files of scored pairs, or --suite sts"),
    ("evaluate m --suite sts", "--data: expected a folder of the suites' data sets, got no folder"),
    ("evaluate m --suite mteb sts --data d", "--suite mteb: expected this suite alone, got mteb sts"),
    ("evaluate m --suite glue sts --data d", "--suite glue: expected this suite alone"),
    ("evaluate m --suite sts --seeds 2 --data d", "--seeds: expected something that reads it, got sts"),
    ("evaluate m --suite mteb --tasks STS12 --data d", "--data: expected something that reads it"),
    ("evaluate m --suite mteb --output one.tsv", "one.tsv: expected a folder, got a file"),
    ("evaluate m --suite sts --data d --protocol fast", "--protocol: expected something"),
    ("evaluate m --suite transfer --data d --setting mean", "got transfer; leave it out, or"),
    ("evaluate m --suite sts --data d --columns target=x", "leave it out, or score files"),
    ("evaluate model pairs.tsv --columns gold", "--columns: expected NAME=COLUMN, got gold"),
    ("evaluate m --suite sts --data d --subsets --format csv", "got csv. It has the subsets"),
    ("evaluate m --suite sts --data d --without_frequent 2 --cache c", "got --cache too"),
    ("evaluate m --suite sts --data d --frequencies t", "expected it with --without_frequent"),
    ("evaluate m one.tsv --without_frequent 2", "--without_frequent: expected something that reads it"),
    ("evaluate m --suite sts --data nowhere", "nowhere: expected a folder of data sets, found none"),
    ("evaluate m two.tsv --threshold 0", "two.tsv: expected pairs labeled 0 or 1 for an accuracy, got 2"),
    ("evaluate m one.tsv --threshold 1", "--threshold: expected a cosine from -1 to below 1, got 1.0"),
    ("evaluate m --suite sts --data none", "--data: expected the data of one task or more, got no data"),
    ("evaluate m --suite sts --data sts12 --setting mean", "pairs whose subsets are named for mean, got sts12"),
    ("evaluate m --suite sts trained-sts --data sick", "sick.train.tsv"),
    ("evaluate m --suite sts transfer --data few", "mr.tsv"),
    ("evaluate m --suite sts probing --data past", "past_present.txt"),
    ("evaluate m --suite sts declutr --data sts12", "sts12.test.tsv"),
    ("evaluate no/such-model one.tsv", "expected a local folder or a name"),
    ("evaluate BERT PAIRS --cache file", "file: expected a folder, got a file; name another path than"),
]
COMPARE = [
    ("compare BERT --data PAIRS", "models: expected two or more"),
    ("compare a/b c/d --data PAIRS --suite transfer", "--data: expected a folder with --suite transfer"),
    ("compare a/b c/d --data nowhere", "found none"),
    ("compare a/b c/d --data empty.tsv", "empty.tsv"),
    ("compare a/b c/d --data PAIRS --protocol fast", "--protocol: expected something that reads it, got sts"),
    ("compare a/b c/d --data none --suite transfer --setting mean", "--setting: expected ... got transfer"),
    ("compare a/b c/d --data PAIRS --setting mean", "take all, or files with a column subset"),
    ("compare a/b c/d --data one.tsv", "one.tsv: expected two pairs or more, got 1"),
    (
        "compare a/b c/d --data none",
        "--data: expected the data of one task or more, got no data; STS12: expected",
    ),
    ("compare a/b c/d --data few --suite transfer", "10 rows or more of each class for 10 folds, got 1"),
]
OTHERS = [
    ("postprocess BERT TEXTS out", "expected --whiten or --remove_components, got neither"),
    ("postprocess BERT TEXTS out --whiten --remove_components 2", "--whiten or --remove_components, got both"),
    ("export no.ckpt out", "found nothing at no.ckpt"),
    ("export file out", "file: expected a whole checkpoint"),
    ("export bare.ckpt out", "got a file without weights and parts"),
    ("export MODEL out", "expected a run's folder with checkpoints"),
    ("export bare.ckpt bare.ckpt", "bare.ckpt: expected a folder, got a file"),
    ("export bare.ckpt .", "that does not contain the input bare.ckpt"),
    ("export bare.ckpt", "output"),
    ("merge out BERT", "expected two models or more, got 1"),
    ("merge out BERT BERT --weights 1 0", "expected 2 numbers above 0"),
    ("onnx no/model graph", "expected a local folder or a name on the Hugging Face hub"),
    ("postprocess BERT TEXTS out --remove_components 2 --features 3", "--features: expected it with --whiten"),
    ("mine PAIRS t.tsv --model BERT --columns positive=nowhere", "the column nowhere for columns.positive"),
    ("mine PAIRS t.tsv --model BERT --form tuples --short keep", "a .jsonl file for tuples of different lengths"),
    ("report nowhere", "expected a run's folder"),
    ("report .", "got . without these files"),
    ("new view Brand", "got existing files: test_brand.py"),
    ("new view Random", "Python has another module random; use MyRandom"),
    *[(f"new view {name}", "expected the name of a class") for name in ("brand_new", "B-New", "../B", "''")],
    *[(f"share BERT --to {name}", "--to: expected USER/NAME") for name in ("mine", "a/b/c", "'a/b c'", "/a")],
    ("verify nothing", "nothing: expected a file or a folder, got no such path"),
]
CASES = [
    *rest_slow(NAMES, quick=10),
    *rest_slow((*OWN_PARTS, *BOUNDS, *EMBED, *SEARCH, *EVALUATE, *COMPARE, *OTHERS), quick=40),
    *rest_slow(VALUES, quick=8),
    *rest_slow(TRAINING_FILES, quick=3),
]
SCORED = "sentence1\tsentence2\tscore\n"
FILES: Mapping[str, str] = {
    "poler.yaml": "model: {poler: MeanPooler}",
    "lrr.yaml": "model: {optimizer: {class_path: AdamW, init_args: {lrr: 1.0e-3}}}",
    "views.yaml": "model: {views: {anchor: [{class_path: DeletTokens}]}}",
    "mine.py": (
        "from contrastive_text.losses import NTXent\nfrom contrastive_text.views import TextView\n\n"
        "class KeepFirst(TextView):\n    def __init__(self, share: float = 0.5):\n        self.share = share\n"
        "    def __call__(self, text, rng):\n        return text\n\nclass OwnLoss(NTXent):\n    pass\n"
    ),
    "no_syntax.py": "\nclass A(:\n",
    "no_import.py": "\nimport nothing_there\n",
    "empty.txt": "",
    "empty.tsv": "",
    "corpus.txt": "a bird\n",
    "texts.pdf": "x",
    "deep.jsonl": '{"text": "one", "more": [[["two"]]]}\n',
    "in.tsv": "text\none\n",
    "in-00001-of-00002.tsv": "text\na\nb\n",
    "split.tsv": "text\tsplit\na\ttrain\nb\tdev\n",
    "other.tsv": "title\tdate\na\tb\n",
    "one.tsv": f"{SCORED}a\tb\t1\n",
    "two.tsv": f"{SCORED}a\tb\t1\nc\td\t2.5\n",
    "none/nothing.txt": "",
    "few/mr.tsv": "label\ttext\n0\ta\n1\tb\n",
    "sts12/sts12.test.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n2\ta\tc\n",
    "sick/sick.train.tsv": "score\tsentence1\tsentence2\n9\ta\tb\n",
    "past/past_present.txt": "xx\tPAST\ta text\n",
    "file": "mine",
    "test_brand.py": "mine",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def folder_of_files(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a case names."""
    folder = tmp_path_factory.mktemp("refusals") / "files"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    np.save(folder / "r.npy", np.zeros((2, 3), np.float32))
    np.save(folder / "w.npy", np.array([["a", "b"], ["c", "d"]]))
    torch.save({"state_dict": {}}, folder / "bare.ckpt")
    shutil.copytree(files["bert"], folder / "cut")
    weights = (folder / "cut" / "model.safetensors").read_bytes()
    (folder / "cut" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    return folder


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_wrong_command_line_is_answered_and_writes_nothing(
    line: str, expected: str, shell: Shell, here: Path, folder_of_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "no_syntax", "no_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shutil.copytree(folder_of_files, here, dirs_exist_ok=True)
    (here / "linked.tsv").hardlink_to(here / "in.tsv")
    if "cut.ckpt" in line or "flipped.ckpt" in line:
        checkpoint = bytearray(Path(*shell.words("CHECKPOINT")).read_bytes())
        (here / "cut.ckpt").write_bytes(checkpoint[: len(checkpoint) // 2])
        checkpoint[len(checkpoint) // 2] ^= 1
        (here / "flipped.ckpt").write_bytes(checkpoint)
    words = shell.words(line)
    before = contents(here)
    said = shell.refused(words)
    assert all(part in said for part in expected.split(" ... ")), said
    assert contents(here) == before
