"""What holds each op and each workload back: arithmetic, memory, launching, or data? Not in the 2016 paper.

Achieved FLOP/s and bytes/s stand against what a large matrix product and a large copy reached on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import in_percent, listed, unanswered
from fathom.analysis.selection import RunGroup, Selection, on_gpu, op_seconds, op_type, plain_step_s, select
from fathom.core.record import OpRow, Profile, Record

TITLE = "What holds each workload back?"
COMPUTE, MEMORY, LATENCY, LAUNCH = "compute-bound", "memory-bound", "latency-bound", "launch-bound"
UNKNOWN = "not known"  # no ceilings were measured
DATA = "data-bound"  # a whole workload's only
FAR_BELOW = 0.1  # of the roof: an op that reaches less is held back by neither arithmetic nor memory
MOST = 0.5  # of the step: from here on something dominates it
HIDDEN = 0.9  # a device busy this part of the step does not wait for launches
DISPATCH_S = 10e-6  # a call this short on a CPU is mostly the framework's own work
LEAST_PERCENT = 1.0  # of op time; types below it are not listed
ROOF = "roof"  # the series of a chart that is a line


@dataclass(frozen=True)
class Point:
    """One op type of one profile, per step."""

    type: str
    seconds: float
    issue_s: float  # what issuing its calls takes, where that does not hide behind running kernels
    calls: float
    flop: float
    bytes: float
    arithmetic_s: float | None  # the least time for its FLOP, at the measured ceiling
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
    """One workload: what dominates its step."""

    setting: RunGroup
    name: str
    busy: float | None  # of the plain step, the device had a kernel running; None on a CPU
    data: float  # of the step, preparing data
    shares: dict[str, float]  # verdict -> part of the op time
    of_peak: float | None  # FLOP/s over the whole step against the measured product


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.settings:
        return unanswered("roofline", TITLE, "no run with a profile", selection.notes)
    verdicts = [judge(setting) for setting in selection.settings]
    return Finding(
        question="roofline",
        title=TITLE,
        summary=" ".join(_sentence(place, verdicts) for place in selection.places),
        tables=[_verdict_table(verdicts), _op_table(selection.settings)],
        charts=[chart for place in selection.places for chart in _charts(place, selection)],
        notes=[*_notes(), *selection.notes],
    )


def judge(setting: RunGroup) -> Verdict:
    """The rule: data, then launching, if half of the step is theirs; else what most of the op time is bound by."""
    profile = longest(setting)
    step = plain_step_s(profile)
    data = _data(profile)
    busy = _busy(profile)
    shares = dict.fromkeys((COMPUTE, MEMORY, LATENCY, LAUNCH, UNKNOWN), 0.0)
    for point in points(profile):
        shares[point.verdict] += point.seconds / op_seconds(profile)
    if data >= MOST:
        name = DATA
    elif busy is not None and 1 - busy >= MOST:
        name = LAUNCH
    else:
        name = max(shares, key=lambda verdict: shares[verdict])
    peak = profile.ceiling_flop_per_s
    flop = sum(row.flop for row in profile.rows)
    return Verdict(setting, name, busy, data, shares, flop / step / peak if peak else None)


def points(profile: Profile) -> list[Point]:
    """One for each op type that took time, the heaviest first."""
    rows: dict[str, list[OpRow]] = {}
    for row in profile.rows:
        rows.setdefault(op_type(row), []).append(row)
    found = [_point(kind, own, profile) for kind, own in rows.items()]
    return sorted((point for point in found if point.seconds > 0), key=lambda point: -point.seconds)


def longest(setting: RunGroup) -> Profile:
    """Ceilings belong to a process, so one profile is judged: that of the most steps."""
    return max(setting.profiles, key=lambda profile: len(profile.step_s))


def _point(kind: str, rows: Sequence[OpRow], profile: Profile) -> Point:
    flop, moved = sum(row.flop for row in rows), sum(row.bytes for row in rows)
    return Point(
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
    """The part of a step spent on preparing data, in ops or not; a record that does not tell has its ops alone."""
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


def _sentence(place: str, verdicts: Sequence[Verdict]) -> str:
    """Workloads by verdict; one whose training and inference differ is named with its phase."""
    own = [verdict for verdict in verdicts if verdict.setting.place == place]
    groups: dict[str, list[str]] = {}
    for verdict in own:
        workload, phase = verdict.setting.workload, verdict.setting.phase
        alike = len({other.name for other in own if other.setting.workload == workload}) == 1
        groups.setdefault(verdict.name, []).append(workload if alike else f"{workload} {phase}")
    told = "; ".join(f"{listed(list(dict.fromkeys(names)))}: {name}" for name, names in groups.items())
    reached = [100 * verdict.of_peak for verdict in own if verdict.of_peak]
    peak = f" (over a whole step, at best {max(reached):.0f} % of the measured FLOP/s" if reached else ""
    if reached:
        peak += "; above 100, as convolution is done with less work than is counted)" if max(reached) > 100 else ")"
    return f"On {place}, {told}{peak}."


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    rows: list[list[Cell]] = []
    for verdict in verdicts:
        setting = verdict.setting
        parts: list[Cell] = [100 * share for share in verdict.shares.values()]
        rows.append(
            [
                setting.workload,
                setting.phase,
                setting.place,
                verdict.name,
                in_percent(verdict.busy),
                100 * verdict.data,
                *parts,
                in_percent(verdict.of_peak),
            ]
        )
    return Table(
        title="The verdict on each workload",
        columns=[
            "workload",
            "phase",
            "place",
            "verdict",
            "device busy (% of step)",
            "data (% of step)",
            "compute-bound (% of op time)",
            "memory-bound (% of op time)",
            "latency-bound (% of op time)",
            "launch-bound (% of op time)",
            "not known (% of op time)",
            "FLOP/s over the step (% of measured ceiling)",
        ],
        rows=rows,
    )


def _op_table(settings: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for setting in settings:
        profile = longest(setting)
        total = op_seconds(profile)
        for point in points(profile):
            if 100 * point.seconds >= LEAST_PERCENT * total:
                share = 100 * point.seconds / total
                rows.append([setting.workload, setting.phase, setting.place, point.type, share, *_cells(point)])
    return Table(
        title="Achieved rates of each op type",
        columns=[
            "workload",
            "phase",
            "place",
            "op type",
            "share of op time (%)",
            "calls a step",
            "GFLOP/s",
            "GB/s",
            "FLOP/byte",
            "of the roof (%)",
            "verdict",
        ],
        rows=rows,
    )


def _cells(point: Point) -> list[Cell]:
    return [
        point.calls,
        point.flop / point.seconds / 1e9,
        point.bytes / point.seconds / 1e9,
        point.flop / point.bytes if point.bytes > 0 else None,
        in_percent(point.of_roof),
        point.verdict,
    ]


def _charts(place: str, selection: Selection) -> list[Chart]:
    charts = []
    for phase in ("train", "infer"):
        settings = [setting for setting in selection.at(place) if setting.phase == phase]
        clouds = [cloud for cloud in map(_cloud, settings) if cloud.x]
        if clouds:
            charts.append(
                Chart(
                    kind="scatter",
                    title=f"Roofline: {phase} on {place}",
                    x_title="FLOP/byte",
                    y_title="FLOP/s",
                    series=[*clouds, *_roof([longest(setting) for setting in settings], clouds)],
                    log_x=True,
                    log_y=True,
                    note="Op types of at least 1 % of op time that do arithmetic; the roof is a line.",
                )
            )
    return charts


def _cloud(setting: RunGroup) -> Series:
    profile = longest(setting)
    least = LEAST_PERCENT / 100 * op_seconds(profile)
    shown = [point for point in points(profile) if point.seconds >= least and point.flop > 0 and point.bytes > 0]
    return Series(
        name=setting.workload,
        x=[point.flop / point.bytes for point in shown],
        y=[point.flop / point.seconds for point in shown],
        text=[f"{point.type}: {point.verdict}" for point in shown],
    )


def _roof(profiles: Sequence[Profile], clouds: Sequence[Series]) -> list[Series]:
    """From left of all points over the ridge to right of them; the highest ceilings, as each process measures its own.

    It has many points, so that it is a line even where a chart draws points alone.
    """
    flop = max((profile.ceiling_flop_per_s or 0.0 for profile in profiles), default=0.0)
    moved = max((profile.ceiling_bytes_per_s or 0.0 for profile in profiles), default=0.0)
    if not flop or not moved:
        return []
    ridge = flop / moved
    intensities = [value for cloud in clouds for value in cloud.x]
    left, right = min(*intensities, ridge / 10), max(*intensities, ridge * 10)
    x = sorted([ridge, *np.geomspace(left, right, 60).tolist()])
    y = [min(flop, value * moved) for value in x]
    return [Series(name=ROOF, x=x, y=y, text=[f"{flop / 1e9:.4g} GFLOP/s, {moved / 1e9:.4g} GB/s measured"] * len(x))]


def _notes() -> list[str]:
    idle = f"{100 * MOST:.0f} %"
    return [
        "An op type is launch-bound if issuing it takes longer than running it. On a GPU issuing is its CPU time, less "
        f"the profiler's slowdown, unless the device is busy {100 * HIDDEN:.0f} % of the step and launches hide behind "
        f"kernels; on a CPU it is {DISPATCH_S * 1e6:.0f} µs a call. An op that moves no bytes (a view) is so too.",
        f"Otherwise it is latency-bound below {100 * FAR_BELOW:.0f} % of the roof, where neither arithmetic nor memory "
        "is used up; else compute-bound if its FLOP take longer at the ceilings than its bytes, or memory-bound.",
        f"A workload is data-bound if preparing data takes {idle} of the step or more, by the host's clock (in older "
        "records, by the torch ops in it alone); else launch-bound if its device "
        f"is idle for {idle} or more of the step without the profiler; else it is what most of its op time is.",
        "Ceilings are measured in the same process: a large matrix product in the run's precision and a large copy. "
        "Bytes count each input and output once, so an op that stays in a cache can pass the roof; FLOP count a "
        "convolution by its definition, and one computed by Winograd's or Fourier's way, with fewer, can pass it too.",
        "The 2016 paper has no roofline.",
    ]
