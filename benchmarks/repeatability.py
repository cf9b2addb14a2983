"""How far the op shares of two studies of the same machine lie apart: the cells above 5 %, in points.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/repeatability.py ONE OTHER --out FILE.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fathom.analysis.selection import op_type, select
from fathom.core.store import Store

LARGE = 5.0  # percent of the step in either study; smaller cells are noise to anybody

Cells = dict[tuple[str, str, str, str], float]


def shares(folder: Path) -> Cells:
    """Workload, phase, machine and op type -> percent of the step."""
    chosen = select(list(Store(folder).records()), profiled=True)
    return {
        (group.workload, group.phase, group.machine, kind): percent
        for group in chosen.groups
        for kind, percent in group.percent_by(op_type).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    one, other = shares(arguments.one), shares(arguments.other)
    large = [cell for cell in one.keys() | other.keys() if max(one.get(cell, 0), other.get(cell, 0)) > LARGE]
    apart = sorted(((abs(one.get(cell, 0) - other.get(cell, 0)), cell) for cell in large), reverse=True)
    for points, cell in apart[:10]:
        print(f"{points:5.2f} points: {' '.join(cell)}: {one.get(cell, 0):.1f} and {other.get(cell, 0):.1f} %")
    print(f"{len(large)} cells above {LARGE:g} %, at most {apart[0][0]:.2f} points apart")
    if arguments.out:
        cells = [{"cell": cell, "one": one.get(cell, 0), "other": other.get(cell, 0)} for _, cell in apart]
        arguments.out.write_text(json.dumps({"most_points_apart": apart[0][0], "percent_of_step": cells}, indent=1))


if __name__ == "__main__":
    main()
