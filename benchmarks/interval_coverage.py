"""How often the intervals hold what they claim, over real repeated launches in folders of records.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/interval_coverage.py FOLDER... --out FILE.json
Launches of one spec on one machine and device are repeated ones. Of every two, does the interval of the one's steps
(within this process) hold the other's median? It does not claim to: the number says what such an interval is worth as a
statement about the machine. The interval of the next launch is made from all launches but one, and is to hold that one
in 95 of 100 cases; its width is printed beside. Where a configuration has many launches, the interval over launches is
made from some of them, and is to hold the median of all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fathom.analysis.statistics import Interval, launch_bounds, median_interval, next_bounds
from fathom.analysis.step_time import settled_steps
from fathom.core.record import Record
from fathom.core.store import read

MANY = 20  # launches from which some of them are held against all
SUBSETS = 200  # drawn of each size
SIZES = (3, 5, 10)


@dataclass(frozen=True)
class Count:
    """How many intervals held what they were held against, and how wide each is: its upper end over its lower one."""

    held: int
    of: int
    widths: tuple[float, ...] = ()

    def __str__(self) -> str:
        if not self.of:
            return "none"
        wide = f"; upper over lower end {statistics.median(self.widths):.3g} in the median" if self.widths else ""
        return f"{self.held} of {self.of} ({self.held / self.of:.0%}){wide}"


def count(intervals: Iterable[tuple[float, float]], values: Iterable[float]) -> Count:
    """Each interval against its value."""
    pairs = list(zip(intervals, values, strict=True))
    held = sum(low <= value <= high for (low, high), value in pairs)
    return Count(held, len(pairs), tuple(high / low for (low, high), _ in pairs if low > 0))


def repeated(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Good launches with timed steps that were made more than once, by what they ran and where."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok" and record.step_s and record.spec.kind in ("timed", "profiled"):
            key = f"{record.spec.workload} {record.spec.phase} {record.spec.id} on {record.machine_label}"
            groups[key].append(record)
    return {key: runs for key, runs in groups.items() if len(runs) > 1}


def between_launches(intervals: Sequence[Interval]) -> Count:
    """Of every two launches in either order: the one's interval holds the other's median."""
    pairs = list(itertools.permutations(intervals, 2))
    return count([(one.low, one.high) for one, _ in pairs], [other.median for _, other in pairs])


def next_launch(values: Sequence[float]) -> Count:
    """Each launch left out in turn, and predicted from the others."""
    others = [[*values[:index], *values[index + 1 :]] for index in range(len(values))]
    predicted = [(bounds, value) for rest, value in zip(others, values, strict=True) if (bounds := next_bounds(rest))]
    return count([bounds for bounds, _ in predicted], [value for _, value in predicted])


def of_some(values: Sequence[float], size: int) -> Count:
    """Some launches drawn at random: their interval holds the median of all."""
    if len(values) < MANY:
        return Count(0, 0)
    random, whole = np.random.default_rng(size), statistics.median(values)
    drawn = [random.choice(values, size, replace=False).tolist() for _ in range(SUBSETS)]
    return count(map(launch_bounds, drawn), [whole] * SUBSETS)


def counted(runs: Sequence[Record]) -> dict[str, Count]:
    """Of one configuration: of its median step, and of its wall time where the parent has seen it."""
    intervals = [median_interval([settled_steps(run)]) for run in runs]
    medians = [interval.median for interval in intervals]
    walls = [run.sections.wall_s for run in runs if run.sections.wall_s is not None and run.spec.kind == "timed"]
    found = {"within one process, another launch's median": between_launches(intervals)}
    found["next launch's median step"] = next_launch(medians)
    found["next launch's wall time"] = next_launch(walls)
    for size in SIZES:
        found[f"over {size} launches, the median of all"] = of_some(medians, size)
    return found


def total(counts: Iterable[Count]) -> Count:
    every = list(counts)
    widths = tuple(width for each in every for width in each.widths)
    return Count(sum(each.held for each in every), sum(each.of for each in every), widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    groups = repeated(read(arguments.folders, print))
    counts = {key: counted(runs) for key, runs in sorted(groups.items())}
    claims = list(dict.fromkeys(claim for found in counts.values() for claim in found))
    totals = {claim: total(found[claim] for found in counts.values()) for claim in claims}
    launches = [len(runs) for runs in groups.values()]
    if not launches:
        raise SystemExit("no configuration was launched more than once")
    print(f"{len(groups)} configurations with {min(launches)} to {max(launches)} launches each")
    for claim, found in totals.items():
        print(f"{claim:45} {found}")
    if arguments.out:
        arguments.out.write_text(json.dumps(_document(arguments.folders, groups, counts, totals), indent=1) + "\n")


def _document(
    folders: Sequence[Path],
    groups: dict[str, list[Record]],
    counts: dict[str, dict[str, Count]],
    totals: dict[str, Count],
) -> dict[str, Any]:
    def shown(found: dict[str, Count]) -> dict[str, Any]:
        return {claim: shown_count(each) for claim, each in found.items() if each.of}

    def shown_count(each: Count) -> dict[str, Any]:
        width = statistics.median(each.widths) if each.widths else None
        return {"held": each.held, "of": each.of, "upper_over_lower_median": width}

    rows = [{"configuration": key, "launches": len(groups[key]), **shown(found)} for key, found in counts.items()]
    return {"records": [str(folder) for folder in folders], "totals": shown(totals), "configurations": rows}


if __name__ == "__main__":
    main()
