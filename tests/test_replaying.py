"""Steps replayed as CUDA graphs learn what single launches learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fathom.training.trainers.graph import Graphs

from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.session import Session
from fathom.training.trainer import recipe_for, trainer_for

OPTIONS: dict[str, dict[str, Any]] = {
    "seq2seq": {"solver": "adam", "learning_rate": 0.004, "warmup": 20, "clip_norm": 1.0, "averaging": 0.9},
    "autoenc": {"adam": True, "learning_rate": 0.003},
}


def test_work_is_recorded_for_each_shape_by_itself() -> None:
    """Every batch is worked on once, as itself, and what was given is not written over."""
    calls = []

    def work(batch: Batch) -> torch.Tensor:
        calls.append(tuple(batch["source"].shape))
        return batch["source"].sum() + 10 * batch["target"].sum()

    graphs = Graphs(work, torch.device("cpu"))
    made = [{"source": torch.full((2, n), n), "target": torch.full((2, n), i)} for i, n in enumerate((3, 4, 3, 3, 4))]
    found = [graphs(batch) for batch in made]
    assert [int(each) for each in found] == [int(work(batch)) for batch in made]
    assert calls[:5] == [(2, 3), (2, 4), (2, 3), (2, 3), (2, 4)]


@pytest.mark.gpu
def test_dropout_is_drawn_anew_at_every_replay() -> None:
    device = torch.device("cuda")
    graphs = Graphs(lambda batch: torch.nn.functional.dropout(batch["source"], 0.5), device)
    found = [graphs({"source": torch.ones(1000, device=device)}) for _ in range(6)]
    assert len({tuple(each.tolist()) for each in found}) == 6


@pytest.mark.parametrize(("name", "apart"), [("seq2seq", 0.01), ("autoenc", 0.03)])
@pytest.mark.gpu
def test_replayed_graphs_learn_what_single_launches_do(name: str, apart: float) -> None:
    """The autoencoder draws its latents, and not the same ones."""
    losses = []
    for graphs in (False, True):
        options = {**OPTIONS[name], "graphs": graphs}
        spec = RunSpec(workload=name, preset="tiny", device="cuda", kind="training", options=options)
        with Session(spec).setup() as session:
            trainer = trainer_for(session, recipe_for(session.spec), session.workload.synthetic(1))
            losses.append([float(trainer.step()) for _ in range(60)])
    assert losses[1] == pytest.approx(losses[0], rel=apart)
    assert losses[1][-1] < 0.98 * losses[1][0]


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_replaying_learner_updates_as_the_workload_does(name: str) -> None:
    """Where nothing is recorded, its step is the plain one, bit for bit."""
    weights = []
    for plain in (True, False):
        spec = RunSpec(workload=name, preset="tiny", device="cpu", kind="training", options=OPTIONS[name])
        with Session(spec).setup() as session:
            trainer = trainer_for(session, recipe_for(session.spec), session.workload.synthetic(1))
            for _ in range(3):
                _ = session.workload.train_step(session.state) if plain else trainer.step()
            weights.append([parameter.detach().clone() for parameter in session.state.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
