"""Every op keeps the time that it spends itself: rows and time outside ops add up to the step, whatever is nested."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function
from trace_events import event

from fathom.core.errors import FathomError
from fathom.trace import walk
from fathom.trace.calls import OpCall
from fathom.trace.event import Event
from fathom.trace.reader import read
from fathom.trace.rows import Breakdown


def micros(found: Breakdown) -> dict[str, float]:
    return {row.op: round(row.cpu_s * 1e6, 3) for row in found.rows()}


def test_an_unknown_op_keeps_its_self_time_beside_the_ops_inside_it() -> None:
    found = walk.breakdown(
        [
            event("fathom.step", 0, 100, "user_annotation"),
            event("mylib::block", 10, 80),
            event("mylib::part", 20, 30),
            event("aten::mm", 25, 10),
            event("aten::empty", 26, 2),
            event("aten::add", 60, 20),
        ]
    )
    assert micros(found) == {"mylib::block": 30, "mylib::part": 20, "aten::mm": 10, "aten::add": 20}
    assert found.outside_s() == pytest.approx(20e-6)


@pytest.mark.parametrize("cat", ["user_annotation", "python_function"])
def test_annotations_and_modules_between_ops_take_nothing_and_add_nothing(cat: str) -> None:
    name = "nn.Module: Block_0" if cat == "python_function" else "## Call CompiledFxGraph ##"
    found = walk.breakdown(
        [
            event("fathom.step", 0, 100, "user_annotation"),
            event("CompiledFunctionBackward", 10, 80),
            event(name, 15, 70, cat),
            event("triton_poi_fused_add_0", 20, 30),
            event("another", 55, 20, cat),
            event("aten::mm", 60, 10),
        ]
    )
    assert micros(found) == {"CompiledFunctionBackward": 40, "triton_poi_fused_add_0": 30, "aten::mm": 10}
    assert found.outside_s() == pytest.approx(20e-6)


def test_a_child_that_outlasts_its_parent_by_rounding_ends_with_it() -> None:
    found = walk.breakdown(
        [
            event("fathom.step", 0, 50, "user_annotation"),
            event("mylib::block", 10, 20),
            event("aten::mm", 15, 16),  # to 31, the block ends at 30
            event("aten::add", 30, 10),
        ]
    )
    assert micros(found) == {"mylib::block": 5, "aten::mm": 15, "aten::add": 10}


def test_ops_of_two_threads_share_the_time_that_both_run() -> None:
    """0-40 one thread, 20-60 the other: 40 + 40 us of ops in a step of 60."""
    found = walk.breakdown(
        [
            event("fathom.step", 0, 60, "user_annotation"),
            event("aten::mm", 0, 40, tid=1),
            event("mylib::hook", 20, 40, tid=2),
            event("aten::add", 30, 10, tid=2),
        ]
    )
    assert micros(found) == {"aten::mm": 30, "mylib::hook": 25, "aten::add": 5}
    assert found.outside_s() == pytest.approx(0)


def test_an_op_of_another_thread_that_reaches_into_a_step_counts_there_alone() -> None:
    found = walk.breakdown(
        [
            event("fathom.step", 100, 50, "user_annotation"),
            event("aten::copy_", 80, 30, tid=2),
            event("aten::mm", 120, 20),
        ]
    )
    assert micros(found) == {"aten::copy_": 10, "aten::mm": 20}


def test_rows_that_exceed_their_step_are_an_error() -> None:
    call = OpCall(op="aten::mm", type="MatMul", layer="", role="", phase="forward", step=0, cpu_us=12.0)
    with pytest.raises(FathomError, match="exceed a step"):
        Breakdown([call], [(0.0, 10.0)], []).outside_s()


def nested(generator: random.Random, begin: float, end: float, depth: int, tid: int) -> list[Event]:
    """Random ops, known and unknown, with marks between them."""
    found: list[Event] = []
    at = begin
    while depth and end - at > 2:
        first = at + generator.random() * (end - at) / 3
        last = first + generator.random() * (end - first)
        name, cat = generator.choice(
            [("aten::mm", "cpu_op"), ("mylib::f", "cpu_op"), ("aten::linear", "cpu_op"), ("a mark", "user_annotation")]
        )
        found += [event(name, first, last - first, cat, tid), *nested(generator, first, last, depth - 1, tid)]
        at = last
    return found


def independent_union(events: list[Event], begin: float, end: float) -> float:
    """The time in which some op of some thread runs, by brute force over all borders."""
    spans = [(max(e.ts, begin), min(e.end, end)) for e in events if e.cat == "cpu_op"]
    borders = sorted({border for span in spans for border in span})
    return sum(
        later - earlier
        for earlier, later in itertools.pairwise(borders)
        if any(first <= earlier and later <= last for first, last in spans)
    )


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_random_traces_add_up_to_the_time_in_ops(seed: int) -> None:
    generator = random.Random(seed)
    ops = [each for tid in (1, 2, 3) for each in nested(generator, 90.0 + tid, 420.0, 4, tid)]
    steps = [event("fathom.step", begin, 100, "user_annotation", tid=1) for begin in (100, 210, 320)]
    found = walk.breakdown([*steps, *ops])
    for number, (begin, end) in enumerate(found.steps):
        in_step = sum(call.cpu_us for call in found.op_calls if call.step == number)
        union = independent_union(ops, begin, end)
        assert in_step <= union + 1e-6
        # what an op of one step does in the next is the one thing that is left out
        crossing = sum(min(e.end, end) - begin for e in ops if e.cat == "cpu_op" and e.ts < begin < e.end)
        assert in_step >= union - crossing - 1e-6


X, SQUARE, IMAGE = torch.randn(64, 64), torch.randn(16, 16), torch.randn(2, 4, 32, 32)
VOLUME, INDEX, POSITIVE = torch.randn(1, 2, 8, 16, 16), torch.randint(0, 64, (64, 64)), torch.rand(64, 64) + 0.1
FUNCTIONS: dict[str, Callable[[], object]] = {
    "interpolate": lambda: F.interpolate(IMAGE, scale_factor=2.0, mode="bilinear"),
    "interpolate nearest": lambda: F.interpolate(IMAGE, scale_factor=2.0),
    "interpolate bicubic": lambda: F.interpolate(IMAGE, scale_factor=2.0, mode="bicubic"),
    "grid_sample": lambda: F.grid_sample(IMAGE, torch.rand(2, 32, 32, 2), align_corners=False),
    "affine_grid": lambda: F.affine_grid(torch.rand(2, 2, 3), [2, 4, 32, 32], align_corners=False),
    "pixel_shuffle": lambda: F.pixel_shuffle(IMAGE, 2),
    "pixel_unshuffle": lambda: F.pixel_unshuffle(IMAGE, 2),
    "prelu": lambda: F.prelu(IMAGE, torch.rand(4)),
    "hardswish": lambda: F.hardswish(X),
    "mish": lambda: F.mish(X),
    "elu": lambda: F.elu(X),
    "selu": lambda: F.selu(X),
    "softplus": lambda: F.softplus(X),
    "logsigmoid": lambda: F.logsigmoid(X),
    "softshrink": lambda: F.softshrink(X),
    "tanhshrink": lambda: F.tanhshrink(X),
    "glu": lambda: F.glu(X),
    "rrelu": lambda: F.rrelu(X, training=True),
    "std": lambda: X.std(0),
    "var_mean": lambda: torch.var_mean(X),
    "median": lambda: X.median(0),
    "nanmedian": X.nanmedian,
    "mode": lambda: X.mode(0),
    "quantile": lambda: X.quantile(0.3),
    "histc": lambda: torch.histc(X, 10),
    "bincount": lambda: torch.bincount(INDEX.flatten()),
    "nonzero": (X > 0).nonzero,
    "unique": lambda: torch.unique(INDEX),
    "bucketize": lambda: torch.bucketize(X, torch.linspace(-1, 1, 20)),
    "searchsorted": lambda: torch.searchsorted(torch.linspace(-1, 1, 20), X),
    "unfold": lambda: F.unfold(IMAGE, 3),
    "fold": lambda: F.fold(torch.randn(1, 36, 64), 10, 3),
    "max_pool3d": lambda: F.max_pool3d(VOLUME, 2),
    "avg_pool3d": lambda: F.avg_pool3d(VOLUME, 2),
    "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(IMAGE, 4),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(IMAGE, 2, output_size=8),
    "lp_pool2d": lambda: F.lp_pool2d(IMAGE, 2, 2),
    "max_unpool2d": lambda: F.max_unpool2d(*F.max_pool2d(IMAGE, 2, return_indices=True), [2, 2]),
    "fft": lambda: torch.fft.fft(X),
    "rfft2": lambda: torch.fft.rfft2(X),
    "irfft": lambda: torch.fft.irfft(torch.fft.rfft(X)),
    "stft": lambda: torch.stft(torch.randn(2000), 128, return_complex=True),
    "erfinv": lambda: torch.erfinv(X.tanh()),
    "lgamma": lambda: torch.lgamma(POSITIVE),
    "digamma": lambda: torch.digamma(POSITIVE),
    "i0": lambda: torch.special.i0(X),
    "sinc": lambda: torch.sinc(X),
    "atan2": lambda: torch.atan2(X, POSITIVE),
    "hypot": lambda: torch.hypot(X, POSITIVE),
    "polygamma": lambda: torch.polygamma(1, POSITIVE),
    "xlogy": lambda: torch.xlogy(X, POSITIVE),
    "quantize": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).dequantize(),
    "fake_quantize": lambda: torch.fake_quantize_per_tensor_affine(X, 0.1, 0, -128, 127),
    "cdist": lambda: torch.cdist(X, X),
    "pdist": lambda: F.pdist(X),
    "cosine_similarity": lambda: F.cosine_similarity(X, POSITIVE),
    "pairwise_distance": lambda: F.pairwise_distance(X, POSITIVE),
    "normalize": lambda: F.normalize(X),
    "einsum": lambda: torch.einsum("ij,jk->ik", X, X),
    "tensordot": lambda: torch.tensordot(X, X, 1),
    "kron": lambda: torch.kron(SQUARE, SQUARE),
    "matrix_exp": lambda: torch.matrix_exp(SQUARE),
    "matrix_power": lambda: torch.matrix_power(SQUARE, 3),
    "det": lambda: torch.linalg.det(SQUARE),
    "inv": lambda: torch.linalg.inv(SQUARE),
    "solve": lambda: torch.linalg.solve(SQUARE, SQUARE),
    "svd": lambda: torch.linalg.svd(SQUARE),
    "qr": lambda: torch.linalg.qr(SQUARE),
    "eigh": lambda: torch.linalg.eigh(SQUARE @ SQUARE.T),
    "cholesky": lambda: torch.linalg.cholesky(SQUARE @ SQUARE.T + 50 * torch.eye(16)),
    "lstsq": lambda: torch.linalg.lstsq(SQUARE, SQUARE),
    "cumsum": lambda: X.cumsum(0),
    "cummax": lambda: X.cummax(0),
    "logcumsumexp": lambda: X.logcumsumexp(0),
    "diff": X.diff,
    "sort": X.sort,
    "topk": lambda: X.topk(5),
    "kthvalue": lambda: X.kthvalue(5),
    "argsort": X.argsort,
    "gather": lambda: X.gather(0, INDEX),
    "scatter_reduce": lambda: X.scatter_reduce(0, INDEX, X, "mean"),
    "index_add": lambda: X.index_add(0, INDEX[0], X),
    "index_put": lambda: X.clone().index_put((INDEX[0],), X),
    "masked_select": lambda: X.masked_select(X > 0),
    "take_along_dim": lambda: X.take_along_dim(INDEX, 0),
    "roll": lambda: X.roll(3, 0),
    "flip": lambda: X.flip(0),
    "rot90": X.rot90,
    "tril": X.tril,
    "diag_embed": X.diag_embed,
    "repeat_interleave": lambda: X.repeat_interleave(3, 0),
    "cartesian_prod": lambda: torch.cartesian_prod(X[0], X[1]),
    "combinations": lambda: torch.combinations(X[0]),
    "embedding": lambda: F.embedding(INDEX, X),
    "embedding_bag": lambda: F.embedding_bag(INDEX, X, mode="sum"),
    "one_hot": lambda: F.one_hot(INDEX),
    "layer_norm": lambda: F.layer_norm(X, (64,)),
    "group_norm": lambda: F.group_norm(IMAGE, 2),
    "instance_norm": lambda: F.instance_norm(IMAGE),
    "rms_norm": lambda: F.rms_norm(X, (64,)),
    "local_response_norm": lambda: F.local_response_norm(IMAGE, 3),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE),
    "conv_transpose2d": lambda: F.conv_transpose2d(IMAGE, torch.randn(4, 4, 3, 3)),
    "bilinear": lambda: F.bilinear(X, X, torch.randn(8, 64, 64)),
    "ctc_loss": lambda: F.ctc_loss(
        torch.randn(20, 2, 5).log_softmax(2), torch.ones(2, 4, dtype=torch.long), torch.tensor([20, 20]),
        torch.tensor([4, 4]),
    ),
    "cross_entropy": lambda: F.cross_entropy(X, INDEX[0]),
    "kl_div": lambda: F.kl_div(X.log_softmax(1), POSITIVE),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(X, X + 1, POSITIVE),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(X, POSITIVE, torch.ones(64)),
    "gaussian_nll_loss": lambda: F.gaussian_nll_loss(X, X, POSITIVE),
    "multilabel_margin_loss": lambda: F.multilabel_margin_loss(X, INDEX),
    "dropout": lambda: F.dropout(X, 0.5),
    "alpha_dropout": lambda: F.alpha_dropout(X, 0.5, training=True),
    "multinomial": lambda: POSITIVE.multinomial(3),
    "bernoulli": lambda: POSITIVE.clamp(0, 1).bernoulli(),
    "poisson": lambda: torch.poisson(POSITIVE),
    "sparse mm": lambda: torch.sparse.mm(X.to_sparse(), X),
    "complex": lambda: torch.view_as_real(torch.complex(X, X) * torch.complex(X, X)),
    "lstm": lambda: torch.nn.LSTM(64, 32)(X.unsqueeze(1)),
    "gru": lambda: torch.nn.GRU(64, 32)(X.unsqueeze(1)),
    "multihead attention": lambda: torch.nn.MultiheadAttention(64, 4)(*[X.unsqueeze(1)] * 3),
    "backward": lambda: torch.autograd.backward(F.elu(X.clone().requires_grad_()).sum()),
}  # fmt: skip


def test_no_time_in_ops_is_unseen(tmp_path: Path) -> None:
    """For each of many torch functions: all time in its outermost ops is in op rows, under a name."""
    for function in FUNCTIONS.values():
        function()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        for function in FUNCTIONS.values():
            with record_function("fathom.step"):
                function()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    events = read(tmp_path / "trace.json").events
    found = walk.breakdown(events)
    assert len(found.steps) == len(FUNCTIONS)
    unseen = {}
    for number, (name, (begin, end)) in enumerate(zip(FUNCTIONS, found.steps, strict=True)):
        seen = sum(call.cpu_us for call in found.op_calls if call.step == number)
        in_ops = independent_union([e for e in events if e.name != "fathom.step" and begin <= e.ts <= end], begin, end)
        unseen[name] = 1 - seen / in_ops
    assert {name: share for name, share in unseen.items() if abs(share) > 0.001} == {}
