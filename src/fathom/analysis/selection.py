"""Which runs answer a question: those of one configuration of each workload and phase on each machine, as a group."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fathom import published
from fathom.core.formatting import listed
from fathom.core.record import OpRow, Profile, Record
from fathom.core.spec import EAGER, PHASES, RunSpec

Key = TypeVar("Key", bound=Hashable)
A_STEP = {"train": "a training step", "infer": "an inference step"}
PRESETS = ("tiny", "small", "paper")  # from the least like the published network to the most


@dataclass(frozen=True)
class RunGroup:
    """One workload in one phase on one machine, and its runs: one configuration, one process each."""

    workload: str
    phase: str
    machine: str
    runs: list[Record]

    @property
    def name(self) -> str:
        """The workload, and its phase where that is not training."""
        return self.workload if self.phase == "train" else f"{self.workload} inference"

    @property
    def profiles(self) -> list[Profile]:
        return [run.profile for run in self.runs if run.profile]

    @property
    def timed(self) -> list[Record]:
        """What its step time is of: the undisturbed runs, as in the headline of a report, or all where none is."""
        return [run for run in self.runs if not run.disturbed] or self.runs

    @property
    def outside_s(self) -> float:
        return statistics.fmean(outside(profile) for profile in self.profiles)

    @property
    def op_s(self) -> float:
        return statistics.fmean(profile.op_s * plain_scale(profile) for profile in self.profiles)

    @property
    def outside_percent(self) -> str:
        """In words, such as "31 to 47": from the least to the largest that any of the runs leaves possible."""
        bounds = [outside_bounds(profile) for profile in self.profiles]
        return bounded_percent(min(low for low, _ in bounds), max(high for _, high in bounds))

    @property
    def step_s(self) -> float:
        """What percentages are of: the unprofiled step, as ops and what is outside them."""
        return self.op_s + self.outside_s

    def seconds_by(self, key: Callable[[OpRow], Key]) -> dict[Key, float]:
        """Seconds per step of the rows with the same key: the mean over the runs, in the order they first appear."""
        return seconds_by(self.profiles, key)

    def percent_by(self, key: Callable[[OpRow], Key]) -> dict[Key, float]:
        """The same in percent of the step; all of it adds up to 100 less the percentage outside ops."""
        step_s = self.step_s
        return {name: 100 * seconds / step_s for name, seconds in self.seconds_by(key).items()}


@dataclass(frozen=True)
class Selection:
    groups: list[RunGroup]
    notes: list[str]

    @property
    def machines(self) -> list[str]:
        """CPUs before accelerators."""
        found = {group.machine: not on_cpu(group.runs[0]) for group in self.groups}
        return sorted(found, key=lambda machine: (found[machine], machine))

    def on(self, machine: str) -> list[RunGroup]:
        return [group for group in self.groups if group.machine == machine]

    def by_phase(self) -> list[Selection]:
        """Training and inference apart, those of them that were run; the notes stay with the whole."""
        parts = ([group for group in self.groups if group.phase == phase] for phase in PHASES)
        return [Selection(groups, []) for groups in parts if groups]

    @property
    def step(self) -> str:
        """In words, of a selection of one phase: "a training step"."""
        return A_STEP[self.groups[0].phase]


def select(records: Sequence[Record], *, profiled: bool, phases: Sequence[str] = PHASES) -> Selection:
    """Per workload, phase and machine, the runs of the configuration closest to the published one."""
    answering, notes = usable(records, profiled, phases)
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in answering:
        found[record.spec.workload, record.spec.phase, machine_name(record)].append(record)
    groups, superseded = [], []
    for key, runs in found.items():
        best = configuration(max(runs, key=completeness))
        groups.append(RunGroup(*key, [run for run in runs if configuration(run) == best]))
        superseded += [run for run in runs if configuration(run) != best]
    if superseded:
        notes.append(f"Not shown: runs superseded by a more complete one: {summarised(superseded)}.")
    return Selection(sorted(groups, key=_order), notes)


def usable(records: Sequence[Record], profiled: bool, phases: Sequence[str]) -> tuple[list[Record], list[str]]:
    """The runs that can answer a question about whole machines, and notes on the others."""
    # a program run has no timed steps; trials of engines, runs bound to some of the cores, of several ranks, below a
    # cap on power or clocks, or fed in several ways belong to questions of their own
    apart = ("program", "training", "trial", "feed")
    records = [
        record
        for record in records
        if not (record.spec.kind in apart or record.spec.cores or record.spec.ranks or capped(record))
    ]
    failed = [record for record in records if record.outcome != "ok"]
    succeeded = [record for record in records if record.outcome == "ok"]
    asked = [record for record in succeeded if record.spec.phase in phases]
    full = [record for record in asked if (_has_ops(record) if profiled else record.step_s)]
    empty = [record for record in asked if not (_has_ops(record) if profiled else record.step_s)]
    notes = []
    if failed:
        notes.append(f"Not shown: failed runs: {counted(f'{_described(run)}: {run.reason}' for run in failed)}.")
    if len(asked) < len(succeeded):
        other = len(succeeded) - len(asked)
        notes.append(f"Not shown: {other} {'run' if other == 1 else 'runs'} of other phases than {listed(phases)}.")
    if empty:
        missing = "a profile" if profiled else "timed steps"
        notes.append(f"Not shown: runs without {missing}: {summarised(empty)}.")
    return full, notes


def trusted(records: Sequence[Record]) -> list[Record]:
    """Without disturbed runs of which an undisturbed one of the same spec on the same machine was made."""
    sound = {_identity(record) for record in records if record.outcome == "ok" and not record.disturbed}
    return [record for record in records if not (record.disturbed and _identity(record) in sound)]


def _identity(record: Record) -> tuple[str, str]:
    return record.spec.id, record.machine_label


def counted(names: Iterable[str]) -> str:
    """Names with how often each occurs, in the order of first appearance."""
    counts = Counter(names)
    return "; ".join(f"{name} x {count}" if count > 1 else name for name, count in counts.items())


def summarised(runs: Iterable[Record], condition: Callable[[Record], str] | None = None) -> str:
    """Runs in few words: the workloads of each phase, machine and condition together, with how often they ran."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        counts[(condition or _condition)(run)][run.spec.workload] += 1
    parts = []
    for rest, workloads in counts.items():
        times = set(workloads.values())
        each = f" x {max(times)}" if len(times) == 1 and times != {1} else ""
        names = [name if each or many == 1 else f"{name} x {many}" for name, many in workloads.items()]
        parts.append(f"{listed(names)} {rest}{each}")
    return "; ".join(parts)


