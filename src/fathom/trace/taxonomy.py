"""Maps torch's ops to op types in the classes A-G of the 2016 paper, in one table (docs/op-types.md lists it).

An op in the table claims everything that runs inside it: the time of aten::conv2d is convolution, whatever library
implements it. For an op that is not in the table, the ops inside it are counted instead; an unknown leaf op has the
type "Other", in a class of its own. A kernel that no op launched is typed by its name.
"""

from __future__ import annotations

import re
from functools import cache

GROUPS = {
    "A": "Elementwise arithmetic",
    "B": "Matrix operations",
    "C": "Reduction and expansion",
    "D": "Convolution",
    "E": "Random sampling",
    "F": "Optimization",
    "G": "Data movement",
}
OTHER = "Other"  # the type of an op that is not in the table
AUTOGRAD = "Autograd"  # of autograd's own bookkeeping
UNKNOWN = "other"  # the class of ops that are not in the table; the paper has none

# class -> op type -> torch ops, without "aten::" and without the trailing "_" of in-place variants. The types of the
# paper's Fig. 3 have its names; an op that is not one of them has a type of its own, and no type means two things.
TABLE: dict[str, dict[str, str]] = {
    "A": {
        "Add": "add addcmul addcdiv lerp _add_relu _foreach_add _foreach_addcmul _foreach_addcdiv _foreach_lerp",
        "Sub": "sub rsub _foreach_sub",
        "Mul": "mul _foreach_mul",
        "Div": "div true_divide reciprocal floor_divide remainder fmod _foreach_div _foreach_reciprocal",
        "Pow": "pow sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p cos sin tan erf erfc _foreach_sqrt "
        "_foreach_rsqrt _foreach_pow _foreach_exp _foreach_log",
        "Softmax": "softmax _softmax log_softmax _log_softmax _softmax_backward_data _masked_softmax",
        "Relu": "relu relu6 leaky_relu hardtanh clamp clamp_min clamp_max threshold _prelu_kernel "
        "_foreach_clamp_min _foreach_clamp_max",
        "ReluGrad": "threshold_backward hardtanh_backward leaky_relu_backward",
        "GELU": "gelu",
        "GELUGrad": "gelu_backward",
        "SiLU": "silu hardswish mish",
        "SiLUGrad": "silu_backward hardswish_backward mish_backward",
        "ELU": "elu celu selu",
        "ELUGrad": "elu_backward",
        "GLU": "glu",
        "GLUGrad": "glu_backward",
        "Tanh": "tanh",
        "TanhGrad": "tanh_backward",
        "Sigmoid": "sigmoid log_sigmoid hardsigmoid softplus",
        "SigmoidGrad": "sigmoid_backward log_sigmoid_backward hardsigmoid_backward softplus_backward",
        "LSTMCell": "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl",
        "GRUCell": "_thnn_fused_gru_cell _thnn_fused_gru_cell_backward",
        "Neg": "neg abs sign _foreach_neg _foreach_abs _foreach_sign",
        "Round": "floor ceil round trunc frac nan_to_num",
        "Maximum": "maximum minimum fmax fmin _foreach_maximum _foreach_minimum",
        "Compare": "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or "
        "bitwise_xor bitwise_not isfinite isnan isinf",
    },
    "B": {
        "MatMul": "mm addmm bmm baddbmm addbmm mv addmv dot vdot addr ger outer _addmm_activation mkldnn_linear",
        "ScaledMatMul": "_scaled_mm _scaled_mm_v2 _int_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu "
        "_weight_int8pack_mm",
        "GroupedMatMul": "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
        "SparseMatMul": "_sparse_mm _sparse_addmm _sparse_sparse_matmul _sparse_mm_reduce_impl sparse_sampled_addmm "
        "_sparse_semi_structured_mm _sparse_semi_structured_addmm _sparse_semi_structured_linear _cslt_sparse_mm",
        "RNN": "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn",
        "ScaledDotProductAttention": "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
        "_scaled_dot_product_attention_math_for_mps _flash_attention_forward _efficient_attention_forward "
        "_cudnn_attention_forward",
        "ScaledDotProductAttentionGrad": "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_backward "
        "_efficient_attention_backward _cudnn_attention_backward",
    },
    "C": {
        "CrossEntropy": "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss_backward "
        "nll_loss2d_forward nll_loss2d_backward _log_softmax_backward_data binary_cross_entropy_with_logits "
        "binary_cross_entropy binary_cross_entropy_backward",
        "MSELoss": "mse_loss mse_loss_backward",
        "HuberLoss": "huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward",
        "KLDivLoss": "kl_div",
        "CTCLoss": "ctc_loss _ctc_loss _ctc_loss_backward _cudnn_ctc_loss",
        "MaxPool": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d",
        "MaxPoolGrad": "max_pool2d_with_indices_backward max_pool3d_with_indices_backward mkldnn_max_pool2d_backward",
        "AvgPool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d",
        "AvgPoolGrad": "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward mkldnn_adaptive_avg_pool2d_backward",
        "BatchNorm": "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
        "_batch_norm_with_update",
        "BatchNormGrad": "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
        "LayerNorm": "layer_norm native_layer_norm",
        "LayerNormGrad": "native_layer_norm_backward",
        "GroupNorm": "native_group_norm",
        "GroupNormGrad": "native_group_norm_backward",
        "RMSNorm": "rms_norm _fused_rms_norm",
        "RMSNormGrad": "_fused_rms_norm_backward",
        "EmbeddingBag": "_embedding_bag _embedding_bag_forward_only",
        "EmbeddingBagGrad": "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_sparse_backward",
        "Sum": "sum nansum mean prod cumsum cumprod logsumexp logcumsumexp linalg_vector_norm norm var std var_mean "
        "std_mean any all count_nonzero _foreach_norm",
        "Max": "max min amax amin aminmax argmax argmin cummax cummin _foreach_max",
        "Sort": "sort msort argsort topk kthvalue median nanmedian searchsorted bucketize",
    },
    "D": {
        "Conv2D": "conv2d conv1d conv3d convolution _convolution convolution_overrideable cudnn_convolution "
        "mkldnn_convolution miopen_convolution thnn_conv2d _slow_conv2d_forward slow_conv3d_forward "
        "cudnn_convolution_relu _conv_depthwise2d conv_depthwise3d",
        "Conv2DBackward": "convolution_backward",
    },
    "E": {
        "RandomNormal": "normal randn randn_like log_normal",
        "RandomUniform": "uniform rand rand_like randint randint_like random randperm multinomial exponential "
        "geometric cauchy",
        "Dropout": "bernoulli native_dropout native_dropout_backward _fused_dropout",
    },
    "F": {
        "ApplySGD": "_fused_sgd",
        "ApplyAdam": "_fused_adam",
        "ApplyAdamW": "_fused_adamw",
        "ApplyAdagrad": "_fused_adagrad",
        "ApplyUnscale": "_amp_foreach_non_finite_check_and_unscale",
    },
    "G": {
        "Transpose": "transpose t permute swapaxes numpy_T movedim adjoint",
        "Tile": "expand expand_as repeat repeat_interleave broadcast_to tile",
        "Select": "where masked_fill masked_select masked_scatter nonzero",
        "Pad": "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
        "replication_pad2d replication_pad3d",
        "Reshape": "view reshape _reshape_alias _unsafe_view flatten unflatten squeeze unsqueeze as_strided view_as "
        "detach alias select slice narrow split chunk unbind split_with_sizes unsafe_split unsafe_chunk lift_fresh "
        "unfold diagonal view_as_real view_as_complex _reshape_copy",
        "Shape": "size stride numel sym_size result_type item _local_scalar_dense is_nonzero _fused_sdp_choice "
        "cudnn_is_acceptable _use_cudnn_ctc_loss",
        "Concat": "cat stack concat hstack vstack dstack",
        "Gather": "index gather index_select embedding take take_along_dim",
        "Scatter": "index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_reduce index_copy "
        "index_fill embedding_dense_backward embedding_backward select_backward slice_backward gather_backward "
        "index_select_backward unfold_backward",
        "Copy": "copy clone contiguous _to_copy _copy_from flip roll _pin_memory record_stream set_data _foreach_copy",
        "Fill": "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange eye tril "
        "triu _foreach_zero",
        "Allocate": "empty empty_like empty_strided new_empty new_empty_strided resize resize_as set",
    },
}

