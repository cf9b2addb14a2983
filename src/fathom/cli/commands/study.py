"""fathom study: the whole suite on this machine, from nothing to a report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.cli.commands._conduct import conduct
from fathom.cli.commands._options import Json, Out, Preset
from fathom.cli.terminal import human, print_json, print_table, skipped
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store, check_writable, read
from fathom.experiments import study


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Workloads; all of them where none is named.")] = None,
    preset: Preset = "small",
    device: Annotated[list[str] | None, typer.Option(help="Only these devices; all there are where not given.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on where this folder stops, or measure all of it again.")
    ] = True,
    out: Out = Path("records"),
    report: Annotated[Path, typer.Option(help="The report, a single HTML file.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Runs every workload, in training and inference, on each device; then writes the report."""
    from fathom.machine.devices import available, resolve
    from fathom.report import write

    devices = [str(resolve(name)) for name in device] if device else available()
    store = Store(out)
    planned = study.plan(names or [], preset, devices)
    left = store.left(planned) if resume else planned
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; --fresh measures them again")
    check_writable(report)
    conduct(left, store, "study")
    records = _latest(planned, store)
    path = write(read([out], skipped), report)
    if as_json:
        print_json({"records": str(out), "report": str(path), "runs": [_row(record) for record in records]})
    else:
        rows = [list(_row(record).values()) for record in records]
        print_table("Study", list(_row(records[0])), rows)
        human.print(f"report: {path}")
    if any(record.outcome != "ok" for record in records):
        raise typer.Exit(1)


def _latest(specs: Sequence[RunSpec], store: Store) -> list[Record]:
    """The newest record of each planned run, in the plan's order."""
    newest = {record.spec.id: record for record in store.records()}
    if gone := sum(spec.id not in newest for spec in specs):
        raise DataError.at(store.folder, f"{gone} of {len(specs)} records were written and are gone; run it again")
    return [newest[spec.id] for spec in specs]


def _row(record: Record) -> dict[str, Any]:
    median = statistics.median(record.step_s) if record.step_s else None
    items = record.items_per_step / median if record.items_per_step and median else None
    return {
        "workload": record.spec.workload,
        "phase": record.spec.phase,
        "device": record.device,
        "threads": record.spec.threads,
        "step (ms)": median * 1e3 if median else None,
        "items/s": items,
        "outcome": record.outcome if record.outcome == "ok" else f"failed: {record.reason}",
    }
