"""fathom compare of two traces, or of two folders with the traces of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.analysis.finding import Cell
from fathom.cli.terminal import count, human, print_json, print_table, skipped
from fathom.core.record import Record
from fathom.trace.profile import from_trace
from fathom.trace.ranks import from_traces, processes_for, trace_files

if TYPE_CHECKING:  # the statistics take a second to load
    from fathom.analysis.compare_traces import TraceChange

SHOWN = 12  # op types and kernels, those with the largest differences; --json has all
HEAD = 200  # bytes of a file that tell a record, which begins with its spec, from a trace
LONGEST = 60  # characters of a kernel's name


def traces_at(path: Path) -> list[Record] | None:
    """The records of a trace or of a folder of traces; None for records that Fathom kept."""
    if path.is_dir():
        files = trace_files(path)
        if not files or not all(map(_is_trace, files)):
            return None
        return [from_trace(files[0])] if len(files) == 1 else from_traces(path, skipped, processes_for(path))
    return [from_trace(path)] if path.is_file() and _is_trace(path) else None


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head[:2] == b"\x1f\x8b" or b'"spec"' not in head


def from_traces_only(records: Sequence[Record]) -> bool:
    """Whether all of them were read from traces."""
    return all("trace" in record.spec.options and record.profile for record in records)


def report_traces(a: Path, b: Path, lots: tuple[Sequence[Record], Sequence[Record]], as_json: bool) -> None:
    from fathom.analysis.compare_traces import compare_traces

    found = compare_traces(*lots)
    if as_json:
        print_json({"a": str(a), "b": str(b), **asdict(found)})
        return
    for name, path, traces, steps in (("A", a, found.traces_a, found.steps_a), ("B", b, found.traces_b, found.steps_b)):
        human.print(
            f"{name}: {path}, {count(traces, 'trace')}, {count(steps, 'step')}", highlight=False, soft_wrap=True
        )
    _print("Time per step by op type", "op type", [found.step, *found.types[:SHOWN]])
    if found.kernels:
        _print("Time per step by kernel", "kernel", found.kernels[:SHOWN])
    for note in found.notes:
        human.print(f"· {note}", highlight=False)


def _print(title: str, what: str, changes: Sequence[TraceChange]) -> None:
    columns: dict[str, list[Cell]] = {
        what: [each.name[:LONGEST] for each in changes],
        "A (ms)": [1e3 * each.a_s for each in changes],
        "B (ms)": [1e3 * each.b_s for each in changes],
        "B - A (ms)": [1e3 * each.difference_s for each in changes],
        "95 % (ms)": [_interval(each) for each in changes],
        "ranks (ms)": [_ranks(each) for each in changes],
        "calls": [f"{each.calls_a:,.4g} → {each.calls_b:,.4g}" for each in changes],
    }
    for name in ("95 % (ms)", "ranks (ms)"):
        if not any(columns[name]):
            del columns[name]
    print_table(title, list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _interval(each: TraceChange) -> str | None:
    return each.interval_s and f"{1e3 * each.interval_s[0]:+.3g} to {1e3 * each.interval_s[1]:+.3g}"


def _ranks(each: TraceChange) -> str | None:
    spread = each.ranks
    if spread is None:
        return None
    low, high = (
        f"{1e3 * spread.low:+.3g} (rank {spread.low_rank})",
        f"{1e3 * spread.high:+.3g} (rank {spread.high_rank})",
    )
    return f"{low} to {high}"
