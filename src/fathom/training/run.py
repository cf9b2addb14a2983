"""learned(spec) -> Record: training to a target, with checkpoints: a run that is killed goes on where it was."""

from __future__ import annotations

import contextlib
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fathom.core.errors import DataError
from fathom.core.events import Hear, Progress, now_and_then
from fathom.core.record import Disturbance, Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.data.base import folder_at
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.host import fingerprint
from fathom.machine.meter import Meter
from fathom.measure.loop import recorded
from fathom.training.trainer import Trainer, trainer_class

FOLDER = "FATHOM_CHECKPOINTS"  # the variable that names where checkpoints are kept; without it there are none
KEEP_EVERY_S = 2.0  # between two checkpoints, at least
KEEPING_SHARE = 0.05  # of the time, at most: a gigabyte takes seconds to write


def learned(spec: RunSpec, progress: Progress = lambda done, total: None, hear: Hear = lambda told: None) -> Record:
    """Runs the workload's lesson and tells what came of it."""
    return recorded(spec, partial(_learned, spec, progress, hear))


def _learned(spec: RunSpec, progress: Progress, hear: Hear) -> Record:
    """Rounds until the target is reached or the lesson is over; what was done before a kill counts."""
    with Session(spec).setup() as session:
        trainer = trainer_class(spec.workload)(session, _held_out(session))
        course = TrainingRun(trainer, session)
        hear({"items_per_step": trainer.items_per_step})
        if course.resume():
            hear({"resumed": len(course.curve), "rounds": trainer.rounds})
        course.run(now_and_then(progress), hear)
        return Record(
            spec=spec,
            machine=fingerprint(session.device),
            device=str(session.device),
            outcome="failed" if course.diverged else "ok",
            reason=course.diverged,
            items_per_step=trainer.items_per_step,
            parameters=trainer.parameters,
            learning=course.told(),
            disturbance=Disturbance(gpu_shared=course.shared),
            notes=[*trainer.notes(), *course.notes()],
        )


