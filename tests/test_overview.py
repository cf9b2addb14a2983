"""The first lines about a profiled model, and what it is advised: numbers from the record, the largest gain first."""

from __future__ import annotations

from typing import Any

import pytest
from sample_records import GPU, op_row, profile_of, record_of

from fathom.analysis.actions import LEAST_GAIN, MOST, actions
from fathom.analysis.overview import overview
from fathom.core.depth import Collective, GpuSplit, TraceDepth
from fathom.core.record import ApiCall, GpuTime, Kernel, Record
from fathom.core.traced import Memory, Sources, Wait
from fathom.trace.host import DATA, OPS, WAITING


def gpu_time(span_s: float, busy_s: float, starved_s: float, *api: ApiCall, doing: str = OPS) -> GpuTime:
    return GpuTime(
        starved_in={doing: starved_s},
        span_s=span_s, kernel_s=busy_s, memcpy_s=0.0, memset_s=0.0, busy_s=busy_s, starved_s=starved_s, gaps=10.0,
        longest_gap_s=1e-4, activities=100.0, api=list(api), tail_s=0.0,
    )  # fmt: skip


def on_gpu(*rows: Any, outside_s: float = 0.0, gpu: GpuTime | None = None, **changes: Any) -> Record:
    found = profile_of(list(rows), outside_s=outside_s, gpu=gpu, **changes)
    return record_of("mine", profile=found, place=GPU)


def test_the_overview_has_rates_over_the_whole_step_against_the_ceilings() -> None:
    rows = [
        op_row("MatMul", 0.06, place=GPU, flop=6e12, bytes=3e9),
        op_row("MatMul", 0.02, place=GPU, flop=12e12, bytes=1e9, phase="backward"),
        op_row("Other", 0.01, place=GPU, flop=None, bytes=None),
    ]
    record = on_gpu(*rows, outside_s=0.01, ceiling_flop_per_s=600e12, ceiling_bytes_per_s=4e12)
    found = overview(record)
    assert found.step_s == pytest.approx(0.1)
    assert found.flop_per_s == pytest.approx(180e12)
    assert found.of_compute == pytest.approx(0.3)
    assert found.of_memory == pytest.approx(0.01)
    assert found.busy == pytest.approx(0.9)
    assert found.counted == pytest.approx(80 / 90)
    assert found.forward_macs == pytest.approx(3e12 / (record.items_per_step or 1))
    words = "\n".join(found.lines(record))
    assert "18 TFLOP a step (88.9 % of the op time is counted)" in words
    assert "at least 180 TFLOP/s, 30 % of a measured matrix product" in words
    assert "GPU busy 90 % of the step" in words


def test_a_product_without_a_count_leaves_the_macs_unknown() -> None:
    rows = [op_row("MatMul", 0.1, flop=6e12), op_row("SparseMatMul", 0.1, flop=None)]
    assert overview(record_of("mine", profile=profile_of(rows))).forward_macs is None


def test_a_fourier_transform_is_no_product() -> None:
    rows = [op_row("MatMul", 1.0, flop=4e6, phase="forward"), op_row("FFT", 1.0, flop=9e9, phase="forward")]
    found = overview(record_of("mine", profile=profile_of(rows)))
    assert found.forward_macs == pytest.approx(2e6 / 100)
    transform, product = (op_row(kind, 0.5, place=GPU, dtypes="float") for kind in ("FFT", "MatMul"))
    advised = [each for each in actions(on_gpu(transform, product, gpu=gpu_time(1, 1, 0))) if "TF32" in each.what]
    assert [each.gain for each in advised] == pytest.approx([0.5])


def test_an_idle_gpu_that_waits_for_launches_is_advised_to_compile() -> None:
    gpu = gpu_time(0.10, 0.03, 0.063)
    (first, *_) = actions(on_gpu(op_row("MatMul", 0.03, place=GPU), outside_s=0.07, gpu=gpu))
    assert first.gain == pytest.approx(0.7 * 0.9)
    assert (
        first.evidence
        == "70 % of the step the GPU is idle, 90 % of that while the host is in ops and 0 % while it is outside ops"
    )
    assert "CUDA graphs" in first.what


def test_actions_are_ranked_by_their_gain_and_at_most_three() -> None:
    rows = [
        op_row("MatMul", 0.4, place=GPU, dtypes="float float"),
        op_row("Mul", 0.3, place=GPU, calls=200.0),
        *(op_row("ApplyAdam", 0.01, place=GPU) for _ in range(20)),
    ]
    found = actions(on_gpu(*rows, outside_s=0.1, gpu=gpu_time(1.0, 0.9, 0.1)))
    assert [round(action.gain, 3) for action in found] == [0.4, 0.3, 0.2]
    assert len(found) == MOST
    assert "bf16" in found[0].what
    assert "torch.compile" in found[1].what


