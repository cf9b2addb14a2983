"""What limits each op and each workload: arithmetic, memory, latency, launching or data? Not in the 2016 paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.limits import (
    BOUND,
    DISPATCH_S,
    HIDDEN,
    MOST,
    VERDICTS,
    RowCost,
    Verdict,
    costs,
    judge,
    longest,
    shares_of,
)
from fathom.analysis.selection import RunGroup, Selection, select
from fathom.core.formatting import in_percent, listed
from fathom.core.record import OpRow, Profile, Record

CONVOLUTION = "D"  # of the 2016 classes
TITLE = "What limits each workload?"
ORDER = 40
LEAST_PERCENT = 1.0  # of op time; rows and types below it are not listed
SHOWN_ROWS = 10  # of each run
SHOWN_SHAPES = 60  # characters: a list of weights has thousands


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("roofline", TITLE, "fathom study", selection.notes)
    verdicts = [judge(group) for group in selection.groups]
    return Finding(
        question="roofline",
        title=TITLE,
        summary=" ".join(_sentence(machine, verdicts) for machine in selection.machines),
        tables=[_verdict_table(verdicts), _row_table(selection.groups), _type_table(selection.groups)],
        charts=[chart for machine in selection.machines for chart in _charts(machine, selection)],
        notes=[*_notes(), *selection.notes],
    )


def _sentence(machine: str, verdicts: Sequence[Verdict]) -> str:
    """Workloads by verdict; one whose training and inference differ is named with its phase."""
    own = [verdict for verdict in verdicts if verdict.group.machine == machine]
    by_verdict: dict[str, list[str]] = {}
    for verdict in own:
        workload, phase = verdict.group.workload, verdict.group.phase
        alike = len({other.name for other in own if other.group.workload == workload}) == 1
        by_verdict.setdefault(verdict.name, []).append(workload if alike else f"{workload} {phase}")
    limits = "; ".join(f"{listed(list(dict.fromkeys(names)))}: {name}" for name, names in by_verdict.items())
    reached = [100 * verdict.of_peak for verdict in own if verdict.of_peak]
    if not reached:
        return f"On {machine}: {limits}."
    why = f" {_above(own)}" if max(reached) > 100 else ""
    return f"On {machine}: {limits}. At most {max(reached):.0f} % of the measured peak FLOP/s over a whole step.{why}"


def _above(verdicts: Sequence[Verdict]) -> str:
    """Why some are above the peak: convolutions may need fewer FLOP than are counted; else the peak is too low."""
    above = [verdict.group for verdict in verdicts if verdict.of_peak and verdict.of_peak > 1]
    convolve = [group for group in above if any(row.group == CONVOLUTION for row in longest(group).rows)]
    others = list(dict.fromkeys(group.workload for group in above if group not in convolve))
    sentences = ["Above 100 % is possible: FLOP count convolution by its definition."] if convolve else []
    if others:
        sentences.append(
            f"The peak of {listed(others)} must have been measured too low, as on a busy machine: run it again."
        )
    return " ".join(sentences)


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    rows: list[list[Cell]] = []
    for verdict in verdicts:
        group = verdict.group
        parts: list[Cell] = [100 * share for share in verdict.shares.values()]
        rows.append(
            [
                group.workload,
                group.phase,
                group.machine,
                verdict.name,
                in_percent(verdict.busy),
                100 * verdict.data,
                *parts,
                in_percent(verdict.of_peak),
            ]
        )
    return Table(
        title="What limits each workload",
        columns=[
            "workload",
            "phase",
            "machine",
            "verdict",
            "device busy (% of step)",
            "data (% of step)",
            *(f"{verdict} (% of op time)" for verdict in VERDICTS),
            "FLOP/s over the step (% of measured peak)",
        ],
        rows=rows,
    )


def _row_table(groups: Sequence[RunGroup]) -> Table:
    """The rows that take the most time of each run."""
    rows: list[list[Cell]] = []
    for group in groups:
        profile = longest(group)
        total = profile.op_s
        for cost in costs(profile)[:SHOWN_ROWS]:
            if 100 * cost.seconds >= LEAST_PERCENT * total:
                run = (group.workload, group.phase, group.machine)
                rows.append([*run, *_named(cost.row), cost.seconds * 1e3, 100 * cost.seconds / total, *_cells(cost)])
    return Table(
        title="The rows that take the most time, and what they reach of the measured peaks",
        columns=[
            "workload",
            "phase",
            "machine",
            "op",
            "op type",
            "pass",
            "layer",
            "shapes",
            "per step (ms)",
            "share of op time (%)",
            "calls per step",
            "GFLOP/s",
            "of peak FLOP/s (%)",
            "GB/s",
            "of peak bytes/s (%)",
            "FLOP/byte",
            "verdict",
        ],
        rows=rows,
    )


def _named(row: OpRow) -> list[Cell]:
    shapes = row.shapes if len(row.shapes) <= SHOWN_SHAPES else f"{row.shapes[:SHOWN_SHAPES]}…"
    return [row.op, row.type, row.phase, row.layer or None, shapes or None]


def _cells(cost: RowCost) -> list[Cell]:
    flop, moved = cost.flop, cost.bytes
    return [
        cost.row.calls,
        None if flop is None else flop / cost.running_s / 1e9,
        in_percent(cost.of_compute),
        None if moved is None else moved / cost.running_s / 1e9,
        in_percent(cost.of_memory),
        flop / moved if flop is not None and moved else None,
        cost.verdict,
    ]


def _type_table(groups: Sequence[RunGroup]) -> Table:
    """The verdicts of the rows of each op type."""
    rows: list[list[Cell]] = []
    for group in groups:
        found = costs(longest(group))
        total = sum(cost.seconds for cost in found)
        for kind in dict.fromkeys(cost.row.type for cost in found):
            own = [cost for cost in found if cost.row.type == kind]
            seconds = sum(cost.seconds for cost in own)
            if 100 * seconds >= LEAST_PERCENT * total:
                parts: list[Cell] = [100 * share for share in shares_of(own).values()]
                rows.append([group.workload, group.phase, group.machine, kind, 100 * seconds / total, *parts])
    return Table(
        title="Verdicts of each op type, by the time of its rows",
        columns=[
            "workload",
            "phase",
            "machine",
            "op type",
            "share of op time (%)",
            *(f"{verdict} (% of its time)" for verdict in VERDICTS),
        ],
        rows=rows,
    )


def _charts(machine: str, selection: Selection) -> list[Chart]:
    charts = []
    for phase in ("train", "infer"):
        groups = [group for group in selection.on(machine) if group.phase == phase]
        clouds = [cloud for cloud in map(_cloud, groups) if cloud.x]
        if clouds:
            charts.append(
                Chart(
                    kind="scatter",
                    title=f"Roofline: {phase} on {machine}",
                    x_title="FLOP/byte",
                    y_title="FLOP/s",
                    series=[*clouds, *_roof([longest(group) for group in groups], clouds)],
                    log_x=True,
                    log_y=True,
                    unit="FLOP/s",
                    note="Op rows of at least 1 % of op time that do arithmetic. The line is the measured roof; a row "
                    "that reaches half of its height is bound by it.",
                )
            )
    return charts


def _cloud(group: RunGroup) -> Series:
    profile = longest(group)
    least = LEAST_PERCENT / 100 * profile.op_s
    points = [
        (flop / moved, flop / cost.running_s, f"{cost.row.op} {_named(cost.row)[-1] or ''}: {cost.verdict}")
        for cost in costs(profile)
        if cost.seconds >= least and (flop := cost.flop) and (moved := cost.bytes)
    ]
    return Series(
        name=group.workload,
        x=[intensity for intensity, _, _ in points],
        y=[rate for _, rate, _ in points],
        text=[text for _, _, text in points],
    )


def _roof(profiles: Sequence[Profile], clouds: Sequence[Series]) -> list[Series]:
    """From left of all points over the ridge to right of them, at the highest peaks that any of the runs measured."""
    flop = max((profile.ceiling_flop_per_s or 0.0 for profile in profiles), default=0.0)
    moved = max((profile.ceiling_bytes_per_s or 0.0 for profile in profiles), default=0.0)
    if not flop or not moved:
        return []
    ridge = flop / moved
    intensities = [value for cloud in clouds for value in cloud.x]
    left, right = min(*intensities, ridge / 10), max(*intensities, ridge * 10)
    x = sorted([ridge, *np.geomspace(left, right, 60).tolist()])
    y = [min(flop, value * moved) for value in x]
    return [
        Series(
            name="roof",
            role="limit",
            x=x,
            y=y,
            text=[f"{flop / 1e9:.4g} GFLOP/s, {moved / 1e9:.4g} GB/s measured"] * len(x),
        )
    ]


def _notes() -> list[str]:
    half, bound = f"{100 * MOST:.0f} %", f"{100 * BOUND:.0f} %"
    return [
        "Every row (an op in a layer, on inputs of one shape and dtype) is judged alone; verdicts are then added up by "
        f"time. A row is compute-bound or memory-bound where it reaches at least {bound} of that measured peak (of "
        "both: the larger share). Below, it is latency-bound: neither peak is within reach, and what is missing is "
        "work to fill them, a better kernel or locality.",
        "On a GPU a row is launch-bound if issuing it takes longer than running it. Issuing is its CPU time, corrected "
        f"for the profiler's slowdown; it counts as hidden where the device is busy for {100 * HIDDEN:.0f} % of the "
        f"step. On a CPU a row that is below half of both peaks is launch-bound if its calls are shorter than "
        f"{DISPATCH_S * 1e6:.0f} µs. A view, which moves nothing, is launch-bound.",
        "Not known: the trace does not tell FLOP and bytes (kernels that no op launched, sparse products, indices), or "
        "no peak was measured. Their FLOP are missing in the FLOP/s over the step, which is the unprofiled one. The "
        "FLOP/s of a row are as profiled.",
        "On a GPU, shares are of exposed time: kernels that run at once share it, so that rows add up to the time in "
        "which the device is busy. FLOP/s and bytes/s are of kernel durations, each in full; in older records, which "
        "do not have these, of exposed time.",
        f"A workload is data-bound if preparing data takes at least {half} of the step, by the host's clock (in older "
        f"records: the torch ops in it alone). Else it is launch-bound if its device is idle for at least {half} of "
        f"the unprofiled step; on a CPU it is limited outside ops if at least {half} of it is surely in none. Else it "
        f"is what at least {half} of its op time is, or mixed.",
        "Peaks are measured in the same process: a large matrix product in the run's precision and a large copy. "
        "Bytes count each input and output once, so an op that stays in a cache can exceed the roof. FLOP count a "
        "convolution by its definition, so one computed by Winograd or FFT algorithms can exceed it too.",
        "The 2016 paper has no roofline.",
    ]
