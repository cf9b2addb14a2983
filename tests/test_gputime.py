"""GPU utilisation of timelines made by hand: every microsecond is accounted for."""

from __future__ import annotations

import msgspec
import pytest
import trace_events

from fathom.core.record import GpuTime
from fathom.trace import gputime
from fathom.trace.event import Event, launch_args
from fathom.trace.event_columns import EventColumns
from fathom.trace.gpu import activities_of
from fathom.trace.host import DATA, OPS, WAITING, HostTime
from fathom.trace.intervals import Intervals
from fathom.trace.profile import as_profile
from fathom.trace.steps import Window
from fathom.trace.walk import breakdown


def gpu_time(events: list[Event], windows: list[Window]) -> GpuTime | None:
    return gputime.gpu_time(activities_of(events), HostTime(EventColumns.of(events)), windows)


def event(name: str, begin: float, duration: float, category: str, correlation: int) -> Event:
    return trace_events.event(name, begin, duration, category, correlation=correlation)


def launch(begin: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return event(name, begin, 5, "cuda_runtime", correlation)


# one step of 100 us: launched at 10, runs 20-40; queued at 16 while the first ran, runs 43-60; launched late, at 70,
# runs 80-90, and a copy beside it 85-95; the host waits 76-100
STEP = [
    launch(10, 1),
    launch(16, 2),
    launch(70, 3),
    launch(72, 4, "cudaMemcpyAsync"),
    event("cudaDeviceSynchronize", 76, 24, "cuda_runtime", 5),
    event("gemm", 20, 20, "kernel", 1),
    event("relu", 43, 17, "kernel", 2),
    event("sum", 80, 10, "kernel", 3),
    event("Memcpy DtoH", 85, 10, "gpu_memcpy", 4),
]


def test_time_is_busy_starved_or_idle_with_work_queued() -> None:
    found = gpu_time(STEP, [(0, 100)])
    assert found is not None
    assert found.span_s == pytest.approx(100e-6)
    assert (found.kernel_s, found.memcpy_s, found.memset_s) == pytest.approx((47e-6, 10e-6, 0))
    assert found.busy_s == pytest.approx(52e-6), "20-40, 43-60 and 80-95: overlap counts once"
    assert found.starved_s == pytest.approx(40e-6), "0-20 and 60-80; the second kernel was in the queue already"
    assert found.gaps == 4
    assert found.longest_gap_s == pytest.approx(20e-6)


def test_a_first_step_that_waits_for_the_profiler_does_not_make_the_longest_gap() -> None:
    steps = [(100.0 * number, 100.0 * number + 100) for number in range(3)]
    late = event("late", 70, 10, "kernel", 1)
    early = [event("early", begin + 5, 90, "kernel", 2) for begin, _ in steps[1:]]
    found = gpu_time([late, *early], steps)
    assert found is not None
    assert found.longest_gap_s == pytest.approx(5e-6)


def test_api_calls_are_added_up() -> None:
    found = gpu_time(STEP, [(0, 100)])
    assert found is not None
    assert [(call.name, call.calls) for call in found.api] == [
        ("cudaDeviceSynchronize", 1),
        ("cudaLaunchKernel", 3),
        ("cudaMemcpyAsync", 1),
    ]
    assert found.api_s == pytest.approx(44e-6)
    assert found.activities == 4


def test_several_steps_are_averaged_and_time_between_them_is_left_out() -> None:
    later = [
        event(item.name, item.ts + 200, item.dur, str(item.cat), 10 + launch_args(item).correlation) for item in STEP
    ]
    between = event("stray", 150, 10, "kernel", 99)
    one, two = gpu_time(STEP, [(0, 100)]), gpu_time([*STEP, between, *later], [(0, 100), (200, 300)])
    assert one is not None
    assert two is not None
    assert two.busy_s == pytest.approx(one.busy_s)
    assert two.starved_s == pytest.approx(one.starved_s)
    assert two.activities == one.activities
    assert two.api_s == pytest.approx(one.api_s)


def test_a_trace_without_gpu_events_gives_none() -> None:
    assert gpu_time([event("aten::mm", 0, 5, "cpu_op", 0)], [(0, 10)]) is None


def later(events: list[Event], by: float) -> list[Event]:
    return [
        Event(
            name=each.name, cat=each.cat, ts=each.ts + by, dur=each.dur, pid=each.pid, tid=each.tid,
            args=msgspec.Raw(msgspec.json.encode({"correlation": launch_args(each).correlation + int(by)})),
        )
        for each in events
    ]  # fmt: skip


def test_a_kernel_that_runs_into_the_next_step_is_busy_time_of_both() -> None:
    steps = [(0.0, 100.0), (100.0, 200.0)]
    found = gpu_time([launch(50, 1), event("long", 80, 60, "kernel", 1)], steps)
    assert found is not None
    assert found.busy_s == found.kernel_s == pytest.approx(30e-6), "20 and 40 us"
    assert found.activities == 0.5


def test_time_after_the_last_kernel_is_the_wait_at_the_end_of_a_step() -> None:
    found = gpu_time(STEP, [(0, 100)])
    assert found is not None
    assert found.tail_s == pytest.approx(5e-6), "95-100"


def test_rows_and_gpu_time_are_over_the_same_steps() -> None:
    """Of five steps the slowest is interrupted, and has twice the kernels; a kernel runs from one step into another."""
    events: list[Event] = []
    for number in range(5):
        begin, extra = 1000.0 * number, 100.0 * (number == 0)
        mark = Event(name="fathom.step", cat="user_annotation", ts=begin, dur=100 + extra)
        events += [mark, *later(STEP, begin)]
        if extra:
            events.append(event("only here", begin + 150, 20, "kernel", 77))
    found = breakdown([*events, event("across", 1090, 930, "kernel", 78)])
    profile = as_profile(found, [1e-4] * 5, [])
    assert profile.gpu is not None
    assert profile.gpu.busy_s == pytest.approx(sum(row.device_s or 0.0 for row in profile.rows))
    assert profile.gpu.span_s == pytest.approx(profile.gpu.busy_s + profile.outside_s)
    assert 0 not in found.typical_steps
    assert "only here" not in {row.op for row in profile.rows}


def test_what_the_host_did_while_the_gpu_waited_for_it() -> None:
    """Idle 10-100, the next kernel launched at 95: data 20-40, a wait 40-50 inside an op 35-60, else outside ops."""
    found = gpu_time(
        [
            event("first", 0, 10, "kernel", 1),
            event("enumerate(DataLoader)#next", 20, 20, "user_annotation", 0),
            event("aten::item", 35, 25, "cpu_op", 0),
            event("cudaStreamSynchronize", 40, 10, "cuda_runtime", 0),
            launch(95, 2),
            event("second", 100, 20, "kernel", 2),
        ],
        [(0.0, 120.0)],
    )
    assert found is not None
    assert found.starved_s == pytest.approx(90e-6)
    micros = {what: round(1e6 * spent, 6) for what, spent in found.starved_in.items()}
    # the launch itself is in ops, as long as it takes
    assert micros[WAITING] == 10
    assert micros[DATA] == 20
    assert sum(micros.values()) == pytest.approx(90)
    assert micros[OPS] == pytest.approx(10 + 5)


def test_intervals_are_merged_and_covered() -> None:
    some, others = Intervals.of([(0, 10), (5, 20), (30, 40)]), Intervals.of([(35, 50), (18, 32)])
    assert list(some) == [(0, 20), (30, 40)]
    assert some.length == 30
    assert some.covered_by(others) == pytest.approx(2 + 2 + 5)
    assert others.covered_by(some) == pytest.approx(2 + 2 + 5)
    assert Intervals.of([]).covered_by(some) == some.covered_by(Intervals.of([])) == 0
