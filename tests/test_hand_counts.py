"""FLOP and bytes of every op type, counted by hand: a table of calls, of what they compute and of what they move.

Bytes are those of every operand, read once, and of every result, written once. Letters are sizes: m, k, n of a matrix
product, B for a batch, C for channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from traced_calls import RECENT, T, bf16, f32, i64, of, traced

from fathom.trace.flops import RULES, bytes_moved, flop, rule_of
from fathom.trace.taxonomy import TABLE, type_of


class Hand(NamedTuple):
    op: str
    given: dict[str, Any]
    flop: float | None
    bytes: float | None


def hand(op: str, flop: float | None, moved: float | None, **given: Any) -> Hand:
    return Hand(op, given, flop, moved)


def expanded(*shape: int) -> T:
    """One row that a leading dimension repeats: stride 0."""
    strides = (0, *(T(shape[1:]).all_strides()))
    return T(shape, strides=strides)


FP8, COMPLEX, INT8, BOOL = "c10::Float8_e4m3fn", "c10::complex<float>", "signed char", "bool"
SCALES = {"recipe_a": [0], "swizzle_a": [0], "recipe_b": [0], "swizzle_b": [0]}

PRODUCTS = [
    # 2 m k n; m k + k n + m n elements
    hand("mm", 2 * 2 * 3 * 5, 4 * (6 + 15 + 10), self=f32(2, 3), mat2=f32(3, 5)),
    hand("mm", 8 * 2 * 3 * 5, 8 * (6 + 15 + 10), self=of(COMPLEX, 2, 3), mat2=of(COMPLEX, 3, 5)),
    hand("bmm", 7 * 60, 7 * 4 * (6 + 15 + 10), self=f32(7, 2, 3), mat2=f32(7, 3, 5)),
    # a weight that is expanded over the batch is in memory once
    hand("bmm", 7 * 60, 4 * (7 * 6 + 15 + 7 * 10), self=f32(7, 2, 3), mat2=expanded(7, 3, 5)),
    # the addend is read once more; a bias of n elements, too; with beta = 0 it is not read
    hand("addmm", 60, 4 * (5 + 6 + 15 + 10), self=f32(5), mat1=f32(2, 3), mat2=f32(3, 5)),
    hand("addmm", 60, 4 * (6 + 15 + 10), self=f32(2, 5), mat1=f32(2, 3), mat2=f32(3, 5), beta=0),
    hand("_addmm_activation", 60, 4 * (5 + 31), self=f32(5), mat1=f32(2, 3), mat2=f32(3, 5)),
    hand("baddbmm", 420, 4 * 7 * (10 + 31), self=f32(7, 2, 5), batch1=f32(7, 2, 3), batch2=f32(7, 3, 5)),
    # seven products summed into one matrix
    hand("addbmm", 420, 4 * (10 + 7 * 21 + 10), self=f32(2, 5), batch1=f32(7, 2, 3), batch2=f32(7, 3, 5)),
    hand("mv", 2 * 6, 4 * (6 + 3 + 2), self=f32(2, 3), vec=f32(3)),
    hand("addmv", 2 * 6, 4 * (2 + 6 + 3 + 2), self=f32(2), mat=f32(2, 3), vec=f32(3)),
    hand("dot", 2 * 9, 4 * (9 + 9 + 1), self=f32(9), tensor=f32(9)),
    hand("vdot", 2 * 9, 4 * (9 + 9 + 1), self=f32(9), other=f32(9)),
    # a product per element, and in addr an addition
    hand("outer", 3 * 5, 4 * (3 + 5 + 15), self=f32(3), vec2=f32(5)),
    hand("ger", 3 * 5, 4 * (3 + 5 + 15), self=f32(3), vec2=f32(5)),
    hand("addr", 2 * 15, 4 * (15 + 3 + 5 + 15), self=f32(3, 5), vec1=f32(3), vec2=f32(5)),
    hand("linear", 2 * 7 * 2 * 3 * 5, 4 * (42 + 15 + 5 + 70), input=f32(7, 2, 3), weight=f32(5, 3), bias=f32(5)),
    hand("mkldnn_linear", 60, 4 * (6 + 15 + 10), self=f32(2, 3), weight=f32(5, 3)),
    hand("matmul", 2 * 7 * 2 * 3 * 5, 4 * (42 + 15 + 70), self=f32(7, 2, 3), other=f32(3, 5)),
    # x A y of 4 rows, 8 and 7 values and 3 matrices: a product of x and A, then one with y
    hand("_trilinear", 2 * (4 * 3 * 8 * 7 + 4 * 3 * 7), 4 * (32 + 168 + 28 + 12), i1=f32(4, 8), i2=f32(3, 8, 7),
         i3=f32(4, 7), expand1=[1, 3], expand2=[0], expand3=[1, 2], sumdim=[2, 3]),
    # the gradient of x: that of the result times A, then with y
    hand("_trilinear", 2 * (4 * 3 * 8 * 7 + 4 * 8 * 7), 4 * (12 + 168 + 28 + 32), i1=f32(4, 3), i2=f32(3, 8, 7),
         i3=f32(4, 7), expand1=[2, 3], expand2=[0], expand3=[1, 2], sumdim=[1, 3]),
    # float8 operands, float scales, bfloat16 result
    hand("_scaled_mm", 2 * 16 * 32 * 48, 16 * 32 + 32 * 48 + 2 * 4 + 2 * 16 * 48, self=of(FP8, 16, 32),
         mat2=of(FP8, 32, 48), scale_a=f32(), scale_b=f32(), out_dtype=torch.bfloat16),
    # the scales' dtype depends on the recipe
    hand("_scaled_mm_v2", 2 * 16 * 32 * 48, None, self=of(FP8, 16, 32), mat2=of(FP8, 32, 48), **SCALES,
         scale_a=[f32(1)], scale_b=[f32(1)], bias=None, out_dtype=torch.bfloat16),
    # int8 operands, int32 result
    hand("_int_mm", 2 * 32**3, 2 * 32**2 + 4 * 32**2, self=of(INT8, 32, 32), mat2=of(INT8, 32, 32)),
    # k = 64 in groups of 32, n = 16: two weights in a byte
    hand("_weight_int4pack_mm_for_cpu", 2 * 4 * 64 * 16, 2 * 4 * 64 + 16 * 32 + 2 * 2 * 16 * 2 + 2 * 4 * 16,
         self=bf16(4, 64), mat2=of("unsigned char", 16, 32), qGroupSize=32, qScaleAndZeros=bf16(2, 16, 2)),
    hand("_weight_int4pack_mm", 2 * 4 * 64 * 16, 2 * 4 * 64 + 4 * 2 * 2 * 32 * 1 + 2 * 2 * 16 * 2 + 2 * 4 * 16,
         self=bf16(4, 64), mat2=of("int", 2, 2, 32, 1), qGroupSize=32, qScaleAndZeros=bf16(2, 16, 2)),
    hand("_weight_int8pack_mm", 2 * 4 * 64 * 16, 2 * 4 * 64 + 16 * 64 + 2 * 16 + 2 * 4 * 16,
         self=bf16(4, 64), mat2=of(INT8, 16, 64), scales=bf16(16)),
    # rows cut into two groups, each with its own matrix: 2 M k n
    hand("_grouped_mm", 2 * 32 * 16 * 8, 2 * (32 * 16 + 2 * 16 * 8 + 32 * 8) + 2 * 4,
         self=bf16(32, 16), mat2=bf16(2, 16, 8), offs=of("int", 2)),
    # k cut into two groups, a product each: 2 m K n, two results
    hand("_grouped_mm", 2 * 4 * 32 * 8, 2 * (4 * 32 + 32 * 8 + 2 * 4 * 8) + 2 * 4,
         self=bf16(4, 32), mat2=bf16(32, 8), offs=of("int", 2)),
    hand("_grouped_mm", 2 * 3 * 4 * 32 * 8, 2 * (3 * 4 * 32 + 32 * 3 * 8 + 3 * 4 * 8),
         self=bf16(3, 4, 32), mat2=bf16(3, 32, 8)),
    hand("_scaled_grouped_mm", 2 * 32 * 16 * 8, 32 * 16 + 2 * 16 * 8 + 4 * (32 + 16) + 2 * 4 + 2 * 32 * 8,
         self=of(FP8, 32, 16), mat2=of(FP8, 2, 16, 8), scale_a=f32(32), scale_b=f32(2, 8), offs=of("int", 2)),
    hand("_scaled_grouped_mm_v2", 2 * 32 * 16 * 8, None, self=of(FP8, 32, 16), mat2=of(FP8, 2, 16, 8), **SCALES,
         scale_a=[f32(32)], scale_b=[f32(2, 8)], offs=of("int", 2)),
    # how many elements are not zero is not in a trace: not known, and never as if dense
    hand("_sparse_mm", None, None, sparse=T((2, 3), strides=()), dense=f32(3, 5)),
    hand("_sparse_addmm", None, None, self=f32(2, 5), mat1=T((2, 3), strides=()), mat2=f32(3, 5)),
    hand("sparse_sampled_addmm", None, None, self=T((2, 5), strides=()), mat1=f32(2, 3), mat2=f32(3, 5)),
    hand("mm", None, None, self=T((2, 3), strides=()), mat2=f32(3, 5)),
    hand("addmm", None, None, self=f32(2, 5), mat1=T((2, 3), strides=()), mat2=f32(3, 5)),
]  # fmt: skip

# an image of 8 x 8 with 4 channels, a filter of 3 x 3 for 6: 6 x 6 outputs
X, W, Y = f32(2, 4, 8, 8), f32(6, 4, 3, 3), f32(2, 6, 6, 6)
x_, w_, y_ = 2 * 4 * 8 * 8, 6 * 4 * 9, 2 * 6 * 6 * 6
CONVOLUTION = 2 * y_ * (4 * 9)
PLAIN = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
FULL = {**PLAIN, "transposed": False, "output_padding": [0, 0], "groups": 1}
BACKWARD = {"grad_output": Y, "input": X, "weight": W, "bias_sizes": [6], **FULL}

CONVOLUTIONS = [
    hand("conv2d", CONVOLUTION, 4 * (x_ + w_ + 6 + y_), input=X, weight=W, bias=f32(6)),
    hand("convolution", CONVOLUTION, 4 * (x_ + w_ + y_), input=X, weight=W, bias=None, **FULL),
    hand("mkldnn_convolution", CONVOLUTION, 4 * (x_ + w_ + y_), self=X, weight=W, bias=None, **PLAIN, groups=1),
    hand("cudnn_convolution", CONVOLUTION, 4 * (x_ + w_ + y_), self=X, weight=W, **PLAIN, groups=1, benchmark=False,
         deterministic=False, allow_tf32=False),
    hand("_slow_conv2d_forward", CONVOLUTION, 4 * (x_ + w_ + 6 + y_), self=X, weight=W, kernel_size=[3, 3], bias=f32(6),
         stride=[1, 1], padding=[0, 0]),
    # 4 channels each on its own: 2 x 4 x 6 x 6 outputs of 9 products
    hand("_conv_depthwise2d", 2 * 288 * 9, 4 * (x_ + 36 + 288), self=X, weight=f32(4, 1, 3, 3), kernel_size=[3, 3],
         bias=None, **PLAIN),
    # every gradient: grad_output, input and weight are read once; three gradients are written
    hand("convolution_backward", 2 * CONVOLUTION, 4 * (y_ + x_ + w_ + x_ + w_ + 6), **BACKWARD, output_mask=[True] * 3),
    # the filter's alone needs no weight, the input's alone no input
    hand("convolution_backward", CONVOLUTION, 4 * (y_ + x_ + w_), **BACKWARD, output_mask=[False, True, False]),
    hand("convolution_backward", CONVOLUTION, 4 * (y_ + w_ + x_), **BACKWARD, output_mask=[True, False, False]),
    hand("convolution_backward", 0, 4 * (y_ + 6), **BACKWARD, output_mask=[False, False, True]),
]  # fmt: skip

# B = 2, 3 heads, 10 queries, 12 keys, size 8: scores 2 x 3 x 10 x 12, each a sum of 8 products, twice
Q, K, OUT = f32(2, 3, 10, 8), f32(2, 3, 12, 8), f32(2, 3, 10, 8)
q_, k_, sums_ = 2 * 3 * 10 * 8, 2 * 3 * 12 * 8, 2 * 3 * 10
ATTENTION = 2 * (2 * 2 * 3 * 10 * 12 * 8)
QKV = {"query": Q, "key": K, "value": K}
LONG = {"query": f32(2, 10, 3, 8), "key": f32(2, 12, 3, 8), "value": f32(2, 12, 3, 8)}  # lengths before heads
PACKED = {"query": f32(20, 3, 8), "key": f32(24, 3, 8), "value": f32(24, 3, 8)}
SAVED = {"out": OUT, "logsumexp": f32(2, 3, 10)}
NO_OFFSETS = {"cum_seq_q": None, "cum_seq_k": None, "max_q": 10, "max_k": 12}
DROPOUT = {"dropout_p": 0.0, "is_causal": False}
PHILOX = {"philox_seed": i64(), "philox_offset": i64()}
MASK = f32(10, 12)
# read: the gradient of the output, query, key, value, output and sums; written: three gradients
GRADIENTS = 4 * (q_ + (q_ + 2 * k_) + q_ + sums_ + (q_ + 2 * k_))
FORWARD = 4 * (q_ + 2 * k_ + q_)

ATTENTIONS = [
    hand("_scaled_dot_product_flash_attention", ATTENTION, FORWARD + 4 * sums_, **QKV),
    # two key heads for four query heads: as many products as query heads ask for
    hand("_scaled_dot_product_flash_attention", 2 * (2 * 2 * 4 * 10 * 12 * 8),
         4 * (640 + 2 * 384 + 640 + 80), query=f32(2, 4, 10, 8), key=f32(2, 2, 12, 8), value=f32(2, 2, 12, 8)),
    hand("_scaled_dot_product_efficient_attention", ATTENTION, FORWARD, **QKV, attn_bias=None,
         compute_log_sumexp=False),
    hand("_scaled_dot_product_efficient_attention", ATTENTION, FORWARD + 4 * (120 + sums_), **QKV, attn_bias=MASK,
         compute_log_sumexp=True),
    hand("_scaled_dot_product_cudnn_attention", ATTENTION, FORWARD + 4 * sums_, **QKV, attn_bias=None,
         compute_log_sumexp=True),
    hand("_scaled_dot_product_flash_attention_for_cpu", ATTENTION, FORWARD + 4 * (120 + sums_), **QKV, attn_mask=MASK),
    hand("scaled_dot_product_attention", ATTENTION, FORWARD, **QKV),
    hand("_scaled_dot_product_fused_attention_overrideable", ATTENTION, FORWARD + 4 * sums_, **QKV),
    # without a batch: 3 heads
    hand("_scaled_dot_product_attention_math", ATTENTION / 2, 4 * (240 + 2 * 288 + 240 + 360), query=f32(3, 10, 8),
         key=f32(3, 12, 8), value=f32(3, 12, 8)),
    # the scores are its second result
    hand("_scaled_dot_product_attention_math", ATTENTION, FORWARD + 4 * 2 * 3 * 10 * 12, **QKV),
    hand("_flash_attention_forward", ATTENTION, FORWARD + 4 * sums_, **LONG, **NO_OFFSETS, **DROPOUT,
         return_debug_mask=False),
    # packed sequences: their lengths are not in a trace, their bytes are
    hand("_flash_attention_forward", None, 4 * (480 + 2 * 576 + 2 * 3 + 480 + 60), **PACKED, cum_seq_q=of("int", 3),
         cum_seq_k=of("int", 3), max_q=10, max_k=12, **DROPOUT, return_debug_mask=False),
    hand("_efficient_attention_forward", ATTENTION, FORWARD, **LONG, bias=None, cu_seqlens_q=None, cu_seqlens_k=None,
         max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0, custom_mask_type=0),
    # scores again, then the gradients of value, scores, query and key: five products of the same size
    hand("_scaled_dot_product_flash_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out=OUT, **QKV, **SAVED,
         **NO_OFFSETS, **DROPOUT, **PHILOX),
    hand("_scaled_dot_product_efficient_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out_=OUT, **QKV,
         attn_bias=None, **SAVED, **PHILOX, dropout_p=0.0, grad_input_mask=[True, True, True, False]),
    hand("_scaled_dot_product_cudnn_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out=OUT, **QKV, **SAVED,
         **PHILOX, attn_bias=None, **NO_OFFSETS, **DROPOUT),
    hand("_scaled_dot_product_flash_attention_for_cpu_backward", 5 * ATTENTION / 2, GRADIENTS + 4 * 120, grad_out=OUT,
         **QKV, **SAVED, **DROPOUT, attn_mask=MASK),
    hand("_flash_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out=f32(2, 10, 3, 8), **LONG,
         out=f32(2, 10, 3, 8), logsumexp=f32(2, 3, 10), **NO_OFFSETS, **DROPOUT, rng_state=i64(2), unused=i64()),
    hand("_efficient_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out_=f32(2, 10, 3, 8), **LONG, bias=None,
         out=f32(2, 10, 3, 8), cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=10, max_seqlen_k=12,
         logsumexp=f32(2, 3, 10), dropout_p=0.0, **PHILOX, custom_mask_type=0, bias_requires_grad=False),
]  # fmt: skip
_CUDNN = {"attn_bias": None, **NO_OFFSETS}
ATTENTIONS += [
    hand("_cudnn_attention_forward", ATTENTION, FORWARD + 4 * sums_, **QKV, **_CUDNN, compute_log_sumexp=True),
    hand("_cudnn_attention_backward", 5 * ATTENTION / 2, GRADIENTS, grad_out=OUT, **QKV, **SAVED, **PHILOX, **_CUDNN,
         **DROPOUT),
]  # fmt: skip

# T = 7, B = 3, I = 6, H = 5: weights [4H, I] and [4H, H]
GATES = {"weight0": f32(20, 6), "weight1": f32(20, 5), "weight2": f32(20), "weight3": f32(20)}
RECURRENT = {"hidden_size": 5, "num_layers": 1, "has_biases": True, "bidirectional": False, "batch_first": False}
RNN_FLOP = 2 * 7 * 3 * (20 * 6 + 20 * 5)
RNN_WEIGHTS = 20 * 6 + 20 * 5 + 20 + 20
LSTM = [f32(20, 6), f32(20, 5), f32(20), f32(20)]
CUDNN_RNN = {"weight": LSTM, "weight_stride0": 4, "mode": 2, "hidden_size": 5, "proj_size": 0, "num_layers": 1,
             "batch_first": False, "dropout": 0.0, "train": True, "bidirectional": False, "batch_sizes": [],
             "dropout_state": None}  # fmt: skip

RECURRENTS = [
    hand("mkldnn_rnn_layer", RNN_FLOP, 4 * (7 * 3 * 6 + RNN_WEIGHTS + 2 * 15 + 7 * 15 + 2 * 15), input=f32(7, 3, 6),
         **GATES, hx_=f32(1, 3, 5), cx_=f32(1, 3, 5), reverse=False, batch_sizes=[], mode=2, **RECURRENT, train=False),
    # read: all of it, the outputs and their gradients; written: the gradients of input, weights and states
    hand("mkldnn_rnn_layer_backward", 2 * RNN_FLOP,
         4 * ((126 + RNN_WEIGHTS + 30) + (105 + 15 + 15) + (105 + 15 + 15) + (126 + RNN_WEIGHTS + 30)),
         input=f32(7, 3, 6), weight1=f32(20, 6), weight2=f32(20, 5), weight3=f32(20), weight4=f32(20),
         hx_=f32(1, 3, 5), cx_tmp=f32(1, 3, 5), output=f32(7, 3, 5), hy_=f32(1, 3, 5), cy_=f32(1, 3, 5),
         grad_output=f32(7, 3, 5), grad_hy=f32(1, 3, 5), grad_cy=f32(1, 3, 5), reverse=False, batch_sizes=[], mode=2,
         **RECURRENT, train=True, workspace=of("unsigned char", 99)),
    hand("_cudnn_rnn", RNN_FLOP, 4 * (126 + RNN_WEIGHTS + 2 * 30 + 105), input=f32(7, 3, 6), **CUDNN_RNN,
         weight_buf=None, hx=f32(1, 3, 5), cx=f32(1, 3, 5)),
    # packed sequences of 17 rows in all
    hand("_cudnn_rnn", 2 * 17 * 220, 4 * (17 * 6 + RNN_WEIGHTS + 2 * 30 + 17 * 5), input=f32(17, 6),
         **{**CUDNN_RNN, "batch_sizes": [3, 3, 3, 3, 3, 1, 1]}, weight_buf=None, hx=f32(1, 3, 5), cx=f32(1, 3, 5)),
    hand("_cudnn_rnn_backward", 2 * RNN_FLOP, 4 * (126 + RNN_WEIGHTS + 30 + 105 + 105 + (126 + 15 + 15 + RNN_WEIGHTS)),
         input=f32(7, 3, 6), **CUDNN_RNN, weight_buf=f32(260), hx=f32(1, 3, 5), cx=f32(1, 3, 5), output=f32(7, 3, 5),
         grad_output=f32(7, 3, 5), grad_hy=None, grad_cy=None, reserve=of("unsigned char", 99), output_mask=[True] * 4),
    # per hidden unit: 4 sums, 4 functions, 3 for c, 2 for h; 8 more for two biases. Writes h, c, 4 gates
    hand("_thnn_fused_lstm_cell", 13 * 15, 4 * (60 + 60 + 15 + 6 * 15), input_gates=f32(3, 20), hidden_gates=f32(3, 20),
         cx=f32(3, 5)),
    hand("_thnn_fused_lstm_cell", 21 * 15, 4 * (60 + 60 + 15 + 20 + 20 + 6 * 15), input_gates=f32(3, 20),
         hidden_gates=f32(3, 20), cx=f32(3, 5), input_bias=f32(20), hidden_bias=f32(20)),
    # dc 6; o, i, f, g 4 each; c before 1. Writes the gates' gradients and c's
    hand("_thnn_fused_lstm_cell_backward_impl", 23 * 15, 4 * (15 + 15 + 15 + 15 + 60 + 60 + 15), grad_hy=f32(3, 5),
         grad_cy=f32(3, 5), cx=f32(3, 5), cy=f32(3, 5), workspace=f32(3, 20), has_bias=False),
    # r 2, z 2, n 3, h 3; writes h and a workspace of 5
    hand("_thnn_fused_gru_cell", 10 * 15, 4 * (45 + 45 + 15 + 6 * 15), input_gates=f32(3, 15), hidden_gates=f32(3, 15),
         hx=f32(3, 5)),
    # z 5, n 5, r 4, the hidden gate 1, h 1; writes two times 3 gates, and h
    hand("_thnn_fused_gru_cell_backward", 16 * 15, 4 * (15 + 75 + 7 * 15), grad_hy=f32(3, 5), workspace=f32(3, 25),
         has_bias=False),
]  # fmt: skip

# rows of 5 in [3, 4, 5]: 12 rows, 60 elements. Mean 1, variance 3, normalise 2, weight 1, bias 1
ROWS = f32(3, 4, 5)
CHANNELS = {"input": f32(2, 4, 3, 3), "weight": f32(4), "bias": f32(4)}
RUNNING = {"running_mean": f32(4), "running_var": f32(4)}
BN_BACK = {"grad_out": f32(2, 4, 3, 3), "input": f32(2, 4, 3, 3), "weight": f32(4), **RUNNING, "save_mean": f32(4),
           "eps": 1e-5, "output_mask": [True] * 3}  # fmt: skip

NORMALISATIONS = [
    # 20 weights in 4 rows: three a weight, root and division a row; the result and the norms are written
    hand("_weight_norm_interface", 3 * 20 + 2 * 4, 4 * (20 + 4 + 20 + 4), v=f32(4, 5), g=f32(4, 1), dim=0),
    hand("_weight_norm", 3 * 20 + 2 * 4, 4 * (20 + 4 + 20 + 4), v=f32(4, 5), g=f32(4, 1), dim=0),
    hand("_weight_norm_interface", 3 * 20 + 2 * 4, 2 * (20 + 4 + 20) + 4 * 4, v=bf16(4, 5), g=bf16(4, 1), dim=0),
    hand("_weight_norm_interface_backward", 5 * 20 + 3 * 4, 4 * (20 + 20 + 4 + 4 + 20 + 4), grad_w=f32(4, 5),
         saved_v=f32(4, 5), saved_g=f32(4, 1), saved_norms=f32(4, 1), dim=0),
    hand("layer_norm", 8 * 60, 4 * (60 + 10 + 60), input=ROWS, normalized_shape=[5], weight=f32(5), bias=f32(5)),
    hand("native_layer_norm", 8 * 60, 4 * (60 + 10 + 60 + 24), input=ROWS, normalized_shape=[5], weight=f32(5),
         bias=f32(5), eps=1e-5),
    # bfloat16 in and out, mean and scale in float
    hand("native_layer_norm", 6 * 60, 2 * (60 + 60) + 4 * 24, input=bf16(3, 4, 5), normalized_shape=[5], weight=None,
         bias=None, eps=1e-5),
    # normalised input 2, bias 1, weight 2; input: weight 1, mean 1, mean of the product 2, together 4
    hand("native_layer_norm_backward", 13 * 60, 4 * (60 + 60 + 24 + 5 + 60 + 10), grad_out=ROWS, input=ROWS,
         normalized_shape=[5], mean=f32(3, 4, 1), rstd=f32(3, 4, 1), weight=f32(5), bias=None, output_mask=[True] * 3),
    hand("native_layer_norm_backward", 10 * 60, 4 * (60 + 60 + 24 + 5 + 60), grad_out=ROWS, input=ROWS,
         normalized_shape=[5], mean=f32(3, 4, 1), rstd=f32(3, 4, 1), weight=f32(5), bias=None,
         output_mask=[True, False, False]),
    # square 1, sum 1, scale 1, weight 1
    hand("rms_norm", 4 * 60, 4 * (60 + 5 + 60), input=ROWS, normalized_shape=[5], weight=f32(5)),
    hand("_fused_rms_norm", 3 * 60, 4 * (60 + 60 + 12), input=ROWS, normalized_shape=[5], weight=None, eps=None),
    # normalised input 1, weight 2; input: weight 1, mean of the product 2, together 3
    hand("_fused_rms_norm_backward", 9 * 60, 4 * (60 + 60 + 12 + 5 + 60 + 5), grad_out=ROWS, input=ROWS,
         normalized_shape=[5], rstd=f32(3, 4, 1), weight=f32(5), output_mask=[True, True]),
    # two groups of two channels in each of two images
    hand("native_group_norm", 8 * 72, 4 * (72 + 8 + 72 + 2 * 4), **CHANNELS, N=2, C=4, HxW=9, group=2, eps=1e-5),
    hand("native_group_norm_backward", 13 * 72, 4 * (72 + 72 + 8 + 4 + 72 + 8), grad_out=f32(2, 4, 3, 3),
         input=f32(2, 4, 3, 3), mean=f32(2, 2), rstd=f32(2, 2), weight=f32(4), N=2, C=4, HxW=9, group=2,
         output_mask=[True] * 3),
    # in training running statistics are read and written, and mean and scale are results; in inference scale and shift
    hand("native_batch_norm", 8 * 72, 4 * (72 + 8 + 8 + 72 + 8 + 8), **CHANNELS, **RUNNING, training=True, momentum=0.1,
         eps=1e-5),
    hand("batch_norm", 2 * 72, 4 * (72 + 8 + 8 + 72), **CHANNELS, **RUNNING, training=False, momentum=0.1, eps=1e-5,
         cudnn_enabled=True),
    hand("_native_batch_norm_legit", 8 * 72, 4 * (72 + 8 + 72 + 8), **CHANNELS, training=True, momentum=0.1, eps=1e-5),
    hand("_batch_norm_with_update", 8 * 72, 4 * (72 + 8 + 8 + 72 + 8 + 8), **CHANNELS, **RUNNING, momentum=0.1,
         eps=1e-5),
    hand("native_batch_norm_backward", 13 * 72, 4 * (72 + 72 + 4 + 8 + 72 + 8), **BN_BACK, save_invstd=f32(4),
         train=True),
    # in inference the input's gradient is a scale: weight 1, scale 1; weight 2 + 2, bias 1
    hand("native_batch_norm_backward", 7 * 72, 4 * (72 + 72 + 4 + 8 + 72 + 8), **BN_BACK, save_invstd=f32(4),
         train=False),
    hand("cudnn_batch_norm_backward", 13 * 72, 4 * (72 + 72 + 4 + 8 + 72 + 8), input=f32(2, 4, 3, 3),
         grad_output=f32(2, 4, 3, 3), weight=f32(4), **RUNNING, save_mean=f32(4), save_var=f32(4), epsilon=1e-5,
         reserveSpace=of("unsigned char", 0)),
    hand("batch_norm_backward", 13 * 72, 4 * (72 + 72 + 4 + 8 + 72 + 8), **BN_BACK, save_var=f32(4), update=True,
         reserve=of("unsigned char", 0)),
]  # fmt: skip

REDUCTIONS = [
    # one step per input element; the result has the shape that is left
    hand("sum", 60, 4 * (60 + 1), self=ROWS),
    hand("sum", 60, 4 * (60 + 15), self=ROWS, dim=[1]),
    hand("sum", 60, 4 * (60 + 4), self=ROWS, dim=[0, -1], keepdim=True),
    hand("sum", 60, 4 * (60 + 1), self=ROWS, dim=[]),
    hand("sum", 60, 60 + 8 * 15, self=of(BOOL, 3, 4, 5), dim=[1]),  # of whole numbers: int64
    hand("sum", 60, 2 * 60 + 4 * 15, self=bf16(3, 4, 5), dim=[1], dtype=torch.float32),
    hand("sum", 60, 60 + 4, self=of(BOOL, 3, 4, 5), dtype=torch.int32),
    hand("mean", 60, 4 * (60 + 12), self=ROWS, dim=[2]),
    hand("mean", 60, 2 * 60 + 4, self=bf16(3, 4, 5), dtype=torch.float32, out=f32()),  # written into a given result
    hand("sum", 60, 4 * (60 + 12), self=ROWS, dim=[2], out=f32(3, 4)),
    hand("prod", 60, 4 * (60 + 12), self=ROWS, dim=2),
    hand("amax", 60, 4 * (60 + 4), self=ROWS, dim=[0, 2]),
    hand("aminmax", 60, 4 * (60 + 2 * 12), self=ROWS, dim=2),
    hand("argmax", 60, 4 * 60 + 8 * 12, self=ROWS, dim=2),
    hand("argmax", 60, 4 * 60 + 8, self=ROWS),
    hand("max", 60, 4 * (60 + 1), self=ROWS),
    hand("max", 60, 4 * 60 + (4 + 8) * 15, self=ROWS, dim=1),  # with int64 indices
    hand("min", 60, 4 * 3 * 60, self=ROWS, other=ROWS),  # of two tensors, elementwise
    hand("any", 60, 60 + 1, self=of(BOOL, 3, 4, 5)),
    hand("all", 60, 60 + 12, self=of(BOOL, 3, 4, 5), dim=2),
    hand("count_nonzero", 60, 4 * 60 + 8, self=ROWS),
    # mean, difference, square, sum
    hand("var", 4 * 60, 4 * (60 + 1), self=ROWS, unbiased=True),
    hand("std", 4 * 60, 4 * (60 + 15), self=ROWS, dim=[1], correction=1),
    hand("var_mean", 4 * 60, 4 * (60 + 2 * 15), self=ROWS, dim=[1], correction=1),
    # power, sum
    hand("norm", 2 * 60, 4 * (60 + 1), self=ROWS, p=2),
    hand("norm", 2 * 60, 4 * (60 + 15), self=ROWS, p=2, dim=[1]),
    hand("linalg_vector_norm", 2 * 60, 4 * (60 + 1), self=ROWS),
    hand("linalg_vector_norm", 2 * 60, 4 * (60 + 5), self=ROWS, dim=[0, 1]),
    hand("_foreach_norm", 2 * 70, 4 * (70 + 2), self=[ROWS, f32(10)]),
    hand("_foreach_max", 70, 4 * (70 + 2), self=[ROWS, f32(10)]),
    # maximum, difference, exponential, sum
    hand("logsumexp", 4 * 60, 4 * (60 + 12), self=ROWS, dim=[2]),
    hand("cumsum", 60, 4 * 2 * 60, self=ROWS, dim=1),
    hand("cumsum", 60, (1 + 8) * 60, self=of(BOOL, 3, 4, 5), dim=1),
    hand("cummax", 60, 4 * 60 + (4 + 8) * 60, self=ROWS, dim=1),
    # comparisons depend on the algorithm; values and int64 indices are written
    hand("sort", None, 4 * 60 + 12 * 60, self=ROWS, dim=1),
    hand("topk", None, 4 * 60 + 12 * 12 * 2, self=ROWS, k=2),
    hand("kthvalue", None, 4 * 60 + 12 * 12, self=ROWS, k=2),
    hand("median", None, 4 * 60 + 12 * 15, self=ROWS, dim=1),
    hand("searchsorted", None, 4 * (10 + 6) + 8 * 6, sorted_sequence=f32(10), self=f32(6)),
    hand("bucketize", None, 4 * (10 + 6) + 8 * 6, self=f32(6), boundaries=f32(10)),
]  # fmt: skip

IMAGES, POOLED = f32(2, 3, 8, 8), f32(2, 3, 4, 4)  # 384 and 96 elements
POOL = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0]}
POOLING = [
    hand("max_pool2d", 96 * 4, 4 * (384 + 96), self=IMAGES, kernel_size=[2, 2]),
    # 7 x 7 windows of 3 x 3 every 2 with a padding of 1: (8 + 2 - 3) // 2 + 1 = 4
    hand("max_pool2d", 96 * 9, 4 * (384 + 96), self=IMAGES, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
    # rounded up, 3 x 3 every 3: 8 gives 3
    hand("max_pool2d", 54 * 9, 4 * (384 + 54), self=IMAGES, kernel_size=[3, 3], ceil_mode=True),
    hand("max_pool1d", 2 * 3 * 4 * 2, 4 * (48 + 24), self=f32(2, 3, 8), kernel_size=[2]),
    hand("max_pool3d", 2 * 3 * 8 * 8, 4 * (384 + 48), self=f32(2, 3, 4, 4, 4), kernel_size=[2, 2, 2]),
    hand("mkldnn_max_pool2d", 96 * 4, 4 * (384 + 96), self=IMAGES, kernel_size=[2, 2]),
    hand("max_pool2d_with_indices", 96 * 4, 4 * 384 + 12 * 96, self=IMAGES, kernel_size=[2, 2]),
    hand("max_pool3d_with_indices", 2 * 3 * 8 * 8, 4 * 384 + 12 * 48, self=f32(2, 3, 4, 4, 4), kernel_size=[2, 2, 2]),
    # each gradient is added where the maximum was
    hand("max_pool2d_with_indices_backward", 96, 4 * 96 + 8 * 96 + 4 * 384, grad_output=POOLED, self=IMAGES, **POOL,
         dilation=[1, 1], ceil_mode=False, indices=i64(2, 3, 4, 4)),
    hand("avg_pool2d", 96 * 4, 4 * (384 + 96), self=IMAGES, kernel_size=[2, 2]),
    hand("avg_pool1d", 2 * 3 * 4 * 2, 4 * (48 + 24), self=f32(2, 3, 8), kernel_size=[2]),
    hand("avg_pool3d", 2 * 3 * 8 * 8, 4 * (384 + 48), self=f32(2, 3, 4, 4, 4), kernel_size=[2, 2, 2]),
    hand("avg_pool2d_backward", 96 * 4, 4 * (96 + 384), grad_output=POOLED, self=IMAGES, **POOL, ceil_mode=False,
         count_include_pad=True, divisor_override=None),
    hand("avg_pool3d_backward", 48 * 8, 4 * (48 + 384), grad_output=f32(2, 3, 2, 2, 2), self=f32(2, 3, 4, 4, 4),
         kernel_size=[2, 2, 2], stride=[2, 2, 2], padding=[0, 0, 0], ceil_mode=False, count_include_pad=True,
         divisor_override=None),
    # every input element is added once
    hand("adaptive_avg_pool2d", 384, 4 * (384 + 6), self=IMAGES, output_size=[1, 1]),
    hand("_adaptive_avg_pool2d_backward", 384, 4 * (6 + 384), grad_output=f32(2, 3, 1, 1), self=IMAGES),
    # or compared once: 2 x 3 results, and where they were
    hand("adaptive_max_pool2d", 384, 4 * 384 + 12 * 6, self=IMAGES, output_size=[1, 1]),
    hand("adaptive_max_pool2d_backward", 6, 12 * 6 + 4 * 384, grad_output=f32(2, 3, 1, 1), self=IMAGES,
         indices=i64(2, 3, 1, 1)),
    hand("adaptive_max_pool3d", 48, 4 * 48 + 12 * 6, self=f32(2, 3, 2, 2, 2), output_size=[1, 1, 1]),
    hand("adaptive_max_pool3d_backward", 6, 12 * 6 + 4 * 48, grad_output=f32(2, 3, 1, 1, 1), self=f32(2, 3, 2, 2, 2),
         indices=i64(2, 3, 1, 1, 1)),
    # 3 x 3 windows of 2 x 2 of each of 6 images, at places by two random numbers an image
    hand("fractional_max_pool2d", 54 * 4, 4 * (384 + 12) + 12 * 54, self=IMAGES, kernel_size=[2, 2],
         output_size=[3, 3], random_samples=f32(2, 3, 2)),
    hand("fractional_max_pool2d_backward", 54, 12 * 54 + 4 * 384, grad_output=f32(2, 3, 3, 3), self=IMAGES,
         kernel_size=[2, 2], output_size=[3, 3], indices=i64(2, 3, 3, 3)),
    hand("fractional_max_pool3d_backward", 48, 12 * 48 + 4 * 384, grad_output=f32(2, 3, 2, 2, 2),
         self=f32(2, 3, 4, 4, 4), kernel_size=[2, 2, 2], output_size=[2, 2, 2], indices=i64(2, 3, 2, 2, 2)),
    # back to where the maxima were, and zero elsewhere
    hand("max_unpool2d", 0, 12 * 96 + 4 * 384, self=POOLED, indices=i64(2, 3, 4, 4), output_size=[8, 8]),
    hand("max_unpool3d", 0, 12 * 6 + 4 * 48, self=f32(2, 3, 1, 1, 1), indices=i64(2, 3, 1, 1, 1),
         output_size=[2, 2, 2], stride=[2, 2, 2], padding=[0, 0, 0]),
]  # fmt: skip

TABLE_OF, INDEX = f32(1000, 16), i64(3, 5)
LOOKUPS = [
    # 15 rows of 16: read, and written
    hand("embedding", 0, 8 * 15 + 4 * 2 * 240, weight=TABLE_OF, indices=INDEX),
    hand("index_select", 0, 8 * 5 + 4 * 2 * 80, self=TABLE_OF, dim=0, index=i64(5)),
    hand("index_select", 0, 8 * 5 + 4 * 2 * 5000, self=TABLE_OF, dim=-1, index=i64(5)),
    hand("gather", 0, 8 * 15 + 4 * 2 * 15, self=TABLE_OF, dim=1, index=INDEX),
    hand("take", 0, 8 * 15 + 4 * 2 * 15, self=TABLE_OF, index=INDEX),
    hand("take_along_dim", 0, 8 * 15 + 4 * 2 * 15, self=TABLE_OF, indices=INDEX, dim=1),
    # in place: index and source are read, elements of the table written; out of place the whole table is
    hand("scatter_", 0, 8 * 15 + 4 * 15 + 4 * 15, self=TABLE_OF, dim=0, index=INDEX, src=f32(3, 5)),
    hand("scatter_", 0, 8 * 15 + 4 * 15, self=TABLE_OF, dim=0, index=INDEX, value=1.0),
    hand("scatter", 0, 8 * 15 + 4 * 15 + 4 * 2 * 16000, self=TABLE_OF, dim=0, index=INDEX, src=f32(3, 5)),
    # added to: the elements are read, too
    hand("scatter_add_", 15, 8 * 15 + 4 * 3 * 15, self=TABLE_OF, dim=0, index=INDEX, src=f32(3, 5)),
    hand("scatter_reduce_", 15, 8 * 15 + 4 * 3 * 15, self=TABLE_OF, dim=0, index=INDEX, src=f32(3, 5), reduce="amax"),
    hand("scatter_reduce", 15, 8 * 15 + 4 * (15 + 2 * 16000), self=TABLE_OF, dim=0, index=INDEX, src=f32(3, 5),
         reduce="sum"),
    hand("index_add_", 80, 8 * 5 + 4 * 3 * 80, self=TABLE_OF, dim=0, index=i64(5), source=f32(5, 16)),
    hand("index_copy_", 0, 8 * 5 + 4 * 2 * 80, self=TABLE_OF, dim=0, index=i64(5), source=f32(5, 16)),
    hand("index_fill_", 0, 8 * 5 + 4 * 80, self=TABLE_OF, dim=0, index=i64(5), value=0),
    # the table's whole gradient is written
    hand("embedding_dense_backward", 240, 4 * 240 + 8 * 15 + 4 * 16000, grad_output=f32(3, 5, 16), indices=INDEX,
         num_weights=1000, padding_idx=-1, scale_grad_by_freq=False),
    hand("embedding_backward", 0, 4 * 240 + 8 * 15 + 4 * 240, grad=f32(3, 5, 16), indices=INDEX, num_weights=1000,
         padding_idx=-1, scale_grad_by_freq=False, sparse=True),
    hand("index_select_backward", 80, 4 * 80 + 8 * 5 + 4 * 16000, grad=f32(5, 16), self_sizes=[1000, 16], dim=0,
         index=i64(5)),
    hand("gather_backward", 15, 4 * 15 + 8 * 15 + 4 * 16000, grad=f32(3, 5), self=TABLE_OF, dim=0, index=INDEX,
         sparse_grad=False),
    hand("select_backward", 0, 4 * 16 + 4 * 16000, grad_output=f32(16), input_sizes=[1000, 16], dim=0, index=3),
    hand("diagonal_backward", 0, 4 * 4 + 4 * 20, grad_output=f32(4), input_sizes=[4, 5], offset=0, dim1=0, dim2=1),
    hand("unfold_backward", 60, 4 * 60 + 4 * 30, grad_in=f32(10, 6), input_sizes=[30], dim=0, size=6, step=3),
    # whose indices are not in a trace; tests/test_layer_costs.py has them
    hand("index", 0, None, self=TABLE_OF, indices=None),
    hand("index_put_", 0, None, self=TABLE_OF, indices=None, values=f32(5, 16)),
    hand("index_put_", None, None, self=TABLE_OF, indices=None, values=f32(5, 16), accumulate=True),
    # 15 rows into 2 bags: an addition per element, with weights a product, too; a mean divides
    hand("_embedding_bag", 240, 4 * 240 + 8 * (15 + 2) + 4 * 32, weight=TABLE_OF, indices=i64(15), offsets=i64(2)),
    hand("_embedding_bag", 240 + 32, 4 * 240 + 8 * (15 + 3) + 4 * 32, weight=TABLE_OF, indices=i64(15), offsets=i64(3),
         mode=1, include_last_offset=True),
    hand("_embedding_bag_forward_only", 2 * 240, 4 * (240 + 15) + 8 * 17 + 4 * 32, weight=TABLE_OF, indices=i64(15),
         offsets=i64(2), per_sample_weights=f32(15)),
    hand("_embedding_bag_backward", 240, 4 * 32 + 8 * (15 + 15) + 4 * 16000, grad=f32(2, 16), indices=i64(15),
         offsets=i64(2), offset2bag=i64(15), bag_size=i64(2), maximum_indices=i64(2), num_weights=1000,
         scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None),
    hand("_embedding_bag_dense_backward", 240, 4 * 32 + 8 * (15 + 15) + 4 * 16000, grad=f32(2, 16), indices=i64(15),
         offset2bag=i64(15), bag_size=i64(2), maximum_indices=i64(2), num_weights=1000, scale_grad_by_freq=False,
         mode=0, per_sample_weights=None),
    # of each of 15 rows a product with the gradient of its bag: 16 products and additions
    hand("_embedding_bag_per_sample_weights_backward", 2 * 240, 4 * (32 + 240 + 15) + 8 * (15 + 15), grad=f32(2, 16),
         weight=TABLE_OF, indices=i64(15), offsets=i64(2), offset2bag=i64(15), mode=0),
    hand("_embedding_bag_sparse_backward", 0, 4 * 32 + 8 * (15 + 15) + 4 * 240, grad=f32(2, 16), indices=i64(15),
         offsets=i64(2), offset2bag=i64(15), bag_size=i64(2), num_weights=1000, scale_grad_by_freq=False, mode=0,
         per_sample_weights=None),
]  # fmt: skip

BYTE = of("unsigned char", 3, 4)
ELEMENTWISE = [
    # one per output element; operands are broadcast
    hand("add", 12, 4 * 3 * 12, self=f32(3, 4), other=f32(3, 4)),
    hand("add", 12, 4 * (3 + 4 + 12), self=f32(3, 1), other=f32(4)),
    hand("add_", 12, 4 * (12 + 4 + 12), self=f32(3, 4), other=f32(4)),
    hand("sub", 12, 4 * (12 + 1 + 12), self=f32(3, 4), other=f32()),
    hand("mul", 12, 2 * 12 + 4 * 12 + 4 * 12, self=bf16(3, 4), other=f32(3, 4)),  # the wider float wins
    hand("div", 12, 12 + 12 + 4 * 12, self=BYTE, other=BYTE),  # whole numbers divide into floats
    hand("pow", 12, 4 * 2 * 12, self=f32(3, 4), exponent=2.0),
    hand("gelu", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("gelu_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), self=f32(3, 4)),
    hand("silu", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("silu_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), self=f32(3, 4)),
    hand("elu", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("elu_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), alpha=1.0, scale=1.0, input_scale=1.0, is_result=False,
         self_or_result=f32(3, 4)),
    hand("relu", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("log_sigmoid_forward", 12, 4 * 2 * 12, self=f32(3, 4)),
    # with its slopes, which are drawn in training alone
    hand("rrelu_with_noise", 12, 4 * 3 * 12, self=f32(3, 4), noise=f32(3, 4), training=True),
    hand("rrelu_with_noise", 12, 4 * 2 * 12, self=f32(3, 4), noise=f32(3, 4)),
    hand("rrelu_with_noise_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), self=f32(3, 4), noise=f32(3, 4),
         lower=0.1, upper=0.3, training=True, self_is_result=False),
    # gradients of the input and, element by element, of the slope of each of 4 channels
    hand("_prelu_kernel_backward", 2 * 12, 4 * (4 * 12 + 4), grad_output=f32(3, 4), self=f32(3, 4), weight=f32(1, 4)),
    hand("threshold_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), self=f32(3, 4), threshold=0.0),
    hand("tanh", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("tanh_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), output=f32(3, 4)),
    hand("sigmoid", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("sigmoid_backward", 12, 4 * 3 * 12, grad_output=f32(3, 4), output=f32(3, 4)),
    hand("neg", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("floor", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("nan_to_num", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("maximum", 12, 4 * 3 * 12, self=f32(3, 4), other=f32(3, 4)),
    hand("erfinv", 12, 4 * 2 * 12, self=f32(3, 4)),
    hand("atan2", 12, 4 * (12 + 4 + 12), self=f32(3, 4), other=f32(4)),
    hand("signbit", 12, 4 * 12 + 12, self=f32(3, 4)),
    hand("hardshrink_backward", 12, 4 * 3 * 12, grad_out=f32(3, 4), self=f32(3, 4), lambd=0.5),
    hand("eq", 12, 4 * 2 * 12 + 12, self=f32(3, 4), other=f32(3, 4)),  # a bool is a byte
    hand("addcmul", 12, 4 * 4 * 12, self=f32(3, 4), tensor1=f32(3, 4), tensor2=f32(3, 4)),
    hand("_foreach_add_", 30, 4 * 3 * 30, self=[f32(10), f32(4, 5)], other=[f32(10), f32(4, 5)]),
    hand("_foreach_sqrt", 30, 4 * 2 * 30, self=[f32(10), f32(4, 5)]),
    # half of 12 times the sigmoid of the other half
    hand("glu", 12, 4 * (12 + 6), self=f32(3, 4)),
    hand("glu_backward", 12, 4 * (6 + 12 + 12), grad_output=f32(3, 2), self=f32(3, 4), dim=-1),
    # maximum, difference, exponential, sum, quotient
    hand("softmax", 5 * 12, 4 * 2 * 12, self=f32(3, 4), dim=1),
    hand("softmax", 5 * 12, (2 + 4) * 12, self=bf16(3, 4), dim=1, dtype=torch.float32),
    hand("_log_softmax", 5 * 12, (2 + 4) * 12, self=of("c10::Half", 3, 4), dim=1, half_to_float=True),
    hand("_safe_softmax", 5 * 12, 4 * 2 * 12, self=f32(3, 4), dim=1),
    hand("_masked_softmax", 5 * 12, 4 * 2 * 12 + 12, self=f32(3, 4), mask=of(BOOL, 3, 4)),
    # y (g - sum(g y))
    hand("_softmax_backward_data", 4 * 12, 4 * 3 * 12, grad_output=f32(3, 4), output=f32(3, 4), dim=1,
         input_dtype=torch.float32),
]  # fmt: skip

LOGITS = f32(6, 10)
NLL = {"reduction": 1, "ignore_index": -100}
LOSSES = [
    # five steps of softmax per logit, and the sum of 6; the loss is one number
    hand("cross_entropy_loss", 5 * 60 + 6, 4 * 60 + 8 * 6 + 4, self=LOGITS, target=i64(6)),
    # a logarithm per target, the loss and the sum of weights
    hand("nll_loss_forward", 6, 8 * 6 + 4 * (6 + 1 + 1), self=LOGITS, target=i64(6), weight=None, **NLL),
    # the gradient of all 60 is written; of the input only the shape is used
    hand("nll_loss_backward", 6, 4 + 8 * 6 + 4 + 4 * 60, grad_output=f32(), self=LOGITS, target=i64(6), weight=None,
         **NLL, total_weight=f32()),
    hand("binary_cross_entropy", 2 * 60, 4 * (2 * 60 + 1), self=LOGITS, target=LOGITS),
    hand("binary_cross_entropy_with_logits", 60, 4 * 3 * 60, self=LOGITS, target=LOGITS, reduction=0),
    # one per element, and one for the sum
    hand("mse_loss", 2 * 60, 4 * (2 * 60 + 1), self=LOGITS, target=LOGITS),
    hand("mse_loss_backward", 60, 4 * (1 + 3 * 60), grad_output=f32(), self=LOGITS, target=LOGITS, reduction=1),
    hand("soft_margin_loss", 2 * 60, 4 * (2 * 60 + 1), self=LOGITS, target=LOGITS),
    hand("soft_margin_loss_backward", 60, 4 * (1 + 3 * 60), grad_output=f32(), self=LOGITS, target=LOGITS, reduction=1),
    # ten classes of each of 6 items, which are summed up in any case
    hand("multi_margin_loss", 2 * 60, 4 * (60 + 10 + 6) + 8 * 6, self=LOGITS, target=i64(6), weight=f32(10),
         reduction=0),
    hand("multi_margin_loss_backward", 60, 4 * (1 + 2 * 60) + 8 * 6, grad_output=f32(), self=LOGITS, target=i64(6),
         p=1, margin=1),
    # how many labels an item has is in the data; of each class it is noted whether it is one
    hand("multilabel_margin_loss_forward", None, 4 * (2 * 60 + 1) + 8 * 60, self=LOGITS, target=i64(6, 10),
         reduction=1),
    hand("multilabel_margin_loss_backward", None, 4 * (1 + 3 * 60) + 8 * 60, grad_output=f32(), self=LOGITS,
         target=i64(6, 10), reduction=1, is_target=LOGITS),
    hand("huber_loss", 2 * 60, 4 * (2 * 60 + 1), self=LOGITS, target=LOGITS),
    hand("kl_div", 2 * 60, 4 * (2 * 60 + 1), self=LOGITS, target=LOGITS),
    # how long the sequences are is not in a trace
    hand("ctc_loss", None, 4 * 7 * 3 * 5 + 8 * 6 + 4 * 3, log_probs=f32(7, 3, 5), targets=i64(3, 2),
         input_lengths=[7, 7, 7], target_lengths=[2, 2, 2]),
    hand("_ctc_loss_backward", None, 4 * (3 + 105 + 3 + 105) + 8 * 6 + 4 * 105, grad=f32(3), log_probs=f32(7, 3, 5),
         targets=i64(3, 2), input_lengths=[7, 7, 7], target_lengths=[2, 2, 2], neg_log_likelihood=f32(3),
         log_alpha=f32(3, 7, 5), blank=0),
]  # fmt: skip

WEIGHTS = [f32(10), f32(4, 5)]  # 30 elements
STEPS = [f32(), f32()]
RATES = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False, "maximize": False}
ADAM = {"self": WEIGHTS, "grads": WEIGHTS, "exp_avgs": WEIGHTS, "exp_avg_sqs": WEIGHTS, "state_steps": STEPS, **RATES}
SGD = {"self": WEIGHTS, "grads": WEIGHTS, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "maximize": False}
OPTIMIZERS = [
    # rate x gradient, subtracted; weights and gradients read, weights written
    hand("_fused_sgd_", 2 * 30, 4 * 30 * (2 + 1), **SGD, momentum_buffer_list=[], weight_decay=0.0, nesterov=False,
         is_first_step=False),
    # momentum 3, Nesterov's 2, decay 2; the buffers are read and written
    hand("_fused_sgd_", 9 * 30, 4 * 30 * (3 + 2), **SGD, momentum_buffer_list=WEIGHTS, weight_decay=0.1, nesterov=True,
         is_first_step=False),
    # mean 3, mean square 4, root 3, step 3; four lists and the step counts read, three written
    hand("_fused_adam_", 13 * 30, 4 * (30 * (4 + 3) + 2), **ADAM, max_exp_avg_sqs=[], weight_decay=0.0),
    hand("_fused_adam_", 16 * 30, 4 * (30 * (5 + 4) + 2), **ADAM, max_exp_avg_sqs=WEIGHTS, weight_decay=0.1),
    hand("_fused_adamw_", 14 * 30, 4 * (30 * (4 + 3) + 2), **ADAM, max_exp_avg_sqs=[], weight_decay=0.1),
    # square, add; root, add, divide, multiply, subtract
    hand("_fused_adagrad_", 7 * 30, 4 * (30 * (3 + 2) + 2), self=WEIGHTS, grads=WEIGHTS, state_sums=WEIGHTS,
         state_steps=STEPS, lr=0.1, lr_decay=0.0, weight_decay=0.0, eps=1e-8, maximize=False),
    hand("_amp_foreach_non_finite_check_and_unscale_", 30, 4 * (2 * 30 + 2 + 1), self=WEIGHTS, found_inf=f32(),
         inv_scale=f32()),
]  # fmt: skip

MOVEMENT = [
    *(hand(op, 0, 0, self=f32(3, 4)) for op in ("t", "detach", "item", "alias")),
    hand("expand", 0, 0, self=f32(3, 1), size=[3, 4]),
    hand("view", 0, 0, self=f32(3, 4), size=[12]),
    hand("empty", 0, 0, size=[3, 4]),
    hand("_fused_sdp_choice", 0, 0, **QKV),
    # read and written
    hand("clone", 0, 4 * 2 * 12, self=f32(3, 4)),
    hand("clone", 0, 4 * (4 + 12), self=expanded(3, 4)),
    hand("_reshape_copy", 0, 4 * 2 * 12, self=f32(3, 4), size=[12]),
    hand("tril", 0, 4 * 2 * 12, self=f32(3, 4)),
    hand("_to_copy", 0, (4 + 2) * 12, self=f32(3, 4), dtype=torch.bfloat16),
    hand("copy_", 0, 12 + 4 * 12, self=f32(3, 4), src=BYTE),
    hand("_foreach_copy_", 0, 4 * 2 * 30, self=WEIGHTS, src=WEIGHTS),
    # written
    hand("zero_", 0, 4 * 12, self=f32(3, 4)),
    hand("_foreach_zero_", 0, 4 * 30, self=WEIGHTS),
    hand("zeros", 0, 2 * 12, size=[3, 4], dtype=torch.float16),
    hand("scalar_tensor", 0, 4, s=0.5),
    hand("full", 0, 4 * 12, size=[3, 4], fill_value=1.0),
    hand("zeros_like", 0, 2 * 12, self=bf16(3, 4)),
    hand("full_like", 0, 4 * 12, self=f32(3, 4), fill_value=1.0),
    hand("new_zeros", 0, 2 * 6, self=bf16(3, 4), size=[2, 3]),
    hand("new_full", 0, 2 * 6, self=bf16(3, 4), size=[2, 3], fill_value=1.0),
    hand("arange", 0, 8 * 5, end=5),
    hand("arange", 0, 8 * 3, start=0, end=5, step=2),
    hand("arange", 0, 4 * 3, start=2, end=5, dtype=torch.float32),
    hand("eye", 0, 4 * 9, n=3),
    hand("repeat", 0, 4 * (12 + 24), self=f32(3, 4), repeats=[2, 1]),
    hand("repeat_interleave", 0, 4 * (12 + 24), self=f32(3, 4), repeats=2, dim=0),
    hand("constant_pad_nd", 0, 4 * (12 + 3 * 7), self=f32(3, 4), pad=[1, 2]),
    hand("reflection_pad2d", 0, 4 * (12 + 5 * 6), self=f32(1, 3, 4), padding=[1, 1, 1, 1]),
    hand("linspace", 0, 4 * 5, start=0, end=1, steps=5),
    hand("diag_embed", 0, 4 * (6 + 2 * 16), self=f32(2, 3), offset=-1),
    # 12 of the 30 gradients are added to those of what was copied
    hand(
        "reflection_pad2d_backward",
        30,
        4 * (30 + 12),
        grad_output=f32(1, 5, 6),
        self=f32(1, 3, 4),
        padding=[1, 1, 1, 1],
    ),
    hand("replication_pad1d_backward", 18, 4 * (18 + 12), grad_output=f32(3, 6), self=f32(3, 4), padding=[1, 1]),
    hand("cat", 0, 4 * 2 * 30, tensors=[f32(10), f32(20)]),
    hand("where", 0, 12 + 4 * 3 * 12, condition=of(BOOL, 3, 4), self=f32(3, 4), other=f32(3, 4)),
    hand("where", 0, None, condition=of(BOOL, 3, 4)),
    hand("masked_fill_", 0, 4 * 2 * 12 + 12, self=f32(3, 4), mask=of(BOOL, 3, 4), value=0.0),
    hand("masked_select", 0, None, self=f32(3, 4), mask=of(BOOL, 3, 4)),
    # random numbers are written; a mask is a byte per element
    hand("normal_", 0, 4 * 12, self=f32(3, 4)),
    hand("uniform_", 0, 4 * 12, self=f32(3, 4)),
    hand("bernoulli_", 0, 4 * 12, self=f32(3, 4), p=0.5),
    hand("bernoulli", 0, 4 * 2 * 12, self=f32(3, 4)),
    hand("randn", 0, 4 * 12, size=[3, 4]),
    hand("randint", 0, 8 * 12, high=9, size=[3, 4]),
    hand("randint", 0, 8 * 12, low=1, high=9, size=[3, 4]),
    hand("randint_like", 0, 8 * 12, self=i64(3, 4), high=9),
    hand("randperm", 0, 8 * 9, n=9),
    hand("multinomial", 0, 4 * 12 + 8 * 6, self=f32(3, 4), num_samples=2),
    hand("native_dropout", 12, 4 * 2 * 12 + 12, input=f32(3, 4), p=0.5, train=True),
    hand("native_dropout_backward", 12, 4 * 2 * 12 + 12, grad_output=f32(3, 4), mask=of(BOOL, 3, 4), scale=2.0),
]

IMAGE = f32(1, 2, 3, 4)  # 24 values
TO_48 = {"output_size": [6, 8], "input_size": [1, 2, 3, 4]}  # and 96 of the result, by two channels
AT_GRID = {"grad_output": f32(1, 2, 5, 5), "input": IMAGE, "grid": f32(1, 5, 5, 2), "interpolation_mode": 0,
           "padding_mode": 0, "align_corners": False}  # fmt: skip
RESAMPLING = [
    hand("upsample_nearest2d", 0, 4 * (24 + 96), self=IMAGE, output_size=[6, 8]),
    hand("upsample_nearest2d", 0, 4 * (24 + 2 * 4 * 6), input=IMAGE, output_size=None, scale_factors=[1.5, 1.5]),
    hand("_upsample_nearest_exact1d", 0, 4 * (6 + 12), self=f32(1, 2, 3), output_size=[6]),
    hand("upsample_nearest3d", 0, 4 * (8 + 64), self=f32(1, 1, 2, 2, 2), output_size=[4, 4, 4]),
    # of the gradient each value is added to one
    hand("upsample_nearest2d_backward", 96, 4 * (96 + 24), grad_output=f32(1, 2, 6, 8), **TO_48),
    # of four values, four products and three additions
    hand("upsample_bilinear2d", 7 * 96, 4 * (24 + 96), self=IMAGE, output_size=[6, 8], align_corners=False),
    hand("upsample_bilinear2d", 7 * 96, 4 * (24 + 96), input=IMAGE, output_size=None, align_corners=False,
         scale_factors=[2.0, 2.0]),
    hand("upsample_bilinear2d_backward", 8 * 96, 4 * (96 + 24), grad_output=f32(1, 2, 6, 8), align_corners=False,
         **TO_48),
    hand("upsample_linear1d", 3 * 12, 4 * (6 + 12), self=f32(1, 2, 3), output_size=[6], align_corners=False),
    hand("upsample_trilinear3d", 15 * 64, 4 * (8 + 64), self=f32(1, 1, 2, 2, 2), output_size=[4, 4, 4],
         align_corners=False),
    hand("upsample_bicubic2d", 31 * 96, 4 * (24 + 96), self=IMAGE, output_size=[6, 8], align_corners=False),
    # back to each of the 2, 8 or 16 values: a product and an addition
    hand("upsample_linear1d_backward", 4 * 12, 4 * (12 + 6), grad_output=f32(1, 2, 6), output_size=[6],
         input_size=[1, 2, 3], align_corners=False),
    hand("upsample_trilinear3d_backward", 16 * 64, 4 * (64 + 8), grad_output=f32(1, 1, 4, 4, 4),
         output_size=[4, 4, 4], input_size=[1, 1, 2, 2, 2], align_corners=False),
    hand("upsample_bicubic2d_backward", 32 * 96, 4 * (96 + 24), grad_output=f32(1, 2, 6, 8), align_corners=False,
         **TO_48),
    # two channels at 25 places; coordinates are read: two for each place
    hand("grid_sampler_2d", 7 * 50, 4 * (24 + 50 + 50), input=IMAGE, grid=f32(1, 5, 5, 2), interpolation_mode=0,
         padding_mode=0, align_corners=False),
    hand("grid_sampler_2d", 0, 4 * (24 + 50 + 50), input=IMAGE, grid=f32(1, 5, 5, 2), interpolation_mode=1,
         padding_mode=0, align_corners=False),
    hand("grid_sampler_3d", 15 * 27, 4 * (8 + 81 + 27), input=f32(1, 1, 2, 2, 2), grid=f32(1, 3, 3, 3, 3),
         interpolation_mode=0, padding_mode=0, align_corners=False),
    # back to each of 4 values of the input a product and an addition; of each of two coordinates 7, and 2 more
    hand("grid_sampler_2d_backward", 50 * (8 + 2 * 9), 4 * (2 * 24 + 3 * 50), output_mask=[True, True], **AT_GRID),
    hand("grid_sampler_2d_backward", 50 * 8, 4 * (50 + 50 + 24), output_mask=[True, False], **AT_GRID),
    hand("grid_sampler_2d_backward", 50, 4 * (50 + 50 + 24), output_mask=[True, False],
         **{**AT_GRID, "interpolation_mode": 1}),
    hand("grid_sampler_3d_backward", 27 * (16 + 3 * 17), 4 * (27 + 8 + 81 + 8 + 81), grad_output=f32(1, 1, 3, 3, 3),
         input=f32(1, 1, 2, 2, 2), grid=f32(1, 3, 3, 3, 3), interpolation_mode=0, padding_mode=0, align_corners=False,
         output_mask=[True, True]),
    # two coordinates at 25 places: each is of two products and two additions
    hand("affine_grid_generator", 5 * 50, 4 * (6 + 50), theta=f32(1, 2, 3), size=[1, 2, 5, 5], align_corners=False),
    hand("pixel_shuffle", 0, 4 * 2 * 36, self=f32(1, 4, 3, 3), upscale_factor=2),
    # 3 x 3 patches of 2 x 2 values of two channels
    hand("im2col", 0, 4 * (32 + 9 * 4 * 2), self=f32(1, 2, 4, 4), kernel_size=[2, 2], dilation=[1, 1],
         padding=[0, 0], stride=[1, 1]),
    hand("im2col", 0, 4 * (32 + 4 * 4 * 2), self=f32(2, 4, 4), kernel_size=[2, 2], dilation=[2, 2],
         padding=[1, 1], stride=[2, 2]),
    hand("col2im", 72, 4 * (72 + 32), self=f32(1, 8, 9), output_size=[4, 4], kernel_size=[2, 2], dilation=[1, 1],
         padding=[0, 0], stride=[1, 1]),
]  # fmt: skip

CFLOAT = of(COMPLEX, 3, 8)  # 24 values of 8 bytes
TRANSFORMS = [
    # 5 N log2 n, half of it with one real side; of 8 real values 5 complex ones are written
    hand("_fft_c2c", 5 * 24 * 3, 8 * 2 * 24, self=CFLOAT, dim=[1], normalization=0, forward=True),
    hand("_fft_c2c", 5 * 32 * 5, 8 * 2 * 32, self=of(COMPLEX, 4, 8), dim=[0, 1], normalization=0, forward=True),
    hand("_fft_r2c", 2.5 * 24 * 3, 4 * 24 + 8 * 3 * 5, self=f32(3, 8), dim=[1], normalization=0, onesided=True),
    hand("_fft_r2c", 2.5 * 24 * 3, 4 * 24 + 8 * 3 * 8, self=f32(3, 8), dim=[-1], normalization=0, onesided=False),
    hand("_fft_c2r", 2.5 * 24 * 3, 8 * 15 + 4 * 24, self=of(COMPLEX, 3, 5), dim=[1], normalization=0,
         last_dim_size=8),
    hand("_fft_r2c", 0, 4 * 3 + 8 * 3, self=f32(3, 1), dim=[1], normalization=0, onesided=True),
]  # fmt: skip

# typed, but what they do depends on a method or on the data: not known
UNKNOWN = [
    hand("complex", None, None, real=f32(3, 4), imag=f32(3, 4)),
    hand("equal", None, None, self=f32(3, 4), other=f32(3, 4)),
    hand("_fake_quantize_learnable_per_tensor_affine", None, None, self=f32(3, 4), scale=f32(1), zero_point=f32(1),
         quant_min=0, quant_max=255),
    hand("dequantize", None, None, self=f32(3, 4)),
    hand("linalg_inv", None, None, A=f32(4, 4)),
    hand("_cdist_forward", None, None, x1=f32(3, 4), x2=f32(5, 4), p=2.0, compute_mode=None),
    hand("renorm", None, None, self=f32(3, 4), p=2.0, dim=0, maxnorm=1.0),
    hand("_upsample_bilinear2d_aa", None, None, self=f32(1, 2, 3, 4), output_size=[6, 8], align_corners=False),
    hand("histc", None, None, self=f32(12)),
]  # fmt: skip

HANDS = [
    *PRODUCTS, *CONVOLUTIONS, *ATTENTIONS, *RECURRENTS, *NORMALISATIONS, *REDUCTIONS, *POOLING, *LOOKUPS, *ELEMENTWISE,
    *LOSSES, *OPTIMIZERS, *MOVEMENT, *RESAMPLING, *TRANSFORMS, *UNKNOWN,
]  # fmt: skip


@pytest.mark.parametrize("each", HANDS, ids=lambda each: each.op)
def test_flop_and_bytes_are_those_counted_by_hand(each: Hand) -> None:
    if each.op in RECENT and not torch._C._jit_get_schemas_for_operator(f"aten::{each.op}"):
        pytest.skip(f"torch {torch.__version__} has no {each.op}")
    call = traced(each.op, **each.given)
    assert (flop(call), bytes_moved(call)) == (each.flop, each.bytes)


def test_every_op_type_has_a_count_by_hand() -> None:
    counted = {type_of(f"aten::{each.op}") for each in HANDS}
    gone = {
        "Conv2DBackFilter",
        "Conv2DBackInput",
    }  # of ops that torch has no longer
    assert {kind for kinds in TABLE.values() for kind in kinds} - counted == gone


def test_every_rule_has_a_count_by_hand() -> None:
    counted = {id(rule_of(f"aten::{each.op}")) for each in HANDS}
    assert sorted(name for name, rule in RULES.items() if id(rule) not in counted) == []


def test_what_has_no_rule_is_not_known() -> None:
    for op in ("aten::_not_an_op", "torchvision::nms", "void gemm_kernel<float>", "aten::miopen_rnn"):
        assert rule_of(op) is None
