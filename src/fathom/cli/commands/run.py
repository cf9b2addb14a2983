"""fathom run NAME: runs one workload in a process of its own and keeps its record."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands._options import Device, Json, Name, Out, Precision, Preset, Set, options_of
from fathom.cli.terminal import print_facts, print_json, progress_bar, seconds
from fathom.core import plugins
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import isolated


def command(
    name: Name,
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    preset: Preset = "small",
    device: Device = "auto",
    precision: Precision = "fp32",
    batch: Annotated[int | None, typer.Option(help="Items in a batch; the preset's where not given.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads inside an operation.")] = None,
    steps: Annotated[int, typer.Option(help="Timed steps.")] = 10,
    warmup: Annotated[int, typer.Option(help="Steps before the timed ones; kept in the record, apart.")] = 2,
    data: Annotated[str | None, typer.Option(help="Folder of real data, as given or below FATHOM_DATA.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 0,
    set_: Set = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Runs one workload and keeps its record."""
    plugins.check("workloads", name)
    spec = RunSpec(
        workload=name,
        phase=phase,
        preset=preset,
        device=device,
        precision=precision,
        batch=batch,
        threads=threads,
        warmup=warmup,
        steps=steps,
        data=data,
        seed=seed,
        options=options_of(set_ or []),
    )
    store = Store(out)
    store.check_writable()
    with progress_bar() as bar:
        task = bar.add_task(f"{name} {phase}", total=warmup + steps)
        record = isolated(spec, lambda done, total: bar.update(task, completed=done))
    path = store.add(record)
    if as_json:
        keys = ("outcome", "reason", "device", "step_s", "warmup_s", "losses", "answers", "items_per_step")
        print_json({"record": str(path)} | {key: getattr(record, key) for key in keys})
    else:
        print_facts(f"{name} {phase} on {record.device}", [*_summary(record), ("record", str(path))])
    if record.outcome != "ok":
        raise typer.Exit(1)


def _summary(record: Record) -> list[tuple[str, str]]:
    if record.outcome != "ok":
        return [("outcome", f"failed: {record.reason}")]
    median, low, high = statistics.median(record.step_s), min(record.step_s), max(record.step_s)
    rows = [
        ("step", f"{seconds(median)} median of {len(record.step_s)} (from {seconds(low)} to {seconds(high)})"),
        ("throughput", f"{(record.items_per_step or 0) / median:,.1f} items/s, {record.items_per_step} a step"),
        ("setup", seconds(record.sections.setup_s or 0)),
    ]
    if record.losses:
        rows.append(("loss", f"{record.losses[0]:.4g} at first, {record.losses[-1]:.4g} at last"))
    return rows + [("answer", answer) for answer in record.answers[:2]]
