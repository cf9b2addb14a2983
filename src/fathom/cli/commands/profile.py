"""fathom profile: op times of your own model or of a trace you have, and the reference workload nearest to it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fathom.analysis.finding import Cell
from fathom.cli.commands._depth import print_depth
from fathom.cli.commands._options import Device, Json, Out, Phase
from fathom.cli.terminal import count, human, print_json, print_table, print_text, skipped
from fathom.core import plugins
from fathom.core.errors import BadOption
from fathom.core.record import Profile, Record
from fathom.core.spec import SEPARATOR, RunSpec
from fathom.core.store import Store, check_writable, read
from fathom.experiments.checks import check_device
from fathom.experiments.own import TIMEOUT_S, profile_target
from fathom.trace.profile import from_trace

LEAST_PERCENT = 0.1  # op types below it share one row; the record has them all
OUTSIDE = "outside ops"


RENAMED = {"--beside": "--reference"}


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="package.module:function that returns a model and a batch (and a loss, and an optimizer), or a step: "
            "a function without arguments."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Read this torch.profiler trace (.json, .json.gz), or a folder with one trace per rank."),
    ] = None,
    trace_out: Annotated[Path | None, typer.Option(help="Write the trace to this file, for Perfetto.")] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also record Python stacks, in a separate pass, for time by source line.")
    ] = False,
    phase: Phase = "train",
    device: Device = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="For a model in fp32: tf32, or bf16 or fp16 by autocast; default: the model's own."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="A loss of torch.nn.functional, such as cross_entropy, or package.module:function. The target is "
            "the batch's `labels` or `target`, or the last element of a tuple. Default: the model's own loss, else the "
            "mean of its outputs."
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="sgd (default), adam, adamw, ..., or package.module:function of the model."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="How the model is executed: eager, compile (torch.compile) or compile+cudagraph.")
    ] = "eager",
    threads: Annotated[int | None, typer.Option(help="Intra-op CPU threads; default: torch's choice.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which the model's process is ended.")] = TIMEOUT_S,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="Records of the reference workloads, such as results/h200; those in --out count too."),
    ] = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Profile your own model, or read a trace you have: time by op type, and the most similar reference workload."""
    _check(target, trace, trace_out, stacks)
    settings = {"phase": phase, "device": device, "precision": precision, "threads": threads}
    settings |= {"loss": loss, "optimizer": optimizer, "stacks": stacks or None}
    settings["engine"] = engine if engine != "eager" else None
    _check_settings(trace, timeout, settings)
    if trace is not None and trace.is_dir():
        from fathom.cli.commands._ranks import report_ranks

        report_ranks(trace, out, as_json)
        return
    references, store = read(reference or [], skipped), Store(out)
    store.check_writable()
    record = _profiled(target, trace, trace_out, timeout, settings)
    _report(record, store.add(record), [*references, *store.records()], as_json)


def _check(target: str | None, trace: Path | None, trace_out: Path | None, stacks: bool) -> None:
    """What can be refused before the profiling, which may take minutes."""
    if (target is None) == (trace is None):
        raise BadOption("give either package.module:function or --trace FILE")
    if trace is not None and stacks:
        raise BadOption("--trace reads an existing trace, with its stacks if it has any; --stacks is for a model")
    if trace_out is None:
        return
    if trace is not None:
        raise BadOption("--trace reads an existing trace; --trace-out is for a model that is profiled")
    check_writable(trace_out)


def _check_settings(trace: Path | None, timeout: float, settings: dict[str, Any]) -> None:
    """Names and numbers, before a process is started; those of losses and optimizers need torch."""
    given = [name for name in ("precision", "engine", "threads", "loss", "optimizer") if settings[name] is not None]
    if trace is not None and given:
        raise BadOption(f"--trace reads an existing trace; --{given[0]} is for a model that is profiled")
    if not 0 < timeout < math.inf:
        raise BadOption(f"--timeout must be some seconds, not {timeout:g}")
    precision = settings["precision"] or "fp32"
    names = {name: settings[name] for name in ("phase", "threads")}
    spec = RunSpec(workload="own", source="model", precision=precision, engine=settings["engine"] or "eager", **names)
    for part in spec.engine.split(SEPARATOR):
        plugins.check("engines", part)
    check_device(settings["device"], precision)


def _profiled(
    target: str | None, trace: Path | None, trace_out: Path | None, timeout: float, settings: dict[str, Any]
) -> Record:
    if trace is not None:
        return from_trace(trace)
    assert target is not None
    where = None if trace_out is None else str(trace_out)
    record = profile_target(target, timeout, trace_out=where, **settings)
    for note in record.notes:
        human.print(f"{target}: {note}", style="yellow", highlight=False)
    return record


