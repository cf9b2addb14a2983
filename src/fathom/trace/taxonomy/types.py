"""The op type of an op, torch's or another library's, and the class of an op type."""

from __future__ import annotations

import re
from functools import cache

from fathom.trace.taxonomy.kernels import OTHER, is_compiled, kernel_type
from fathom.trace.taxonomy.names import named_type
from fathom.trace.taxonomy.torch_ops import COMPOSITES, TABLE

GROUPS = {
    "A": "Elementwise arithmetic",
    "B": "Matrix operations",
    "C": "Reduction and expansion",
    "D": "Convolution",
    "E": "Random sampling",
    "F": "Optimization",
    "G": "Data movement",
    "H": "Communication",  # the paper has A to G
}
UNKNOWN = "other"  # the class of ops that are in no class; the paper has none

# class -> op types that no op of torch's own has: ops of other libraries and kernels have them, by name
NAMED: dict[str, str] = {
    "A": "RotaryEmbedding Activation Elementwise FusedPointwise",
    "B": "PagedAttention LinearAttention",
    "C": "FusedReduction Normalization SelectiveScan MoERouting RoiAlign",
    "D": "Conv2DBackFilter Conv2DBackInput",
    "E": "TokenSampling",
    "F": "ApplyLAMB ApplyOptimizer",
    "G": "KVCacheWrite MoEPermute MemcpyHtoD MemcpyDtoH MemcpyDtoD",
    "H": "AllReduce AllGather ReduceScatter AllToAll SendRecv Broadcast Barrier Collective",
}

# op type -> the type of the paper's Fig. 3 that most of its work was in 2016, when one op of today was several: a
# recurrent layer or attention was matrix products with elementwise ops around them, an activation or a normalisation
# multiplications and additions. "LSTM" and "Attention" are names of older records.
IN_2016 = dict.fromkeys(("LSTM", "RNN", "Attention", "PagedAttention", "LinearAttention"), "MatMul")
IN_2016 |= dict.fromkeys(("ScaledDotProductAttention", "ScaledDotProductAttentionGrad"), "MatMul")
IN_2016 |= dict.fromkeys(("ScaledMatMul", "GroupedMatMul", "SparseMatMul"), "MatMul")
IN_2016 |= dict.fromkeys(("LSTMCell", "GRUCell", "GELU", "GELUGrad", "SiLU", "SiLUGrad", "GLU", "GLUGrad"), "Mul")
IN_2016 |= {f"{norm}{grad}": "Mul" for norm in ("LayerNorm", "GroupNorm", "RMSNorm") for grad in ("", "Grad")}
IN_2016 |= dict.fromkeys(("RotaryEmbedding", "FusedPointwise"), "Mul")
IN_2016 |= dict.fromkeys(("EmbeddingBag", "MSELoss", "HuberLoss", "MarginLoss", "KLDivLoss", "Scan"), "Sum")

# results of these types have another size or width than the operands
_NOT_PER_ELEMENT = {"Softmax", "Quantize", "Dequantize", "Complex"}
ELEMENTWISE_TYPES = frozenset(TABLE["A"]) - _NOT_PER_ELEMENT

# libraries whose ops are typed by name even where other ops run inside them -> the type of an op whose name does not
# tell it; "" where there is no such type
_BY_DEFAULT = {
    "Collective": "c10d c10d_functional _c10d_functional _c10d_functional_autograd",
    "ScaledDotProductAttention": "flash_attn flash_attn_2_cuda flash_attn_3 _vllm_fa2_C _vllm_fa3_C xformers_flash "
    "xformers_flash3 flash_mla",
    "AllToAll": "deep_ep mori",
    "ScaledMatMul": "deep_gemm",
    "SelectiveScan": "mamba_ssm",
    "": "symm_mem fsdp fbgemm torchvision torchaudio vllm _C _C_cache_ops _C_custom_ar _moe_C _rocm_C flashinfer "
    "sgl_kernel sglang trtllm xformers transformer_engine te_moe aiter quantized quantized_decomposed torchao "
    "bitsandbytes mkldnn mkl onednn torch_scatter torch_sparse pyg liger fla",
}
LIBRARIES = {name: kind for kind, names in _BY_DEFAULT.items() for name in names.split()}
_BACKENDS = ("nccl:", "gloo:", "ucc:", "mpi:")  # how torch.distributed names a collective: nccl:all_reduce
# ops of a library that hold others of different types: those are counted instead
_HOLDERS = (
    *("moe_forward", "unified_attention", "fused_experts", "fused_moe"),
    *("fused_all_gather_", "matmul_reduce_scatter"),  # products beside communication
)
# names that neither the patterns nor torch's own ops tell
_LIBRARY_OPS = {
    "quantized::int4mm_packed_weight_cpu": "ScaledMatMul",
    **{f"quantized::conv_transpose{rank}d": "Conv2D" for rank in (1, 2, 3)},
    "detach": "Reshape",  # as torch itself names it outside aten
}

