"""trained(spec, group): training to the quality of a workload's recipe by several ranks, and how it converged.

Ranks meet after every interval. Rank 0 then evaluates what all have learnt on validation data, which no rank trains
on; the time of that does not count. The test split is evaluated once, with the best weights, after the last step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fathom.core.errors import BadOption
from fathom.core.heartbeat import EVALUATION
from fathom.core.ranks import Ranks
from fathom.core.record import Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.data.base import folder_at
from fathom.engine.ranks.base import Rank, strategy_class
from fathom.engine.ranks.drag import Drag, slowness
from fathom.engine.ranks.group import Group
from fathom.engine.ranks.session import RankSession
from fathom.engine.ranks.timeline import Timeline
from fathom.machine.clock import wait
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import fingerprint
from fathom.training.trainer import HeldOut, data_notes, held_out_for, recipe_for
from fathom.workloads.recipe import Recipe

SPLIT = "train_subset"  # what is trained on, also by recipes that hold nothing out: a job is judged by validation
COUNTED = "; by several ranks, with validation data held out, and seconds without evaluations"


def trained(spec: RunSpec, group: Group) -> Record | None:
    """The record on rank 0, None elsewhere."""
    assert spec.strategy is not None
    strategy = strategy_class(spec.strategy).configured(spec.strategy_options)
    if not strategy.whole_weights:
        raise BadOption(f"strategy {strategy.name} has no rank with the whole network, which evaluations need")
    recipe = recipe_for(spec)
    compute, link = slowness(spec, group)
    timeline = Timeline(group.device, group.heartbeat, group.ranks, link)
    with RankSession(spec, Rank(group, timeline, Drag(compute)), strategy, SPLIT) as session:
        if session.workload.interactive:
            raise BadOption(f"{spec.workload} acts in an environment: it is trained to a target by one rank")
        session.setup()
        run = _Run(session, recipe, group, timeline)
        run.run()
        session.parallel.finish()
        result = run.result()
        return None if result is None else _record(spec, session, group, run, result)


class Learnt(NamedTuple):
    """A network: its weights, and what else it keeps, such as the statistics of batch normalisation."""

    weights: Sequence[Tensor]
    buffers: Sequence[Tensor]


class _Run:
    """Intervals of steps on every rank, and on rank 0 their evaluations."""

    def __init__(self, session: RankSession, recipe: Recipe[Any], group: Group, timeline: Timeline) -> None:
        self.session, self.recipe, self.group, self.timeline = session, recipe, group, timeline
        self.evaluations = session.spec.evaluations or recipe.evaluations
        self.items_per_step = session.items_per_step * group.ranks
        items = recipe.items_per_evaluation or len(session.state.source)
        self.steps = math.ceil(items / self.items_per_step)
        assert session.state.optimizer is not None
        total = self.evaluations * self.steps
        self.schedule = recipe.schedule(session.workload, session.state.optimizer, total)
        self.held_out = _held_out(session, recipe) if group.rank == 0 else None
        self.notes = data_notes(session, self.held_out) if self.held_out else []
        self.curve: list[Point] = []
        self.diverged: str | None = None
        self.best: tuple[int, Learnt] | None = None  # evaluation, from 1 on, and its weights; on rank 0
        self._seconds = 0.0

    @property
    def finished(self) -> bool:
        if self.diverged or len(self.curve) >= self.evaluations:
            return True
        enough = self.recipe.stop_at
        return enough is not None and bool(self.curve) and self.recipe.at_least(self.curve[-1].quality, enough)

    def run(self) -> None:
        """A network that cannot be evaluated is found out before it is trained."""
        self._validated()
        while not self.finished:
            loss = self._interval()
            if not math.isfinite(loss):
                self.diverged = f"the loss is {loss} before evaluation {len(self.curve) + 1}"
                return
            quality = self._validated()
            if not math.isfinite(quality):
                self.diverged = f"the quality is {quality} in evaluation {len(self.curve) + 1}"
                return
            items = (len(self.curve) + 1) * self.steps * self.items_per_step
            self.curve.append(Point(items=items, seconds=self._seconds, loss=loss, quality=quality))

    def _interval(self) -> float:
        """Gives the loss of an item, the mean over steps and ranks. Time is from one barrier to the next."""
        self.group.barrier()
        begun = time.perf_counter()
        losses = [self._step() for _ in range(self.steps)]
        wait(self.group.device)  # for what the host has launched; a barrier is between hosts
        self.group.barrier()
        self._seconds += self.group.largest(time.perf_counter() - begun)
        self.timeline.forget()
        items = self.session.workload.batch if self.session.parallel.summed else 1
        means = self.group.gathered(float(torch.stack(losses).mean()) / items)
        return float(sum(means) / len(means))

    def _step(self) -> Tensor:
        self.timeline.begin_step()
        loss = self.session.train_step()
        self.timeline.end_step()
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def _validated(self) -> float:
        """Of what all ranks have learnt so far; rank 0 keeps the best."""
        buffers = [buffer.detach().clone() for buffer in self.session.state.model.buffers()]
        learnt = Learnt(self.session.parallel.learnt(), buffers)
        quality = 0.0
        if self.held_out is not None:
            self.group.heartbeat.doing(EVALUATION)
            quality = self._evaluated(learnt, self.held_out.validation)
            best = self.curve[self.best[0] - 1].quality if self.best and self.curve else None
            if best is None or (quality != best and self.recipe.at_least(quality, best)):
                self.best = len(self.curve) + 1, learnt
        return float(self.group.gathered(quality)[0])

    def _evaluated(self, learnt: Learnt, data: Any) -> float:
        """With these weights in the network; its own and the random state are put back."""
        state = self.session.state
        buffers = list(state.model.buffers())
        own = Learnt(*([each.detach().clone() for each in held] for held in (state.weights, buffers)))
        _set(state.weights, learnt.weights)
        _set(buffers, learnt.buffers)
        state.model.eval()
        with torch.random.fork_rng(), torch.inference_mode(), state.autocast():
            quality = self.recipe.evaluate(self.session.workload, state, data)
        state.model.train()
        _set(state.weights, own.weights)
        _set(buffers, own.buffers)
        return float(quality)

    def result(self) -> Learning | None:
        """On rank 0, with the one evaluation of the test split."""
        if self.held_out is None:
            return None
        recipe, spec = self.recipe, self.session.spec
        tested = self.best is not None and self.curve and not self.diverged
        quality = self._evaluated(self.best[1], self.held_out.test) if tested and self.best else None
        reached = None if recipe.target is None else quality is not None and bool(recipe.reached(quality))
        return Learning(
            metric=recipe.metric,
            unit=recipe.unit,
            target=recipe.target,
            better=recipe.better,
            protocol=recipe.protocol + COUNTED,
            split=recipe.split,
            curve_split="validation",
            selected=self.best[0] if self.best else None,
            recipe=recipe.id,
            departures=self._departures(),
            data=self.session.workload.synthetic_name if spec.data is None else spec.data.rpartition("/")[2],
            quality=quality,
            reached=reached,
            seconds=self._seconds,
            items=self.curve[-1].items if self.curve else 0,
            energy_j=None,
            metered=None,
            curve=self.curve,
        )

    def _departures(self) -> list[str]:
        ranks = self.group.ranks
        found = [f"{ranks} rank{'s' * (ranks > 1)} by {self.session.strategy.name}", "engine eager"]
        if self.recipe.trainer is not None:
            found.append("one network, trained batch by batch")
        if self.session.workload.averaging:
            found.append("no mean of weights")
        return found


def _held_out(session: RankSession, recipe: Recipe[Any]) -> HeldOut:
    """Validation data in any case: what a recipe without it evaluates on, training data, would not tell."""
    if session.spec.data is None:
        return held_out_for(session, recipe)
    folder = folder_at(session.spec.data, session.workload.expects)
    validation, test = (recipe.evaluation_data(session.workload, folder, each) for each in ("validation", recipe.split))
    return HeldOut(validation, test)


@torch.no_grad()
def _set(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


def _record(spec: RunSpec, session: RankSession, group: Group, run: _Run, result: Learning) -> Record:
    settings = {**asdict(session.strategy), "batch_per_rank": session.workload.batch}
    return Record(
        spec=spec,
        machine=fingerprint(group.device),
        device=group.device.type if group.device.type == "cpu" else f"{group.device.type}:0",
        gpu_uuid=gpu_uuid(group.device),
        outcome="failed" if run.diverged else "ok",
        reason=run.diverged,
        item=session.workload.item_of(spec.phase),
        items_per_step=run.items_per_step,
        parameters=session.parallel.parameters,
        learning=result,
        ranks=Ranks(backend=group.backend, ranks=group.ranks, nodes=group.nodes, settings=settings),
        notes=[*session.parallel.notes, *run.notes],
    )