def test_what_gains_next_to_nothing_is_not_advised() -> None:
    record = on_gpu(op_row("MatMul", 1.0, place=GPU, dtypes="c10::BFloat16 c10::BFloat16"), gpu=gpu_time(1, 1, 0))
    assert actions(record) == []
    assert LEAST_GAIN > 0


def test_a_fused_optimizer_is_not_advised_again() -> None:
    rows = [op_row("ApplyAdamW", 0.02, place=GPU, op="aten::_fused_adamw_") for _ in range(20)]
    assert actions(on_gpu(*rows, gpu=gpu_time(0.4, 0.4, 0))) == []


def test_attention_written_out_is_advised_to_be_one_op() -> None:
    rows = [
        op_row("Softmax", 0.3, place=GPU, shapes="[8, 12, 512, 512] []", layer="block.attention"),
        op_row("MatMul", 0.3, place=GPU, op="aten::bmm", layer="block.attention", dtypes="c10::Half c10::Half"),
        op_row("MatMul", 0.4, place=GPU, op="aten::addmm", layer="block.mlp", dtypes="c10::Half c10::Half"),
    ]
    found = [action for action in actions(on_gpu(*rows, gpu=gpu_time(1, 1, 0))) if "attention" in action.what]
    assert [action.gain for action in found] == [pytest.approx(0.6)]


def test_copies_from_the_host_are_advised_to_be_pinned() -> None:
    copy = Kernel(name="Memcpy HtoD (Pageable -> Device)", kind="memcpy", op="aten::copy_", type="Copy", calls=2,
                  device_s=0.2)  # fmt: skip
    row = op_row("Copy", 0.2, place=GPU, op="aten::copy_")
    found = actions(on_gpu(row, op_row("Conv2D", 0.8, place=GPU), kernels=[copy], gpu=gpu_time(1, 1, 0)))
    assert ["pinned" in action.what for action in found] == [True]


@pytest.mark.parametrize(
    ("shapes", "seconds", "advised"),
    [
        ("[8192, 768] [768, 50257]", 0.4, True),  # GPT-2's vocabulary
        ("[8192, 768] [768, 50304]", 0.4, False),
        ("[8192, 768] [768, 50257]", 0.015, False),  # fast all the same: 0.8 of the measured rate
        ("[8192, 30] [30, 768]", 0.4, False),  # small: padding would not help
    ],
)
def test_products_of_an_odd_size_are_advised_to_be_padded(shapes: str, seconds: float, advised: bool) -> None:
    """The gain is what is above the measured rate of a product."""
    product = op_row("MatMul", seconds, place=GPU, shapes=shapes, dtypes="c10::BFloat16 c10::BFloat16", flop=1.2e12)
    rest = op_row("Conv2D", 1 - seconds, place=GPU, dtypes="c10::BFloat16 c10::BFloat16")
    record = on_gpu(product, rest, gpu=gpu_time(1, 1, 0), ceiling_flop_per_s=1e14)
    found = [action for action in actions(record) if "pad it" in action.what]
    assert len(found) == advised
    if advised:
        assert found[0].gain == pytest.approx(seconds - 1.2e12 / 1e14)
        assert "a side of 50257, no multiple of 8, at 3 % of the measured rate" in found[0].evidence
        assert "to 50304 say" in found[0].what


def test_synchronisations_are_counted_but_not_the_asynchronous_copies() -> None:
    calls = [
        ApiCall(name="cudaMemcpyAsync", calls=50, cpu_s=0.1),
        ApiCall(name="cudaStreamSynchronize", calls=4, cpu_s=0.2),
    ]
    record = on_gpu(op_row("Conv2D", 0.5, place=GPU), outside_s=0.5, gpu=gpu_time(1.0, 0.5, 0.5, *calls, doing=WAITING))
    (found,) = [action for action in actions(record) if "keep values" in action.what]
    assert found.evidence.startswith("4 host synchronisations a step, most of their time in cudaStreamSynchronize")


