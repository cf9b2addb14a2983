"""From a trace to op rows: sums that add up, backward attributed to its layer, kernels to the op that launched them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import trace_events
from fuzz import survive
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fathom.core.errors import DataError
from fathom.measure.convolution import split_convolution_backward
from fathom.measure.profiling import layers_marked, roles
from fathom.trace import walk
from fathom.trace.convolution import split_backward
from fathom.trace.event import Event
from fathom.trace.profile import as_profile, from_trace
from fathom.trace.reader import read
from fathom.trace.rows import Breakdown
from fathom.trace.taxonomy import short_name
from fathom.workloads.base import workload_class


def event(
    name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, sequence: int | None = None, **args: Any
) -> Event:
    if sequence is not None:
        args["Sequence number"] = sequence
    return trace_events.event(name, ts, dur, cat, tid, **args)


def gpu_step() -> list[Event]:
    """One step of 100 µs: a convolution and its backward on another thread, kernels running later than launched."""
    return [
        event("fathom.step", 0, 100, "user_annotation"),
        event("fathom.forward", 0, 40, "user_annotation"),
        event("fathom.layer features.conv1", 2, 30, "user_annotation"),
        event("aten::conv2d", 4, 20, sequence=7),
        event("aten::convolution", 6, 16, sequence=7),
        event("cudaLaunchKernel", 10, 2, "cuda_runtime", correlation=1),
        event("aten::relu", 26, 4, sequence=8),
        event("cudaLaunchKernel", 27, 2, "cuda_runtime", correlation=2),
        event("autograd::engine::evaluate_function: ConvolutionBackward0", 45, 20, tid=2, sequence=7),
        event("ConvolutionBackward0", 46, 18, tid=2, sequence=7),
        event("aten::convolution_backward", 47, 16, tid=2),
        event("cudaLaunchKernel", 50, 2, "cuda_runtime", tid=2, correlation=3),
        event("cudaLaunchKernel", 54, 2, "cuda_runtime", tid=2, correlation=4),
        event("sgemm_conv", 20, 10, "kernel", tid=9, correlation=1),
        event("relu_kernel", 30, 5, "kernel", tid=9, correlation=2),
        event("cudnn_dgrad_128", 60, 10, "kernel", tid=9, correlation=3),
        event("cudnn_wgrad_128", 70, 20, "kernel", tid=9, correlation=4),
        event("Memcpy HtoD", 75, 5, "gpu_memcpy", tid=10, correlation=99),
    ]


def test_kernels_are_attributed_to_the_op_that_launched_them() -> None:
    found = walk.breakdown(gpu_step(), {"features.conv1": "convolution"})
    rows = {row.op: row for row in found.rows()}
    bookkeeping = {name for name, row in rows.items() if row.type == "Autograd"}
    assert bookkeeping == {"autograd::engine::evaluate_function: ConvolutionBackward0", "ConvolutionBackward0"}
    assert rows["ConvolutionBackward0"].cpu_s == pytest.approx(2e-6), "18 us, 16 of them in the op inside it"
    assert set(rows) - bookkeeping == {"aten::conv2d", "aten::relu", "aten::convolution_backward", "Memcpy HtoD"}
    assert rows["aten::conv2d"].device_s == pytest.approx(10e-6)
    assert rows["aten::conv2d"].cpu_s == pytest.approx(20e-6)
    assert rows["aten::convolution_backward"].device_s == pytest.approx(27.5e-6), "the copy has half of 5 µs"


def test_backward_is_attributed_to_the_layer_of_its_forward() -> None:
    rows = {row.op: row for row in walk.breakdown(gpu_step(), {"features.conv1": "convolution"}).rows()}
    backward = rows["aten::convolution_backward"]
    assert (backward.layer, backward.role, backward.phase) == ("features.conv1", "convolution", "backward")


def test_outside_is_the_time_in_which_no_kernel_ran() -> None:
    # busy: 20-35 and 60-90, the copy at 75-80 overlaps a kernel
    assert walk.breakdown(gpu_step()).outside_s() == pytest.approx((100 - 45) * 1e-6)


def test_a_read_trace_is_split_by_kernel_names() -> None:
    found = walk.breakdown(gpu_step())
    split_backward(found)
    times = {row.type: row.device_s for row in found.rows()}
    assert times["Conv2DBackFilter"] == pytest.approx(17.5e-6)
    assert times["Conv2DBackInput"] == pytest.approx(10e-6)
    types = {kernel.name: kernel.type for kernel in found.kernels()}
    assert types["cudnn_wgrad_128"] == "Conv2DBackFilter"
    assert types["cudnn_dgrad_128"] == "Conv2DBackInput"


def test_a_kernel_that_names_no_gradient_goes_to_the_larger_one() -> None:
    step = [
        *gpu_step(),
        event("cudaLaunchKernel", 58, 1, "cuda_runtime", tid=2, correlation=5),
        event("transform", 92, 2, "kernel", tid=9, correlation=5),
    ]
    found = walk.breakdown(step)
    split_backward(found)
    assert {kernel.name: kernel.type for kernel in found.kernels()}["transform"] == "Conv2DBackFilter"
    assert_adds_up(found)


def assert_adds_up(found: Breakdown) -> None:
    """Rows and the time outside ops add up to the typical step."""
    steps = [found.steps[number] for number in found.typical_steps]
    whole = sum(end - begin for begin, end in steps) / len(steps) * 1e-6
    rows = sum(row.cpu_s if row.device_s is None else row.device_s for row in found.rows())
    assert rows + found.outside_s() == pytest.approx(whole)


def test_kernels_of_a_cuda_graph_are_rows_with_a_note() -> None:
    step = [
        *gpu_step(),
        event("fathom.optimizer", 68, 12, "user_annotation"),
        event("cudaGraphLaunch", 36, 2, "cuda_runtime", correlation=50),
        event(
            "void cutlass::Kernel2<cutlass_80_sgemm_nn>(cutlass_80_sgemm_nn::Params)", 40, 6, "kernel", correlation=50
        ),
        event("triton_poi_fused_relu_0", 46, 3, "kernel", correlation=50),
        event("triton_poi_fused_add_mul_1", 49, 1, "kernel", correlation=50),
        event("cudaGraphLaunch", 69, 2, "cuda_runtime", correlation=51),
        event("triton_poi_fused_add_mul_2", 92, 4, "kernel", correlation=51),
    ]
    found = walk.breakdown(step)
    rows = {row.op: row for row in found.rows()}
    product = rows["cutlass::Kernel2<cutlass_80_sgemm_nn>"]
    assert (product.type, product.layer, product.role, product.phase) == ("MatMul", "", "", "forward")
    assert product.device_s == pytest.approx(6e-6)
    assert product.cpu_s == 0
    assert rows["triton_poi_fused_relu_0"].type == "Relu"
    assert rows["triton_poi_fused_add_mul_1"].type == "FusedPointwise"
    assert rows["triton_poi_fused_add_mul_2"].phase == "optimizer"
    assert_adds_up(found)
    (note,) = found.notes
    assert "launched by no op" in note
    assert {kernel.op for kernel in found.kernels() if "triton" in kernel.name} == {""}


def test_every_kernel_of_a_plain_trace_has_its_op_and_no_note() -> None:
    assert walk.breakdown([each for each in gpu_step() if each.cat != "gpu_memcpy"]).notes == []


def test_the_time_of_concurrent_kernels_is_divided() -> None:
    """20-50 and 30-60: 10 alone, 20 together, 10 alone; a third joins at 40-50."""
    step = [
        event("fathom.step", 0, 100, "user_annotation"),
        event("aten::mm", 2, 4),
        event("cudaLaunchKernel", 3, 1, "cuda_runtime", correlation=1),
        event("aten::add", 8, 4),
        event("cudaLaunchKernel", 9, 1, "cuda_runtime", correlation=2),
        event("gemm", 20, 30, "kernel", tid=7, correlation=1),
        event("add_kernel", 30, 30, "kernel", tid=8, correlation=2),
    ]
    found = walk.breakdown(step)
    assert {row.op: row.device_s for row in found.rows()} == pytest.approx({"aten::mm": 20e-6, "aten::add": 20e-6})
    assert found.outside_s() == pytest.approx(60e-6)
    third = event("Memset (Device)", 40, 10, "gpu_memset", tid=9, correlation=77)
    found = walk.breakdown([*step, third])
    expected = {"aten::mm": 10 + 5 + 10 / 3, "aten::add": 5 + 10 / 3 + 10, "Memset": 10 / 3}
    assert {row.op: row.device_s for row in found.rows()} == pytest.approx({k: v * 1e-6 for k, v in expected.items()})
    assert found.outside_s() == pytest.approx(60e-6)


def test_kernels_that_run_after_the_step_that_launched_them_still_add_up() -> None:
    """As in a foreign trace without synchronisation: each step of 20 µs launches a kernel of 50 µs."""
    events = []
    for step in range(2):
        begin = 20 * step
        events += [
            event(f"ProfilerStep#{step}", begin, 20, "user_annotation"),
            event("aten::mm", begin + 1, 4),
            event("cudaLaunchKernel", begin + 2, 1, "cuda_runtime", correlation=step),
            event("gemm", 10 + 50 * step, 50, "kernel", correlation=step),
        ]
    found = walk.breakdown(events)
    assert found.steps == [(0, 20), (20, 110)], "the last step ends with its kernel"
    (row,) = found.rows()
    assert row.device_s == pytest.approx(50e-6)
    assert row.calls == 1
    assert_adds_up(found)


def test_kernels_are_of_the_same_steps_as_rows() -> None:
    events = []
    for step, duration in enumerate([10, 11, 12, 500]):
        begin = 1000 * step
        events += [
            event("fathom.step", begin, duration + 50, "user_annotation"),
            event("aten::mm", begin + 1, 4),
            event("cudaLaunchKernel", begin + 2, 1, "cuda_runtime", correlation=step),
            event("gemm", begin + 20, duration, "kernel", correlation=step),
        ]
    found = walk.breakdown(events)
    ((row,), (kernel,)) = found.rows(), found.kernels()
    assert row.device_s == pytest.approx(kernel.device_s) == pytest.approx(11.5e-6)


def test_data_prepared_outside_ops_has_its_wall_time() -> None:
    step = [
        event("fathom.step", 0, 100, "user_annotation"),
        event("fathom.data", 5, 60, "user_annotation"),
        event("aten::copy_", 6, 2),
        event("fathom.data", 80, 10, "user_annotation"),
    ]
    assert walk.breakdown(step).data_s() == pytest.approx(70e-6)
    assert walk.breakdown(gpu_step()).data_s() is None


def test_torchs_own_mark_of_a_loader_is_data_too() -> None:
    """Once where it is within a mark of ours."""
    step = [
        event("ProfilerStep#2", 0, 100, "user_annotation"),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 60, "user_annotation"),
        event("aten::stack", 6, 2),
    ]
    assert walk.breakdown(step).data_s() == pytest.approx(60e-6)
    ours = [event("fathom.step", 0, 100, "user_annotation"), event("fathom.data", 1, 70, "user_annotation"), *step[1:]]
    assert walk.breakdown(ours).data_s() == pytest.approx(70e-6)


def test_a_pass_of_the_network_that_data_is_made_with_is_no_data_time() -> None:
    step = [
        event("fathom.step", 0, 100, "user_annotation"),
        event("fathom.data", 5, 60, "user_annotation"),
        event("fathom.forward", 10, 20, "user_annotation"),
        event("aten::mm", 12, 10),
    ]
    found = walk.breakdown(step)
    assert found.data_s() == pytest.approx(40e-6)
    assert [row.phase for row in found.rows()] == ["forward"]


def test_an_op_with_a_marker_around_its_children_is_not_counted_beside_them() -> None:
    step = [
        event("fathom.step", 0, 100, "user_annotation"),
        event("CheckpointFunction", 10, 80),
        event("fathom.layer block", 15, 70, "user_annotation"),
        event("aten::addmm", 20, 60),
    ]
    found = walk.breakdown(step)
    assert {row.op: round(1e6 * row.cpu_s) for row in found.rows()} == {"CheckpointFunction": 20, "aten::addmm": 60}
    assert found.outside_s() == pytest.approx(20e-6)


def test_an_interrupted_step_is_not_typical() -> None:
    events = []
    for step, duration in enumerate([10, 11, 12, 500]):
        begin = 1000 * step
        events += [event("fathom.step", begin, duration + 5, "user_annotation"), event("aten::mm", begin + 1, duration)]
    found = walk.breakdown(events)
    (row,) = found.rows()
    assert row.cpu_s == pytest.approx(11.5e-6), "the mean of the middle two"
    assert found.outside_s() == pytest.approx(5e-6)
    assert found.per_step_s()["MatMul"] == pytest.approx([10e-6, 11e-6, 12e-6, 500e-6])


def test_an_optimizers_op_is_claimed_whole_with_what_it_calls() -> None:
    step = [
        event("fathom.step", 0, 100, "user_annotation"),
        event("Optimizer.step#SGD.step", 5, 90, "user_annotation"),
        event("aten::_fused_sgd_", 10, 60),
        event("aten::contiguous", 12, 8),
        event("aten::copy_", 14, 4),
        event("aten::add_", 80, 3),
    ]
    rows = {row.op: row for row in walk.breakdown(step).rows()}
    assert {op: (row.type, row.phase) for op, row in rows.items()} == {
        "aten::_fused_sgd_": ("ApplySGD", "optimizer"),
        "aten::add_": ("ApplySGD", "optimizer"),
    }
    assert rows["aten::_fused_sgd_"].cpu_s == pytest.approx(60e-6)


@pytest.mark.parametrize(
    ("mark", "after"), [("nn.Module: Linear_0", ("Add", "forward")), ("a note", ("ApplyLBFGS", "optimizer"))]
)
def test_a_closures_backward_and_modules_are_no_update_and_the_rest_is(mark: str, after: tuple[str, str]) -> None:
    found = walk.breakdown(
        [
            event("Optimizer.step#LBFGS.step", 0, 100, "user_annotation"),
            event(mark, 5, 80, "user_annotation"),
            event("autograd::engine::evaluate_function: MmBackward0", 10, 20),
            event("aten::add_", 40, 10),
            event("aten::add_", 90, 5),
        ]
    )
    expected = [("Autograd", "backward"), after, ("ApplyLBFGS", "optimizer")]
    assert [(call.type, call.phase) for call in found.op_calls] == expected


def test_modules_that_a_checkpoint_computes_again_are_where_they_were() -> None:
    found = walk.breakdown(
        [
            event("nn.Module: Net_0", 0, 50, "python_function"),
            event("nn.Module: Block_0", 5, 40, "python_function"),
            event("nn.Module: Linear_1", 10, 30, "python_function"),
            event("aten::mm", 15, 10, sequence=3),
            event("autograd::engine::evaluate_function: MmBackward0", 100, 90, sequence=3),
            event("nn.Module: Block_0", 110, 60, "python_function"),
            event("aten::add", 112, 8),
            event("nn.Module: Linear_1", 130, 30, "python_function"),
            event("aten::mm", 135, 10, sequence=8),
        ]
    )
    assert [(call.op, call.layer) for call in found.op_calls if call.op != "aten::mm" or call.phase == "backward"][
        1:
    ] == [
        ("aten::add", "Net_0.Block_0"),
        ("aten::mm", "Net_0.Block_0.Linear_1"),
    ]


def test_threads_that_count_alike_are_told_apart_by_the_nodes() -> None:
    """On a GPU a checkpoint computes its block again in the thread of the backward pass, which has its own numbers."""

    def node(name: str, begin: float, length: float, sequence: int, thread: int) -> Event:
        named = f"autograd::engine::evaluate_function: {name}"
        forward: dict[str, Any] = {"Fwd thread id": thread}
        return event(named, begin, length, tid=2, sequence=sequence, **forward)

    found = walk.breakdown(
        [
            event("nn.Module: Net_0", 0, 100, "python_function"),
            event("nn.Module: Block_0", 12, 20, "python_function"),
            event("CheckpointFunction", 13, 15, sequence=6),
            event("nn.Module: Head_0", 40, 10, "python_function"),
            event("aten::addmm", 41, 5, sequence=7),
            node("AddmmBackward0", 200, 10, 7, 1),
            node("CheckpointFunctionBackward", 220, 100, 6, 1),
            event("nn.Module: Block_0", 222, 20, "python_function", tid=2),
            event("aten::mm", 223, 10, tid=2, sequence=7),
            node("MmBackward0", 250, 40, 7, 2),
            event("aten::mm", 252, 36, tid=2),
        ]
    )
    backward = [(call.op, call.layer) for call in found.op_calls if call.phase == "backward"]
    assert backward[0][1] == "Net_0.Head_0"
    assert [layer for op, layer in backward if op == "aten::mm"] == ["Net_0.Block_0"] * 2


def test_a_step_that_the_loop_did_not_make_is_none() -> None:
    """The profiler marks a step from the last call of its step() to its end."""
    steps = [(0, 100), (100, 100), (200, 3)]
    events = [event(f"ProfilerStep#{at}", begin, length, "user_annotation") for at, (begin, length) in enumerate(steps)]
    events += [event("aten::mm", begin, 60) for begin in (10, 110)]
    found = walk.breakdown(events)
    (row,) = found.rows()
    assert found.steps == [(0, 100), (100, 200)]
    assert row.calls == 1
    assert row.cpu_s == pytest.approx(60e-6)


def test_what_is_not_recorded_between_two_cycles_of_the_profiler_is_in_no_step() -> None:
    """Two traces of one process, put into one file: steps 2 and 3, and 10 and 11; on a GPU, to the last kernel."""
    begins = {2: 0, 3: 100, 10: 5000, 11: 5100}
    events = [event(f"ProfilerStep#{at}", begin, 100, "user_annotation") for at, begin in begins.items()]
    events += [event("aten::mm", begin + 10, 60) for begin in begins.values()]
    assert walk.breakdown(events).steps == [(0, 100), (100, 200), (5000, 5100), (5100, 5200)]
    kernel = event("gemm", 190, 50, "kernel", tid=7)
    assert walk.breakdown([*events, kernel]).steps == [(0, 100), (100, 240), (5000, 5100), (5100, 5200)]


def test_a_users_mark_of_a_step_within_the_profilers_is_no_further_step() -> None:
    marks = [event(f"ProfilerStep#{step}", 100 * step, 100, "user_annotation") for step in (1, 2)]
    theirs = [event(f"ProfilerStep#{step}", 100 * step + 10, 80, "user_annotation") for step in (1, 2)]
    found = walk.breakdown([*marks, *theirs, event("aten::mm", 120, 60), event("aten::mm", 220, 60)])
    assert found.steps == [(100, 200), (200, 300)]


def test_a_trace_without_marked_steps_says_that_it_counts_as_one() -> None:
    events = [event("aten::mm", 0.0, 10.0), event("aten::mm", 20.0, 10.0)]
    found = walk.breakdown(events)
    assert len(found.steps) == 1
    assert [note.partition(":")[0] for note in found.notes] == ["no step is marked"]
    assert walk.breakdown([event("ProfilerStep#3", 0.0, 40.0, "user_annotation"), *events]).notes == []


def test_steps_are_those_of_one_process_and_ops_outside_them_are_told() -> None:
    marks = [
        msgspec.structs.replace(event(f"ProfilerStep#{at}", begin + pid, 100, "user_annotation"), pid=pid)
        for pid in (1, 2)
        for at, begin in enumerate((50, 150))
    ]
    found = walk.breakdown([*marks, event("aten::mm", 0, 40), event("aten::mm", 60, 40), event("aten::mm", 160, 40)])
    assert found.steps == [(51, 151), (151, 251)]
    assert found.notes == ["not counted: 1 op call outside all steps"]


def test_a_launch_id_of_two_processes_in_a_merged_trace_is_nobodys() -> None:
    def of(process: int, begin: float, op: str, kernel: str) -> list[Event]:
        host = [event(op, begin, 10), event("cudaLaunchKernel", begin + 1, 2, "cuda_runtime", correlation=7)]
        own = [msgspec.structs.replace(each, pid=process) for each in host]
        return [*own, event(kernel, begin + 20, 30, "kernel", tid=process, correlation=7)]

    sync = event("cudaStreamSynchronize", 90, 5, "cuda_runtime", correlation=8)
    merged = walk.breakdown([*of(1, 0, "aten::mm", "sgemm"), *of(2, 100, "aten::add", "elementwise_kernel"), sync])
    assert {(row.op, row.type): row.device_s for row in merged.rows() if row.device_s} == pytest.approx(
        {("sgemm", "MatMul"): 30e-6, ("elementwise_kernel", "Elementwise"): 30e-6}
    )
    assert [note for note in merged.notes if note.startswith("1 launch id of several processes")]
    alone = walk.breakdown(of(1, 0, "aten::mm", "sgemm"))
    assert {row.op for row in alone.rows() if row.device_s} == {"aten::mm"}
    assert not [note for note in alone.notes if "launch id" in note]


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("cudnn_convolution_backward_weight", "Conv2DBackFilter"),
        ("mkldnn_convolution_backward_input", "Conv2DBackInput"),
    ],
)
def test_gradients_of_convolutions_before_torch_1_11(op: str, kind: str) -> None:
    outer = op.rpartition("_")[0]
    found = walk.breakdown([event(f"aten::{outer}", 0, 50), event(f"aten::{op}", 5, 40), event("aten::empty", 6, 5)])
    split_backward(found)
    own = [row for row in found.rows() if row.type == kind]
    assert sum(row.cpu_s for row in own) == pytest.approx(45e-6), "its own 40, and half of the 10 of the op around it"
    assert next(row for row in own if row.op == f"aten::{op}").flop is None
    assert {row.type for row in found.rows()} == {"Conv2DBackFilter", "Conv2DBackInput"}


def test_a_product_under_vmap_costs_what_all_items_do() -> None:
    def dims(*shapes: list[int]) -> dict[str, Any]:
        return {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)}

    one, every = dims([32, 32], [32, 32]), dims([64, 32, 32], [64, 32, 32])
    (row,) = walk.breakdown([event("aten::mm", 0, 50, **one), event("aten::bmm", 5, 40, **every)]).rows()
    assert (row.op, row.flop, row.calls) == ("aten::mm", 64 * 2 * 32**3, 1)


def test_shapes_as_torch_1_8_spells_them() -> None:
    shapes: dict[str, Any] = {"Input dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    (row,) = walk.breakdown([event("aten::mm", 0, 50, **shapes)]).rows()
    assert (row.flop, row.bytes, row.shapes) == (48, 4 * (6 + 12 + 8), "[2, 3] [3, 4]")


@pytest.mark.parametrize("category", ["cpu_op", "kernel"])
def test_a_trace_in_which_nothing_takes_time_has_no_path(category: str) -> None:
    found = walk.breakdown([event("aten::mm", 0, 0, category)])
    depth = as_profile(found, [], []).depth
    assert depth is None or depth.path is None


def test_several_gpus_in_one_trace_are_told() -> None:
    kernels = [msgspec.structs.replace(event("gemm", 50 * gpu, 50, "kernel"), pid=gpu) for gpu in (0, 1)]
    assert any(note.startswith("2 GPUs are in the trace") for note in walk.breakdown(kernels).notes)


def test_every_kernel_is_counted_once_with_or_without_an_op() -> None:
    kernels = walk.breakdown(gpu_step()).kernels()
    assert sum(kernel.device_s for kernel in kernels) == pytest.approx(50e-6)
    assert [kernel.name for kernel in kernels if kernel.kind == "memcpy"] == ["Memcpy HtoD"]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


def traced(path: Path, train: bool) -> Breakdown:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 3, 15, 15)
    with layers_marked({"": network}), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        if train:
            nn.functional.cross_entropy(network(x), torch.zeros(4, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
        else:
            with torch.inference_mode():
                network(x)
    recorder.export_chrome_trace(str(path))
    return walk.breakdown(read(path).events, roles({"": network}))


FIRST = 2 * 4 * 8 * 15 * 15 * 27  # FLOP by hand: 2 x batch x filters x positions x window
SECOND = 2 * 4 * 16 * 7 * 7 * (4 * 9)
HEAD = 2 * 4 * 16 * 5


@pytest.mark.parametrize("train", [True, False])
def test_flop_of_a_real_network_equal_the_hand_count(tmp_path: Path, train: bool) -> None:
    found = traced(tmp_path / "t.json", train)
    split_convolution_backward(found, torch.device("cpu"))
    flop: dict[tuple[str, str], float] = {}
    for row in found.rows():
        if row.group in {"B", "D"}:
            flop[row.layer, row.type] = flop.get((row.layer, row.type), 0) + (row.flop or 0)
    forward = {("first", "Conv2D"): FIRST, ("second", "Conv2D"): SECOND}
    if not train:
        assert flop == {**forward, ("head", "MatMul"): HEAD}
        return
    assert flop == {
        **forward,
        ("head", "MatMul"): 3 * HEAD,
        ("second", "Conv2DBackFilter"): SECOND,
        ("second", "Conv2DBackInput"): SECOND,
        ("first", "Conv2DBackFilter"): FIRST,  # the gradient of the images is not computed
    }


def test_rows_and_outside_add_up_to_the_step(tmp_path: Path) -> None:
    found = traced(tmp_path / "t.json", train=True)
    split_convolution_backward(found, torch.device("cpu"))
    ((begin, end),) = found.steps
    rows = found.rows()
    assert sum(row.cpu_s for row in rows) + found.outside_s() == pytest.approx((end - begin) * 1e-6, rel=1e-6)
    assert {row.role for row in rows} == {"convolution", "fully connected", "network", "loss"}
    roles_of = {(row.type, row.phase): row.role for row in rows}
    assert roles_of["Relu", "forward"] == roles_of["ReluGrad", "backward"] == "network", "in the network's own forward"
    assert roles_of["CrossEntropy", "forward"] == "loss"
    per_step = found.per_step_s()
    assert sum(sum(series) for series in per_step.values()) == pytest.approx(sum(row.cpu_s for row in rows))


def test_attention_on_a_cpu_is_counted(tmp_path: Path) -> None:
    query = torch.randn(2, 3, 10, 8, requires_grad=True)
    key, value = torch.randn(2, 3, 12, 8), torch.randn(2, 3, 12, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        nn.functional.scaled_dot_product_attention(query, key, value)
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = walk.breakdown(read(tmp_path / "t.json").events).rows()
    assert sum(row.flop or 0 for row in rows if row.group == "B") == 2 * (2 * 2 * 3 * 10 * 12 * 8)


class Attending(nn.Module):
    """Attention and a loss in the forward of the network itself, in no module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return nn.functional.cross_entropy(x.flatten(0, 2), torch.zeros(60, dtype=torch.long))


