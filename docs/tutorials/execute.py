"""Executes the tutorials from their sources and stores the notebooks next to them.

python docs/tutorials/execute.py [NAME ...] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
LIMIT = 240  # seconds that a whole tutorial may take
BAR = re.compile(
    r"\x1b\[\?25l.*?\x1b\[\?25h", flags=re.DOTALL
)  # a progress bar, from its first to its last state
THIS_MACHINE = ("This device multiplies faster in bfloat16",)  # lines of a run that another machine doesn't print


def execute(name: str, output: Path) -> float:
    """Writes ``NAME.ipynb`` with its outputs, and returns how many seconds they took.

    The notebook runs in an empty folder. What Lightning and transformers log is left out, and so is what differs
    from one machine to the next.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=LIMIT, record_timing=False, resources={"metadata": {"path": folder}}
        )
        client.execute()
    seconds = time.perf_counter() - begun
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = cleaned(cell.outputs)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    notebook.nbformat_minor = 5
    nbformat.write(notebook, output / f"{name}.ipynb")
    if seconds > LIMIT:
        raise SystemExit(f"{name}: expected at most {LIMIT} s, took {seconds:.0f} s")
    return seconds


def cleaned(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Returns a cell's outputs: printed text in one piece, without what belongs to the machine."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            kept.append(output)
        elif output.name == "stdout" and kept and kept[-1].output_type == "stream":
            kept[-1].text += output.text
        elif output.name == "stdout":
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            lines = BAR.sub("", output.text).splitlines(keepends=True)
            output.text = "".join(line for line in lines if not line.startswith(THIS_MACHINE))
    return [output for output in kept if output.output_type != "stream" or output.text]


def main() -> None:
    """Executes the named tutorials, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    sources = sorted(path.stem for path in HERE.glob("[0-9]*.py"))
    # Commands of a notebook are those of this interpreter's environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["COLUMNS"] = "100"
    for name in options.names or sources:
        print(f"{name}: {execute(name, options.output):.0f} s", flush=True)


if __name__ == "__main__":
    main()
