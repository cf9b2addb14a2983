"""fathom run NAME: one workload in its own process, and its record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.cli.commands._options import (
    Device,
    Engine,
    Json,
    Name,
    Out,
    Phase,
    Precision,
    Preset,
    Set,
    options_of,
)
from fathom.cli.commands._running import energy_in_words
from fathom.cli.terminal import print_facts, print_json, progress_bar, seconds
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.checks import check
from fathom.experiments.isolate import isolated

KEYS = (  # of --json
    "outcome",
    "reason",
    "device",
    "step_s",
    "warmup_s",
    "losses",
    "answers",
    "items_per_step",
    "disturbances",
)


def command(
    name: Name,
    phase: Phase = "train",
    preset: Preset = "small",
    device: Device = "auto",
    precision: Precision = "fp32",
    engine: Engine = "eager",
    batch: Annotated[int | None, typer.Option(help="Batch size; default: the preset's.")] = None,
    threads: Annotated[int | None, typer.Option(help="Intra-op CPU threads; default: torch's choice.")] = None,
    steps: Annotated[int, typer.Option(help="Timed steps.")] = 10,
    warmup: Annotated[int, typer.Option(help="Warm-up steps before the timed ones; recorded separately.")] = 2,
    data: Annotated[str | None, typer.Option(help="Folder of real data, or its name below FATHOM_DATA.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of weights and data.")] = 0,
    set_: Set = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Run one workload, print its step time and throughput, and write its record."""
    spec = RunSpec(
        workload=name,
        phase=phase,
        preset=preset,
        device=device,
        precision=precision,
        engine=engine,
        batch=batch,
        threads=threads,
        warmup=warmup,
        steps=steps,
        data=data,
        seed=seed,
        options=options_of(set_ or []),
    )
    check(spec)
    store = Store(out)
    store.check_writable()
    with progress_bar() as bar:
        task = bar.add_task(f"{name} {phase}", total=warmup + steps)
        record = isolated(spec, lambda done, total: bar.update(task, completed=done))
    path = store.add(record)
    if as_json:
        document = {"record": str(path)} | {key: getattr(record, key) for key in KEYS}
        print_json(document | {"step": _headline(record), "energy": _energy(record)})
    else:
        print_facts(f"{name} {phase} on {record.device}", [*_summary(record), ("record", str(path))])
    if record.outcome != "ok":
        raise typer.Exit(1)


def _headline(record: Record) -> dict[str, Any] | None:
    """The step time as the report states it; None for a run without timed steps."""
    if record.outcome != "ok":
        return None
    from fathom.analysis.step_time import levels, step_time

    step = step_time([record])
    bounds = {"median_s": step.median, "low_s": step.low, "high_s": step.high, "claim": step.claim}
    return bounds | {"unsteady_levels_s": levels(record)}


def _energy(record: Record) -> dict[str, Any] | None:
    """Of the timed steps; None where it is not metered."""
    energy = record.energy
    if energy is None:
        return None
    numbers = {"joules": energy.joules, "per_step_j": energy.per_step_j, "mean_w": energy.mean_w}
    return numbers | {"estimated": energy.estimated, "invalid": energy.invalid}


def _summary(record: Record) -> list[tuple[str, str]]:
    if record.outcome != "ok":
        return [("outcome", f"failed: {record.reason}")]
    from fathom.analysis.step_time import in_words, settled_steps, throughput

    settled = settled_steps(record)
    low, high = min(record.step_s), max(record.step_s)
    rows = [
        ("step time", in_words(record)),
        ("steps", f"{len(settled)} of {len(record.step_s)} after warm-up; all: {seconds(low)} to {seconds(high)}"),
        ("throughput", f"{throughput([record]) or 0:,.1f} items/s at {record.items_per_step} per step"),
        ("setup", seconds(record.sections.setup_s or 0)),
    ]
    if record.losses:
        rows.append(("loss", f"{record.losses[0]:.4g} at the first step, {record.losses[-1]:.4g} at the last"))
    energy = record.energy
    shown = f"{energy.per_step_j:.4g} J per step, {energy.mean_w:.4g} W; " if energy else ""
    rows.append(("energy", shown + energy_in_words(record)))
    if record.disturbed:
        rows.append(("disturbed", "; ".join(record.disturbances)))
    rows += [("note", note) for note in record.notes]
    return rows + [("answer", answer) for answer in record.answers[:2]]
