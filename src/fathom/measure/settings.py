"""A trial of one setting: the model as it is and under the setting, side by side in one process, timed in turns.

The work is a workload of the suite, or what a user's package.module:function makes. Of the latter both sides have a
copy, so that neither trains the other's weights and the user's own are not touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fathom.core.advice import Setting, SettingTrial
from fathom.core.errors import BadOption, FathomError
from fathom.core.events import OnProgress
from fathom.core.feeding import Feeding
from fathom.core.spec import RunSpec
from fathom.core.trial import ROUNDING, Trial
from fathom.engine.session import Session
from fathom.machine.devices import resolve
from fathom.machine.disturbance import Watch
from fathom.measure.loop import non_finite
from fathom.measure.own.errors import users_fault
from fathom.measure.own.sides import OwnSides
from fathom.measure.own.step import StepSession
from fathom.measure.own.target import from_target
from fathom.measure.trial import BUDGET_S, ROUNDED, TURNS, Running, compared, in_turns, started
from fathom.workloads.base import Workload

PREFETCH = 4  # batches that each data worker reads ahead
Open = Callable[[Setting], Session]


def tried(
    base: RunSpec, setting: Setting, progress: OnProgress, target: str | None = None, **given: Any
) -> SettingTrial:
    """The trial of a setting beside the base; given are the loss and the optimizer of the user's model, by name."""
    if target is None:
        return _tried(base, setting, partial(_session, base), progress)
    try:
        return _tried(base, setting, _opener(base, target, given), progress)
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


def _opener(base: RunSpec, target: str, given: Mapping[str, Any]) -> Open:
    made = from_target(target) | {name: value for name, value in given.items() if value is not None}
    model = made["model"]
    if isinstance(model, Workload):
        return lambda setting: Session(
            applied(base, replace(setting, batch=None)),
            model if setting.batch is None else dataclasses.replace(model, batch=setting.batch),
        )
    return OwnSides(base, made).session


def _tried(base: RunSpec, setting: Setting, opened: Open, progress: OnProgress) -> SettingTrial:
    """Refused before anything runs where a session says why it cannot be."""
    try:
        usual_session, session = opened(Setting()), opened(setting)
    except FathomError as error:
        return SettingTrial(setting=setting, failed=str(error), refused=True)
    precision = _precision(base, setting)
    comparable = not isinstance(session, StepSession) and setting.batch is None
    with ExitStack() as closing:
        for each in (usual_session, session):
            closing.callback(each.close)
        process = [_Process.of(usual_session), _Process.of(session)]
        rounded = _rounded(opened, process[0], precision, progress) if comparable else []
        sides = []
        for number, (each, own) in enumerate(zip((usual_session, session), process, strict=True), start=1):
            own.settle()
            sides.append(replace(_started(each), settle=own.settle))
            progress(ROUNDED + number, ROUNDED + 2 + TURNS)
        for side in sides:
            if problem := _not_finite(side):
                return SettingTrial(setting=setting, failed=problem)
        watch = Watch(session.device)
        runs = in_turns(
            sides, base.budget_s or BUDGET_S, lambda turn: progress(ROUNDED + 2 + turn, ROUNDED + 2 + TURNS)
        )
        watch.look()
    trial = Trial(eager=runs[0], engine=runs[1])
    return SettingTrial(
        setting=setting,
        items=_items(session),
        usual_items=_items(usual_session),
        trial=compared(trial, sides[0].results, sides[1].results, rounded) if comparable else trial,
        precision=precision,
        compared=comparable,
        disturbed=watch.disturbance().reasons,
    )


def _precision(base: RunSpec, setting: Setting) -> str:
    """The lower one of both sides: results differ by what it rounds."""
    both = [each for each in (base.precision, setting.precision) if each in ROUNDING] or ["fp32"]
    return max(both, key=lambda each: ROUNDING[each])


def _rounded(opened: Open, usual: _Process, precision: str, progress: OnProgress) -> list[list[Any]]:
    """What the model as it is gives with weights rounded otherwise, to the lower precision of both sides."""
    found = []
    for number in range(1, ROUNDED + 1):
        with opened(Setting()) as session:
            usual.settle()
            found.append(started(session, rounding=number, precision=precision).results)
        progress(number, ROUNDED + 2 + TURNS)
    return found


def _started(session: Session) -> Running:
    if isinstance(session, StepSession) and session.spec.phase != "train":
        raise BadOption("a step of your own has no phases: it is tried as it is (--phase train)")
    return started(session)


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
