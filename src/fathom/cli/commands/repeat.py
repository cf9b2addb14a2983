"""fathom repeat: programs launched again and again in random order, as the Minsky study did."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fathom.cli.commands._conduct import conduct
from fathom.cli.commands._options import Json, Out, Preset
from fathom.cli.terminal import human, print_json, print_table
from fathom.core import plugins
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import repeat

if TYPE_CHECKING:  # the statistics take a second to load, which `fathom --help` need not wait for
    from fathom.analysis.questions._launches import Launches


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Workloads; all of them where none is named.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Launches of each before those that count; kept apart.")] = 10,
    runs: Annotated[int, typer.Option(min=1, help="Launches of each workload on each device.")] = 200,
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    preset: Preset = "small",
    device: Annotated[
        list[str] | None, typer.Option(help="These devices; where not given, the CPU and the first accelerator.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of a launch, after two of warm-up; all of them are RUN.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the random order of launches.")] = 0,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Launches workloads many times in random order and tells how their times lie; goes on where it stopped.

    Each workload on a GPU is then launched once more and traced from beginning to end, for the time in API calls.
    """
    from fathom.machine.devices import available, resolve

    devices = list(dict.fromkeys(str(resolve(name)) for name in device)) if device else available()[:2]
    chosen = names or plugins.names("workloads")
    for name in chosen:
        from fathom.workloads.base import workload_class

        workload_class(name).configured(preset)  # a mistake is told now, not by every launch
    specs = repeat.plan(RunSpec(workload="", phase=phase, preset=preset, steps=steps), chosen, devices)
    store, ordered = Store(out), repeat.order(specs, runs, seed)
    left = store.left(ordered)
    if done := len(ordered) - len(left):
        human.print(f"{done} of {len(ordered)} launches are in {out} already")
    first = repeat.order([spec for spec in specs if spec in left], warmup, seed)
    if first:
        human.print(
            f"{len(first)} launch{'' if len(first) == 1 else 'es'} to warm up, kept apart in {out / repeat.WARM_UP}"
        )
        conduct(first, Store(out / repeat.WARM_UP), "warm-up")
    conduct(left, store, "launches")
    conduct(store.left(repeat.lives(specs)), store, "lives")
    _tell(specs, list(store.records()), out, as_json)
    if store.left(ordered):
        raise typer.Exit(1)


def _tell(specs: Sequence[RunSpec], records: Sequence[Record], out: Path, as_json: bool) -> None:
    """How the launches of each configuration lie: a table each, or one document."""
    from fathom.analysis.questions._launches import launched

    told = []
    for spec in specs:
        own = [record for record in records if record.spec.id == spec.id]
        failed = sum(record.outcome != "ok" for record in own)
        for launches in launched(record for record in own if record.outcome == "ok"):
            if as_json:
                told.append(_document(launches, failed))
            else:
                _print(launches, failed)
    if as_json:
        print_json({"records": str(out), "configurations": told})


def _print(launches: Launches, failed: int) -> None:
    from fathom.analysis.questions._launches import PARTS, SECTIONS

    rows: list[list[Any]] = []
    for name, section in {**SECTIONS, **PARTS}.items():
        if lies := launches.spread(section):
            spread = [None if lies.variation is None else 100 * lies.variation, lies.p5, lies.p95]
            rows.append([name, lies.median, lies.low, lies.high, *spread])
    columns = ["section", "median (s)", "95 % from", "to", "variation (%)", "p5 (s)", "p95 (s)"]
    what = f"{launches.workload} {launches.phase} on {launches.place}, launches: {len(launches.runs)}"
    print_table(what + (f", and {failed} that failed" if failed else ""), columns, rows)


def _document(launches: Launches, failed: int) -> dict[str, Any]:
    from fathom.analysis.questions._launches import PARTS, SECTIONS

    sections = {section: launches.spread(section) for section in (*SECTIONS.values(), *PARTS.values())}
    return {
        "workload": launches.workload,
        "phase": launches.phase,
        "device": launches.runs[0].device,
        "launches": len(launches.runs),
        "failed": failed,
        "sections": {name: dataclasses.asdict(lies) for name, lies in sections.items() if lies},
    }
