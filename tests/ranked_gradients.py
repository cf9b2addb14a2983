"""Gradients of a divided network beside those of the whole one, each rank for the weights that it has.

Started by torchrun as `python tests/ranked_gradients.py FOLDER`, with the specs in job.json; rank 0 writes, for every
spec, the largest error of each weight's gradient relative to its largest element, and on which ranks the weight is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fathom.core.heartbeat import END, Heartbeat
from fathom.core.spec import RunSpec
from fathom.experiments.rank import described, error_path, heartbeat_path

JOB, FOUND = "job.json", "gradients.json"
Errors = dict[str, list[tuple[int, float]]]  # weight -> the ranks that have it, with their errors


def gradient_errors(specs: Sequence[RunSpec], ranks: int, folder: Path) -> list[Errors]:
    from fathom.experiments.launch import run
    from fathom.experiments.ranks import Launch

    (folder / JOB).write_text(json.dumps([spec.to_json() for spec in specs]))
    run(folder, [sys.executable, __file__, str(folder)], ranks, Launch(timeout_s=120))
    found: list[Errors] = json.loads((folder / FOUND).read_text())
    return found


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    os.environ["OMP_NUM_THREADS"] = "1"
    from fathom.engine.ranks.group import Group

    try:
        specs = [RunSpec.from_json(each) for each in json.loads((folder / JOB).read_text())]
        with Group("cpu", heartbeat, timeout_s=120) as group:
            found = [_merged(group.gathered(_errors(spec, group))) for spec in specs]
    except BaseException as error:
        error_path(folder, rank).write_text(json.dumps(described(error)))
        raise
    if rank == 0:
        (folder / FOUND).write_text(json.dumps(found))
    heartbeat.doing(END)


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


if __name__ == "__main__":
    main()
