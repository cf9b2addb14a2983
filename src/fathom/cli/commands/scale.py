"""fathom scale: speed-up and parallel efficiency of workloads on 1, 2, 4, ... cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._options import MOST_RUNS, Engine, Json, Names, Out, Phase, Preset
from fathom.cli.commands._running import own_store, run_again, run_all
from fathom.cli.terminal import human, print_json, print_table
from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.experiments import scale
from fathom.experiments.checks import check, check_external
from fathom.experiments.repeat import run_order
from fathom.workloads.catalogue import suite


def command(
    names: Names = None,
    cores: Annotated[
        str | None, typer.Option(help="Core counts, such as 1,2,4; default: powers of two up to all cores.")
    ] = None,
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
    """Run workloads bound to 1, 2, 4, ... CPU cores and print speed-up and parallel efficiency.

    Runs that other programs disturbed are run once more at the end. Started again, it resumes an interrupted series.
    """
    base = RunSpec(workload="", phase=phase, preset=preset, engine=engine, steps=steps, budget_s=budget)
    chosen = names or suite()
    for name in chosen:
        check(replace(base, workload=name))
    specs = scale.plan(base, chosen, _counts(cores))
    check_external(specs)
    store, planned = own_store(out), run_order(specs, runs, seed=0)
    left = store.remaining(planned)
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; another --out repeats them")
    run_all(left, store, "scale")
    run_again(planned, store)
    wanted = {spec.id for spec in planned}
    finding = analyse("cores", [record for record in store.records() if record.spec.id in wanted])
    if as_json:
        print_json({"records": str(out), **finding.to_json()})
    else:
        _print(finding)
    if store.remaining(planned):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    human.print(finding.summary)
    for note in finding.notes:
        human.print(note, style="dim")


def _counts(cores: str | None) -> list[int] | None:
    try:
        return [int(count) for count in cores.split(",")] if cores else None
    except ValueError:
        raise BadOption(f"--cores takes core counts such as 1,2,4, not {cores!r}") from None
