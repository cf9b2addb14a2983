"""The timeline of a step and the kernels of op rows: few rectangles that keep the time, kernels that add up."""

from __future__ import annotations

import pytest
import trace_events

from fathom.core.traced import Timeline
from fathom.trace import walk
from fathom.trace.event import Event
from fathom.trace.timeline import RECTANGLES, timeline

event = trace_events.event


def step() -> list[Event]:
    """Two kernels at once on two streams; an op inside another; a thread of its own for the backward."""
    return [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        event("custom::outer", 5, 30),
        event("aten::mm", 6, 10),
        event("cudaLaunchKernel", 7, 2, "cuda_runtime", correlation=1),
        event("cudaLaunchKernel", 10, 2, "cuda_runtime", correlation=2),
        event("aten::relu", 40, 4, tid=2),
        event("cudaLaunchKernel", 41, 2, "cuda_runtime", tid=2, correlation=3),
        event("gemm", 20, 10, "kernel", tid=7, correlation=1),
        event("splitk", 25, 10, "kernel", tid=8, correlation=2),
        event("relu_kernel", 95, 5, "kernel", tid=7, correlation=3),
    ]


def drawn(events: list[Event]) -> Timeline:
    found = timeline(walk.breakdown(events))
    assert found is not None
    return found


def test_outermost_ops_of_threads_and_kernels_of_streams() -> None:
    found = drawn(step())
    shown = {lane.name: [found.names[name] for name in lane.names] for lane in found.lanes}
    assert shown == {
        "thread 1": ["custom::outer"],
        "thread 2": ["aten::relu"],
        "GPU 1 stream 7": ["gemm", "relu_kernel"],
        "GPU 1 stream 8": ["splitk"],
    }
    assert [lane.on_device for lane in found.lanes] == [False, False, True, True]
    assert found.lanes[2].begin_us == [20.0, 95.0]
    assert found.step_s == pytest.approx(100e-6)


def test_ops_inside_a_node_of_autograds_are_shown() -> None:
    node = "autograd::engine::evaluate_function: "
    events = [
        event(f"{node}MmBackward0", 0, 50),
        event("MmBackward0", 1, 48),
        event("aten::mm", 2, 20),
        event("aten::mm", 25, 20),
        event(f"{node}torch::autograd::AccumulateGrad", 60, 10),
    ]
    found = drawn(events)
    shown = [found.names[name] for name in found.lanes[0].names]
    assert shown == ["aten::mm", "aten::mm", f"{node}torch::autograd::AccumulateGrad"]


def test_the_step_of_median_length_is_shown() -> None:
    windows = [(0.0, 100.0), (100.0, 130.0), (130.0, 330.0)]
    events = [
        event(f"ProfilerStep#{n}", begin, end - begin, "user_annotation") for n, (begin, end) in enumerate(windows)
    ]
    ops = [
        event(name, begin + 1, 10)
        for name, (begin, _) in zip(("aten::mm", "aten::relu", "aten::add"), windows, strict=False)
    ]
    found = drawn(events + ops)
    assert found.names == ["aten::mm"]


@pytest.mark.parametrize("many", [10, 3000, 40_000])
def test_rectangles_are_few_and_lose_neither_ops_nor_time(many: int) -> None:
    """Two thirds of the time is in ops; every tenth is long."""
    lengths = [20.0 if index % 10 == 0 else 2.0 for index in range(many)]
    begins = [sum(lengths[:0]) + 30.0 * index for index in range(many)]
    events = [event("aten::add", begin, length) for begin, length in zip(begins, lengths, strict=True)]
    found = drawn(events)
    lane = found.lanes[0]
    assert len(lane.us) <= RECTANGLES
    assert sum(lane.counts) == many
    ends = [begin + length for begin, length in zip(lane.begin_us, lane.us, strict=True)]
    assert all(later >= end - 1e-3 for end, later in zip(ends, lane.begin_us[1:], strict=False)), "none overlap"
    assert all(length < found.resolution_us for length, count in zip(lane.us, lane.counts, strict=True) if count > 1)


def test_a_merged_rectangle_has_the_name_of_the_longest() -> None:
    events = [event("aten::mm", 0, 10_000), event("aten::add", 10_000.5, 0.5), event("aten::relu", 10_001, 1.5)]
    found = drawn([*events, event("aten::mm", 15_000, 5000)])
    assert [found.names[name] for name in found.lanes[0].names] == ["aten::mm", "aten::relu", "aten::mm"]
    assert found.lanes[0].counts == [1, 2, 1]


def test_a_wide_op_beside_a_narrow_one_stays_apart() -> None:
    events = [event(name, 100 * n, 99.9) for n, name in enumerate(["aten::mm", "aten::relu"] * 20)]
    narrow = [event("aten::add", 100 * n + 99.91, 0.01) for n in range(40)]
    found = drawn(events + narrow)
    assert len(found.lanes[0].us) == 80


def test_a_kernel_that_crosses_the_border_is_cut_there() -> None:
    events = [event("ProfilerStep#1", 0, 100, "user_annotation"), event("ProfilerStep#2", 100, 99, "user_annotation")]
    found = drawn([*events, event("gemm", 90, 30, "kernel", tid=7), event("end", 190, 9, "kernel", tid=7)])
    lane = found.lanes[0]
    assert (lane.begin_us[0], lane.us[0]) in {(90.0, 10.0), (0.0, 20.0)}


def test_kernels_of_a_row_add_up_to_its_device_time() -> None:
    found = walk.breakdown(step())
    groups = found.grouped()
    rows, kernels = found.rows(groups), found.row_kernels(groups)
    assert kernels is not None
    for index, row in enumerate(rows):
        own = [seconds for at, seconds in zip(kernels.rows, kernels.seconds, strict=True) if at == index]
        assert sum(own) == pytest.approx(row.device_s)
    product = next(index for index, row in enumerate(rows) if row.op == "aten::mm")
    named = {kernels.names[kernel] for at, kernel in zip(kernels.rows, kernels.kernels, strict=True) if at == product}
    assert named == {"gemm", "splitk"}
    assert found.rows() == rows


def test_a_cpu_has_no_kernels() -> None:
    found = walk.breakdown([event("aten::mm", 0, 10)])
    assert found.row_kernels(found.grouped()) is None
