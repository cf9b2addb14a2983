"""fathom scale: speed-up and parallel efficiency of workloads on 1, 2, 4, ... cores, or ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands import _series
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
    swept_options_of,
)
from fathom.cli.commands._recipe_options import recipe_options
from fathom.cli.terminal import human
from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import SCALINGS, RunSpec
from fathom.experiments import actors as playing
from fathom.experiments import ranks as jobs
from fathom.experiments import scale
from fathom.experiments.checks import check, check_device, check_external
from fathom.experiments.ranks import MOST_RANKS, TIMEOUT_S, Launch
from fathom.experiments.slurm import PORT, write
from fathom.workloads.catalogue import suite


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
        typer.Option(help="weak: a rank's batch, an actor's games stay the same; strong: those of all together."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            "--tune", help="An option of the strategy, as name=value; repeatable. name=1,2,4 runs every combination."
        ),
    ] = None,
    slow_rank: Annotated[str | None, typer.Option(help="A rank to make slower, such as 1:2x.")] = None,
    slow_link: Annotated[str | None, typer.Option(help="A rank whose messages to make slower, such as 1:2x.")] = None,
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
        typer.Option(min=1, help="Of ranks: train by the workload's recipe, with so many evaluations at most."),
    ] = None,
    set_: Set = None,
    phase: Phase = "train",
    preset: Preset = "small",
    engine: Engine = "eager",
    steps: Annotated[int, typer.Option(help="Timed steps of a run, at most.")] = 50,
    budget: Annotated[float, typer.Option(help="Seconds for the timed steps of a run, at most.")] = 3.0,
    runs: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="Launches of each point; with one, nothing is said of the next.")
    ] = 3,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Run workloads on 1, 2, 4, ... CPU cores, as 1, 2, 4, ... ranks or with as many actors; print the speed-up.

    Runs that other programs disturbed are run once more at the end. Started again, it resumes an interrupted series.
    """
    base = RunSpec(workload="", phase=phase, preset=preset, engine=engine, steps=steps, budget_s=budget, batch=batch)
    if sum(given is not None for given in (cores, ranks, actors)) > 1:
        raise BadOption("--cores, --ranks and --actors are three kinds of scaling: give one of them")
    chosen = names or (["deepq"] if actors else suite())
    base = replace(base, data=data, options=options_of(set_ or []))
    for name in chosen:
        check(replace(base, workload=name))
    if ranks is not None:
        meeting = rendezvous or (f"first-node:{PORT}" if slurm else None)
        launch = Launch(
            timeout_s=timeout or TIMEOUT_S, max_restarts=max_restarts or 0, nodes=nodes or 1, rendezvous=meeting
        )
        base = replace(base, ranks=MOST_RANKS * launch.nodes, nodes=launch.nodes)  # until the plan says how many
        settings = _Ranked(
            jobs.strategy_named(strategy or "ddp"),
            scaling or SCALINGS[0],
            slow_rank,
            slow_link,
            device or "cpu",
        )
        tried = jobs.combinations(swept_options_of(tune or [], "--tune"))
        ranked, counts = _ranked_base(base, settings), _series.counts_of(ranks, "--ranks")
        specs = _ranked_plan([replace(ranked, strategy_options=each) for each in tried], chosen, counts, evaluations)
        check_external(specs)
        if len(tried) > 1:
            jobs.check_fit(specs)
        if slurm:
            write(slurm, sys.argv[1:], launch.nodes)
            human.print(f"batch file: {slurm}; submit it with sbatch {slurm}")
            return
        question = "ranks" if evaluations is None else "convergence"
        also = "convergence" if len(tried) > 1 and question != "convergence" else ""
        _series.measure(specs, runs, out, jobs.Jobs(launch), "scale", question, as_json, also)
        return
    given: dict[str, object] = {"strategy": strategy, "scaling": scaling, "tune": tune, "slow-rank": slow_rank}
    given |= {"slow-link": slow_link, "timeout": timeout, "max-restarts": max_restarts, "nodes": nodes}
    given |= {"data": data, "evaluations": evaluations, "set": set_}
    given |= {"rendezvous": rendezvous, "slurm": slurm, "device": device}
    if actors is not None:
        _refuse_without_ranks({name: value for name, value in given.items() if name not in ("scaling", "device")})
        base = replace(base, device=device or base.device)
        _series.measure(_acting(base, chosen, actors, scaling), runs, out, None, "scale", "actors", as_json)
        return
    _refuse_without_ranks(given)
    specs = scale.plan(base, chosen, _counts(cores))
    check_external(specs)
    _series.measure(specs, runs, out, None, "scale", "cores", as_json)


@dataclass(frozen=True)
class _Ranked:
    """The options of scaling over ranks."""

    strategy: str
    scaling: str
    slow_rank: str | None
    slow_link: str | None
    device: str


def _ranked_base(base: RunSpec, settings: _Ranked) -> RunSpec:
    check_device(settings.device)
    return replace(
        base,
        device=settings.device,
        strategy=settings.strategy,
        scaling=settings.scaling,
        slow_rank=_slow(settings.slow_rank, "--slow-rank"),
        slow_link=_slow(settings.slow_link, "--slow-link"),
    )


def _ranked_plan(
    bases: Sequence[RunSpec], names: Sequence[str], counts: Sequence[int], evaluations: int | None
) -> list[RunSpec]:
    """The jobs of every combination of options; by the recipe of each workload where evaluations are wanted."""
    found = []
    for base in bases:
        if evaluations is None:
            found += jobs.plan(base, names, counts)
        else:
            found += [spec for name in names for spec in jobs.plan(_trained(base, name, evaluations), [name], counts)]
    return found


def _acting(base: RunSpec, names: list[str], counts: str, scaling: str | None) -> list[RunSpec]:
    if scaling is not None and scaling not in SCALINGS:
        raise UnknownName.among("scaling", scaling, SCALINGS)
    check_device(base.device)
    specs = playing.plan(base, names, _series.counts_of(counts, "--actors"), scaling or SCALINGS[0])
    for spec in specs:
        check(spec)
    return specs


def _trained(base: RunSpec, name: str, evaluations: int) -> RunSpec:
    """Training by the workload's recipe, whose own preset is meant where none is chosen."""
    from fathom.training.trainer import recipe_for  # torch

    free = replace(base, workload=name, kind="training", steps=RunSpec.steps, budget_s=None, evaluations=evaluations)
    recipe = recipe_for(free)
    preset = recipe.preset if base.preset == RunSpec.preset else base.preset
    own = {} if base.batch is None else {"batch"}  # what the command says itself
    options = {key: value for key, value in recipe_options(recipe, name, preset).items() if key not in own}
    return replace(free, preset=preset, options={**options, **base.options})


def _slow(text: str | None, option: str) -> tuple[int, float] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5}):(\d{1,4}(?:\.\d{1,6})?)x?", text)
    if not found:
        raise BadOption(f"{option} takes a rank and a factor such as 1:2x, not {text!r}")
    return int(found[1]), float(found[2])


def _refuse_without_ranks(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise BadOption(f"--{name} needs --ranks")


def _counts(cores: str | None) -> list[int] | None:
    try:
        return [int(count) for count in cores.split(",")] if cores else None
    except ValueError:
        raise BadOption(f"--cores takes core counts such as 1,2,4, not {cores!r}") from None
