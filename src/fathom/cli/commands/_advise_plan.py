"""fathom advise NAME --items: hardware and settings for a whole training run, ranked by time, energy and cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.cli.commands._advise_options import PLANNED, Given, listed_in
from fathom.cli.terminal import progress_bar, skipped
from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Record
from fathom.core.spec import EAGER, PRECISIONS
from fathom.core.store import read
from fathom.predict import catalogue, rules
from fathom.predict.campaign import find
from fathom.predict.campaign import read as read_campaign
from fathom.predict.choice import Choice as Device
from fathom.predict.choice import calibrated, chosen, interval_elsewhere
from fathom.predict.communication import Link
from fathom.predict.estimate import Estimate, estimate
from fathom.predict.measured_energy import joules_per_item
from fathom.predict.plan import HOUR_S, Choice, Grid, Job, Plan, Steps, plan
from fathom.predict.predictors.names import AUTO
from fathom.predict.reference import as_reached, nearest, shipped
from fathom.predict.target import Target
from fathom.trace.step_work import StepWork

if TYPE_CHECKING:
    from fathom.engine.step_work import StepWorks
    from fathom.workloads.base import Workload

HERE = "here"  # this machine, by its measured ceilings
FACTORS = (1 / 8, 1 / 2, 1, 2)  # of the workload's own batch, compared where none is asked for
MOST_DEVICES = 65_536
MOST_PRICE = 1e9  # of a device for an hour
FORM_ITEMS = 1e8  # what the page's form begins with, as the Cookbook's does
PLANNED_PRECISIONS = (*PRECISIONS, "fp16")
DEFAULT_PRECISIONS = ("fp32", "bf16")
SHOWN, SHOWN_REASONS = 12, 4  # rows of the table, and settings that cannot be; --json has all
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR_S, "": HOUR_S, "d": 24 * HOUR_S, "w": 7 * 24 * HOUR_S}


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
    calibration: Path = Path("calibration")


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
        devices=listed_in(on, "--on", str),
        counts=counts,
        interconnects=links,
        batches=given.batches,
        precisions=given.precisions or DEFAULT_PRECISIONS,
        phase=given.phase,
        preset=given.preset or PLANNED,
        device=given.device,
        references=read(references, skipped),
        calibration=given.calibration,
    )


def advised(found: Plan, workload: Workload, options: PlanOptions, known: Sequence[Target]) -> Choice:
    """The plan's; where nothing fits, also how many items would."""
    try:
        return found.advised()
    except BadOption as error:
        tried = {each.device: each.precision for each in reversed(found.impossible) if each.batch is not None}
        roomy = max(
            (each for each in known if each.memory_bytes and each.name in tried),
            key=lambda each: each.memory_bytes or 0,
            default=None,
        )
        if found.choices or roomy is None:  # another reason than the batch: no smaller one would help
            raise
        try:
            most = largest_batch(workload, options.phase, tried[roomy.name] or options.precisions[0], roomy)
        except Exception:  # a model of one's own that cannot be simulated: the plan's error says why
            raise error from None
        if not most:
            raise BadOption(f"{error}; not even a batch of 1 fits {roomy.name}") from None
        raise BadOption(f"{error}; the largest batch that {roomy.name} holds is {most}") from None


def planned(workload: Workload, options: PlanOptions, known: Mapping[tuple[str, str], Device]) -> tuple[Plan, Steps]:
    """All combinations; a step is simulated once for each batch and precision."""
    from fathom.engine.step_work import StepWorks  # torch
    from fathom.measure.own.errors import one_line
    from fathom.measure.own.model import fixed_precision

    usual = workload.items_per_step(options.phase) // (workload.updates_per_step if options.phase == "train" else 1)
    try:
        works = {gpu: StepWorks(workload, options.phase, gpu=gpu) for gpu in {each.gpu for each in targets(known)}}
    except Exception as error:
        raise one_line(f"{workload.name} on the meta device", error) from None
    own = fixed_precision(workload, [each for each in options.precisions if options.precisions != DEFAULT_PRECISIONS])
    own = own or _own_autocast(workload, next(iter(works.values())))
    grid = Grid(
        targets=targets(known),
        counts=options.counts,
        interconnects=[catalogue.interconnect(each) for each in options.interconnects] or None,
        batches=options.batches or list(dict.fromkeys(max(1, round(usual * factor)) for factor in FACTORS)),
        precisions=[own] if own else options.precisions,
    )
    simulated: dict[tuple[bool, str, int], StepWork] = {}
    with progress_bar() as bar:
        total = len(works) * len(grid.batches) * len(grid.precisions)
        task = bar.add_task(f"steps of {workload.name}, simulated", total=total)

        def steps(target: Target, precision: str, batch: int) -> StepWork:
            key = target.gpu, precision, batch
            if key not in simulated:
                try:
                    step = works[target.gpu].at("fp32" if own else precision, batch)
                except Exception as error:
                    raise one_line(f"a step of {workload.name} of batch {batch} on the meta device", error) from None
                simulated[key] = replace(step, precision=precision)
                bar.advance(task)
            return simulated[key]

        joules = joules_per_item(options.references, workload.name, options.phase, options.preset)

        def predicted(step: StepWork, target: Target, count: int, link: Link | None) -> Estimate:
            by = device_in(known, target.name, step.precision)
            return estimate(step, target, count=count, link=link, predictor=by.predictor, interval=by.interval_of(step))

        return plan(options.job, grid, steps, predicted, joules), steps