class TrainingRun:
    """One run of learning on its way: what has been learnt, what it took, and what is kept of it on disk."""

    def __init__(self, trainer: Trainer, session: Session) -> None:
        self.trainer, self.session = trainer, session
        self.curve: list[Point] = []
        self.seconds = 0.0  # spent before this process
        self.joules: float | None = 0.0  # the same; None where they were not counted
        self.resumed = 0
        self.diverged: str | None = None
        self.shared = False  # whether other programs were seen on the GPU
        self.unkept = ""  # why a checkpoint could not be written
        self.meter = Meter(session.device)
        self.metered = self.meter.joules()  # up to the last look at held-out data
        self.begun = self.kept = time.perf_counter()
        self.keeping_s = 0.0  # what the last checkpoint took

    @property
    def finished(self) -> bool:
        if self.diverged or len(self.curve) >= self.trainer.rounds:
            return True
        lesson = self.trainer.lesson
        return bool(self.curve) and lesson.stops_at_target and bool(lesson.quality.reached(self.curve[-1].quality))

    def run(self, progress: Progress, hear: Hear) -> None:
        total = self.trainer.rounds * self.trainer.steps_per_round
        while not self.finished:
            begun = time.perf_counter()
            loss, items = self.trainer.train(lambda done: progress(done, total))
            if not math.isfinite(loss):
                self.diverged = f"the loss is {loss} in round {len(self.curve) + 1}"
                return
            speed = items / (time.perf_counter() - begun)  # the loss was read, so the device is done
            hear({"looking": len(self.curve) + 1})
            quality = self.trainer.evaluate()
            wait(self.session.device)
            self.metered = self.meter.joules()
            self.shared = self.shared or self.meter.shared
            before = self.curve[-1].items if self.curve else 0
            spent: dict[str, Any] = {"seconds": self._spent(), "energy_j": self._energy()}
            self.curve.append(Point(items=before + items, loss=loss, quality=quality, **spent))
            news = {"round": len(self.curve), "rounds": self.trainer.rounds, "loss": loss, "quality": quality}
            hear({**news, "items_per_s": speed})
            if self._due():
                self._keep(hear)

    def notes(self) -> list[str]:
        """What should be known of the circumstances."""
        return [self.unkept] if self.unkept else []

    def _due(self) -> bool:
        """The first round is kept whatever it costs: only then is it known what keeping takes."""
        waited = time.perf_counter() - self.kept
        return self.finished or len(self.curve) == 1 or waited >= max(KEEP_EVERY_S, self.keeping_s / KEEPING_SHARE)

    def told(self) -> Learning:
        quality = self.trainer.lesson.quality
        last = self.curve[-1] if self.curve else None
        return Learning(
            metric=quality.metric,
            unit=quality.unit,
            target=quality.target,
            better=quality.better,
            protocol=quality.protocol + _departures(self.trainer),
            quality=last.quality if last else None,
            reached=self._reached(),
            seconds=last.seconds if last else self._spent(),
            items=last.items if last else 0,
            energy_j=self._energy(),
            metered=self.meter.name,
            curve=self.curve,
            resumed=self.resumed,
            artifacts=[] if self.diverged else self.trainer.artifacts(),
        )

    def resume(self) -> bool:
        """Goes on from this run's checkpoint, where there is one: the same numbers follow as without a break."""
        path = self._path()
        if path is None or not path.exists():
            return False
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            self.trainer.load_state_dict(kept["trainer"])
            torch.set_rng_state(kept["random"])
            if self.session.device.type == "cuda":
                torch.cuda.set_rng_state(kept["random_gpu"], self.session.device)
            self.curve = [Point(**point) for point in kept["curve"]]
            self.seconds, self.joules, self.resumed = kept["seconds"], kept["joules"], kept["resumed"] + 1
            self.shared = kept["shared"]
            if kept["protocol"] != self.trainer.lesson.quality.protocol:
                raise ValueError("the lesson was another one then")
        except (MemoryError, torch.OutOfMemoryError):
            raise  # which says nothing about the file
        except Exception as error:  # whatever a damaged file, or one of another version, may raise
            why = str(error).partition(". ")[0].partition("\n")[0]  # torch goes on for long
            raise DataError.at(path, f"not a checkpoint of this run; remove it to begin anew: {why}") from None
        self.begun, self.meter = time.perf_counter(), Meter(self.session.device)  # both count from here
        self.metered = self.meter.joules()
        return True

    def _keep(self, hear: Hear) -> None:
        """Through a second file, so that a kill in the middle leaves the checkpoint before.

        Where it cannot be written, the run goes on: without a kill it will not be missed.
        """
        path = self._path()
        if path is None:
            return
        begun = time.perf_counter()
        gpu = self.session.device.type == "cuda"
        document = {
            "trainer": self.trainer.state_dict(),
            "random": torch.get_rng_state(),
            "random_gpu": torch.cuda.get_rng_state(self.session.device) if gpu else None,
            "curve": [vars(point) for point in self.curve],
            "seconds": self._spent(),
            "joules": self._energy(),
            "resumed": self.resumed,
            "shared": self.shared,
            "protocol": self.trainer.lesson.quality.protocol,
        }
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(document, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self.unkept = f"a checkpoint could not be kept at {path}: {error.strerror or error}"
            hear({"unkept": self.unkept})
        self.kept = time.perf_counter()
        self.keeping_s = self.kept - begun

    def _reached(self) -> bool | None:
        quality = self.trainer.lesson.quality
        if quality.target is None:
            return None
        return bool(self.curve) and not self.diverged and bool(quality.reached(self.curve[-1].quality))

    def _spent(self) -> float:
        return self.seconds + time.perf_counter() - self.begun

    def _energy(self) -> float | None:
        return None if self.metered is None or self.joules is None else self.joules + self.metered

    def _path(self) -> Path | None:
        folder = os.environ.get(FOLDER)
        spec = self.session.spec
        return Path(folder) / f"{spec.workload}-{spec.id}.pt" if folder else None


def _departures(trainer: Trainer) -> str:
    """What was asked for otherwise than in the lesson: then its protocol was not kept to the letter."""
    lesson, spec, kind = trainer.lesson, trainer.session.spec, type(trainer.workload)
    switches = {name: True for name in (kind.lesson.instead if kind.lesson else ()) if spec.options.get(name)}
    here = kind.configured(spec.preset, **spec.options)
    usual = kind.configured(lesson.preset, **{**switches, **lesson.options})
    precision = spec.precision, "fp32" if trainer.session.device.type == "cpu" else lesson.precision
    asked = {"preset": (spec.preset, lesson.preset), "rounds": (trainer.rounds, lesson.rounds), "precision": precision}
    asked |= {name: (getattr(here, name), getattr(usual, name)) for name in {**lesson.options, **spec.options}}
    other = ["synthetic data"] if spec.data is None and not kind.plays else []
    other += [f"{name} {value}" for name, (value, meant) in asked.items() if value != meant]
    return f"; not as in the lesson: {', '.join(other)}" if other else ""


def _held_out(session: Session) -> Any:
    """What quality is judged on: the test split, or synthetic data that training has not seen."""
    spec, workload = session.spec, session.workload
    if spec.data is None:
        return workload.unseen(spec.seed + 1)
    return workload.held_out(folder_at(spec.data, workload.expects))