# op type -> the type of the paper's Fig. 3 that most of its work was in 2016, when one op of today was several: a
# recurrent layer or attention was matrix products with elementwise ops around them, an activation or a normalisation
# multiplications and additions. "LSTM" and "Attention" are names of older records.
IN_2016 = dict.fromkeys(("LSTM", "RNN", "Attention"), "MatMul")
IN_2016 |= dict.fromkeys(("ScaledDotProductAttention", "ScaledDotProductAttentionGrad"), "MatMul")
IN_2016 |= dict.fromkeys(("ScaledMatMul", "GroupedMatMul", "SparseMatMul"), "MatMul")
IN_2016 |= dict.fromkeys(("LSTMCell", "GRUCell", "GELU", "GELUGrad", "SiLU", "SiLUGrad", "GLU", "GLUGrad"), "Mul")
IN_2016 |= {f"{norm}{grad}": "Mul" for norm in ("LayerNorm", "GroupNorm", "RMSNorm") for grad in ("", "Grad")}
IN_2016 |= {"EmbeddingBag": "Sum", "MSELoss": "Sum", "HuberLoss": "Sum", "KLDivLoss": "Sum"}

ELEMENTWISE_TYPES = frozenset(TABLE["A"])
_GROUP_OF = {kind: group for group, kinds in TABLE.items() for kind in kinds}
_GROUP_OF |= {"Conv2DBackFilter": "D", "Conv2DBackInput": "D", "LSTM": "B", "Attention": "B"}
_TYPE_OF = {op: kind for kinds in TABLE.values() for kind, ops in kinds.items() for op in ops.split()}

