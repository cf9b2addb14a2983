"""RankSession: a session of one rank, whose data is its share and whose updates are its strategy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fathom.core.errors import BadOption, EngineError
from fathom.core.spec import EAGER, RunSpec
from fathom.data.base import Dataset
from fathom.engine.base import Infer, Loss, engine_class
from fathom.engine.ranks.base import Parallel, Rank, RankedEngine, Strategy
from fathom.engine.session import Session
from fathom.workloads.base import workload_class


class RankSession(Session):
    """Set up alike on every rank, so that all begin with the same weights; random numbers differ from then on."""

    def __init__(self, spec: RunSpec, rank: Rank, strategy: Strategy, split: str | None = None) -> None:
        kind = workload_class(spec.workload)
        if spec.engine != EAGER:
            raise EngineError(f"ranks run with engine eager, not {spec.engine}")
        if spec.phase != "train":
            raise BadOption("ranks divide training; inference has nothing to exchange")
        local = local_spec(spec, kind.configured(spec.preset, **batch_of(spec)).batch, strategy.divides)
        self.rank, self.strategy = rank, strategy
        self._parallel: Parallel | None = None
        if kind.interactive:  # every rank acts in an environment of its own; weights are made alike by the strategy
            local = replace(local, seed=(local.seed or 0) + rank.group.rank)
        super().__init__(replace(local, device=str(rank.group.device)), split=split)
        refusal = strategy.refusal(self.workload, rank.group.ranks)
        if refusal is not None:
            raise EngineError(f"strategy {strategy.name} {refusal}")

    @property
    def parallel(self) -> Parallel:
        if self._parallel is None:
            raise BadOption("call setup() first")
        return self._parallel

    def setup(self) -> RankSession:
        super().setup()
        own = 0 if self.strategy.same_random else self.rank.group.rank  # dropout and noise are each rank's own
        torch.manual_seed((self.spec.seed or 0) + own)
        return self

    def open_data(self) -> Any:
        source = super().open_data()
        group = self.rank.group
        shared = isinstance(source, Dataset) and self.strategy.divides == "batch"
        return source.share_of(group.rank, group.ranks) if shared else source

    def prepare(self, loss: Loss, infer: Infer, clip: Callable[[], object] | None) -> None:
        self._parallel = self.strategy.prepare(self.rank, self.workload, self.state, loss)
        inner = engine_class(self.spec.engine)(self.state, self._parallel.loss, infer, clip)
        self._engine = RankedEngine(inner, self._parallel)


def batch_of(spec: RunSpec) -> dict[str, Any]:
    """The workload's fields that the spec changes."""
    return dict(spec.options) | ({} if spec.batch is None else {"batch": spec.batch})


def local_spec(spec: RunSpec, batch: int, divides: str = "batch") -> RunSpec:
    """The spec of one rank by itself: in strong scaling, its part of the global batch.

    Ranks that divide the network all have the global batch, which in weak scaling grows with their number.
    """
    assert spec.ranks is not None
    if divides == "network":
        batch *= 1 if spec.scaling == "strong" else spec.ranks
    elif spec.scaling == "strong":
        if batch % spec.ranks:
            raise BadOption(f"a global batch of {batch} cannot be divided among {spec.ranks} ranks; change --batch")
        batch //= spec.ranks
    single: dict[str, Any] = {"nodes": 1, "strategy": None, "scaling": None, "strategy_options": {}}
    single |= {"slow_rank": None, "slow_link": None}
    return replace(spec, ranks=None, batch=batch, **single)
