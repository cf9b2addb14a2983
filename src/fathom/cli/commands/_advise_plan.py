"""fathom advise NAME --items: hardware and settings for a whole training run, ranked by time, energy and cost."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom.cli.commands._advise_model import Asked, print_trials, searched
from fathom.cli.commands._advise_options import PLANNED, Given, listed_in
from fathom.cli.terminal import count as counted
from fathom.cli.terminal import human, print_json, print_table, print_text, progress_bar, skipped
from fathom.core.advice import Setting
from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Record
from fathom.core.spec import PRECISIONS
from fathom.core.store import read
from fathom.experiments import advise
from fathom.predict import catalogue, rules
from fathom.predict.communication import Link
from fathom.predict.estimate import Estimate, Interval, estimate
from fathom.predict.measured_energy import joules_per_item
from fathom.predict.plan import COST, EAGER, ENERGY, HOUR_S, TDP_BOUND, TIME, Choice, Grid, Job, Plan, plan
from fathom.predict.target import Target
from fathom.trace.step_work import StepWork

if TYPE_CHECKING:
    from fathom.workloads.base import Workload

HERE = "here"  # this machine, by its measured ceilings
LARGER = (1, 2, 4)  # times the workload's own batch, compared where none is asked for
MOST_DEVICES = 65_536
FORM_ITEMS = 1e8  # what the page's form begins with, as the Cookbook's does
PLANNED_PRECISIONS = (*PRECISIONS, "fp16")
DEFAULT_PRECISIONS = ("fp32", "bf16")
SHOWN, SHOWN_REASONS = 12, 4  # rows of the table, and settings that cannot be; --json has all
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR_S, "": HOUR_S, "d": 24 * HOUR_S, "w": 7 * 24 * HOUR_S}
OF_PEAK = Interval(1.0, 1 / 0.21)  # Paleo's case studies reach 0.21 to 0.62 of the peak; no step reaches more than it
BOUND = (
    "Times are the roofline's at the catalogue's peaks, a lower bound; the upper end is 4.8 times that: the least of "
    "Paleo's case studies reaches 21 % of the peak (Qi, Sparks and Talwalkar, 2017). Coverage is not measured."
)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What the command line says about a job."""

    job: Job
    devices: Sequence[str] = ()  # none: every GPU of the catalogue
    counts: Sequence[int] = (1, 2, 4, 8)
    interconnects: Sequence[str] = ()
    batches: Sequence[int] = ()
    precisions: Sequence[str] = DEFAULT_PRECISIONS
    phase: str = "train"
    preset: str = PLANNED
    device: str = "auto"  # what "here" is
    references: Sequence[Record] = ()  # whose measured energy counts


def plan_options(
    given: Given,
    items: float | None,
    epochs: float,
    within_s: float | None,
    budget: float | None,
    prices: Sequence[str],
    on: str | None,
    counts: Sequence[int],
    interconnect: str | None,
    references: Sequence[Path],
) -> PlanOptions:
    """Names are looked up here: a wrong one is one line before anything is simulated."""
    for precision in given.precisions:
        if precision not in PLANNED_PRECISIONS:
            raise UnknownName.among("precision", precision, PLANNED_PRECISIONS)
    if max(counts) > MOST_DEVICES:
        raise BadOption(f"--count must be 1 to {MOST_DEVICES:,}, not {max(counts)}")
    devices = listed_in(on, "--on", str)
    links = [catalogue.interconnect(each).name for each in listed_in(interconnect, "--interconnect", str)]
    job = Job(
        items=FORM_ITEMS if items is None else items,
        epochs=epochs,
        within_s=within_s,
        budget=budget,
        prices=prices_of(prices),
    )
    return PlanOptions(
        job=job,
        devices=[each if each == HERE else catalogue.device(each).name for each in devices],
        counts=counts,
        interconnects=links,
        batches=given.batches,
        precisions=given.precisions or DEFAULT_PRECISIONS,
        phase=given.phase,
        preset=given.preset or PLANNED,
        device=given.device,
        references=read(references, skipped),
    )


