"""Decoding of connectionist temporal classification (Graves 2006): from a phone or blank a frame to a phone sequence.

Shape letters: B utterances, T frames, C phones and the blank, K prefixes kept in the beam.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLANK = 0
_NEVER = float("-inf")
_SPREAD = 6364136223846793005  # an odd factor that scatters small numbers over 64 bits


def greedy(log_probs_BTC: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
    """The best path: each frame's likeliest label, repeats merged, blanks dropped.

    Gives the phones (B x T, padded with blanks) and how many there are; the host never waits for the device.
    """
    best = log_probs_BTC.argmax(-1)
    width = best.shape[1]
    before = torch.cat([torch.full_like(best[:, :1], BLANK), best[:, :-1]], 1)
    real = torch.arange(width, device=best.device) < frames_B[:, None]
    kept = (best != before) & (best != BLANK) & real
    place = torch.where(kept, kept.cumsum(1) - 1, width)  # what is dropped lands in one column too many
    phones = best.new_full((len(best), width + 1), BLANK).scatter_(1, place, best)[:, :width]
    return phones, kept.sum(1)


def beam_search(log_probs_BTC: Tensor, frames_B: Tensor, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prefix beam search: the likeliest phone sequence, each summed over its paths, with `beam` prefixes kept.

    Gives the phones (B x T, padded with blanks), how many there are, and the log probability of the sequence.
    All utterances and prefixes advance together, a frame at a time, on whatever device they are.
    """
    utterances, width, labels = log_probs_BTC.shape
    silence = torch.full((labels,), _NEVER, device=log_probs_BTC.device)
    silence[BLANK] = 0
    over = torch.arange(width, device=log_probs_BTC.device) >= frames_B[:, None]
    certain = torch.where(over[..., None], silence, log_probs_BTC.float())  # after its end an utterance is left alone
    beams = _Beams.empty(utterances, beam, width, log_probs_BTC.device)
    for frame in certain.unbind(1):
        beams = beams.advanced(frame)
    total = torch.logaddexp(beams.blank_BK, beams.phone_BK)
    return beams.phones_BKT[:, 0], beams.count_BK[:, 0], total[:, 0]


@dataclass(frozen=True)
class _Beams:
    """The prefixes of every utterance, best first, each with the log probability of its paths by how they end.

    A prefix is known by a 64-bit fingerprint, so that it is recognised when two of its paths meet again.
    """

    phones_BKT: Tensor
    count_BK: Tensor
    last_BK: Tensor  # the last phone; a blank where there is none
    blank_BK: Tensor  # log probability of the paths that end in a blank
    phone_BK: Tensor  # ... and of those that end in the last phone
    name_BK: Tensor
    parent_BK: Tensor  # the fingerprint of the prefix without its last phone

    @classmethod
    def empty(cls, utterances: int, beam: int, width: int, device: torch.device) -> _Beams:
        numbers = torch.zeros(utterances, beam, dtype=torch.int64, device=device)
        never = torch.full((utterances, beam), _NEVER, device=device)
        start = never.clone()
        start[:, 0] = 0
        phones = torch.zeros(utterances, beam, width, dtype=torch.int64, device=device)
        return cls(phones, numbers, numbers, start, never, numbers + 1, numbers)

    def advanced(self, frame_BC: Tensor) -> _Beams:
        """The beams after one more frame."""
        total = torch.logaddexp(self.blank_BK, self.phone_BK)
        same_again = frame_BC.gather(1, self.last_BK)
        blank, phone = total + frame_BC[:, BLANK, None], self.phone_BK + same_again
        grown_BKC = total[..., None] + frame_BC[:, None]
        # a phone that repeats the last one is a new phone only after a blank
        grown_BKC.scatter_(2, self.last_BK[..., None], (self.blank_BK + same_again)[..., None])
        phone = self._met(grown_BKC, phone, total > _NEVER)
        grown_BKC[..., BLANK] = torch.logaddexp(blank, phone)  # to grow by a blank is to stay
        score, choice = grown_BKC.flatten(1).topk(self.last_BK.shape[1])
        return self._selected(score, choice // frame_BC.shape[1], choice % frame_BC.shape[1], blank, phone)

    def _met(self, grown_BKC: Tensor, phone_BK: Tensor, alive_BK: Tensor) -> Tensor:
        """Moves the paths by which one prefix grows into another that is already kept over to the latter."""
        last_BKK = self.last_BK[:, None].expand(-1, self.last_BK.shape[1], -1)
        child_BKK = (self.parent_BK[:, None] == self.name_BK[..., None]) & alive_BK[:, None]
        arriving = grown_BKC.gather(2, last_BKK).masked_fill(~child_BKK, _NEVER)
        moved = torch.zeros_like(grown_BKC).scatter_add_(2, last_BKK, child_BKK.to(grown_BKC.dtype)) > 0
        grown_BKC.masked_fill_(moved, _NEVER)
        return torch.logaddexp(phone_BK, arriving.logsumexp(1))

    def _selected(self, score: Tensor, origin: Tensor, label: Tensor, blank: Tensor, phone: Tensor) -> _Beams:
        """The chosen prefixes: where each came from and the label it grew by, a blank where it stayed."""
        grew = label != BLANK
        count, name = self.count_BK.gather(1, origin), self.name_BK.gather(1, origin)
        phones = self.phones_BKT.gather(1, origin[..., None].expand(-1, -1, self.phones_BKT.shape[2]))
        return _Beams(
            phones_BKT=phones.scatter_(2, count[..., None], label[..., None]),  # a blank there is padding as before
            count_BK=count + grew,
            last_BK=torch.where(grew, label, self.last_BK.gather(1, origin)),
            blank_BK=blank.gather(1, origin).masked_fill(grew, _NEVER),
            phone_BK=torch.where(grew, score, phone.gather(1, origin)),
            name_BK=torch.where(grew, name * _SPREAD + label, name),
            parent_BK=torch.where(grew, name, self.parent_BK.gather(1, origin)),
        )
