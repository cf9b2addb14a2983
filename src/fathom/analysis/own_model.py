"""A user's own model or trace: one finding each, with the tree of its step, its timeline, memory and source lines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.outside_lines import longest, outside_lines
from fathom.analysis.selection import (
    bounded_percent,
    configuration,
    machine_name,
    on_gpu,
    outside_bounds,
    plain_scale,
    plain_step_s,
    seconds_by,
    told_apart,
)
from fathom.analysis.tree import pruned, tree
from fathom.core.formatting import count, seconds, size
from fathom.core.record import Profile, Record
from fathom.core.traced import Lane, Memory, Timeline
from fathom.trace.taxonomy import GROUPS, group_of

OWN = {"trace", "parameters"}  # options that records of a user's traces and models have; older ones have no source
SHOWN_LINES, SHOWN_WAITS, SHOWN_HOLDERS = 15, 10, 12
SHOWN_TYPES = 3
LEAST_PERCENT = 0.1  # of op time, or of the step: lines below it are not shown
LEAST_TOLD = 0.03  # of the step: a function below it is not in the summary
OUTSIDE_NOTE = (
    "Time outside ops counts for the innermost function that is neither torch's nor a library's, with what it calls of "
    "these. Recording the calls slowed the steps, so shares of the unprofiled step are two estimates: as recorded, "
    "and less what its calls cost the profiler if all cost the same. Functions of very many short calls may have less."
)
MEGA = 1e6


def is_own(record: Record) -> bool:
    """Whether it is of a user's model or trace, and not of a workload."""
    return record.spec.source != "workload" or bool(OWN & record.spec.options.keys())


def findings(records: Sequence[Record]) -> list[Finding]:
    """One for each model or trace, phase, batch and machine: of its last profile."""
    latest: dict[tuple[str, str, float | None], Record] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.outcome == "ok" and is_own(record) and record.profile and record.profile.op_s > 0:
            latest[record.spec.id, machine_name(record), record.items_per_step] = record
    runs = list(latest.values())
    names = told_apart([(_name(record, runs), configuration(record)) for record in runs])
    return [_finding(record, name) for record, name in zip(runs, names, strict=True)]


def _name(record: Record, runs: Sequence[Record]) -> str:
    name = record.spec.workload
    alike = [run for run in runs if run.spec.workload == name]
    if len(alike) == 1:
        return name
    batches = len({run.items_per_step for run in alike}) > 1 and record.items_per_step is not None
    doing = {"train": "training", "infer": "inference"}[record.spec.phase]
    return f"{name}, {doing}{f' of {record.items_per_step} items' if batches else ''} on {machine_name(record)}"


def _finding(record: Record, name: str) -> Finding:
    profile = record.profile
    assert profile is not None  # asked for by findings()
    return Finding(
        question="your model",
        title=f"Your model: {name}",
        summary=_summary(record, profile),
        tables=[
            each
            for each in (
                lines_table(profile),
                outside_table(profile),
                waits_table(profile),
                *_memory_tables(profile.memory),
            )
            if each.rows
        ],
        charts=[
            _icicle(profile, record.spec.workload),
            *([_timeline(profile.timeline)] if profile.timeline else []),
            *([_memory(profile.memory)] if profile.memory else []),
        ],
        notes=_notes(profile),
    )


def _summary(record: Record, profile: Profile) -> str:
    step_s = plain_step_s(profile)
    by_class = seconds_by([profile], lambda row: GROUPS.get(group_of(row.type), "other ops").lower())
    heaviest = max(by_class, key=lambda name: by_class[name])
    share = 100 * by_class[heaviest] / max(step_s, sum(by_class.values()))
    parts = [f"{seconds(step_s)} per {'training' if record.spec.phase == 'train' else 'inference'} step"]
    parts[0] += f" on {machine_name(record)}."
    if on_gpu(profile):
        low, _ = outside_bounds(profile)
        parts.append(f"The device is busy for {100 * (1 - low):.0f} % of it.")
    parts.append(f"Most time in one class of ops: {heaviest}, {share:.0f} %.")
    if profile.memory:
        peak = peak_in_words(profile.memory)
        parts.append(f"{peak[0].upper()}{peak[1:]}.")
    if profile.sources and profile.sources.lines:
        first = profile.sources.lines[0]
        percent = 100 * first.seconds / profile.op_s
        parts.append(f"The ops called by {first.line} take {percent:.0f} % of op time.")
    own = max((line for line in outside_lines(profile) if line.is_users), key=lambda line: line.own_s, default=None)
    if own and own.own_s >= LEAST_TOLD * step_s:
        waiting = " while the GPU waits" if on_gpu(profile) else ""
        parts.append(f"Python code in {own.line} runs outside ops for {100 * own.own_s / step_s:.0f} % of it{waiting}.")
    return " ".join(parts)