def _own_autocast(workload: Workload, works: StepWorks) -> str | None:
    """The precision of a model of one's own that chooses it by itself; of one that cannot be simulated, none."""
    from fathom.measure.own.model import OwnModel  # torch

    if not isinstance(workload, OwnModel):
        return None
    try:
        found = works.at("fp32").own_precision
    except Exception:  # the model's own code: it fails again, and is told, when its steps are simulated
        return None
    return None if found == "fp32" else found


def devices(options: PlanOptions) -> dict[tuple[str, str], Device]:
    """Device and precision -> its target and what predicts on it; by default every GPU of the catalogue.

    A device that was asked for has to be calibrated, or in the catalogue with its peaks.
    """
    named = options.devices or [
        each.name
        for each in catalogue.devices().values()
        if each.kind == "gpu" and each.fp32_flop_per_s and each.memory_bytes_per_s and each.memory_bytes
    ]
    found: dict[tuple[str, str], Device] = {}
    for name in named:
        for precision in options.precisions:
            device = (
                here(options.device, options.calibration, precision, options.precisions)
                if name == HERE
                else _elsewhere(name, options, precision)
            )
            found[device.target.name, precision] = device
    return found


def device_in(known: Mapping[tuple[str, str], Device], name: str, precision: str) -> Device:
    """For a precision of the model's own, that of any: ops say themselves what they compute in."""
    return known.get((name, precision)) or next(each for (other, _), each in known.items() if other == name)


def targets(known: Mapping[tuple[str, str], Device]) -> list[Target]:
    """Each device once."""
    return list({name: each.target for (name, _), each in known.items()}.values())


def _elsewhere(name: str, options: PlanOptions, precision: str) -> Device:
    """By the catalogue's name where it has one: a calibrated machine has that of its driver, and no TDP."""
    found = chosen(name, options.calibration, AUTO, precision, None, None)
    target = _listed(found.target)
    return replace(found, target=replace(target, name=target.model))


def _listed(target: Target) -> Target:
    """With what the catalogue knows of it."""
    try:
        listed = catalogue.device(target.name)
    except UnknownName:
        return target
    return replace(target, listed=listed.name, tdp_w=None if listed.tdp_w is None else listed.tdp_w / listed.parts)


def here(device: str, calibration: Path, precision: str, also: Sequence[str] = ()) -> Device:
    """This machine: its calibration, else a product and a copy measured now, under the nearest known efficiencies."""
    from fathom.machine.devices import resolve
    from fathom.measure.calibration.run import begun

    campaign = begun(
        resolve(device, precision), tuple(dict.fromkeys([precision, *also, "fp32"]))
    )  # no step is all bf16
    same = campaign.machine, campaign.threads
    path = next((each for each in find(calibration) if _measured_on(each) == same), None)
    if path is not None:
        found = calibrated(path, AUTO, precision)
        return replace(found, target=replace(_listed(found.target), name=HERE))
    if not campaign.flop_per_s or not campaign.bytes_per_s:
        raise BadOption(f"the ceilings of {campaign.machine} could not be measured: its memory is full")
    source = nearest(campaign.target(), shipped().machines)
    assert source is not None, "reference.json has machines"
    target = replace(_listed(as_reached(campaign.target(), source)), name=HERE)
    note = f"this machine is not calibrated (fathom calibrate): efficiencies of {source.machine} at its own ceilings"
    return Device(target, source.predictor, interval_elsewhere(EAGER, precision), [note])


def _measured_on(path: Path) -> tuple[str, int | None]:
    campaign = read_campaign(path)
    return campaign.machine, campaign.threads


def uncertainty(known: Mapping[tuple[str, str], Device]) -> str:
    """What the intervals rest on, in words."""
    covered = {each.interval.coverage for each in known.values()}
    shares = [f"{100 * each:.0f} %" for each in sorted(each for each in covered if each is not None)]
    held = (
        f"held {' or '.join(shares)} of held-out steps of one device in eager"
        if shares
        else "have no measured coverage"
    )
    unknown = _unmeasured(known) if shares else ""
    notes = list(dict.fromkeys(note for each in known.values() for note in each.notes))
    more = f"; {len(notes) - 1} more such" if len(notes) > 1 else ""
    return f"Intervals {held}{unknown}. Predictions: {notes[0]}{more}." if notes else f"Intervals {held}{unknown}."


def _unmeasured(known: Mapping[tuple[str, str], Device]) -> str:
    """Devices and precisions of which no interval has a measured coverage, in words."""
    kinds = [dict.fromkeys(kind) for kind in zip(*known, strict=True)]  # names of devices, then precisions
    measured = {word for key, each in known.items() if each.interval.coverage is not None for word in key}
    lacking = [word for kind in kinds for word in kind if word not in measured]
    return f" (not measured: {', '.join(lacking)})" if lacking else ""


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
        if not 0 <= price < MOST_PRICE:
            raise BadOption(f"--price takes device=price per device and hour, such as h100=2.5, not {pair[:60]!r}")
        found[name if name == HERE else catalogue.device(name).name] = price
    return found


def largest_batch(workload: Workload, phase: str, precision: str, target: Target) -> int | None:
    """By simulated steps; None where the memory is not known, or the model takes no other batch than its own."""
    if target.memory_bytes is None:
        return None
    from fathom.engine.cost_sheet import largest_batch as search
    from fathom.engine.cost_sheet import peak_bytes
    from fathom.engine.simulate import Simulation
    from fathom.measure.own.model import fixed_precision

    steps = Simulation(workload, phase)
    precision = "fp32" if fixed_precision(workload, ()) else precision

    def peak(items: int) -> int:
        return peak_bytes(workload, phase, steps.step(precision, items, counted=False))

    try:
        return search(peak, int(target.memory_bytes), workload.batch)
    except RuntimeError:
        return None
