"""fathom compare A B: what is slower or faster in B than in A, by how much, and which ops account for it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fathom.cli.commands._compare_traces import from_traces_only, report_traces, traces_at
from fathom.cli.commands._options import MOST_RUNS, Device, Engine, Json, Names, Phase, Preset
from fathom.cli.commands._running import result
from fathom.cli.terminal import count, human, print_json, print_table, progress_bar, screen, skipped
from fathom.core.errors import BadOption, DataError
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store, read
from fathom.experiments.checks import check
from fathom.experiments.interleave import BUDGET_S, STEPS, Launch, interleave, launch_order, parse_side
from fathom.workloads.catalogue import suite

if TYPE_CHECKING:  # the statistics take a second to load
    from fathom.analysis.compare import Comparison
    from fathom.analysis.explained_change import Change

MANY = 500  # runs that nobody would wait for
MEASURING = ("runs", "phase", "preset", "device", "engine", "out")  # options of --interleave
EXPLAINED = 3  # changes explained op by op, the largest; --json has all
RENAMED = {"--launches": "--runs"}


def command(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(metavar="A", help="The baseline: a folder of records, a folder of traces, or one trace.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="What is compared with the baseline; of the same kind.")],
    names: Names = None,
    fail_over: Annotated[
        str, typer.Option(metavar="PERCENT", help="Exit code 1 if a step is significantly slower by more than this.")
    ] = "5%",
    now: Annotated[
        bool,
        typer.Option(
            "--interleave",
            help="Measure both sides now, alternately. A and B are then each a checkout (a folder with src/fathom), a "
            "Python environment (a folder with bin/python), or settings: threads=1, precision=bf16, engine=cudagraph, "
            "set.latent=40.",
        ),
    ] = False,
    runs: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="With --interleave: runs of each workload on each side.")
    ] = 10,
    phase: Phase = "train",
    preset: Preset = "small",
    device: Device = "auto",
    engine: Engine = "eager",
    out: Annotated[
        Path | None, typer.Option(help="With --interleave: new folder of records, with subfolders a and b.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the step times of B with those of A: ratio, significance, and the ops that account for a change.

    Exit code 1 if B is slower by more than --fail-over, or fails where A did not. With --interleave, also if a workload
    could not be measured on both sides.
    """
    beyond = _fraction(fail_over)
    if now:
        base = RunSpec(
            workload="", phase=phase, preset=preset, device=device, engine=engine, steps=STEPS, budget_s=BUDGET_S
        )
        folders = _measure(a, b, names or suite(), base, runs, out)
    else:
        _refuse_measuring(context)
        folders = Path(a), Path(b)
        traced = traces_at(folders[0]), traces_at(folders[1])
        if traced[0] is not None or traced[1] is not None:
            _refuse_for_traces(context)
            lots = traced[0] or _read(folders[0], names), traced[1] or _read(folders[1], names)
            _refuse_untraced(folders, lots)
            report_traces(*folders, lots, as_json)
            return
    lots = _read(folders[0], names), _read(folders[1], names)
    from fathom.analysis.compare import compare, geometric_mean, in_common

    found = compare(*lots, change=beyond, one_setting=now)
    if not now and not in_common(found):
        if from_traces_only([*lots[0], *lots[1]]):
            _refuse_for_traces(context)
            report_traces(*folders, lots, as_json)  # of files with different names
            return
        raise DataError(f"nothing in common: {'; '.join(map(_contents, folders, lots))}")
    if as_json:
        document = {"a": str(folders[0]), "b": str(folders[1]), "geometric_mean": geometric_mean(found)}
        print_json({**document, "fail_over": beyond, "workloads": [each.to_json() for each in found]})
    else:
        _print(found, folders, lots, beyond)
    missed = now and not all(each.launches_a and each.launches_b for each in found)
    if missed or any(each.regressed(beyond) for each in found):
        raise typer.Exit(1)


def _refuse_untraced(folders: Sequence[Path], lots: Sequence[Sequence[Record]]) -> None:
    """A trace is compared with another, or with a record that was made from one."""
    for folder, records in zip(folders, lots, strict=True):
        if not from_traces_only(records):
            raise DataError.at(folder, "has records of runs, the other side has traces: compare traces with traces")


def _refuse_for_traces(context: typer.Context) -> None:
    """A trace has few steps of one run: what became slower is shown, and no verdict is given."""
    for name, shown in {"fail_over": "--fail-over", "names": "names of workloads"}.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BadOption(f"{shown}: traces are compared as they are; records of runs can be judged or chosen from")


def _refuse_measuring(context: typer.Context) -> None:
    """Without --interleave nothing is measured: options that say how to measure are a mistake."""
    for name in MEASURING:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BadOption(f"--{name} needs --interleave, which measures; without it two folders of records are read")


