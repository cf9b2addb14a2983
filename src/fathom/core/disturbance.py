"""Disturbance: what else ran on the machine while something was measured, and from what on that counts."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace
from typing import Any

from fathom.core.fingerprint import THROTTLES

OTHERS_CPU = 0.1  # CPU-seconds per second: daemons of a quiet machine take 0.01 to 0.03
OTHERS_SHARE = 0.02  # of the cores: on many of them, the clock ticks that CPU time is counted in add up to more
STEAL = 0.02
THROTTLED = 0.01
LOAD = 1.5  # per core
SLOWER = 1.5  # times as long as the fastest: a laptop's clocks, when warm, are assumed to stay below
SLOWED_DOWN = 0x8 | 0x20 | 0x40 | 0x80  # THROTTLES that come from outside; a power cap is how a card works when full


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What else ran on the machine meanwhile, in the worst part of the run that was looked at; None is not known."""

    others_cpu: float | None = None  # CPU-seconds per second of other processes, on the cores that the run could use
    cores: int | None = None  # how many these are
    steal: float | None = None  # share of the CPU time wanted on these cores that the hypervisor gave to others
    throttled: float | None = None  # share of the CPU quota's periods in which the run was stopped
    preemptions: float | None = None  # involuntary context switches per second of the run's main process
    cpu_slowdown: float | None = None  # time of a fixed loop over the least that it took on this machine
    loop_s: float | None = None  # that time, of one thread: hosts differ in it
    step_loops_s: tuple[float, ...] = ()  # ... on a GPU, between chunks of timed steps; all of them
    load_before: float | None = None  # average of a minute; earlier runs are in it
    gpu_shared: bool | None = None  # other programs were seen on the GPU: time and energy are not this run's alone
    gpu_throttles: int | None = None  # bits of THROTTLES, all that were seen

    @property
    def known(self) -> bool:
        """Whether anybody looked for other users of the CPU."""
        return self.others_cpu is not None or self.load_before is not None

    @property
    def reasons(self) -> list[str]:
        """Why the run's times are not to be trusted, the number first; none for an undisturbed run."""
        return [*self.on_host, *self.on_gpu]

    @property
    def on_host(self) -> list[str]:
        slow = self.cpu_slowdown is not None and self.cpu_slowdown > SLOWER
        return [*self.by_others, *[f"CPU at {_percent(1 / (self.cpu_slowdown or 1))} of its fastest speed"] * slow]

    @property
    def by_others(self) -> list[str]:
        """Who else used the host's CPU: by how much that slowed the run is not known, unlike that of a slower core."""
        found = []
        cores = self.cores or 1
        if self.others_cpu is not None and self.others_cpu > max(OTHERS_CPU, OTHERS_SHARE * cores):
            found.append(f"{self.others_cpu:.2g} of {cores} cores used by other processes")
        if self.others_cpu is None and self.load_before is not None and self.load_before > LOAD * cores:
            found.append(f"load average of {self.load_before:.1f} before the run on {cores} cores")
        if self.steal is not None and self.steal > STEAL:
            found.append(f"{_percent(self.steal)} of the CPU time taken by the hypervisor (steal)")
        if self.throttled is not None and self.throttled > THROTTLED:
            found.append(f"{_percent(self.throttled)} of the CPU quota's periods throttled")
        return found

    @property
    def on_gpu(self) -> list[str]:
        found = []
        if self.gpu_shared:
            found.append("other programs on the GPU")
        if slowed := (self.gpu_throttles or 0) & SLOWED_DOWN:
            names = [name for bit, name in THROTTLES.items() if slowed & bit]
            found.append(f"GPU clocks lowered: {', '.join(names)}")
        return found

    def within(self, run: Disturbance) -> Disturbance:
        """Of steps, with what was seen of all of their run: the larger of each value, but the core's speed beside the
        steps. While torch was imported it may have been another."""
        found = self.worst(run)
        return found if self.loop_s is None else replace(found, loop_s=self.loop_s, cpu_slowdown=self.cpu_slowdown)

    def worst(self, other: Disturbance) -> Disturbance:
        """The larger of each value: of two parts of a run, or of two ways of looking at it."""
        bits = [each.gpu_throttles for each in (self, other) if each.gpu_throttles is not None]
        larger: dict[str, Any] = {
            name: max(
                (value for value in (getattr(self, name), getattr(other, name)) if value is not None), default=None
            )
            for name in self.__dataclass_fields__
            if name != "step_loops_s"
        }
        larger["step_loops_s"] = self.step_loops_s or other.step_loops_s
        return Disturbance(**larger | {"gpu_throttles": functools.reduce(operator.or_, bits) if bits else None})


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