def machine_name(record: Record) -> str:
    """The machine's label, with the precision and the engine where they are not the default ones.

    The same GPU in bf16, or replaying CUDA graphs, counts as another machine: such runs are not pooled with others.
    """
    spec, usual = record.spec, ("fp32", EAGER)
    other = [value for value in (spec.precision, spec.engine) if value and value not in usual]
    return ", ".join([record.machine_label, *other])


def on_cpu(record: Record) -> bool:
    return record.device.startswith("cpu")


def capped(record: Record) -> bool:
    """Whether its power or its clocks were limited for the run."""
    return record.spec.power_cap_w is not None or record.spec.clock_cap_mhz is not None


def configuration(record: Record) -> RunSpec:
    """The spec without what may differ between repetitions of one measurement."""
    return dataclasses.replace(record.spec, **_MEASURED_HOW)


_MEASURED_HOW: dict[str, Any] = {  # the fields that say how a run was measured, and not what it did
    **{"seed": 0, "warmup": 0, "steps": 1, "budget_s": None, "kind": "timed", "device": "auto"},
    **{"window_s": None, "idle_s": None, "period_s": None, "estimates": False, "evaluations": None},
}


def told_apart(named: Sequence[tuple[str, RunSpec]]) -> list[str]:
    """Names, of which those that are the same say in what their specs differ: "NAME (batch 16)"."""
    return [f"{name} ({settings})" if (settings := _own_settings(name, spec, named)) else name for name, spec in named]


def _own_settings(name: str, spec: RunSpec, named: Sequence[tuple[str, RunSpec]]) -> str:
    alike = [other for other_name, other in named if other_name == name]
    fields = [field.name for field in dataclasses.fields(RunSpec)]
    differing = [field for field in fields if len({str(getattr(other, field)) for other in alike}) > 1]
    return ", ".join(f"{field.replace('_', ' ')} {_setting(getattr(spec, field))}" for field in differing)


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={each}" for key, each in sorted(value.items())) or "none"
    return "default" if value is None else str(value)


def completeness(record: Record) -> tuple[float | str, ...]:
    """Large for the run closest to the published setup: its sizes, no changed options, the machine's own threads."""
    spec = record.spec
    preset = PRESETS.index(spec.preset) if spec.preset in PRESETS else -1
    threads = float("inf") if spec.threads is None else spec.threads
    return preset, not spec.options, spec.batch is None, threads, spec.data is None, record.started


def seconds_by(profiles: Sequence[Profile], key: Callable[[OpRow], Key]) -> dict[Key, float]:
    """Seconds of the unprofiled step, the mean over the profiles."""
    total: dict[Key, float] = defaultdict(float)
    for profile in profiles:
        scale = plain_scale(profile) / len(profiles)
        for row in profile.rows:
            total[key(row)] += profile.seconds(row) * scale
    return dict(total)


