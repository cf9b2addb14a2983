"""fathom scale: speed-up and parallel efficiency of workloads on 1, 2, 4, ... cores, or ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands import _scale_ranks, _series
from fathom.cli.commands._options import (
    MOST_RUNS,
    Engine,
    Json,
    Names,
    Out,
    Phase,
    Preset,
    Set,
    options_of,
    values_in,
)
from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import SCALINGS, RunSpec
from fathom.experiments import actors as playing
from fathom.experiments import scale
from fathom.experiments.checks import check, check_device, check_external
from fathom.experiments.ranks import TIMEOUT_S
from fathom.experiments.repeat import run_order
from fathom.workloads.catalogue import suite

ACTORS_TOO = ("scaling", "device")  # options of ranks that actors have as well


def command(
    names: Names = None,
    cores: Annotated[
        str | None, typer.Option(help="Core counts, such as 1,2,4; default: powers of two up to all cores.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Numbers of ranks, such as 1,2,4: several processes that train together.")
    ] = None,
    actors: Annotated[
        str | None, typer.Option(help="Numbers of actors, such as 1,2,4: threads that play for deepq.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="How ranks divide the work: ddp, or another strategy.")] = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            help="weak keeps the batch per rank (or games per actor); strong keeps the global batch (or all games)."
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            "--tune", help="An option of the strategy, as name=value; repeatable. name=1,2,4 runs every combination."
        ),
    ] = None,
    slow_rank: Annotated[str | None, typer.Option(help="Slow down a rank, such as 1:2x.")] = None,
    slow_link: Annotated[str | None, typer.Option(help="Slow down the messages of a rank, such as 1:2x.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help=f"Seconds without progress that end a job of ranks; default {TIMEOUT_S:g}.")
    ] = None,
    max_restarts: Annotated[int | None, typer.Option(help="How often torchrun restarts a failed job of ranks.")] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Machines of a job of ranks; the same command runs on each.")
    ] = None,
    rendezvous: Annotated[str | None, typer.Option(help="Where nodes meet: HOST:PORT of the first one.")] = None,
    slurm: Annotated[
        Path | None, typer.Option(help="Write a Slurm batch file that runs this, and run nothing.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Of ranks: cpu (gloo) or cuda (NCCL); default cpu. Of actors: any.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Items in a batch; default: the preset's.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Of ranks: folder of real data, or its name below FATHOM_DATA.")
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, help="Of ranks: train by the workload's recipe, with at most this many evaluations."),
    ] = None,
    set_: Set = None,
    phase: Phase = "train",
    preset: Preset = "small",
    engine: Engine = "eager",
    steps: Annotated[int, typer.Option(help="Largest number of timed steps per run.")] = 50,
    budget: Annotated[float, typer.Option(help="Time budget in seconds for the timed steps of a run.")] = 3.0,
    runs: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="Launches per point; one launch gives no interval for the next.")
    ] = 3,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Run workloads on 1, 2, 4, ... CPU cores, as 1, 2, 4, ... ranks or with as many actors; print the speed-up.

    Runs that other programs disturbed are repeated once at the end. Run it again to resume an interrupted series.
    """
    if sum(given is not None for given in (cores, ranks, actors)) > 1:
        raise BadOption("--cores, --ranks and --actors are three kinds of scaling: give one of them")
    base = RunSpec(workload="", phase=phase, preset=preset, engine=engine, steps=steps, budget_s=budget, batch=batch)
    base = replace(base, data=data, options=options_of(set_ or []))
    chosen = names or (["deepq"] if actors else suite())
    for name in chosen:
        check(replace(base, workload=name))
    ranked = _scale_ranks.Options(
        strategy=strategy,
        scaling=scaling,
        tune=tune,
        slow_rank=slow_rank,
        slow_link=slow_link,
        timeout=timeout,
        max_restarts=max_restarts,
        nodes=nodes,
        rendezvous=rendezvous,
        slurm=slurm,
        device=device,
        evaluations=evaluations,
    )
    if ranks is not None:
        _scale_ranks.measure(base, chosen, ranks, ranked, runs, out, as_json)
        return
    _refuse_without_ranks({"data": data, "set": set_, **ranked.given()}, allowed=() if actors is None else ACTORS_TOO)
    if actors is not None:
        planned, question = run_order(_acting(base, chosen, actors, scaling, device), runs), "actors"
    else:
        planned, question = scale.run_order(_on_cores(base, chosen, cores), runs), "cores"
    _series.measure(planned, out, None, "scale", question, as_json)


def _on_cores(base: RunSpec, names: Sequence[str], cores: str | None) -> list[RunSpec]:
    try:
        counts = [int(count) for count in values_in(cores, "--cores")] or None
    except ValueError:
        raise BadOption(f"--cores takes core counts such as 1,2,4, not {cores!r}") from None
    specs = scale.plan(base, names, counts)
    check_external(specs)
    return specs


def _acting(base: RunSpec, names: Sequence[str], counts: str, scaling: str | None, device: str | None) -> list[RunSpec]:
    if scaling is not None and scaling not in SCALINGS:
        raise UnknownName.among("scaling", scaling, SCALINGS)
    base = replace(base, device=device or base.device)
    check_device(base.device)
    specs = playing.plan(base, names, _series.counts_of(counts, "--actors"), scaling or SCALINGS[0])
    for spec in specs:
        check(spec)
    return specs


def _refuse_without_ranks(options: Mapping[str, object], allowed: Sequence[str] = ()) -> None:
    for name, value in options.items():
        if value and name not in allowed:
            raise BadOption(f"--{name} needs --ranks")
