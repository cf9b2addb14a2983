"""What limits an op row and a whole workload: arithmetic, memory, latency, launching or data.

Every op row (an op on inputs of one shape) is judged alone: its FLOP/s and bytes/s stand against what a large matrix
product and a large copy reached on the same device. The verdicts are then added up by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.selection import (
    RunGroup,
    on_gpu,
    outside_bounds,
    plain_scale,
    plain_step_s,
    profiled_step_s,
)
from fathom.core.record import OpRow, Profile
from fathom.trace.flops import rule_of
from fathom.trace.formulas.rule import NOTHING
from fathom.trace.taxonomy import AUTOGRAD, GROUPS, group_of

COMPUTE, MEMORY, LATENCY, LAUNCH = "compute-bound", "memory-bound", "latency-bound", "launch-bound"
UNKNOWN = "not known"  # no peaks were measured, or FLOP or bytes are not known
VERDICTS = (COMPUTE, MEMORY, LATENCY, LAUNCH, UNKNOWN)
DATA, OUTSIDE, MIXED = "data-bound", "outside ops", "mixed"  # a whole workload's only
BOUND = 0.5  # of a roof: from here on it is what limits an op
MOST = 0.5  # of the step: from here on something dominates it
HIDDEN = 0.9  # a device busy this part of the step does not wait for launches
DISPATCH_S = 10e-6  # a call this short on a CPU is mostly the framework's own work


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


def judge(group: RunGroup) -> Verdict:
    """Data, launching or what is outside ops, where it takes half of the step; else what half of the op time is."""
    profile = longest(group)
    step = plain_step_s(profile)
    data = data_share(profile)
    busy = _busy(profile)
    shares = shares_of(costs(profile))
    if data >= MOST:
        name = DATA
    elif busy is not None and 1 - busy >= MOST:
        name = LAUNCH
    elif busy is None and outside_bounds(profile)[0] >= MOST:
        name = OUTSIDE
    else:
        most = max(shares, key=lambda verdict: shares[verdict])
        name = most if shares[most] >= MOST else MIXED
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
    busy, slowdown = _busy(profile), max(1.0, profile.slowdown or 1.0)  # once: each looks at all rows or steps
    found = [_cost(row, profile, _launch_s(row, busy, slowdown)) for row in profile.rows if profile.seconds(row) > 0]
    return sorted(found, key=lambda cost: -cost.seconds)


def longest(group: RunGroup) -> Profile:
    """The profile with the most steps: peaks are measured per process, so one profile is judged."""
    return max(group.profiles, key=lambda profile: len(profile.step_s))


def _cost(row: OpRow, profile: Profile, launch_s: float | None) -> RowCost:
    running_s = profile.rate_seconds(row)
    flop, moved = _known(row)
    return RowCost(
        row=row,
        seconds=profile.seconds(row),
        running_s=running_s,
        launch_s=launch_s,
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


def data_share(profile: Profile) -> float:
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


def _launch_s(row: OpRow, busy: float | None, slowdown: float) -> float | None:
    if busy is None:
        return None
    return 0.0 if busy >= HIDDEN else row.cpu_s / slowdown


def _busy(profile: Profile) -> float | None:
    """The part of a step in which a kernel ran; None on a CPU."""
    return min(1.0, profile.op_s / plain_step_s(profile)) if on_gpu(profile) else None