def test_the_longest_synchronisation_is_named_by_op_and_line() -> None:
    calls = [ApiCall(name="cudaStreamSynchronize", calls=4, cpu_s=0.2)]
    wait = Wait(call="cudaStreamSynchronize", op="aten::item", line="train.py(3): step", calls=4, seconds=0.2)
    sources = Sources(lines=[], other_s=0.0, unknown_s=0.0, waits=[wait], exact=False)
    gpu = gpu_time(1.0, 0.5, 0.5, *calls, doing=WAITING)
    record = on_gpu(op_row("Conv2D", 0.5, place=GPU), outside_s=0.5, gpu=gpu, sources=sources)
    (found,) = [action for action in actions(record) if "keep values" in action.what]
    assert found.evidence.endswith("; the longest is of aten::item at train.py(3): step")


def test_the_peak_of_memory_is_told_with_what_holds_it() -> None:
    memory = Memory(device="cuda:0", step=0, times_s=[0.0], allocated=[2**30], peak_bytes=2**30, peak_s=0.0,
                    kinds={"activations": 3 * 2**28, "parameters": 2**28}, held=[])  # fmt: skip
    record = on_gpu(op_row("Conv2D", 1.0, place=GPU), memory=memory)
    lines = list(overview(record).lines(record))
    assert "peak memory 1 GiB on cuda:0: activations 75 %, parameters 25 %" in lines
    assert overview(record).peak_bytes == 2**30


def test_on_a_cpu_time_outside_ops_is_named() -> None:
    (found,) = actions(record_of("mine", profile=profile_of([op_row("MatMul", 0.6)], outside_s=0.4)))
    assert found.gain == pytest.approx(0.4)
    assert "outside ops" in found.evidence


def test_the_one_batch_of_a_users_module_needs_no_loader() -> None:
    profile = profile_of([op_row("MatMul", 0.6)], outside_s=0.4, data_s=0.1)
    (found,) = actions(record_of("my:make", profile=profile, spec={"source": "model", "preset": "own"}))
    assert str(found).startswith("40 % of the step is outside ops, in Python"), "that of a workload: 30 and 10 %"
    assert [each.gain for each in actions(record_of(profile=profile))] == pytest.approx([0.3, 0.1])


@pytest.mark.parametrize("op", ["Torch-Compiled Region: 0/0", "CompiledFunction"])
def test_a_module_that_is_compiled_already_is_not_advised_to_be(op: str) -> None:
    rows = [op_row("MatMul", 0.2), op_row("Other", 0.1, op=op), op_row("Relu", 0.3)]
    outside, left = actions(record_of("my:make", profile=profile_of(rows, outside_s=0.4)))
    assert outside.what.startswith("a larger batch")
    assert left.what.startswith("these in torch.compile, too")


def test_a_gpu_that_waits_for_data_is_not_advised_to_compile() -> None:
    gpu = gpu_time(1.0, 0.5, 0.5, doing=DATA)
    (found,) = actions(on_gpu(op_row("Conv2D", 0.5, place=GPU), outside_s=0.5, gpu=gpu))
    assert found.gain == pytest.approx(0.5)
    assert found.evidence == "50 % of the step the GPU waits for data"


def test_communication_that_nothing_hides_is_named() -> None:
    split = GpuSplit(
        span_s=1.0, computation_s=0.6, communication_s=0.5, exposed_communication_s=0.3, memory_s=0.0,
        exposed_memory_s=0.0, idle_s=0.1,
    )  # fmt: skip
    calls = Collective(name="all_reduce", group="", ranks="", size=8, seconds=[0.5], steps=[0], bytes=[None])
    depth = TraceDepth(steps=[split], collectives=[calls])
    half = {"dtypes": "BFloat16", "place": GPU}
    record = on_gpu(op_row("MatMul", 0.6, **half), op_row("AllReduce", 0.3, **half), outside_s=0.1, depth=depth)
    (found,) = actions(record)
    assert found.gain == pytest.approx(0.3)
    assert "most of it all_reduce" in found.evidence
    assert "GPU busy 90 % of the step, 30 % with communication alone" in "\n".join(overview(record).lines(record))


def test_attention_that_is_one_op_already_is_not_advised() -> None:
    """On a CPU with dropout it is computed by products and a softmax of its own."""
    rows = [
        op_row("Softmax", 0.3, shapes="[8, 12, 512, 512] []", layer="block"),
        op_row("MatMul", 0.3, op="aten::bmm", layer="block"),
        op_row("ScaledDotProductAttention", 0.1, op="aten::_scaled_dot_product_attention_math", layer="block"),
        op_row("MatMul", 0.3, op="aten::addmm", layer="mlp"),
    ]
    assert not [action for action in actions(on_gpu(*rows, gpu=gpu_time(1, 1, 0))) if "attention" in action.what]
