"""A mode in which tensors of the meta device take the paths of CUDA tensors.

These are cuDNN's recurrent layers and batch normalisation, fused cells, fused dropout, fused attention and autocast. A
branch on a tensor's value is not taken, so that a decoding loop runs to its full length; where a user's code has one,
its place is noted.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from fathom.engine.recurrent_on_cpu import CELLS, lstm, recurrent
from fathom.engine.replaced import replaced

META = "meta"
OURS_AND_TORCHS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))  # packages
MOST_BRANCHES = 10_000  # at one place of a user's code: a loop that no value ends
ASKED = "_fathom_asked"  # of an autocast: whether it is enabled where it can be

# autocast's lists for CUDA: of ATen/autocast_mode.h, what a network or a loss may call
LOWER = {
    *(F.linear, F.scaled_dot_product_attention),
    *(torch.conv1d, torch.conv2d, torch.conv3d, torch.prelu, torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.addbmm, torch.baddbmm, torch.einsum),
    *(torch.addmv, torch.addr, torch.chain_matmul, torch.linalg.multi_dot, torch.linalg.vecdot, torch.rnn_relu_cell),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.addmm),
    *(Tensor.addmv, Tensor.addr, Tensor.addbmm, Tensor.baddbmm, torch.conv_tbc),
}
_BOTH = (  # functions and methods
    "acos arccos asin arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow square softmax "
    "log_softmax logsumexp cumsum cumprod norm sum prod dist renorm"
)
_FUNCTIONS = (
    "layer_norm native_layer_norm rms_norm group_norm cdist pdist pairwise_distance cosine_similarity kl_div "
    "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss poisson_nll_loss triplet_margin_loss"
)
_LOSSES = (
    "nll_loss mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss multilabel_margin_loss"
)
FP32 = {
    *(getattr(owner, name) for owner in (torch, Tensor) for name in _BOTH.split()),
    *(getattr(torch, name) for name in _FUNCTIONS.split()),
    *(getattr(F, name) for name in _LOSSES.split()),
    *(function for name, function in vars(torch._C._nn).items() if name.startswith(("upsample_", "_upsample_"))),
    *(F.layer_norm, F.group_norm, F.softmax, F.log_softmax, F.softplus, F.cosine_similarity, F.cross_entropy, F.kl_div),
    *(F.binary_cross_entropy_with_logits, torch.linalg.vector_norm, torch.linalg.matrix_norm, torch.linalg.norm),
    *(Tensor.__pow__, Tensor.__rpow__, Tensor.__rdiv__, Tensor.__rtruediv__),
}
WIDEST = {
    *(torch.cat, torch.stack, torch.addcdiv, torch.addcmul, torch.index_put, torch.scatter_add, torch.atan2),
    *(torch.dot, torch.vdot, torch.tensordot, torch.cross, torch.linalg.cross, torch.bilinear, torch.grid_sampler),
    *(Tensor.addcdiv, Tensor.addcmul, Tensor.index_put, Tensor.scatter_add, Tensor.atan2, Tensor.dot, Tensor.vdot),
    *(Tensor.cross, F.grid_sample),
}
MOST_ITEMS_TRAIN, MOST_ITEMS_INFER, INT32, LEAST_EPS = 880_801, 65_535, 2**31, 1e-5  # of cuDNN's batch normalisation
MODES = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}  # of cuDNN
GATES = {MODES[torch.lstm]: 4, MODES[torch.gru]: 3}  # whose weights are one matrix


@contextmanager
def autocast_as_asked() -> Iterator[None]:
    """What is made meanwhile remembers that it was to be enabled: as a decorator, it is made when a module is imported.

    Torch disables CUDA's where there is no GPU.
    """
    usual = torch.autocast.__init__

    def init(
        own: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        usual(own, device_type, dtype, enabled, cache_enabled)
        setattr(own, ASKED, enabled)

    with replaced(torch.autocast, {"__init__": init}):
        yield


class AsOnGPU(TorchFunctionMode):
    def __init__(self, layers: bool = True) -> None:
        """Without layers, only autocast, branches and attention: what is left are the ops of a CPU."""
        super().__init__()
        self._layers = layers
        self.own_autocast = False  # whether the model cast by itself
        self.branches: Counter[str] = Counter()  # places of a user's code that asked for a tensor's value
        self._lower: torch.dtype | None = None
        self._depth = 0
        self._copies: dict[int, Tensor] = {}  # of weights: the outermost autocast keeps one of each until it ends

    @contextmanager
    def autocast(self, dtype: torch.dtype | None) -> Iterator[None]:
        """What torch.autocast does for CUDA; without a type, what it does when disabled. The meta device has none."""
        before, self._lower = self._lower, dtype
        self._depth += 1
        try:
            yield
        finally:
            self._lower = before
            self._depth -= 1
            if not self._depth:
                self._copies.clear()

    @contextmanager
    def model_autocast(self) -> Iterator[None]:
        """What a model's own torch.autocast asks for, if it is for the simulated device or for that of its tensors.

        Torch refuses the meta device, and disables CUDA's where there is no GPU.
        """
        device, entered = "cuda" if self._layers else "cpu", list[AbstractContextManager[None]]()

        def init(
            own: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, _: Any = None, **__: Any
        ) -> None:
            own.device, own._enabled = device_type, enabled
            own.fast_dtype = dtype or torch.get_autocast_dtype(device if device_type == META else device_type)

        def enter(own: Any) -> Any:
            applies, enabled = own.device in (device, META), getattr(own, ASKED, own._enabled)
            self.own_autocast |= applies and enabled
            entered.append(self.autocast(own.fast_dtype if enabled else None) if applies else nullcontext())
            entered[-1].__enter__()
            return own

        def leave(own: Any, *_: object) -> None:
            entered.pop().__exit__(None, None, None)

        with replaced(torch.autocast, {"__init__": init, "__enter__": enter, "__exit__": leave}):
            yield

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Checkpointed layers are computed again as they were: a backward pass knows no modes by itself."""
        defaults: dict[str, Any] = inspect.unwrap(checkpoints.checkpoint).__kwdefaults__
        usual = checkpoints.noop_context_fn

        def again() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            return nullcontext(), self._again(self._lower)

        # both, as a reentrant checkpoint takes no other contexts than the module's own
        defaults["context_fn"] = checkpoints.noop_context_fn = again
        try:
            yield
        finally:
            defaults["context_fn"] = checkpoints.noop_context_fn = usual

    @contextmanager
    def _again(self, lower: torch.dtype | None) -> Iterator[None]:
        with self, self.autocast(lower):
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is Tensor.__bool__:
            return self._is_taken(args[0])
        if func in WITHOUT_DATA:
            return WITHOUT_DATA[func](*args, **given)
        if self._is_taken_apart(func):
            return self._step_by_step(func, args, given)
        if self._lower is not None:
            args, given = self._cast(func, args, given)
        if not self._layers:
            return self._on_cpu(func, args, given)
        if func in MODES:
            return _recurrent(MODES[func], *args)
        return REPLACED.get(func, func)(*args, **given)

    def _on_cpu(self, func: Any, args: Any, given: Any) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **given, gpu=False)
        packed = func in CELLS and isinstance(args[2], Tensor)  # rows that are packed are left to torch
        if func in CELLS and args[0].is_meta and not packed:
            with self:  # which casts the layer's products
                return recurrent(func, *args)
        if func is torch.lstm and self._lower is None and _runs_in_onednn(*args):
            return lstm(*args)
        return func(*args, **given)

    def _is_taken_apart(self, func: Any) -> bool:
        if self._lower is None or func in LISTED:
            return func in TAKEN_APART
        return isinstance(func, FunctionType) and func.__module__ == F.__name__

    def _step_by_step(self, func: Any, args: Any, given: Any) -> Any:
        """A function that torch has in Python, by what it calls: torch itself would show the mode the whole alone."""
        asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
        with self, replaced(F, dict.fromkeys(asks, lambda *_: False)):
            return func(*args, **given)

    def _is_taken(self, value: Tensor) -> bool:
        if not value.is_meta:
            return bool(value)
        asking = sys._getframe(2)  # the caller of __torch_function__: whose code asked
        if not asking.f_code.co_filename.startswith(OURS_AND_TORCHS):
            place = f"{asking.f_code.co_filename}, line {asking.f_lineno}"
            self.branches[place] += 1
            if self.branches[place] > MOST_BRANCHES:
                raise RuntimeError("data-dependent loop: its end depends on a tensor's value")
        return False

    def _cast(self, func: Any, args: Any, given: Any) -> tuple[Any, Any]:
        if func in LOWER:
            return tree_map_only(Tensor, self._lowered, (tuple(args), given))  # type: ignore[no-any-return]
        if func in FP32 or (func in WIDEST and any(map(_is_fp32, _all_tensors(args)))):
            return tree_map_only(Tensor, _widened, (tuple(args), given))  # type: ignore[no-any-return]
        return args, given

    def _lowered(self, tensor: Tensor) -> Tensor:
        if not _is_fp32(tensor) or self._lower is None:
            return tensor
        if torch.is_inference_mode_enabled() or not (tensor.requires_grad and tensor.is_leaf):
            return tensor.to(self._lower)  # in inference mode autocast keeps no copies of weights
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor.to(self._lower)
        return self._copies[id(tensor)]


