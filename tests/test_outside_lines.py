"""Time outside ops by the function that ran: whose it is, that it adds up, and what is advised about it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_records import GPU, op_row, profile_of, record_of
from test_overview import gpu_time
from test_sources import FORWARD, LAYER, LOSS, TRAIN, event, found_in, frame
from torch import nn

import fathom as suite
from fathom.analysis.actions import actions
from fathom.analysis.outside_lines import outside_lines
from fathom.analysis.own_model import findings, outside_table
from fathom.cli.commands.profile import by_type
from fathom.core.record import Profile
from fathom.core.traced import OutsidePart, Sources
from fathom.trace import walk
from fathom.trace.event import Event
from fathom.trace.host import OUTSIDE
from fathom.trace.intervals import Floats, Intervals
from fathom.trace.outside import LISTED, TORCH
from fathom.trace.profile import as_profile
from fathom.trace.sources import sources

TOKENIZE, GET = "net/words.py(8): tokenize", "<built-in method get of dict object at 0x7f2c>"
HOOK = "fathom/measure/profiling.py(300): hook"


def told(events: list[Event]) -> dict[tuple[str, str], float]:
    """(Line, callee) -> microseconds."""
    found = found_in(events).outside
    return {(part.line, part.callee): round(part.seconds * 1e6, 6) for part in found if part.seconds}


def on_cpu() -> list[Event]:
    return [
        event("fathom.step", 0, 100, "user_annotation"),
        frame(FORWARD, 10, 80),
        frame(TOKENIZE, 20, 30),
        frame(GET, 25, 5),
        frame("re/__init__.py(5): sub", 32, 6),
        frame("torch/nn/modules/module.py(1): _call_impl", 55, 20),
        frame("<built-in function linear>", 57, 12),
        event("aten::linear", 60, 6),
        frame("<built-in method relu of type object at 0x7f>", 80, 8),
        event("aten::relu", 82, 5),
    ]


def test_time_outside_ops_is_of_the_innermost_function_that_is_the_users() -> None:
    assert told(on_cpu()) == {
        (TOKENIZE, ""): 19.0,
        (TOKENIZE, "dict.get"): 5.0,
        (TOKENIZE, "re/__init__.py(5): sub"): 6.0,
        (FORWARD, ""): 22.0,
        (FORWARD, TORCH): 17.0,  # 14 of the module's 20, and 3 on the way to relu
        ("", ""): 20.0,  # before and after all functions
    }
    assert {part.callee for part in found_in(on_cpu()).outside if part.in_torch} == {TORCH}


def test_calls_are_counted_where_they_were_recorded() -> None:
    calls = {(part.line, part.callee): part.calls for part in found_in(on_cpu()).outside}
    assert calls[TOKENIZE, "dict.get"] == 1
    assert calls[FORWARD, TORCH] == 5, "two built-in functions, two ops, and the module's call"


def test_fathoms_marks_are_no_time_of_the_step() -> None:
    hooked = [*on_cpu(), frame(HOOK, 89, 0.5), frame("torch/_ops.py(3): __call__", 89.1, 0.2)]
    assert told(hooked)[FORWARD, ""] == 21.5
    assert not any(HOOK in line for line, _ in told(hooked))
    assert sum(told(hooked).values()) == pytest.approx(88.5)


def test_a_librarys_function_that_runs_ops_is_torchs() -> None:
    events = [
        event("fathom.step", 0, 100, "user_annotation"),
        frame(TRAIN, 0, 100),
        frame(LAYER, 10, 40),
        event("aten::relu", 20, 10),
        frame("numpy/core/fromnumeric.py(2): sum", 60, 30),
        event("aten::relu", 95, 5),
    ]
    parts = {part.callee: (round(part.seconds * 1e6), part.in_torch) for part in found_in(events).outside}
    assert parts[LAYER] == (30, True)
    assert parts["numpy/core/fromnumeric.py(2): sum"] == (30, False)


def test_with_a_gpu_it_is_what_the_gpu_waits_for() -> None:
    events = [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        frame(FORWARD, 0, 100),
        event("aten::mm", 0, 10),
        event("cudaLaunchKernel", 2, 2, "cuda_runtime", correlation=1),
        frame(TOKENIZE, 20, 40),
        event("aten::mm", 60, 20),
        event("cudaLaunchKernel", 62, 2, "cuda_runtime", correlation=2),
        event("gemm", 4, 26, "kernel", tid=9, correlation=1),
        event("gemm", 64, 10, "kernel", tid=9, correlation=2),
    ]
    assert told(events) == {(TOKENIZE, ""): 30.0}, "from 30, when the kernel ends, to 60, when the next op begins"
    profile = as_profile(walk.breakdown(events), [100e-6], [])
    assert profile.gpu is not None
    assert profile.gpu.starved_in[OUTSIDE] == pytest.approx(30e-6)


def random_events(chance: random.Random) -> list[Event]:
    """Functions and ops nested at random in two threads, over three steps."""
    names = [TRAIN, FORWARD, TOKENIZE, LOSS, LAYER, GET, "torch/_ops.py(3): __call__", "nn.Module: Linear_0"]
    events = [event(f"ProfilerStep#{step}", 1000 * step, 1000, "user_annotation") for step in range(3)]

    def fill(begin: float, end: float, depth: int, tid: int) -> None:
        while (begin := begin + chance.uniform(0, 30)) < end - 1:
            until = min(end, begin + chance.uniform(1, 400))
            if is_op := chance.random() < 0.4:  # in one step: an op is of the step in which it begins
                until = min(until, 1000 * (begin // 1000 + 1))
            events.append(event("aten::relu", begin, until - begin, tid=tid) if is_op else
                          frame(chance.choice(names), begin, until - begin, tid))  # fmt: skip
            if depth < 4 and not is_op:
                fill(begin, until, depth + 1, tid)
            begin = until

    fill(chance.uniform(0, 500), 3000, 0, 1)
    fill(chance.uniform(0, 2000), chance.uniform(2000, 3000), 0, 2)
    return events


@pytest.mark.parametrize("seed", range(30))
def test_lines_add_up_to_ops_and_functions_to_the_time_outside(seed: int) -> None:
    events = random_events(random.Random(seed))
    breakdown = walk.breakdown(events)
    found = sources(breakdown)
    assert found is not None
    in_ops = sum(line.seconds for line in found.lines) + found.other_s + found.unknown_s
    assert in_ops == pytest.approx(sum(row.cpu_s for row in breakdown.rows()))
    assert sum(part.seconds for part in found.outside) == pytest.approx(breakdown.outside_s())
    assert all(part.seconds >= 0 and part.calls >= 0 for part in found.outside)


@pytest.mark.parametrize("seed", range(10))
def test_intervals_less_others(seed: int) -> None:
    """As told by the middle of each unit of time; a border touches, whichever side it is of."""
    chance = random.Random(seed)
    a, b = ([(low, low + chance.randint(0, 9)) for low in chance.sample(range(90), 12)] for _ in range(2))
    middles: Floats = np.arange(0.5, 100.0)
    first, second = Intervals.of(a), Intervals.of(b)
    left = first - second
    assert (left.touch(middles) == (first.touch(middles) & ~second.touch(middles))).all()
    assert left.length == pytest.approx(first.length - first.covered_by(second))
    assert first.touch(first.begins).all()
    assert first.touch(first.ends).all()


def test_what_is_not_listed_is_one_part() -> None:
    count = LISTED + 50
    events = [event("aten::relu", 0, 1), *(frame(f"net/a.py({at}): f", 2 + 2 * at, 1) for at in range(count))]
    events.append(event("aten::relu", 2 + 2 * count, 1))
    found = found_in(events).outside
    assert len(found) == LISTED + 1
    assert sum(part.seconds for part in found) == pytest.approx(walk.breakdown(events).outside_s())


def test_a_disturbed_step_of_three_does_not_decide_a_functions_time() -> None:
    events = []
    for step, us in enumerate((10.0, 10.0, 500.0)):
        begin = 1000.0 * step
        events += [
            event("fathom.step", begin, 900, "user_annotation"),
            frame(TOKENIZE, begin + 1, us),
            event("aten::relu", begin + 600, 5),
        ]
    found = sources(walk.breakdown(events), profile_of([op_row("Relu", 5e-6)]))
    assert found is not None
    assert next(part.seconds for part in found.outside if part.line == TOKENIZE) == pytest.approx(10e-6)


def part(line: str, seconds: float, calls: float, callee: str = "", in_torch: bool = False) -> OutsidePart:
    return OutsidePart(line=line, callee=callee, in_torch=in_torch, seconds=seconds, calls=calls)


def profiled(*parts: OutsidePart, **changes: object) -> Profile:
    """A step of 1 s, 0.4 s of it in ops; 0.6 s outside, which were longer where calls were recorded."""
    found = Sources(lines=[], other_s=0.0, unknown_s=0.4, waits=[], exact=False, outside=list(parts))
    return replace(profile_of([op_row("MatMul", 0.4)], outside_s=0.6, sources=found), **changes)  # type: ignore[arg-type]


LOOP = part("net/model.py(30): score", 0.6, 0)
CALLS = part(TOKENIZE, 0.6, 1000, "dict.get")


def test_what_recording_calls_took_is_taken_off_by_two_estimates() -> None:
    lines = {line.line: line for line in outside_lines(profiled(LOOP, CALLS))}
    loop, calls = lines[LOOP.line], lines[CALLS.line]
    assert (loop.by_calls_s, loop.by_time_s) == pytest.approx((0.6, 0.3))
    assert (calls.by_calls_s, calls.by_time_s) == pytest.approx((0.0, 0.3))
    assert loop.seconds + calls.seconds == pytest.approx(0.6)
    (first, *_) = outside_table(profiled(LOOP, CALLS)).rows
    assert first == [LOOP.line, pytest.approx(450), "30 to 60", 0.0, None]


def test_a_pass_that_was_faster_has_no_cost_of_recording() -> None:
    (line,) = outside_lines(profiled(part(TOKENIZE, 0.3, 1000)))
    assert (line.by_calls_s, line.by_time_s) == pytest.approx((0.6, 0.6))


def test_advice_names_the_functions_and_not_torch_compile() -> None:
    profile = profiled(LOOP, part(FORWARD, 0.6, 0, TORCH, in_torch=True))
    found = actions(record_of("mine", profile=profile))
    assert [round(each.gain, 6) for each in found] == [0.3, 0.3]
    own = next(each for each in found if "Python code between ops" in each.evidence)
    assert str(own).startswith(f"30 % of the step is Python code between ops: 30 % in {LOOP.line}: vectorise it")
    assert "forward" not in str(own), "torch's own time there"
    rest = next(each for each in found if "torch.compile" in each.what)
    assert "outside ops and the Python functions named" in rest.evidence


def test_without_unprofiled_steps_no_function_is_blamed() -> None:
    """How much of its time was recording its calls is not known."""
    assert actions(record_of("mine", profile=profiled(LOOP, plain_step_s=[]))) == []


def test_advice_on_a_gpu_that_waits_for_python() -> None:
    gpu = gpu_time(1.0, 0.4, 0.6, doing=OUTSIDE)
    found = Sources(lines=[], other_s=0.0, unknown_s=0.4, waits=[], exact=False, outside=[LOOP])
    profile = profile_of([op_row("MatMul", 0.4, place=GPU)], outside_s=0.6, gpu=gpu, sources=found)
    by_hand = actions(record_of("mine", profile=profile, place=GPU))
    assert len([each for each in by_hand if each.gain > 0.1]) == 1 + any("float32" in each.what for each in by_hand)
    assert f"60 % of the step is waiting for Python code between ops: 60 % in {LOOP.line}" in str(by_hand)
    assert not any("CUDA graphs" in each.what for each in by_hand), "nothing is left of that"


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count(300_000)
        return self.linear(x).relu()  # type: ignore[no-any-return]


def count(steps: int) -> int:
    total = 0
    for each in range(steps):
        total += each % 7
    return total


def test_a_slow_loop_in_forward_is_found_and_named(tmp_path: Path) -> None:
    record = suite.profile(Slow(), torch.randn(4, 8), device="cpu", stacks=True)
    assert record.profile is not None
    line = count.__code__.co_firstlineno
    first = max((line for line in outside_lines(record.profile) if line.is_users), key=lambda line: line.own_s)
    assert first.line.endswith(f"test_outside_lines.py({line}): count")
    assert f"test_outside_lines.py({line}): count" in actions(record)[0].evidence
    (finding,) = findings([record])
    assert f"({line}): count runs outside ops for" in finding.summary
    total_s = sum(line.seconds for line in outside_lines(record.profile))
    told_s = next(row[2] for row in by_type(record.profile) if row[0] == "outside ops")
    assert total_s == pytest.approx(told_s)
