"""The network of Deep Speech: dense layers, one bidirectional recurrent layer, and a score for every phone.

Letters of shapes: T frames, B batch, F features, H units, C phones and the blank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fathom.data import timit
from fathom.data._audio import FEATURES

CLIP = 20.0
OUTPUTS = 1 + len(timit.PHONES)


class _Recurrence(torch.autograd.Function):
    """Both directions of a plain recurrent layer, h_t = min(max(x_t + h_(t-1) W, 0), 20), and their sum.

    cuDNN knows no clipped ReLU, so this is a loop over time, kept to two kernels a frame: one product for both
    directions and one clip. Left to autograd, each frame would also add a gradient as large as W; here the gradient
    of W is a single product over all frames.
    """

    @staticmethod
    def forward(ctx: Any, x_TBH: Tensor, weight_2HH: Tensor, mirror: Tensor) -> Tensor:
        states_2TBH = _both_ways(x_TBH, mirror)
        now, *later = states_2TBH.unbind(1)
        now.clamp_(0, CLIP)
        for after in later:
            now = torch.baddbmm(after, now, weight_2HH, out=after).clamp_(0, CLIP)
        ctx.save_for_backward(states_2TBH, weight_2HH, mirror)
        return _summed(states_2TBH, mirror)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TBH: Tensor) -> tuple[Tensor, Tensor, None]:
        states_2TBH, weight_2HH, mirror = ctx.saved_tensors
        deltas_2TBH = _both_ways(gradient_TBH.contiguous(), mirror)
        passing = ((states_2TBH > 0) & (states_2TBH < CLIP)).to(deltas_2TBH.dtype)
        back_2HH = weight_2HH.transpose(1, 2)
        (now, *earlier), (open_now, *open_earlier) = deltas_2TBH.unbind(1)[::-1], passing.unbind(1)[::-1]
        now.mul_(open_now)
        for before, opened in zip(earlier, open_earlier, strict=True):
            now = torch.baddbmm(before, now, back_2HH, out=before).mul_(opened)
        entering, leaving = states_2TBH[:, :-1].flatten(1, 2), deltas_2TBH[:, 1:].flatten(1, 2)
        return _summed(deltas_2TBH, mirror), torch.bmm(entering.transpose(1, 2), leaving), None


def _exported_recurrence(x_TBH: Tensor, weight_2HH: Tensor, mirror: Tensor) -> Tensor:
    """The same as one loop operator: unrolled, an export would copy all states at each of hundreds of frames."""
    from torch._higher_order_ops.scan import scan  # here, as only an export needs it

    def step(now: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
        now = torch.baddbmm(entering, now, weight_2HH).clamp(0.0, CLIP)
        return now, now.clone()

    turned_TBH = x_TBH.flatten(0, 1).index_select(0, mirror).view_as(x_TBH)
    both_T2BH = torch.stack([x_TBH, turned_TBH], 1)
    states_T2BH = scan(step, torch.zeros_like(both_T2BH[0]), both_T2BH)[1]
    return _summed(states_T2BH.transpose(0, 1), mirror)


def _both_ways(x_TBH: Tensor, mirror: Tensor) -> Tensor:
    """The frames in order and, beside them, each utterance's frames from its own last to its first."""
    both = x_TBH.new_empty(2, *x_TBH.shape)
    both[0] = x_TBH
    torch.index_select(x_TBH.flatten(0, 1), 0, mirror, out=both[1].flatten(0, 1))
    return both


def _summed(both_2TBH: Tensor, mirror: Tensor) -> Tensor:
    """The two directions frame by frame: mirroring twice restores the order."""
    return both_2TBH[0] + both_2TBH[1].flatten(0, 1).index_select(0, mirror).view_as(both_2TBH[0])


def mirrored(frames_B: Tensor, width: int) -> Tensor:
    """Row numbers, in a T x B table, that reverse each utterance within its own length and leave padding in place."""
    time = torch.arange(width, device=frames_B.device)[:, None]
    turned = torch.where(time < frames_B, frames_B - 1 - time, time)
    return (turned * len(frames_B) + torch.arange(len(frames_B), device=frames_B.device)).flatten()


class BidirectionalRecurrent(nn.Module):
    """Layer 4: one input matrix for both directions, as the paper writes it, and a recurrent matrix for each."""

    role = "recurrence"

    def __init__(self, units: int) -> None:
        super().__init__()
        self.input = nn.Linear(units, units)
        self.recurrent = nn.Parameter(torch.empty(2, units, units))  # forward in time, backward in time
        for direction in self.recurrent:
            # the paper does not say; an orthogonal matrix keeps lengths and a clipped ReLU never lengthens,
            # so that no gradient can grow on its way back through hundreds of frames
            nn.init.orthogonal_(direction)

    def forward(self, x_TBH: Tensor, frames_B: Tensor) -> Tensor:
        x_TBH = self.input(x_TBH)
        work = _exported_recurrence if torch.compiler.is_exporting() else _Recurrence.apply
        summed: Tensor = work(x_TBH, self.recurrent.to(x_TBH.dtype), mirrored(frames_B, len(x_TBH)))
        return summed


class DeepSpeech(nn.Module):
    """Features and their number of frames to a score for every phone and the blank, at every frame."""

    def __init__(self, context: int, units: int, dropout: float, stride: int = 1) -> None:
        super().__init__()
        self.context, self.dropout, self.stride = context, dropout, stride
        self.dense1 = nn.Linear(FEATURES * (2 * context + 1), units)
        self.dense2 = nn.Linear(units, units)
        self.dense3 = nn.Linear(units, units)
        self.recurrent4 = BidirectionalRecurrent(units)
        self.dense5 = nn.Linear(units, units)
        self.output = nn.Linear(units, OUTPUTS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, features_BTF: Tensor, frames_B: Tensor) -> Tensor:
        """Scores T x B x C; padding has no part in those of real frames, whatever it holds.

        With a stride, T counts the frames that it comes to.
        """
        x = self._in_context(features_BTF, frames_B)
        frames_B = strided(frames_B, self.stride)
        for dense in (self.dense1, self.dense2, self.dense3):
            x = self._clipped(dense(x))
        x = self._clipped(self.dense5(self.recurrent4(x, frames_B)))
        scores: Tensor = self.output(x)
        return scores

    def _in_context(self, features_BTF: Tensor, frames_B: Tensor) -> Tensor:
        """Each frame with its neighbours, T x B x (2 context + 1) F: in a row of frames laid end to end that is
        a window of so many numbers which moves on by F (times the stride), so no gathering is needed."""
        width = features_BTF.shape[1]
        real = torch.arange(width, device=frames_B.device) < frames_B[:, None]
        silent = torch.where(real[..., None], features_BTF, 0)
        rows = F.pad(silent, (0, 0, self.context, self.context)).flatten(1)
        return rows.unfold(1, self.dense1.in_features, FEATURES * self.stride).transpose(0, 1)

    def _clipped(self, x: Tensor) -> Tensor:
        return F.dropout(F.hardtanh(x, 0.0, CLIP), self.dropout, self.training)


def strided(frames_B: Tensor, stride: int) -> Tensor:
    """How many frames are left when only every so many are looked at, the first among them."""
    return frames_B if stride == 1 else (frames_B + stride - 1) // stride
