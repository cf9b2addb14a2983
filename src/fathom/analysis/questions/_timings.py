"""The step times of each work on each machine, and the pairs of them that may be compared: equal work, or per item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from fathom.analysis.equal_work import Work, groups_by_work, same_item, same_network
from fathom.analysis.ratio import Ratio, ratio
from fathom.analysis.selection import RunGroup, completeness, on_cpu, workload_order
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import settled_steps, step_time
from fathom.core.record import Record


@dataclass(frozen=True)
class Timing:
    """The step time of one work on one machine: median after warm-up, with a 95 % interval (Interval.claim)."""

    work: Work
    group: RunGroup
    step: Interval

    @property
    def machine(self) -> str:
        return self.group.machine

    @property
    def run(self) -> Record:
        return self.group.runs[0]

    @property
    def item_s(self) -> float:
        return self.step.median / self.work.items

    @property
    def launches(self) -> list[list[float]]:
        return [settled_steps(run) for run in self.group.runs]

    @property
    def per_item(self) -> list[list[float]]:
        return [[step_s / self.work.items for step_s in steps] for steps in self.launches]


@dataclass(frozen=True)
class Pair:
    """One workload on two machines, or in two phases on one."""

    ours: Timing
    base: Timing

    @property
    def equal(self) -> bool:
        return self.ours.work.in_phase("") == self.base.work.in_phase("")

    @property
    def comparable(self) -> bool:
        return same_network(self.ours.run, self.base.run) and same_item(self.ours.run, self.base.run)

    @property
    def speed(self) -> Ratio:
        """How many times as fast as the base, per item where the work is not equal."""
        return ratio(self.ours.per_item, self.base.per_item)


Timings = dict[tuple[Work, str], Timing]  # (work, machine) -> timing


def timings_of(records: Sequence[Record]) -> Timings:
    """In the order of the report: workloads as in the paper, training first, CPUs before accelerators."""
    found = [Timing(work, group, step_time(group.runs)) for (work, _), group in groups_by_work(records).items()]
    return {(timing.work, timing.machine): timing for timing in sorted(found, key=_order)}


def _order(timing: Timing) -> tuple[object, ...]:
    work = timing.work
    machine = (not on_cpu(timing.run), timing.machine)
    return workload_order(work.workload), work.phase != "train", machine, work.preset, work.items, str(work)


def _complete(timing: Timing) -> tuple[float | str, ...]:
    return max(map(completeness, timing.group.runs))


def machines_of(timings: Timings) -> list[str]:
    return list(dict.fromkeys(machine for _, machine in timings))


def slowest_machine(timings: Timings) -> str:
    """The CPU that trains slowest, by the work that CPUs have in common; without one, the machine that did most."""
    trained = [timing for timing in timings.values() if timing.work.phase == "train"] or list(timings.values())
    candidates = [timing for timing in trained if on_cpu(timing.run)] or trained
    fastest: dict[Work, float] = {}
    for timing in candidates:
        fastest[timing.work] = min(timing.item_s, fastest.get(timing.work, timing.item_s))
    slowness: dict[str, list[float]] = {}
    for timing in candidates:
        slowness.setdefault(timing.machine, []).append(timing.item_s / fastest[timing.work])
    slow = {machine: geometric_mean(found) for machine, found in slowness.items()}
    if on_cpu(candidates[0].run):
        return max(slow, key=lambda machine: (slow[machine], len(slowness[machine])))
    # other precisions and engines of one GPU have no work in common
    return max(slow, key=lambda machine: (len(slowness[machine]), slow[machine]))


def pairs_with(timings: Timings, base: str) -> Iterator[Pair]:
    """Each workload and phase on each machine with that on the base: the most complete work that both did, or else
    what each did most completely."""
    names = dict.fromkeys((work.workload, work.phase, machine) for work, machine in timings if machine != base)
    for workload, phase, machine in names:
        ours, theirs = (
            {work: timing for (work, where), timing in timings.items() if where == own and _is(work, workload, phase)}
            for own in (machine, base)
        )
        common = [Pair(ours[work], theirs[work]) for work in ours if work in theirs]
        if common:
            yield max(common, key=lambda pair: _complete(pair.ours))
        elif theirs:
            yield Pair(*(max(side.values(), key=_complete) for side in (ours, theirs)))


def _is(work: Work, workload: str, phase: str) -> bool:
    return (work.workload, work.phase) == (workload, phase)


def reference_of(timings: Timings, base: str, workload: str) -> Timing | None:
    """Training on the base, with the work that most machines did; of several, the most complete."""
    trained = [timing for timing in timings.values() if timing.machine == base and _is(timing.work, workload, "train")]

    def machines(timing: Timing) -> int:
        return sum(work == timing.work for work, _ in timings)

    return max(trained, key=lambda timing: (machines(timing), _complete(timing)), default=None)


def relative(timings: Timings, timing: Timing, base: str) -> float | None:
    """Time over that of the same work in training on the base; None where network or item differ, or without one."""
    trained = timings.get((timing.work.in_phase("train"), base))
    if trained is None or not Pair(timing, trained).comparable:
        return None
    return timing.item_s / trained.item_s


def train_over_infer(timings: Timings, base: str, machine: str) -> dict[str, Pair]:
    """Workload -> training and inference at one batch; of several, the work of the reference, or the most complete."""
    found: dict[str, Pair] = {}
    ranks: dict[str, tuple[object, ...]] = {}
    for (work, where), trained in timings.items():
        inferred = timings.get((work.in_phase("infer"), machine))
        if where != machine or work.phase != "train" or inferred is None or not Pair(inferred, trained).comparable:
            continue
        reference = reference_of(timings, base, work.workload)
        rank = (reference is not None and reference.work == work, _complete(trained))
        if work.workload not in found or rank > ranks[work.workload]:
            found[work.workload], ranks[work.workload] = Pair(inferred, trained), rank
    return found


def differing_items(timings: Timings) -> dict[str, tuple[str, str]]:
    """Workload -> what an item is in training and in inference, where that differs."""
    found: dict[str, tuple[str, str]] = {}
    trained = [timing for timing in timings.values() if timing.work.phase == "train"]
    for timing in trained:
        for other in timings.values():
            here = other.machine == timing.machine and _is(other.work, timing.work.workload, "infer")
            if here and not same_item(timing.run, other.run):
                found[timing.work.workload] = str(timing.run.item), str(other.run.item)
    return found
