"""Communication, idle time, launches, copies and the critical path of a trace: exact numbers of small traces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trace_events import event

from fathom.core.depth import Collective, PathPart, TraceDepth
from fathom.core.record import Profile
from fathom.trace import walk
from fathom.trace.columns import is_communication
from fathom.trace.depth import trace_depth
from fathom.trace.event import Event

US = 1e-6


def launch(correlation: int, ts: float, dur: float = 2, tid: int = 1, name: str = "cudaLaunchKernel") -> Event:
    return event(name, ts, dur, "cuda_runtime", tid, correlation=correlation)


def kernel(correlation: int, ts: float, dur: float, stream: int = 7, name: str = "gemm", **args: Any) -> Event:
    return event(name, ts, dur, "kernel", stream, correlation=correlation, **args)


def depth_of(events: list[Event]) -> TraceDepth:
    return trace_depth(walk.breakdown(events))


def overlapping() -> list[Event]:
    """Two steps of 100 us; the all-reduce of the first runs from one into the other."""
    return [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        event("ProfilerStep#2", 100, 100, "user_annotation"),
        launch(1, 1),
        kernel(1, 10, 40),
        launch(2, 4),
        kernel(2, 30, 90, stream=9, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"),
        launch(3, 105),
        kernel(3, 110, 30),
        launch(4, 150, name="cudaMemcpyAsync"),
        event("Memcpy HtoD (Pinned -> Device)", 155, 5, "gpu_memcpy", 7, correlation=4, bytes=1000),
    ]


def test_time_is_divided_without_rest() -> None:
    depth = depth_of(overlapping())
    whole = depth.whole
    assert whole is not None
    expected = {"span_s": 150, "computation_s": 70, "communication_s": 90, "exposed_communication_s": 60}
    expected |= {"memory_s": 5, "exposed_memory_s": 5, "idle_s": 15}
    for name, value in expected.items():
        assert getattr(whole, name) == pytest.approx(value * US), name
    assert whole.overlap == pytest.approx(30 / 90)
    first, second = depth.steps
    assert (first.communication_s, second.communication_s) == pytest.approx((70 * US, 20 * US))
    assert (first.exposed_communication_s, second.exposed_communication_s) == pytest.approx((50 * US, 10 * US))
    for split in (whole, first, second):
        assert split.busy_s + split.idle_s == pytest.approx(split.span_s)
    assert [(kind.kind, kind.count) for kind in depth.kinds] == [
        ("communication", 1),
        ("computation", 2),
        ("memory", 1),
    ]


def test_no_communication_has_no_overlap() -> None:
    whole = depth_of([launch(1, 0), kernel(1, 5, 10)]).whole
    assert whole is not None
    assert whole.overlap is None


def test_idle_time_has_a_cause() -> None:
    depth = depth_of(
        [
            launch(1, 0),
            kernel(1, 10, 10),
            launch(2, 5),
            kernel(2, 24, 6),  # launched in time, 4 us later: kernel wait
            launch(3, 50),
            kernel(3, 60, 10),  # launched at 50, idle since 30: host wait
            launch(4, 55),
            kernel(4, 120, 10),  # launched in time, 50 us later: other
            kernel(99, 135, 5),  # its launch is not in the trace
        ]
    )
    (stream,) = depth.streams
    assert (stream.host_wait_s, stream.kernel_wait_s, stream.other_s) == pytest.approx((30 * US, 9 * US, 50 * US))
    assert stream.busy_s == pytest.approx(41 * US)


def test_queue_length() -> None:
    (stream,) = depth_of(
        [launch(1, 0), launch(2, 2), launch(3, 4), kernel(1, 6, 4), kernel(2, 10, 5), kernel(3, 20, 5)]
    ).streams
    # 1 until 2, 2 until 4, 3 until 6, 2 until 10, 1 until 20
    assert stream.queue_max == 3
    assert stream.queue_mean == pytest.approx((2 + 4 + 6 + 8 + 10) / 20)
    (early,) = depth_of([launch(1, 10), kernel(1, 9, 5)]).streams  # clocks differ: it seems to begin before its launch
    assert (early.queue_max, early.queue_mean) == (1, 0.0)
    (alone,) = depth_of([kernel(1, 0, 5)]).streams
    assert (alone.queue_max, alone.queue_mean) == (None, None)


def test_launches_and_copies() -> None:
    depth = depth_of(overlapping())
    found = depth.launches
    assert found is not None
    assert (found.count, found.kernels, found.short, found.shorter_than_call) == (4, 3, 0, 0)
    assert found.delay_max_s == pytest.approx(26 * US)
    assert found.delay_median_s == pytest.approx(7 * US)
    assert found.after_call_mean_s == pytest.approx((7 + 24 + 3 + 3) / 4 * US)
    (copies,) = depth.copies
    assert (copies.direction, copies.count, copies.bytes) == ("HtoD", 1, 1000)
    assert copies.bytes_per_s == pytest.approx(1000 / (5 * US))
    assert depth_of([kernel(1, 0, 5)]).launches is None


def test_short_kernels() -> None:
    found = depth_of([launch(1, 0, 20), kernel(1, 25, 9.9), launch(2, 30, 5), kernel(2, 40, 10)]).launches
    assert found is not None
    assert (found.short, found.shorter_than_call) == (1, 1)
    assert (found.short_s, found.shorter_than_call_s) == pytest.approx((9.9 * US, 9.9 * US))


COMM: dict[str, Any] = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "BFloat16",
}
COMM |= {"Group size": 4, "Process Group Name": "tp", "Process Group Ranks": "[0, 1, 2, 3]"}


def test_collectives_of_kernel_arguments() -> None:
    name = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    (found,) = depth_of([launch(1, 0), kernel(1, 5, 10, name=name, **COMM)]).collectives
    assert (found.name, found.group, found.ranks, found.size) == ("all_reduce", "tp", "[0, 1, 2, 3]", 4)
    assert (found.bytes, found.steps) == ([2000], [0])
    assert found.algorithm_bytes_per_s == pytest.approx(2000 / (10 * US))
    assert found.bus_bytes_per_s == pytest.approx(1.5 * 2000 / (10 * US))


def test_collectives_of_the_host() -> None:
    """A kernel that says nothing is described by the host's events around its launch."""
    annotation: dict[str, Any] = {"Input Dims": [[8, 100]], "Input type": ["float"]}
    events = [
        event("record_param_comms", 0, 20),
        event("nccl:all_to_all", 1, 18, "user_annotation", **annotation),
        launch(1, 5),
        kernel(1, 10, 30, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"),
        event("record_param_comms", 50, 20, **COMM | {"Collective name": "_allgather_base", "Out msg nelems": 4000}),
        launch(2, 55),
        kernel(2, 60, 30, name="ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"),
        launch(3, 100),
        kernel(3, 110, 5, name="ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)"),
    ]
    found = {each.name: each for each in depth_of(events).collectives}
    assert {name: each.bytes for name, each in found.items()} == {
        "all_to_all": [3200],
        "all_gather": [8000],
        "reduce_scatter": [None],
    }
    assert found["all_gather"].bus_bytes_per_s == pytest.approx(0.75 * 8000 / (30 * US))
    assert found["all_to_all"].bus_bytes_per_s is None  # the number of ranks is not known


def test_communication_kernels_by_name() -> None:
    communication = (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>()",
        "one_shot_all_reduce_kernel",
        "void deep_ep::intranode::dispatch<8, 768>()",
    )
    computation = (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4>()",
        "__amd_rocclr_copyBuffer",
        "_gather_and_reduce",
    )
    assert [name for name in communication if not is_communication(name)] == []
    assert [name for name in computation if is_communication(name)] == []


def path_of(events: list[Event]) -> dict[tuple[str, str], float]:
    """In microseconds."""
    found = walk.breakdown(events)
    path = trace_depth(found).path
    assert path is not None
    mean = sum(end - begin for begin, end in found.steps) / len(found.steps)
    assert sum(part.seconds for part in path.parts) == pytest.approx(mean * US)
    for step, (begin, end) in enumerate(found.steps):
        assert sum(series[step] for series in path.per_step_s.values()) == pytest.approx((end - begin) * US)
    return {(part.kind, part.name): round(part.seconds / US, 6) for part in path.parts if part.seconds > 0}


def test_path_of_a_gpu_that_is_busy() -> None:
    """Kernels launched ahead: the path runs along the stream."""
    events = [
        event("aten::mm", 0, 4),
        launch(1, 1),
        event("aten::relu", 4, 4),
        launch(2, 5),
        kernel(1, 10, 50, name="gemm"),
        kernel(2, 62, 38, name="relu"),
    ]
    # mm's launch call ends at 3; the first kernel begins at 10
    assert path_of(events) == {
        ("host", "aten::mm"): 3,
        ("wait", "first kernel of its stream"): 7,
        ("computation", "MatMul"): 50,
        ("wait", "between kernels"): 2,
        ("computation", "Relu"): 38,
    }


def test_path_of_a_host_that_is_slow() -> None:
    events = [
        event("aten::mm", 0, 10),
        launch(1, 5, 3),
        kernel(1, 10, 5),
        event("aten::relu", 40, 10),
        launch(2, 45, 3),
        kernel(2, 50, 5),
    ]
    assert path_of(events) == {
        ("host", "aten::mm"): 10,
        ("host", "outside ops"): 30,
        ("host", "aten::relu"): 8,
        ("wait", "launch latency"): 2,
        ("computation", "Relu"): 5,
    }


def test_path_through_a_synchronisation() -> None:
    """The host waits in aten::item for the kernel, and goes on."""
    events = [
        event("aten::mm", 0, 10),
        launch(1, 5, 3),
        kernel(1, 10, 50),
        event("aten::item", 20, 45),
        event("cudaStreamSynchronize", 21, 43, "cuda_runtime"),
        event("aten::add", 65, 15),
    ]
    assert path_of(events) == {
        ("host", "aten::mm"): 8,
        ("wait", "first kernel of its stream"): 2,
        ("computation", "MatMul"): 50,
        ("host", "aten::item"): 5,
        ("host", "aten::add"): 15,
    }


def test_path_of_a_copy_that_blocks_the_host() -> None:
    """A copy to pageable memory returns only when it is done; one that returns before blocks nothing."""
    copy = event("Memcpy DtoH (Device -> Pageable)", 20, 30, "gpu_memcpy", 7, correlation=1)
    call = launch(1, 5, 48, name="cudaMemcpyAsync")
    blocked = path_of([event("aten::to", 0, 55), call, copy, event("aten::add", 55, 5)])
    assert sum(time for (kind, _), time in blocked.items() if kind == "memory") == 30
    short = launch(1, 5, 8, name="cudaMemcpyAsync")
    returned = path_of([event("aten::to", 0, 55), short, copy, event("aten::add", 55, 5)])
    assert not any(kind == "memory" for kind, _ in returned)


def test_path_waits_for_other_streams_only_where_told_to() -> None:
    nccl = kernel(2, 60, 100, stream=9, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL()")
    events = [
        event("aten::mm", 0, 4),
        launch(1, 1),
        kernel(1, 10, 50),
        event("c10d::allreduce_", 4, 6),
        launch(2, 8),
        nccl,
        event("aten::relu", 20, 4),
        launch(3, 21),
        kernel(3, 162, 10),
    ]
    alone = path_of(events)
    assert not any(kind == "communication" for kind, _ in alone)
    waiting = [*events, event("cudaStreamWaitEvent", 15, 1, "cuda_runtime")]
    assert sum(time for (kind, _), time in path_of(waiting).items() if kind == "communication") == 100


def test_path_crosses_threads() -> None:
    """The backward thread begins when the forward thread has called it, which goes on when that is done."""
    events = [
        event("aten::mm", 0, 10),
        event("autograd::engine::evaluate_function: MmBackward0", 15, 30, tid=2),
        event("aten::add_", 50, 10),
    ]
    found = path_of(events)
    assert found["host", "aten::mm"] == 10
    assert found["host", "autograd::engine::evaluate_function: MmBackward0"] == 30
    assert found["host", "outside ops"] == 10
    assert found["host", "aten::add_"] == 10


def test_path_of_any_trace_adds_up() -> None:
    """Random traces with zero durations, rounding, several threads and streams: it ends, and its parts add up."""
    for seed in range(200):
        draw = random.Random(seed)
        events = [event(f"ProfilerStep#{step}", 50 * step, 50, "user_annotation") for step in range(draw.randint(0, 3))]
        for correlation in range(draw.randint(1, 30)):
            at, thread = draw.randint(0, 150), draw.choice((1, 2))
            events.append(event(draw.choice(("aten::mm", "aten::add", "mine")), at, draw.randint(0, 9), tid=thread))
            call = draw.choice(("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaStreamWaitEvent"))
            events.append(event(call, at, draw.randint(0, 9), "cuda_runtime", thread, correlation=correlation))
            kind = "gpu_memcpy" if "Memcpy" in call else "kernel"
            name = draw.choice(("gemm", "ncclDevKernel_AllReduce"))
            begin, duration = at + draw.randint(-1, 20), draw.randint(0, 20)
            events.append(event(name, begin, duration, kind, draw.choice((7, 9)), correlation=correlation))
        path_of(events)


def test_a_profile_of_older_records_has_no_depth() -> None:
    assert Profile.__dataclass_fields__["depth"].default is None


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    def rate(name: str) -> float | None:
        each = Collective(name=name, group="", ranks="", size=8, seconds=[1.0], steps=[0], bytes=[800])
        return each.bus_bytes_per_s

    expected = {"all_reduce": 1400, "all_gather": 700, "reduce_scatter": 700, "all_to_all": 700, "broadcast": 800}
    assert {name: rate(name) for name in expected} == expected


def test_path_parts_are_sorted() -> None:
    path = depth_of(overlapping()).path
    assert path is not None
    assert path.parts == sorted(path.parts, key=lambda part: -part.seconds)
    assert all(isinstance(part, PathPart) for part in path.parts)
