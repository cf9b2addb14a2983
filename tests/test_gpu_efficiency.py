"""Whether the host keeps the GPU busy: shares that add up, and the published table beside ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_records import GPU, op_row, profile_of, record_of

from fathom import published
from fathom.analysis.questions import gpu_efficiency
from fathom.analysis.selection import outside
from fathom.core.record import ApiCall, GpuTime, Record, Sections


def gpu_time(**changes: Any) -> GpuTime:
    """A profiled step of 10 ms: 3 busy, 6 starved, 1 idle otherwise; 5 in API calls."""
    api = [
        ApiCall(name="cudaDeviceSynchronize", calls=1, cpu_s=0.002),
        ApiCall(name="cudaLaunchKernel", calls=90, cpu_s=0.0018),
        ApiCall(name="cudaMalloc", calls=2, cpu_s=0.0009),
        ApiCall(name="cudaMemcpyAsync", calls=1, cpu_s=0.0003),
    ]
    fields: dict[str, Any] = {
        "span_s": 0.010, "kernel_s": 0.0029, "memcpy_s": 0.0001, "memset_s": 0.0, "busy_s": 0.003,
        "starved_s": 0.006, "gaps": 90.0, "longest_gap_s": 0.001, "activities": 91.0, "api": api,
    }  # fmt: skip
    return GpuTime(**{**fields, **changes})


def on_gpu(workload: str = "autoenc", **changes: Any) -> Record:
    rows, gpu = [op_row("MatMul", 0.003, place=GPU)], gpu_time(**changes)
    profile = profile_of(rows, gpu=gpu, step_s=[0.0096] * 6, plain_step_s=[0.006] * 6)
    return record_of(workload, place=GPU, profile=profile)


def step_row(record: Record) -> dict[str, Any]:
    table = gpu_efficiency.analyse([record]).tables[0]
    return dict(zip(table.columns, table.rows[0], strict=True))


def program(workload: str = "autoenc") -> Record:
    return record_of(
        workload,
        place=GPU,
        spec={"kind": "program", "steps": 8},
        step_s=[],
        program=gpu_time(),
        sections=Sections(context_s=0.05),
    )


def test_a_steps_idle_time_is_that_of_the_plain_step() -> None:
    row = step_row(on_gpu())
    assert row["busy (%)"] == pytest.approx(50)  # 3 of the 6 ms it takes without the profiler
    assert row["starved (%)"] == pytest.approx(50 * 6 / 7)  # of what is idle, as in the profiled step
    assert (row["kernels and copies"], row["gaps"], row["verdict"]) == (91, 90, "GPU-bound")
    assert row["kernels/API"] == pytest.approx(0.0029 / 0.005)
    (chart,) = gpu_efficiency.analyse([on_gpu()]).charts
    assert sum(series.y[0] for series in chart.series) == pytest.approx(100)


@pytest.mark.parametrize(("step_s", "verdict"), [(0.0058, "GPU-bound"), (0.0062, "neither"), (0.0080, "host-bound")])
def test_a_step_is_bound_by_what_takes_half_of_it(step_s: float, verdict: str) -> None:
    record = on_gpu()
    assert record.profile is not None
    finding = gpu_efficiency.analyse([replace(record, profile=replace(record.profile, plain_step_s=[step_s] * 6))])
    table = finding.tables[0]
    assert table.rows[0][table.columns.index("verdict")] == verdict
    assert ("half of the step or more in autoenc train" in finding.summary) == (verdict == "host-bound")


def free_running(**changes: Any) -> Record:
    """A step of 6 ms that is waited for, and of 4 ms that is not."""
    record = on_gpu(**changes)
    assert record.profile is not None
    return replace(record, profile=replace(record.profile, free_step_s=[0.004] * 6))


def test_busy_is_of_the_step_that_is_not_waited_for() -> None:
    row = step_row(free_running(tail_s=0.001))
    assert (row["step (ms)"], row["busy (%)"]) == pytest.approx((4, 75))
    assert row["profiled/unprofiled"] == pytest.approx(1.6), "both of these are waited for"
    assert row["starved (%)"] == pytest.approx(25), "all that is idle, but for the wait at the end of a profiled step"
    assert step_row(free_running())["starved (%)"] == pytest.approx(25 * 6 / 7), "how long that is was not recorded"


def test_steps_that_were_waited_for_have_a_note() -> None:
    assert any("waited for one by one" in note for note in gpu_efficiency.analyse([on_gpu()]).notes)
    assert not any("waited for one by one" in note for note in gpu_efficiency.analyse([free_running()]).notes)


def test_other_questions_take_the_idle_time_of_free_running_steps() -> None:
    profile = free_running().profile
    assert profile is not None
    assert outside(profile) == pytest.approx(0.001)


def test_the_profilers_slowdown_and_the_share_of_launch_calls_stand_beside_a_step() -> None:
    row = step_row(on_gpu())
    assert row["profiled/unprofiled"] == pytest.approx(1.6)
    assert row["launching (%)"] == pytest.approx(18)  # 1.8 of the profiled 10 ms, and not of the plain 6


def test_a_gap_longer_than_the_step_is_the_profilers_and_not_shown() -> None:
    assert step_row(on_gpu())["longest gap (ms)"] == pytest.approx(1)
    assert step_row(on_gpu(longest_gap_s=0.007))["longest gap (ms)"] is None


def test_a_program_counts_its_context_as_api_time_beside_table_1() -> None:
    finding = gpu_efficiency.analyse([program()])
    table, calls = finding.tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["kernels/API"] == pytest.approx(0.0029 / 0.055)
    assert row["published"] == published.gpu_efficiency()["autoenc"].kernel_over_api_time == 0.0010
    assert row["copies (% of kernels and copies)"] == pytest.approx(100 * 0.0001 / 0.003)
    assert row["steps"] == 10  # two of them warm-up
    assert calls.rows[0][2:4] == ["context creation", "context"]
    (chart,) = finding.charts
    shares = {series.name: series.y[0] for series in chart.series}
    assert shares["launches"] == pytest.approx(100 * 0.0018 / 0.055)
    assert sum(shares.values()) == pytest.approx(100)


def test_a_program_run_is_no_run_for_other_questions() -> None:
    from fathom.analysis.questions import phases

    finding = phases.analyse([program()])
    assert finding.summary == "Not measured. Run `fathom study`."
    assert finding.notes == []


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("cudaLaunchKernelExC", "launches"),
        ("cudaEventSynchronize", "waiting"),
        ("cudaFree", "memory"),
        ("cuModuleLoadData", "code loading"),
        ("cudaMemsetAsync", "copies"),
        ("cudaGetErrorString", "other"),
    ],
)
def test_calls_have_kinds(call: str, kind: str) -> None:
    assert gpu_efficiency.kind_of(call) == kind
