"""fathom predict NAME: the time of a step on this machine, on another one, or on one that does not exist."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fathom.cli.commands._options import Json, Phase, Set, options_of
from fathom.cli.terminal import count as counted
from fathom.cli.terminal import human, print_facts, print_json, print_table, seconds
from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import EAGER, RunSpec
from fathom.experiments.checks import check
from fathom.predict.predictors.names import PREDICTORS
from fathom.predict.target import ENGINES

if TYPE_CHECKING:
    from fathom.predict.choice import Choice
    from fathom.predict.estimate import Estimate
    from fathom.predict.other_batches import Case
    from fathom.trace.step_work import StepWork

MOST_DEVICES = 1 << 20
GIB = 1 << 30


def command(
    name: Annotated[
        str | None, typer.Argument(help="A workload of `fathom list`, or your own model: package.module:function.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="A calibrated machine, or a device of `fathom devices`.")] = None,
    count: Annotated[int, typer.Option(help="Devices that train together.")] = 1,
    interconnect: Annotated[str | None, typer.Option(help="Link between the devices: one of `fathom devices`.")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size per device; default: the preset's.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32, or bf16 or fp16 (autocast).")] = "fp32",
    engine: Annotated[str, typer.Option(help=f"{' or '.join(ENGINES)}: how its calls are launched.")] = EAGER,
    phase: Phase = "train",
    preset: Annotated[str, typer.Option(help="tiny, small or paper (published sizes).")] = "paper",
    predictor: Annotated[str, typer.Option(help=", ".join(PREDICTORS))] = PREDICTORS[0],
    calibration: Annotated[Path, typer.Option(help="Folder written by `fathom calibrate`.")] = Path("calibration"),
    peak_tflops: Annotated[
        float | None, typer.Option(help="Describe a hypothetical device: its peak in TFLOP/s ...")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="... and its memory bandwidth in GB/s.")] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Records of this workload at other batches, which correct the prediction. Repeatable."),
    ] = None,
    evaluate: Annotated[
        list[Path] | None,
        typer.Option(help="Records to measure prediction errors on, leaving one workload out at a time. Repeatable."),
    ] = None,
    scaling: Annotated[
        list[Path] | None,
        typer.Option(help="Records of fathom scale --ranks and fathom collectives: compare jobs with predictions."),
    ] = None,
    published: Annotated[bool, typer.Option(help="Compare published results with predictions.")] = False,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Predict the time of a step, with an interval, and compare it with the roofline.

    Only the network's step is predicted: reading data and an environment come on top.
    """
    from fathom.cli.commands import _evaluate  # SciPy is behind it, which --help need not wait for

    if evaluate:
        _evaluate.evaluate(evaluate, calibration, on, predictor, engine, as_json)
        return
    if scaling:
        _evaluate.scaling(scaling, as_json)
        return
    if published:
        _evaluate.published(as_json)
        return
    if name is None:
        raise BadOption("name a workload of `fathom list`, or package.module:function")
    if not 1 <= count <= MOST_DEVICES:
        raise BadOption(f"--count must be 1 to {MOST_DEVICES:,}, not {count}")
    from fathom.predict import catalogue
    from fathom.predict.choice import chosen
    from fathom.predict.communication import Link
    from fathom.predict.estimate import estimate as estimated

    link = None if interconnect is None else Link.of(catalogue.interconnect(interconnect))
    choose = partial(chosen, on, calibration, predictor, peak_tflops=peak_tflops, bandwidth=bandwidth, engine=engine)
    choice = choose(precision)
    if link is not None and count > 1:
        _check_link(choice.target.name, count, interconnect or "")
    step = step_of(name, phase, precision, batch, preset, options_of(set_ or []), choice.target.gpu)
    choice = choice if step.precision == precision else choose(step.precision)  # a model's own
    if (why := choice.target.lacks(step.precision)) is not None:
        raise BadOption(why)
    if measured:
        choice = choice.corrected_by(_cases(measured, step, preset, options_of(set_ or []), choice, engine), step)
    found = estimated(step, choice.target, count=count, link=link, **choice.how(step))
    if as_json:
        print_json(
            dataclasses.asdict(found)
            | {
                "notes": [*found.notes, *choice.notes, *step.left_out],
                "items_per_s": found.items_per_s,
                "engine": engine,
            }
        )
    else:
        _print(found, step, choice, engine)