def test_ops_of_the_network_itself_are_not_loss(tmp_path: Path) -> None:
    network = Attending()
    with layers_marked({"": network}), profile(activities=[ProfilerActivity.CPU]) as recorder:
        (2 * network(torch.randn(2, 3, 10, 8))).backward()
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = walk.breakdown(read(tmp_path / "t.json").events, roles({"": network})).rows()
    role_of = {row.op: row.role for row in rows if row.phase == "forward"}
    (attention,) = {role for op, role in role_of.items() if "dot_product" in op}
    assert attention == role_of["aten::cross_entropy_loss"] == "network"
    assert role_of["aten::mul"] == "loss"


class Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, torch.zeros(len(x), dtype=torch.long))


def test_every_part_of_a_composite_op_is_attributed_in_backward(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(6, 5), Loss())
    with layers_marked({"": network}), profile(activities=[ProfilerActivity.CPU]) as recorder:
        network(torch.randn(4, 6)).backward()
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = walk.breakdown(read(tmp_path / "t.json").events, roles({"": network})).rows()
    layers = {row.op: row.layer for row in rows if row.phase == "backward"}
    assert layers["aten::nll_loss_backward"] == layers["aten::_log_softmax_backward_data"] == "1"


@pytest.mark.parametrize("train", [True, False])
def test_a_foreign_trace_has_phases_but_no_roles(tmp_path: Path, train: bool) -> None:
    network = Network()
    optimizer = torch.optim.SGD(network.parameters())
    with profile(activities=[ProfilerActivity.CPU]) as recorder, torch.set_grad_enabled(train):
        loss = network(torch.randn(4, 3, 15, 15)).square().mean()
        if train:
            loss.backward()
            optimizer.step()
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    found = walk.breakdown(read(tmp_path / "t.json").events)
    rows = found.rows()
    assert from_trace(tmp_path / "t.json").spec.phase == ("train" if train else "infer")
    assert {row.phase for row in rows} == ({"forward", "backward", "optimizer"} if train else {"forward"})
    assert {row.role for row in rows} == ({"", "optimizer"} if train else {""})


