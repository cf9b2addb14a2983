"""What limits each op and each workload: arithmetic, memory, latency, launching or data? Not in the 2016 paper.

Every op row (an op on inputs of one shape) is judged alone: its FLOP/s and bytes/s stand against what a large matrix
product and a large copy reached on the same device. The verdicts are then added up by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.formatting import in_percent, listed
from fathom.analysis.selection import (
    RunGroup,
    Selection,
    on_gpu,
    op_seconds,
    plain_scale,
    plain_step_s,
    profiled_step_s,
    select,
)
from fathom.core.record import OpRow, Profile, Record
from fathom.trace.flops import rule_of
from fathom.trace.formulas.rule import NOTHING
from fathom.trace.taxonomy import AUTOGRAD, GROUPS, group_of

TITLE = "What limits each workload?"
ORDER = 40
COMPUTE, MEMORY, LATENCY, LAUNCH = "compute-bound", "memory-bound", "latency-bound", "launch-bound"
UNKNOWN = "not known"  # no peaks were measured, or FLOP or bytes are not known
VERDICTS = (COMPUTE, MEMORY, LATENCY, LAUNCH, UNKNOWN)
DATA = "data-bound"  # a whole workload's only
BOUND = 0.5  # of a roof: from here on it is what limits an op
MOST = 0.5  # of the step: from here on something dominates it
HIDDEN = 0.9  # a device busy this part of the step does not wait for launches
DISPATCH_S = 10e-6  # a call this short on a CPU is mostly the framework's own work
LEAST_PERCENT = 1.0  # of op time; rows and types below it are not listed
SHOWN_ROWS = 10  # of each run
SHOWN_SHAPES = 60  # characters: a list of weights has thousands


@dataclass(frozen=True)
class RowCost:
    """One op row of one profile, per step: what it took, and what it reached of the measured peaks."""

    row: OpRow
    seconds: float  # its share of the step: on a GPU, concurrent kernels share the time
    running_s: float  # its kernels in full, which rates are of; the same as seconds where nothing overlaps
    launch_s: float | None  # on a GPU, what issuing its calls takes where that does not hide behind running kernels
    flop: float | None
    bytes: float | None
    of_compute: float | None  # FLOP/s over the measured peak; None where either is not known
    of_memory: float | None

    @property
    def of_roof(self) -> float | None:
        """What was reached of the roof that is closer; None where either is not known."""
        if self.of_compute is None or self.of_memory is None:
            return None
        return max(self.of_compute, self.of_memory)

    @property
    def verdict(self) -> str:
        """Bound by the roof of which at least half is reached; else by what keeps it from both."""
        if self.launch_s is not None and self.launch_s > self.running_s:
            return LAUNCH
        compute, memory = self.of_compute or 0.0, self.of_memory or 0.0
        if max(compute, memory) >= BOUND:
            return COMPUTE if compute > memory else MEMORY
        if self.launch_s is None and DISPATCH_S * self.row.calls > self.running_s:
            return LAUNCH
        if self.flop == 0 and self.bytes == 0:  # a view
            return LAUNCH
        return LATENCY if self.of_roof is not None else UNKNOWN


@dataclass(frozen=True)
class Verdict:
    """What limits one workload, and the shares that this rests on."""

    group: RunGroup
    name: str
    busy: float | None  # of the plain step, the device had a kernel running; None on a CPU
    data: float  # of the plain step, preparing data
    shares: dict[str, float]  # verdict -> part of the op time
    of_peak: float | None  # FLOP/s over the whole plain step against the measured product


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


def judge(group: RunGroup) -> Verdict:
    """Data, then launching, where they take half of the step; else what most of the op time is bound by."""
    profile = longest(group)
    step = plain_step_s(profile)
    data = _data(profile)
    busy = _busy(profile)
    shares = shares_of(costs(profile))
    if data >= MOST:
        name = DATA
    elif busy is not None and 1 - busy >= MOST:
        name = LAUNCH
    else:
        name = max(shares, key=lambda verdict: shares[verdict])
    peak = profile.ceiling_flop_per_s
    flop = [row.flop for row in profile.rows if row.flop is not None]
    return Verdict(group, name, busy, data, shares, sum(flop) / step / peak if peak and flop else None)


def shares_of(costs: Sequence[RowCost]) -> dict[str, float]:
    """Verdict -> its part of the time of these rows."""
    shares, total = dict.fromkeys(VERDICTS, 0.0), sum(cost.seconds for cost in costs)
    for cost in costs:
        shares[cost.verdict] += cost.seconds / total
    return shares


def costs(profile: Profile) -> list[RowCost]:
    """One for each op row that took time, the heaviest first."""
    found = [_cost(row, profile) for row in profile.rows if profile.seconds(row) > 0]
    return sorted(found, key=lambda cost: -cost.seconds)


def longest(group: RunGroup) -> Profile:
    """The profile with the most steps: peaks are measured per process, so one profile is judged."""
    return max(group.profiles, key=lambda profile: len(profile.step_s))


def _cost(row: OpRow, profile: Profile) -> RowCost:
    running_s = profile.rate_seconds(row)
    flop, moved = _known(row)
    return RowCost(
        row=row,
        seconds=profile.seconds(row),
        running_s=running_s,
        launch_s=_launch_s(profile, row),
        flop=flop,
        bytes=moved,
        of_compute=_of_peak(flop, running_s, profile.ceiling_flop_per_s),
        of_memory=_of_peak(moved, running_s, profile.ceiling_bytes_per_s),
    )


def _known(row: OpRow) -> tuple[float | None, float | None]:
    """FLOP and bytes of a row. Older records have 0, or a guess of the bytes, for ops that had no formula."""
    if row.type == AUTOGRAD:
        return 0.0, 0.0  # its own bookkeeping, around ops that have rows of their own
    moves_nothing = rule_of(row.op) is NOTHING
    if group_of(row.type) not in GROUPS or not (row.flop or row.bytes or moves_nothing):
        return None, None
    return row.flop, row.bytes


def _of_peak(count: float | None, seconds: float, peak: float | None) -> float | None:
    return count / seconds / peak if count is not None and peak else None


def _data(profile: Profile) -> float:
    """The part of a step spent on preparing data, in ops or not; older records have its ops alone."""
    plain, profiled = plain_step_s(profile), profiled_step_s(profile)
    rows = [row for row in profile.rows if row.phase == "data"]
    in_ops = sum(max(row.cpu_s, row.device_s or 0.0) for row in rows)
    if profile.data_s is None:
        return min(1.0, in_ops * plain_scale(profile) / plain)
    if on_gpu(profile) or plain >= profiled:
        # a profiler only makes steps longer: where the plain ones took longer still, it was their data that did
        return min(1.0, profile.data_s / min(plain, profiled))
    # The profiler takes its time for the ops that it records: none from a decoder or an emulator. From data with ops it
    # takes at least what these are longer by, and at most in proportion to their calls, as marks cost it time, too.
    calls = sum(row.calls for row in rows) / max(1.0, sum(row.calls for row in profile.rows))
    least, most = in_ops * (1 - plain_scale(profile)), calls * (profiled - plain)
    return min(1.0, max(0.0, profile.data_s - (least + max(least, most)) / 2) / plain)


def _launch_s(profile: Profile, row: OpRow) -> float | None:
    busy = _busy(profile)
    if busy is None:
        return None
    return 0.0 if busy >= HIDDEN else row.cpu_s / max(1.0, profile.slowdown or 1.0)


def _busy(profile: Profile) -> float | None:
    """The part of a step in which a kernel ran; None on a CPU."""
    return min(1.0, op_seconds(profile) / plain_step_s(profile)) if on_gpu(profile) else None


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
    why = " Above 100 % is possible: FLOP count convolution by its definition." if max(reached) > 100 else ""
    return f"On {machine}: {limits}. At most {max(reached):.0f} % of the measured peak FLOP/s over a whole step.{why}"


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
        total = op_seconds(profile)
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
    least = LEAST_PERCENT / 100 * op_seconds(profile)
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
        "the unprofiled step. Else it is what most of its op time is.",
        "Peaks are measured in the same process: a large matrix product in the run's precision and a large copy. "
        "Bytes count each input and output once, so an op that stays in a cache can exceed the roof. FLOP count a "
        "convolution by its definition, so one computed by Winograd or FFT algorithms can exceed it too.",
        "The 2016 paper has no roofline.",
    ]
