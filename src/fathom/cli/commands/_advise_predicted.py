"""What other batches, bf16 and CUDA graphs would gain for a model on this machine, predicted from simulated steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.analysis.advice import OTHER_BATCH, PREDICTED, Change, in_code
from fathom.cli.commands._advise_plan import here
from fathom.core.advice import Setting
from fathom.core.errors import FathomError, first_line
from fathom.experiments.advise import Usual
from fathom.predict.choice import Choice
from fathom.predict.estimate import estimate
from fathom.predict.target import CUDAGRAPH, Target

if TYPE_CHECKING:
    from fathom.engine.step_work import StepWorks
    from fathom.workloads.base import Workload

LEAST_TIMES = 1.03
SIMULATED = ("fp32", "bf16", "tf32")


def predicted_changes(
    workload: Workload, usual: Usual, settings: Sequence[Setting], calibration: Path
) -> tuple[list[Change], str]:
    """Those that gain, the largest first, and what that rests on; or nothing, and why.

    Only settings whose ops are those of the simulated step: what a compiler makes of them is not predicted.
    """
    from fathom.engine.step_work import StepWorks  # torch

    own = usual.precision if usual.precision in SIMULATED else None
    if own is None:
        return [], f"no prediction in {usual.precision or 'an unknown precision'}"
    chosen = [each for each in settings if _is_simulated(each, usual)]
    try:
        machine = {each: here(usual.device, calibration, each) for each in {own, *(s.precision or own for s in chosen)}}
        works = StepWorks(workload, usual.phase, gpu=machine[own].target.gpu)
        before = _items_per_s(works, machine, Setting(precision=own))
        found = [
            (each, _items_per_s(works, machine, replace(each, precision=each.precision or own))) for each in chosen
        ]
    except (FathomError, RuntimeError, NotImplementedError, TypeError) as error:  # a step that needs values
        return [], f"its step cannot be simulated: {first_line(error)[:200]}"
    evidence = "from simulated steps"
    changes = [_change(setting, rate / before, evidence) for setting, rate in found if rate > LEAST_TIMES * before]
    return sorted(changes, key=lambda change: -change.times), "; ".join(machine[own].notes)


def _is_simulated(setting: Setting, usual: Usual) -> bool:
    graph = setting.engine == "cudagraph" or (usual.own and setting.engine == "compile+cudagraph")
    return (setting.engine is None or graph) and setting.threads is None and setting.workers is None


def _items_per_s(works: StepWorks, machine: dict[str, Choice], setting: Setting) -> float:
    assert setting.precision is not None
    by = machine[setting.precision]
    step = works.at(setting.precision, setting.batch)
    return estimate(step, _launched(by.target, setting), predictor=by.predictor, interval=by.interval).items_per_s


def _launched(target: Target, setting: Setting) -> Target:
    return target if setting.engine is None else target.executed_by(CUDAGRAPH)


def _change(setting: Setting, times: float, evidence: str) -> Change:
    caution = OTHER_BATCH if setting.batch else ""
    return Change(
        what=in_code(setting), times=times, known=PREDICTED, evidence=evidence, setting=setting, caution=caution
    )
