"""A setting: the runs of one workload in one phase at one place; which of them to take, and what they add up to."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fathom import published
from fathom.core.record import OpRow, Profile, Record
from fathom.core.spec import PHASES, RunSpec

Key = TypeVar("Key", bound=Hashable)
PRESETS = ("tiny", "small", "paper")  # from the least like the published network to the most


@dataclass(frozen=True)
class RunGroup:
    """One workload in one phase at one place, and its runs: one configuration, one process each."""

    workload: str
    phase: str
    place: str
    runs: list[Record]

    @property
    def profiles(self) -> list[Profile]:
        return [run.profile for run in self.runs if run.profile]

    @property
    def outside_s(self) -> float:
        return statistics.fmean(outside(profile) for profile in self.profiles)

    @property
    def op_s(self) -> float:
        return statistics.fmean(op_seconds(profile) for profile in self.profiles)

    @property
    def step_s(self) -> float:
        """What percentages are of: the ops and what is outside them."""
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
    settings: list[RunGroup]
    notes: list[str]

    @property
    def places(self) -> list[str]:
        """CPUs before accelerators."""
        found = {setting.place: not on_cpu(setting.runs[0]) for setting in self.settings}
        return sorted(found, key=lambda place: (found[place], place))

    def at(self, place: str) -> list[RunGroup]:
        return [setting for setting in self.settings if setting.place == place]


def select(records: Sequence[Record], *, profiled: bool, phases: Sequence[str] = PHASES) -> Selection:
    """Per workload, phase and place, the runs of the configuration closest to the published one."""
    answering, notes = usable(records, profiled, phases)
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in answering:
        groups[record.spec.workload, record.spec.phase, where(record)].append(record)
    settings, skipped = [], []
    for (workload, phase, place), runs in groups.items():
        best = configuration(max(runs, key=completeness))
        settings.append(RunGroup(workload, phase, place, [run for run in runs if configuration(run) == best]))
        skipped += [run for run in runs if configuration(run) != best]
    if skipped:
        notes.append(f"Left out, as a fuller configuration is there: {counted(map(_described, skipped))}.")
    return Selection(sorted(settings, key=_order), notes)


def usable(records: Sequence[Record], profiled: bool, phases: Sequence[str]) -> tuple[list[Record], list[str]]:
    """The runs that can answer a question about whole machines, and notes on the others."""
    # a life run has no steps of its own, and a run on some of the cores belongs to the question about cores
    records = [record for record in records if not (record.spec.kind in ("program", "training") or record.spec.cores)]
    failed = [record for record in records if record.outcome != "ok"]
    sound = [record for record in records if record.outcome == "ok"]
    asked = [record for record in sound if record.spec.phase in phases]
    full = [record for record in asked if (_has_ops(record) if profiled else record.step_s)]
    empty = [record for record in asked if not (_has_ops(record) if profiled else record.step_s)]
    notes = []
    if failed:
        notes.append(f"Left out, failed: {counted(f'{_described(run)}: {run.reason}' for run in failed)}.")
    if len(asked) < len(sound):
        notes.append(f"Left out, as this is about {' and '.join(phases)}: {len(sound) - len(asked)} other runs.")
    if empty:
        missing = "profile" if profiled else "timed step"
        notes.append(f"Left out, without a {missing}: {counted(map(_described, empty))}.")
    return full, notes


def counted(names: Iterable[str]) -> str:
    """Names with how often each occurs, in the order of first appearance."""
    counts = Counter(names)
    return "; ".join(f"{name} x {count}" if count > 1 else name for name, count in counts.items())


def where(record: Record) -> str:
    """The place, and the precision where it is not the default one: the same GPU in bf16 is another machine."""
    precision = record.spec.precision
    return record.machine_label if precision == "fp32" else f"{record.machine_label}, {precision}"


def on_cpu(record: Record) -> bool:
    return record.device.startswith("cpu")


def configuration(record: Record) -> RunSpec:
    """The spec without what may differ between repetitions of one measurement."""
    return dataclasses.replace(record.spec, seed=0, warmup=0, steps=1, budget_s=None, kind="timed", device="auto")


def completeness(record: Record) -> tuple[float | str, ...]:
    """Large for the run that says most: the published sizes, nothing changed by hand, the machine's own threads."""
    spec = record.spec
    preset = PRESETS.index(spec.preset) if spec.preset in PRESETS else -1
    threads = float("inf") if spec.threads is None else spec.threads
    return preset, not spec.options, spec.batch is None, threads, spec.data is None, record.started


def seconds_by(profiles: Sequence[Profile], key: Callable[[OpRow], Key]) -> dict[Key, float]:
    total: dict[Key, float] = defaultdict(float)
    for profile in profiles:
        for row in profile.rows:
            total[key(row)] += profile.seconds(row) / len(profiles)
    return dict(total)


def op_seconds(profile: Profile) -> float:
    return sum(profile.seconds(row) for row in profile.rows)


def outside(profile: Profile) -> float:
    """Seconds of a step in no op. The profiler slows the host and not the kernels, so a GPU's idle time is that of the
    plain step; on a CPU ops and gaps are slowed alike, and the profiled step is the one they add up to.

    Kernels of more than the plain step leave nothing outside: percentages are then of the kernels' sum."""
    return max(0.0, plain_step_s(profile) - op_seconds(profile)) if on_gpu(profile) else profile.outside_s


def plain_step_s(profile: Profile) -> float:
    """On a GPU the step without the profiler, which slows the host alone; else all of the profiled step."""
    if on_gpu(profile) and profile.plain_step_s:
        return statistics.median(profile.plain_step_s)
    return op_seconds(profile) + profile.outside_s


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
    return record.profile is not None and op_seconds(record.profile) > 0


def _order(setting: RunGroup) -> tuple[object, ...]:
    """Workloads as in the paper, CPUs before accelerators."""
    return workload_order(setting.workload), setting.phase != "train", not on_cpu(setting.runs[0]), setting.place


def _described(record: Record) -> str:
    spec = record.spec
    threads = "" if spec.threads is None else f", {counted_threads(spec.threads)}"
    return f"{spec.workload} {spec.phase} on {where(record)} ({spec.preset}{threads})"


def last_attempts(records: Iterable[Record]) -> list[Record]:
    """One record for each spec and place: the last that went well, or else the last. A failure before is no result."""
    ordered = sorted(records, key=lambda record: (record.outcome == "ok", record.started))
    return list({(record.spec.id, record.machine_label): record for record in ordered}.values())
