"""A trial of one setting: the model as it is, or under another one, and under it, in one process, timed in turns.

The work is a workload of the suite, or what a user's package.module:function makes. Of the latter both sides have a
copy, so that neither trains the other's weights and the user's own are not touched.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fathom.core.advice import USUAL, Setting, SettingTrial
from fathom.core.errors import BadOption, FathomError
from fathom.core.events import OnProgress
from fathom.core.feeding import Feeding
from fathom.core.spec import RunSpec
from fathom.core.trial import COMPARED_STEPS, ROUNDING, Trial
from fathom.engine.session import Session
from fathom.machine.devices import resolve
from fathom.machine.disturbance import Watch
from fathom.machine.host import has_bf16
from fathom.measure.loop import non_finite
from fathom.measure.own.errors import users_fault
from fathom.measure.own.sides import OwnSides, without_dropout
from fathom.measure.own.step import StepSession
from fathom.measure.own.target import from_target
from fathom.measure.trial import BUDGET_S, ROUNDED, TURNS, Running, compared, in_turns, shown_by, started
from fathom.workloads.base import Workload

PARTS = ROUNDED + 2 + TURNS  # of a trial, for its progress
PREFETCH = 4  # batches that each data worker reads ahead
COMPARED_S = 15.0  # of the usual setting's steps whose losses are compared: of slow ones, fewer steps
Rounded = Mapping[str, list[list[Any]]]  # precision -> losses of the usual setting with weights rounded otherwise
Open = Callable[[Setting], Session]


@dataclass(frozen=True)
class _Work:
    """How sessions of it are opened, and how their results are compared."""

    session: Open
    still: bool = False  # compared in runs of their own without dropout, which the setting would make drop other values
    computes_in: str | None = None  # what a model chooses by itself, where it does


def tried(
    base: RunSpec,
    setting: Setting,
    progress: OnProgress,
    against: Setting = USUAL,
    target: str | None = None,
    rounded: Rounded | None = None,
    **given: Any,
) -> SettingTrial:
    """The trial of a setting against another; given are the loss and the optimizer of the user's model, by name.

    Results are compared where the other is the usual setting: Setting(), the base as it is.
    `rounded` are losses that an earlier trial of the same workload left: they are the same in every trial.
    """
    if target is None:
        return _tried(base, (against, setting), _Work(partial(_session, base)), progress, rounded or {})
    try:
        return _tried(base, (against, setting), _own(base, setting, target, given), progress)
    except BaseException as error:
        raise users_fault(target, error) from None


def applied(base: RunSpec, setting: Setting) -> RunSpec:
    """The spec of a workload under a setting."""
    changes = setting.changes
    if (workers := changes.pop("workers", None)) is not None:
        cuda = resolve(base.device, base.precision).type == "cuda"
        changes["feeding"] = Feeding(workers=workers, prefetch=PREFETCH if workers else 0, pinned=cuda, overlapped=cuda)
    return replace(base, **changes)


def _session(base: RunSpec, setting: Setting) -> Session:
    return Session(applied(base, setting))


def _own(base: RunSpec, setting: Setting, target: str, given: Mapping[str, Any]) -> _Work:
    named = {name: value for name, value in given.items() if value is not None}
    computes_in = named.pop("computes_in", None)

    def make() -> dict[str, Any]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)  # the weights are the same whenever they are made
        return from_target(target) | named

    sides = OwnSides(base, make)
    if isinstance(sides.model, Workload):
        return _Work(partial(_of_workload, base, sides.model))
    return _Work(sides.session, sides.reorders_draws(setting), computes_in)


def _of_workload(base: RunSpec, model: Workload, setting: Setting) -> Session:
    sized = model if setting.batch is None else dataclasses.replace(model, batch=setting.batch)
    return Session(applied(base, replace(setting, batch=None)), sized)


def _tried(
    base: RunSpec,
    both: tuple[Setting, Setting],
    work: _Work,
    progress: OnProgress,
    known: Rounded = MappingProxyType({}),
) -> SettingTrial:
    """Refused before anything runs where a session says why it cannot be."""
    against, setting = both
    try:
        sessions = [work.session(each) for each in both]
        if setting.precision == "bf16" and sessions[1].device.type == "cpu" and has_bf16() is False:
            raise BadOption("this CPU has no instructions for bf16")  # tens of times as slow: a step may take minutes
    except FathomError as error:
        return SettingTrial(setting=setting, against=against, failed=str(error), refused=True)
    process = [_Process.of(each) for each in sessions]
    precision = _precision(work.computes_in, *(each.spec.precision for each in sessions))
    comparable = against == USUAL and setting.batch is None and not isinstance(sessions[1], StepSession)
    with ExitStack() as closing:
        for each in sessions:
            closing.callback(each.close)
        before = known.get(precision) if comparable else None  # as many steps as then, however long they take now
        steps, within_s = (len(before[0]), math.inf) if before else (COMPARED_STEPS, COMPARED_S)
        first = _started(sessions[0], process[0], steps, within_s)
        progress(1, PARTS)
        steps = len(first.results) if base.phase == "train" else steps
        rounded = before or (_rounded(work, process[0], precision, steps, progress) if comparable else [])
        sides = [first, _started(sessions[1], process[1], steps)]
        progress(ROUNDED + 2, PARTS)
        if problem := next(filter(None, map(_not_finite, sides)), None):
            return SettingTrial(setting=setting, against=against, failed=problem)
        if comparable and work.still:
            found = [_compared_run(work, *own, steps) for own in zip(both, process, strict=True)]
            comparable = not any(each.drew for each in found)  # noise of its own, in the order of memory
            sides = [replace(side, results=each.results) for side, each in zip(sides, found, strict=True)]
        watch = Watch(sessions[1].device)
        runs = in_turns(sides, base.budget_s or BUDGET_S, shown_by(progress))
        watch.look()
    trial = Trial(eager=runs[0], engine=runs[1])
    return SettingTrial(
        setting=setting,
        against=against,
        items=_items(sessions[1]),
        usual_items=_items(sessions[0]),
        trial=compared(trial, sides[0].results, sides[1].results, rounded) if comparable else trial,
        precision=precision,
        compared=comparable,
        disturbed=watch.disturbance().reasons,
    )


def _compared_run(
    work: _Work, setting: Setting, process: _Process, steps: int, rounding: int = 0, precision: str | None = None
) -> Running:
    with work.session(setting) as session, without_dropout() if work.still else nullcontext():
        process.settle()
        return started(session, rounding, precision, steps)


def _precision(*used: str | None) -> str:
    """The lowest of both sides: results differ by what it rounds."""
    known = [each for each in used if each in ROUNDING] or ["fp32"]
    return max(known, key=lambda each: ROUNDING[each])


def _rounded(work: _Work, usual: _Process, precision: str, steps: int, progress: OnProgress) -> list[list[Any]]:
    """What the model as it is gives with weights rounded otherwise, to the lower precision of both sides."""
    found = []
    for number in range(1, ROUNDED + 1):
        found.append(_compared_run(work, USUAL, usual, steps, number, precision).results)
        progress(1 + number, PARTS)
    return found


def _started(session: Session, process: _Process, steps: int = COMPARED_STEPS, within_s: float = math.inf) -> Running:
    if isinstance(session, StepSession) and session.spec.phase != "train":
        raise BadOption("a step of your own has no phases: it is tried as it is (--phase train)")
    process.settle()
    return replace(started(session, steps=steps, within_s=within_s), settle=process.settle)


def _not_finite(side: Running) -> str | None:
    return non_finite(side.session.spec.phase, side.results) if side.results else None


def _items(session: Session) -> int:
    return 1 if isinstance(session, StepSession) else session.items_per_step


@dataclass(frozen=True)
class _Process:
    """Settings that belong to the process and not to a session: both sides set their own before each turn."""

    threads: int
    tf32: bool
    device: torch.device

    @classmethod
    def of(cls, session: Session) -> _Process:
        """Before either session is set up, so that the threads are torch's own choice where none are asked for."""
        spec = session.spec
        return cls(spec.threads or torch.get_num_threads(), spec.precision == "tf32", session.device)

    def settle(self) -> None:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = self.tf32
            torch.backends.cudnn.allow_tf32 = self.tf32
