"""Source lines of op calls and of host waits: whose line an op is, and that lines add up to the op rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trace_events
from sample_records import op_row, profile_of
from torch import nn

from fathom.core.record import Profile, Record
from fathom.core.traced import Sources
from fathom.trace import walk
from fathom.trace.event import Event
from fathom.trace.owners import FRAMEWORK, LIBRARY, NO_SOURCE, USERS, owner_of
from fathom.trace.profile import from_trace
from fathom.trace.sources import sources
from fathom.trace.waits import is_wait


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    if "sequence" in args:
        args["Sequence number"] = args.pop("sequence")
    if "stack" in args:
        args["Call stack"] = args.pop("stack")
    return trace_events.event(name, ts, dur, cat, tid, **args)


def frame(name: str, ts: float, dur: float, tid: int = 1) -> Event:
    return event(name, ts, dur, "python_function", tid)


TRAIN, FORWARD, LOSS = "train.py(5): step", "net/model.py(20): forward", "train.py(40): criterion"
LAYER = "transformers/models/vit/modeling_vit.py(252): forward"


def on_cpu() -> list[Event]:
    """A forward in the user's model, in a library's and in the user's loss; the backward on the same thread."""
    return [
        event("fathom.step", 0, 100, "user_annotation"),
        frame(TRAIN, 0, 100),
        frame("torch/nn/modules/module.py(1743): _call_impl", 1, 40),
        frame(FORWARD, 2, 38),
        event("aten::relu", 3, 5, sequence=1),
        frame(LAYER, 10, 20),
        frame("torch/nn/modules/linear.py(124): forward", 11, 18),
        frame("<built-in function linear>", 12, 16),
        event("aten::linear", 13, 10, sequence=2),
        event("aten::addmm", 14, 8, sequence=2),
        frame(LOSS, 42, 8),
        event("aten::mse_loss", 43, 4, sequence=3),
        frame("torch/_tensor.py(570): backward", 50, 40),
        event("autograd::engine::evaluate_function: MseLossBackward0", 52, 6, sequence=3),
        event("aten::mse_loss_backward", 53, 4),
        event("autograd::engine::evaluate_function: AddmmBackward0", 60, 10, sequence=2),
        event("aten::mm", 61, 8),
        event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 72, 4),
        event("aten::add_", 73, 2),
        event("autograd::engine::evaluate_function: NeverSeenBackward0", 80, 4, sequence=77),
        event("aten::mul", 81, 2),
    ]


def found_in(events: list[Event]) -> Sources:
    found = sources(walk.breakdown(events))
    assert found is not None
    return found


def test_an_op_is_of_the_innermost_frame_that_is_the_users() -> None:
    lines = {line.line: line for line in found_in(on_cpu()).lines}
    assert set(lines) == {TRAIN, FORWARD, LOSS}, "neither torch's frames nor a library's"
    # forward 5 + 10, backward 10 of the product and 4 of the gradient that was added up after it
    assert lines[FORWARD].seconds == pytest.approx(29e-6)
    assert lines[FORWARD].libraries == {LAYER: pytest.approx(24e-6)}
    assert lines[FORWARD].types["MatMul"] == pytest.approx(18e-6)


def test_a_backward_op_has_the_line_of_its_forward() -> None:
    lines = {line.line: line for line in found_in(on_cpu()).lines}
    assert lines[FORWARD].backward_s == pytest.approx(14e-6)
    assert (lines[LOSS].seconds, lines[LOSS].backward_s) == pytest.approx((10e-6, 6e-6))
    assert lines[TRAIN].seconds == pytest.approx(4e-6), "its forward is not in the trace: where backward() was called"


def test_lines_add_up_to_the_op_rows() -> None:
    events = on_cpu()
    breakdown = walk.breakdown(events)
    found = found_in(events)
    total = sum(line.seconds for line in found.lines) + found.other_s + found.unknown_s
    assert total == pytest.approx(sum(row.cpu_s for row in breakdown.rows()))
    assert found.unknown_s == 0
    assert not found.exact