def advise_plan(name: str, workload: Workload, options: PlanOptions, as_json: bool, verified: Asked | None) -> None:
    known = targets(options)
    found, steps = planned(workload, options, known)
    choice = advised(found, workload, options, known)
    step = steps(choice.precision, choice.batch)
    target = next(each for each in known if each.name == choice.device)
    checks = rules.checks(
        step, target, choice.estimate, choice.interconnect, host_here() if choice.device == HERE else None
    )
    most = largest_batch(workload, options.phase, choice.precision, target)
    if not as_json:
        print_plan(name, found, choice, checks, step)
        if most is not None:
            print_text(f"Largest batch that {target.name} holds in {choice.precision}: {most}")
    measured = None if verified is None else verify_here(verified, workload, options, as_json)
    if as_json:
        print_json(document(name, found, choice, checks) | {"largest_batch": most, "verified": measured})


def advised(found: Plan, workload: Workload, options: PlanOptions, known: Sequence[Target]) -> Choice:
    """The plan's; where nothing fits, also how many items would."""
    try:
        return found.advised()
    except BadOption as error:
        roomy = max(
            (each for each in known if each.memory_bytes), key=lambda each: each.memory_bytes or 0, default=None
        )
        if found.choices or roomy is None:
            raise
        most = largest_batch(workload, options.phase, options.precisions[0], roomy)
        if not most:
            raise BadOption(f"{error}; not even a batch of 1 fits {roomy.name}") from None
        raise BadOption(f"{error}; the largest batch that {roomy.name} holds is {most}") from None


def largest_batch(workload: Workload, phase: str, precision: str, target: Target) -> int | None:
    """By simulated steps; None where the memory is not known."""
    if target.memory_bytes is None:
        return None
    from fathom.engine.cost_sheet import largest_batch as search
    from fathom.engine.cost_sheet import peak_bytes
    from fathom.engine.simulate import Simulation

    steps = Simulation(workload, phase)

    def peak(items: int) -> int:
        return peak_bytes(workload, phase, steps.step(precision, items, counted=False))

    return search(peak, int(target.memory_bytes), workload.batch)


def verify_here(asked: Asked, workload: Workload, options: PlanOptions, quiet: bool) -> dict[str, Any]:
    """The plan's choice for this machine, measured beside every other setting."""
    from fathom.machine.devices import resolve  # torch

    here = replace(options, devices=[HERE], counts=[1], job=replace(options.job, within_s=None, budget=None))
    found, _ = planned(workload, here, targets(here))
    singles = {_setting(choice, workload): choice for choice in found.choices if choice.engine == EAGER}
    first = next(iter(singles), Setting())
    device = str(resolve(asked.spec.device))
    usual = advise.Usual(device=device, phase=options.phase, batch=workload.batch, own=asked.own)
    measured = searched(replace(asked, keep_batch=True), usual, [each for each in singles if each.changes])
    gains = {trial.setting: advise.gain(trial) for trial in measured.trials if advise.is_sound(trial)} | {
        Setting(): 1.0
    }
    distance = 1 - gains[first] / max(gains.values()) if first in gains else None
    if not quiet:
        print_trials(measured)
        far = (
            "not measured" if distance is None else f"{100 * distance:.1f} % slower than the best of all settings tried"
        )
        print_text(f"First choice of the prediction on this machine: {first}: {far}")
    return {
        "predicted_first": first.changes,
        "predicted_distance": distance,
        "advised": measured.advised.changes,
        "distance_from_best": measured.distance,
        "trials": [trial.to_json() for trial in measured.trials],
        "confirmed": [trial.to_json() for trial in measured.confirmed],
    }


def _setting(choice: Choice, workload: Workload) -> Setting:
    """As a change of the usual setting: the workload's own batch in fp32."""
    return Setting(
        batch=None if choice.batch == workload.batch else choice.batch,
        precision=None if choice.precision == "fp32" else choice.precision,
    )


