"""Attributes the time of kernels, copies and memsets to the op calls that launched them.

The time of concurrent kernels is divided equally, so that op calls add up to the time in which the GPU was busy. A
kernel that an unknown op launched is typed by its own name, as is one that no op launched, such as those of a CUDA
graph, which gets an op call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fathom.trace.calls import GpuActivity, OpCall
from fathom.trace.concurrency import SharedClock
from fathom.trace.event import GPU_KINDS, LAUNCH, NO_CORRELATION, Event, launch_args
from fathom.trace.steps import Steps
from fathom.trace.taxonomy import OTHER, kernel_type, short_name, update_type


class LaunchSite(msgspec.Struct, gc=False):
    """Where a kernel was launched."""

    event: Event | None  # the call that launched it; None where the trace does not have it
    call: OpCall | None  # None outside all ops
    typed: bool = False  # whether the op's type is that of its kernels
    phase: str = ""  # outside all ops: by the markers around it
    optimizer: str = ""


ANY_COLLECTIVE = "Collective"  # the type of record_param_comms: the name of its kernel tells which
NOWHERE = LaunchSite(None, None)


def activities_of(events: Sequence[Event]) -> list[GpuActivity]:
    """The GPU activities of a trace in order, with the times of their launches but no op calls."""
    launches = {launch_args(event).correlation: LaunchSite(event, None) for event in events if event.cat == LAUNCH}
    launches.pop(NO_CORRELATION, None)
    attribution = GpuAttribution([], launches, Steps([], waited=False))
    gpu_events = sorted((event for event in events if event.cat in GPU_KINDS), key=lambda event: event.ts)
    return [attribution.activity(event, launch_args(event).correlation) for event in gpu_events]


class GpuAttribution:
    """The state of attributing GPU time; adds op calls for kernels that have none of their own type."""

    def __init__(self, op_calls: list[OpCall], launches: dict[int, LaunchSite], steps: Steps) -> None:
        self.op_calls = op_calls
        self.launches = launches
        self.steps = steps
        self._by_kernel: dict[tuple[object, ...], OpCall] = {}
        self._continued: dict[tuple[int, int], OpCall] = {}

    def attribute(self, events: Sequence[Event], correlations: Sequence[int]) -> list[GpuActivity]:
        """All GPU activities in the order of their beginnings, each with its op call where it ran in a step."""
        if not events:
            return []
        order = np.argsort([event.ts for event in events], kind="stable").tolist()
        activities = [self.activity(events[index], correlations[index]) for index in order]
        if self.steps.waited:
            self._extend_steps(activities)
        begins = np.array([activity.begin for activity in activities])
        ends = np.array([activity.end for activity in activities])
        clock = SharedClock(begins, ends)
        shares = clock.between(begins, ends).tolist()
        steps = self.steps.all_at(begins).tolist()
        for activity, share, step in zip(activities, shares, steps, strict=True):
            if step >= 0 and activity.end <= self.steps.windows[step][1]:
                self._add(activity, step, share, activity.end - activity.begin)
            else:
                self._add_parts(activity, clock)
        return activities

    def activity(self, event: Event, correlation: int) -> GpuActivity:
        site = self.launches.get(correlation, NOWHERE)
        call = site.call
        if call is not None and (not site.typed or call.type == ANY_COLLECTIVE):
            call = self._of_kernel_type(call, event.name)
        return GpuActivity(
            kind=GPU_KINDS[event.cat or ""],
            name=event.name,
            begin=event.ts,
            end=event.ts + event.dur,
            correlation=correlation,
            op_call=call,
            launched=site.event.ts if site.event is not None else float("nan"),
            stream=(event.pid, event.tid),
            launch=site.event,
            args=event.args,
        )

    def _of_kernel_type(self, call: OpCall, kernel: str) -> OpCall:
        """An unknown op's kernels are typed one by one."""
        kind = kernel_type(kernel)
        if kind in (OTHER, call.type):
            return call
        key = (id(call), kind)
        if key not in self._by_kernel:
            self._by_kernel[key] = self._without_time(call, kind, call.step)
        return self._by_kernel[key]

    def _extend_steps(self, activities: Sequence[GpuActivity]) -> None:
        """Every step to the end of the last kernel that was launched in it."""
        latest = [end for _, end in self.steps.windows]
        for activity in activities:
            if activity.op_call is not None:
                step = activity.op_call.step
                latest[step] = max(latest[step], activity.end)
        self.steps.extend(latest)

    def _add_parts(self, activity: GpuActivity, clock: SharedClock) -> None:
        """To each step the part of an activity that runs in it."""
        step = self.steps.overlapping(activity.begin, activity.end)
        while step is not None and step < len(self.steps) and self.steps.windows[step][0] < activity.end:
            begin, end = (
                max(activity.begin, self.steps.windows[step][0]),
                min(activity.end, self.steps.windows[step][1]),
            )
            if begin < end:
                share = float(clock.between(np.array([begin]), np.array([end]))[0])
                self._add(activity, step, share, end - begin)
            step += 1

    def _add(self, activity: GpuActivity, step: int, share: float, duration: float) -> None:
        if activity.step is None:
            activity.step = step
        if activity.op_call is None:
            activity.op_call = self._stand_in(activity, step)
        call = self._in_step(activity.op_call, step)
        call.device_us += share
        call.kernel_us += duration
        call.kernels.append((activity.name, share))

    def _in_step(self, call: OpCall, step: int) -> OpCall:
        """The op call itself, or its continuation in a later step than that of the launch."""
        if call.step == step:
            return call
        key = (id(call), step)
        if key not in self._continued:
            self._continued[key] = self._without_time(call, call.type, step)
        return self._continued[key]

    def _without_time(self, call: OpCall, kind: str, step: int) -> OpCall:
        """The same op call of another type or in another step, for the kernels that are."""
        part = msgspec.structs.replace(
            call, type=kind, step=step, cpu_us=0.0, device_us=0.0, kernel_us=0.0, kernels=[], calls=0
        )
        self.op_calls.append(part)
        return part

    def _stand_in(self, activity: GpuActivity, step: int) -> OpCall:
        """An op call for kernels that no op launched; its phase is that of the markers around the launch."""
        site = self.launches.get(activity.correlation, NOWHERE)
        phase = site.phase or "other"
        key = (activity.name, phase, site.optimizer, step)
        if key in self._by_kernel:
            self._by_kernel[key].calls += 1
            return self._by_kernel[key]
        in_update = phase == "optimizer"
        self._by_kernel[key] = OpCall(
            op=short_name(activity.name),
            type=update_type(site.optimizer or "Clip") if in_update else kernel_type(activity.name),
            layer="",
            role=phase if phase in {"optimizer", "data"} else "",
            phase=phase,
            step=step,
            cpu_us=0.0,
            kernel_only=True,
        )
        self.op_calls.append(self._by_kernel[key])
        return self._by_kernel[key]
