"""Runs of `fathom feed` as ways of feeding one workload: rates alone and together, how long the device waits.

Times are means over all steps of a launch, and the median over launches: workers deliver in bursts, and the median of
single steps would not see the step that waits.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fathom.analysis.selection import configuration, machine_name, on_cpu, told_apart
from fathom.core.feeding import Feeding, FeedTimes
from fathom.core.record import Record
from fathom.core.spec import RunSpec

BUSY = 0.05  # of the time of fed steps: a device that waits for less is kept busy


@dataclass(frozen=True)
class Way:
    """One way of feeding, and its launches."""

    runs: list[Record]

    @property
    def used(self) -> Feeding | None:
        return self._times(0).used

    @property
    def usual(self) -> bool:
        """Whether nobody asked for it: it is what every other command does."""
        return self.runs[0].spec.feeding is None

    @property
    def name(self) -> str:
        used = self.used
        words = "kept on the device" if used is None else used.readers if self.on_cpu else str(used)
        return words + (" (default)" if self.usual else "")

    @property
    def on_cpu(self) -> bool:
        return on_cpu(self.runs[0])

    @property
    def input_s(self) -> float:
        """Of a batch, alone."""
        return self._median(lambda run, times: statistics.fmean(times.input_s))

    @property
    def compute_s(self) -> float:
        """Of a step, alone."""
        return self._median(lambda run, times: statistics.fmean(times.compute_s))

    @property
    def fed_s(self) -> float:
        """Of a step with its input."""
        return self._median(lambda run, times: statistics.fmean(run.step_s))

    @property
    def waits(self) -> list[float]:
        """Of each launch, the part of its fed steps in which the device waited for a batch."""
        return [sum(self._times(index).wait_s) / sum(run.step_s) for index, run in enumerate(self.runs)]

    @property
    def waiting(self) -> float:
        return statistics.median(self.waits)

    @property
    def keeps_busy(self) -> bool:
        """In every launch."""
        return max(self.waits) <= BUSY

    @property
    def batch_bytes(self) -> int:
        return self._times(0).batch_bytes

    @property
    def slowdown(self) -> float:
        """Compute while fed over compute alone: above 1 where readers take cores or memory bandwidth from it."""
        return self._median(
            lambda run, times: (
                (sum(run.step_s) - sum(times.wait_s)) / len(run.step_s) / statistics.fmean(times.compute_s)
            )
        )

    @property
    def cost(self) -> tuple[int, int, bool, bool]:
        """Processes first, then memory for batches, then memory that the system cannot page out."""
        used = self.used or Feeding()
        return used.workers, used.in_flight, used.pinned, used.overlapped

    def items_per_s(self, seconds: float) -> float | None:
        items = self.runs[0].items_per_step
        return items / seconds if items and seconds > 0 else None

    @property
    def input_per_core(self) -> float | None:
        """Items per second and reading process; None where nothing is read."""
        if self.used is None or (rate := self.items_per_s(self.input_s)) is None:
            return None
        return rate / max(1, self.used.workers)

    def _times(self, index: int) -> FeedTimes:
        times = self.runs[index].feed
        assert times is not None  # sweeps() takes no others
        return times

    def _median(self, value: Callable[[Record, FeedTimes], float]) -> float:
        return statistics.median(value(run, self._times(index)) for index, run in enumerate(self.runs))


@dataclass(frozen=True)
class FeedSweep:
    """One workload and phase on one machine, fed in several ways."""

    name: str  # of the workload, with what distinguishes it from other sweeps of the machine
    machine: str
    ways: list[Way]  # the cheapest first

    @property
    def chosen(self) -> Way | None:
        """The cheapest that keeps the device busy."""
        return next((way for way in self.ways if way.keeps_busy), None)

    @property
    def fastest(self) -> Way:
        return min(self.ways, key=lambda way: way.fed_s)

    @property
    def workers_needed(self) -> int | None:
        """How many readers would keep up with compute, by what each of the most that were tried reads."""
        read = [way for way in self.ways if way.used is not None and way.compute_s > 0]
        if not read:
            return None
        most = max(read, key=lambda way: way.cost)
        used = most.used
        assert used is not None
        return math.ceil(most.input_s * max(1, used.workers) / most.compute_s)

    def bandwidth(self) -> list[tuple[int, float | None, float | None]]:
        """Bytes of a copy, and bytes/s from pinned and from pageable memory; none on a CPU."""
        copies: dict[int, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
        for way in self.ways:
            for run in way.runs:
                for transfer in run.feed.transfers if run.feed else ():
                    copies[transfer.bytes][transfer.pinned] += transfer.seconds
        return [(size, _rate(size, found[True]), _rate(size, found[False])) for size, found in sorted(copies.items())]


def _rate(size: int, seconds: Sequence[float]) -> float | None:
    return size / statistics.median(seconds) if seconds else None


def sweeps(records: Iterable[Record]) -> list[FeedSweep]:
    """Feed runs by workload, phase, machine and everything else but how they were fed."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    specs: dict[tuple[str, str, str, str], RunSpec] = {}
    for record in records:
        if record.spec.kind == "feed" and record.outcome == "ok" and record.feed and record.step_s:
            spec = dataclasses.replace(configuration(record), feeding=None)
            key = record.spec.workload, record.spec.phase, machine_name(record), spec.id
            specs[key] = spec
            groups[key][configuration(record).id].append(record)
    found = []
    for (machine, name), by_way in zip(_names(specs), groups.values(), strict=True):
        ways = sorted((Way(runs) for runs in by_way.values()), key=lambda way: (way.cost, not way.usual))
        found.append(FeedSweep(name, machine, ways))
    return sorted(found, key=lambda sweep: (sweep.name, sweep.machine))


def _names(specs: Mapping[tuple[str, str, str, str], RunSpec]) -> list[tuple[str, str]]:
    """Of each group the machine, and a name that no other group of the same machine has."""
    where = [f"{machine}: " for _, _, machine, _ in specs]
    names = [
        at + (workload if phase == "train" else f"{workload} inference")
        for at, (workload, phase, _, _) in zip(where, specs, strict=True)
    ]
    apart = told_apart(list(zip(names, specs.values(), strict=True)))
    return [(at.removesuffix(": "), name.removeprefix(at)) for at, name in zip(where, apart, strict=True)]
