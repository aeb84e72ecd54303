"""Tests of the classes that a file may name: of this library, of imported and of trusted modules."""

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core.config.class_paths import UntrustedError, import_class, trusting
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.poolers import MeanPooler, Pooler
from contrastive_text.views import CropTokens, View

OF_MINE = (
    "from contrastive_text.poolers import MeanPooler, Pooler\nclass Mine(Pooler):\n    class Inner(Pooler): ...\n"
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module and a package with poolers, which nobody has imported."""
    for name in ("poolers_of_mine", "pack_of_mine", "pack_of_mine.sub"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "poolers_of_mine.py").write_text(OF_MINE)
    (tmp_path / "pack_of_mine").mkdir()
    (tmp_path / "pack_of_mine" / "__init__.py").write_text("")
    (tmp_path / "pack_of_mine" / "sub.py").write_text(OF_MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "poolers_of_mine"


@pytest.mark.parametrize(
    ("path", "base", "cls"),
    [
        ("contrastive_text.poolers.MeanPooler", Pooler, MeanPooler),
        ("MeanPooler", Pooler, MeanPooler),
        ("contrastive_text.views.CropTokens", View, CropTokens),
        ("contrastive_text.views.tokens.CropTokens", (Pooler, View), CropTokens),
        ("collections.OrderedDict", dict, OrderedDict),
    ],
)
def test_what_a_file_may_name(path: str, base: Any, cls: type) -> None:
    assert import_class(path, base, "a.ckpt") is cls


@pytest.mark.parametrize(
    "path",
    [
        *("subprocess.Popen", "os.system", "os.environ", "builtins.eval", "torch.nn.Linear", "torch.hub.load"),
        *("transformers.AutoModel", "pytorch_lightning.Trainer", "pytorch_lightning.callbacks.LambdaCallback"),
        *("contrastive_text.losses.InfoNCE", "contrastive_text.poolers.nn.Linear"),
        *(
            "contrastive_text.cli.main.run",
            "contrastive_text.nothing.Here",
            "contrastive_text.poolers.Nothing",
            "Popen",
            "CropTokens",
            "",
        ),
        *("a b.C", "a..C", "MeanPooler()", "{class_path: MeanPooler}", "/etc/passwd", "../evil.Evil"),
        *(None, 3, ["MeanPooler"], {"class_path": "MeanPooler"}),
    ],
)
def test_what_is_no_pooler_is_refused_with_its_place(path: object) -> None:
    before = set(sys.modules)
    with pytest.raises(InvalidValueError, match=r"^a\.ckpt: model\.pooler: expected "):
        import_class(path, Pooler, "a.ckpt: model.pooler")
    assert set(sys.modules) == before or str(path).startswith("contrastive_text.")  # ours import what they need


def test_a_module_is_imported_when_it_is_trusted_and_not_before(mine: str) -> None:
    for path in (f"{mine}.Mine", f"{mine}.Mine.Inner", f"{mine}.Nothing"):
        with pytest.raises(UntrustedError, match=rf"--trust {path.rpartition('.')[0]}, or in Python"):
            import_class(path, Pooler, "a.ckpt")
    assert mine not in sys.modules
    with trusting(["something_else", mine[:-1]]), pytest.raises(UntrustedError):
        import_class(f"{mine}.Mine", Pooler, "a.ckpt")  # a longer name is another module
    assert mine not in sys.modules
    with trusting([mine]):
        assert import_class(f"{mine}.Mine", Pooler, "a.ckpt").__name__ == "Mine"
        assert import_class(f"{mine}.Mine.Inner", Pooler, "a.ckpt").__name__ == "Inner"
        assert import_class(f"{mine}.MeanPooler", Pooler, "a.ckpt") is MeanPooler
        with pytest.raises(InvalidValueError, match=r"there is no such class$"):
            import_class(f"{mine}.Nothing", Pooler, "a.ckpt")
    assert import_class(f"{mine}.Mine", Pooler, "a.ckpt")  # the program has imported it now


def test_trust_of_a_package_is_trust_of_its_modules_and_ends_with_its_block(mine: str) -> None:
    with trusting(["pack_of_mine"]):
        assert import_class("pack_of_mine.sub.Mine", Pooler, "a.ckpt").__module__ == "pack_of_mine.sub"
    with trusting([mine]):
        pass
    with trusting(None), pytest.raises(UntrustedError):
        import_class(f"{mine}.Mine", Pooler, "a.ckpt")
    for modules, kind in (("my_views", InvalidTypeError), (["my_views.py "], InvalidValueError)):
        with pytest.raises(kind, match=r"^trust: expected"), trusting(modules):  # type: ignore[arg-type]  # the case
            pass


def test_a_trusted_module_that_lacks_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_of_mine.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with trusting(["lacking_of_mine"]), pytest.raises(ModuleNotFoundError, match=r"there_is_no_such_module'"):
        import_class("lacking_of_mine.Mine", Pooler, "a.ckpt")


def test_a_module_s_own_hook_for_missing_names_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lazy = type(sys)("lazy_of_mine")
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]  # the hook of a module
    monkeypatch.setitem(sys.modules, "lazy_of_mine", lazy)
    with pytest.raises(InvalidValueError, match=r"got lazy_of_mine\.Mine"):
        import_class("lazy_of_mine.Mine", Pooler, "a.ckpt")
    assert "Mine" not in asked