def peak_in_words(memory: Memory) -> str:
    """peak memory 3.2 GiB on cuda:0: activations 60 %, parameters 25 %, gradients 15 %."""
    least = "at least " if memory.is_lower_bound else ""
    shares = [
        f"{kind} {100 * held / memory.peak_bytes:.0f} %"
        for kind, held in memory.kinds.items()
        if held >= 0.005 * memory.peak_bytes
    ]
    parts = f": {', '.join(shares)}" if shares else ""
    return f"peak memory {least}{size(memory.peak_bytes)} on {memory.device}{parts}"


def lines_table(profile: Profile) -> Table:
    """The source lines whose ops take the most time."""
    found, total, scale = profile.sources, profile.op_s, plain_scale(profile)
    rows: list[list[Cell]] = []
    heavy = [line for line in found.lines if 100 * line.seconds >= LEAST_PERCENT * total] if found else []
    for line in heavy[:SHOWN_LINES]:
        types = ", ".join(f"{kind} {_percent(time, line.seconds)}" for kind, time in _first(line.types))
        below = ", ".join(f"{name} {_percent(time, line.seconds)}" for name, time in _first(line.libraries))
        shares: list[Cell] = [100 * line.seconds / total, 100 * line.backward_s / total]
        rows.append([line.line, line.seconds * scale * 1e3, *shares, line.calls, types, below or None])
    columns = ["source line", "per step (ms)", "share of op time (%)", "backward (% of op time)", "op calls per step"]
    columns += ["largest op types", "in libraries"]
    return Table(title="Time of ops by the source line that called them", columns=columns, rows=rows)


def outside_table(profile: Profile) -> Table:
    """The functions that run outside ops for most of the time."""
    step_s = plain_step_s(profile)
    rows: list[list[Cell]] = []
    heavy = [line for line in outside_lines(profile) if 100 * line.seconds >= LEAST_PERCENT * step_s]
    for line in heavy[:SHOWN_LINES]:
        bounds = sorted([line.by_calls_s / step_s, line.by_time_s / step_s])
        shares: list[Cell] = [bounded_percent(*bounds), 100 * line.torch_s / line.seconds]
        called = [f"{name} {_percent(time, line.seconds)}" for name, time in longest(line.callees, SHOWN_TYPES)]
        rows.append([line.line or "(not known)", line.seconds * 1e3, *shares, ", ".join(called) or None])
    columns = ["function", "per step (ms)", "share of step (%)", "of it torch's own (%)", "in calls of"]
    waits = ", while the GPU waits" if on_gpu(profile) else ""
    return Table(title=f"Time outside ops{waits}, by the function that ran", columns=columns, rows=rows)


def waits_table(profile: Profile) -> Table:
    """Where the host waits for the device."""
    waits = profile.sources.waits[:SHOWN_WAITS] if profile.sources else []
    step_s = statistics.fmean(profile.step_s) if profile.step_s else 0.0
    rows: list[list[Cell]] = [
        [
            wait.line or None,
            wait.op or "(outside ops)",
            wait.call,
            wait.calls,
            wait.seconds * 1e3,
            100 * wait.seconds / step_s if step_s else None,
        ]
        for wait in waits
    ]
    columns = ["source line", "op", "call", "calls per step", "waiting (ms)", "waiting (% of profiled step)"]
    return Table(title="Host synchronisations: the host waits for the device", columns=columns, rows=rows)