def outside(profile: Profile) -> float:
    """Seconds of an unprofiled step in no op; on a CPU, in the middle of what is possible.

    The profiler slows the host and not the kernels, so a GPU's idle time is that of the unprofiled step. Kernels of
    more than that leave nothing outside: percentages are then of the kernels' sum.
    """
    if on_gpu(profile):
        return max(0.0, plain_step_s(profile) - profile.op_s)
    low, high = outside_bounds(profile)
    return (low + high) / 2 * plain_step_s(profile)


def starved(profile: Profile, what: str) -> float:
    """The part of the idle time in which a GPU waited for a host that was doing this."""
    gpu = profile.gpu
    idle_s = gpu.span_s - gpu.busy_s - (gpu.tail_s or 0.0) if gpu else 0.0
    return min(1.0, gpu.starved_in.get(what, 0.0) / idle_s) if gpu and idle_s > 0 else 0.0


def outside_bounds(profile: Profile) -> tuple[float, float]:
    """The least and the largest share of an unprofiled step that can be outside ops; both the same on a GPU.

    A profiled CPU step is longer by what the profiler takes: between all of that time, which gives the least share, and
    some of it was recorded as outside ops. How much at least: with a light pass, in proportion to the events outside
    ops, as these cost the profiler no less than those inside; without, in proportion to the time.
    """
    if on_gpu(profile):
        step_s = profile.op_s + outside(profile)
        return (outside(profile) / step_s,) * 2 if step_s else (0.0, 0.0)
    light = profile.light
    op_s, outside_s = (light.op_s, light.outside_s) if light else (profile.op_s, profile.outside_s)
    step_s = op_s + outside_s
    if not step_s:
        return 0.0, 0.0
    plain_s = statistics.median(light.plain_step_s) if light else profile.unprofiled_s
    profilers_s = max(0.0, step_s - (plain_s or step_s))
    least = 1 - light.events_in_ops / light.events if light and light.events else outside_s / step_s
    plain_s = step_s - profilers_s
    # at most the step: where ops took less than their events' part of the profiler's time, it was not in proportion
    low, high = (min(max(0.0, outside_s - part * profilers_s), plain_s) for part in (1.0, least))
    return low / plain_s, high / plain_s


def plain_scale(profile: Profile) -> float:
    """What turns the rows' seconds into those of the unprofiled step: on a CPU the profiler's time is in them, too."""
    op_s = profile.op_s
    if on_gpu(profile) or not op_s or profile.unprofiled_s is None:
        return 1.0
    return (profile.unprofiled_s - outside(profile)) / op_s


def plain_step_s(profile: Profile) -> float:
    """The step without the profiler; all of the profiled step where only a trace was read."""
    return profile.unprofiled_s or profiled_step_s(profile)


def profiled_step_s(profile: Profile) -> float:
    """As its rows and what is outside them add up: the profiler's own time is in it."""
    return profile.op_s + profile.outside_s


def bounded_percent(low: float, high: float) -> str:
    """Two shares as percentages, "31 to 47"; one number where they differ by less than it shows."""
    shown = [f"{100 * share:.0f}" if high >= 0.1 else f"{100 * share:.1f}" for share in (low, high)]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)


def on_gpu(profile: Profile) -> bool:
    return any(row.device_s is not None for row in profile.rows)


def op_type(row: OpRow) -> str:
    return row.type


def counted_threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def workload_order(name: str) -> tuple[int, str]:
    """The eight as the paper lists them, then others by name."""
    known = list(published.op_percent())
    return (known.index(name), "") if name in known else (len(known), name)


def _has_ops(record: Record) -> bool:
    return record.profile is not None and record.profile.op_s > 0


def _order(group: RunGroup) -> tuple[object, ...]:
    """Workloads as in the paper, CPUs before accelerators."""
    return workload_order(group.workload), group.phase != "train", not on_cpu(group.runs[0]), group.machine


def _described(record: Record) -> str:
    return f"{record.spec.workload} {_condition(record)}"


def _condition(record: Record) -> str:
    spec = record.spec
    threads = "" if spec.threads is None else f", {counted_threads(spec.threads)}"
    return f"{spec.phase} on {machine_name(record)} ({spec.preset}{threads})"


def finished_attempts(records: Iterable[Record]) -> list[Record]:
    """All runs but failed ones that were made again later and succeeded: what a run came to is not drawn again."""
    records = list(records)
    succeeded: dict[tuple[str, str], str] = {}
    for record in records:
        if record.outcome == "ok":
            key = (record.spec.id, record.machine_label)
            succeeded[key] = max(record.started, succeeded.get(key, ""))
    return [
        record
        for record in records
        if record.outcome == "ok" or succeeded.get((record.spec.id, record.machine_label), "") <= record.started
    ]


def last_attempts(records: Iterable[Record]) -> list[Record]:
    """One record for each spec and machine: the last that succeeded, or else the last one."""
    ordered = sorted(records, key=lambda record: (record.outcome == "ok", record.started))
    return list({(record.spec.id, record.machine_label): record for record in ordered}.values())
