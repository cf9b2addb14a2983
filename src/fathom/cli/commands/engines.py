"""fathom engines: ways to execute the same step, each beside eager in one process: speed, cost to start, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.cli.commands._options import Device, Json, Names, Out, Precision, Preset, Set, options_of, values_in
from fathom.cli.commands._running import own_store, run_all
from fathom.cli.terminal import human, print_json, print_table
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.core.spec import EAGER, PHASES, RunSpec
from fathom.core.store import Store
from fathom.experiments import engines
from fathom.experiments.checks import check, check_external
from fathom.experiments.isolate import failed, isolated
from fathom.workloads.catalogue import suite


def command(
    names: Names = None,
    engine: Annotated[
        str | None,
        typer.Option("--engines", help="Engines to compare, such as compile,compile+cudagraph; default: all."),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="train or infer; default: both.")] = None,
    preset: Preset = "small",
    device: Device = "auto",
    precision: Precision = "fp32",
    batch: Annotated[int | None, typer.Option(help="Batch size; default: the preset's.")] = None,
    threads: Annotated[int | None, typer.Option(help="Intra-op CPU threads; default: torch's choice.")] = None,
    set_: Set = None,
    budget: Annotated[float | None, typer.Option(help="Seconds of timed steps in a trial; default: 7.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without progress after which a trial is ended: a compiler may hang.")
    ] = engines.TIMEOUT_S,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Compare engines, the ways to execute a step. Each is timed alternately with eager, in its own process.

    The table has step time, speed-up over eager, start-up time and the number of steps that make up for it, memory,
    energy where it is metered, and whether results agree with eager. Run it again to resume.
    """
    if phase is not None and phase not in PHASES:
        raise BadOption(f"--phase takes train or infer, not {phase!r}")
    base = RunSpec(
        workload="",
        kind="trial",
        preset=preset,
        device=device,
        precision=precision,
        batch=batch,
        threads=threads,
        budget_s=budget,
        options=options_of(set_ or []),
    )
    asked = values_in(engine, "--engines") or engines.candidates()
    specs = engines.plan(base, names or suite(), [phase] if phase else PHASES, asked)
    for spec in specs:
        check(spec)
    if engine:
        _check_combinations(asked)
    check_external(specs)
    specs = resolved(specs)
    store = own_store(out)
    records = trials(specs, store, timeout)
    _report(records, out, as_json, reasons=engine is not None)
    if not any(record.outcome == "ok" for record in records):
        raise typer.Exit(1)


def _check_combinations(asked: Sequence[str]) -> None:
    """Engines that cannot be loaded, or that do not combine, are one error now rather than one of every trial."""
    from fathom.engine.base import engine_class  # loads torch

    for name in asked:
        engine_class(RunSpec(workload="", engine=name).engine)


def resolved(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """With the device that `auto` comes to, so that a trial of it is found again."""
    from fathom.machine.devices import resolve

    return [replace(spec, device=str(resolve(spec.device, spec.precision))) for spec in specs]


def trials(specs: Sequence[RunSpec], store: Store, timeout_s: float = engines.TIMEOUT_S) -> list[Record]:
    """A record of each, run where there is none; an engine that does not apply is a failed record with the reason."""
    refused = {spec.id: why for spec in specs if (why := engines.refusal(spec)) is not None}
    left = store.remaining([spec for spec in specs if spec.id not in refused])
    if done := len(specs) - len(refused) - len(left):
        human.print(f"{done} of {len(specs) - len(refused)} trials are in {store.folder} already")
    run_all(left, store, "trials", partial(isolated, heartbeat_timeout_s=timeout_s))
    kept = store.records() if store.folder.exists() else []  # where all are refused, nothing was written
    newest = {record.spec.id: record for record in sorted(kept, key=lambda each: each.started)}
    found = [failed(spec, refused[spec.id]) if spec.id in refused else newest.get(spec.id) for spec in specs]
    return [record for record in found if record is not None]


def _report(records: Sequence[Record], out: Path, as_json: bool, *, reasons: bool) -> None:
    """A table for each workload and phase. Why an engine does not apply is told where it was asked for by name."""
    from fathom.analysis.questions.engines import COLUMNS, row

    if as_json:
        print_json({"records": str(out), "trials": [dict(zip(COLUMNS, row(each), strict=True)) for each in records]})
        return
    work = dict.fromkeys((record.spec.workload, record.spec.phase) for record in records)
    for workload, phase in work:
        own = [each for each in records if (each.spec.workload, each.spec.phase) == (workload, phase)]
        ok = [record for record in own if record.trial is not None]
        if ok:
            _print_known(f"{workload} {phase} on {ok[0].device}, {ok[0].spec.precision}", [row(each) for each in ok])
        others = [record for record in own if record.trial is None]
        for record in others if reasons else [each for each in others if each.id in _tried(records)]:
            reason = f"{workload} {phase}, {record.spec.engine}: {record.reason}"
            human.print(reason, highlight=False, markup=False, soft_wrap=True)
        if not reasons and (left_out := [each.spec.engine for each in others if each.id not in _tried(records)]):
            human.print(f"not applicable: {', '.join(left_out)} (--engines NAME says why)", highlight=False)
        if ok:
            fastest = engines.best(own)
            named = fastest.spec.engine if fastest else f"{EAGER}; no other is shown to be faster"
            human.print(f"best: {named}", highlight=False)
    human.print(f"records: {out}", soft_wrap=True)


def _tried(records: Sequence[Record]) -> set[str]:
    """The trials that were started, by id: one that is refused beforehand has not been read from a folder."""
    return {record.id for record in records if record.origin is not None}


def _print_known(title: str, rows: list[list[Any]]) -> None:
    """Without the workload, and without columns that nothing here has."""
    from fathom.analysis.questions.engines import COLUMNS

    kept = [at for at in range(2, len(COLUMNS)) if any(row[at] is not None for row in rows)]
    print_table(title, [COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows])