# op type -> substrings of a kernel's name in lower case; the first match counts
_KERNELS: dict[str, str] = {
    "Fill": "memset fillfunctor",
    "Copy": "memcpy direct_copy",
    "Conv2DBackFilter": "wgrad",
    "Conv2DBackInput": "dgrad",
    "ScaledDotProductAttentionGrad": "flash_bwd fmha_bwd fmha_cutlassb attention_backward",
    "ScaledDotProductAttention": "flash_fwd fmha attention",
    "Conv2D": "fprop convolve conv2d winograd fft2d",
    "MatMul": "gemm gemv cutlass cublas",
    "CrossEntropy": "nll_loss",
    "CTCLoss": "ctc_loss",
    "RNN": "rnncell",
    "LayerNormGrad": "layer_norm_grad layernormbackward gammabetabackward",
    "LayerNorm": "layer_norm layernorm",
    "GroupNormGrad": "groupnormbackward group_norm_backward",
    "GroupNorm": "groupnorm group_norm",
    "RMSNormGrad": "rms_norm_grad rmsnormbackward",
    "RMSNorm": "rms_norm rmsnorm",
    "BatchNormGrad": "batchnorm_bw batch_norm_backward",
    "BatchNorm": "batchnorm batch_norm",
    "EmbeddingBag": "embeddingbag",
    "Select": "where_kernel",
    "Softmax": "softmax",
    "MaxPoolGrad": "max_pool_backward",
    "MaxPool": "max_pool",
    "Dropout": "dropout",
    "Concat": "catarray",
    "Gather": "indexselect gather",
    "Scatter": "scatter",
    "GELUGrad": "gelubackward",
    "GELU": "gelu",
    "SiLUGrad": "silu_backward",
    "SiLU": "silu",
    "ReluGrad": "threshold",
    "Relu": "clamp relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Mul": "mulfunctor",
    "Div": "divfunctor",
    "Sum": "reduce_kernel",
    "Add": "functor_add functoronself_add",
}

_WRAPPERS = {"is_pinned", "broadcast_tensors", "to", "type_as", "resolve_conj", "resolve_neg", "dropout"}
# made of other ops, except on devices that implement them whole
_WHOLE = dict.fromkeys(("linear", "matmul", "einsum"), "MatMul")
_WHOLE |= dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "RNN") | {
    "lstm_cell": "LSTMCell",
    "gru_cell": "GRUCell",
}
_WHOLE |= dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "Conv2D")
_WHOLE |= {"group_norm": "GroupNorm", "embedding_bag": "EmbeddingBag"}
_WHOLE |= {"scaled_dot_product_attention": "ScaledDotProductAttention"}

_SPELLING = {"RMSprop": "RMSProp"}  # as the paper's Fig. 3 has it


@cache
def type_of(op: str) -> str | None:
    """The op type of a torch op; None if the ops inside it are to be counted instead."""
    if not op.startswith("aten::"):
        return None
    name = op.removeprefix("aten::")
    single = name.removeprefix("_foreach_")  # an op on lists has the type of the op on one tensor
    names = (name, name.removesuffix("_"), single, single.removesuffix("_"))
    return next((_TYPE_OF[each] for each in names if each in _TYPE_OF), None)