def _report(record: Record, path: Path, references: list[Record], as_json: bool) -> None:
    """The lines that matter most first: what it reaches, what to do, then where the time goes."""
    from fathom.analysis.actions import actions
    from fathom.analysis.overview import overview
    from fathom.analysis.own_model import lines_table, outside_table, waits_table

    assert record.profile is not None
    rows, found, advised = by_type(record.profile), overview(record), actions(record)
    if as_json:
        keys = ("type", "group", "seconds", "percent", "flop")
        document: dict[str, Any] = {"record": str(path), "workload": record.spec.workload}
        document |= {"overview": dataclasses.asdict(found), "actions": [dataclasses.asdict(each) for each in advised]}
        document |= {"ops": [dict(zip(keys, row, strict=True)) for row in rows], "notes": record.profile.notes}
        document |= {"disturbances": record.disturbances}
        details = {name: msgspec.to_builtins(getattr(record.profile, name)) for name in ("depth", "sources", "memory")}
        print_json(document | _similar(record, references) | {"slowdown": record.profile.slowdown} | details)
        return
    print_text(f"{record.spec.workload}, {record.spec.phase}")
    for line in found.lines(record):
        print_text(f"  {line}")
    if record.disturbed:
        print_text(f"  Disturbed, so times and shares are unreliable: {'; '.join(record.disturbances)}.")
    if advised:
        print_text("What to do, the largest possible gain first:")
    for number, action in enumerate(advised, 1):
        print_text(f"  {number}. {action}")
    print_table("Time by op type", ["op type", "class", "per step (s)", "%", "FLOP"], rows)
    if record.profile.depth is not None:
        print_depth(record.profile.depth)
    for table in (lines_table(record.profile), outside_table(record.profile), waits_table(record.profile)):
        if table.rows:
            print_table(table.title, table.columns, table.rows)
    _print_similar(record, references)
    _print_profiler(record.profile)
    for note in record.profile.notes:
        human.print(f"· {note}", highlight=False, markup=False)
    human.print(f"record: {path}", soft_wrap=True)


def _similar(record: Record, references: list[Record]) -> dict[str, Any]:
    from fathom.analysis.relatives import nearest_measured, nearest_published

    printed, measured = nearest_published(record), nearest_measured(record, references)
    here = {**measured[0].to_json(), "machine": measured[1]} if measured else None
    return {"published": printed.to_json() if printed else None, "measured": here}


def _print_similar(record: Record, references: list[Record]) -> None:
    from fathom.analysis.relatives import nearest_measured, nearest_published

    printed, measured = nearest_published(record), nearest_measured(record, references)
    if measured:
        human.print(f"{measured[0]}, among the reference workloads measured on {measured[1]}", highlight=False)
    else:
        human.print("no records of reference workloads on such a device; name some with --reference FOLDER")
    if printed:
        human.print(f"{printed}, among the eight workloads of the 2016 paper (training)", highlight=False)


def _print_profiler(profile: Profile) -> None:
    """What the profiler itself cost."""
    from fathom.analysis.own_model import OUTSIDE_NOTE
    from fathom.analysis.selection import bounded_percent, outside_bounds

    if (slowdown := profile.slowdown) is not None:
        human.print(f"profiled over unprofiled step time: {slowdown:.2f}; shares are of the unprofiled step")
        low, high = outside_bounds(profile)
        human.print(f"outside ops: {bounded_percent(low, high)} % of it; the table shows the middle", highlight=False)
    else:
        human.print("no unprofiled steps: times include the profiler's own time, on a CPU mostly outside ops")
    if profile.sources and profile.sources.outside:
        human.print(OUTSIDE_NOTE, highlight=False)


def by_type(profile: Profile) -> list[list[Cell]]:
    """One row per op type, slowest first, small ones in one row, then time outside ops: percentages add up to 100."""
    from fathom.analysis.selection import outside, plain_scale

    scale = plain_scale(profile)
    seconds: dict[tuple[str, str], float] = {}
    flop: dict[tuple[str, str], list[float | None]] = {}
    for row in profile.rows:
        key = (row.type, row.group)
        seconds[key] = seconds.get(key, 0.0) + profile.seconds(row) * scale
        flop.setdefault(key, []).append(row.flop)
    step_s = profile.op_s * scale + outside(profile)
    heavy = [key for key in seconds if 100 * seconds[key] >= LEAST_PERCENT * step_s]
    small = [key for key in seconds if key not in heavy]
    rows = [_line(*key, seconds[key], flop[key], step_s) for key in sorted(heavy, key=lambda key: -seconds[key])]
    if small:
        total, counts = sum(seconds[key] for key in small), [each for key in small for each in flop[key]]
        rows.append(_line(count(len(small), "smaller type"), None, total, counts, step_s))
    return [*rows, _line(OUTSIDE, None, outside(profile), [], step_s)]


def _line(kind: str, group: str | None, seconds: float, flop: list[float | None], step_s: float) -> list[Cell]:
    """Data movement (class G) has no FLOP; in other classes a count of 0 means unknown, in records without None."""
    known = [each for each in flop if each is not None]
    counted = sum(known) if len(known) == len(flop) and (any(known) or group == "G") else None
    return [kind, group, seconds, 100 * seconds / step_s if step_s > 0 else None, counted]