def _new(like: Tensor, *args: Any, **given: Any) -> Tensor:
    """A sparse tensor as SparseAdam makes it, which the meta device does not know."""
    if like.is_sparse and like.is_meta:
        return torch.sparse_coo_tensor(*args, check_invariants=False)
    return like.new(*args, **given)


def _to(tensor: Tensor, *args: Any, **given: Any) -> Tensor:
    """What has no data stays where it is, and takes the type that is asked for."""
    asked = [*args, *given.values()]
    there = [torch.device(each).type for each in asked if isinstance(each, str | torch.device)]
    if not tensor.is_meta or set(there) <= {META}:
        return tensor.to(*args, **given)
    return tensor.to(next((each for each in asked if isinstance(each, torch.dtype)), tensor.dtype))


def _packed(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences whose lengths have no values have the full one."""
    if not lengths.is_meta:
        found: tuple[Tensor, Tensor] = torch._pack_padded_sequence(padded, lengths, batch_first)
        return found
    by_time = padded.transpose(0, 1) if batch_first else padded
    sizes = torch.full((len(by_time),), len(lengths), dtype=torch.long, device="cpu")
    return by_time.flatten(0, 1), sizes


def _runs_in_onednn(x: Tensor, states: Any, weights: Any, *_: Any) -> bool:
    """Whether a CPU has this LSTM in one op: not of packed rows, nor one that hands on fewer values than it keeps."""
    if isinstance(states, Tensor) or not (x.is_meta and _is_fp32(x)):
        return False
    gates, handed_on = weights[1].shape
    return bool(gates == GATES[MODES[torch.lstm]] * handed_on)


def _is_fp32(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _all_tensors(args: Any) -> list[Tensor]:
    flat = [each for arg in args for each in (arg if isinstance(arg, tuple | list) else [arg])]
    return [each for each in flat if isinstance(each, Tensor)]


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """One kernel, and a mask of one byte an element."""
    if not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """cuDNN's, under the conditions of torch; half precision is normalised by torch's own kernels.

    Tensors with data, of a CPU, have no cuDNN.
    """
    known = bias is not None and (running_mean is not None or training)
    items = MOST_ITEMS_TRAIN if training else MOST_ITEMS_INFER
    small = input.dim() > 2 and input.shape[0] <= items and input.numel() < INT32
    if weight is None or not (input.is_meta and known and small and _is_fp32(input) and eps >= LEAST_EPS):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    rows = input.contiguous(memory_format=suggest_memory_format(input))  # a copy of a transposed one, as torch makes it
    found = torch.cudnn_batch_norm(rows, weight, bias, running_mean, running_var, training, momentum, eps)
    output: Tensor = found[0]
    return output


def _lstm_cell(
    x: Tensor,
    states: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Two products, then all gates in one kernel."""
    hx, cx = states
    found = torch.ops.aten._thnn_fused_lstm_cell(F.linear(x, w_ih), F.linear(hx, w_hh), cx, b_ih, b_hh)
    return found[0], found[1]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    gpu: bool = True,
    **more: Any,
) -> Tensor:
    """Fused where the device fuses it, so that no scores are kept.

    A GPU has flash attention in half precision without a mask, and memory-efficient attention else, which takes no
    grouped queries (fewer heads of keys and values). A CPU's flash attention takes groups and masks, but none that is
    learned, and no dropout.
    """
    given, aten = (query, key, value), torch.ops.aten
    learned = attn_mask is not None and attn_mask.requires_grad
    half = attn_mask is None and query.dtype in (torch.bfloat16, torch.float16)
    on_cpu = not dropout_p and not learned and query.shape[-1] == value.shape[-1]
    fused = (half or not more.get("enable_gqa")) if gpu else on_cpu
    if query.dim() != 4 or not fused:
        return F.scaled_dot_product_attention(*given, attn_mask, dropout_p, is_causal, **more)
    scale, mask = more.get("scale"), None if attn_mask is None else attn_mask.to(query.dtype)
    if not gpu:
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        found = flash(*given, 0.0, is_causal, attn_mask=mask, scale=scale)
    elif half:
        found = aten._scaled_dot_product_flash_attention(*given, dropout_p, is_causal, scale=scale)
    else:
        bias = None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])
        efficient = aten._scaled_dot_product_efficient_attention
        found = efficient(*given, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)
    output: Tensor = found[0]
    return output