def steps_of(*relu_us: float) -> list[Event]:
    """Steps in which a line calls relu and another a product of 20 us; only the time of the first differs."""
    found = []
    for number, us in enumerate(relu_us):
        begin = 1000.0 * number
        found += [
            event("fathom.step", begin, 900, "user_annotation"),
            frame(FORWARD, begin + 1, 400),
            event("aten::relu", begin + 2, us),
            event("aten::mm", begin + 401 - 20, 20),
            frame(LOSS, begin + 410, 300),
            event("aten::relu", begin + 420, 5),
        ]
    return found


def rows_of(**seconds: float) -> Profile:
    """The rows of another pass, by op."""
    types = {"relu": "Relu", "mm": "MatMul", "exp": "Exp"}
    return profile_of([op_row(types[op], each, op=f"aten::{op}", layer="") for op, each in seconds.items()])


def test_a_disturbed_step_of_three_does_not_decide_how_rows_are_divided() -> None:
    rows = rows_of(relu=30e-6, mm=50e-6)
    for series in ((10.0, 10.0, 310.0), (10.0, 10.0, 10.0)):
        found = sources(walk.breakdown(steps_of(*series)), rows)
        assert found is not None
        lines = {line.line: line for line in found.lines}
        assert lines[FORWARD].types == pytest.approx({"Relu": 20e-6, "MatMul": 50e-6})
        assert lines[LOSS].types == pytest.approx({"Relu": 10e-6})
        assert found.unknown_s == 0


def test_what_happens_in_one_step_of_three_counts_for_a_third() -> None:
    events = [*steps_of(10, 10, 10), frame(TRAIN, 800, 90), event("aten::relu", 801, 30)]
    rows = rows_of(relu=50e-6)
    found = sources(walk.breakdown(events), rows)
    assert found is not None
    assert {line.line: line.seconds for line in found.lines} == pytest.approx(
        {FORWARD: 20e-6, LOSS: 10e-6, TRAIN: 20e-6}
    )


def test_rows_without_a_call_in_the_pass_with_stacks_have_no_line() -> None:
    """Such as ops of a thread that the step starts, which that pass does not record."""
    rows = rows_of(relu=30e-6, exp=7e-6)
    found = sources(walk.breakdown(steps_of(10, 10, 10)), rows)
    assert found is not None
    assert found.unknown_s == pytest.approx(7e-6)
    assert sum(line.seconds for line in found.lines) == pytest.approx(30e-6)


def test_python_code_in_a_backward_has_its_own_line() -> None:
    own = "net/custom.py(9): backward"
    events = [
        frame(FORWARD, 0, 20),
        event("Custom", 1, 5, sequence=4),
        event("autograd::engine::evaluate_function: CustomBackward", 30, 10, tid=2, sequence=4),
        frame("torch/autograd/function.py(300): apply", 31, 8, tid=2),
        frame(own, 32, 6, tid=2),
        event("aten::mul", 33, 4, tid=2),
    ]
    lines = {line.line: line.seconds for line in found_in(events).lines}
    assert lines == {FORWARD: pytest.approx(11e-6), own: pytest.approx(4e-6)}


def test_older_traces_have_the_stack_in_the_op() -> None:
    stack = "/env/lib/python3.7/site-packages/torchvision/models/resnet.py(124): forward;run.py(46): <module>"
    inside_torch = "/env/lib/python3.7/site-packages/torch/optim/sgd.py(90): step;run.py(51): <module>"
    events = [
        event("aten::relu", 0, 5, sequence=1, stack=stack),
        event("aten::add_", 6, 3, stack=inside_torch),
        event("aten::mul", 10, 2, stack=""),
        event("autograd::engine::evaluate_function: ReluBackward0", 20, 4, tid=2, sequence=1),
    ]
    found = found_in(events)
    assert found.exact
    assert {line.line: line.seconds for line in found.lines} == {
        "run.py(46): <module>": pytest.approx(9e-6),
        "run.py(51): <module>": pytest.approx(3e-6),
    }
    assert found.unknown_s == pytest.approx(2e-6)