def _cases(
    folders: list[Path], step: StepWork, preset: str, options: dict[str, Any], choice: Choice, engine: str
) -> list[Case]:
    """Measured steps of the same workload on the calibrated machine, at whatever batch."""
    if choice.campaign is None:
        raise BadOption("--measured corrects predictions of a calibrated machine; this one has no calibration")
    from fathom.cli.terminal import skipped
    from fathom.core.store import read_nonempty
    from fathom.measure.calibration.cases import cases_of

    same = (step.workload, step.phase, step.precision, preset, options)
    own = [
        each
        for each in read_nonempty(folders, skipped)
        if (spec := each.spec)
        and (spec.workload, spec.phase, spec.precision or "fp32", spec.preset, dict(spec.options)) == same
    ]
    return cases_of(own, choice.target.name, engine)


def _check_link(device: str, count: int, link: str) -> None:
    """Of a device that is in no catalogue, nobody knows what it has."""
    from fathom.predict import catalogue
    from fathom.predict.plan import cannot_join

    try:
        model = catalogue.device(device).name
    except UnknownName:
        return
    joined = catalogue.interconnect(link).name
    if (why := cannot_join(model, count, joined)) is not None:
        raise BadOption(f"{count} x {model} on {joined}: {why}")


def step_of(
    name: str, phase: str, precision: str, batch: int | None, preset: str, options: dict[str, Any], gpu: bool
) -> StepWork:
    """The op calls of a step of a workload, or of what package.module:function makes."""
    if ":" not in name:
        run_in = "bf16" if precision == "fp16" else precision  # no run has fp16, a simulated step may
        check(RunSpec(workload=name, preset=preset, batch=batch, options=options, phase=phase, precision=run_in))
    from fathom.engine.step_work import step_work
    from fathom.measure.own.cost import step_of_target
    from fathom.workloads.base import workload_class

    if ":" in name:
        if batch is not None and batch < 1:
            raise BadOption(f"--batch must be at least 1, not {batch}")
        if options:
            raise BadOption("--set is for the workloads; a model of your own is made by its function")
        return step_of_target(name, phase, precision, batch, gpu=gpu)
    changes = options | ({} if batch is None else {"batch": batch})
    return step_work(workload_class(name).configured(preset, **changes), phase, precision, gpu=gpu)


def _over_roofline(found: Estimate) -> str:
    """Nothing for a model whose ops have no counted work."""
    return f"; predicted over roofline {found.step_s / found.roofline_s:.3g}" if found.roofline_s else ""


def _print(found: Estimate, step: StepWork, choice: Choice, engine: str) -> None:
    on = f" on {found.coverage_on}" if found.coverage_on else ""
    covered = "coverage not measured" if found.coverage is None else f"held {found.coverage:.0%} of held-out steps{on}"
    rows = [
        ("step", f"{seconds(found.step_s)} ({seconds(found.low_s)} to {seconds(found.high_s)}; {covered})"),
        ("throughput", f"{found.items_per_s:.4g} {step.item}s/s"),
        ("roofline", f"{seconds(found.roofline_s)}{_over_roofline(found)}"),
        ("in ops", seconds(found.device_s)),
        ("host", f"{seconds(found.host_s)}{', beside the ops' if choice.target.gpu else ''}"),
        ("bound by", found.bound_by),
        ("memory", f"{found.memory_bytes / GIB:.3g} GiB{_fits(found)}"),
        ("predictor", found.predictor),
    ]
    if found.count > 1 and found.phase == "train":
        text = f"{seconds(found.communication_s)}, {seconds(found.exposed_s)} of it exposed"
        rows.insert(3, ("communication", text))
    many = f"{found.count} x " if found.count > 1 else ""
    how = ", ".join([found.phase, found.precision, *([] if engine == EAGER else [engine])])
    title = f"{found.workload}, {how}, {counted(found.batch, step.item)} on {many}{found.target}"
    print_facts(title, rows)
    total = sum(found.by_family.values()) or 1.0
    cells = [[family, took, 100 * took / total] for family, took in found.by_family.items() if took > total / 1000]
    print_table("Time in ops", ["class", "seconds", "percent"], cells)
    for note in (*found.notes, *choice.notes, *step.left_out):
        human.print(note, style="dim", highlight=False, markup=False)


def _fits(found: Estimate) -> str:
    return "" if found.fits is None else ", fits" if found.fits else ", does not fit"
