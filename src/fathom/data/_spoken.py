"""Utterances to learn from: batches of about one length, said otherwise each time.

Shape letters: B utterances, T frames, F features a frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from fathom.data._audio import Utterances
from fathom.data.base import Batch, Order

ABOUT = 0.1  # lengths this far apart, as a share, count as one: the same utterances do not always meet


def by_length(source: Utterances, batch: int, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
    """Batches without end, from number start on, each cut to its longest utterance.

    The features are kept on the device and the lengths on the host, so that neither waits for the other.
    """
    columns = {name: column.to(device) for name, column in source.columns.items()}
    lengths = source.columns["frames"]
    for rows in islice(_of_about_one_length(lengths, batch, seed), start, None):
        width = int(lengths[rows].max())
        there = (rows.pin_memory() if device.type == "cuda" else rows).to(device, non_blocking=True)
        chosen = {name: column.index_select(0, there) for name, column in columns.items() if name != "features"}
        yield chosen | {"features": columns["features"][:, :width].index_select(0, there)}


def _of_about_one_length(lengths: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Row numbers of one batch after another: once through the data, in order of length, cut, the pieces shuffled."""
    pieces = math.ceil(len(lengths) / batch)
    generator = torch.Generator().manual_seed(seed)
    for shuffled in Order(len(lengths), pieces * batch, seed):
        rows = torch.tensor(shuffled)
        about = lengths[rows] * (1 + ABOUT * torch.rand(len(rows), generator=generator))
        cut = rows[about.argsort()].view(pieces, batch)
        yield from cut[torch.randperm(pieces, generator=generator)]


def speed_perturbed(batch: Batch, speed: float) -> Batch:
    """Each utterance faster or slower by up to so much, as a share; what lies between two frames is a blend of them."""
    features_BTF, frames_B = batch["features"], batch["frames"]
    pace_B = torch.exp(math.log1p(speed) * (2 * torch.rand(len(frames_B), device=frames_B.device) - 1))
    width = math.ceil(features_BTF.shape[1] * (1 + speed))
    place_BT = torch.arange(width, device=frames_B.device) * pace_B[:, None]
    last_B1 = frames_B[:, None] - 1
    before_BT = place_BT.long().minimum(last_B1)
    after_BT = (before_BT + 1).minimum(last_B1)
    share_BT1 = (place_BT - before_BT).clamp(0, 1)[..., None]
    across = (-1, -1, features_BTF.shape[2])
    blend_BTF = torch.lerp(
        features_BTF.gather(1, before_BT[..., None].expand(across)),
        features_BTF.gather(1, after_BT[..., None].expand(across)),
        share_BT1,
    )
    return batch | {"features": blend_BTF, "frames": (frames_B / pace_B).round().long().clamp(min=1)}


def time_masked(batch: Batch, gap: int) -> Batch:
    """Two gaps in each utterance, of up to so many frames, in which every feature is at its mean."""
    features_BTF, frames_B = batch["features"], batch["frames"]
    length_2B, begin_2B = torch.rand(2, 2, len(frames_B), device=frames_B.device)
    length_2B = gap * length_2B
    begin_2B = begin_2B * (frames_B - length_2B).clamp(min=0)
    time = torch.arange(features_BTF.shape[1], device=frames_B.device)
    within = (time >= begin_2B[..., None]) & (time < (begin_2B + length_2B)[..., None])
    return batch | {"features": features_BTF.masked_fill(within.any(0)[..., None], 0)}
