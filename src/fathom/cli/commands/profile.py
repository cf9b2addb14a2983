"""fathom profile: a model of your own, or a trace you already have, beside the eight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.analysis.finding import Cell
from fathom.cli.commands._options import Device, Json, Out, Precision
from fathom.cli.terminal import count, human, print_json, print_table, skipped
from fathom.core.errors import BadOption, FathomError
from fathom.core.record import Profile, Record
from fathom.core.store import Store, check_writable, read

LEAST_PERCENT = 0.1  # op types below share one line; the record has them
OUTSIDE = "outside ops"


def command(
    target: Annotated[str | None, typer.Argument(help="package.module:function that makes the model.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A torch.profiler trace, .json or .json.gz.")] = None,
    trace_out: Annotated[Path | None, typer.Option(help="Write our trace there, for Perfetto.")] = None,
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    device: Device = "auto",
    precision: Precision = "fp32",
    beside: Annotated[
        list[Path] | None, typer.Option(help="Records of the eight to compare with, e.g. results/h200; also of --out.")
    ] = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Profiles your own model, or reads a trace you have, and says which of the eight it is like."""
    _check(target, trace, trace_out)
    eight = read(beside or [], skipped)
    record = _profiled(target, trace, trace_out, phase, device, precision)
    path = Store(out).add(record)
    _tell(record, path, [*eight, *Store(out).records()], as_json)


def _check(target: str | None, trace: Path | None, trace_out: Path | None) -> None:
    """What can be told before the profiling, which may take minutes."""
    if (target is None) == (trace is None):
        raise BadOption("give either package.module:function or --trace FILE")
    if trace_out is None:
        return
    if trace is not None:
        raise BadOption("--trace reads a trace that is there already; --trace-out is for a model that is profiled")
    check_writable(trace_out)


def _profiled(
    target: str | None, trace: Path | None, trace_out: Path | None, phase: str, device: str, precision: str
) -> Record:
    from fathom.measure import own

    if trace is not None:
        return own.from_trace(trace)
    assert target is not None
    model, *rest = own.from_target(target)
    batch, loss = [*rest, None, None][:2]
    settings = {"phase": phase, "device": device, "precision": precision, "name": target}
    try:
        return own.profile(model, batch, loss=loss, trace_out=trace_out, **settings)
    except FathomError:
        raise
    except Exception as error:
        raise own.users_fault(target, error) from None


def _tell(record: Record, path: Path, eight: list[Record], as_json: bool) -> None:
    from fathom.analysis.questions.similarity import CREDITED, IN_2016, nearest, nearest_measured

    assert record.profile is not None
    rows = by_type(record.profile)
    printed, measured = nearest(record), nearest_measured(record, eight)
    if as_json:
        keys = ("type", "group", "seconds", "percent", "flop")
        here = (
            {"closest": measured[0].workload, "distance": measured[0].distance, "place": measured[1]}
            if measured
            else None
        )
        told: dict[str, Any] = {"record": str(path), "workload": record.spec.workload}
        told |= {"ops": [dict(zip(keys, row, strict=True)) for row in rows], "notes": record.profile.notes}
        told |= {"closest": printed.workload, "distance": printed.distance, "measured": here}
        print_json(told | {"slowdown": record.profile.slowdown})
        return
    title = f"Where the time of {record.spec.workload} goes"
    print_table(title, ["op type", "class", "per step (s)", "%", "FLOP"], rows)
    if measured:
        human.print(f"{measured[0]}, among the eight as measured on {measured[1]}", highlight=False)
    else:
        human.print("none of the eight measured on such a device is at hand; --beside FOLDER names records of them")
    credited = f" ({CREDITED})" if any(row.type in IN_2016 for row in record.profile.rows) else ""
    human.print(f"{printed}, among the eight as published in 2016{credited}", highlight=False)
    if (slowdown := record.profile.slowdown) is not None:
        human.print(f"the profiler slowed the step by a factor of {slowdown:.2f}; shares are of profiled time")
    for note in record.profile.notes:
        human.print(f"· {note}", highlight=False)
    human.print(f"record: {path}", soft_wrap=True)


def by_type(profile: Profile) -> list[list[Cell]]:
    """A line an op type, heaviest first, small ones together, and what is outside ops: percentages add up to 100."""
    from fathom.analysis.selection import op_seconds, outside

    seconds: dict[tuple[str, str], float] = {}
    flop: dict[tuple[str, str], float] = {}
    for row in profile.rows:
        key = (row.type, row.group)
        seconds[key] = seconds.get(key, 0.0) + profile.seconds(row)
        flop[key] = flop.get(key, 0.0) + row.flop
    step_s = op_seconds(profile) + outside(profile)  # of the typical steps that the rows are of, not of all of them
    heavy = [key for key in seconds if 100 * seconds[key] >= LEAST_PERCENT * step_s]
    small = [key for key in seconds if key not in heavy]
    rows = [_line(*key, seconds[key], flop[key], step_s) for key in sorted(heavy, key=lambda key: -seconds[key])]
    if small:
        sums = (sum(seconds[key] for key in small), sum(flop[key] for key in small))
        rows.append(_line(count(len(small), "smaller type"), None, *sums, step_s))
    return [*rows, _line(OUTSIDE, None, outside(profile), 0.0, step_s)]


def _line(kind: str, group: str | None, seconds: float, flop: float, step_s: float) -> list[Cell]:
    """Data movement has no arithmetic; elsewhere none counted means that it is not known."""
    counted = flop if flop or group == "G" else None
    return [kind, group, seconds, 100 * seconds / step_s if step_s > 0 else None, counted]
