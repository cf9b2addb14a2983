"""Op types: one for each torch op, the paper's names where it has them, and a page of the docs that lists them all.

Where the table is changed, write the page anew:

    PYTHONPATH=src python tests/test_taxonomy.py
"""

from __future__ import annotations

import os
import runpy
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch_functions
from torch.profiler import ProfilerActivity, profile
from traced_calls import RECENT

from fathom import published
from fathom.trace.taxonomy import (
    AUTOGRAD,
    COMPOSITES,
    FAMILIES,
    GROUPS,
    IN_2016,
    LIBRARIES,
    NAMED,
    NAMES,
    OTHER,
    TABLE,
    family_of,
    group_of,
    kernel_type,
    leaf_type,
    type_of,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "op-types.md"
SCRIPT = ROOT / "benchmarks" / "kernel_types.py"
TRACES = Path(os.environ.get("FATHOM_DATA", ROOT / "data")) / "traces"
INTRODUCTION = """\
# Op types

Every op has one op type, in one of the classes A to G of the [2016 paper's](figure-3.md) Fig. 3, or in H,
communication, which the paper did not have. The paper's types are TensorFlow's names of that year; an op of today that
is none of them has a type of its own, so that LayerNorm is not called BatchNorm, nor GELU Relu. Families put the types
together as one speaks of them today.

- An op of torch that is listed claims what runs inside it; for one that is not, the ops inside it are counted. The time
  that such an op keeps for itself has the type under [composites](#composites).
- An op of another library, and a kernel that no op launched, is typed [by its name](#by-name). A kernel of
  TorchInductor has the type of its op if it implements one beside indexing (`triton_poi_fused_gelu_view_12`), else it
  is FusedPointwise or FusedReduction; one of torch's elementwise kernels has the type of its functor.
- CompiledGraph is a whole network that a device runs as one, as MTIA does: of all classes, so in none.
- What no rule knows is `Other`, in no class. At most 5 % of kernel time may be, in every trace that the
  [table](../benchmarks/kernel_types.py) is made of.
- In an optimizer's step every op is `Apply` with the optimizer's name, such as ApplyAdam, in class F.

"In 2016" is the type of Fig. 3 that most of the work was in when one op of today was several: distances to a published
row, and only those, count it there. `Conv2DBackward` is split into the paper's Conv2DBackFilter and Conv2DBackInput.
Records of earlier versions keep the types that they were written with: `LSTM` and `Attention` (now RNN and
ScaledDotProductAttention), wider BatchNorm, Relu, Tanh, CrossEntropy, Sum, Max, Gather and Scatter.

How FLOP and bytes are counted is in [method.md](method.md); `tests/test_hand_counts.py` has a count by hand for each
type of torch's ops.

This page is written by `tests/test_taxonomy.py`, which compares it with the code.
"""


def page() -> str:
    lines = [INTRODUCTION]
    for letter in GROUPS:
        lines += [f"## {letter}: {GROUPS[letter]}", "", *_types(letter), ""]
    lines += ["## Families", "", "| family | op types |", "|---|---|"]
    lines += [f"| {family} | {', '.join(kinds.split())} |" for family, kinds in FAMILIES.items()]
    lines += ["| optimizer | Apply and the optimizer's name |", "| other | Other |", ""]
    lines += ["## Composites", "", "| op type of their own time | torch ops |", "|---|---|"]
    lines += [f"| {kind} | {_coded(ops)} |" for kind, ops in COMPOSITES.items()]
    lines += ["", "## By name", ""]
    lines += [f"Libraries whose ops are typed although other ops run inside them: {_coded(' '.join(LIBRARIES))}.", ""]
    lines += ["In this order, the first regular expression that a name in lower case contains counts.", ""]
    lines += ["| op type | names |", "|---|---|", *(f"| {kind} | {_coded(words)} |" for kind, words in NAMES), ""]
    return "\n".join(lines)


def _types(letter: str) -> Iterator[str]:
    printed = next(iter(published.op_percent().values()))
    yield from ("| op type | in Fig. 3 | in 2016 | torch ops |", "|---|---|---|---|")
    for kind in ALL_TYPES[letter]:
        shown = "yes" if kind in printed else ""
        yield f"| {kind} | {shown} | {IN_2016.get(kind, '')} | {_coded(TABLE.get(letter, {}).get(kind, ''))} |"


def _coded(words: str) -> str:
    """As code; the bar would end the cell of a table."""
    return ", ".join(f"`{word}`".replace("|", "\\|") for word in words.split()) or "by name"


OPS = [op for kinds in TABLE.values() for ops in kinds.values() for op in ops.split()]
OPS += [op for ops in COMPOSITES.values() for op in ops.split()]
ALL_TYPES = {letter: [*TABLE.get(letter, {}), *NAMED.get(letter, "").split()] for letter in GROUPS}


def examples(file: str) -> list[tuple[str, str]]:
    """Op type and name, of the lines of a file."""
    lines = (Path(__file__).parent / file).read_text().splitlines()
    return [(kind, name) for kind, _, name in (line.partition("|") for line in lines)]


def test_the_page_lists_what_the_code_does() -> None:
    assert PAGE.read_text() == page(), "write it anew: PYTHONPATH=src python tests/test_taxonomy.py"


GONE = {"qr", "cholesky"}  # of torch 2.15: traces of older versions have them
GONE |= {op for kind, ops in [*TABLE["D"].items(), *COMPOSITES.items()] if "Back" in kind for op in ops.split()}


def test_every_op_has_one_type_and_is_one_of_torchs() -> None:
    assert [op for op, count in Counter(OPS).items() if count > 1] == []
    schemas = torch._C._jit_get_schemas_for_operator
    assert {op for op in OPS if not schemas(f"aten::{op}") and not schemas(f"aten::{op}_")} <= RECENT | GONE


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
        ("void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>", "Normalization"),
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


@pytest.mark.parametrize(("kind", "name"), examples("kernel_names.txt"))
def test_kernels_of_libraries_are_typed_by_name(kind: str, name: str) -> None:
    assert kernel_type(name) == kind


@pytest.mark.parametrize(("kind", "op"), examples("library_ops.txt"))
def test_ops_of_libraries_are_typed_by_name(kind: str, op: str) -> None:
    assert type_of(op) == kind
    assert leaf_type(op) == kind


def test_an_op_that_holds_others_leaves_them_their_types() -> None:
    """What a serving engine wraps is of many types; an unknown library's op is typed only where nothing is inside."""
    for op in ("vllm::unified_attention_with_output", "vllm::moe_forward", "mine::attention_block", "FlashAttnFunc"):
        assert type_of(op) is None
        assert leaf_type(op) not in (None, OTHER)
    assert leaf_type("CompiledFunctionBackward") == AUTOGRAD
    assert leaf_type("mine::step") == OTHER


def test_every_type_has_a_class_and_a_family() -> None:
    kinds = {kind for kinds in ALL_TYPES.values() for kind in kinds}
    assert {kind for kind, _ in NAMES} - kinds == {"CompiledGraph"}  # a whole network: of all classes, so of none
    assert set(COMPOSITES) <= kinds
    assert {kind for kind in LIBRARIES.values() if kind} <= kinds
    assert [kind for kind in kinds if family_of(kind) == "other"] == []
    assert all(group_of(kind) == letter for letter, each in ALL_TYPES.items() for kind in each)
    grouped = [kind for kinds in FAMILIES.values() for kind in kinds.split()]
    assert [kind for kind, count in Counter(grouped).items() if count > 1] == []
    assert set(grouped) <= kinds | {"LSTM", "Attention", AUTOGRAD, "CompiledGraph"}
    assert (family_of("ApplyLion"), family_of("AllReduce"), family_of("Other")) == (
        "optimizer", "communication", "other",
    )  # fmt: skip
    assert (group_of("AllReduce"), group_of("Other")) == ("H", "other")


def test_no_op_of_a_common_function_is_without_a_type() -> None:
    """The forward and the backward pass of more than 200 calls, among them what the first version did not know."""
    assert len(torch_functions.CALLS) > 200
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU]) as found:
        warnings.simplefilter("ignore")
        for call in torch_functions.CALLS:
            torch_functions.run(call)
    names = {event.name for event in found.events()}
    assert len(names) > 600
    assert sorted(name for name in names if (type_of(name) or leaf_type(name)) == OTHER) == []


