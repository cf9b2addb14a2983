"""fathom advise NAME --items: the plan, its choice, and its confirmation on the machine at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fathom.cli.commands._advise_model import identity, print_trials, searched
from fathom.cli.commands._advise_options import Asked
from fathom.cli.commands._advise_plan import (
    HERE,
    PlanOptions,
    advised,
    device_in,
    devices,
    host_here,
    largest_batch,
    planned,
    targets,
    uncertainty,
)
from fathom.cli.commands._advise_shown import document, print_plan
from fathom.cli.terminal import print_json, print_text
from fathom.core.advice import Setting
from fathom.core.spec import EAGER
from fathom.experiments import advise
from fathom.predict import rules
from fathom.predict.plan import Choice

if TYPE_CHECKING:
    from fathom.workloads.base import Workload


def advise_plan(name: str, workload: Workload, options: PlanOptions, as_json: bool, verified: Asked | None) -> None:
    known = devices(options)
    found, steps = planned(workload, options, known)
    choice = advised(found, workload, options, targets(known))
    target = device_in(known, choice.device, choice.precision).target
    step = steps(target, choice.precision, choice.batch)
    checks = rules.checks(
        step, target, choice.estimate, choice.interconnect, host_here() if choice.device == HERE else None
    )
    most = largest_batch(workload, options.phase, choice.precision, target)
    if not as_json:
        print_plan(name, found, choice, checks, step, uncertainty(known))
        if most is not None:
            print_text(f"Largest batch that {target.name} holds in {choice.precision}: {most}")
        for each in step.left_out:
            print_text(each)
    measured = None if verified is None else verify_here(verified, workload, options, as_json)
    if as_json:
        print_json(
            document(name, found, choice, checks, uncertainty(known))
            | {"largest_batch": most, "left_out": step.left_out, "verified": measured}
        )


def verify_here(asked: Asked, workload: Workload, options: PlanOptions, quiet: bool) -> dict[str, Any]:
    """The plan's choice for this machine, measured beside every other setting."""
    import torch

    from fathom.machine.devices import resolve
    from fathom.machine.host import fingerprint

    here = replace(options, devices=[HERE], counts=[1], job=replace(options.job, within_s=None, budget=None))
    found, _ = planned(workload, here, devices(here))
    singles = {_setting(choice, workload): choice for choice in found.choices if choice.engine == EAGER}
    first = next(iter(singles), Setting())
    device = str(resolve(asked.spec.device))
    threads = asked.spec.threads or torch.get_num_threads()
    usual = advise.Usual(device=device, phase=options.phase, batch=None, threads=threads, own=asked.own)
    with torch.device("meta"):
        weights = [(name, str(tuple(weight.shape))) for name, weight in workload.model().named_parameters()]
    known = identity(fingerprint(), weights)
    measured = searched(asked, usual, known, [each for each in singles if each.changes])  # with the plan's batches
    gains = {trial.setting: advise.gain(trial) for trial in measured.trials if advise.is_sound(trial)}
    gains[Setting()] = 1.0
    distance = 1 - gains[first] / max(gains.values()) if first in gains else None
    if not quiet:
        print_trials(measured)
        far = "not measured" if distance is None else f"{100 * distance:.1f} % slower than the best of all tried"
        print_text(f"First choice of the prediction on this machine: {first}: {far}")
    return {
        "predicted_first": first.changes,
        "predicted_distance": distance,
        "advised": measured.advised.changes,
        "distance_from_best": measured.distance,
        "better": None if measured.better is None else measured.better.changes,
        "trials": [trial.to_json() for trial in measured.trials],
        "confirmed": [trial.to_json() for trial in measured.confirmed],
    }


def _setting(choice: Choice, workload: Workload) -> Setting:
    """As a change of the usual setting: the workload's own batch in fp32."""
    return Setting(
        batch=None if choice.batch == workload.batch else choice.batch,
        precision=None if choice.precision == "fp32" else choice.precision,
    )
