"""CTC (Graves et al., 2006): the loss of a phone sequence, and decoding a distribution per frame into one.

Shape letters: B utterances, T frames, C phones and the blank, K prefixes kept in the beam.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BLANK = 0
CUDNN_PHONES = 256  # cuDNN takes fewer
_LOG_ZERO = float("-inf")
_HASH_FACTOR = 6364136223846793005  # an odd multiplier that distributes small numbers over 64 bits


def loss(log_probs_TBC: Tensor, phones_BS: Tensor, frames_B: Tensor, count_B: Tensor) -> Tensor:
    """The negative log probability of the phones, summed over utterances.

    On an NVIDIA GPU it is cuDNN's, which reads the lengths where they are. F.ctc_loss would copy them to the host and
    wait for them, in the middle of every step, and such a step cannot be captured as a CUDA graph. Where scores
    were thirty times as sharp as a normal distribution's, cuDNN's gradient of one utterance of eight was nan.
    """
    if log_probs_TBC.is_cuda and torch.version.cuda and phones_BS.shape[1] < CUDNN_PHONES:
        lengths, exact = (frames_B.int(), count_B.int()), torch.backends.cudnn.deterministic
        packed = _end_to_end(phones_BS, count_B)
        spoken_TBC = no_gradient_of_padding(log_probs_TBC, frames_B)
        losses_B, _ = torch.ops.aten._cudnn_ctc_loss.Tensor(spoken_TBC, packed, *lengths, BLANK, exact, False)
        total: Tensor = losses_B.sum()
        return total
    return F.ctc_loss(log_probs_TBC, phones_BS, frames_B, count_B, blank=BLANK, reduction="sum")


def no_gradient_of_padding(log_probs_TBC: Tensor, frames_B: Tensor) -> Tensor:
    """The same numbers, with a gradient of 0 behind the last frame of each utterance.

    cuDNN writes none there (NVIDIA, in issue 41280 of TensorFlow): what the memory held would go into the network's.
    """
    frame = torch.arange(log_probs_TBC.shape[0], device=log_probs_TBC.device)
    return torch.where((frame[:, None] < frames_B)[..., None], log_probs_TBC, log_probs_TBC.detach())


def _end_to_end(phones_BS: Tensor, count_B: Tensor) -> Tensor:
    """The phones of all utterances one after the other, as cuDNN reads them; what is left behind them is not read."""
    place = torch.arange(phones_BS.shape[1], device=phones_BS.device)
    position = torch.where(place < count_B[:, None], (count_B.cumsum(0) - count_B)[:, None] + place, phones_BS.numel())
    packed = torch.zeros(phones_BS.numel() + 1, dtype=torch.int32, device=phones_BS.device)
    return packed.scatter_(0, position.flatten(), phones_BS.flatten().int())[:-1]


def greedy(log_probs_BTC: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
    """Best-path decoding: the most probable label of each frame, repeats merged, blanks removed.

    Returns the phones (B x T, padded with blanks) and their number, without synchronising with the device.
    """
    best = log_probs_BTC.argmax(-1)
    width = best.shape[1]
    before = torch.cat([torch.full_like(best[:, :1], BLANK), best[:, :-1]], 1)
    valid = torch.arange(width, device=best.device) < frames_B[:, None]
    kept = (best != before) & (best != BLANK) & valid
    position = torch.where(kept, kept.cumsum(1) - 1, width)  # removed labels are written to an extra column
    phones = best.new_full((len(best), width + 1), BLANK).scatter_(1, position, best)[:, :width]
    return phones, kept.sum(1)


def beam_search(log_probs_BTC: Tensor, frames_B: Tensor, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prefix beam search: the most probable phone sequence, summed over its paths, with `beam` prefixes kept.

    Returns the phones (B x T, padded with blanks), their number, and the log probability of the sequence.
    All utterances and prefixes advance together, one frame at a time.
    """
    utterances, width, labels = log_probs_BTC.shape
    blank_only = torch.full((labels,), _LOG_ZERO, device=log_probs_BTC.device)
    blank_only[BLANK] = 0
    finished = torch.arange(width, device=log_probs_BTC.device) >= frames_B[:, None]
    # after its last frame an utterance emits blanks only
    log_probs = torch.where(finished[..., None], blank_only, log_probs_BTC.float())
    beams = _Beams.empty(utterances, beam, width, log_probs_BTC.device)
    for frame in log_probs.unbind(1):
        beams = beams.advanced(frame)
    total = torch.logaddexp(beams.blank_BK, beams.phone_BK)
    return beams.phones_BKT[:, 0], beams.count_BK[:, 0], total[:, 0]


