"""fathom repeat: many runs of each workload in random order, for run-to-run variation, as in the Minsky study."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fathom.analysis.selection import trusted
from fathom.cli.commands._options import MOST_RUNS, Engine, Json, Names, Out, Phase, Preset
from fathom.cli.commands._running import own_store, run_again, run_all
from fathom.cli.terminal import count, human, print_json, print_table
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.core.spec import EAGER, RunSpec
from fathom.core.store import Store
from fathom.experiments import repeat
from fathom.experiments.checks import check, check_external, present_or
from fathom.experiments.engines import refusal
from fathom.workloads.catalogue import suite

if TYPE_CHECKING:  # the statistics take a second to load
    from fathom.analysis.questions._launches import Launches


RENAMED = {"--warmup": "--warmup-runs"}


def command(
    names: Names = None,
    warmup_runs: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_RUNS, help="Warm-up runs per configuration; recorded separately, and not part of results."
        ),
    ] = 10,
    runs: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Runs of each workload on each device.")] = 200,
    phase: Phase = "train",
    preset: Preset = "small",
    device: Annotated[
        list[str] | None, typer.Option(help="A device; repeatable; default: the CPU and the first accelerator.")
    ] = None,
    engine: Engine = "eager",
    steps: Annotated[
        int, typer.Option(help="Steps per run after two warm-up steps; RUN is the time of all of them.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Random seed for the order of runs.")] = 0,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Run workloads many times in random order, each run in its own process, and report run-to-run variation.

    Each workload on a GPU is then run once more for a whole-program trace, which gives the time in CUDA API calls.
    Runs that other programs disturbed are repeated once at the end. Run it again to resume an interrupted series.
    """
    base = RunSpec(workload="", phase=phase, preset=preset, engine=engine, steps=steps)
    specs = _configurations(base, names or suite(), device or [])
    store, ordered = own_store(out), repeat.run_order(specs, runs, seed)
    left = store.remaining(ordered)
    if done := len(ordered) - len(left):
        human.print(f"{done} of {len(ordered)} runs are in {out} already")
    warmups = repeat.run_order([spec for spec in specs if spec in left], warmup_runs, seed)
    if warmups:
        human.print(f"{count(len(warmups), 'warm-up run')}, recorded in {out / repeat.WARM_UP}")
        run_all(warmups, Store(out / repeat.WARM_UP, store.machine, lock_folder=out), "warm-up")
    run_all(left, store, "runs")
    run_all(store.remaining(repeat.program_traces(specs)), store, "whole-program traces")
    run_again([*ordered, *repeat.program_traces(specs)], store)
    _report(specs, trusted(list(store.records())), out, as_json)
    if store.remaining(ordered):
        raise typer.Exit(1)


def _configurations(base: RunSpec, names: Sequence[str], devices: Sequence[str]) -> list[RunSpec]:
    """One spec for each workload and device; wrong names are refused before torch is loaded to look for devices."""
    for spec in repeat.plan(base, names, ["cpu"]):
        check(spec)
    specs = repeat.plan(base, names, present_or(devices, most=2))
    check_external(specs)
    return _that_run(specs)


def _that_run(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Without those that the engine cannot run: each of their many launches would say so."""
    if all(spec.engine == EAGER for spec in specs):
        return list(specs)
    refused = {spec.id: why for spec in specs if (why := refusal(spec)) is not None}
    if len(refused) == len({spec.id for spec in specs}):
        raise BadOption(next(iter(refused.values())))
    for spec in specs:
        if spec.id in refused:
            human.print(f"left out: {spec.workload} on {spec.device}: {refused[spec.id]}", highlight=False)
    return [spec for spec in specs if spec.id not in refused]


def _report(specs: Sequence[RunSpec], records: Sequence[Record], out: Path, as_json: bool) -> None:
    """How the runs of each configuration vary: a table each, or one document."""
    from fathom.analysis.questions._launches import launched

    documents = []
    for spec in specs:
        own = [record for record in records if record.spec.id == spec.id]
        failed = sum(record.outcome != "ok" for record in own)
        for launches in launched(record for record in own if record.outcome == "ok"):
            if as_json:
                documents.append(_document(launches, failed))
            else:
                _print(launches, failed)
    if as_json:
        print_json({"records": str(out), "configurations": documents})


def _print(launches: Launches, failed: int) -> None:
    from fathom.analysis.questions._launches import PARTS, SECTIONS

    rows: list[list[Any]] = []
    for name, section in {**SECTIONS, **PARTS}.items():
        if found := launches.distribution(section):
            variation = None if found.variation is None else 100 * found.variation
            rows.append([name, found.median, found.low, found.high, variation, found.next_low, found.next_high])
    columns = ["section", "median (s)", "95 % from", "to", "variation (%)", "next run, 95 % from", "to"]
    title = f"{launches.workload} {launches.phase} on {launches.machine}: {count(len(launches.runs), 'run')}"
    print_table(title + (f", {failed} failed" if failed else ""), columns, rows)


def _document(launches: Launches, failed: int) -> dict[str, Any]:
    from fathom.analysis.questions._launches import PARTS, SECTIONS

    sections = {section: launches.distribution(section) for section in (*SECTIONS.values(), *PARTS.values())}
    return {
        "workload": launches.workload,
        "phase": launches.phase,
        "device": launches.runs[0].device,
        "launches": len(launches.runs),
        "failed": failed,
        "sections": {name: dataclasses.asdict(found) for name, found in sections.items() if found},
    }
