"""The Cookbook's model table beside our counts, and what each difference consists of, to the last parameter.

Its counts are Caffe's: of a batch normalisation they include the running mean and variance and a factor of one number,
which nobody trains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fathom import published
from fathom.workloads.base import workload_class


@dataclass(frozen=True)
class Count:
    """One network's parameters; the first four add up to the Cookbook's count."""

    workload: str
    trainable: int
    running_statistics: int  # two numbers a channel of every batch normalisation
    factors: int  # one a batch normalisation
    biases: int  # of layers that have one in the Cookbook's network alone
    cookbook: int
    mac_per_item: int
    cookbook_gmac: float | None

    @property
    def as_cookbook(self) -> int:
        return self.trainable + self.running_statistics + self.factors + self.biases


def counts(names: list[str]) -> list[Count]:
    """Of the workloads that the Cookbook has a count of."""
    return [found for name in names if (found := count(name))]


def count(name: str) -> Count | None:
    """Counted on the meta device; None for a workload that is not the Cookbook's."""
    kind = workload_class(name)
    facts = kind.facts
    if facts is None or facts.cookbook is None:
        return None
    with torch.device("meta"):
        model = kind.configured("small").model()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    row = _published()[facts.cookbook]
    assert row.parameters is not None
    return Count(
        workload=name,
        trainable=sum(weight.numel() for weight in model.parameters()),
        running_statistics=sum(2 * norm.num_features for norm in norms),
        factors=len(norms),
        biases=facts.cookbook_biases,
        cookbook=row.parameters,
        mac_per_item=facts.macs_per_item,
        cookbook_gmac=row.forward_gmac,
    )


def _published() -> dict[str, published.ReferenceModel]:
    """The slides' table, and for networks that it leaves out the one of the Cookbook's repository."""
    return {row.name: row for row in [*published.dlbs_models(), *published.cookbook_models()]}
