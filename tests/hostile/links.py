"""Links in model folders and run folders: none is followed out of a folder, on reading, saving or upload."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hostile.case import Make, answer, right
from hostile.makers import copied, link, vectors
from hostile.models import EMBED

SECRET = "the user's secret"
READ = (
    "config.json", "tokenizer.json", "modules.json", "model.safetensors", "sentence_bert_config.json",
    "1_Pooling", "2_Dense/model.safetensors", "chat_template.jinja", "vocab.txt", "additional_chat_templates",
)  # fmt: skip
SHARE = "share m --to me/mine --dry_run"


def linked(name: str, of: str = "foreign") -> Make:
    """Returns what copies a model folder and puts a link out of it in the place of one file or folder."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        copied(of)(path, sound)
        place, outside = path / name, path.parent / "outside"
        outside.mkdir()
        if place.exists():
            shutil.move(place, outside / place.name)
        else:
            (outside / place.name).write_text(SECRET, encoding="utf-8")
        place.symlink_to(outside / place.name)

    return make


def _chain(path: Path, sound: Mapping[str, str]) -> None:
    """Makes a folder whose configuration is a link to a link out of it."""
    copied("foreign", {"config.json": None})(path, sound)
    (path / "config.json").symlink_to("first.json")
    (path / "first.json").symlink_to(Path(sound["foreign"], "config.json"))


def _inner(path: Path, sound: Mapping[str, str]) -> None:
    """Makes a folder whose configuration is a link to a file inside of it."""
    copied("foreign")(path, sound)
    (path / "config.json").rename(path / "own.json")
    (path / "config.json").symlink_to("own.json")


def _secret_card(of: str) -> Make:
    def make(path: Path, sound: Mapping[str, str]) -> None:
        copied(of)(path, sound)
        (path / "README.md").unlink(missing_ok=True)
        (path / "README.md").symlink_to("../secret")

    return make


def _no_secret(place: Path, _: str) -> bool:
    texts = [path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()]
    return bool(texts) and not any(SECRET.encode() in text for text in texts)


_WRITERS = (
    "postprocess m $texts out --whiten --features 4",
    "merge out m m",
    "onnx m out",
    "fit --recipe simcse --model.encoder.model_name_or_path m --data.train $texts --data.batch_size 8 "
    "--trainer.accelerator cpu --trainer.max_steps 1",
)
_CARD: dict[str, str | bytes | Make] = {"m": _secret_card("model"), "secret": SECRET}
_OWN_FILES = ("config", "hparams", "metrics")


def _untouched(place: Path, _: str) -> bool:
    return all((place / name).read_text(encoding="utf-8") == "{}" for name in _OWN_FILES)


_RUN = right(
    "a run folder of links to files of the user's",
    "fit --recipe simcse --model.encoder.model_name_or_path $bert --data.train $texts --data.batch_size 8 "
    "--trainer.accelerator cpu --trainer.max_steps 1 --folder run",
    {
        **dict.fromkeys(_OWN_FILES, "{}"),
        "run/config.yaml": link("../config"),
        "run/hparams.yaml": link("../hparams"),
        "run/metrics.csv": link("../metrics"),
    },
    check=_untouched,
)
CASES = (
    *(answer(f"a model whose {name} is a link out", EMBED, {"m": linked(name)}, f"m/{name}") for name in READ),
    *(
        answer(
            f"a link out of a model for {command.partition(' ')[0]}",
            command,
            {"m": linked("chat_template.jinja")},
            "m/chat_template.jinja",
        )
        for command in _WRITERS
    ),
    answer("a model whose configuration is a link to a link out of it", EMBED, {"m": _chain}, "m/config.json"),
    right("a model with a link inside of it", EMBED, {"m": _inner}, check=vectors(40)),
    right(
        "a model whose card is a link, postprocessed",
        "postprocess m $texts out --remove_components 1",
        {"m": _secret_card("foreign"), "secret": SECRET},
        check=_no_secret,
    ),
    right("a model whose card is a link, merged", "merge out m m", _CARD, check=_no_secret),
    *(
        answer(f"a model to share whose {name} is a link", SHARE, {"m": linked(name, of="model")}, f"m/{name}")
        for name in ("tokenizer.json", "1_Pooling")
    ),
    answer("a model to share whose card is a link", SHARE, _CARD, "m/README.md", "link"),
    answer(
        "a model to share whose card is a link inside of it",
        SHARE,
        {"m": copied("model", {"README.md": None, "notes": SECRET}), "m/README.md": link("notes")},
        "m/README.md",
    ),
    replace(_RUN, may_change=("run/",)),
)