def test_what_calls_fathom_does_not_call_the_op() -> None:
    events = [
        frame("main.py(3): <module>", 0, 50),
        frame("typer/main.py(1445): wrapper", 1, 48),
        frame("fathom/engine/base.py(60): apply", 2, 40),
        event("aten::mul", 3, 1),
        frame("torch/optim/sgd.py(90): step", 5, 20),
        event("aten::add_", 6, 5),
        frame(FORWARD, 30, 8),
        event("aten::relu", 31, 2),
    ]
    lines = {line.line: line.seconds for line in found_in(events).lines}
    assert lines == pytest.approx(
        {"fathom/engine/base.py(60): apply": 1e-6, "torch/optim/sgd.py(90): step": 5e-6, FORWARD: 2e-6}
    )


def test_a_library_is_named_where_nothing_is_the_users() -> None:
    events = [
        frame("threading.py(1032): _bootstrap", 0, 50),
        frame("vllm/v1/worker/gpu_model_runner.py(3380): execute_model", 1, 40),
        frame("torch/nn/modules/module.py(1743): _call_impl", 2, 30),
        event("aten::relu", 3, 5),
        frame("torch/utils/data/dataloader.py(630): __next__", 42, 6),
        event("aten::stack", 43, 2),
    ]
    lines = {line.line for line in found_in(events).lines}
    assert lines == {
        "vllm/v1/worker/gpu_model_runner.py(3380): execute_model",
        "torch/utils/data/dataloader.py(630): __next__",
    }


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train.py(5): step", USERS),
        ("profile.py(5): main", USERS),
        ("/srv/me/site.py(5): main", USERS),
        ("/srv/me/torch/train.py(5): main", USERS),
        ("/tmp/ipykernel_12/31.py(1): <module>", USERS),
        ("<ipython-input-3-ab>(1): <module>", USERS),
        ("C:\\work\\net.py(5): forward", USERS),
        ("torch/nn/modules/linear.py(124): forward", FRAMEWORK),
        ("/env/lib/python3.12/site-packages/torch/nn/functional.py(1): linear", FRAMEWORK),
        ("/tmp/torchinductor_me/ab/cab.py(30): call", FRAMEWORK),
        ("/usr/lib/python3.12/threading.py(1032): _bootstrap", FRAMEWORK),
        ("threading.py(1032): _bootstrap", FRAMEWORK),
        ("<frozen os>(808): getenv", FRAMEWORK),
        ("<string>(1): <module>", FRAMEWORK),
        ("torchvision/models/resnet.py(89): forward", LIBRARY),
        ("/env/lib/python3.12/site-packages/strange/net.py(1): forward", LIBRARY),
        ("C:\\env\\Lib\\site-packages\\strange\\net.py(1): forward", LIBRARY),
        ("<built-in function linear>", NO_SOURCE),
        ("nn.Module: Linear_0", NO_SOURCE),
    ],
)
def test_whose_code_a_frame_is(name: str, owner: int) -> None:
    assert owner_of(name) == owner


def on_gpu() -> list[Event]:
    """A kernel of an op, a graph launched by two lines outside all ops, and waits in and outside ops."""
    return [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        frame(TRAIN, 0, 100),
        frame(FORWARD, 1, 30),
        event("aten::mm", 2, 10),
        event("cudaLaunchKernel", 3, 2, "cuda_runtime", correlation=1),
        event("cudaGraphLaunch", 15, 2, "cuda_runtime", correlation=2),
        frame(LOSS, 40, 50),
        event("cudaGraphLaunch", 42, 2, "cuda_runtime", correlation=3),
        event("aten::item", 50, 20),
        event("aten::_local_scalar_dense", 51, 18),
        event("cudaMemcpyAsync", 52, 2, "cuda_runtime", correlation=4),
        event("cudaStreamSynchronize", 55, 12, "cuda_runtime", correlation=5),
        event("cudaDeviceSynchronize", 75, 9, "cuda_runtime", correlation=6),
        event("gemm", 20, 10, "kernel", tid=9, correlation=1),
        event("replayed", 30, 6, "kernel", tid=9, correlation=2),
        event("replayed", 50, 2, "kernel", tid=9, correlation=3),
    ]


