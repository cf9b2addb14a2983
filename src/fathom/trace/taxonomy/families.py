"""Families of op types, for readers of today: what the paper's classes put together, and what it did not know."""

from __future__ import annotations

from functools import cache

OTHER = "other"
OPTIMIZER = "optimizer"
FAMILIES: dict[str, str] = {
    "matrix product": "MatMul ScaledMatMul GroupedMatMul SparseMatMul Distance",
    "linear algebra": "LinearAlgebra",
    "convolution": "Conv2D Conv2DBackward Conv2DBackFilter Conv2DBackInput",
    "attention": "ScaledDotProductAttention ScaledDotProductAttentionGrad Attention PagedAttention KVCacheWrite "
    "RotaryEmbedding",
    "recurrent": "RNN LSTM LSTMCell GRUCell",
    "scan": "Scan SelectiveScan LinearAttention",
    "normalisation": "BatchNorm BatchNormGrad LayerNorm LayerNormGrad GroupNorm GroupNormGrad RMSNorm RMSNormGrad "
    "WeightNorm Normalization",
    "activation": "Relu ReluGrad GELU GELUGrad SiLU SiLUGrad ELU ELUGrad GLU GLUGrad Tanh TanhGrad Sigmoid "
    "SigmoidGrad Activation",
    "softmax and loss": "Softmax CrossEntropy MSELoss HuberLoss MarginLoss KLDivLoss CTCLoss",
    "pooling": "MaxPool MaxPoolGrad AvgPool AvgPoolGrad",
    "resampling": "Interpolate InterpolateGrad GridSample GridSampleGrad PixelShuffle RoiAlign",
    "FFT": "FFT",
    "reduction": "Sum Max Histogram",
    "elementwise": "Add Sub Mul Div Pow Special Complex Neg Round Maximum Compare Elementwise",
    "fused": "FusedPointwise FusedReduction CompiledGraph",
    "quantisation": "Quantize Dequantize",
    "embedding": "Embedding EmbeddingGrad EmbeddingBag EmbeddingBagGrad",
    "gather and scatter": "Gather Scatter Select Unfold",
    "routing and sorting": "Sort MoERouting MoEPermute",
    "random and sampling": "RandomNormal RandomUniform Dropout TokenSampling",
    "communication": "AllReduce AllGather ReduceScatter AllToAll SendRecv Broadcast Barrier Collective",
    "copy": "Copy MemcpyHtoD MemcpyDtoH MemcpyDtoD Transpose Tile Pad Concat Fill",
    "allocation and shape": "Reshape Shape Allocate",
    "autograd": "Autograd",
}
_FAMILY_OF = {kind: family for family, kinds in FAMILIES.items() for kind in kinds.split()}


@cache
def family_of(kind: str) -> str:
    """The family of an op type: "communication" of AllReduce, "optimizer" of ApplyAdam; "other" of an unknown type."""
    return OPTIMIZER if kind.startswith("Apply") else _FAMILY_OF.get(kind, OTHER)
