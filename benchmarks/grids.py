"""Files the tables of finished sweeps as one dated result, with the configuration of every cell.

python benchmarks/grids.py declutr-documents runs/declutr runs/declutr-more --said said.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from runs import RESULTS, cell_configurations, machine, publish


def main() -> None:
    """Reads the folders that ``sweep`` left, and writes their tables one below the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="of the file's name, what stands after grid-")
    parser.add_argument("folders", type=Path, nargs="+", help="--output of each sweep")
    parser.add_argument("--said", type=Path, help="what stands below the tables")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = [f"# {options.what.replace('-', ' ', 1)}", "", f"{machine()}. Filed by `benchmarks/grids.py`.", ""]
    rows, cells = [], {}
    for folder in options.folders:
        lines += [(folder / "table.md").read_text().replace("# ", "## ", 1).strip(), ""]
        rows.append({"sweep": folder.name, **json.loads((folder / "table.json").read_text())})
        cells[folder.name] = cell_configurations(folder)
    if options.said:
        lines += [options.said.read_text().strip()]
    print(publish(f"grid-{options.what}", lines, rows, cells, folder=options.out).read_text())


if __name__ == "__main__":
    main()
