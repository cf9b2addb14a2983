"""Prints what one trace tells beyond its ops: GPU time, collectives, idle time, launches, the critical path."""

from __future__ import annotations

from fathom.analysis.finding import Cell
from fathom.cli.terminal import human, print_table
from fathom.core.depth import CriticalPath, GpuSplit, TraceDepth

HEAVIEST = 8  # parts of the critical path that are shown; the record has all
MOST_STREAMS = 6


def print_depth(depth: TraceDepth) -> None:
    """Nothing for a trace without GPU activities."""
    whole = depth.whole
    if whole is None:
        return
    columns = ["", "computation (%)", "exposed communication (%)", "exposed copies (%)", "idle (%)", "time (ms)"]
    print_table("GPU time, from the first kernel to the last", columns, [split_cells("all steps", whole)])
    if depth.collectives:
        _print_collectives(depth, whole)
    _print_streams(depth)
    _print_launches(depth)
    if depth.path is not None:
        _print_path(depth.path)


def split_cells(name: str, split: GpuSplit) -> list[Cell]:
    parts = (split.computation_s, split.exposed_communication_s, split.exposed_memory_s, split.idle_s)
    return [name, *(100 * part / split.span_s if split.span_s else None for part in parts), 1e3 * split.span_s]


def _print_collectives(depth: TraceDepth, whole: GpuSplit) -> None:
    rows: list[list[Cell]] = []
    for each in depth.collectives:
        rates = [rate and rate / 1e9 for rate in (each.algorithm_bytes_per_s, each.bus_bytes_per_s)]
        rows.append([each.name, each.group, each.size, len(each.seconds), 1e3 * sum(each.seconds), *rates])
    columns = ["collective", "group", "ranks", "calls", "time (ms)", "algorithm (GB/s)", "bus (GB/s)"]
    print_table("Communication, over all steps", columns, rows)
    if whole.overlap is not None:
        human.print(f"{100 * whole.overlap:.3g} % of the communication time is overlapped by computation")


def _print_streams(depth: TraceDepth) -> None:
    rows: list[list[Cell]] = [
        [
            f"{each.device} {each.stream}",
            each.activities,
            1e3 * each.busy_s,
            1e3 * each.host_wait_s,
            1e3 * each.kernel_wait_s,
            1e3 * each.other_s,
            each.queue_mean,
            each.queue_max,
        ]
        for each in sorted(depth.streams, key=lambda each: -each.busy_s)[:MOST_STREAMS]
    ]
    columns = [
        "stream",
        "kernels",
        "busy (ms)",
        "host wait (ms)",
        "kernel wait (ms)",
        "other (ms)",
        "queued",
        "at most",
    ]
    print_table("Streams: busy, and idle between two kernels by cause", columns, rows)


def _print_launches(depth: TraceDepth) -> None:
    found = depth.launches
    if found is not None:
        human.print(
            f"launch delay: median {1e6 * found.delay_median_s:.3g} us, "
            f"95th percentile {1e6 * found.delay_p95_s:.3g} us; "
            f"{found.shorter_than_call:,} of {found.count:,} kernels are shorter than their launch call",
            highlight=False,
        )
        share = 100 * found.short_s / found.kernels_s if found.kernels_s else 0.0
        human.print(
            f"kernels below 10 us: {found.short:,} of {found.kernels:,}, {share:.3g} % of the kernel time",
            highlight=False,
        )
    for each in depth.copies:
        if each.bytes_per_s is not None:
            human.print(f"{each.direction}: {each.bytes_per_s / 1e9:.3g} GB/s, {each.count:,} copies", highlight=False)


def _print_path(path: CriticalPath) -> None:
    total = sum(part.seconds for part in path.parts)
    if total <= 0:
        return
    rows: list[list[Cell]] = [
        [part.kind, part.name, 1e3 * part.seconds, 100 * part.seconds / total] for part in path.parts[:HEAVIEST]
    ]
    shares = [f"{kind} {100 * path.kind_s(kind) / total:.3g} %" for kind in path.per_step_s]
    print_table("Critical path of a step", ["where", "what", "per step (ms)", "%"], rows)
    human.print(f"critical path: {', '.join(shares)}", highlight=False)
