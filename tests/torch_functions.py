"""Calls of common torch functions, whose ops must all have a type; the names in them are those of ARGUMENTS."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

ARGUMENTS: dict[str, Any] = {
    "F": F,
    "torch": torch,
    "x": torch.rand(8, 8) + 0.1,
    "image": torch.rand(1, 4, 8, 8),
    "volume": torch.rand(1, 2, 4, 4, 4),
    "signal": torch.rand(1, 4, 16),
    "index": torch.tensor([0, 2, 1]),
    "mask": torch.eye(8) > 0,
    "square": torch.eye(4) * 2 + 0.1,
    "target": torch.tensor([1, 0, 3, 2, 1, 0, 5, 7]),
    "sign": torch.ones(8, 8),
}

RESAMPLING = """
F.interpolate(image, scale_factor=2); F.interpolate(image, scale_factor=2, mode="bilinear")
F.interpolate(image, scale_factor=2, mode="bicubic"); F.interpolate(image, size=4, mode="area")
F.interpolate(image, size=4, mode="bilinear", antialias=True); F.interpolate(signal, scale_factor=2, mode="linear")
F.interpolate(volume, scale_factor=2, mode="trilinear"); F.interpolate(image, scale_factor=2, mode="nearest-exact")
F.grid_sample(image, torch.rand(1, 5, 5, 2)); F.affine_grid(torch.rand(1, 2, 3), [1, 1, 4, 4])
F.pixel_shuffle(image, 2); F.pixel_unshuffle(image, 2); F.channel_shuffle(image, 2); F.unfold(image, 2)
F.fold(torch.rand(1, 16, 16), 5, 2); F.pad(signal, (1, 1), mode="reflect"); F.pad(signal, (1, 1), mode="replicate")
F.pad(signal, (1, 1), mode="circular"); F.max_pool3d(volume, 2); F.avg_pool3d(volume, 2)
F.adaptive_max_pool2d(image, 2); F.adaptive_avg_pool2d(image, 2); F.lp_pool2d(image, 2.0, 2)
F.fractional_max_pool2d(image, 2, output_size=3); F.max_pool1d(signal, 2)
F.max_unpool2d(*F.max_pool2d(image, 2, return_indices=True), 2); F.conv_transpose2d(image, torch.rand(4, 2, 3, 3))
"""
ACTIVATIONS = """
F.prelu(x, torch.tensor([0.1])); F.hardswish(x); F.mish(x); F.elu(x); F.celu(x); F.selu(x); F.rrelu(x)
F.hardshrink(x); F.softshrink(x); F.tanhshrink(x); F.hardsigmoid(x); F.hardtanh(x); F.logsigmoid(x); F.softplus(x)
F.softsign(x); F.glu(x); F.gelu(x); F.silu(x); F.relu6(x); F.leaky_relu(x); F.threshold(x, 0.1, 0.0); F.softmin(x, 0)
F.gumbel_softmax(x); F.normalize(x); F.group_norm(image, 2); F.instance_norm(image); F.local_response_norm(image, 2)
F.layer_norm(x, [8]); F.rms_norm(x, [8]); F.dropout(x); F.alpha_dropout(x, training=True)
F.feature_alpha_dropout(image, training=True); F.dropout2d(image); F.scaled_dot_product_attention(image, image, image)
F.embedding(index, x); F.embedding_bag(index, x, torch.tensor([0, 2])); F.one_hot(index)
F.bilinear(x, x, torch.rand(3, 8, 8))
"""
LOSSES = """
F.l1_loss(x, sign); F.mse_loss(x, sign); F.smooth_l1_loss(x, sign); F.huber_loss(x, sign); F.kl_div(x, sign)
F.cross_entropy(x, target); F.nll_loss(x, target); F.poisson_nll_loss(x, sign); F.gaussian_nll_loss(x, sign, sign)
F.soft_margin_loss(x, sign.detach()); F.multi_margin_loss(x, target); F.multilabel_margin_loss(x, sign.long())
F.multilabel_soft_margin_loss(x, sign); F.hinge_embedding_loss(x, sign); F.cosine_embedding_loss(x, x, sign[0])
F.triplet_margin_loss(x, x, x); F.margin_ranking_loss(x, x, sign); F.binary_cross_entropy(x.clamp(0, 1), sign)
F.cosine_similarity(x, x); F.pairwise_distance(x, x); torch.cdist(x, x); torch.pdist(x); torch.dist(x, sign)
"""
REDUCTIONS = """
torch.std(x); torch.var_mean(x); torch.median(x); torch.nanmedian(x); torch.mode(x); torch.quantile(x, 0.5)
x.kthvalue(2); torch.logsumexp(x, 0); torch.cumsum(x, 0); torch.cumprod(x, 0); torch.cummax(x, 0)
torch.logcumsumexp(x, 0); x.aminmax(); torch.histc(x); torch.histogram(x, 4); torch.bincount(index); torch.trace(x)
torch.norm(x); torch.count_nonzero(x); torch.unique(index); torch.unique_consecutive(index); torch.topk(x, 2)
torch.sort(x); torch.argsort(x); x.nanmean(); torch.searchsorted(index, index); torch.bucketize(x, x[0].sort()[0])
torch.nonzero(mask); torch.argwhere(mask); x.amax(0); torch.renorm(x, 2, 0, 1.0); torch.trapezoid(x); torch.diff(x)
torch.cov(x); torch.corrcoef(x); torch.nansum(x)
"""
ARITHMETIC = """
torch.erfinv(x); torch.lgamma(x); torch.digamma(x); torch.polygamma(1, x); torch.mvlgamma(x + 3, 2)
torch.igamma(x.detach(), x.detach()); torch.i0(x); torch.special.i1(x); torch.special.ndtri(x)
torch.special.log_ndtr(x); torch.special.entr(x); torch.logit(x); torch.acos(x); torch.asinh(x); torch.atan2(x, x)
torch.cosh(x); torch.sinc(x); torch.hypot(x, x); torch.xlogy(x, x); torch.logaddexp(x, x); torch.copysign(x, x)
torch.heaviside(x.detach(), x.detach()); torch.frexp(x); torch.ldexp(x, x); torch.nextafter(x, x)
torch.gcd(index, index); torch.bitwise_left_shift(index, 1); torch.float_power(x, 2); torch.isclose(x, x)
torch.allclose(x, x); torch.isin(index, index); torch.equal(x, x); torch.complex(x, x); torch.polar(x, x)
torch.angle(x); torch.sgn(x); torch.clip(x, 0); torch.nan_to_num(x); torch.deg2rad(x)
torch.linalg.cross(x[:, :3], x[:, :3]); torch.addcmul(x, x, x); torch.lerp(x, x, 0.5)
torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()
torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
"""
ALGEBRA = """
torch.linalg.inv(square); torch.linalg.det(square); torch.linalg.slogdet(square); torch.linalg.qr(square)
torch.linalg.svd(square); torch.linalg.eigh(square); torch.linalg.eig(square); torch.linalg.cholesky(square)
torch.linalg.solve(square, square); torch.linalg.lstsq(square, square); torch.linalg.lu(square)
torch.linalg.pinv(square); torch.linalg.matrix_exp(square); torch.linalg.matrix_rank(square)
torch.linalg.cond(square); torch.linalg.norm(square); torch.linalg.multi_dot([x, x, x]); torch.fft.fft(x)
torch.fft.rfft2(x); torch.fft.irfft(torch.fft.rfft(x)); torch.fft.fftn(x); torch.fft.fftshift(x)
torch.stft(signal[0], 8, return_complex=True); torch.einsum("ij,jk", x, x); torch.tensordot(x, x)
torch.kron(square, square); torch.inner(x, x); torch.addmm(x, x, x); torch.baddbmm(image[0], image[0], image[0])
torch.vander(x[0].detach()); torch.block_diag(x, x)
"""
MOVEMENT = """
torch.gather(x, 0, target[None]); torch.scatter(x, 0, target[None], 1.0); torch.scatter_add(x, 0, target[None], x[:1])
x.roll(1); torch.scatter_reduce(x, 0, target[None], x[:1], "amax"); x.index_add(0, index, x[:3])
x.index_copy(0, index, x[:3]); x.flip(0); x.index_fill(0, index, 0.0); torch.take(x, index); x.put(index, x[0, :3])
x.masked_fill(mask, 0.0); x.masked_select(mask); x.masked_scatter(mask, x); torch.where(mask, x, x); torch.tril(x)
torch.triu_indices(4, 4); torch.diag(x); torch.diag_embed(x); x.rot90(); torch.meshgrid(x[0], x[0], indexing="ij")
torch.cartesian_prod(index, index); torch.combinations(index); x.tile(2); x.repeat_interleave(2); torch.cat([x, x])
torch.hstack([x, x]); torch.column_stack([x, x]); torch.tensor_split(x, 3); x.t(); torch.linspace(0, 1, 5)
torch.logspace(0, 1, 5); torch.eye(4); x.to_sparse().to_dense(); torch.view_as_real(x.to(torch.cfloat))
x.as_strided([2], [1]); x.unfold(0, 2, 1); x.new_full([2], 1.0); torch.empty_permuted([2, 3], [1, 0])
x.type_as(index); x.bool(); torch.poisson(x); torch.multinomial(x, 2); torch.normal(x, x)
torch.bernoulli(x.clamp(0, 1)); torch.randperm(4); x.exponential_()
"""
CALLS = [
    call.strip()
    for block in (RESAMPLING, ACTIVATIONS, LOSSES, REDUCTIONS, ARITHMETIC, ALGEBRA, MOVEMENT)
    for line in block.strip().split("\n")
    for call in line.split("; ")
]


def run(call: str) -> None:
    """Evaluates one call, and the backward pass where there is one."""
    arguments = {
        name: value.clone().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in ARGUMENTS.items()
    }
    with torch.enable_grad() if not call.endswith("_()") else torch.no_grad():
        found = eval(call, arguments)
    if isinstance(found, torch.Tensor) and found.requires_grad:
        (found.abs() if found.is_complex() else found).sum().backward()  # type: ignore[no-untyped-call]