def test_kernels_of_no_op_have_the_line_that_launched_them() -> None:
    found = found_in(on_gpu())
    assert {line.line: line.seconds for line in found.lines} == pytest.approx({FORWARD: 16e-6, LOSS: 2e-6})
    assert {line.line: line.calls for line in found.lines} == {FORWARD: 2, LOSS: 2}


def test_waits_of_the_host_by_line_and_op() -> None:
    found = found_in(on_gpu()).waits
    assert [(wait.call, wait.op, wait.line, wait.calls, round(wait.seconds * 1e6)) for wait in found] == [
        ("cudaStreamSynchronize", "aten::item", LOSS, 1.0, 12),
        ("cudaDeviceSynchronize", "", LOSS, 1.0, 9),
    ]


def test_the_wait_that_ends_a_step_of_fathoms_own_is_not_the_users() -> None:
    events = [event("fathom.step", 0, 100, "user_annotation"), *on_gpu()[1:]]
    own = event("cudaDeviceSynchronize", 95, 4, "cuda_runtime", correlation=7)
    assert found_in([*events, own]).waits == found_in(on_gpu()).waits


def test_waits_are_known_without_stacks() -> None:
    events = [each for each in on_gpu() if each.cat != "python_function"]
    found = found_in(events)
    assert not found.lines
    assert found.unknown_s == pytest.approx(18e-6)
    assert [wait.line for wait in found.waits] == ["", ""]


@pytest.mark.parametrize("args", [{}, {"stack": ""}])
def test_neither_stacks_nor_waits(args: dict[str, str]) -> None:
    events = [event("aten::relu", 0, 5, **args)]  # type: ignore[arg-type]
    assert sources(walk.breakdown(events)) is None


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cuCtxSynchronize",
        "hipMemcpyWithStream",
        "hipDeviceSynchronize",
        "cudaMemcpy2D",
        "cuMemcpyDtoH_v2",
        "zeEventHostSynchronize",
    ],
)
def test_calls_that_wait(name: str) -> None:
    assert is_wait(name)


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaStreamWaitEvent", "hipMemcpy2DAsync"])
def test_calls_that_do_not_wait(name: str) -> None:
    assert not is_wait(name)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()  # type: ignore[no-any-return]


def recorded(path: Path) -> Record:
    """A real trace of this torch, with stacks and memory."""
    net, x = Net(), torch.randn(4, 8)
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as recorder:
        loss = net(x).square().sum()
        loss.backward()
    recorder.export_chrome_trace(str(path))
    return from_trace(path)


def test_a_real_trace_has_lines_of_this_file(tmp_path: Path) -> None:
    profile = recorded(tmp_path / "trace.json").profile
    assert profile is not None
    assert profile.sources is not None
    total = sum(line.seconds for line in profile.sources.lines) + profile.sources.unknown_s
    assert total == pytest.approx(sum(row.cpu_s for row in profile.rows))
    names = {line.line.rpartition("/")[2].partition("(")[0]: line for line in profile.sources.lines}
    forward = next(line for line in profile.sources.lines if line.line.endswith("): forward"))
    assert "test_sources.py" in names
    assert "test_sources.py" in forward.line
    assert forward.backward_s > 0
    assert "MatMul" in forward.types


def test_a_record_with_lines_and_memory_is_read_back_as_it_was(tmp_path: Path) -> None:
    record = recorded(tmp_path / "trace.json")
    assert record.profile is not None
    assert record.profile.memory is not None
    assert record.profile.timeline is not None
    assert Record.from_json(record.to_json()).profile == record.profile