def planned(
    workload: Workload, options: PlanOptions, known: Sequence[Target]
) -> tuple[Plan, Callable[[str, int], StepWork]]:
    """All combinations; a step is simulated once for each batch and precision."""
    from fathom.engine.step_work import StepWorks  # torch

    own = workload.items_per_step(options.phase) // (workload.updates_per_step if options.phase == "train" else 1)
    grid = Grid(
        targets=known,
        counts=options.counts,
        interconnects=[catalogue.interconnect(each) for each in options.interconnects] or None,
        batches=options.batches or [own * factor for factor in LARGER],
        precisions=options.precisions,
    )
    simulated: dict[tuple[str, int], StepWork] = {}
    works = StepWorks(workload, options.phase)
    with progress_bar() as bar:
        total = len(grid.batches) * len(grid.precisions)
        task = bar.add_task(f"steps of {workload.name}, simulated", total=total)

        def steps(precision: str, batch: int) -> StepWork:
            if (precision, batch) not in simulated:
                simulated[precision, batch] = works.at(precision, batch)
                bar.advance(task)
            return simulated[precision, batch]

        joules = joules_per_item(options.references, workload.name, options.phase, options.preset)
        return plan(options.job, grid, steps, predicted, joules), steps


def predicted(step: StepWork, target: Target, count: int, link: Link | None) -> Estimate:
    """By the roofline: the least that a step can take, and what it took in the least efficient published case."""
    return estimate(step, target, count=count, link=link, interval=OF_PEAK)


def targets(options: PlanOptions) -> list[Target]:
    """Those asked for, which have to be in the catalogue with their peaks; by default every GPU that is."""
    if options.devices:
        asked = dict.fromkeys(each if each == HERE else catalogue.device(each).name for each in options.devices)
        return [_here(options) if each == HERE else Target.of(catalogue.device(each)) for each in asked]
    known = [each for each in catalogue.devices().values() if each.kind == "gpu" and each.fp32_flop_per_s]
    return [Target.of(each) for each in known if each.memory_bytes_per_s and each.memory_bytes]


def _here(options: PlanOptions) -> Target:
    """This machine, by a product and a copy measured now."""
    import psutil

    from fathom.machine.devices import resolve
    from fathom.machine.peaks import ceilings

    device = resolve(options.device)
    found = {precision: ceilings(device, precision) for precision in options.precisions}
    flop = {precision: rate for precision, (rate, _) in found.items() if rate is not None}
    copied = next((rate for _, rate in found.values() if rate is not None), None)
    if not flop or copied is None:
        raise BadOption(f"the ceilings of {device} could not be measured: its memory is full")
    memory: float = psutil.virtual_memory().total
    if device.type == "cuda":
        import torch

        memory = torch.cuda.get_device_properties(device).total_memory
    return Target(
        name=HERE, gpu=device.type != "cpu", flop_per_s=flop, bytes_per_s=copied, memory_bytes=memory, measured=True
    )


def host_here() -> rules.Host:
    import psutil

    from fathom.machine.host import usable_cores

    return rules.Host(usable_cores(), float(psutil.virtual_memory().total))


def duration(text: str) -> float:
    """Seconds of 24h, 90m, 2d or a plain number of hours."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    seconds = float(found[1]) * UNITS[found[2]] if found and found[2] in UNITS else 0.0
    if not 0 < seconds < 1e12:
        raise BadOption(f"--within must be a time such as 24h, 90m or 2d, not {text[:40]!r}")
    return seconds


def prices_of(pairs: Sequence[str]) -> dict[str, float]:
    """--price h100=2.5: by the catalogue's name, per device and hour."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            price = float(value) if equals else -1.0
        except ValueError:
            price = -1.0
        if not 0 <= price < 1e9:
            raise BadOption(f"--price takes device=price per device and hour, such as h100=2.5, not {pair[:60]!r}")
        found[name if name == HERE else catalogue.device(name).name] = price
    return found


COLUMNS = [
    "device",
    "count",
    "interconnect",
    "batch",
    "precision",
    "engine",
    "hours",
    "to hours",
    "kWh",
    "cost",
    "bound by",
]


def row(choice: Choice) -> list[Any]:
    energy = None if choice.energy_j is None else choice.energy_j / 3.6e6
    where = [choice.device, choice.count, choice.interconnect, choice.batch, choice.precision, choice.engine]
    times = [choice.seconds / HOUR_S, choice.high_s / HOUR_S]
    return [*where, *times, energy, choice.cost, choice.estimate.bound_by]