def _first(values: dict[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in list(values.items())[:SHOWN_TYPES] if value > 0]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _memory_tables(memory: Memory | None) -> list[Table]:
    if memory is None:
        return []
    kinds: list[list[Cell]] = [
        [kind, held / MEGA, 100 * held / memory.peak_bytes] for kind, held in memory.kinds.items()
    ]
    held: list[list[Cell]] = [
        [
            each.kind,
            each.phase or None,
            each.layer or None,
            each.op or None,
            each.allocations or None,
            each.bytes / MEGA,
            100 * each.bytes / memory.peak_bytes,
        ]
        for each in memory.held[:SHOWN_HOLDERS]
    ]
    columns = ["kind", "pass", "layer", "op", "allocations", "MB", "share of peak (%)"]
    return [
        Table(title="What holds the memory at its peak", columns=["kind", "MB", "share of peak (%)"], rows=kinds),
        Table(title="The largest holders at the peak, by the op that allocated them", columns=columns, rows=held),
    ]


def _icicle(profile: Profile, name: str) -> Chart:
    root = tree(profile, name)
    nodes = pruned(root)
    step_s = max(plain_step_s(profile), root.seconds)
    return Chart(
        kind="icicle",
        title="Time in ops: modules, their ops, the ops' kernels",
        x_title="module, op, kernel",
        y_title="per step (ms)",
        unit="ms",
        series=[
            Series(
                name="step",
                x=[path for path, _ in nodes],
                y=[node.seconds * 1e3 for _, node in nodes],
                text=[node.described(step_s) for _, node in nodes],
            )
        ],
        note=f"Width is time in ops: {100 * root.seconds / step_s:.0f} % of the step; the rest is outside ops. Names "
        "in brackets are in no module. Click a part, or focus the chart and use the arrow keys, to zoom in; the bar "
        "above the chart, or the up arrow, leads back.",
    )


def _timeline(found: Timeline) -> Chart:
    """Rectangles by class of op, so that each class has one colour; names are on them and on hover."""
    spans: dict[str, list[tuple[Lane, int]]] = {}
    for lane in found.lanes:
        for index, name in enumerate(lane.names):
            spans.setdefault(GROUPS.get(group_of(found.types[name]), "Other"), []).append((lane, index))
    series = [
        Series(
            name=group,
            x=[[lane.begin_us[at] / 1e3, (lane.begin_us[at] + lane.us[at]) / 1e3] for lane, at in own],
            y=[lane.name for lane, _ in own],
            text=[_rectangle(found, lane, at) for lane, at in own],
        )
        for group, own in sorted(spans.items(), key=lambda entry: -sum(lane.us[at] for lane, at in entry[1]))
    ]
    return Chart(
        kind="timeline",
        title="Timeline of one typical step",
        x_title="time in the step (ms)",
        y_title="",
        unit="ms",
        series=series,
        lanes=[lane.name for lane in found.lanes],
        note=f"Outermost ops of each thread, kernels and copies of each stream. What lies within "
        f"{seconds(found.resolution_us * 1e-6)} is one rectangle, named after the longest in it.",
    )


def _rectangle(found: Timeline, lane: Lane, at: int) -> str:
    merged = lane.counts[at]
    return found.names[lane.names[at]] + (f" and {count(merged - 1, 'other')}" if merged > 1 else "")


def _memory(memory: Memory) -> Chart:
    return Chart(
        kind="line",
        title=f"Memory allocated on {memory.device} over the step with the highest peak",
        x_title="time in the step (ms)",
        y_title="allocated (MB)",
        unit="MB",
        series=[
            Series(
                name="allocated",
                x=[time * 1e3 for time in memory.times_s],
                y=[each / MEGA for each in memory.allocated],
            ),
            Series(name="peak", x=[memory.peak_s * 1e3], y=[memory.peak_bytes / MEGA], text=[size(memory.peak_bytes)]),
        ],
        note="Times are the host's, at which memory is allocated: a GPU may run the kernels later.",
    )


def _notes(profile: Profile) -> list[str]:
    notes = list(profile.notes)
    if profile.sources and profile.sources.lines:
        which = (
            "The line is that of the call."
            if profile.sources.exact
            else "The line is the one in which the calling function begins, as traces of today have it."
        )
        notes.append(
            "An op counts for the innermost frame of its stack that is neither torch's nor a library's, or else for "
            f"the library's. A backward op counts for the line of its forward op. {which}"
        )
    if profile.sources and profile.sources.outside:
        notes.append(OUTSIDE_NOTE)
    if profile.memory and profile.memory.kinds:
        notes.append(
            "Memory at the peak is told by the op that allocated it and by how long it lived. Temporary: freed before "
            "that op ended, or before the step did where the optimizer allocated it. Activations: allocated in the "
            "forward pass and kept. Gradients: allocated in the backward "
            "pass and kept after it; activation gradients: freed within it. Optimizer state: allocated in the "
            "optimizer's step and kept after it. Before the trace: allocated earlier, such as weights."
        )
    if profile.memory and profile.memory.is_lower_bound:
        notes.append("What was allocated before the trace is not in it: memory is a lower bound.")
    return notes