@dataclass(frozen=True)
class _Beams:
    """The prefixes of every utterance, best first, with the log probability of their paths, split by last label.

    A prefix is identified by a 64-bit hash, so that paths that lead to the same prefix can be merged.
    """

    phones_BKT: Tensor
    count_BK: Tensor
    last_BK: Tensor  # the last phone; BLANK for the empty prefix
    blank_BK: Tensor  # log probability of the paths that end in a blank
    phone_BK: Tensor  # log probability of the paths that end in the last phone
    hash_BK: Tensor
    parent_BK: Tensor  # the hash of the prefix without its last phone

    @classmethod
    def empty(cls, utterances: int, beam: int, width: int, device: torch.device) -> _Beams:
        numbers = torch.zeros(utterances, beam, dtype=torch.int64, device=device)
        impossible = torch.full((utterances, beam), _LOG_ZERO, device=device)
        start = impossible.clone()
        start[:, 0] = 0
        phones = torch.zeros(utterances, beam, width, dtype=torch.int64, device=device)
        return cls(phones, numbers, numbers, start, impossible, numbers + 1, numbers)

    def advanced(self, frame_BC: Tensor) -> _Beams:
        """The beams after one more frame."""
        total = torch.logaddexp(self.blank_BK, self.phone_BK)
        same_again = frame_BC.gather(1, self.last_BK)
        blank, phone = total + frame_BC[:, BLANK, None], self.phone_BK + same_again
        extended_BKC = total[..., None] + frame_BC[:, None]
        # a phone that repeats the last one is a new phone only after a blank
        extended_BKC.scatter_(2, self.last_BK[..., None], (self.blank_BK + same_again)[..., None])
        phone = self._merge_paths(extended_BKC, phone, total > _LOG_ZERO)
        extended_BKC[..., BLANK] = torch.logaddexp(blank, phone)  # a blank leaves the prefix unchanged
        score, choice = extended_BKC.flatten(1).topk(self.last_BK.shape[1])
        return self._select(score, choice // frame_BC.shape[1], choice % frame_BC.shape[1], blank, phone)

    def _merge_paths(self, extended_BKC: Tensor, phone_BK: Tensor, alive_BK: Tensor) -> Tensor:
        """Where a prefix extended by a phone equals another kept prefix, moves the probability to the latter."""
        last_BKK = self.last_BK[:, None].expand(-1, self.last_BK.shape[1], -1)
        child_BKK = (self.parent_BK[:, None] == self.hash_BK[..., None]) & alive_BK[:, None]
        arriving = extended_BKC.gather(2, last_BKK).masked_fill(~child_BKK, _LOG_ZERO)
        moved = torch.zeros_like(extended_BKC).scatter_add_(2, last_BKK, child_BKK.to(extended_BKC.dtype)) > 0
        extended_BKC.masked_fill_(moved, _LOG_ZERO)
        return torch.logaddexp(phone_BK, arriving.logsumexp(1))

    def _select(self, score: Tensor, origin: Tensor, label: Tensor, blank: Tensor, phone: Tensor) -> _Beams:
        """The chosen prefixes, from their origins and the labels they were extended by (BLANK if unchanged)."""
        extended = label != BLANK
        count, hash_ = self.count_BK.gather(1, origin), self.hash_BK.gather(1, origin)
        phones = self.phones_BKT.gather(1, origin[..., None].expand(-1, -1, self.phones_BKT.shape[2]))
        return _Beams(
            phones_BKT=phones.scatter_(2, count[..., None], label[..., None]),  # a blank there is padding
            count_BK=count + extended,
            last_BK=torch.where(extended, label, self.last_BK.gather(1, origin)),
            blank_BK=blank.gather(1, origin).masked_fill(extended, _LOG_ZERO),
            phone_BK=torch.where(extended, score, phone.gather(1, origin)),
            hash_BK=torch.where(extended, hash_ * _HASH_FACTOR + label, hash_),
            parent_BK=torch.where(extended, hash_, self.parent_BK.gather(1, origin)),
        )
