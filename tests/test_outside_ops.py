"""Time outside ops: shares are of the unprofiled step, bounded by where the profiler's own time can have gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trace_events
from sample_records import GPU, op_row, profile_of, record_of
from torch import nn

from fathom.analysis import limits
from fathom.analysis.questions import breakdown
from fathom.analysis.selection import RunGroup, bounded_percent, outside_bounds, plain_scale
from fathom.cli.commands.profile import by_type
from fathom.core.record import LightPass, Profile
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.measure import profiling
from fathom.measure.own.model import OwnModel
from fathom.report.method import outside_percent
from fathom.trace import walk
from fathom.trace.event import Event
from fathom.trace.reader import read


def slowed(**changes: object) -> Profile:
    """A step of 1 s that took 2 s under the profiler: 0.9 s in ops, 1.1 s outside."""
    rows = [op_row("MatMul", 0.6), op_row("Add", 0.3)]
    profile = profile_of(rows, outside_s=1.1, step_s=[2.0] * 6, plain_step_s=[1.0] * 6)
    return replace(profile, **changes)  # type: ignore[arg-type]


# 0.3 s of 1.3 s are the profiler's; 40 of the 100 events are in no op, which makes 0.12 s of them at least
LIGHT = LightPass(step_s=[1.3] * 6, plain_step_s=[1.0] * 12, op_s=0.7, outside_s=0.6, events=100, events_in_ops=60)


def test_a_light_pass_bounds_the_time_outside_ops() -> None:
    profile = slowed(light=LIGHT)
    assert outside_bounds(profile) == pytest.approx((0.30, 0.48))
    assert outside_percent(profile) == "30 to 48"


def test_a_light_pass_is_compared_with_the_plain_steps_beside_it() -> None:
    """The machine has become slower by half since the steps were timed: that is not the profiler's time."""
    later = slowed(light=replace(LIGHT, plain_step_s=[1.3] * 12), plain_step_s=[0.8] * 6)
    assert outside_bounds(later) == pytest.approx((0.6 / 1.3, 0.6 / 1.3))


def test_an_older_record_is_bounded_by_its_slowdown_alone() -> None:
    assert outside_bounds(slowed()) == pytest.approx((0.10, 0.55)), "1.1 - 1 s, and 1.1 of 2 s"


def test_the_profiler_cannot_have_taken_more_outside_ops_than_was_there() -> None:
    short = slowed(rows=[op_row("MatMul", 1.9)], outside_s=0.1)
    assert outside_bounds(short) == pytest.approx((0.0, 0.05))
    assert outside_bounds(slowed(light=replace(LIGHT, op_s=1.2, outside_s=0.1, events_in_ops=0)))[0] == 0.0


def test_what_is_outside_ops_is_never_longer_than_the_step() -> None:
    """Of a step that waits, little time is in ops: less than their events' part of what the profiler took."""
    waits = slowed(light=replace(LIGHT, op_s=0.01, outside_s=1.29))
    assert outside_bounds(waits) == pytest.approx((0.99, 1.0))
    assert plain_scale(waits) > 0


def test_steps_that_the_profiler_did_not_slow_have_no_range() -> None:
    fast = slowed(plain_step_s=[2.5] * 6)
    assert outside_bounds(fast) == pytest.approx((0.55, 0.55))
    assert outside_percent(fast) == "55"


def test_shares_are_of_the_unprofiled_step_and_add_up() -> None:
    group = RunGroup("memnet", "train", "laptop", [record_of("memnet", profile=slowed(light=LIGHT))])
    percent = group.percent_by(lambda row: row.type)
    assert group.step_s == pytest.approx(1.0)
    assert group.outside_s == pytest.approx(0.39), "the middle of 0.30 and 0.48"
    assert percent == pytest.approx({"MatMul": 61 * 2 / 3, "Add": 61 / 3})
    assert group.seconds_by(lambda row: row.type) == pytest.approx({"MatMul": 0.61 * 2 / 3, "Add": 0.61 / 3})
    rows = by_type(slowed(light=LIGHT))
    assert sum(float(row[3] or 0) for row in rows) == pytest.approx(100)
    assert rows[-1][2] == pytest.approx(0.39)


def test_a_group_has_the_range_of_all_its_runs() -> None:
    runs = [record_of("memnet", profile=profile) for profile in (slowed(light=LIGHT), slowed())]
    assert RunGroup("memnet", "train", "laptop", runs).outside_percent == "10 to 55"


def test_the_breakdown_prints_the_range_and_its_rows_add_up_to_100() -> None:
    finding = breakdown.analyse([record_of("memnet", profile=slowed(light=replace(LIGHT, op_s=0.5, outside_s=0.8)))])
    table = next(table for table in finding.tables if table.title.startswith("Share of a training step"))
    (row,) = table.rows
    assert table.columns[-2:] == ["outside ops (%)", "outside ops, range (%)"]
    assert row[-1] == "50 to 68"
    assert sum(cell for cell in row if isinstance(cell, float)) == pytest.approx(100)
    assert "time outside ops in memnet (50 to 68 %)" in finding.summary


def test_without_unprofiled_steps_a_note_says_that_the_profilers_time_is_included() -> None:
    profile = slowed(plain_step_s=[])
    assert outside_bounds(profile) == pytest.approx((0.55, 0.55))
    assert plain_scale(profile) == 1.0
    notes = breakdown.analyse([record_of("memnet", profile=profile)]).notes
    assert any(note.startswith("No unprofiled steps: memnet on ") and "profiler's own time" in note for note in notes)
    assert not any("No unprofiled" in note for note in breakdown.analyse([record_of(profile=slowed())]).notes)


