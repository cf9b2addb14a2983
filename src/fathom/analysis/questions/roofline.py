"""What limits each op and each workload: arithmetic, memory, latency, launching or data? Not in the 2016 paper.

Achieved FLOP/s and bytes/s stand against what a large matrix product and a large copy reached on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.formatting import in_percent, listed
from fathom.analysis.selection import RunGroup, Selection, on_gpu, op_seconds, op_type, plain_step_s, select
from fathom.core.record import OpRow, Profile, Record

TITLE = "What limits each workload?"
ORDER = 40
COMPUTE, MEMORY, LATENCY, LAUNCH = "compute-bound", "memory-bound", "latency-bound", "launch-bound"
UNKNOWN = "not known"  # no peaks were measured
DATA = "data-bound"  # a whole workload's only
FAR_BELOW = 0.1  # of the roof: an op that reaches less is limited by neither arithmetic nor memory
MOST = 0.5  # of the step: from here on something dominates it
HIDDEN = 0.9  # a device busy this part of the step does not wait for launches
DISPATCH_S = 10e-6  # a call this short on a CPU is mostly the framework's own work
LEAST_PERCENT = 1.0  # of op time; types below it are not listed


@dataclass(frozen=True)
class OpTypeCost:
    """One op type of one profile, per step: what it took, and the least that the measured peaks allow."""

    type: str
    seconds: float
    issue_s: float  # what issuing its calls takes, where that does not hide behind running kernels
    calls: float
    flop: float
    bytes: float
    arithmetic_s: float | None  # the least time for its FLOP, at the measured peak
    traffic_s: float | None  # the least time for its bytes

    @property
    def of_roof(self) -> float | None:
        """The least time that the roof allows over the time taken."""
        if self.arithmetic_s is None or self.traffic_s is None:
            return None
        return max(self.arithmetic_s, self.traffic_s) / self.seconds

    @property
    def verdict(self) -> str:
        if self.issue_s > self.seconds or not (self.flop or self.bytes):
            return LAUNCH
        if self.arithmetic_s is None or self.traffic_s is None:
            return UNKNOWN
        if max(self.arithmetic_s, self.traffic_s) < FAR_BELOW * self.seconds:
            return LATENCY
        return COMPUTE if self.arithmetic_s > self.traffic_s else MEMORY


@dataclass(frozen=True)
class Verdict:
    """What limits one workload, and the shares that this rests on."""

    group: RunGroup
    name: str
    busy: float | None  # of the plain step, the device had a kernel running; None on a CPU
    data: float  # of the step, preparing data
    shares: dict[str, float]  # verdict -> part of the op time
    of_peak: float | None  # FLOP/s over the whole step against the measured product


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("roofline", TITLE, "fathom study", selection.notes)
    verdicts = [judge(group) for group in selection.groups]
    return Finding(
        question="roofline",
        title=TITLE,
        summary=" ".join(_sentence(machine, verdicts) for machine in selection.machines),
        tables=[_verdict_table(verdicts), _op_table(selection.groups)],
        charts=[chart for machine in selection.machines for chart in _charts(machine, selection)],
        notes=[*_notes(), *selection.notes],
    )


def judge(group: RunGroup) -> Verdict:
    """Data, then launching, where they take half of the step; else what most of the op time is bound by."""
    profile = longest(group)
    step = plain_step_s(profile)
    data = _data(profile)
    busy = _busy(profile)
    shares = dict.fromkeys((COMPUTE, MEMORY, LATENCY, LAUNCH, UNKNOWN), 0.0)
    for cost in costs(profile):
        shares[cost.verdict] += cost.seconds / op_seconds(profile)
    if data >= MOST:
        name = DATA
    elif busy is not None and 1 - busy >= MOST:
        name = LAUNCH
    else:
        name = max(shares, key=lambda verdict: shares[verdict])
    peak = profile.ceiling_flop_per_s
    flop = sum(row.flop for row in profile.rows)
    return Verdict(group, name, busy, data, shares, flop / step / peak if peak else None)


def costs(profile: Profile) -> list[OpTypeCost]:
    """One for each op type that took time, the heaviest first."""
    rows: dict[str, list[OpRow]] = {}
    for row in profile.rows:
        rows.setdefault(op_type(row), []).append(row)
    found = [_cost(kind, own, profile) for kind, own in rows.items()]
    return sorted((cost for cost in found if cost.seconds > 0), key=lambda cost: -cost.seconds)


def longest(group: RunGroup) -> Profile:
    """The profile with the most steps: peaks are measured per process, so one profile is judged."""
    return max(group.profiles, key=lambda profile: len(profile.step_s))


def _cost(kind: str, rows: Sequence[OpRow], profile: Profile) -> OpTypeCost:
    flop, moved = sum(row.flop for row in rows), sum(row.bytes for row in rows)
    return OpTypeCost(
        type=kind,
        seconds=sum(map(profile.seconds, rows)),
        issue_s=_issue_s(profile, rows),
        calls=sum(row.calls for row in rows),
        flop=flop,
        bytes=moved,
        arithmetic_s=flop / profile.ceiling_flop_per_s if profile.ceiling_flop_per_s else None,
        traffic_s=moved / profile.ceiling_bytes_per_s if profile.ceiling_bytes_per_s else None,
    )


def _data(profile: Profile) -> float:
    """The part of a step spent on preparing data, in ops or not; older records have its ops alone."""
    step = plain_step_s(profile)
    if profile.data_s is None:
        in_ops = sum(max(row.cpu_s, row.device_s or 0.0) for row in profile.rows if row.phase == "data")
        return min(1.0, in_ops / step)
    # a profiler only makes steps longer: where the plain ones took longer still, it was their data that did
    return min(1.0, profile.data_s / min(step, op_seconds(profile) + profile.outside_s))


def _issue_s(profile: Profile, rows: Sequence[OpRow]) -> float:
    busy = _busy(profile)
    if busy is None:
        return DISPATCH_S * sum(row.calls for row in rows)
    if busy >= HIDDEN:
        return 0.0
    slowdown = max(1.0, profile.slowdown or 1.0)
    return sum(row.cpu_s for row in rows) / slowdown


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
            "compute-bound (% of op time)",
            "memory-bound (% of op time)",
            "latency-bound (% of op time)",
            "launch-bound (% of op time)",
            "not known (% of op time)",
            "FLOP/s over the step (% of measured peak)",
        ],
        rows=rows,
    )


def _op_table(groups: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        profile = longest(group)
        total = op_seconds(profile)
        for cost in costs(profile):
            if 100 * cost.seconds >= LEAST_PERCENT * total:
                share = 100 * cost.seconds / total
                rows.append([group.workload, group.phase, group.machine, cost.type, share, *_cells(cost)])
    return Table(
        title="Achieved rates of each op type",
        columns=[
            "workload",
            "phase",
            "machine",
            "op type",
            "share of op time (%)",
            "calls per step",
            "GFLOP/s",
            "GB/s",
            "FLOP/byte",
            "of the roof (%)",
            "verdict",
        ],
        rows=rows,
    )


def _cells(cost: OpTypeCost) -> list[Cell]:
    return [
        cost.calls,
        cost.flop / cost.seconds / 1e9,
        cost.bytes / cost.seconds / 1e9,
        cost.flop / cost.bytes if cost.bytes > 0 else None,
        in_percent(cost.of_roof),
        cost.verdict,
    ]


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
                    note="Op types of at least 1 % of op time that do arithmetic. The line is the measured roof.",
                )
            )
    return charts


def _cloud(group: RunGroup) -> Series:
    profile = longest(group)
    least = LEAST_PERCENT / 100 * op_seconds(profile)
    shown = [cost for cost in costs(profile) if cost.seconds >= least and cost.flop > 0 and cost.bytes > 0]
    return Series(
        name=group.workload,
        x=[cost.flop / cost.bytes for cost in shown],
        y=[cost.flop / cost.seconds for cost in shown],
        text=[f"{cost.type}: {cost.verdict}" for cost in shown],
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
    half = f"{100 * MOST:.0f} %"
    return [
        "An op type is launch-bound if issuing it takes longer than running it. On a GPU issuing is its CPU time, "
        f"corrected for the profiler's slowdown; it counts as hidden where the device is busy for {100 * HIDDEN:.0f} % "
        f"of the step. On a CPU it is {DISPATCH_S * 1e6:.0f} µs per call. An op that moves no bytes (a view) is "
        "launch-bound.",
        f"Otherwise it is latency-bound below {100 * FAR_BELOW:.0f} % of the roof. Above that it is compute-bound "
        "where its FLOP take longer at the measured peaks than its bytes, else memory-bound.",
        f"A workload is data-bound if preparing data takes at least {half} of the step, by the host's clock (in older "
        f"records: the torch ops in it alone). Else it is launch-bound if its device is idle for at least {half} of "
        "the unprofiled step. Else it is what most of its op time is.",
        "Peaks are measured in the same process: a large matrix product in the run's precision and a large copy. "
        "Bytes count each input and output once, so an op that stays in a cache can exceed the roof. FLOP count a "
        "convolution by its definition, so one computed by Winograd or FFT algorithms can exceed it too.",
        "The 2016 paper has no roofline.",
    ]
