"""Jobs of several ranks as curves: one workload, strategy and scaling over ranks, and what a step is spent on."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fathom.analysis.questions.cores import quotient
from fathom.analysis.scaling_law import STRONG, WEAK, law, serial_fraction
from fathom.analysis.selection import configuration, told_apart, workload_order
from fathom.analysis.statistics import Interval, median_interval
from fathom.analysis.step_time import step_time
from fathom.core.ranks import RankSeries, strategy_shown
from fathom.core.record import Record
from fathom.core.spec import RunSpec

PARTS = ("compute_s", "exposed_s", "wait_s", "hidden_s")


@dataclass(frozen=True)
class Job:
    """All launches of one number of ranks."""

    ranks: int
    runs: list[Record]

    @property
    def step(self) -> Interval:
        """In a job that synchronises every few steps, the mean over the steps from one synchronisation to the next."""
        if all(period(run) == 1 for run in self.runs):
            return step_time(self.runs)
        return median_interval([_between_synchronisations(run) for run in self.runs])

    @property
    def items_per_step(self) -> int:
        return self.runs[0].items_per_step or 0

    @property
    def items_per_s(self) -> float | None:
        step_s = self.step.median
        return self.items_per_step / step_s if step_s > 0 else None

    def part_s(self, name: str) -> float:
        """Of a step, in the median over steps (or synchronisations) and launches; the mean over the ranks."""
        return statistics.median(_mean_over_ranks(run, name) for run in self.runs)

    @property
    def wire_bytes(self) -> float:
        """Sent by a rank in a step, the mean over the ranks."""
        return statistics.median(_mean_over_ranks(run, "wire_bytes") for run in self.runs)

    @property
    def threads(self) -> int | None:
        series = self.runs[0].ranks.series if self.runs[0].ranks else []
        return series[0].threads if series else None


@dataclass(frozen=True)
class Curve:
    """One workload by one strategy on one machine, in weak or strong scaling."""

    workload: str
    machine: str
    strategy: str
    scaling: str
    jobs: list[Job]  # by ranks
    apart: str = ""  # the machine again, where there are curves of several

    @property
    def base(self) -> Job | None:
        return next((job for job in self.jobs if job.ranks == 1), None)

    @property
    def widest(self) -> Job:
        return max(self.jobs, key=lambda job: job.ranks)

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.workload, self.strategy, self.scaling, self.apart]))

    def speedup(self, job: Job) -> Interval | None:
        """Items per second over those of one rank: in strong scaling the ratio of step times, in weak n times that."""
        if self.base is None or not self.base.items_per_step:
            return None
        gained = job.items_per_step / self.base.items_per_step
        found = quotient(self.base.step, job.step)
        return Interval(gained * found.median, gained * found.low, gained * found.high, found.launches)

    def efficiency(self, job: Job) -> Interval | None:
        found = self.speedup(job)
        if found is None:
            return None
        return Interval(found.median / job.ranks, found.low / job.ranks, found.high / job.ranks, found.launches)

    @property
    def serial(self) -> float | None:
        """The serial fraction that fits the speed-ups best: Amdahl's in strong scaling, Gustafson's in weak."""
        known = {job.ranks: found.median for job in self.jobs if (found := self.speedup(job)) and job.ranks > 1}
        return serial_fraction(known, self.scaling)

    def predicted(self, ranks: int) -> float | None:
        return None if self.serial is None else law(self.serial, ranks, self.scaling)


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """A job of one rank is the base of weak and of strong scaling alike."""
    groups: dict[tuple[str, ...], dict[str, dict[int, list[Record]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    specs: dict[str, RunSpec] = {}
    for record in records:
        if record.outcome == "ok" and record.step_s and record.ranks and record.spec.strategy:
            free = work_of(record)
            key = (record.spec.workload, record.machine_label, circumstances(record), _strategy(record), str(free))
            specs[str(free)] = free
            scalings = (WEAK, STRONG) if record.spec.ranks == 1 else (record.spec.scaling or WEAK,)
            for scaling in scalings:
                groups[key][scaling][record.ranks.ranks].append(record)
    curves, free_specs = [], []
    for (workload, machine, apart, strategy, free_text), by_scaling in list(groups.items()):
        if apart:  # one rank is on one node, and has no slower one among its peers: the base is the same
            for scaling, jobs in groups[workload, machine, "", strategy, free_text].items():
                by_scaling[scaling][1] = by_scaling[scaling][1] or jobs.get(1, [])
            by_scaling = {name: {n: runs for n, runs in jobs.items() if runs} for name, jobs in by_scaling.items()}
        several = {name: jobs for name, jobs in by_scaling.items() if set(jobs) - {1}} or {WEAK: by_scaling[WEAK]}
        for scaling, jobs in several.items():
            if jobs:
                found = [Job(ranks, jobs[ranks]) for ranks in sorted(jobs)]
                named = ", ".join(filter(None, [strategy, apart]))
                curves.append(Curve(workload, machine, named, scaling, found))
                free_specs.append(specs[free_text])
    if len({curve.machine for curve in curves}) > 1:
        curves = [dataclasses.replace(curve, apart=curve.machine) for curve in curves]
    full_names = told_apart([(curve.name, spec) for curve, spec in zip(curves, free_specs, strict=True)])
    curves = [
        dataclasses.replace(curve, strategy=curve.strategy + name.removeprefix(curve.name))
        for curve, name in zip(curves, full_names, strict=True)
    ]
    return sorted(
        curves, key=lambda curve: (curve.machine, workload_order(curve.workload), curve.strategy, curve.scaling)
    )


def work_of(record: Record) -> RunSpec:
    """What a job does, whatever the number of its ranks, how it is scaled and what was injected."""
    return dataclasses.replace(configuration(record), ranks=2, nodes=1, scaling=None, slow_rank=None, slow_link=None)


def job_name(record: Record) -> str:
    """What was run, in words: "ddp accumulate=2, weak, 4 ranks". One rank is the same in weak and strong scaling."""
    ranks = record.spec.ranks or 1
    apart = circumstances(record)
    scaling = "" if ranks == 1 else record.spec.scaling or WEAK
    parts = [_strategy(record), scaling, f"{ranks} rank{'s' * (ranks > 1)}", apart]
    return ", ".join(filter(None, parts))


def job_names(records: Sequence[Record]) -> dict[int, str]:
    """By id(), of jobs of ranks: names that are the same for other work of a workload say in what it differs."""
    jobs: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.ranks:
            jobs[record.spec.workload].append(record)
    names: dict[int, str] = {}
    for own in jobs.values():
        apart = told_apart([(job_name(record), work_of(record)) for record in own])
        names |= {id(record): name for record, name in zip(own, apart, strict=True)}
    return names


def _strategy(record: Record) -> str:
    """Its name, with the options that were changed."""
    changed = [f"{name}={value}" for name, value in sorted(record.spec.strategy_options.items())]
    return " ".join([strategy_shown(record.spec.strategy or ""), *changed])


def circumstances(record: Record) -> str:
    """Several nodes, and what was injected; "" for one node on which nothing was."""
    slow, link, nodes = record.spec.slow_rank, record.spec.slow_link, record.spec.nodes
    return ", ".join(
        [f"{nodes} nodes"] * (nodes > 1)
        + ([f"rank {slow[0]} {slow[1]:g}x slower"] if slow else [])
        + ([f"link of rank {link[0]} {link[1]:g}x slower"] if link else [])
    )


def period(run: Record) -> int:
    """Steps from one synchronisation to the next: in local SGD ranks average their weights every few steps."""
    every = run.ranks.settings.get("period") if run.ranks else None
    return every if isinstance(every, int) and every > 1 else 1


def elapsed_s(run: Record) -> list[float]:
    """Seconds to the end of each step, warm-up included: that of the slowest rank since the last synchronisation.

    Of asynchronous ranks the rates add up: the harmonic mean of their times so far.
    """
    every, own = period(run), [each.step_s for each in run.ranks.series] if run.ranks else []
    asynchronous = run.ranks is not None and "staleness" in run.ranks.settings
    if not (asynchronous or every > 1) or {len(each) for each in own} != {len(run.step_s)}:
        return list(accumulate([*run.warmup_s, *run.step_s]))
    if asynchronous:
        warm_s = math.fsum(run.warmup_s)
        timed = (warm_s + statistics.harmonic_mean(same) for same in zip(*map(accumulate, own), strict=True))
        return [*accumulate(run.warmup_s), *timed]
    ends, synchronised = list(accumulate(run.warmup_s)), math.fsum(run.warmup_s)
    since = [0.0] * len(own)  # the last synchronisation, by rank
    for number, same in enumerate(zip(*own, strict=True), start=len(run.warmup_s) + 1):
        since = [spent + step_s for spent, step_s in zip(since, same, strict=True)]
        ends.append(synchronised + max(since))
        if number % every == 0:
            synchronised, since = ends[-1], [0.0] * len(own)
    return ends


def _between_synchronisations(run: Record) -> list[float]:
    """Mean steps, each from one synchronisation to the next; over all steps where there are not two."""
    ends = [0.0, *elapsed_s(run)]
    bounds = [index for index in _synchronisations(run) if index < len(ends)]
    found = [(ends[end] - ends[begin]) / (end - begin) for begin, end in pairwise(bounds)]
    warm = len(run.warmup_s)
    return found or [(ends[-1] - ends[warm]) / max(1, len(ends) - 1 - warm)]


def _synchronisations(run: Record) -> range:
    """The steps after which the ranks have synchronised, from the first that only timed steps follow."""
    every, warm = period(run), len(run.warmup_s)
    return range(-(-warm // every) * every, warm + len(run.step_s) + 1, every)


def _mean_over_ranks(run: Record, name: str) -> float:
    """The median over the steps of the mean over the ranks; where ranks synchronise every few steps, over these few."""
    series: list[RankSeries] = run.ranks.series if run.ranks else []
    steps = [statistics.fmean(same) for same in zip(*(getattr(each, name) for each in series), strict=False)]
    if period(run) > 1 and len(steps) == len(run.step_s):
        bounds = [index - len(run.warmup_s) for index in _synchronisations(run)]
        steps = [statistics.fmean(steps[begin:end]) for begin, end in pairwise(bounds)] or [statistics.fmean(steps)]
    return statistics.median(steps) if steps else 0.0