def test_on_a_gpu_kernels_are_not_scaled() -> None:
    profile = profile_of([op_row("MatMul", 0.4, place=GPU)], outside_s=1.6, plain_step_s=[1.0] * 6)
    assert plain_scale(profile) == 1.0
    assert outside_bounds(profile) == pytest.approx((0.6, 0.6))


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.311, 0.468, "31 to 47"), (0.0, 0.0304, "0.0 to 3.0"), (0.5, 0.502, "50")]
)
def test_a_range_in_words(low: float, high: float, text: str) -> None:
    assert bounded_percent(low, high) == text


def event(name: str, ts: float, dur: float, cat: str = "cpu_op") -> Event:
    return trace_events.event(name, ts, dur, cat)


def step(marks: str) -> list[Event]:
    return [
        event("fathom.step", 0, 100, marks),
        event("fathom.forward", 1, 60, marks),
        event("fathom.layer head", 2, 50, marks),
        event("aten::conv2d", 5, 30),
        event("aten::convolution", 6, 20),
        event("aten::copy_", 7, 5),
        event("aten::relu", 40, 5),
    ]


def test_a_mark_is_no_op_whatever_its_category() -> None:
    """The fast marks have the category of an op."""
    fast, slow = walk.breakdown(step("cpu_op")), walk.breakdown(step("user_annotation"))
    assert fast.rows() == slow.rows()
    assert {(row.op, row.layer, row.phase) for row in fast.rows()} == {
        ("aten::conv2d", "head", "forward"),
        ("aten::relu", "head", "forward"),
    }
    assert fast.outside_s() == pytest.approx(65e-6)


def test_events_inside_ops_are_those_below_the_op_that_has_a_row() -> None:
    assert walk.breakdown(step("cpu_op")).events_per_step() == (7, 2), (
        "the convolution and its copy, of three marks and four ops"
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def test_the_light_pass_leaves_out_layer_marks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "SLOWED", 0.0)
    spec = RunSpec(workload="mine", phase="infer", device="cpu", kind="profiled")
    with Session(spec, OwnModel(module=network(), inputs=torch.ones(4, 8), batch=4)).setup() as session:
        profile = profiling.profiled(session, [0.001] * 6, tmp_path / "trace.json")
    assert profile.light is not None
    events, in_ops = walk.breakdown(read(tmp_path / "trace.json").events).events_per_step()
    assert profile.light.events == events - 3, "the network, its layer and its activation"
    assert profile.light.events_in_ops == in_ops > 0
    assert len(profile.light.plain_step_s) == 2 * len(profile.light.step_s) == 2 * len(profile.step_s)


def test_steps_that_are_hardly_slowed_need_no_light_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SLOWED", 1e9)
    spec = RunSpec(workload="mine", phase="infer", device="cpu", kind="profiled")
    with Session(spec, OwnModel(module=network(), inputs=torch.ones(4, 8), batch=4)).setup() as session:
        assert profiling.profiled(session, [0.001] * 6).light is None


def test_free_running_steps_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    monkeypatch.setattr(profiling, "wait", waits.append)
    spec = RunSpec(workload="mine", phase="infer", device="cpu", kind="profiled")
    with Session(spec, OwnModel(module=network(), inputs=torch.ones(4, 8), batch=4)).setup() as session:
        free = profiling._free_running(session)
        assert waits == []
        plain = profiling._plain(session)
    assert len(waits) == len(plain)
    assert min(len(free), len(plain)) >= profiling.MIN_STEPS


def judged(profile: Profile) -> limits.Verdict:
    return limits.judge(RunGroup("memnet", "train", "laptop", [record_of("memnet", profile=profile)]))


def test_the_roofline_divides_by_the_unprofiled_step_on_a_cpu_too() -> None:
    """1e9 FLOP in a step of 1 s, which the profiler made 2 s: a hundredth of 1e11 FLOP/s, not half of that."""
    rows = [op_row("MatMul", 0.9, flop=1e9, bytes=1e6)]
    found = judged(slowed(rows=rows, ceiling_flop_per_s=1e11, ceiling_bytes_per_s=1e10))
    assert found.of_peak == pytest.approx(0.01)
    only_a_trace = judged(slowed(rows=rows, plain_step_s=[], ceiling_flop_per_s=1e11, ceiling_bytes_per_s=1e10))
    assert only_a_trace.of_peak == pytest.approx(0.005), "no other step is known"


def test_data_that_the_profiler_does_not_slow_is_a_share_of_the_unprofiled_step() -> None:
    """An emulator takes 0.6 s of each step, with the profiler or without; by the profiled 2 s it would be 30 %."""
    found = judged(slowed(data_s=0.6))
    assert found.data == pytest.approx(0.6)
    assert found.name == "data-bound"
    assert judged(slowed(data_s=1.5)).data == 1.0


def test_torch_ops_that_prepare_data_have_their_part_of_the_profilers_time() -> None:
    """0.9 s in ops are 0.61 s without the profiler: at least 0.29 s of each 0.9. One of five calls: at most 0.2 s."""
    rows = [op_row("MatMul", 0.6, calls=4.0), op_row("Add", 0.3, phase="data")]
    profile = slowed(rows=rows, light=LIGHT, data_s=0.5)
    least = 0.3 * 0.29 / 0.9
    assert judged(profile).data == pytest.approx(0.5 - (least + 0.2) / 2)
    assert judged(replace(profile, data_s=0.01)).data == 0.0, "never below nothing"
    assert judged(replace(profile, data_s=None)).data == pytest.approx(0.61 / 3), "an older record has its ops alone"


def test_where_plain_steps_took_longer_data_is_a_share_of_the_profiled_ones() -> None:
    assert judged(slowed(plain_step_s=[2.5] * 6, data_s=0.6)).data == pytest.approx(0.3)