_QUANTIZED = {"quantized", "_quantized", "onednn", "sparse"}
_LINEAR = re.compile(r"q?linear(?!_(un|pre)pack)")

_GROUP_OF = {kind: group for group, kinds in TABLE.items() for kind in kinds}
_GROUP_OF |= {kind: group for group, kinds in NAMED.items() for kind in kinds.split()}
_GROUP_OF |= {"LSTM": "B", "Attention": "B"}
_TYPE_OF = {op: kind for kinds in TABLE.values() for kind, ops in kinds.items() for op in ops.split()}
_COMPOSITE_OF = {op: kind for kind, ops in COMPOSITES.items() for op in ops.split()}

AUTOGRAD = "Autograd"  # its own bookkeeping around the ops of a backward pass
_SPELLING = {"RMSprop": "RMSProp"}  # as the paper's Fig. 3 has it


@cache
def type_of(op: str) -> str | None:
    """The op type of an op; None if the ops inside it are to be counted instead."""
    if op.startswith("aten::"):
        return _torch_type(op.removeprefix("aten::"))
    found = _LIBRARY_OPS.get(op.removesuffix("_"))
    known = op.partition("::")[0] in LIBRARIES or op.startswith(_BACKENDS) or op == "record_param_comms"
    return found or (_library_type(op) if known and not any(word in op for word in _HOLDERS) else None)


def _library_type(op: str) -> str | None:
    """By the op's name without its library: the fbgemm of fbgemm::cumsum is no matrix product."""
    library, _, name = op.rpartition("::")
    if LIBRARIES.get(library) == "Collective" or op.startswith(_BACKENDS):
        return named_type(op)
    if library in _QUANTIZED and _LINEAR.match(name):  # with or without an activation behind it
        return "ScaledMatMul"
    found = named_type(name) or _torch_type(name.removesuffix("_out")) or LIBRARIES.get(library) or None
    backward = found == "ScaledDotProductAttention" and "bwd" in name
    return "ScaledDotProductAttentionGrad" if backward else found


def _torch_type(name: str) -> str | None:
    single = name.removeprefix("_foreach_")  # an op on lists has the type of the op on one tensor
    names = (name, name.removesuffix("_"), single, single.removesuffix("_"))
    return next((_TYPE_OF[each] for each in names if each in _TYPE_OF), None)


@cache
def leaf_type(op: str) -> str:
    """The type of an op's own time where type_of has none: of a leaf, or of an op around others."""
    node = op.removesuffix("_copy").rstrip("0123456789").endswith("Backward")
    if node or op.startswith(("autograd::", "torch::autograd::")):
        return AUTOGRAD
    if op.startswith("triton_") or is_compiled(op):
        return kernel_type(op)
    composite = _COMPOSITE_OF.get(op.removeprefix("aten::").removesuffix("_"))
    return composite or type_of(op) or _library_type(op) or OTHER


@cache
def group_of(kind: str) -> str:
    """The class letter of an op type; "other" if it is in no class."""
    return "F" if kind.startswith("Apply") else _GROUP_OF.get(kind, UNKNOWN)


@cache
def update_type(optimizer: str) -> str:
    """The op type of an optimizer's update: Adam -> ApplyAdam. Gradient clipping is ApplyClip."""
    return f"Apply{_SPELLING.get(optimizer, optimizer)}"
