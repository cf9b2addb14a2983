"""Synthetic vectors with a class each: what stands in for sensor readings, speech frames and embedded sentences."""

from __future__ import annotations

import torch

from fathom.data.base import InMemory

NOISE = 0.5  # deviation of what is added to a class's own vector, whose elements have a deviation of 1


class Vectors(InMemory):
    """Columns `features` (float32) and `label`."""


def synthetic(seed: int, shape: tuple[int, ...], classes: int, items: int = 2048, used: int = 64) -> Vectors:
    """One random vector per class and noise; at most `used` classes occur, so that few batches show each several times.

    The classes' vectors are the same for every seed: another seed gives other examples of the same classes.
    """
    used = min(classes, used)
    centres = torch.randn(used, *shape, generator=torch.Generator().manual_seed(2017))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(items)[torch.randperm(items, generator=generator)] % used
    noise = NOISE * torch.randn(items, *shape, generator=generator)
    return Vectors(features=centres[labels] + noise, label=labels)
