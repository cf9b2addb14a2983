"""From a trace to op rows: sums that add up, backward credited to its layer, kernels under the op they came from."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fuzz import survive
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fathom import trace
from fathom.errors import DataError
from fathom.gradients import split_convolution_backward
from fathom.ops import layers_marked, roles
from fathom.tracefile import Event, read


def event(
    name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, sequence: int | None = None, **args: Any
) -> Event:
    if sequence is not None:
        args["Sequence number"] = sequence
    return Event(ph="X", cat=cat, name=name, pid=1, tid=tid, ts=ts, dur=dur, args=args)


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


def test_kernels_hang_under_the_op_that_launched_them() -> None:
    found = trace.breakdown(gpu_step(), {"features.conv1": "convolution"})
    rows = {row.op: row for row in found.rows()}
    assert set(rows) == {"aten::conv2d", "aten::relu", "aten::convolution_backward"}
    assert rows["aten::conv2d"].device_s == pytest.approx(10e-6)
    assert rows["aten::conv2d"].cpu_s == pytest.approx(20e-6)
    assert rows["aten::convolution_backward"].device_s == pytest.approx(30e-6)


def test_backward_is_credited_to_the_layer_whose_forward_made_it() -> None:
    rows = {row.op: row for row in trace.breakdown(gpu_step(), {"features.conv1": "convolution"}).rows()}
    backward = rows["aten::convolution_backward"]
    assert (backward.layer, backward.role, backward.phase) == ("features.conv1", "convolution", "backward")


def test_outside_is_the_time_in_which_no_kernel_ran() -> None:
    # busy: 20-35 and 60-90, the copy at 75-80 overlaps a kernel
    assert trace.breakdown(gpu_step()).outside_s() == pytest.approx((100 - 45) * 1e-6)


def test_a_read_trace_is_split_by_kernel_names() -> None:
    found = trace.breakdown(gpu_step())
    split_convolution_backward(found, device=None)
    times = {row.type: row.device_s for row in found.rows()}
    assert times["Conv2DBackFilter"] == pytest.approx(20e-6)
    assert times["Conv2DBackInput"] == pytest.approx(10e-6)


def test_an_interrupted_step_is_no_typical_one() -> None:
    events = []
    for step, duration in enumerate([10, 11, 12, 500]):
        begin = 1000 * step
        events += [event("fathom.step", begin, duration + 5, "user_annotation"), event("aten::mm", begin + 1, duration)]
    found = trace.breakdown(events)
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
    rows = {row.op: row for row in trace.breakdown(step).rows()}
    assert {op: (row.type, row.phase) for op, row in rows.items()} == {
        "aten::_fused_sgd_": ("ApplySGD", "optimizer"),
        "aten::add_": ("ApplySGD", "optimizer"),
    }
    assert rows["aten::_fused_sgd_"].cpu_s == pytest.approx(60e-6)


def test_every_kernel_is_counted_once_with_or_without_an_owner() -> None:
    kernels = trace.breakdown(gpu_step()).kernels()
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


def traced(path: Path, train: bool) -> trace.Breakdown:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 3, 15, 15)
    with layers_marked({"": network}), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        if train:
            nn.functional.cross_entropy(network(x), torch.zeros(4, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
        else:
            with torch.inference_mode():
                network(x)
    recorder.export_chrome_trace(str(path))
    return trace.breakdown(read(path), roles({"": network}))


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
            flop[row.layer, row.type] = flop.get((row.layer, row.type), 0) + row.flop
    forward = {("first", "Conv2D"): FIRST, ("second", "Conv2D"): SECOND}
    if not train:
        assert flop == {**forward, ("head", "MatMul"): HEAD}
        return
    assert flop == {
        **forward,
        ("head", "MatMul"): 3 * HEAD,
        ("second", "Conv2DBackFilter"): SECOND,
        ("second", "Conv2DBackInput"): SECOND,
        ("first", "Conv2DBackFilter"): FIRST,  # nobody asks for the gradient of the images
    }


def test_rows_and_outside_add_up_to_the_step(tmp_path: Path) -> None:
    found = traced(tmp_path / "t.json", train=True)
    split_convolution_backward(found, torch.device("cpu"))
    ((begin, end),) = found.steps
    rows = found.rows()
    assert sum(row.cpu_s for row in rows) + found.outside_s() == pytest.approx((end - begin) * 1e-6, rel=1e-6)
    assert {row.role for row in rows} >= {"convolution", "fully connected", "loss"}
    per_step = found.per_step_s()
    assert sum(sum(series) for series in per_step.values()) == pytest.approx(sum(row.cpu_s for row in rows))


def test_attention_on_a_cpu_is_counted(tmp_path: Path) -> None:
    query = torch.randn(2, 3, 10, 8, requires_grad=True)
    key, value = torch.randn(2, 3, 12, 8), torch.randn(2, 3, 12, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        nn.functional.scaled_dot_product_attention(query, key, value)
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = trace.breakdown(read(tmp_path / "t.json")).rows()
    assert sum(row.flop for row in rows if row.group == "B") == 2 * (2 * 2 * 3 * 10 * 12 * 8)


def test_lstm_on_a_cpu_is_counted(tmp_path: Path) -> None:
    lstm, x = nn.LSTM(6, 5, num_layers=2), torch.randn(7, 3, 6)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder, torch.inference_mode():
        lstm(x)
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    rows = trace.breakdown(read(tmp_path / "t.json")).rows()
    per_step = 4 * 5 * (6 + 5) + 4 * 5 * (5 + 5)
    assert sum(row.flop for row in rows if row.group == "B") == 2 * 7 * 3 * per_step


@pytest.mark.parametrize("pack", [False, True])
def test_corrupt_traces_are_refused_or_read(tmp_path: Path, pack: bool) -> None:
    path = tmp_path / "trace.json"
    text = msgspec.json.encode({"traceEvents": gpu_step()})
    path.write_bytes(gzip.compress(text) if pack else text)

    def break_down() -> None:
        trace.breakdown(read(path)).rows()

    refused, accepted = survive(path, break_down, count=2000)
    assert refused > 1000
    assert refused + accepted == 2000


def test_a_json_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"not a torch.profiler trace"):
        read(path)