@cache
def group_of(kind: str) -> str:
    """The class letter of an op type; "other" if it is in no class."""
    return "F" if kind.startswith("Apply") else _GROUP_OF.get(kind, UNKNOWN)


@cache
def leaf_type(op: str) -> str:
    """The op type of what an op that is not in the table does itself, without the ops inside it."""
    if op.startswith(("autograd::", "torch::autograd::")) or op.rstrip("0123456789").endswith("Backward"):
        return AUTOGRAD
    if op.startswith("triton_"):
        return kernel_type(op)
    name = op.removeprefix("aten::")
    if name in _WRAPPERS:  # without inner ops it only inspected a tensor
        return "Shape"
    return _WHOLE.get(name, OTHER)


@cache
def kernel_type(kernel: str) -> str:
    """The op type of a kernel by its name; a Triton kernel has one if it implements a single op."""
    if kernel.startswith("triton_"):
        return type_of("aten::" + re.sub(r"^triton_\w+?_fused_|_\d+$", "", kernel)) or "Other"
    name = kernel.lower()
    return next((kind for kind, words in _KERNELS.items() if any(word in name for word in words.split())), "Other")


def update_type(optimizer: str) -> str:
    """The op type of an optimizer's update: Adam -> ApplyAdam. Gradient clipping is ApplyClip."""
    return f"Apply{_SPELLING.get(optimizer, optimizer)}"


# template arguments of very many kernels, which do not distinguish them
_COMMON = (
    "void bool char short int long float double unsigned const true false half std array at native c10 anonymous "
    "namespace lambda operator auto type enable_if ul detail internal binary_internal BinaryFunctor UnaryFunctor "
    "AUnaryFunctor BUnaryFunctor ReduceOp func_wrapper_t gpu_kernel_impl gpu_kernel_impl_nocast TensorListMetadata "
    "TensorIteratorBase TensorIterator TrivialOffsetCalculator OffsetCalculator memory OpaqueType function_traits "
    "LoadWithoutCast StoreWithoutCast LoadWithCast StoreWithCast BFloat16 Half uint32_t int64_t Params "
    "Scalar templates cuda cub at_cuda_detail"
)
MAX_NAME_LENGTH, MAX_HINTS = 90, 2


@cache
def short_name(kernel: str) -> str:
    """A kernel's name without return type and call arguments, which can be thousands of characters long.

    Only distinguishing template arguments are kept: names of what is computed, or else the values.
    """
    if kernel.startswith(("Memcpy", "Memset")):
        return kernel.partition(" (")[0]
    signature = kernel.replace("(anonymous namespace)::", "")
    bare, arguments = _split_signature(signature)
    common = _COMMON.split()
    words = dict.fromkeys(word for word in re.findall(r"\b[A-Za-z_]\w*", arguments) if word not in common)
    hint = ", ".join(list(words)[:MAX_HINTS]) or arguments.replace(", ", ",")
    return _shortened(f"{bare}<{hint}>" if hint else bare)


def _split_signature(signature: str) -> tuple[str, str]:
    """The name of a C++ function and its template arguments; spaces inside brackets do not end the return type."""
    begin, depth, arguments, opened = 0, 0, "", 0
    for index, character in enumerate(signature):
        if character == "<":
            opened = index if depth == 0 else opened
            depth += 1
        elif character == ">" and depth:
            depth -= 1
            arguments = signature[opened + 1 : index] if depth == 0 else arguments
        elif character == " " and depth == 0:  # the text so far was the return type
            begin, arguments = index + 1, ""
        elif character == "(" and depth == 0:
            signature = signature[:index]
            break
    return re.sub(r"<.*", "", signature[begin:]), arguments.strip()


def _shortened(name: str) -> str:
    """Removes what all cuBLAS and cuDNN names contain; a name that is still too long is cut in the middle."""
    name = re.sub(r"_execute(?=\w*_kernel)|_kernel__5x_(cublas|cudnn)$", "", name)
    name = re.sub(r"(_c?[bt]?f\d+)(_?c?[bt]?f\d+)+(?=_)", r"\1", name)  # the dtypes of inputs, accumulators and outputs
    if len(name) <= MAX_NAME_LENGTH:
        return name
    kept = MAX_NAME_LENGTH // 3
    return f"{name[:kept]}…{name[kept + 1 - MAX_NAME_LENGTH :]}"