def test_ops_outside_all_phases_are_neither_forward_nor_loss() -> None:
    found = walk.breakdown([*gpu_step(), event("aten::stack", 95, 2)])
    (row,) = [row for row in found.rows() if row.op == "aten::stack"]
    assert (row.phase, row.role) == ("other", "other")


@pytest.mark.parametrize(
    ("workload", "layer", "role"),
    [
        ("seq2seq", "attention.query", "attention"),
        ("speech", "recurrent4.input", "recurrence"),
        ("memnet", "hops.0", "memory"),
    ],
)
def test_special_layers_declare_their_roles(workload: str, layer: str, role: str) -> None:
    model = workload_class(workload).configured("tiny").model()
    assert roles({"": model})[layer] == role


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_nn>(cutlass_80_simt_sgemm_64x64_nn::Params)",
         "cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_nn>"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, false, 6>(cublasGemvParams<int>)",
         "internal::gemvx::kernel<int,float,false,6>"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, int>(float const*, int)",
         "at::native::max_pool_forward_nhwc<float,int>"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
         "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)",
         "at::native::vectorized_elementwise_kernel<MulFunctor>"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)  # fmt: skip
def test_short_names_of_kernels(kernel: str, short: str) -> None:
    assert short_name(kernel) == short


def test_a_shortened_name_stays_distinct() -> None:
    long = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{}_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
    long += "_execute_kernel__5x_cublas"
    names = {short_name(long.format(tile)) for tile in ("32x32x8", "64x64x8")}
    assert names == {
        f"sm80_xmma_gemm_f32_tn_n_tilesize{tile}_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
        for tile in ("32x32x8", "64x64x8")
    }
    names = {short_name("kernel_" + 200 * "x" + tile) for tile in ("32x32x8", "64x64x8")}
    assert len(names) == 2
    assert max(map(len, names)) <= 90


def test_lstm_on_a_cpu_is_counted(tmp_path: Path) -> None:
    lstm, x = nn.LSTM(6, 5, num_layers=2), torch.randn(7, 3, 6)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder, torch.inference_mode():
        lstm(x)
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = walk.breakdown(read(tmp_path / "t.json").events).rows()
    per_step = 4 * 5 * (6 + 5) + 4 * 5 * (5 + 5)
    assert sum(row.flop or 0 for row in rows if row.group == "B") == 2 * 7 * 3 * per_step


@pytest.mark.parametrize("pack", [False, True])
def test_corrupt_traces_are_refused_or_read(tmp_path: Path, pack: bool) -> None:
    path = tmp_path / "trace.json"
    text = msgspec.json.encode({"traceEvents": gpu_step()})
    path.write_bytes(gzip.compress(text) if pack else text)

    def break_down() -> None:
        walk.breakdown(read(path).events).rows()

    refused, accepted = survive(path, break_down, count=2000)
    assert refused > 1000
    assert refused + accepted == 2000


def test_a_json_file_that_is_not_a_trace_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"not a torch.profiler trace"):
        read(path)
