"""Ops that the meta device does not run, or not as a device with data: what they allocate, not what they compute.

cuDNN keeps what the backward pass of a recurrent layer needs in a reserve of its own; its size is an assumption, and
docs/cost.md says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from fathom.engine.recurrent_on_cpu import lstm_workspace_bytes

aten = torch.ops.aten
GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # of cuDNN's modes: RNN with ReLU, RNN with tanh, LSTM, GRU
RESERVED = 2  # states per gate set that the reserve holds beside the gates: the cell, and what came out of it


def _cudnn_rnn(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:
    """Output, last states, the reserve and the weights in one buffer, which the module has made already."""
    directions = 2 if bidirectional else 1
    width = proj_size or hidden_size
    output = x.new_empty(*x.shape[:-1], width * directions)
    kept = (GATES[mode] + RESERVED) * hidden_size * x.shape[:-1].numel() * directions * num_layers * x.element_size()
    reserve = x.new_empty(kept if train else 0, dtype=torch.uint8)
    last = torch.empty_like(cx) if cx is not None else x.new_empty(0)
    return output, torch.empty_like(hx), last, reserve, x.new_empty(0)


def _cudnn_rnn_backward(x: Tensor, weight: Sequence[Tensor], *rest: Any) -> tuple[Any, ...]:
    """Gradients of the input, the states and the weights: (..., 2 stride, 3 buffer, 4 hx, 5 cx, ..., 21 mask)."""
    hx, cx = rest[2], rest[3]
    state = torch.empty_like(cx) if cx is not None else None
    return torch.empty_like(x), torch.empty_like(hx), state, [torch.empty_like(each) for each in weight]


def _lstm_on_cpu(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, last states, oneDNN's workspace: (..., 5 and 6 states, ..., 10 hidden size, ..., 15 whether it trains)"""
    (steps, items, width), hidden, train = x.shape, rest[9], rest[14]
    kept = lstm_workspace_bytes(steps, items, width, hidden) if train else 0
    output = x.new_empty(steps, items, hidden)
    return output, torch.empty_like(rest[4]), torch.empty_like(rest[5]), x.new_empty(kept, dtype=torch.uint8)


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(input_gates)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(workspace), torch.empty_like(cx), workspace.new_empty(workspace.shape[1])


def _ctc_loss(log_probs_TBC: Tensor, targets: Tensor, *lengths_and_rest: Any, **_: Any) -> tuple[Tensor, Tensor]:
    """The loss of each item, and its alphas: a value for every frame and place between, before and after its labels."""
    frames, items = log_probs_TBC.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else len(targets)
    return log_probs_TBC.new_empty(items), log_probs_TBC.new_empty(items, frames, 2 * longest + 1)


def _of_input(gradient: Tensor, x: Tensor, *rest: Any, **_: Any) -> Tensor:
    """The gradient of the input, from that of the output."""
    return torch.empty_like(x)


def _batch_norm(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As torch's own, which takes the meta device a hundred times as long: (..., 5 whether it trains, ...)."""
    channels = x.shape[1] if rest[4] else 0
    return torch.empty_like(x), torch.empty(channels, device=x.device), torch.empty(channels, device=x.device)


def _batch_norm_on_cpu(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A transposed input gives a contiguous result there, which a linear layer after it may have to copy."""
    output, mean, deviation = _batch_norm(x, *rest)
    return torch.empty_like(output, memory_format=suggest_memory_format(x)), mean, deviation


def _batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    """(..., 9 which gradients are asked for)"""
    for_input, for_weight, for_bias = rest[-1]
    per_channel = [torch.empty(x.shape[1], device=x.device) if asked else None for asked in (for_weight, for_bias)]
    return torch.empty_like(x) if for_input else None, *per_channel


def _cudnn_batch_norm(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Also the reserve, which is empty without an activation: (..., 5 whether it trains, ...)."""
    channels = weight.numel() if rest[3] else 0
    saved = [torch.empty(channels, device=x.device) for _ in range(2)]
    return torch.empty_like(x), *saved, x.new_empty(0, dtype=torch.uint8)


def _cudnn_batch_norm_backward(x: Tensor, gradient: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _convolution(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """The meta device's own result is in rows of pixels, whatever the layout of its input."""
    return _laid_out(aten.convolution.default(x, weight, *rest), x, weight)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    found = aten.convolution_backward.default(gradient, x, weight, *rest)
    of_input, of_weight, of_bias = found
    if of_input is not None:
        of_input = _laid_out(of_input, x, weight)
    if of_weight is not None:
        of_weight = _laid_out(of_weight, x, weight)
    return of_input, of_weight, of_bias


def _laid_out(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Channels last where the input or the weight is, as cuDNN and oneDNN have it."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is None or last not in (suggest_memory_format(x), suggest_memory_format(weight)):
        return result
    return torch.empty_like(result, memory_format=last)


def _grouped_mm(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Products of groups of rows, as experts have them; the meta device takes bf16 alone, which devices do not."""
    groups = [] if x.dim() != y.dim() else [len(offs) if x.dim() == 2 and offs is not None else len(x)]
    return x.new_empty([*groups, x.shape[-2], y.shape[-1]], dtype=out_dtype)


def _in_place(*_: Any, **__: Any) -> None:
    """A fused optimizer reads and writes what is there."""


def _unchanged(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An op in place: there is no data to change, and torch would take its time to find that out.

    A tensor on the host has data: an optimizer's counter of steps, by which it may divide.
    """
    return lambda x, *args, **kwargs: x if x.is_meta else op(x, *args, **kwargs)


IN_PLACE = (
    *(aten.normal_.default, aten.uniform_.default, aten.clamp_.default, aten.relu_.default),
    *(aten.mul_.Tensor, aten.add_.Tensor, aten.masked_fill_.Scalar),
)
STAND_INS: dict[Any, Callable[..., Any]] = {
    **{op: _unchanged(op) for op in IN_PLACE},
    **dict.fromkeys((aten._fused_sgd_.default, aten._fused_adagrad_.default), _in_place),
    **dict.fromkeys((aten._fused_adam_.default, aten._fused_adamw_.default), _in_place),
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._grouped_mm.default: _grouped_mm,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._ctc_loss.Tensor: _ctc_loss,
    **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _of_input),
    **dict.fromkeys((aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default), _of_input),
    aten.fractional_max_pool3d_backward.default: _of_input,
}
ON_CPU = {
    **STAND_INS,
    aten.native_batch_norm.default: _batch_norm_on_cpu,
    aten.mkldnn_rnn_layer.default: _lstm_on_cpu,
}