def _fraction(text: str) -> float:
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if rest or not 0 <= value < (math.inf if percent else 1):
        raise BadOption(f"--fail-over takes a percentage such as 5% or 0.05, not {text!r}")
    return value


def _read(folder: Path, names: Sequence[str] | None) -> list[Record]:
    found = [record for record in read([folder], skipped) if not names or record.spec.workload in names]
    if not found:
        of = f" of {', '.join(names)}" if names else ""
        raise DataError.at(folder, f"no records{of}; make some with fathom study, or measure with --interleave")
    return found


def _contents(folder: Path, records: Sequence[Record]) -> str:
    """The successful runs there, or why there are none."""
    from fathom.analysis.compare import described

    lots: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        if record.outcome == "ok":
            lots[described(record)][record.spec.workload] = None
    if not lots:
        return f"{folder} has only failed runs ({records[-1].reason})"
    return f"{folder} has " + " and ".join(f"{', '.join(names)} ({how})" for how, names in lots.items())


def _measure(a: str, b: str, names: Sequence[str], base: RunSpec, runs: int, out: Path | None) -> tuple[Path, Path]:
    """Both sides alternately, with a line for each run; gives the folders of their records."""
    sides = parse_side("A", a), parse_side("B", b)
    specs = [replace(base, workload=name) for name in dict.fromkeys(names)]
    for spec in specs:
        check(spec)
    order = launch_order(specs, runs)
    root = out or Path(f"compared-{datetime.now():%Y%m%d-%H%M%S}")
    folders = _without_records(root)
    with progress_bar() as bar:
        whole = bar.add_task("compare", total=len(order))
        current = bar.add_task("")

        def watch(index: int, launch: Launch) -> OnProgress:
            bar.update(whole, completed=index)
            bar.reset(current, description=f"{launch.spec.workload} {sides[launch.side].name}", total=None)
            return lambda done, total: bar.update(current, completed=done, total=total)

        stores = Store(folders[0]), Store(folders[1])
        launched = interleave(order, sides, stores, watch)
        human.print(f"{len(order)} runs, interleaved; records: {root}", highlight=False)
        for number, (launch, record) in enumerate(launched, start=1):
            what = f"{record.spec.workload} {record.spec.phase} {sides[launch.side].name}"
            bar.console.print(f"{number:3} of {len(order)}  {what}: {result(record)}", highlight=False)
    return folders


def _without_records(root: Path) -> tuple[Path, Path]:
    """The folders of A and B: runs are never added to those of an earlier comparison."""
    folders = root / "a", root / "b"
    full = [folder for folder in folders if any(folder.glob("*.json"))]
    if full:
        those = f", or compare these: fathom compare {folders[0]} {folders[1]}" if len(full) == len(folders) else ""
        raise BadOption(f"{root} has records already, in {' and '.join(map(str, full))}: give a new --out{those}")
    return folders


def _print(
    found: Sequence[Comparison], folders: Sequence[Path], lots: Sequence[Sequence[Record]], beyond: float
) -> None:
    for name, folder, records in zip("AB", folders, lots, strict=True):
        screen.print(f"{name}: {folder}, {_lot(records)}", highlight=False, soft_wrap=True)
    shown = [each for each in found if each.ratio is not None or _failed_in(each)]
    if shown:
        _print_ratios(shown)
    if len({each.setting for each in found}) == 1:
        found = [replace(each, setting="") for each in found]  # it stands in the title already
    changed = [each for each in found if each.verdict in ("slower", "faster") and each.explanation]
    changed.sort(key=lambda each: -abs(math.log(each.ratio or 1)))
    for each in changed[:EXPLAINED]:
        _print_explanation(each)
    for note in [*_notes(found, beyond), _summary(found, beyond)]:
        human.print(note, highlight=False)


def _print_ratios(shown: Sequence[Comparison]) -> None:
    """One row per comparison; a column with the same value in every row becomes part of the title."""
    columns: dict[str, list[Any]] = {
        "workload": [each.workload for each in shown],
        "phase": [each.phase for each in shown],
        "setting": [each.setting for each in shown],
        "device": [each.device for each in shown],
        "runs": [_runs(each) for each in shown],
        "A (ms)": [each.step_a_s and 1e3 * each.step_a_s for each in shown],
        "B (ms)": [each.step_b_s and 1e3 * each.step_b_s for each in shown],
        "B/A": [each.ratio and f"{each.ratio:.3f}" for each in shown],
        "95 %": [_interval(each) for each in shown],
        "detectable": [_detectable(each) for each in shown],
        "verdict": [_verdict(each) for each in shown],
    }
    title = "Step time of B over step time of A"
    for name, part in (("device", "on {}"), ("runs", "{}"), ("setting", "{}")):
        if len(values := set(columns[name])) == 1:
            title += f", {part.format(*values)}" if any(values) else ""
            del columns[name]
    print_table(title, list(columns), list(zip(*columns.values(), strict=True)))


