"""Maps torch's ops to the op types and classes A-G of the 2016 paper, in one table.

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
UNKNOWN = "other"  # the class of ops that are not in the table; the paper has none

# class -> op type -> torch ops, without "aten::" and without the trailing "_" of in-place variants
_TABLE: dict[str, dict[str, str]] = {
    "A": {
        "Add": "add addcmul addcdiv _foreach_add _foreach_addcmul _foreach_addcdiv lerp _foreach_lerp add_relu",
        "Sub": "sub rsub _foreach_sub",
        "Mul": "mul _foreach_mul",
        "Div": "div true_divide reciprocal _foreach_div floor_divide remainder",
        "Pow": "pow sqrt rsqrt square exp log log1p expm1 _foreach_sqrt _foreach_pow cos sin",
        "Softmax": "softmax _softmax log_softmax _log_softmax _softmax_backward_data _masked_softmax",
        "Relu": "relu clamp clamp_min clamp_max hardtanh relu6 leaky_relu gelu silu maximum minimum",
        "ReluGrad": "threshold_backward hardtanh_backward leaky_relu_backward gelu_backward silu_backward",
        "Tanh": "tanh sigmoid log_sigmoid softplus tanh_backward sigmoid_backward log_sigmoid_backward",
        "LSTMCell": "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl",
        "Neg": "neg abs sign _foreach_neg",
        "Compare": "eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isfinite",
    },
    "B": {
        "MatMul": "mm addmm bmm baddbmm addbmm mv addmv dot vdot _addmm_activation mkldnn_linear",
        "LSTM": "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn",
        "Attention": "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_flash_attention_forward _efficient_attention_forward",
    },
    "C": {
        "CrossEntropy": "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss_backward "
        "_log_softmax_backward_data binary_cross_entropy_with_logits binary_cross_entropy "
        "binary_cross_entropy_backward huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward "
        "mse_loss mse_loss_backward",
        "CTCLoss": "ctc_loss _ctc_loss _ctc_loss_backward _cudnn_ctc_loss",
        "MaxPool": "max_pool2d max_pool1d max_pool2d_with_indices mkldnn_max_pool2d",
        "MaxPoolGrad": "max_pool2d_with_indices_backward mkldnn_max_pool2d_backward",
        "AvgPool": "avg_pool2d avg_pool3d adaptive_avg_pool2d _adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d",
        "AvgPoolGrad": "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "mkldnn_adaptive_avg_pool2d_backward",
        "BatchNorm": "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit _batch_norm_with_update "
        "native_layer_norm layer_norm native_group_norm",
        "BatchNormGrad": "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward "
        "native_layer_norm_backward native_group_norm_backward",
        "Sum": "sum mean logsumexp cumsum prod linalg_vector_norm norm var var_mean _foreach_norm any all "
        "count_nonzero cummax",
        "Max": "max min amax amin argmax argmin topk sort msort kthvalue searchsorted",
    },
    "D": {
        "Conv2D": "conv2d conv1d conv3d convolution _convolution cudnn_convolution mkldnn_convolution "
        "thnn_conv2d _slow_conv2d_forward cudnn_convolution_relu",
        "Conv2DBackward": "convolution_backward mkldnn_convolution_backward",
    },
    "E": {
        "RandomNormal": "normal randn randn_like",
        "RandomUniform": "uniform rand rand_like randint randint_like random randperm multinomial exponential",
        "Dropout": "bernoulli native_dropout native_dropout_backward",
    },
    "G": {
        "Transpose": "transpose t permute swapaxes numpy_T movedim",
        "Tile": "expand expand_as repeat repeat_interleave broadcast_to tile",
        "Select": "where masked_fill _s_where masked_select masked_scatter",
        "Pad": "pad constant_pad_nd reflection_pad2d",
        "Reshape": "view reshape _reshape_alias _unsafe_view flatten unflatten squeeze unsqueeze as_strided view_as "
        "detach alias select slice narrow split chunk unbind split_with_sizes lift_fresh unfold _reshape_copy",
        "Shape": "size stride numel sym_size result_type item _local_scalar_dense is_nonzero",
        "Concat": "cat stack concat hstack vstack",
        "Gather": "index gather index_select embedding take take_along_dim",
        "Scatter": "index_put _index_put_impl scatter scatter_add index_add index_copy embedding_dense_backward "
        "embedding_backward index_fill select_backward slice_backward gather_backward index_select_backward "
        "unfold_backward",
        "Copy": "copy clone contiguous _to_copy _copy_from flip roll _pin_memory record_stream set_data",
        "Fill": "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_full arange eye tril triu "
        "_foreach_zero",
        "Allocate": "empty empty_like empty_strided new_empty new_empty_strided resize resize_as",
    },
}

_GROUP_OF = {kind: group for group, kinds in _TABLE.items() for kind in kinds}
_GROUP_OF |= {"Conv2DBackFilter": "D", "Conv2DBackInput": "D"}
_TYPE_OF = {op: kind for kinds in _TABLE.values() for kind, ops in kinds.items() for op in ops.split()}

# op type -> substrings of a kernel's name in lower case; the first match counts
_KERNELS: dict[str, str] = {
    "Fill": "memset fillfunctor",
    "Copy": "memcpy direct_copy",
    "Conv2DBackFilter": "wgrad",
    "Conv2DBackInput": "dgrad",
    "Attention": "flash_fwd flash_bwd fmha attention",
    "Conv2D": "fprop convolve conv2d winograd fft2d",
    "MatMul": "gemm gemv cutlass cublas",
    "CrossEntropy": "nll_loss",
    "CTCLoss": "ctc_loss",
    "LSTM": "rnncell",
    "BatchNormGrad": "batchnorm_bw batch_norm_backward layer_norm_grad",
    "BatchNorm": "batchnorm batch_norm layer_norm",
    "Select": "where_kernel",
    "Softmax": "softmax",
    "MaxPoolGrad": "max_pool_backward",
    "MaxPool": "max_pool",
    "Dropout": "dropout",
    "Concat": "catarray",
    "Gather": "indexselect gather",
    "ReluGrad": "threshold",
    "Relu": "clamp relu",
    "Tanh": "tanh sigmoid",
    "Mul": "mulfunctor",
    "Div": "divfunctor",
    "Sum": "reduce_kernel",
    "Add": "functor_add functoronself_add",
}

_WRAPPERS = {
    "is_pinned",
    "broadcast_tensors",
    "to",
    "type_as",
    "resolve_conj",
    "resolve_neg",
    "linear",
    "matmul",
    "dropout",
}

_SPELLING = {"RMSprop": "RMSProp"}  # as the paper's Fig. 3 has it


@cache
def type_of(op: str) -> str | None:
    """The op type of a torch op; None if the ops inside it are to be counted instead."""
    if not op.startswith("aten::"):
        return None
    name = op.removeprefix("aten::")
    return _TYPE_OF.get(name) or _TYPE_OF.get(name.removesuffix("_"))


@cache
def group_of(kind: str) -> str:
    """The class letter of an op type; "other" if it is in no class."""
    return "F" if kind.startswith("Apply") else _GROUP_OF.get(kind, UNKNOWN)


def leaf_type(op: str) -> str | None:
    """The op type of a leaf op that is not in the table; None for autograd's own bookkeeping."""
    if op.startswith(("autograd::", "torch::autograd::")) or op.rstrip("0123456789").endswith("Backward"):
        return None
    if op.startswith("triton_"):
        return kernel_type(op)
    # a wrapper without inner ops only inspected a tensor
    return "Shape" if op.removeprefix("aten::") in _WRAPPERS else "Other"


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
