"""fathom feed NAME: input alone, compute alone, both; how long the device waits, the cheapest way to keep it busy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._options import (
    MOST_RUNS,
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
from fathom.cli.commands._running import own_store, run_again, run_all
from fathom.cli.terminal import human, print_json, print_table, print_text
from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import RunSpec
from fathom.experiments import feed
from fathom.experiments.checks import check, check_data, check_external, present
from fathom.experiments.repeat import run_order


def command(
    name: Name,
    data: Annotated[str | None, typer.Option(help="A folder of real data; default: synthetic data.")] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Reader processes, such as 0,1,2,4; default: 0 and powers of two up to all cores."),
    ] = None,
    prefetch: Annotated[str, typer.Option(help="Batches that each reader reads ahead.")] = "1,2,4",
    copies: Annotated[
        str, typer.Option(help="How batches are copied to a GPU; the last is used where workers are swept.")
    ] = ",".join(feed.COPIES),
    phase: Phase = "train",
    preset: Preset = "small",
    device: Device = "auto",
    precision: Precision = "fp32",
    engine: Engine = "eager",
    batch: Annotated[int | None, typer.Option(help="Batch size; default: the preset's.")] = None,
    set_: Set = None,
    steps: Annotated[int, typer.Option(help="Largest number of steps per pass.")] = 200,
    budget: Annotated[float, typer.Option(help="Approximate seconds for each of the four passes of a run.")] = 2.0,
    runs: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Launches per setting.")] = 3,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Measure whether the input keeps the device busy, and which setting is the cheapest that does.

    Each run measures input alone, compute alone and both, in its own process. Run it again to resume.
    """
    base = RunSpec(
        workload=name,
        kind="feed",
        phase=phase,
        preset=preset,
        device=present(device),  # settings depend on whether it is a GPU
        precision=precision,
        engine=engine,
        batch=batch,
        data=data,
        options=options_of(set_ or []),
        steps=steps,
        budget_s=budget,
    )
    check(base)
    feed.check_fed(name)
    specs = feed.plan(
        base,
        _numbers("--workers", workers) if workers is not None else feed.default_workers(),
        _numbers("--prefetch", prefetch),
        _copies(copies),
        cuda=base.device.startswith("cuda"),
    )
    check_external(specs)
    check_data(base)
    store, planned = own_store(out), run_order(specs, runs, seed=0)
    left = store.remaining(planned)
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; another --out repeats them")
    run_all(left, store, "feed")
    run_again(planned, store)
    wanted = {spec.id for spec in planned}
    finding = analyse("feed", [record for record in store.records() if record.spec.id in wanted])
    if as_json:
        print_json({"records": str(out), **finding.to_json()})
    else:
        _print(finding)
    if store.remaining(planned):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    print_text(finding.summary)
    for note in finding.notes:
        human.print(note, style="dim")


def _numbers(option: str, text: str) -> list[int]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or any(not (part.isascii() and part.isdecimal()) or len(part) > 6 for part in found):
        raise BadOption(f"{option} takes whole numbers such as 0,1,2, not {text[:80]!r}")
    return list(dict.fromkeys(int(part) for part in found))


def _copies(text: str) -> Sequence[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in feed.COPIES:
            raise UnknownName.among("kind of copies", name, feed.COPIES)
    if not found:
        raise BadOption("--copies takes pageable, pinned, pageable-overlapped, pinned-overlapped")
    return found
