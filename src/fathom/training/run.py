"""train(spec) -> Record: training to a target quality, with checkpoints: a run that is killed can be resumed."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import torch

from fathom.core.disturbance import Disturbance
from fathom.core.errors import DataError
from fathom.core.events import OnEvent, OnProgress, throttled
from fathom.core.record import Artifact, EarlierMachine, Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.gpus import gpu_shared, gpu_uuid
from fathom.machine.host import fingerprint
from fathom.machine.meter import Counters, Target
from fathom.measure.loop import recorded
from fathom.training.checkpoint import Checkpoint
from fathom.training.data_id import data_id
from fathom.training.trainer import Trainer, data_notes, held_out_for, recipe_for, trainer_for, training_split
from fathom.training.whereabouts import Whereabouts


def train(
    spec: RunSpec, on_progress: OnProgress = lambda done, total: None, on_event: OnEvent = lambda event: None
) -> Record:
    """Follows the workload's recipe and gives the record of what came of it."""
    return recorded(spec, partial(_train, spec, on_progress, on_event))


def _train(spec: RunSpec, on_progress: OnProgress, on_event: OnEvent) -> Record:
    """Intervals until validation says enough or the recipe ends, then the test; what was done before a kill counts."""
    recipe = recipe_for(spec)
    with Session(spec, split=training_split(recipe)).setup() as session:
        held_out = held_out_for(session, recipe)
        trainer = trainer_for(session, recipe, held_out)
        notes = data_notes(session, held_out, recipe.validated_on)
        run = TrainingRun(trainer, session)
        on_event({"items_per_step": trainer.items_per_step})
        if run.resume():
            on_event({"resumed": len(run.curve), "evaluations": trainer.evaluations, "left": run.left})
        run.run(throttled(on_progress), on_event)
        learning = run.result()
        machine = fingerprint(session.device)
        told = [*machine.cpu.quota_notes, *notes, *trainer.notes()]
        return Record(
            spec=spec,
            machine=machine,
            device=str(session.device),
            gpu_uuid=gpu_uuid(session.device),
            outcome="failed" if run.failure else "ok",
            reason=run.failure,
            item=session.workload.item_of(spec.phase),
            items_per_step=trainer.items_per_step,
            parameters=trainer.parameters,
            learning=learning,
            disturbance=Disturbance(gpu_shared=run.gpu_shared),
            notes=[*told, *([run.checkpoint.problem] if run.checkpoint.problem else [])],
        )