def _recurrent(mode: int, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """A layer as cuDNN runs it: (states, weights, ...), or for packed rows (batch sizes, states, weights, ...)."""
    if isinstance(rest[-1], bool) and isinstance(rest[-2], bool) and isinstance(rest[2], bool):
        states, weights, bias, layers, dropout, train, two_ways, batch_first = rest
    else:
        _, states, weights, bias, layers, dropout, train, two_ways = rest
        batch_first = False
    turned = x.transpose(0, 1) if batch_first else x
    hx, cx = states if mode == MODES[torch.lstm] else (states, None)
    size, told = weights[0].shape[0] // GATES.get(mode, 1), weights[1].shape[1]
    projected = told if told != size else 0  # an LSTM may hand on fewer values than it keeps
    stride = (4 if bias else 2) + bool(projected)
    found = torch._cudnn_rnn(
        *(turned, weights, stride, None, hx, cx, mode, size, projected, layers, False, dropout, train, two_ways, []),
        None,
    )
    output = found[0].transpose(0, 1) if batch_first else found[0]
    return (output, found[1]) if cx is None else (output, found[1], found[2])


WITHOUT_DATA: dict[Any, Callable[..., Any]] = {
    Tensor.new: _new,
    Tensor.to: _to,
    Tensor.cpu: lambda tensor, *_, **__: _to(tensor, "cpu"),
    torch._pack_padded_sequence: _packed,
}
REPLACED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.dropout, torch.dropout), _dropout),  # the latter is what the former calls
    F.batch_norm: _batch_norm,
    torch.lstm_cell: _lstm_cell,
    F.scaled_dot_product_attention: _attention,
}
TAKEN_APART = {F.multi_head_attention_forward, F.gaussian_nll_loss}  # of which the latter asks for a value
LISTED = {*LOWER, *FP32, *WIDEST, *REPLACED}
