"""What else uses the machine while a run is measured: CPU time of others, steal, throttling, a slower core, the GPU.

It is read before, between and after the parts of a run, never within a step, and by no thread of its own.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.core.disturbance import Disturbance
from fathom.machine.cpu_speed import fastest_s, loop_s
from fathom.machine.gpus import gpu_shared, gpu_throttles
from fathom.machine.host import affinity, cgroup_folders, usable_cores

if TYPE_CHECKING:
    import torch

FEW_LOOPS = 8  # a millisecond or two
LEAST_S = 1.0  # of a part: CPU time is counted in ticks of 10 ms on every core
ANCESTORS = 2  # the supervisor and the command that started it draw progress, and are ours
SEEN = (
    0.5  # part of our own CPU time that the system's counters must show to be believed: some containers have them empty
)
SYSTEM, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters at one moment; they only grow, and None is not known on this system."""

    at_s: float
    cores: int
    busy_s: float | None = None  # CPU time of all processes on the cores that this one may use
    steal_s: float | None = None
    own_s: float | None = None  # CPU time of this process, what it started, and what started it
    preempted: int | None = None
    quotas: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # group -> periods, and how many were throttled
    load: float | None = None
    loop_s: float | None = None  # that a fixed loop takes: no counter, but the moment's own


def read(system: Path = SYSTEM, groups: Path = GROUPS) -> Reading:
    busy = _core_seconds(system / "stat")
    return Reading(
        at_s=time.perf_counter(),
        cores=usable_cores(),
        busy_s=busy and busy[0],
        steal_s=busy and busy[1],
        own_s=_own_seconds(system),
        preempted=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        quotas=_quotas(system, groups),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        loop_s=loop_s(),
    )


def between(before: Reading, after: Reading) -> Disturbance:
    """What the counters say of the time between; nothing where that is too short to tell."""
    seconds = after.at_s - before.at_s
    known = Disturbance(cores=after.cores, load_before=before.load)
    if seconds < LEAST_S:
        return known
    busy_s, own_s = _grown(before.busy_s, after.busy_s), _grown(before.own_s, after.own_s)
    steal_s, preempted = _grown(before.steal_s, after.steal_s), _grown(before.preempted, after.preempted)
    believable = busy_s and own_s is not None and busy_s >= SEEN * own_s
    # a core that has nothing to do loses nothing: of one thread on many cores, steal is a share of that thread's time
    wanted_s = (busy_s or 0.0) + (steal_s or 0.0) if believable else seconds * after.cores
    return replace(
        known,
        others_cpu=max(0.0, (busy_s or 0.0) - (own_s or 0.0)) / seconds if believable else None,
        steal=None if steal_s is None else steal_s / wanted_s,
        throttled=_throttled(before.quotas, after.quotas),
        preemptions=None if preempted is None else preempted / seconds,
    )


class Watch:
    """Looks when it is made and at every look(), and gives the worst of the parts between.

    A part that is too short is judged together with all others.
    """

    def __init__(self, device: torch.device | None = None, reader: Callable[[], Reading] = read) -> None:
        self._device, self._reader = device, reader
        self._readings: list[Reading] = []
        self._loops: list[float] = []
        self._gpu = Disturbance()
        self.look()

    def look(self) -> None:
        self._readings.append(self._reader())
        if self._device is not None and self._device.type == "cuda":
            seen = Disturbance(gpu_shared=gpu_shared(self._device), gpu_throttles=gpu_throttles(self._device))
            self._gpu = self._gpu.worst(seen)

    def time_core(self) -> None:
        """A short look at the speed of the core alone, for between chunks of steps: it may change within a second."""
        self._loops.append(loop_s(FEW_LOOPS))

    def disturbance(self) -> Disturbance:
        parts = [between(*pair) for pair in pairwise(self._readings)]
        found = between(self._readings[0], self._readings[-1]).worst(self._gpu)
        for part in parts:
            found = found.worst(part)
        looks = [*(reading.loop_s for reading in self._readings), *self._loops]
        loops = [each for each in looks if each]  # a coarse clock shows 0
        found = replace(found, load_before=self._readings[0].load, step_loops_s=tuple(self._loops))
        if not loops:
            return found
        # of the median look: a single one may be slow by the run's own threads, which wait on other cores
        usual_s = statistics.median(loops)
        return replace(found, loop_s=usual_s, cpu_slowdown=usual_s / fastest_s(min(loops)))


def _grown(before: float | None, after: float | None) -> float | None:
    """None where it is not known; a counter that fell was another one."""
    return None if before is None or after is None or after < before else after - before


def _core_seconds(path: Path) -> tuple[float, float] | None:
    """CPU time spent, and time stolen, on the cores that this process may use; of all where they have other numbers."""
    lines = {words[0]: words[1:] for words in _split_lines(path) if words and words[0].startswith("cpu")}
    own = [name for number in affinity() or [] if (name := f"cpu{number}") in lines]
    busy, steal = 0, 0
    for name in own or ["cpu"] * ("cpu" in lines):
        user, nice, system, _, _, irq, softirq, stolen = [int(word) for word in (*lines[name], *"00000000")[:8]]
        busy += user + nice + system + irq + softirq  # a guest's time is in user
        steal += stolen
    return (busy / _ticks(), steal / _ticks()) if busy else None


def _own_seconds(system: Path) -> float | None:
    """CPU time of this process and its descendants, with those that have ended, and of its nearest ancestors."""
    processes = dict(_processes(system))
    if os.getpid() not in processes:
        return None
    children: dict[int, list[int]] = defaultdict(list)
    for number, (parent, _, _) in processes.items():
        children[parent].append(number)
    ticks, tree = 0, [os.getpid()]
    while tree:
        number = tree.pop()
        ticks += processes[number][1] + processes[number][2]
        tree += children[number]
    ancestor = os.getpid()
    for _ in range(ANCESTORS):
        ancestor = processes[ancestor][0]
        if ancestor not in processes:
            break
        ticks += processes[ancestor][1]
    return ticks / _ticks()


def _processes(system: Path) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Number -> parent, ticks of its own, ticks of its children that have ended."""
    for folder in _numbered(system):
        try:
            text = (folder / "stat").read_text(errors="replace")
            words = text.rpartition(")")[2].split()  # a name may hold anything, brackets too
            parent, own, ended = int(words[1]), int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        yield int(folder.name), (parent, own, ended)


def _numbered(system: Path) -> list[Path]:
    try:
        return [folder for folder in system.iterdir() if folder.name.isdecimal()]
    except OSError:
        return []


def _throttled(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> float | None:
    """The part of the periods, of the group that was throttled most between; None without a quota."""
    found = []
    for group in before.keys() & after.keys():
        periods, throttled = (_grown(*pair) for pair in zip(before[group], after[group], strict=True))
        if periods and throttled is not None:
            found.append(throttled / periods)
    return max(found, default=None)


def _quotas(system: Path, groups: Path) -> dict[str, tuple[int, int]]:
    """Of each group with a quota that holds this process: periods, and how many were throttled."""
    found = {}
    for folder in cgroup_folders(groups, system / "self" / "cgroup"):
        values = {words[0]: int(words[1]) for words in _split_lines(folder / "cpu.stat") if len(words) == 2}
        if values.get("nr_periods"):
            found[str(folder)] = values["nr_periods"], values.get("nr_throttled", 0)
    return found


def _split_lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
