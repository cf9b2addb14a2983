"""Traces of other years, vendors and tools: what is genuine is read, what is not read is told."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trace_events import event

from fathom.core.errors import DataError
from fathom.trace import walk
from fathom.trace.event import launch_args
from fathom.trace.profile import from_trace
from fathom.trace.reader import BYTE_ORDER_MARK, MENDED, Trace, mend, read


def op(name: str, ts: float, dur: float, cat: str | None = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def written(folder: Path, events: list[Any], *, mark: bytes = b"", **more: Any) -> Path:
    path = folder / "trace.json"
    path.write_bytes(mark + json.dumps({**more, "traceEvents": events}).encode())
    return path


def trace_of(folder: Path, *events: Any) -> Trace:
    return read(written(folder, list(events)))


def test_categories_of_2021_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [
            op("ProfilerStep#5", 0, 100, "Operator"),
            op("aten::mm", 10, 20, "Operator"),
            op("cudaLaunchKernel", 12, 5, "Runtime", args={"correlation": 7}),
            op("MmBackward", 40, 30, "Operator"),
            op("aten::mm", 45, 20, "Operator"),
            op("cudaLaunchKernel", 50, 5, "Runtime", args={"correlation": 8}),
            op("volta_sgemm", 30, 15, "Kernel", args={"correlation": 7}),
            op("volta_sgemm", 70, 10, "Kernel", args={"correlation": 8}),
            op("Memcpy HtoD", 85, 5, "Memcpy", args={"correlation": 9}),
            op("Optimizer.step#SGD.step", 90, 10, "Operator"),
        ],
    )
    record = from_trace(path)
    assert record.profile is not None
    rows = {(row.op, row.phase): row.device_s for row in record.profile.rows if row.device_s}
    assert rows == pytest.approx(
        {("aten::mm", "forward"): 15e-6, ("aten::mm", "backward"): 10e-6, ("Memcpy HtoD", "other"): 5e-6}
    )
    assert record.spec.phase == "train"


@pytest.mark.parametrize("cat", ["xpu_runtime", "mtia_runtime", "hip_runtime", "privateuse1_runtime"])
def test_launches_of_other_vendors_belong_to_their_ops(tmp_path: Path, cat: str) -> None:
    trace = trace_of(
        tmp_path,
        op("aten::mm", 0, 20),
        op("launch", 5, 5, cat, args={"correlation": 3}),
        op("gemm", 30, 10, "kernel", args={"correlation": 3}),
    )
    (row,) = walk.breakdown(trace.events).rows()
    assert row.op == "aten::mm"
    assert row.device_s == pytest.approx(10e-6)


def test_every_program_and_copy_of_mtia_is_work_and_its_waits_are_not(tmp_path: Path) -> None:
    """A program has the name that its user gave it, here that of a torch op; pe_exe was launched before the trace."""
    path = written(
        tmp_path,
        [
            op("aten::mm", 0, 20),
            op("runFunction - job_prep_and_submit_for_execution", 25, 5, "mtia_runtime", args={"correlation": 3}),
            op("pe_exe", 10, 30, "mtia_ccp_events"),
            op("softmax", 60, 40, "mtia_ccp_events", args={"correlation": 3}),
            op("dma_request", 50, 5, "mtia_ccp_events"),
            op("event_wait", 0, 90, "mtia_ccp_events"),
            op("event_record", 95, 1, "mtia_ccp_events"),
        ],
    )
    record = from_trace(path)
    assert record.profile is not None
    assert record.profile.gpu is not None
    assert record.profile.gpu.busy_s == pytest.approx(75e-6)
    kernels = {(kernel.name, kernel.type): kernel.device_s for kernel in record.profile.kernels}
    assert kernels == pytest.approx(
        {
            ("MTIA program", "CompiledGraph"): 30e-6,
            ("MTIA program softmax", "CompiledGraph"): 40e-6,
            ("dma_request", "Copy"): 5e-6,
        }
    )
    assert not [note for note in record.notes if "not read" in note]


def test_a_trace_without_cpu_events_is_read(tmp_path: Path) -> None:
    record = from_trace(written(tmp_path, [op("gemm", 10, 30, "kernel"), op("gemm", 50, 10, "kernel")]))
    assert record.profile is not None
    assert record.profile.gpu is not None
    assert record.profile.gpu.busy_s == pytest.approx(40e-6)
    assert record.profile.gpu.span_s == pytest.approx(50e-6)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, [op("aten::mm", 0, 5)], mark=BYTE_ORDER_MARK)).events) == 1


@pytest.mark.parametrize(
    ("name", "read_as"),
    [
        (b'a "b"', 'a "b"'),  # as torch 2.13 writes record_function('a "b"')
        (rb"C:\new\a_library\m.py(3): f", r"C:\new\a_library\m.py(3): f"),  # as torch 2.0 does on Windows
        (b"two\nlines\x07", "two lines "),
        (b"no text \xff", "no text \ufffd"),
        (rb"escaped \"a\" \u00e9, and \x", 'escaped "a" \u00e9, and \\x'),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_names_that_make_invalid_json_are_mended_and_told(
    tmp_path: Path, name: bytes, read_as: str, packed: bool
) -> None:
    path = tmp_path / "trace.json"
    one = b'{"ph": "X", "cat": "user_annotation", "name": "%s", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {}}'
    two = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5, "args": {"x": NaN}}'
    text = b'{"traceEvents": [' + one % name + b",\n" + two + b"]}"
    path.write_bytes(gzip.compress(text) if packed else text)
    trace = read(path)
    assert [each.name for each in trace.events] == [read_as, "aten::mm"]
    assert trace.notes == [MENDED]
    mend(path)
    assert read(path).notes == []
    assert [each.name for each in read(path).events] == [read_as, "aten::mm"]


def test_a_file_that_is_cut_off_is_refused_as_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, [op("aten::mm", 0, 5)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="truncated"):
        read(path)


def test_a_null_category_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, op("aten::mm", 0, 5), op("what", 0, 5, None))
    assert [each.name for each in trace.events] == ["aten::mm"]
    assert trace.notes == ["1 events of category none not read"]


def test_a_category_that_nobody_knows_is_told(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, op("aten::mm", 0, 5), *[op("x", 0, 5, "npu_kernel")] * 3, op("t", 0, 9, "Trace"))
    assert trace.notes == ["3 events of category npu_kernel not read"]


@pytest.mark.parametrize(("written_as", "meant"), [("17", 17), (17, 17), (17.5, -1), ([17], -1), (None, -1)])
def test_a_correlation_id_may_be_a_string(tmp_path: Path, written_as: object, meant: int) -> None:
    trace = trace_of(tmp_path, op("k", 0, 5, "kernel", args={"correlation": written_as}))
    assert launch_args(trace.events[0]).correlation == meant


@pytest.mark.parametrize("lacking", [{"ts": None}, {"dur": None}, {"dur": -1}, {"ts": 1e300}, {"ts": "soon"}])
def test_an_event_without_a_time_is_left_out_and_told(tmp_path: Path, lacking: dict[str, Any]) -> None:
    broken = {**op("aten::add", 1, 2), **lacking}
    record = from_trace(written(tmp_path, [op("aten::mm", 1.7e15, 5), broken]))
    assert sum(record.step_s) == pytest.approx(5e-6)
    assert record.profile is not None
    assert "1 malformed events (no time, no duration, no event) not read" in record.profile.notes
    missing = {key: value for key, value in op("aten::add", 1, 2).items() if key not in lacking}
    assert trace_of(tmp_path, op("aten::mm", 0, 5), missing).malformed == 1


@pytest.mark.parametrize("entry", [7, "event", None, [1]])
def test_an_entry_that_is_no_event_is_left_out_and_told(tmp_path: Path, entry: object) -> None:
    assert trace_of(tmp_path, op("aten::mm", 0, 5), entry).malformed == 1


def test_the_first_profiler_of_torch_wrote_no_categories(tmp_path: Path) -> None:
    legacy = [
        {"name": "aten::mm", "ph": "X", "ts": 0, "dur": 9, "tid": 0, "pid": "CPU functions", "args": {}},
        {"name": "sgemm", "ph": "X", "ts": 4, "dur": 3, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    assert [each.cat for each in trace_of(tmp_path, *legacy).events] == ["cpu_op", "kernel"]


def test_nothing_to_read_is_refused_with_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no ops and no kernels; 2 events of category npu_op not read"):
        trace_of(tmp_path, op("x", 0, 5, "npu_op"), op("y", 5, 5, "npu_op"))


def test_steps_of_torchs_profiler_have_no_gaps_and_hold_all_gpu_work() -> None:
    """The host marks the end of a step before its kernels have run."""
    found = walk.breakdown(
        [
            event("ProfilerStep#1", 10, 20, "user_annotation"),
            event("ProfilerStep#2", 40, 20, "user_annotation"),
            event("earlier", 5, 10, "kernel", tid=9),
            event("between", 28, 15, "kernel", tid=9),
            event("late", 70, 30, "kernel", tid=9),
        ]
    )
    assert found.steps == [(5, 40), (40, 100)]
    assert sum(call.device_us for call in found.op_calls) == pytest.approx(10 + 15 + 30)
    assert found.typical_steps == {0, 1}


def test_kernels_of_an_unknown_op_are_its_own_and_typed_by_their_names() -> None:
    found = walk.breakdown(
        [
            event("ProfilerStep#1", 0, 100, "user_annotation"),
            event("mylib::exchange", 10, 40),
            event("an annotation", 12, 30, "user_annotation"),
            event("cudaLaunchKernel", 15, 5, "cuda_runtime", correlation=1),
            event("aten::mm", 25, 10),
            event("cudaLaunchKernel", 26, 5, "cuda_runtime", correlation=2),
            event("ampere_sgemm_128x64", 30, 20, "kernel", tid=9, correlation=1),
            event("ampere_sgemm_128x64", 60, 10, "kernel", tid=9, correlation=2),
        ]
    )
    rows = {(row.op, row.type): round(1e6 * (row.device_s or 0)) for row in found.rows() if row.device_s}
    assert rows == {("mylib::exchange", "MatMul"): 20, ("aten::mm", "MatMul"): 10}
    assert found.notes == []


def test_the_kernel_of_a_collective_tells_which_it_is() -> None:
    found = walk.breakdown(
        [
            event("record_param_comms", 10, 40),
            event("cudaLaunchKernel", 15, 5, "cuda_runtime", correlation=1),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30, 20, "kernel", tid=9,
                  correlation=1),
        ]
    )  # fmt: skip
    assert {(row.op, row.type) for row in found.rows() if row.device_s} == {("record_param_comms", "AllReduce")}


def test_rates_have_full_durations_and_shares_have_divided_time() -> None:
    found = walk.breakdown(
        [
            event("ProfilerStep#1", 0, 100, "user_annotation"),
            event("aten::mm", 0, 10),
            event("cudaLaunchKernel", 1, 2, "cuda_runtime", correlation=1),
            event("aten::add", 12, 10),
            event("cudaLaunchKernel", 13, 2, "cuda_runtime", correlation=2),
            event("gemm", 20, 40, "kernel", tid=8, correlation=1),
            event("add", 40, 20, "kernel", tid=9, correlation=2),
        ]
    )
    times = {row.op: (round(1e6 * (row.device_s or 0)), round(1e6 * (row.kernel_s or 0))) for row in found.rows()}
    assert times == {"aten::mm": (30, 40), "aten::add": (10, 20)}


def test_reading_a_trace_imports_no_torch(tmp_path: Path) -> None:
    path = written(tmp_path, [op("aten::mm", 0, 5)])
    code = "import sys; from pathlib import Path; from fathom.trace.profile import from_trace; "
    code += f"from_trace(Path({str(path)!r})); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
