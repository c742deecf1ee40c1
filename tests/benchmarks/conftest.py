"""The benchmarks are no part of the package: their folder's parent is where they are imported from."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