def print_plan(name: str, found: Plan, choice: Choice, checks: Sequence[rules.Check], step: StepWork) -> None:
    job, took = found.job, choice.estimate
    print_text(f"{name}: {job.items:.4g} {step.item}s, {counted(round(job.epochs), 'epoch')}")
    print_text(f"Advised: {choice}")
    print_text(
        f"  {_hours(choice.seconds)} ({_hours(choice.low_s)} to {_hours(choice.high_s)}), "
        f"{took.items_per_s:.4g} {step.item}s a second, {took.memory_bytes / 1e9:.3g} GB on each device"
    )
    print_text(f"  bound by {took.bound_by}{_next_best(found, choice)}")
    for by, words in {TIME: "Fastest", ENERGY: "Least energy", COST: "Cheapest"}.items():
        if (best := found.best(by)) is not None:
            print_text(f"{words}: {best}: {_spent(best)}")
    shown = found.allowed[:SHOWN]
    print_table(
        f"{len(shown)} of {counted(len(found.allowed), 'setting')}, the fastest first", COLUMNS, [*map(row, shown)]
    )
    print_table(
        "Rules of thumb of the Cookbook", ["rule", "verdict", "detail"], [[c.rule, c.verdict, c.detail] for c in checks]
    )
    print_text(BOUND)
    if any(each.energy_is == TDP_BOUND for each in shown):
        print_text("Energy is an upper bound: the TDP of the devices for the whole time, without host and cooling.")
    if not job.prices:
        print_text("No cost: --price device=PRICE gives one per device and hour; none is assumed.")
    print_text(f"Source of the rules: {rules.SOURCE}")
    for each in found.impossible[:SHOWN_REASONS]:
        human.print(f"not possible: {each}", highlight=False, soft_wrap=True)
    if (more := len(found.impossible) - SHOWN_REASONS) > 0:
        human.print(f"{more} more are not possible; --json has the reasons", highlight=False)


def _next_best(found: Plan, choice: Choice) -> str:
    better = found.next_best(choice)
    if better is None:
        return "; no single change that was compared is faster"
    axis, other = better
    return f"; next best change: {axis} {other.axes[axis]} ({_hours(other.seconds)})"


def _spent(choice: Choice) -> str:
    parts = [_hours(choice.seconds)]
    parts += [f"{choice.energy_j / 3.6e6:.4g} kWh ({choice.energy_is})"] if choice.energy_j is not None else []
    parts += [f"cost {choice.cost:.4g}"] if choice.cost is not None else []
    return ", ".join(parts)


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.3g} h"


def document(name: str, found: Plan, choice: Choice, checks: Sequence[rules.Check]) -> dict[str, Any]:
    better = found.next_best(choice)
    return {
        "workload": name,
        "job": dataclasses.asdict(found.job),
        "advised": plain(choice),
        "bound_by": choice.estimate.bound_by,
        "next_best": None if better is None else {"axis": better[0], **plain(better[1])},
        "best": {by: None if (best := found.best(by)) is None else plain(best) for by in (TIME, ENERGY, COST)},
        "checks": [dataclasses.asdict(each) for each in checks],
        "choices": [plain(each) for each in found.choices],
        "impossible": [dataclasses.asdict(each) for each in found.impossible],
        "uncertainty": BOUND,
    }


def plain(choice: Choice) -> dict[str, Any]:
    shown = {
        name: getattr(choice, name) for name in ("device", "count", "interconnect", "batch", "precision", "engine")
    }
    shown |= {"seconds": choice.seconds, "low_s": choice.low_s, "high_s": choice.high_s, "cost": choice.cost}
    shown |= {"energy_j": choice.energy_j, "energy_is": choice.energy_is, "step_s": choice.estimate.step_s}
    shown |= {"exposed_s": choice.estimate.exposed_s, "memory_bytes": choice.estimate.memory_bytes}
    return shown | {"bound_by": choice.estimate.bound_by, "coverage": choice.estimate.coverage}
