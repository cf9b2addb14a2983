"""fathom profile: a model of your own, or a trace you already have, beside the eight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.commands._options import Device, Json, Out, Precision
from fathom.errors import BadOption
from fathom.record import Record
from fathom.store import Store
from fathom.terminal import human, print_json, print_table

LEAST_PERCENT = 0.1  # op types below are left out of the table; the record has them


def command(
    target: Annotated[str | None, typer.Argument(help="package.module:function that makes the model.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A torch.profiler trace, .json or .json.gz.")] = None,
    trace_out: Annotated[Path | None, typer.Option(help="Write our trace there, for Perfetto.")] = None,
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    device: Device = "auto",
    precision: Precision = "fp32",
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Profiles your own model, or reads a trace you have, and says which of the eight it is like."""
    if (target is None) == (trace is None):
        raise BadOption("give either package.module:function or --trace FILE")
    from fathom import own
    from fathom.analyses.similarity import nearest

    if trace is not None:
        record = own.from_trace(trace)
    else:
        assert target is not None
        model, *rest = own.from_target(target)
        loss = rest[1] if len(rest) > 1 else None
        batch = rest[0] if rest else None
        record = own.profile(
            model, batch, loss=loss, phase=phase, device=device, precision=precision, trace_out=trace_out
        )
    path = Store(out).add(record)
    rows = _by_type(record)
    assert record.profile is not None
    closest, distance = nearest(record.profile)
    if as_json:
        keys = ("type", "group", "seconds", "percent", "flop")
        ops = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"record": str(path), "ops": ops, "closest": closest, "distance": distance})
        return
    print_table("Where the time goes", ["op type", "class", "per step (s)", "%", "FLOP"], rows)
    human.print(f"closest to {closest}, distance {distance:.2f}; record: {path}")
    if (slowdown := record.profile.slowdown) is not None:
        human.print(f"the profiler slowed the step by a factor of {slowdown:.2f}; shares are of profiled time")


def _by_type(record: Record) -> list[list[str | float]]:
    assert record.profile is not None
    totals: dict[tuple[str, str], list[float]] = {}
    for row in record.profile.rows:
        total = totals.setdefault((row.type, row.group), [0.0, 0.0])
        total[0] += record.profile.seconds(row)
        total[1] += row.flop
    step = sum(record.profile.step_s) / len(record.profile.step_s)
    rows: list[list[str | float]] = [
        [kind, group, time, 100 * time / step, flop] for (kind, group), (time, flop) in totals.items()
    ]
    return sorted((row for row in rows if float(row[3]) >= LEAST_PERCENT), key=lambda row: -float(row[2]))
