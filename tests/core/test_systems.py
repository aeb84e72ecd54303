"""The package is read on systems that lack the modules of Unix."""

import re
from pathlib import Path

import contrastive_text

OF_UNIX = ("fcntl", "resource", "termios", "pwd", "grp")


def test_no_file_imports_the_modules_of_unix_when_it_is_read() -> None:
    files = Path(contrastive_text.__file__).parent.rglob("*.py")
    imports = re.compile(rf"^(?:import|from) ({'|'.join(OF_UNIX)})\b", re.MULTILINE)
    assert imports.search("import fcntl\n")
    assert not [file.name for file in files if imports.search(file.read_text(encoding="utf-8"))]
