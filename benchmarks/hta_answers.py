"""What HolisticTraceAnalysis answers for one trace, with its time and memory, as JSON on stdout.

Run by benchmarks/traces.py with the Python of an environment that has HolisticTraceAnalysis; imports nothing of Fathom.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it cuts every time to whole microseconds

KERNEL_DELAY_US = 30  # its default


def peak_bytes() -> int:
    """Of this program alone; getrusage would count what the process held before it became this program."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def temporal(analysis: Any, rank: int) -> dict[str, float]:
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return {name: float(row[f"{name}_time(us)"]) for name in ("idle", "compute", "non_compute", "kernel")}


def overlap_percent(analysis: Any, rank: int) -> float | None:
    return known(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])


def kernel_kinds(analysis: Any, rank: int) -> dict[str, float]:
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    return {str(row.kernel_type): float(row["sum"]) for _, row in kinds.iterrows()}


def idle(analysis: Any, rank: int) -> dict[str, dict[str, float]]:
    frame, _ = analysis.get_idle_time_breakdown(ranks=[rank], consecutive_kernel_delay=KERNEL_DELAY_US, visualize=False)
    found: dict[str, dict[str, float]] = {}
    for _, row in frame.iterrows():
        found.setdefault(str(int(row.stream)), {})[str(row.idle_category)] = float(row.idle_time)
    return found


def queue_max(analysis: Any, rank: int) -> dict[str, int]:
    frame = analysis.get_queue_length_summary(ranks=[rank])
    return {str(int(stream)): int(row[("queue_length", "max")]) for (_, stream), row in frame.iterrows()}


def launches(analysis: Any, rank: int) -> dict[str, float | None]:
    frame = analysis.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False)[rank]
    shorter = frame[frame["gpu_duration"] < frame["cpu_duration"]]
    return {
        "count": len(frame),
        "mean_delay": known(frame["launch_delay"].mean()),
        "shorter_than_call": len(shorter),
        "shorter_than_call_us": float(shorter["gpu_duration"].sum()),
    }


QUESTIONS = (temporal, overlap_percent, kernel_kinds, idle, queue_max, launches)


def answers(path: Path) -> dict[str, Any]:
    """Each answer, or why there is none; a question that fails takes no other with it."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:  # it reads folders, one rank a file
        shutil.copy(path, Path(folder) / path.name)
        begun = time.perf_counter()
        analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
        rank = next(iter(analysis.t.traces))
        found["load_s"] = time.perf_counter() - begun
        for question in QUESTIONS:
            try:
                found[question.__name__] = question(analysis, rank)
            except Exception as error:  # of any kind: it is not our code
                found.setdefault("failed", {})[question.__name__] = f"{type(error).__name__}: {error}"[:200]
        found["seconds"] = time.perf_counter() - begun
    found["peak_bytes"] = peak_bytes()
    return found


if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # it prints and logs
    try:
        document = answers(Path(sys.argv[1]))
    except Exception as error:
        document = {"error": f"{type(error).__name__}: {error}"[:200]}
    json.dump(document, out)
