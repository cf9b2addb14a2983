"""fathom scale: how much faster a workload gets with every core it may use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._conduct import conduct
from fathom.cli.commands._options import Json, Out, Preset
from fathom.cli.terminal import human, print_json, print_table
from fathom.core import plugins
from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import scale


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Workloads; all of them where none is named.")] = None,
    cores: Annotated[str | None, typer.Option(help="Numbers of cores, as 1,2,4; powers of two up to all.")] = None,
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    preset: Preset = "small",
    steps: Annotated[int, typer.Option(help="Timed steps, at most.")] = 50,
    budget: Annotated[float, typer.Option(help="Seconds for the steps of one run, at most.")] = 3.0,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Runs workloads bound to 1, 2, 4, ... cores and says what the cores were worth; goes on where it stopped."""
    chosen = names or plugins.names("workloads")
    for name in chosen:
        plugins.check("workloads", name)
    base = RunSpec(workload="", phase=phase, preset=preset, steps=steps, budget_s=budget)
    planned = scale.plan(base, chosen, _counts(cores))
    store = Store(out)
    left = store.left(planned)
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; another --out measures them again")
    conduct(left, store, "scale")
    wanted = {spec.id for spec in planned}
    finding = analyse("cores", [record for record in store.records() if record.spec.id in wanted])
    if as_json:
        print_json({"records": str(out), **finding.to_json()})
    else:
        _tell(finding)
    if store.left(planned):
        raise typer.Exit(1)


def _tell(finding: Finding) -> None:
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    human.print(finding.summary)
    for note in finding.notes:
        human.print(note, style="dim")


def _counts(cores: str | None) -> list[int] | None:
    try:
        return [int(count) for count in cores.split(",")] if cores else None
    except ValueError:
        raise BadOption(f"--cores takes numbers such as 1,2,4, not {cores!r}") from None
