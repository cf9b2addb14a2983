"""Batches of utterances for training: bucketed by length, with speed perturbation and time masking.

Shape letters: B utterances, T frames, F features per frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from fathom.data._audio import Utterances
from fathom.data.base import Batch, ShuffledBatches

LENGTH_JITTER = 0.1  # relative; random jitter of the sort key, so that batches differ from epoch to epoch


def by_length(source: Utterances, batch: int, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
    """Endless batches of utterances of similar length, each trimmed to its longest; starts at batch number `start`.

    Features are kept on the device and lengths on the host, so that neither waits for the other.
    """
    columns = {name: column.to(device) for name, column in source.columns.items()}
    lengths = source.columns["frames"]
    rank, ranks = source.share
    for rows in islice(_batches_of_similar_length(lengths, batch, seed), start * ranks + rank, None, ranks):
        width = int(lengths[rows].max())
        on_device = (rows.pin_memory() if device.type == "cuda" else rows).to(device, non_blocking=True)
        chosen = {name: column.index_select(0, on_device) for name, column in columns.items() if name != "features"}
        yield chosen | {"features": columns["features"][:, :width].index_select(0, on_device)}


def _batches_of_similar_length(lengths: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Row numbers of endless batches: each epoch is sorted by jittered length, cut into batches, and these shuffled."""
    batches = math.ceil(len(lengths) / batch)
    generator = torch.Generator().manual_seed(seed)
    for shuffled in ShuffledBatches(len(lengths), batches * batch, seed):
        rows = torch.tensor(shuffled)
        jittered = lengths[rows] * (1 + LENGTH_JITTER * torch.rand(len(rows), generator=generator))
        cut = rows[jittered.argsort()].view(batches, batch)
        yield from cut[torch.randperm(batches, generator=generator)]


def speed_perturbed(batch: Batch, speed: float) -> Batch:
    """Speed perturbation: each utterance is resampled in time, up to a factor of 1 + speed faster or slower."""
    features_BTF, frames_B = batch["features"], batch["frames"]
    factor_B = torch.exp(math.log1p(speed) * (2 * torch.rand(len(frames_B), device=frames_B.device) - 1))
    width = math.ceil(features_BTF.shape[1] * (1 + speed))
    source_time_BT = torch.arange(width, device=frames_B.device) * factor_B[:, None]
    last_B1 = frames_B[:, None] - 1
    before_BT = source_time_BT.long().minimum(last_B1)
    after_BT = (before_BT + 1).minimum(last_B1)
    weight_BT1 = (source_time_BT - before_BT).clamp(0, 1)[..., None]
    across = (-1, -1, features_BTF.shape[2])
    resampled_BTF = torch.lerp(
        features_BTF.gather(1, before_BT[..., None].expand(across)),
        features_BTF.gather(1, after_BT[..., None].expand(across)),
        weight_BT1,
    )
    return batch | {"features": resampled_BTF, "frames": (frames_B / factor_B).round().long().clamp(min=1)}


def time_masked(batch: Batch, gap: int) -> Batch:
    """Time masking: two random spans per utterance, of up to `gap` frames, are set to 0, the mean of every feature."""
    features_BTF, frames_B = batch["features"], batch["frames"]
    length_2B, begin_2B = torch.rand(2, 2, len(frames_B), device=frames_B.device)
    length_2B = gap * length_2B
    begin_2B = begin_2B * (frames_B - length_2B).clamp(min=0)
    time = torch.arange(features_BTF.shape[1], device=frames_B.device)
    masked = (time >= begin_2B[..., None]) & (time < (begin_2B + length_2B)[..., None])
    return batch | {"features": features_BTF.masked_fill(masked.any(0)[..., None], 0)}
