"""fathom advise NAME: what to change first about a slow model; with --items, what to train it on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands._advise_options import Given, listed_in, single
from fathom.cli.commands._options import Device, Json, Out, Phase, Set, options_of
from fathom.core.errors import BadOption
from fathom.core.spec import PHASES
from fathom.experiments.engines import TIMEOUT_S
from fathom.workloads import catalogue

JOB = "hardware for a whole training run (with --items)"
MODEL = "a slow model"


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="A workload of `fathom list`, or package.module:function that returns a model and a batch (and a "
            "loss, and an optimizer), or a step. Several, or none for the Cookbook's models, with --html."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure settings on this machine, each against the usual one.")
    ] = False,
    items: Annotated[float | None, typer.Option(help="Items per epoch, such as 1e8.", rich_help_panel=JOB)] = None,
    epochs: Annotated[float, typer.Option(help="Epochs.", rich_help_panel=JOB)] = 1.0,
    within: Annotated[str | None, typer.Option(help="Time limit: 24h, 90m, 2d.", rich_help_panel=JOB)] = None,
    budget: Annotated[float | None, typer.Option(help="Cost limit, at the given prices.", rich_help_panel=JOB)] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            help="Price of one device per hour, as h100=2.5; repeatable. No price is assumed.", rich_help_panel=JOB
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Devices of `fathom devices`, such as p100,h100; `here` is this machine. Default: all GPUs.",
            rich_help_panel=JOB,
        ),
    ] = None,
    count: Annotated[str, typer.Option(help="Device counts, such as 1,2,4,8.", rich_help_panel=JOB)] = "1,2,4,8",
    interconnect: Annotated[
        str | None,
        typer.Option(
            help="Links between devices, such as nvlink4,ib. Default: the device's own link and two networks.",
            rich_help_panel=JOB,
        ),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of records with measured energy, such as results/h200.", rich_help_panel=JOB),
    ] = None,
    calibration: Annotated[Path, typer.Option(help="Folder written by `fathom calibrate`.")] = Path("calibration"),
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with a form that works offline.", rich_help_panel=JOB)
    ] = None,
    phase: Phase = "train",
    preset: Annotated[
        str | None, typer.Option(help="tiny, small or paper; default: small, and paper with --items or --html.")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Batch size; with --items several, such as 32,64.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16; with --items several, such as fp32,bf16.")
    ] = None,
    device: Device = "auto",
    keep_batch: Annotated[
        bool, typer.Option("--keep-batch", help="Do not try other batch sizes.", rich_help_panel=MODEL)
    ] = False,
    threads: Annotated[
        int | None, typer.Option(help="Intra-op CPU threads; default: torch's choice.", rich_help_panel=MODEL)
    ] = None,
    loss: Annotated[str | None, typer.Option(help="As for `fathom profile`.", rich_help_panel=MODEL)] = None,
    optimizer: Annotated[str | None, typer.Option(help="As for `fathom profile`.", rich_help_panel=MODEL)] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of real data; data workers are then tried too.", rich_help_panel=MODEL)
    ] = None,
    set_: Set = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds of timed steps per trial; default: 7.", rich_help_panel=MODEL)
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which a trial is ended.")] = TIMEOUT_S,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Say what to change first in a slow model, with the measured gain or its upper bound.

    With --items: rank devices, counts, interconnects, batches and precisions for a whole training run.
    """
    for option, value in {"--seconds": seconds, "--timeout": timeout}.items():
        if value is not None and not 0 < value < math.inf:
            raise BadOption(f"{option} must be above 0, not {value:g}")
    if phase not in PHASES:
        raise BadOption(f"--phase takes train or infer, not {phase!r}")
    given = Given(
        phase=phase,
        preset=preset,
        device=device,
        threads=threads,
        loss=loss,
        optimizer=optimizer,
        data=data,
        options=options_of(set_ or []),
        batches=listed_in(batch, "--batch", int),
        precisions=listed_in(precision, "--precision", str),
        keep_batch=keep_batch,
        trial_s=seconds,
        timeout_s=timeout,
        out=out,
        calibration=calibration,
    )
    if items is None and html is None:
        if within or budget is not None or price or on or interconnect:
            raise BadOption("--within, --budget, --price, --on and --interconnect need --items: the items of an epoch")
        from fathom.cli.commands._advise_model import advise_model  # SciPy

        advise_model(given.asked(single(names), verify), as_json)
        return
    from fathom.cli.commands._advise_job import advise_plan
    from fathom.cli.commands._advise_plan import duration, plan_options

    limit = None if within is None else duration(within)
    counts = listed_in(count, "--count", int)
    plan = plan_options(given, items, epochs, limit, budget, price or [], on, counts, interconnect, reference or [])
    if html is not None:
        from fathom.cli.commands._advise_page import write_page

        models = names or catalogue.suite("cookbook")
        write_page([(name, given.workload(name)) for name in models], plan, html)
    if items is not None and (html is None or len(names or []) == 1):  # of several, the page is the answer
        name = single(names)
        advise_plan(name, given.workload(name), plan, as_json, given.asked_of_plan(name) if verify else None)