class TrainingRun:
    """One training run on its way: its curve, what it took, and its checkpoint."""

    def __init__(self, trainer: Trainer, session: Session) -> None:
        self.trainer, self.recipe, self.session = trainer, trainer.recipe, session
        self.curve: list[Point] = []
        self.seconds = 0.0  # spent before this process
        self.joules: float | None = 0.0  # the same; None where they were not metered
        self.resumed = 0
        self.here, self.earlier = Whereabouts.of(session.device), list[EarlierMachine]()
        self.left: str | None = None  # the other machine that the checkpoint is of
        self.diverged = False
        self.failure: str | None = None
        self.selected: int | None = None  # the evaluation whose weights are tested, from 1 on
        self.checkpoint = Checkpoint(session.spec, session.device)
        self.data_id = data_id(session.spec)  # of many files that takes minutes
        self.gpu_shared = gpu_shared(session.device)  # None where that is not known
        self.meter = Counters(Target.of(session.device))
        self.metered = self.meter.joules()  # up to the last evaluation
        self.begun = time.perf_counter()

    @property
    def finished(self) -> bool:
        if self.diverged or len(self.curve) >= self.trainer.evaluations:
            return True
        enough = self.recipe.stop_at
        return enough is not None and bool(self.curve) and self.recipe.at_least(self.curve[-1].quality, enough)

    def run(self, on_progress: OnProgress, on_event: OnEvent) -> None:
        total = self.trainer.evaluations * self.trainer.steps_per_evaluation
        while not self.finished:
            begun = time.perf_counter()
            loss, items = self.trainer.train(lambda done: self._on_step(done, total, on_progress))
            if not math.isfinite(loss):
                self.diverged = True
                self.failure = f"the loss is {loss} before evaluation {len(self.curve) + 1}"
                return
            speed = items / (time.perf_counter() - begun)  # the loss was read, so the device is done
            on_event({"evaluating": len(self.curve) + 1})
            point = self._evaluated(loss, items)
            self.curve.append(point)
            self._select()
            counts = {"evaluation": len(self.curve), "evaluations": self.trainer.evaluations}
            on_event({**counts, "loss": loss, "quality": point.quality, "items_per_s": speed})
            # the first one is written whatever it costs: only then is it known what writing takes
            if self.finished or len(self.curve) == 1 or self.checkpoint.due():
                self._save(on_event)

    def _on_step(self, done: int, total: int, on_progress: OnProgress) -> None:
        self.meter.look()
        on_progress(done, total)

    def _select(self) -> None:
        """The weights of the last evaluation are kept where they did better in validation than all before."""
        if not self.recipe.selects_best:
            return
        best = math.nan if self.selected is None else self.curve[self.selected - 1].quality
        last = self.curve[-1].quality
        if math.isnan(best) or (last != best and self.recipe.at_least(last, best)):
            self.selected = len(self.curve)
            self.trainer.select()

    def _evaluated(self, loss: float, items: int) -> Point:
        quality = self.trainer.validate()
        wait(self.session.device)
        self.metered = self.meter.joules()
        if (shared := gpu_shared(self.session.device)) is not None:
            self.gpu_shared = bool(self.gpu_shared) or shared
        before = self.curve[-1].items if self.curve else 0
        spent: dict[str, Any] = {"seconds": self._spent(), "energy_j": self._energy()}
        return Point(items=before + items, loss=loss, quality=quality, **spent)

    def result(self) -> Learning:
        recipe, spec = self.recipe, self.session.spec
        last = self.curve[-1] if self.curve else None
        for number, point in enumerate(self.curve, start=1):
            if not math.isfinite(point.quality) and self.failure is None:  # training went on, and may have recovered
                self.failure = f"the quality is {point.quality} in evaluation {number}"
        quality, artifacts = self._tested() if last and not self.diverged else (None, [])
        reached = None if recipe.target is None else quality is not None and bool(recipe.reached(quality))
        return Learning(
            metric=recipe.metric,
            unit=recipe.unit,
            target=recipe.target,
            better=recipe.better,
            protocol=recipe.protocol,
            split=recipe.split,
            curve_split=recipe.validated_on,
            selected=self.selected,
            recipe=recipe.id,
            data_id=self.data_id,
            departures=departures(self.trainer),
            data=data_label(self.trainer, spec),
            quality=quality,
            reached=reached,
            seconds=last.seconds if last else self._spent(),
            items=last.items if last else 0,
            energy_j=last.energy_j if last else None,
            metered=self.meter.name,
            curve=self.curve,
            resumed=self.resumed,
            earlier=self.earlier,
            artifacts=artifacts,
        )

    def _tested(self) -> tuple[float | None, list[Artifact]]:
        """Nothing where the test data cannot be read: what was learnt is kept, and the test can be made again."""
        try:
            quality, artifacts = self.trainer.test()
        except DataError as error:
            self.failure = f"trained, and not tested: {error}"
            return None, []
        if not math.isfinite(quality):
            self.failure = f"trained, and the quality on the test data is {quality}"
            return None, []
        return quality, artifacts

    def resume(self) -> bool:
        """Continues from this run's checkpoint, where there is one: the same numbers follow as without a break."""
        try:
            kept = self.checkpoint.load()
            if kept is None:
                return False
            if kept["recipe"] != self.recipe.id:
                raise ValueError("the recipe was another one then")
            if kept.get("data_id", self.data_id) != self.data_id:
                raise ValueError("the files of the data were others then")
            self.trainer.load_state_dict(kept["trainer"])
            self.curve = [Point(**point) for point in kept["curve"]]
            self.seconds, self.joules, self.resumed = kept["seconds"], kept["joules"], kept["resumed"] + 1
            self.gpu_shared, self.selected = kept["gpu_shared"], kept["selected"]
            self._recognise(kept)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # which says nothing about the file
        except Exception as error:  # whatever a damaged file, or one of another version, may raise
            raise self.checkpoint.unreadable(error) from None
        self.begun, self.meter = time.perf_counter(), Counters(Target.of(self.session.device))  # both count from here
        self.metered = self.meter.joules()
        return True

    def _recognise(self, kept: dict[str, Any]) -> None:
        """Where the checkpoint is of another machine, the record says so."""
        self.earlier = [EarlierMachine(**each) for each in kept.get("earlier", [])]
        there = Whereabouts.kept(kept.get("machine"))
        if there is not None and there.differs(self.here):
            self.earlier.append(there.left_after(len(self.curve)))
            self.left = there.name

    def _save(self, on_event: OnEvent) -> None:
        self.checkpoint.save(
            {
                "trainer": self.trainer.state_dict(),
                "curve": [vars(point) for point in self.curve],
                "seconds": self._spent(),
                "joules": self._energy(),
                "resumed": self.resumed,
                "gpu_shared": self.gpu_shared,
                "selected": self.selected,
                "recipe": self.recipe.id,
                "data_id": self.data_id,
                "machine": vars(self.here),
                "earlier": [vars(each) for each in self.earlier],
            }
        )
        if self.checkpoint.problem:
            on_event({"no_checkpoint": self.checkpoint.problem})

    def _spent(self) -> float:
        return self.seconds + time.perf_counter() - self.begun

    def _energy(self) -> float | None:
        return None if self.metered is None or self.joules is None else self.joules + self.metered


def data_label(trainer: Trainer, spec: RunSpec) -> str:
    """What a run learns from, in a word or two."""
    return trainer.workload.synthetic_name if spec.data is None else spec.data.rpartition("/")[2]


def departures(trainer: Trainer) -> list[str]:
    """The settings that differ from the default training recipe."""
    recipe, spec, kind = trainer.recipe, trainer.session.spec, type(trainer.workload)
    variant = {name: True for name in (kind.recipe.variants if kind.recipe else ()) if spec.options.get(name)}
    asked = dict(spec.options) | ({} if spec.batch is None else {"batch": spec.batch})
    here, usual = kind.configured(spec.preset, **asked), kind.configured(recipe.preset, **{**variant, **recipe.options})
    on_cpu = trainer.session.device.type == "cpu"
    compared = {
        "preset": (spec.preset, recipe.preset),
        "evaluations": (trainer.evaluations, recipe.evaluations),
        "precision": (spec.precision, "fp32" if on_cpu else recipe.precision),
        "engine": (spec.engine, "eager" if on_cpu else recipe.engine),
    }
    options = dict.fromkeys(kind.renamed.get(name, name) for name in {**recipe.options, **asked})
    compared |= {name: (getattr(here, name), getattr(usual, name)) for name in options}
    other = ["synthetic data"] if spec.data is None and not kind.interactive else []
    return other + [f"{name} {value}" for name, (value, default) in compared.items() if value != default]