def _interval(each: Comparison) -> str | None:
    if each.low is None or each.high is None or not math.isfinite(each.high):  # a single step bounds nothing
        return None
    return f"{each.low:.3f}-{each.high:.3f}"


def _verdict(each: Comparison) -> str:
    one_sided = not (each.launches_a and each.launches_b)
    return f"failed in {' and '.join(_failed_in(each))}" if one_sided else each.verdict


def _failed_in(each: Comparison) -> list[str]:
    """The sides on which a run failed."""
    return [name for name, failed in (("A", each.failed_a), ("B", each.failed_b)) if failed]


def _detectable(each: Comparison) -> str | None:
    if each.detectable is None:
        return None
    return f"{100 * each.detectable:.1f} %" if each.detectable < 1 else "over 100 %"


def _runs(each: Comparison) -> str:
    if each.launches_a != each.launches_b:
        return f"{each.launches_a} and {each.launches_b} runs"
    return f"{count(each.launches_a, 'run')} per side{', interleaved' * each.paired}"


def _print_explanation(each: Comparison) -> None:
    rows = []
    for change in each.explanation:
        share = None if change.share is None else round(100 * change.share)
        times = [1e3 * change.a_s, 1e3 * change.b_s, f"{1e3 * change.difference_s:+.3g}"]
        rows.append([change.type, *times, share, _calls(change)])
    columns = ["op type", "A (ms)", "B (ms)", "B - A (ms)", "share (%)", "calls"]
    print_table(f"Why {each.name} is {each.verdict}, by op type", columns, rows)
    slowdowns = [f"{slowdown:.2f} in {name}" for name, slowdown in zip("AB", each.slowdowns, strict=True) if slowdown]
    if slowdowns:
        human.print(f"· profiled over unprofiled step time: {' and '.join(slowdowns)}; op times are profiled")


def _calls(change: Change) -> str | None:
    before, after = (f"{calls:,.0f}" for calls in (change.calls_a, change.calls_b))
    if change.calls_a == change.calls_b == 0:
        return None
    return before if before == after else f"{before} → {after}"


def _lot(records: Sequence[Record]) -> str:
    """How many runs, on which machines, with which versions."""
    described = []
    for record in records:
        torch = record.machine.libraries.get("torch")
        commit = record.machine.commit
        parts = [record.machine_label, f"torch {torch}" if torch else "", f"commit {commit}" if commit else ""]
        described.append(", ".join(filter(None, parts)))
    return f"{count(len(records), 'run')} on {' and on '.join(dict.fromkeys(described))}"


def _notes(found: Sequence[Comparison], beyond: float) -> Iterator[str]:
    remarks: dict[str, list[str]] = defaultdict(list)
    for each in found:
        if each.remark:
            remarks[each.remark].append(each.name)
        if each.verdict in ("slower", "faster") and each.unexplained:
            remarks["the profiled steps do not show the difference"].append(each.name)
    shown = [each.name for each in found if each.ratio is not None or _failed_in(each)]
    for remark, names in remarks.items():
        yield f"· {'all' if names == shown else ', '.join(names)}: {remark}"
    if needed := max((each.launches_needed or 0 for each in found), default=0):
        from fathom.analysis.ratio import FEW

        few = any((each.launches_needed or 0) and min(each.launches_a, each.launches_b) < FEW for each in found)
        runs = f"{'at least ' if few else ''}{needed} runs per side, best with --interleave"
        way = runs if needed <= MANY else "a quieter machine"
        yield f"· to detect {100 * beyond:g} % in every workload, it takes {way}"


def _summary(found: Sequence[Comparison], beyond: float) -> str:
    parts = []
    for verdict in ("slower", "faster"):
        if changed := [each for each in found if each.verdict == verdict]:
            by = ", ".join(f"{each.name} by {100 * abs((each.ratio or 1) - 1):.1f} %" for each in changed)
            parts.append(f"{verdict}: {by}")
    parts += [
        f"{verdict}: {number}"
        for verdict in ("no change", "not comparable")
        if (number := sum(each.verdict == verdict for each in found))
    ]
    for side_name in "AB":
        if failed := [each.name for each in found if side_name in _failed_in(each)]:
            parts.append(f"failed in {side_name}: {', '.join(failed)}")
    from fathom.analysis.compare import geometric_mean

    if mean := geometric_mean(found):
        parts.append(f"geometric mean of B/A: {mean:.3f}")
    worse = ", ".join(each.name for each in found if each.regressed(beyond))
    noisy = [each.name for each in found if each.verdict == "no change" and (each.detectable or 0) > beyond]
    undetectable = f"; not detectable in {', '.join(noisy)}" if noisy else ""
    return f"{'; '.join(parts)}\nregressions above {100 * beyond:g} %: {worse or 'none'}{undetectable}"
