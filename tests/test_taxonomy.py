"""Op types: one for each torch op, the paper's names where it has them, and a page of the docs that lists them all.

Where the table is changed, write the page anew:

    PYTHONPATH=src python tests/test_taxonomy.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from traced_calls import RECENT

from fathom import published
from fathom.trace.taxonomy import GROUPS, IN_2016, TABLE, group_of, kernel_type, leaf_type, type_of

PAGE = Path(__file__).parents[1] / "docs" / "op-types.md"
INTRODUCTION = """\
# Op types

Every torch op has one op type, in one of the classes A to G of the [2016 paper's](figure-3.md) Fig. 3. The paper's
types are TensorFlow's names of that year; an op of today that is none of them has a type of its own, so that LayerNorm
is not called BatchNorm, nor GELU Relu. An op claims what runs inside it; for an op that is not listed, the ops inside
it are counted. A leaf op that is not listed is `Other`, in no class. In an optimizer's step every op is `Apply` with
the optimizer's name, such as ApplyAdam, in class F.

"In 2016" is the type of Fig. 3 that most of the work was in when one op of today was several: distances to a published
row, and only those, count it there. `Conv2DBackward` is split into the paper's Conv2DBackFilter and Conv2DBackInput.
Records of earlier versions keep the types that they were written with: `LSTM` and `Attention` (now RNN and
ScaledDotProductAttention), and wider BatchNorm, Relu, Tanh, CrossEntropy, Sum and Max.

How FLOP and bytes are counted is in [method.md](method.md); `tests/test_hand_counts.py` has a count by hand for each
type.

This page is written by `tests/test_taxonomy.py`, which compares it with the code.
"""


def page() -> str:
    printed = next(iter(published.op_percent().values()))
    lines = [INTRODUCTION]
    for letter, kinds in TABLE.items():
        lines += [
            f"## {letter}: {GROUPS[letter]}",
            "",
            "| op type | in Fig. 3 | in 2016 | torch ops |",
            "|---|---|---|---|",
        ]
        for kind, ops in kinds.items():
            shown = "yes" if kind in printed else ""
            lines.append(
                f"| {kind} | {shown} | {IN_2016.get(kind, '')} | {', '.join(f'`{op}`' for op in ops.split())} |"
            )
        lines.append("")
    return "\n".join(lines)


OPS = [op for kinds in TABLE.values() for ops in kinds.values() for op in ops.split()]


def test_the_page_lists_what_the_code_does() -> None:
    assert PAGE.read_text() == page(), "write it anew: PYTHONPATH=src python tests/test_taxonomy.py"


def test_every_op_has_one_type_and_is_one_of_torchs() -> None:
    assert [op for op, count in Counter(OPS).items() if count > 1] == []
    schemas = torch._C._jit_get_schemas_for_operator
    assert {op for op in OPS if not schemas(f"aten::{op}") and not schemas(f"aten::{op}_")} <= RECENT


@pytest.mark.parametrize(
    ("op", "kind", "letter"),
    [
        ("native_layer_norm", "LayerNorm", "C"),
        ("native_layer_norm_backward", "LayerNormGrad", "C"),
        ("native_group_norm", "GroupNorm", "C"),
        ("_fused_rms_norm", "RMSNorm", "C"),
        ("native_batch_norm", "BatchNorm", "C"),
        ("gelu", "GELU", "A"),
        ("gelu_backward", "GELUGrad", "A"),
        ("silu", "SiLU", "A"),
        ("sigmoid", "Sigmoid", "A"),
        ("relu_", "Relu", "A"),
        ("mse_loss", "MSELoss", "C"),
        ("_flash_attention_forward", "ScaledDotProductAttention", "B"),
        ("_efficient_attention_backward", "ScaledDotProductAttentionGrad", "B"),
        ("_scaled_mm", "ScaledMatMul", "B"),
        ("_grouped_mm", "GroupedMatMul", "B"),
        ("_sparse_mm", "SparseMatMul", "B"),
        ("_embedding_bag", "EmbeddingBag", "C"),
        ("scatter_reduce_", "Scatter", "G"),
        ("topk", "Sort", "C"),
        ("_fused_adamw_", "ApplyAdamW", "F"),
    ],
)
def test_ops_of_today_have_their_own_names_in_the_papers_classes(op: str, kind: str, letter: str) -> None:
    assert type_of(f"aten::{op}") == kind
    assert group_of(kind) == letter


def test_what_an_op_was_in_2016_is_a_column_of_the_figure() -> None:
    printed = next(iter(published.op_percent().values()))
    assert set(IN_2016.values()) <= set(printed)
    assert set(IN_2016) & set(printed) == set()
    assert {group_of(kind) for kind in IN_2016} <= set(GROUPS)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "LayerNorm"),
        ("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float>", "LayerNormGrad"),
        ("void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>", "Other"),
        ("void at::native::batch_norm_collect_statistics_kernel", "BatchNorm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", "GELU"),
        ("void at::native::vectorized_elementwise_kernel<4, GeluBackwardCUDAKernelImpl>", "GELUGrad"),
        ("void at::native::vectorized_elementwise_kernel<4, silu_kernel>", "SiLU"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "ScaledDotProductAttention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "ScaledDotProductAttentionGrad"),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80", "ScaledDotProductAttentionGrad"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "ScaledDotProductAttention"),
    ],
)
def test_kernels_have_the_names_of_their_ops(kernel: str, kind: str) -> None:
    assert kernel_type(kernel) == kind


def test_an_op_on_lists_has_the_type_of_the_op_on_one_tensor() -> None:
    assert type_of("aten::_foreach_sigmoid_") == "Sigmoid"
    assert type_of("aten::_foreach_mul_") == "Mul"
    assert type_of("aten::_foreach_norm") == "Sum"


def test_a_product_that_a_device_computes_whole_is_a_product() -> None:
    assert {leaf_type(f"aten::{op}") for op in ("linear", "matmul", "einsum")} == {"MatMul"}
    assert leaf_type("aten::scaled_dot_product_attention") == "ScaledDotProductAttention"
    assert leaf_type("aten::to") == "Shape"


if __name__ == "__main__":
    PAGE.write_text(page())
