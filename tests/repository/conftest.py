"""Makes the scripts of the repository importable, as they import each other."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "docs/parts", ".ci")]