def test_fused_kernels_are_what_their_ops_are() -> None:
    assert kernel_type("triton_poi_fused__to_copy_add_clone_view_3") == "Add"
    assert kernel_type("triton_poi_fused_add_unheard_of_3") == "FusedPointwise"
    assert kernel_type("triton_poi_fused_0") == "FusedPointwise"
    assert kernel_type("cpp_fused_add_sum_1") == "FusedReduction"


@pytest.mark.realdata
@pytest.mark.skipif(not TRACES.is_dir(), reason="no traces below FATHOM_DATA")
def test_at_most_5_percent_of_the_kernel_time_of_a_trace_is_untyped() -> None:
    script = runpy.run_path(str(SCRIPT))
    found = {path.name: script["kernel_us"](path) for path in script["traces"](TRACES)}
    shares = {name: script["share_by_type"](each).get(OTHER, 0.0) for name, each in found.items() if sum(each.values())}
    assert shares
    assert {name: share for name, share in shares.items() if share > script["MOST_UNTYPED"]} == {}


if __name__ == "__main__":
    PAGE.write_text(page())


@pytest.mark.parametrize(
    "op", ["fused_all_gather_matmul", "fused_matmul_reduce_scatter", "fused_all_gather_scaled_matmul"]
)
def test_products_beside_communication_are_counted_by_themselves(op: str) -> None:
    assert type_of(f"symm_mem::{op}") is None


def test_compiled_cpu_kernels_are_ops_where_their_profile_is_switched_on() -> None:
    assert leaf_type("graph_0_cpp_fused_add_mul_0") == "FusedPointwise"


@pytest.mark.parametrize(
    ("op", "kind"),
    [("quantized_lstm", "RNN"), ("quantized_max_pool1d", "MaxPool"), ("_sparse_softmax_backward_data", "Softmax")],
)
def test_names_that_patterns_would_mistake_are_in_the_table(op: str, kind: str) -> None:
    assert type_of(f"aten::{op}") == kind
