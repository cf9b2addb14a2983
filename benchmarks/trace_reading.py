"""Reading a GPU trace and breaking it down, beside HolisticTraceAnalysis, on the same file in the same run.

Run from the root of the checkout, with HolisticTraceAnalysis installed:
PYTHONPATH=src python benchmarks/trace_reading.py TRACE.json.gz
Both read the file and total the time of every kernel; the totals must agree, and the ratio of the times is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fathom.trace import reader, walk
from fathom.trace.convolution import split_backward
from fathom.trace.profile import as_profile


@reader.gc_disabled()
def ours(path: Path) -> float:
    """Everything `fathom profile --trace` takes from a trace; gives the kernels' total in microseconds."""
    trace = reader.read(path)
    found = walk.breakdown(trace.events)
    split_backward(found)
    as_profile(found, trace.events, [], [])
    return sum(activity.end - activity.begin for activity in found.gpu_activities if activity.kind == "kernel")


def theirs(path: Path) -> float:
    """The trace loaded, and its kernel breakdown; gives the same total."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it cuts every kernel to whole microseconds
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:  # it reads folders, one rank a file
        shutil.copy(path, Path(folder) / path.name)
        analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        frame = analysis.t.get_trace(0)
        names = analysis.t.symbol_table.get_sym_table()
        kernels = frame[frame["cat"].map(lambda index: names[index]) == "kernel"]
        return float(kernels["dur"].sum())


def seconds(work: Callable[[Path], float], path: Path) -> tuple[float, float]:
    begun = time.perf_counter()
    total = work(path)
    return time.perf_counter() - begun, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"fathom": [], "hta": []}
    totals: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name, work in (("fathom", ours), ("hta", theirs)):
            spent, totals[name] = seconds(work, arguments.trace)
            times[name].append(spent)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["hta"] / medians["fathom"]
    apart = abs(totals["fathom"] / totals["hta"] - 1)
    print(f"kernel totals: {totals['fathom']:.1f} and {totals['hta']:.1f} µs, apart by {apart:.2e}")
    print(f"fathom {medians['fathom']:.3f} s, HolisticTraceAnalysis {medians['hta']:.3f} s: {ratio:.1f} times as fast")
    if arguments.out:
        arguments.out.write_text(json.dumps({"seconds": times, "kernel_us": totals, "times_as_fast": ratio}, indent=1))


if __name__ == "__main__":
    main()
