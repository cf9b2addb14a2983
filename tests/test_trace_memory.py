"""Memory over a step: the curve, its peak, and what is allocated there, in traces made by hand and in a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import trace_events
from torch import nn

from fathom.core.traced import Memory
from fathom.trace import walk
from fathom.trace.event import Event, Instant
from fathom.trace.memory import POINTS, memory, with_known
from fathom.trace.profile import from_trace
from fathom.trace.reader import MEMORY


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    if "sequence" in args:
        args["Sequence number"] = args.pop("sequence")
    return trace_events.event(name, ts, dur, cat, tid, **args)


def change(ts: float, size: int, addr: int | None = None, total: int | None = None, **args: Any) -> Event:
    """An allocation, or with a negative size the end of one."""
    given = {"Addr": addr, "Bytes": size, "Total Allocated": total, "Device Type": 1, "Device Id": 0, **args}
    known = {name: value for name, value in given.items() if value is not None}
    tid = args.pop("tid", 1)
    raw = msgspec.Raw(msgspec.json.encode(known))
    return Instant(name=MEMORY, pid=1, tid=tid, ts=ts, args=raw)


def training_step() -> list[Event]:
    """Forward 0 to 40, backward 40 to 70, optimizer 70 to 95."""
    return [
        event("fathom.step", 0, 100, "user_annotation"),
        event("fathom.forward", 0, 40, "user_annotation"),
        event("fathom.layer net.first", 1, 20, "user_annotation"),
        event("aten::conv2d", 2, 10, sequence=1),
        event("aten::relu", 25, 5, sequence=2),
        event("fathom.backward", 40, 30, "user_annotation"),
        event("autograd::engine::evaluate_function: ReluBackward0", 41, 8, sequence=2),
        event("aten::threshold_backward", 42, 5),
        event("autograd::engine::evaluate_function: ConvolutionBackward0", 50, 15, sequence=1),
        event("aten::convolution_backward", 51, 12),
        event("fathom.optimizer", 70, 25, "user_annotation"),
        event("Optimizer.step#Adam.step", 71, 20, "user_annotation"),
        event("aten::zeros_like", 72, 8),
        event("gemm", 60, 5, "kernel", tid=9, correlation=1),
    ]


def changes() -> list[Event]:
    """1000 bytes were there before."""
    return [
        change(3, 400, 1, 1400),  # output of the convolution: freed in the backward
        change(4, 70, 2, 1470),  # its workspace
        change(9, -70, 2, 1400),
        change(26, 400, 3, 1800),
        change(43, 300, 4, 2100),  # gradient of an activation
        change(48, -400, 3, 1700),
        change(52, 200, 5, 1900),  # gradient of a weight
        change(53, 600, 6, 2500),  # workspace: the peak
        change(60, -600, 6, 1900),
        change(66, -300, 4, 1600),
        change(67, -400, 1, 1200),
        change(73, 100, 7, 1300),  # state of the optimizer
        change(97, -200, 5, 1100),
    ]


def found_in(events: list[Event], allocations: list[Event]) -> Memory:
    found = memory(walk.breakdown(events), allocations)
    assert found is not None
    return found


def test_what_holds_the_memory_at_the_peak() -> None:
    found = found_in(training_step(), changes())
    assert (found.peak_bytes, found.device) == (2500, "cuda:0")
    assert found.peak_s == pytest.approx(53e-6)
    assert found.kinds == {
        "before the trace": 1000,
        "temporary": 600,
        "activations": 400,
        "activation gradients": 300,
        "gradients": 200,
    }
    assert sum(found.kinds.values()) == found.peak_bytes
    activation = next(each for each in found.held if each.kind == "activations")
    assert (activation.layer, activation.op, activation.phase) == ("net.first", "aten::conv2d", "forward")


def test_state_of_the_optimizer_is_what_its_step_keeps() -> None:
    later = [each for each in changes() if each.ts < 60] + [change(73, 5000, 7, 7500)]
    assert found_in(training_step(), later).kinds["optimizer state"] == 5000


def test_the_curve_goes_from_the_beginning_to_the_end_of_the_step_through_its_peak() -> None:
    found = found_in(training_step(), changes())
    assert (found.times_s[0], found.times_s[-1]) == pytest.approx((0.0, 100e-6))
    assert max(found.allocated) == found.peak_bytes
    assert found.allocated[-1] == 1100
    assert found.times_s == sorted(found.times_s)


def test_a_long_curve_keeps_its_peak() -> None:
    sizes = [(1 if index % 2 == 0 else -1) * (900_000 if index in (7000, 7001) else 64) for index in range(20_000)]
    total, many = 0, []
    for index, size in enumerate(sizes):
        total += size
        many.append(change(0.001 * index, size, 1, 10_000 + total))
    found = found_in(training_step(), many)
    assert len(found.allocated) <= POINTS
    assert max(found.allocated) == found.peak_bytes == 910_000


def test_the_step_with_the_highest_peak_is_shown() -> None:
    steps = [event("ProfilerStep#1", 0, 100, "user_annotation"), event("ProfilerStep#2", 100, 100, "user_annotation")]
    ops = [event("aten::relu", 10, 20), event("aten::relu", 110, 20)]
    allocations = [change(11, 10, 1, 110), change(12, -10, 1, 100), change(111, 20, 2, 120), change(130, -20, 2, 100)]
    found = found_in(steps + ops, allocations)
    assert (found.step, found.peak_bytes) == (1, 120)
    assert found.peak_s == pytest.approx(11e-6)
    assert found.kinds == {"before the trace": 100, "temporary": 20}


def test_memory_of_the_gpu_goes_before_that_of_the_host() -> None:
    on_host = change(5, 10**9, 9, **{"Device Type": 0, "Device Id": -1})
    assert found_in(training_step(), [on_host, *changes()]) == found_in(training_step(), changes())


def test_older_traces_have_no_addresses_and_no_totals() -> None:
    old = [change(3, 400), change(9, -300), change(20, -600), change(30, 700)]
    found = found_in(training_step(), old)
    assert found.is_lower_bound
    assert found.peak_bytes == 900, "500 more were freed than allocated: they were there before"
    assert not found.kinds


def test_what_the_update_frees_within_the_step_is_no_state() -> None:
    later = [each for each in changes() if each.ts < 60]
    later += [change(73, 5000, 7, 7500), change(74, 3000, 8, 10_500), change(90, -3000, 8, 7500)]
    kinds = found_in(training_step(), later).kinds
    assert (kinds["optimizer state"], kinds["temporary"]) == (5000, 3000)


def test_of_a_step_whose_state_is_not_known_memory_stays_a_lower_bound() -> None:
    cpu = {"Device Type": 0, "Device Id": -1}
    found = found_in(training_step(), [change(3, 400, 1, 400, **cpu)])
    known = with_known(found, {"parameters": 2000}, is_all=False)
    assert (known.peak_bytes, known.is_lower_bound) == (2400, True)
    on_gpu = with_known(found_in(training_step(), changes()), {"parameters": 300}, is_all=False)
    assert not on_gpu.is_lower_bound, "a GPU's allocator counts everything"


def test_a_host_knows_nothing_of_what_was_there_before() -> None:
    cpu = {"Device Type": 0, "Device Id": -1}
    found = found_in(training_step(), [change(3, 400, 1, 400, **cpu), change(26, 100, 2, 500, **cpu)])
    assert (found.is_lower_bound, found.kinds) == (True, {"activations": 500})
    known = with_known(found, {"parameters": 2000, "optimizer state": 4000})
    assert (known.peak_bytes, known.is_lower_bound) == (6500, False)
    assert known.kinds == {"optimizer state": 4000, "parameters": 2000, "activations": 500}
    assert max(known.allocated) == known.peak_bytes


def test_what_was_there_before_is_named_where_it_is_known() -> None:
    found = with_known(found_in(training_step(), changes()), {"parameters": 300, "gradients": 100})
    assert found.peak_bytes == 2500
    assert found.kinds["parameters"] == 300
    assert found.kinds["gradients"] == 300, "200 in the trace and 100 before it"
    assert found.kinds["before the trace"] == 600
    assert sum(found.kinds.values()) == found.peak_bytes


def test_malformed_allocations_are_passed_over() -> None:
    broken = [
        Instant(name=MEMORY, ts=float("nan")),
        change(5, 0),
        Instant(name=MEMORY, pid=1, tid=1, ts=6.0),
    ]
    assert memory(walk.breakdown(training_step()), broken[:1]) is None
    assert found_in(training_step(), [*broken, *changes()]).peak_bytes == 2500


def test_a_trace_without_allocations() -> None:
    assert memory(walk.breakdown(training_step()), []) is None


def test_a_real_trace_holds_the_gradients_of_its_weights(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    x = torch.randn(64, 256)
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as recorder:
        net(x).sum().backward()
    path = tmp_path / "trace.json"
    recorder.export_chrome_trace(str(path))
    profile = from_trace(path).profile
    assert profile is not None
    assert profile.memory is not None
    assert profile.memory.kinds["gradients"] == 4 * sum(weight.numel() for weight in net.parameters())
    assert profile.memory.kinds["activation gradients"] == 4 * 64 * 512
    assert sum(profile.memory.kinds.values()) == profile.memory.peak_bytes
