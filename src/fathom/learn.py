"""learned(spec) -> Record: training to a target, with checkpoints: a run that is killed goes on where it was."""

from __future__ import annotations

import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fathom import registry
from fathom.dataset import folder_at
from fathom.errors import BadOption, DataError
from fathom.learner import Learner
from fathom.machine import fingerprint
from fathom.measure import recorded
from fathom.meter import Meter
from fathom.progress import Hear, Progress, now_and_then
from fathom.record import Learning, Point, Record
from fathom.session import Session
from fathom.spec import RunSpec
from fathom.timing import wait

FOLDER = "FATHOM_CHECKPOINTS"  # the variable that names where checkpoints are kept; without it there are none
KEEP_EVERY_S = 2.0  # between two checkpoints, at least
KEEPING_SHARE = 0.05  # of the time, at most: a gigabyte takes seconds to write
SHARED = "other programs were on the GPU: its time was not this run's alone, and the energy is that of all of them"


def learned(spec: RunSpec, progress: Progress = lambda done, total: None, hear: Hear = lambda told: None) -> Record:
    """Runs the workload's lesson and tells what came of it."""
    return recorded(spec, partial(_learned, spec, progress, hear))


def _learned(spec: RunSpec, progress: Progress, hear: Hear) -> Record:
    """Rounds until the target is reached or the lesson is over; what was done before a kill counts."""
    with Session(spec).setup() as session:
        learner = registry.learner(spec.workload)(session, _held_out(session))
        course = Course(learner, session)
        course.resume()
        course.run(now_and_then(progress), hear)
        return Record(
            spec=spec,
            machine=fingerprint(session.device),
            device=str(session.device),
            outcome="failed" if course.diverged else "ok",
            reason=course.diverged,
            items_per_step=session.items_per_step,
            parameters=learner.parameters,
            learning=course.told(),
            notes=[SHARED] if course.shared else [],
        )


class Course:
    """One run of learning on its way: what has been learnt, what it took, and what is kept of it on disk."""

    def __init__(self, learner: Learner, session: Session) -> None:
        self.learner, self.session = learner, session
        self.curve: list[Point] = []
        self.seconds, self.joules = 0.0, 0.0  # spent before this process
        self.resumed = 0
        self.diverged: str | None = None
        self.shared = False  # whether other programs were seen on the GPU
        self.meter = Meter(session.device)
        self.metered = self.meter.joules()  # up to the last look at held-out data
        self.begun = self.kept = time.perf_counter()
        self.keeping_s = 0.0  # what the last checkpoint took

    @property
    def finished(self) -> bool:
        if self.diverged or len(self.curve) >= self.learner.rounds:
            return True
        lesson = self.learner.lesson
        return bool(self.curve) and lesson.stops_at_target and lesson.quality.reached(self.curve[-1].quality)

    def run(self, progress: Progress, hear: Hear) -> None:
        total = self.learner.rounds * self.learner.steps_per_round
        while not self.finished:
            begun = time.perf_counter()
            loss, items = self.learner.train(lambda done: progress(done, total))
            if not math.isfinite(loss):
                self.diverged = f"the loss is {loss} in round {len(self.curve) + 1}"
                return
            speed = items / (time.perf_counter() - begun)  # the loss was read, so the device is done
            quality = self.learner.evaluate()
            wait(self.session.device)
            self.metered = self.meter.joules()
            self.shared = self.shared or self.meter.shared
            before = self.curve[-1].items if self.curve else 0
            point = Point(items=before + items, seconds=self._spent(), loss=loss, quality=quality)
            self.curve.append(point)
            news = {"round": len(self.curve), "rounds": self.learner.rounds, "loss": loss, "quality": quality}
            hear({**news, "items_per_s": speed})
            if self._due():
                self._keep()

    def _due(self) -> bool:
        """The first round is kept whatever it costs: only then is it known what keeping takes."""
        waited = time.perf_counter() - self.kept
        return self.finished or len(self.curve) == 1 or waited >= max(KEEP_EVERY_S, self.keeping_s / KEEPING_SHARE)

    def told(self) -> Learning:
        quality = self.learner.lesson.quality
        last = self.curve[-1] if self.curve else None
        return Learning(
            metric=quality.metric,
            unit=quality.unit,
            target=quality.target,
            better=quality.better,
            protocol=quality.protocol,
            quality=last.quality if last else None,
            reached=last is not None and quality.reached(last.quality),
            seconds=last.seconds if last else self._spent(),
            items=last.items if last else 0,
            energy_j=None if self.metered is None else self.joules + self.metered,
            metered=self.meter.name,
            curve=self.curve,
            resumed=self.resumed,
            exhibits=[] if self.diverged else self.learner.exhibits(),
        )

    def resume(self) -> None:
        """Goes on from this run's checkpoint, where there is one: the same numbers follow as without a break."""
        path = self._path()
        if path is None or not path.exists():
            return
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            self.learner.load_state_dict(kept["learner"])
            torch.set_rng_state(kept["random"])
            if self.session.device.type == "cuda":
                torch.cuda.set_rng_state(kept["random_gpu"], self.session.device)
            self.curve = [Point(**point) for point in kept["curve"]]
        except Exception as error:  # whatever a damaged file may raise
            raise DataError.at(path, f"not a checkpoint of this run; remove it to begin anew: {error}") from None
        self.seconds, self.joules, self.resumed = kept["seconds"], kept["joules"], kept["resumed"] + 1
        self.shared = kept["shared"]
        self.begun = time.perf_counter()

    def _keep(self) -> None:
        """Through a second file, so that a kill in the middle leaves the checkpoint before."""
        path = self._path()
        if path is None:
            return
        begun = time.perf_counter()
        gpu = self.session.device.type == "cuda"
        document = {
            "learner": self.learner.state_dict(),
            "random": torch.get_rng_state(),
            "random_gpu": torch.cuda.get_rng_state(self.session.device) if gpu else None,
            "curve": [vars(point) for point in self.curve],
            "seconds": self._spent(),
            "joules": self.joules + (self.metered or 0.0),
            "resumed": self.resumed,
            "shared": self.shared,
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
            raise BadOption(f"cannot keep a checkpoint at {path}: {error.strerror or error}") from None
        self.kept = time.perf_counter()
        self.keeping_s = self.kept - begun

    def _spent(self) -> float:
        return self.seconds + time.perf_counter() - self.begun

    def _path(self) -> Path | None:
        folder = os.environ.get(FOLDER)
        spec = self.session.spec
        return Path(folder) / f"{spec.workload}-{spec.id}.pt" if folder else None


def _held_out(session: Session) -> Any:
    """What quality is judged on: the test split, or synthetic data that training has not seen."""
    spec, workload = session.spec, session.workload
    if spec.data is None:
        return workload.unseen(spec.seed + 1)
    return workload.held_out(folder_at(spec.data, workload.expects), session.state.source)
