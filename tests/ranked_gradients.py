"""Gradients of a divided network beside those of the whole one, each rank for the weights that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fathom.core.spec import RunSpec

Errors = dict[str, list[tuple[int, float]]]  # weight -> the ranks that have it, with their errors


def gradient_errors(spec: RunSpec, group: Any) -> Errors:
    """The largest error of each weight's gradient relative to its largest element, on each rank that has the weight."""
    return _merged(group.gathered(_errors(spec, group)))


def _errors(spec: RunSpec, group: Any) -> dict[str, float]:
    from fathom.engine.ranks.base import Rank, RankedEngine, strategy_class
    from fathom.engine.ranks.drag import Drag
    from fathom.engine.ranks.session import RankSession, local_spec
    from fathom.engine.ranks.timeline import Timeline
    from fathom.engine.session import Session

    strategy = strategy_class(spec.strategy or "").configured(spec.strategy_options)
    timeline = Timeline(group.device, group.heartbeat, group.ranks)
    with RankSession(spec, Rank(group, timeline, Drag()), strategy) as session:
        session.setup()
        engine = session.engine
        assert isinstance(engine, RankedEngine)
        setattr(engine.inner, "apply", lambda: None)  # noqa: B010
        timeline.begin_step()
        batch = next(session.state.batches)
        engine.update(batch)
        weights = {id(weight) for weight in session.state.weights}
        mine = {name: each.grad for name, each in session.state.model.named_parameters() if id(each) in weights}
        with Session(
            local_spec(spec, session.workload.batch, "batch" if spec.scaling == "weak" else "network")
        ) as plain:
            plain.setup()
            plain.engine.gradients(batch)
            plain.engine.clip()
            theirs = {name: each.grad for name, each in plain.state.model.named_parameters()}
        return {name: _relative(gradient, theirs[name]) for name, gradient in mine.items()}


def _relative(mine: Any, theirs: Any) -> float:
    whole = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
    return float((whole - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))


def _merged(found: Sequence[dict[str, float]]) -> Errors:
    merged: Errors = {}
    for rank, errors in enumerate(found):
        for name, error in errors.items():
            merged.setdefault(name, []).append((rank, error))
    return merged
